"""What became of each patch on another vLLM, as data and as a table.

Nothing about a roll is only printed: the table and the JSON say the same, and
every hunk and file of the series is in both.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any


class Outcome(enum.Enum):
    """What became of a hunk, a file or a whole patch; the later, the more to look at."""

    CLEAN = "clean"
    """Applies as it is, at the very lines."""
    MOVED = "moved"
    """Applies at its exact context, on other lines or in a renamed file."""
    MERGED = "merged"
    """Lines beside it changed; a three-way merge found no conflict."""
    REMEMBERED = "remembered"
    """A conflict, solved the way a kept resolution says."""
    UPSTREAM = "upstream"
    """All of it is there already."""
    PARTLY = "partly upstream"
    """Some of it is there already; the rest applies."""
    EXISTS = "exists upstream"
    """A file that the series adds is there, with other content."""
    DELETED = "deleted upstream"
    """A file that the patch changes is gone, and was not renamed."""
    CONFLICT = "conflict"
    """Upstream changed the same lines."""

    @property
    def open(self) -> bool:
        """Whether a person has to decide before the series can stand there."""
        return self in (Outcome.EXISTS, Outcome.DELETED, Outcome.CONFLICT)

    @property
    def rank(self) -> int:
        return list(Outcome).index(self)


@dataclass(frozen=True)
class Near:
    """Where the lines that a hunk expects are most nearly found.

    Attributes:
        line: the first of them, counted from 1.
        agreeing: how many of the `of` lines are there.
    """

    path: str
    line: int
    agreeing: int
    of: int


@dataclass(frozen=True)
class Clash:
    """Lines that both sides changed."""

    pinned: str
    upstream: str
    patch: str
    line: int


@dataclass(frozen=True)
class HunkVerdict:
    """One hunk.

    Attributes:
        title: its `@@` line in the patch.
        line: where it went, counted from 1; 0 where it went nowhere.
        note: what the outcome alone does not say.
    """

    number: int
    title: str
    outcome: Outcome
    line: int = 0
    offset: int = 0
    note: str = ""
    clashes: tuple[Clash, ...] = ()
    nearest: Near | None = None


@dataclass(frozen=True)
class FileVerdict:
    """One file of a patch, upstream's or of the overlay.

    Attributes:
        now: its path on the other vLLM, where it was renamed.
        alike: for an overlay file that exists upstream, the share of equal lines.
    """

    path: str
    outcome: Outcome
    overlay: bool = False
    now: str = ""
    note: str = ""
    alike: float | None = None
    hunks: tuple[HunkVerdict, ...] = ()

    @property
    def there(self) -> int:
        """How many of its hunks are upstream already."""
        return sum(hunk.outcome is Outcome.UPSTREAM for hunk in self.hunks)


@dataclass(frozen=True)
class PatchVerdict:
    """One patch.

    Attributes:
        after: an earlier patch, still open, that this verdict stands on: it may
            change once that one is solved.
    """

    file: str
    outcome: Outcome
    files: tuple[FileVerdict, ...]
    after: str = ""


@dataclass(frozen=True)
class Report:
    """A whole series on another vLLM.

    Attributes:
        pin: the release that the series stands on.
        target: the release or ref that it was tried on.
        series: fingerprint of the series that was tried.
    """

    pin: str
    target: str
    tree: str
    series: str
    patches: tuple[PatchVerdict, ...]

    @property
    def open(self) -> tuple[PatchVerdict, ...]:
        """The patches that a person has to decide on."""
        return tuple(patch for patch in self.patches if patch.outcome.open)


def of_hunks(outcomes: Iterable[Outcome]) -> Outcome:
    """A file's or patch's outcome from those of its parts: the one that asks
    for most, and `PARTLY` where some parts are upstream and others are not."""
    found = set(outcomes)
    if not found:
        return Outcome.CLEAN
    worst = max(found, key=lambda outcome: outcome.rank)
    if worst is Outcome.UPSTREAM and len(found) > 1:
        return Outcome.PARTLY
    return worst


# -- as JSON ------------------------------------------------------------------


def as_json(report: Report) -> dict[str, Any]:
    """The report in plain values."""
    plain: dict[str, Any] = asdict(report, dict_factory=_plain)
    plain["counts"] = counts(report)
    return plain


def _plain(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {k: v.value if isinstance(v, Outcome) else v for k, v in items}


def counts(report: Report) -> dict[str, int]:
    """How many patches came to which outcome; only those there are."""
    found = [patch.outcome for patch in report.patches]
    return {outcome.value: found.count(outcome) for outcome in Outcome if outcome in found}


# -- as text ------------------------------------------------------------------


def as_text(report: Report) -> str:
    """A table of patches, then what has to be known of each that is not clean."""
    lines = [f"series on vLLM {report.pin}, tried on {report.target}", ""]
    width = max((len(patch.file) for patch in report.patches), default=0)
    for patch in report.patches:
        word = patch.outcome.value + (" *" if patch.after else "")
        lines.append(f"  {patch.file:<{width}}  {word:<18}  {_summary(patch)}".rstrip())
    lines += ["", ", ".join(f"{n} {what}" for what, n in counts(report).items())]
    if any(patch.after for patch in report.patches):
        lines.append("* stands on a patch that is still open; may change when that is solved")
    for patch in report.patches:
        if patch.outcome is not Outcome.CLEAN:
            lines += ["", patch.file, *(f"  {line}" for line in _told(patch))]
    return "\n".join(lines) + "\n"


def _summary(patch: PatchVerdict) -> str:
    hunks = [hunk.outcome for file in patch.files for hunk in file.hunks]
    overlay = [file for file in patch.files if file.overlay]
    parts = []
    if hunks:
        there = hunks.count(Outcome.UPSTREAM)
        left = f"{len(hunks) - there} of {len(hunks)} hunks left" if there else ""
        parts.append(left or f"{len(hunks)} hunks")
        stuck = hunks.count(Outcome.CONFLICT)
        parts += [f"{stuck} in conflict"] if stuck else []
    if overlay:
        parts.append(f"{len(overlay)} overlay files")
    return ", ".join(parts)


def _told(patch: PatchVerdict) -> Iterator[str]:
    if patch.after:
        yield f"stands on {patch.after}, which is open"
    for file in patch.files:
        if file.outcome is Outcome.CLEAN:
            continue
        where = f" → {file.now}" if file.now else ""
        alike = "" if file.alike is None else f", {file.alike:.0%} alike"
        note = f" ({file.note})" if file.note else ""
        yield f"{file.path}{where}: {file.outcome.value}{alike}{note}"
        for hunk in file.hunks:
            if hunk.outcome is not Outcome.CLEAN:
                yield from (f"  {line}" for line in _hunk_lines(hunk, len(file.hunks)))


def _hunk_lines(hunk: HunkVerdict, of: int) -> Iterator[str]:
    place = f", line {hunk.line}" if hunk.line else ""
    shift = f" ({hunk.offset:+d})" if hunk.offset else ""
    note = f": {hunk.note}" if hunk.note else ""
    yield f"hunk {hunk.number} of {of} {hunk.title}: {hunk.outcome.value}{place}{shift}{note}"
    for clash in hunk.clashes:
        for side in ("pinned", "upstream", "patch"):
            yield from _side(side, getattr(clash, side))
    if hunk.nearest is not None:
        near = hunk.nearest
        yield (
            f"  nearest upstream: {near.path}:{near.line}, {near.agreeing} of {near.of} lines agree"
        )


def _side(name: str, text: str, most: int = 12) -> Iterator[str]:
    lines = text.splitlines() or ["(nothing)"]
    for number, line in enumerate(lines[:most]):
        yield f"  {name if number == 0 else '':<8} | {line}"
    if len(lines) > most:
        yield f"  {'':<8} | … {len(lines) - most} more lines"
