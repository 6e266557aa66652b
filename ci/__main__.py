"""`python -m ci VERB`."""

from __future__ import annotations

import sys

from ci.cli import guarded, main
from ci.env import bootstrap

if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        # A terminal that knows fewer letters than a file name has is no reason to stop.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    sys.exit(guarded(bootstrap.enter) or main(sys.argv[1:]))
