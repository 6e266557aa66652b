"""The one kind of error that a user is meant to read.

Everything that a user can cause or put right is raised as a `Fault`; the command
line prints it without a traceback and exits with status 1. Any other
exception is a bug in the tooling and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Sequence

_SHOWN = 20


def listed(lines: Sequence[str]) -> tuple[str, ...]:
    """A list of things as a fault's details, cut where it gets too long to read."""
    if len(lines) <= _SHOWN + 1:
        return tuple(lines)
    return (*lines[:_SHOWN], f"… and {len(lines) - _SHOWN} more")


class Fault(Exception):
    """Something a user can act on.

    Args:
        what: one line: what happened and where (file, patch, hunk).
        todo: one line: what to do now.
        details: further lines (files, conflicting lines), printed indented
            below the first one.
    """

    def __init__(self, what: str, *, todo: str = "", details: tuple[str, ...] = ()) -> None:
        super().__init__(what)
        self.what = what
        self.todo = todo
        self.details = details

    def __str__(self) -> str:
        first = f"{self.what}: {self.todo}" if self.todo else self.what
        return "\n".join([first, *(f"    {line}" for line in self.details)])
