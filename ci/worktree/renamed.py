"""Overlay files under a new name: which one was each, and what cannot be known.

A file's owner goes with it, so a wrong guess would hand one patch's file to
another. Where files of different patches are as like to a new one, only the
move of their whole folder tells them apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ci.core.content import Content, likeness

_ALIKE = 0.5
"""How much of a file must stay for a new one to count as the old one renamed."""


@dataclass(frozen=True)
class Renames:
    """New paths beside the overlay files that they were.

    Attributes:
        was: the file that each was.
        doubts: the files that it may have been, where that is not certain.
    """

    was: Mapping[bytes, bytes]
    doubts: Mapping[bytes, tuple[bytes, ...]]


def find_renames(
    gone: Mapping[bytes, Content], fresh: Mapping[bytes, Content], owners: Mapping[bytes, int]
) -> Renames:
    """Pair the files that went with those that came, the likest first.

    Args:
        owners: the patch that each file of `gone` belongs to.
    """
    scores = {
        (path, before): likeness(old.data, new.data)
        for path, new in fresh.items()
        for before, old in gone.items()
        if old.data == new.data or (old.is_text and new.is_text)
    }
    was: dict[bytes, bytes] = {}
    doubts: dict[bytes, tuple[bytes, ...]] = {}
    left = set(gone)
    for score in sorted({one for one in scores.values() if one >= _ALIKE}, reverse=True):
        tied: dict[bytes, list[bytes]] = {}
        for (path, before), its in scores.items():
            if its == score and before in left and path not in was and path not in doubts:
                tied.setdefault(path, []).append(before)
        for path, sources in tied.items():
            rivals = [other for other in tied if not set(sources).isdisjoint(tied[other])]
            could = tuple(dict.fromkeys(old for other in rivals for old in tied[other]))
            free = [old for old in sources if old in left]
            if len({owners[old] for old in could}) == 1 and len(rivals) <= len(could) and free:
                was[path] = free[0]
                left.remove(free[0])
            else:
                doubts[path] = could
        left -= {old for sources in tied.values() for old in sources}
    return _settled_by_folders(was, doubts)


def _settled_by_folders(was: dict[bytes, bytes], doubts: dict[bytes, tuple[bytes, ...]]) -> Renames:
    """What is in doubt, but in a folder whose other files say where it comes from."""
    moves = {_moved(old, path) for path, old in was.items()}
    for path, could in list(doubts.items()):
        proven = [old for old in could if _moved(old, path) in moves]
        if len(proven) == 1:
            was[path] = proven[0]
            del doubts[path]
    return Renames(was, doubts)


def _moved(old: bytes, new: bytes) -> tuple[bytes, bytes]:
    """What a move renames: both paths without the parts at the end that they share."""
    while old.rpartition(b"/")[2] == new.rpartition(b"/")[2] and old and new:
        old, new = old.rpartition(b"/")[0], new.rpartition(b"/")[0]
    return old, new
