"""One file's change on another version of that file, hunk by hunk.

A hunk whose lines are in the other version word for word goes there, and one
whose result is there is upstream, where `locate` proves that it is the very
place. Any other is taken apart into its runs of changed lines: each must have
a proven place by what is left around it, and git's three-way merge must come
to the same. What is in several places, or clashes, is left to a person.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from ci.core.content import Content, show, split_lines
from ci.git.repo import Git
from ci.roll.merging import Merge, merge
from ci.roll.verdict import Clash, HunkVerdict, Near, Outcome
from ci.series.diff import FileDiff, Hunk
from ci.series.hunks import nearest
from ci.series.locate import Text, binding_scope, locate

_AROUND = 3
"""How many lines above and below a run of changed lines are asked for its place."""
_LISTED = 8
"""How many places a verdict lists."""


@dataclass(frozen=True)
class Placed:
    """A file's change on the other version.

    Attributes:
        content: the file with all that could be placed; where sides clash, with
            the patch's, so that later patches can be tried.
        marked: the file with marked conflicts; None where there are none.
        homeless: the hunks whose place a person has to find; not in `content`.
    """

    content: bytes
    hunks: tuple[HunkVerdict, ...]
    marked: bytes | None = None
    homeless: tuple[Hunk, ...] = ()


@dataclass(frozen=True)
class _Edit:
    """Lines `[start, end)` of the other version that become `lines`."""

    start: int
    end: int
    lines: Sequence[bytes]

    def touches(self, other: _Edit) -> bool:
        """Whether their order would matter."""
        if self.start == other.start:
            return True
        return self.start < other.end and other.start < self.end


@dataclass(frozen=True)
class _Spot:
    """What became of one hunk.

    Attributes:
        edits: what it changes in the other version; none where it has no place
            or is there already.
        clashes: a merge shows where the sides are at odds.
    """

    hunk: Hunk
    verdict: HunkVerdict
    edits: tuple[_Edit, ...] = ()
    clashes: bool = False


def place(git: Git, diff: FileDiff, before: Content, now: Content) -> Placed:
    """Bring a file's change to another version of the file; neither is a link or binary."""
    old, new = Text(split_lines(before.data)), Text(split_lines(now.data))
    spots: list[_Spot] = []
    for number, hunk in enumerate(diff.hunks, 1):
        spot = _whole(hunk, number, old, new) or _in_runs(git, hunk, number, old, new, diff.path)
        others = [edit for other in spots for edit in other.edits]
        if any(edit.touches(other) for edit in spot.edits for other in others):
            note = "fits by itself, but overlaps another hunk of the patch"
            verdict = replace(spot.verdict, outcome=Outcome.CONFLICT, note=note)
            spot = _Spot(hunk, verdict)
        spots.append(spot)
    content = _edited(new.lines, [edit for spot in spots for edit in spot.edits])
    placed = [spot.hunk for spot in spots if not spot.verdict.outcome.open]
    clashing = [spot.hunk for spot in spots if spot.clashes]
    marked = None
    if clashing:
        wanted = _patched(old, [*placed, *clashing])
        merged = merge(git, content, _patched(old, placed), wanted)
        if merged.clashes:
            content, marked = merged.text(marked=False), merged.text(marked=True)
    homeless = [s.hunk for s in spots if s.verdict.outcome.open and not (s.clashes and marked)]
    return Placed(content, tuple(spot.verdict for spot in spots), marked, tuple(homeless))


def _start(hunk: Hunk) -> int:
    """Index of a hunk's first line in the file that the patch was made for."""
    return hunk.old_start - (1 if hunk.old_count else 0)


def _edited(lines: Sequence[bytes], edits: Sequence[_Edit]) -> bytes:
    out: list[bytes] = []
    done = 0
    for edit in sorted(edits, key=lambda edit: edit.start):
        out += [*lines[done : edit.start], *edit.lines]
        done = edit.end
    return b"".join([*out, *lines[done:]])


def _patched(old: Text, hunks: Sequence[Hunk]) -> bytes:
    """The file that the patch was made for, with some of its hunks."""
    starts = [(_start(hunk), hunk) for hunk in hunks]
    edits = [_Edit(at, at + len(hunk.old_lines), hunk.new_lines) for at, hunk in starts]
    return _edited(old.lines, edits)


# -- a hunk as a whole --------------------------------------------------------


def _whole(hunk: Hunk, number: int, old: Text, new: Text) -> _Spot | None:
    """A hunk whose lines, or whose result, are there word for word.

    Returns:
        None where only its parts can have a place.
    """
    patched = Text(split_lines(_patched(old, [hunk])))
    start, before, after = _widened(hunk, old, patched)
    head = next(n for n, (was, is_) in enumerate(zip_longest(before, after)) if was != is_)
    removes = len(before) > len(after) or any(line[:1] == b"-" for line in hunk.lines)
    mark = min(head, len(before) - 1) if removes else max(head - 1, 0)
    found = new.places(before)
    at = locate(old, start, before, new, mark) if found else None
    there = None
    if new.places(after):
        there = locate(patched, start, after, new, max(head - 1, 0))
    if there is not None and len(after) < len(before) and at is not None:
        # What is left by a deletion is there before it, too.
        there = None if there in range(at, at + len(before)) else there
    if there is not None:
        taken = range(there, there + len(after) if len(after) > len(before) else there)
        scope = binding_scope(old, new, start + mark)
        if all(rival in taken for rival in new.within(scope, before, mark)):
            verdict = HunkVerdict(number, hunk.title, Outcome.UPSTREAM, there + 1, there - start)
            return _Spot(hunk, verdict)
        found, at = sorted({*found, there}), None
    if at is not None:
        outcome = Outcome.CLEAN if at == start else Outcome.MOVED
        verdict = HunkVerdict(number, hunk.title, outcome, at + 1, at - start)
        return _Spot(hunk, verdict, (_Edit(at, at + len(before), after),))
    if not found:
        return None
    note = _several(old, start + mark, new, found, mark)
    return _Spot(hunk, HunkVerdict(number, hunk.title, Outcome.CONFLICT, note=note))


def _widened(hunk: Hunk, old: Text, patched: Text) -> tuple[int, list[bytes], list[bytes]]:
    """A hunk with as many lines around it as tell the file before it from the one after.

    Among equal lines (an `x` more beside five) its own context does not: there
    its result is in the file before, and its lines are in the file after.
    """
    start, before, after = _start(hunk), hunk.old_lines, hunk.new_lines
    end = start + len(before)
    grows = len(after) >= len(before)
    while (
        _near(after, old, start, end)
        if grows
        else _near(before, patched, start, start + len(after))
    ):
        if start == 0 and end == len(old.lines):
            break
        first, end = max(start - 1, 0), min(end + 1, len(old.lines))
        before = old.lines[first:end]
        after = patched.lines[first : end + len(patched.lines) - len(old.lines)]
        start = first
    return start, before, after


def _near(lines: list[bytes], text: Text, start: int, end: int) -> bool:
    """Whether lines are in a text so that they overlap a range of it."""
    size = max(len(lines), 1)
    return any(at < end and at + size > start for at in text.places(lines))


def _several(old: Text, line: int, new: Text, found: Sequence[int], mark: int) -> str:
    """The places that a hunk could have, and that none of them is proven."""
    scopes = [new.scope(at + mark)[-1:] for at in found[:_LISTED]]
    listed = [
        f"line {at + 1}" + "".join(f" in `{show(name)}`" for name in scope)
        for at, scope in zip(found, scopes, strict=False)
    ]
    listed += [f"{len(found) - _LISTED} more"] if len(found) > _LISTED else []
    home = "".join(f" (it belongs in `{show(name)}`)" for name in old.scope(line)[-1:])
    return f"could go to {', '.join(listed)}, and no place is proven to be its own{home}"


# -- a hunk in runs of changed lines ------------------------------------------


@dataclass(frozen=True)
class _Run:
    """Lines that a hunk takes out, and those that it puts there.

    Attributes:
        old: index of the first in the file that the patch was made for.
        new: index of the first in that file with this one hunk.
    """

    old: int
    removed: list[bytes]
    new: int
    added: list[bytes]


def _runs(hunk: Hunk) -> Iterator[_Run]:
    old = new = _start(hunk)
    run = _Run(old, [], new, [])
    for line in (*hunk.lines, b" "):
        if line[:1] == b"-":
            run.removed.append(line[1:])
        elif line[:1] == b"+":
            run.added.append(line[1:])
        elif run.removed or run.added:
            yield run
        old, new = old + (line[:1] != b"+"), new + (line[:1] != b"-")
        if line[:1] == b" ":
            run = _Run(old, [], new, [])


def _windows(
    text: Text,
    start: int,
    lines: list[bytes],
    other: Text,
    *,
    sides: int,
    before: tuple[Text, int, int] | None = None,
) -> set[int]:
    """Where `lines` of `text` are proven to be in `other`, by as much around them as is left.

    Args:
        sides: how many sides must have a line around them.
        before: a text and a range of it; lines that are there already tell nothing.
    """
    end = start + len(lines)
    found: set[int] = set()
    for above in range(min(_AROUND, start) + 1):
        for below in range(min(_AROUND, len(text.lines) - end) + 1):
            if (above > 0) + (below > 0) < sides or not above + below + len(lines):
                continue
            wanted = text.lines[start - above : end + below]
            mark = above if lines else max(above - 1, 0)
            if not other.places(wanted):
                break
            if before and _near(wanted, *before):
                continue
            at = locate(text, start - above, wanted, other, mark)
            if at is not None:
                found.add(at + above)
    return found


def _place_run(run: _Run, old: Text, patched: Text, new: Text) -> _Edit | bool:
    """What a run changes in the other version; True if it is there, False if nothing is proven."""
    if _indistinct(run, old, patched):
        return False
    todo = _windows(old, run.old, run.removed, new, sides=0 if run.removed else 1)
    was = (old, run.old, run.old + len(run.removed) + 1)
    there = _windows(patched, run.new, run.added, new, sides=0 if run.added else 2, before=was)
    if len(there) == 1:
        (at,) = there
        return todo <= {at, at + len(run.added)} and not _still(run, old, new, at)
    if len(todo) == 1 and not there:
        (at,) = todo
        return _Edit(at, at + len(run.removed), run.added)
    return False


def _still(run: _Run, old: Text, new: Text, there: int) -> bool:
    """Whether what the run changes is also as it was, elsewhere than where its result is."""
    first = max(run.old - 1, 0)
    wanted = old.lines[first : run.old + len(run.removed) + 1]
    mark = run.old - first
    taken = range(there - len(wanted) + 1, there + len(run.added) + 1)
    rivals = new.within(binding_scope(old, new, run.old), wanted, mark)
    return any(rival not in taken for rival in rivals)


def _indistinct(run: _Run, old: Text, patched: Text) -> bool:
    """Whether a run among equal lines looks the same before and after."""
    first = max(run.old - _AROUND, 0)
    before = old.lines[first : run.old + len(run.removed) + _AROUND]
    first = max(run.new - _AROUND, 0)
    after = patched.lines[first : run.new + len(run.added) + _AROUND]
    if len(run.added) >= len(run.removed):
        return _near(after, old, run.old, run.old + len(run.removed) + 1)
    return _near(before, patched, run.new, run.new + len(run.added) + 1)


def _in_runs(git: Git, hunk: Hunk, number: int, old: Text, new: Text, path: bytes) -> _Spot:
    """A hunk with other lines around it."""
    wanted = _patched(old, [hunk])
    merged = merge(git, b"".join(new.lines), b"".join(old.lines), wanted)
    closest = near(path, hunk.old_lines, new.lines, _start(hunk))
    if merged.clashes:
        verdict = HunkVerdict(
            number, hunk.title, Outcome.CONFLICT, merged.lines[0],
            note=_seen_upstream(hunk, merged), clashes=_clashes(merged), nearest=closest,
        )  # fmt: skip
        return _Spot(hunk, verdict, clashes=True)
    patched = Text(split_lines(wanted))
    runs = list(_runs(hunk))
    results = [_place_run(run, old, patched, new) for run in runs]
    edits = tuple(result for result in results if isinstance(result, _Edit))
    if False in results or _edited(new.lines, edits) != merged.text(marked=False):
        note = "its lines changed, and what is left of them could go to more than one place"
        verdict = HunkVerdict(number, hunk.title, Outcome.CONFLICT, note=note, nearest=closest)
        return _Spot(hunk, verdict)
    note = "with other lines around it"
    if not edits:
        verdict = HunkVerdict(number, hunk.title, Outcome.UPSTREAM, note=note)
        return _Spot(hunk, verdict)
    at = edits[0].start
    first = next(run for run, result in zip(runs, results, strict=True) if result is edits[0])
    outcome = Outcome.MERGED
    if True in results:
        taken = [run for run, result in zip(runs, results, strict=True) if result is True]
        lines = sum(len(run.removed) + len(run.added) for run in taken)
        outcome, note = Outcome.PARTLY, f"{lines} of its changed lines are upstream already"
    verdict = HunkVerdict(number, hunk.title, outcome, at + 1, at - first.old, note)
    return _Spot(hunk, verdict, edits)


def near(path: bytes, wanted: list[bytes], lines: list[bytes], start: int = 0) -> Near | None:
    """Where the lines of a hunk are most nearly found in a file, seen from index `start`."""
    found = nearest(wanted, lines, start)
    return Near(show(path), found[0] + 1, found[1], len(wanted)) if found else None


def _seen_upstream(hunk: Hunk, merged: Merge) -> str:
    """A hint, and no more: what the hunk adds and takes out is so on the other side."""
    ours = {line for clash in merged.clashes for line in split_lines(clash[0])}
    added = {line[1:] for line in hunk.lines if line[:1] == b"+" and line.strip() != b"+"}
    gone = {line[1:] for line in hunk.lines if line[:1] == b"-"} - added
    seen = bool(added) and added <= ours and not gone & ours
    return "all lines that it adds are on upstream's side: perhaps taken already" if seen else ""


def _clashes(merged: Merge) -> tuple[Clash, ...]:
    return tuple(
        Clash(_shown(base), _shown(ours), _shown(theirs), line)
        for (ours, base, theirs), line in zip(merged.clashes, merged.lines, strict=True)
    )


def _shown(data: bytes) -> str:
    return "\n".join(show(line.removesuffix(b"\n")) for line in split_lines(data))
