"""What there is to say of a checkout, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ci.series.drift import Drift


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

    @property
    def added(self) -> int:
        return sum(patch.added for patch in self.patches)

    @property
    def removed(self) -> int:
        return sum(patch.removed for patch in self.patches)


@dataclass(frozen=True)
class TopicOnLine:
    """A topic on one line: where it stands, and the lines of upstream's files that it changes."""

    state: str
    upstream: str
    added: int
    removed: int


@dataclass(frozen=True)
class SharedTopic:
    """A topic on every line.

    Attributes:
        on: by line; what became of it there where the line says so, None where the line
            neither has it nor says anything of other lines' topics.
    """

    name: str
    on: Mapping[str, TopicOnLine | Drift | None]


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
    lines: tuple[SharedTopic, ...]
    rolls: tuple[RollStatus, ...]
    tests: tuple[str, ...]
    wheels: tuple[WheelStatus, ...]
    work_tree: tuple[str, ...]
