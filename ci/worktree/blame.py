"""Where lines of a file come from, and where they were before.

A file's life through the series is a list of versions. `owners` says for each
line of the last version which step brought it; `back` says where a run of
lines was one version earlier, if that version has it unchanged.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

Lines = Sequence[bytes]


@dataclass(frozen=True)
class Block:
    """Lines `[old_start, old_end)` that became lines `[new_start, new_end)`."""

    old_start: int
    old_end: int
    new_start: int
    new_end: int

    @property
    def is_insertion(self) -> bool:
        return self.old_start == self.old_end


def blocks(old: Lines, new: Lines) -> list[Block]:
    """The runs of lines in which two versions differ, in order."""
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    middle = difflib.SequenceMatcher(None, old[head : len(old) - tail], new[head : len(new) - tail])
    return [
        Block(a1 + head, a2 + head, b1 + head, b2 + head)
        for tag, a1, a2, b1, b2 in middle.get_opcodes()
        if tag != "equal"
    ]


@dataclass(frozen=True)
class Owners:
    """Who brought what in a version; step 0 is upstream.

    Attributes:
        lines: the step that brought each line.
        gaps: the steps that took lines away before line i, by i.
    """

    lines: list[int]
    gaps: dict[int, set[int]]

    def of(self, start: int, end: int) -> set[int]:
        """The steps that have a say in lines `[start, end)`; for an empty run,
        of the lines on both sides of it."""
        if start < end:
            found = set(self.lines[start:end])
            inside = range(start + 1, end)
        else:
            found = set(self.lines[max(start - 1, 0) : start + 1])
            inside = range(start, start + 1)
        for gap in inside:
            found |= self.gaps.get(gap, set())
        return found


def owners(versions: Sequence[Lines]) -> Owners:
    """Blame, from the first version (upstream's) to the last."""
    lines = [0] * len(versions[0])
    gaps: dict[int, set[int]] = {}
    for step in range(1, len(versions)):
        if versions[step] == versions[step - 1]:
            continue
        lines, gaps = _forward(lines, gaps, blocks(versions[step - 1], versions[step]), step)
    return Owners(lines, gaps)


def _forward(
    lines: list[int], gaps: dict[int, set[int]], changed: list[Block], step: int
) -> tuple[list[int], dict[int, set[int]]]:
    out: list[int] = []
    moved: dict[int, set[int]] = {}
    done = 0
    for block in [*changed, None]:
        end = block.old_start if block else len(lines)
        shift = len(out) - done
        for gap in range(done, end + 1):
            if gap in gaps:
                moved.setdefault(gap + shift, set()).update(gaps[gap])
        out += lines[done:end]
        if block is None:
            break
        out += [step] * (block.new_end - block.new_start)
        if block.new_start == block.new_end:
            moved.setdefault(len(out), set()).add(step)
        done = block.old_end
    return out, moved


def back(changed: Sequence[Block], start: int, end: int) -> tuple[int, int] | None:
    """Where lines `[start, end)` were one version earlier.

    Args:
        changed: what that step changed.

    Returns:
        None if the step touched them. An empty run beside changed lines stays
        with the unchanged line next to it.
    """
    shift = 0
    for block in changed:
        if start < end:
            before = block.new_end <= start
            after = block.new_start >= end
        else:
            # Beside a deletion, the place before the deleted lines is taken.
            before = block.new_end <= start and not (block.new_start == start == block.new_end)
            after = block.new_start >= start
        if after:
            break
        if not before:
            return None
        shift = block.old_end - block.new_end
    return start + shift, end + shift


def replace_runs(lines: Lines, runs: Sequence[tuple[int, int, Lines]]) -> list[bytes]:
    """`lines` with each run `(start, end, new lines)` replaced; runs do not overlap."""
    out: list[bytes] = []
    done = 0
    for start, end, new in sorted(runs, key=lambda run: (run[0], run[1])):
        out += lines[done:start]
        out += new
        done = end
    return out + list(lines[done:])
