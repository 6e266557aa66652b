"""Progress of long work, on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


def say(line: str) -> None:
    """One line of progress."""
    print(line, file=sys.stderr, flush=True)


@contextmanager
def step(title: str) -> Iterator[None]:
    """Print a step's title as it starts, and its seconds once it succeeded."""
    say(f"… {title}")
    start = time.monotonic()
    yield
    say(f"  {title}: {time.monotonic() - start:.1f} s")
