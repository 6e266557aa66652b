"""What there is to say of a checkout, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class PinStatus:
    """The pin and its age. `newest` is empty where no index could be asked."""

    version: str
    commit: str
    newest: str = ""
    behind: int = 0
    note: str = ""


@dataclass(frozen=True)
class PatchStatus:
    """One patch: lines added to and taken from upstream's files, and its own files."""

    file: str
    subject: str
    added: int
    removed: int
    files: int
    overlay_files: int
    overlay_lines: int


@dataclass(frozen=True)
class TopicStatus:
    """One topic with its patches."""

    name: str
    title: str
    upstream: str
    state: str
    needs: tuple[str, ...]
    patches: tuple[PatchStatus, ...]


@dataclass(frozen=True)
class RollStatus:
    """What the last roll to one target found. `stale`: the series changed since."""

    target: str
    counts: Mapping[str, int]
    stale: bool
    solving: str = ""


@dataclass(frozen=True)
class WheelStatus:
    """A wheel in dist/. `matches`: it is of this series."""

    file: str
    series: str
    variant: str
    matches: bool
    note: str = ""


@dataclass(frozen=True)
class Status:
    """All of it."""

    series: str
    pin: PinStatus
    topics: tuple[TopicStatus, ...]
    rolls: tuple[RollStatus, ...]
    tests: tuple[str, ...]
    wheels: tuple[WheelStatus, ...]
    work_tree: tuple[str, ...]
