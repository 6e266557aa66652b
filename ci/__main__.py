"""`python -m ci VERB`."""

from __future__ import annotations

import sys

from ci import bootstrap
from ci.cli import guarded, main

if __name__ == "__main__":
    sys.exit(guarded(bootstrap.enter) or main(sys.argv[1:]))
