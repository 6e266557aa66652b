"""One file's change on another version of that file, hunk by hunk.

Three things are known: the file as the patch found it (`before`), as it left
it (`after`), and as it is on the other vLLM (`now`). A hunk whose lines are in
`now` word for word goes there. One whose result is there is upstream. Only the
others are merged three ways, each by itself first, so that one outcome is
known for every hunk and none can be lost in a merge that calls itself clean.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ci.filediff import FileDiff, Hunk
from ci.git import Git
from ci.hunks import nearest
from ci.objects import Content, show, split_lines
from ci.verdicts import Clash, HunkVerdict, Near, Outcome

MARKS = (b"<<<<<<<", b"|||||||", b"=======", b">>>>>>>")
"""What stands around the sides of a conflict. The names behind them are the
same for every target, so that a resolution fits wherever the lines are."""
_NAMES = ("upstream", "pinned", "patch")
_INNER = 57
"""Length of the marks while merging: longer than any line of marks in a source."""


@dataclass(frozen=True)
class Placed:
    """A file's change on the other version.

    Attributes:
        content: the file with all that could be placed; in a conflict, with
            the patch's side, so that later patches can be tried.
        marked: the file with marked conflicts; None where there are none.
    """

    content: bytes
    hunks: tuple[HunkVerdict, ...]
    marked: bytes | None = None


@dataclass(frozen=True)
class _Merge:
    """A three-way merge: pieces that are settled, and the clashes between them."""

    pieces: tuple[bytes, ...]
    clashes: tuple[tuple[bytes, bytes, bytes], ...]  # upstream, pinned, patch
    lines: tuple[int, ...] = field(default=())

    def text(self, *, marked: bool) -> bytes:
        out = [self.pieces[0]]
        for (ours, base, theirs), piece in zip(self.clashes, self.pieces[1:], strict=True):
            out.append(_with_marks(ours, base, theirs) if marked else theirs)
            out.append(piece)
        return b"".join(out)


def _ended(text: bytes) -> bytes:
    return text if text.endswith(b"\n") or not text else text + b"\n"


def _with_marks(ours: bytes, base: bytes, theirs: bytes) -> bytes:
    heads = [mark + b" " + name.encode() for mark, name in zip(MARKS[:2], _NAMES, strict=False)]
    return b"".join(
        [heads[0], b"\n", _ended(ours), heads[1], b"\n", _ended(base), MARKS[2], b"\n",
         _ended(theirs), MARKS[3], b" ", _NAMES[2].encode(), b"\n"]
    )  # fmt: skip


def marked_lines(data: bytes) -> list[int]:
    """The lines, from 1, on which a conflict is marked that nobody has settled.

    A line of equal signs is none: texts underline their titles so.
    """
    starts = tuple(
        mark + b" " + name.encode()
        for mark, name in zip((MARKS[0], MARKS[1], MARKS[3]), _NAMES, strict=True)
    )
    return [n for n, line in enumerate(data.split(b"\n"), 1) if line.startswith(starts)]


def merge(git: Git, now: bytes, before: bytes, after: bytes, *, fine: bool = False) -> _Merge:
    """Merge what changed from `before` to `after` into `now`.

    Args:
        fine: take equal lines out of the clashes (there is no common past).
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for name, data in zip(_NAMES, (now, before, after), strict=True):
            path = Path(folder) / name
            path.write_bytes(data)
            paths.append(str(path))
        names = [word for name in _NAMES for word in ("-L", name)]
        style = [] if fine else ["--diff3"]
        result = git.attempt(
            "merge-file", "-p", "-q", f"--marker-size={_INNER}", *style, *names, *paths
        )
    if result.status > 127 or result.status < 0:
        raise AssertionError(result.err.decode("utf-8", "replace"))
    return _parse_merge(result.out, fine=fine)


def _parse_merge(out: bytes, *, fine: bool) -> _Merge:
    marks = [mark[:1] * _INNER for mark in MARKS]
    pieces: list[list[bytes]] = [[]]
    clashes: list[list[list[bytes]]] = []
    lines: list[int] = []
    side = -1
    count = 0
    for line in split_lines(out):
        mark = next((n for n, mark in enumerate(marks) if line.startswith(mark)), None)
        if mark == 0:
            clashes.append([[], [], []])
            lines.append(count + 1)
            side = 0
        elif mark in (1, 2):
            side = mark
        elif mark == 3:
            pieces.append([])
            side = -1
        elif side < 0:
            pieces[-1].append(line)
            count += 1
        else:
            clashes[-1][side].append(line)
            count += side == 0
    joined = tuple((b"".join(a), b"".join(b), b"".join(c)) for a, b, c in clashes)
    return _Merge(tuple(b"".join(piece) for piece in pieces), joined, tuple(lines))


# -- placing ------------------------------------------------------------------


@dataclass(frozen=True)
class _Spot:
    """What was found out about one hunk before any merge."""

    hunk: Hunk
    number: int
    outcome: Outcome | None
    at: int = 0


def place(git: Git, diff: FileDiff, before: Content, after: Content, now: Content) -> Placed:
    """Bring a file's change to another version of the file.

    `after` is `before` with the change; none of the three is a link or binary.
    """
    old, new = split_lines(before.data), split_lines(now.data)
    expected = _line_map(git, before.data, now.data, len(old))
    spots = [_spot(hunk, n, old, new, expected) for n, hunk in enumerate(diff.hunks, 1)]
    spots = _in_order(spots)
    settled = [spot for spot in spots if spot.outcome not in (None, Outcome.UPSTREAM)]
    current = _put(new, settled)
    left = [spot for spot in spots if spot.outcome is None]
    verdicts = {spot.number: _settled_verdict(spot) for spot in spots if spot.outcome}
    if not left:
        return Placed(current, _by_number(verdicts))
    pinned = _patched(old, [spot.hunk for spot in spots if spot.outcome is not None])
    keep: list[_Spot] = []
    for spot in left:
        verdict = _merged_verdict(git, spot, current, pinned, old, spots, diff, new)
        verdicts[spot.number] = verdict
        if verdict.outcome is not Outcome.UPSTREAM:
            keep.append(spot)
    done = [spot.hunk for spot in spots if spot.outcome is not None]
    wanted = _patched(old, [*done, *(spot.hunk for spot in keep)])
    merged = merge(git, current, pinned, wanted)
    stuck = any(verdict.outcome is Outcome.CONFLICT for verdict in verdicts.values())
    if merged.clashes and not stuck:
        # Each hunk fits alone but not beside the others: say so, lose nothing.
        verdicts.update({s.number: _together(verdicts[s.number], merged) for s in keep})
    marked = merged.text(marked=True) if merged.clashes else None
    return Placed(merged.text(marked=False), _by_number(verdicts), marked)


def _by_number(verdicts: dict[int, HunkVerdict]) -> tuple[HunkVerdict, ...]:
    return tuple(verdicts[number] for number in sorted(verdicts))


def _start(hunk: Hunk) -> int:
    """Index of a hunk's first line in the file that the patch was made for."""
    return hunk.old_start - (1 if hunk.old_count else 0)


def _fits(wanted: Sequence[bytes], lines: Sequence[bytes], at: int) -> bool:
    return 0 <= at <= len(lines) - len(wanted) and list(lines[at : at + len(wanted)]) == wanted


def _places(wanted: list[bytes], lines: list[bytes]) -> list[int]:
    if not wanted:
        return [0] if not lines else []
    first = wanted[0]
    return [at for at, line in enumerate(lines) if line == first and _fits(wanted, lines, at)]


def _line_map(git: Git, before: bytes, now: bytes, length: int) -> list[int]:
    """For each line of `before` (and its end), the index where it is in `now`."""
    shift, at = 0, 0
    mapped: list[int] = []
    for old_start, old_count, new_start, new_count in _changed_ranges(git, before, now):
        start = old_start - (1 if old_count else 0)
        mapped += [n + shift for n in range(at, start)]
        mapped += [new_start - (1 if new_count else 0)] * old_count
        at, shift = start + old_count, shift + new_count - old_count
    mapped += [n + shift for n in range(at, length + 1)]
    return mapped


def _changed_ranges(git: Git, before: bytes, now: bytes) -> list[tuple[int, int, int, int]]:
    with tempfile.TemporaryDirectory() as folder:
        old, new = Path(folder, "a"), Path(folder, "b")
        old.write_bytes(before)
        new.write_bytes(now)
        out = git.attempt(
            "diff", "--no-index", "--text", "-U0", "--no-color", "--no-ext-diff",
            "--inter-hunk-context=0", str(old), str(new),
        ).out  # fmt: skip
    found = []
    for line in out.split(b"\n"):
        if line.startswith(b"@@ "):
            words = line.split(b" ")
            (a, b), (c, d) = (_numbers(word) for word in words[1:3])
            found.append((a, b, c, d))
    return found


def _numbers(word: bytes) -> tuple[int, int]:
    start, _, count = word[1:].partition(b",")
    return int(start), int(count or 1)


def _spot(
    hunk: Hunk, number: int, old: list[bytes], new: list[bytes], expected: list[int]
) -> _Spot:
    """Find a hunk's lines, or its result, in the other version."""
    start = _start(hunk)
    here = expected[min(start, len(expected) - 1)]
    before, after = hunk.old_lines, hunk.new_lines
    # The result counts as there only where it was not there before the patch.
    there = [] if _fits(after, old, start) else _places(after, new)
    fits = _places(before, new)
    if here in there:
        return _Spot(hunk, number, Outcome.UPSTREAM, here)
    if here in fits:
        same = here == start
        return _Spot(hunk, number, Outcome.CLEAN if same else Outcome.MOVED, here)
    if len(fits) == 1 and not there:
        return _Spot(hunk, number, Outcome.MOVED, fits[0])
    if len(there) == 1 and not fits and _says_something(hunk):
        return _Spot(hunk, number, Outcome.UPSTREAM, there[0])
    return _Spot(hunk, number, None, here)


def _says_something(hunk: Hunk) -> bool:
    """Whether a hunk's result, found elsewhere, can only be this change."""
    return any(line[:1] == b"+" and len(line.strip()) > 4 for line in hunk.lines)


def _in_order(spots: list[_Spot]) -> list[_Spot]:
    """Hunks that would overlap or change places are left to the merge."""
    out: list[_Spot] = []
    end = 0
    for spot in spots:
        length = len(spot.hunk.old_lines)
        if spot.outcome in (Outcome.CLEAN, Outcome.MOVED):
            if spot.at < end:
                out.append(_Spot(spot.hunk, spot.number, None, spot.at))
                continue
            end = spot.at + length
        out.append(spot)
    return out


def _put(lines: list[bytes], spots: list[_Spot]) -> bytes:
    out: list[bytes] = []
    done = 0
    for spot in sorted(spots, key=lambda spot: spot.at):
        out += [*lines[done : spot.at], *spot.hunk.new_lines]
        done = spot.at + len(spot.hunk.old_lines)
    return b"".join([*out, *lines[done:]])


def _patched(old: list[bytes], hunks: Sequence[Hunk]) -> bytes:
    """The file that the patch was made for, with some of its hunks."""
    return _put(old, [_Spot(hunk, 0, Outcome.CLEAN, _start(hunk)) for hunk in hunks])


def _settled_verdict(spot: _Spot) -> HunkVerdict:
    assert spot.outcome is not None
    offset = spot.at - _start(spot.hunk)
    return HunkVerdict(spot.number, spot.hunk.title, spot.outcome, spot.at + 1, offset)


def _merged_verdict(
    git: Git,
    spot: _Spot,
    current: bytes,
    pinned: bytes,
    old: list[bytes],
    spots: list[_Spot],
    diff: FileDiff,
    new: list[bytes],
) -> HunkVerdict:
    """Merge one hunk alone, and compare what that changed with what it should."""
    done = [other.hunk for other in spots if other.outcome is not None]
    merged = merge(git, current, pinned, _patched(old, [*done, spot.hunk]))
    title = spot.hunk.title
    if merged.clashes:
        near = nearest(spot.hunk.old_lines, new, spot.at)
        return HunkVerdict(
            spot.number, title, Outcome.CONFLICT, merged.lines[0],
            note=_seen_upstream(spot.hunk, merged), clashes=_clashes(merged),
            nearest=near and Near(show(diff.path), near[0] + 1, near[1], len(spot.hunk.old_lines)),
        )  # fmt: skip
    result = merged.text(marked=False)
    if result == current:
        return HunkVerdict(
            spot.number, title, Outcome.UPSTREAM, spot.at + 1, note="with other lines around it"
        )
    offset = spot.at - _start(spot.hunk)
    missing = _missing(spot.hunk, current, result)
    if missing:
        note = f"{missing} of its changed lines are upstream already"
        return HunkVerdict(spot.number, title, Outcome.PARTLY, spot.at + 1, offset, note)
    note = "with other lines around it"
    return HunkVerdict(spot.number, title, Outcome.MERGED, spot.at + 1, offset, note)


def _seen_upstream(hunk: Hunk, merged: _Merge) -> str:
    """A hint, and no more: what the hunk adds and takes out is so on the other side."""
    ours = {line for clash in merged.clashes for line in split_lines(clash[0])}
    added = {line[1:] for line in hunk.lines if line[:1] == b"+" and line.strip() != b"+"}
    gone = {line[1:] for line in hunk.lines if line[:1] == b"-"} - added
    seen = bool(added) and added <= ours and not gone & ours
    return "all lines that it adds are on upstream's side: perhaps taken already" if seen else ""


def _missing(hunk: Hunk, current: bytes, result: bytes) -> int:
    """How many of a hunk's changed lines the merge had no need to change."""
    wanted = Counter(line for line in hunk.lines if line[:1] != b" ")
    was, became = Counter(split_lines(current)), Counter(split_lines(result))
    for line, count in (became - was).items():
        wanted[b"+" + line] -= count
    for line, count in (was - became).items():
        wanted[b"-" + line] -= count
    # A line that the hunk both takes out and puts in changes no count.
    for line in [key[1:] for key in wanted if key[:1] == b"+"]:
        both = min(wanted[b"+" + line], wanted[b"-" + line])
        if both > 0:
            wanted[b"+" + line] -= both
            wanted[b"-" + line] -= both
    return sum(count for count in wanted.values() if count > 0)


def _together(verdict: HunkVerdict, merged: _Merge) -> HunkVerdict:
    return HunkVerdict(
        verdict.number, verdict.title, Outcome.CONFLICT, merged.lines[0],
        note="fits alone, but not beside the patch's other hunks", clashes=_clashes(merged),
    )  # fmt: skip


def _clashes(merged: _Merge) -> tuple[Clash, ...]:
    return tuple(
        Clash(_shown(base), _shown(ours), _shown(theirs), line)
        for (ours, base, theirs), line in zip(merged.clashes, merged.lines, strict=True)
    )


def _shown(data: bytes) -> str:
    return "\n".join(show(line.removesuffix(b"\n")) for line in split_lines(data))
