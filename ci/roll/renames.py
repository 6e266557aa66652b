"""Files that have another name on the other vLLM, where it is certain which one.

A pair counts only if no other file is as much alike, in either direction; a
file name that just one of them keeps decides among equals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ci.core.content import split_lines
from ci.git.repo import Git
from ci.git.trees import read_contents
from ci.series.compose import BaseTree

_LEAST = 0.5
"""How much of a file a renamed one has to keep."""
_MARGIN = 0.02
"""How much more alike than any other a pair has to be, as a share of the file."""

_Files = Mapping[bytes, Counter[bytes]]
"""The lines of files, in no order: hundreds are compared with each other."""


class Renames:
    """The renames between two trees, found when first asked for."""

    def __init__(self, store: Git, old: BaseTree, new: BaseTree) -> None:
        self._store, self._old, self._new = store, old, new
        self._files: dict[tuple[str, bytes], _Files] = {}
        self._known: dict[bytes, tuple[tuple[bytes, ...], bool]] = {}

    def of(self, path: bytes) -> bytes | None:
        """The new name of a file, if it is certain."""
        names, certain = self._candidates(path)
        return names[0] if certain else None

    def rivals(self, path: bytes) -> tuple[bytes, ...]:
        """The new names that a file may have, where it is not certain which."""
        names, certain = self._candidates(path)
        return () if certain else names

    def _candidates(self, path: bytes) -> tuple[tuple[bytes, ...], bool]:
        """The names that a file may have now, and whether there is just one and it is certain."""
        if path in self._new.entries or path not in self._old.entries:
            return (), False
        if path not in self._known:
            gone = self._only_in(self._old, self._new, path)
            came = self._only_in(self._new, self._old, path)
            names = _likest(path, gone, came)
            certain = len(names) == 1 and _likest(names[0], came, gone) == (path,)
            self._known[path] = names, certain
        return self._known[path]

    def _only_in(self, base: BaseTree, other: BaseTree, like: bytes) -> _Files:
        """The files of `base` that `other` has not, those that end like `like`."""
        key = base.tree, like.rpartition(b".")[2]
        if key not in self._files:
            entries = {
                path: entry
                for path, entry in base.entries.items()
                if path not in other.entries and path.rpartition(b".")[2] == key[1]
            }
            contents = read_contents(self._store, entries.values())
            self._files[key] = {
                path: Counter(split_lines(contents[entry].data)) for path, entry in entries.items()
            }
        return self._files[key]


def _likest(path: bytes, files: _Files, others: _Files) -> tuple[bytes, ...]:
    """Which of `others` are most like a file; the one with its file name, if just one has it."""
    scores = {name: _alike(files[path], lines) for name, lines in others.items()}
    least = max(_LEAST, max(scores.values(), default=0.0) - _MARGIN)
    found = tuple(sorted(name for name, score in scores.items() if score >= least))
    base = path.rpartition(b"/")[2]
    same = tuple(name for name in found if name.rpartition(b"/")[2] == base)
    return same if len(same) == 1 else found


def _alike(one: Counter[bytes], other: Counter[bytes]) -> float:
    """The share of the larger file's bytes that stand in lines of both."""
    size = max(_size(one), _size(other))
    return _size(one & other) / size if size else 1.0


def _size(lines: Counter[bytes]) -> int:
    return sum(len(line) * count for line, count in lines.items())
