"""A patch file as git's merge of two people's refreshes leaves it.

A refresh rewrites ids and line numbers in every later patch of the same file, so
they conflict even where no changed line does. The right ones follow from the
merged series: here they are marked as open, and composing finds the hunks again
by their lines alone.
"""

from __future__ import annotations

import re
from os.path import commonprefix

from ci.core.content import split_lines
from ci.series.diff import OPEN_ID

_CONFLICT = re.compile(
    rb"^<{7} [^\n]*\n(?P<ours>.*?)(?:^\|{7}[^\n]*\n.*?)?^={7}\n(?P<theirs>.*?)^>{7} [^\n]*\n",
    re.MULTILINE | re.DOTALL,
)
_INDEX = re.compile(rb"^index [0-9a-f]+\.\.[0-9a-f]+", re.MULTILINE)
_HUNK = re.compile(rb"^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@([^\n]*\n)", re.MULTILINE)
_OPEN_INDEX = f"index {OPEN_ID}..{OPEN_ID}".encode()


def settled(data: bytes) -> bytes:
    """A patch file without those conflicts that only ids and line numbers are in.

    Every file's part that held one has open ids, and its hunks are counted anew:
    where both sides added a line, no header that either wrote is right.
    """
    parts = re.split(rb"^(?=diff --git )", data, flags=re.MULTILINE)
    return b"".join(_settled_part(part) for part in parts)


def _settled_part(part: bytes) -> bytes:
    chosen = _CONFLICT.sub(_choose, part)
    if chosen != part:
        chosen = _INDEX.sub(_OPEN_INDEX, chosen)
    return _counted(chosen) if _OPEN_INDEX in chosen else part


def _choose(conflict: re.Match[bytes]) -> bytes:
    """The side of a conflict that serves for both; all of it where neither does.

    They may differ in ids and line numbers, and one may hold more context of the
    hunk, as long as a line of context beside it, which both have, says that the
    two hunks are in the same place.
    """
    sides = sorted((conflict["ours"], conflict["theirs"]), key=lambda side: side.count(b"\n"))
    short, long = ([_plain(line) for line in split_lines(side)] for side in sides)
    same = len(commonprefix([short, long]))
    more = len(long) - len(short)
    extra, rest = long[same : same + more], long[same + more :]
    above = split_lines(conflict.string[: conflict.start()]) + long[:same]
    below = rest + split_lines(conflict.string[conflict.end() :])
    anchored = any(line.startswith(b" ") for line in (*above[-1:], *below[:1]))
    if short[same:] != rest or (extra and not anchored):
        return conflict[0]
    return sides[0] if all(line.startswith(b" ") for line in extra) else conflict[0]


def _plain(line: bytes) -> bytes:
    """A line without ids and line numbers."""
    return _HUNK.sub(b"@@", _INDEX.sub(b"index", line))


def _counted(part: bytes) -> bytes:
    """One file's part, with the counts that its hunks' lines give."""
    head, *rest = re.split(rb"^(?=@@ )", part, flags=re.MULTILINE)
    for hunk in rest:
        kinds = [line[:1] for line in hunk.split(b"\n")[1:-1]]
        old = sum(kind in (b" ", b"-") for kind in kinds)
        new = sum(kind in (b" ", b"+") for kind in kinds)
        head += _HUNK.sub(rb"@@ -\1,%d +\2,%d @@\3" % (old, new), hunk, count=1)
    return head
