"""What became of each patch on another vLLM, as data and as a table.

Nothing about a roll is only printed: the table and the JSON say the same, and
every hunk and file of the series is in both.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec


class Outcome(enum.Enum):
    """What became of a hunk, a file or a whole patch; the later, the more to look at."""

    CLEAN = "clean"
    """Applies as it is, at the very lines."""
    MOVED = "moved"
    """Applies at its exact context, on other lines or in a renamed file."""
    MERGED = "merged"
    """Lines beside it changed; a three-way merge found no conflict."""
    REMEMBERED = "remembered"
    """A conflict, solved as an earlier resolution says."""
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
    worst = max(found, key=list(Outcome).index)
    if worst is Outcome.UPSTREAM and len(found) > 1:
        return Outcome.PARTLY
    return worst


# -- as JSON ------------------------------------------------------------------


def as_json(report: Report) -> dict[str, Any]:
    """The report in plain values."""
    return {**msgspec.to_builtins(report), "counts": counts(report)}


def counts(report: Report) -> dict[str, int]:
    """How many patches came to which outcome; only those there are."""
    found = [patch.outcome for patch in report.patches]
    return {outcome.value: found.count(outcome) for outcome in Outcome if outcome in found}


# -- as text ------------------------------------------------------------------

_SHOWN = 12
"""Lines of one side of a clash that a table shows; the JSON holds all."""


def shown(report: Report, *, in_json: bool) -> str:
    """The report as a verb prints it."""
    return json.dumps(as_json(report), indent=1) if in_json else as_text(report).rstrip("\n")


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


def _many(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


def _summary(patch: PatchVerdict) -> str:
    hunks = [hunk.outcome for file in patch.files for hunk in file.hunks]
    overlay = sum(file.overlay for file in patch.files)
    parts = []
    if hunks:
        there = hunks.count(Outcome.UPSTREAM)
        all_of_them = _many(len(hunks), "hunk")
        parts.append(f"{len(hunks) - there} of {all_of_them} left" if there else all_of_them)
        stuck = hunks.count(Outcome.CONFLICT)
        parts += [f"{stuck} in conflict"] if stuck else []
    if overlay:
        parts.append(_many(overlay, "overlay file"))
    return ", ".join(parts)


def _told(patch: PatchVerdict) -> Iterator[str]:
    if patch.after:
        yield f"stands on {patch.after}, which is open"
    for file in patch.files:
        # An open patch is read as a whole: what is clean in it has its line, too.
        if file.outcome is Outcome.CLEAN and not patch.outcome.open:
            continue
        where = f" → {file.now}" if file.now else ""
        alike = "" if file.alike is None else f", {file.alike:.0%} alike"
        note = f" ({file.note})" if file.note else ""
        yield f"{file.path}{where}: {file.outcome.value}{alike}{note}"
        for hunk in file.hunks:
            if hunk.outcome is not Outcome.CLEAN or patch.outcome.open:
                yield from (f"  {line}" for line in _hunk_lines(hunk, len(file.hunks)))


def _hunk_lines(hunk: HunkVerdict, of: int) -> Iterator[str]:
    place = f", line {hunk.line}" if hunk.line else ""
    shift = f" ({hunk.offset:+d})" if hunk.offset else ""
    note = f": {hunk.note}" if hunk.note else ""
    yield f"hunk {hunk.number} of {of} {hunk.title}: {hunk.outcome.value}{place}{shift}{note}"
    for clash in hunk.clashes:
        yield from _clash_lines(clash)
    if hunk.nearest is not None:
        near = hunk.nearest
        yield (
            f"  nearest upstream: {near.path}:{near.line}, {near.agreeing} of {near.of} lines agree"
        )


def _clash_lines(clash: Clash) -> Iterator[str]:
    """Both sides, and what they come from. Where the clash is long, lines that
    the patch leaves as they were are left out at both ends of its own sides."""
    pinned, patch = clash.pinned.splitlines(), clash.patch.splitlines()
    head, tail = _equal_ends(pinned, patch)
    cut = head if len(patch) > _SHOWN else 0
    end = tail if len(patch) > _SHOWN else 0
    yield from _side("pinned", pinned[cut : len(pinned) - end], before=cut, after=end)
    yield from _side("upstream", clash.upstream.splitlines())
    yield from _side("patch", patch[cut : len(patch) - end], before=cut, after=end)


def _equal_ends(one: list[str], other: list[str]) -> tuple[int, int]:
    """How many lines two texts share at their starts and, of the rest, at their ends."""
    short = min(len(one), len(other))
    head = next((n for n in range(short) if one[n] != other[n]), short)
    rest = short - head
    tail = next((n for n in range(rest) if one[-1 - n] != other[-1 - n]), rest)
    return head, tail


def _side(name: str, lines: list[str], before: int = 0, after: int = 0) -> Iterator[str]:
    shown = [f"… {_many(before, 'line')} as pinned"] if before else []
    shown += lines[:_SHOWN]
    more = len(lines) - _SHOWN
    shown += [f"… {_many(more, 'more line')}"] if more > 0 else []
    shown += [f"… {_many(after, 'line')} as pinned"] if after else []
    for number, line in enumerate(shown or ["(nothing)"]):
        yield f"  {name if number == 0 else '':<8} | {line}"
