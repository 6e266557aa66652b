"""Applying a file's change at its exact context.

Nothing is fuzzed: every context and removed line must be there, byte for
byte. Where the file is the very one that the patch was made for (its id says
so), the lines must be at the very place too. In any other file a line number
proves nothing: there a hunk goes to the one place that its lines are in.
"""

from __future__ import annotations

from ci.core.content import Content, blob_id, show, split_lines
from ci.core.errors import Fault
from ci.series.diff import FileDiff, Hunk
from ci.series.locate import fits, places


class DoesNotApply(Fault):
    """A change whose context is not in the file, or is there more than once."""


def apply_diff(diff: FileDiff, old: Content | None, patch: str) -> Content | None:
    """Apply `diff` to a file.

    Args:
        old: the file before, None if there is none.
        patch: the patch's file name, for messages.

    Returns:
        What the file became; None if the change deletes it.

    Raises:
        DoesNotApply: with patch, file, hunk, the conflicting lines and the
            nearest match.
    """
    where = f"{patch}: {show(diff.path)}"
    _check_presence(diff, old, where)
    before = old.data if old else b""
    same_file = old is None or blob_id(before).startswith(diff.old_id)
    after = _apply_hunks(diff, before, same_file, where)
    if diff.new_mode is None:
        if after:
            raise DoesNotApply(
                f"{where}: the patch deletes the file but does not hold all its lines",
                todo="delete it in the work tree and run `nox -s refresh`",
            )
        return None
    return Content(diff.new_mode, after)


def _check_presence(diff: FileDiff, old: Content | None, where: str) -> None:
    if diff.is_new and old is not None:
        raise DoesNotApply(f"{where}: the patch makes this file, but it is there already")
    if diff.is_new:
        return
    if old is None:
        raise DoesNotApply(
            f"{where}: no such file in the tree that the patch applies to",
            todo="it may have been renamed or deleted upstream",
        )
    if old.mode != diff.old_mode:
        raise DoesNotApply(
            f"{where}: the file's mode is {old.mode}, the patch expects {diff.old_mode}"
        )


def _apply_hunks(diff: FileDiff, before: bytes, same_file: bool, where: str) -> bytes:
    lines = split_lines(before)
    out: list[bytes] = []
    done = 0
    for number, hunk in enumerate(diff.hunks, 1):
        stated = hunk.old_start - (1 if hunk.old_count else 0)
        found = places(hunk.old_lines, lines)
        if same_file:
            found = [stated] if fits(hunk.old_lines, lines, stated) else []
        if len(found) != 1 or found[0] < done:
            hunk_at = f"{where}: hunk {number} of {len(diff.hunks)} ({hunk.title})"
            raise _conflict(hunk, hunk_at, lines, stated, found)
        out += lines[done : found[0]] + hunk.new_lines
        done = found[0] + len(hunk.old_lines)
    return b"".join(out + lines[done:])


# --- saying what is wrong ----------------------------------------------------


def _conflict(
    hunk: Hunk, hunk_at: str, lines: list[bytes], stated: int, found: list[int]
) -> DoesNotApply:
    if len(found) > 1:
        lines_ = ", ".join(str(at + 1) for at in found[:8])
        return DoesNotApply(
            f"{hunk_at} fits in {len(found)} places (lines {lines_}): which is meant is not clear",
            todo="take it out of the patch, and make the change in the work tree where you mean it",
        )
    return DoesNotApply(
        f"{hunk_at} does not apply",
        todo="make the change again on this file's lines",
        details=tuple(_nearest(hunk, lines, stated)),
    )


def _shown(line: bytes) -> str:
    return show(line.removesuffix(b"\n"))


def _nearest(hunk: Hunk, lines: list[bytes], stated: int) -> list[str]:
    """Where the hunk comes nearest to fitting, and the lines that differ there."""
    old, new = hunk.old_lines, hunk.new_lines
    changed = new != old and any(line.startswith(b"+") for line in hunk.lines)
    if changed and places(new, lines):
        return ["its result is there already: upstream may have taken the change"]
    found_at = nearest(old, lines, stated)
    if found_at is None:
        return [
            f"none of its {len(old)} lines is in the file; it expects, near line {stated + 1}:",
            *(f"  expected: {_shown(line)}" for line in old[:12]),
        ]
    best, agreeing = found_at
    said = [f"nearest match: line {best + 1}, {agreeing} of {len(old)} lines agree"]
    for offset, line in enumerate(old):
        at = best + offset
        there = lines[at] if 0 <= at < len(lines) else None
        if there != line:
            said.append(f"line {at + 1} expected: {_shown(line)}")
            found = "(end of file)" if there is None else _shown(there)
            said.append(f"line {at + 1} found:    {found}")
    return said[:25]


def nearest(wanted: list[bytes], lines: list[bytes], near: int) -> tuple[int, int] | None:
    """Where `wanted` comes nearest to being in `lines`: index, and lines that agree.

    Blank lines and lone brackets are everywhere, so they count only beside
    others. Of equal places the one nearest to index `near` is taken.
    """
    telling = {line for line in wanted if len(line.strip()) > 3} or set(wanted)
    starts = {
        at - offset
        for at, line in enumerate(lines)
        if line in telling
        for offset, other in enumerate(wanted)
        if other == line
    }
    if not starts:
        return None

    def agreeing(start: int) -> int:
        return sum(
            0 <= start + n < len(lines) and lines[start + n] == line
            for n, line in enumerate(wanted)
        )

    best = max(starts, key=lambda start: (agreeing(start), -abs(start - near)))
    return max(best, 0), agreeing(best)
