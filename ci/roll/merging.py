"""Three-way merges of one file, and how a conflict is marked in it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from ci.core.content import split_lines
from ci.git.repo import Git

MARKS = (b"<<<<<<<", b"|||||||", b"=======", b">>>>>>>")
"""What stands around the sides of a conflict. The names behind them are the
same for every target, so that a resolution fits wherever the lines are."""
_NAMES = ("upstream", "pinned", "patch")
_INNER = 57
"""Length of the marks while merging: longer than any line of marks in a source."""


@dataclass(frozen=True)
class Merge:
    """A three-way merge: merged pieces, and the clashes between them."""

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
    """The lines, from 1, that still hold a conflict marker.

    A line of equal signs is none: texts underline their titles so.
    """
    starts = tuple(
        mark + b" " + name.encode()
        for mark, name in zip((MARKS[0], MARKS[1], MARKS[3]), _NAMES, strict=True)
    )
    return [n for n, line in enumerate(data.split(b"\n"), 1) if line.startswith(starts)]


def merge(git: Git, now: bytes, before: bytes, after: bytes, *, fine: bool = False) -> Merge:
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


def _parse_merge(out: bytes, *, fine: bool) -> Merge:
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
    return Merge(tuple(b"".join(piece) for piece in pieces), joined, tuple(lines))
