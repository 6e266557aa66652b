"""`python -m ci VERB`."""

from __future__ import annotations

import sys

from ci.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
