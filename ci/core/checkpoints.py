"""Named places where a run may be cut short, for the tests that cut it there."""

from __future__ import annotations

from collections.abc import Callable

_watcher: Callable[[str], None] | None = None


def checkpoint(name: str) -> None:
    """Say that a step is about to happen or has happened. Does nothing by itself."""
    if _watcher is not None:
        _watcher(name)


def watch(watcher: Callable[[str], None] | None) -> None:
    """Have `watcher` called at every checkpoint (a test's way in); None ends it."""
    global _watcher
    _watcher = watcher
