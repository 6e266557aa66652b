"""Files that have another name on the other vLLM, where it is certain which one.

Git pairs a file that is gone with the likeliest new one, and of equal ones with
any. Here the pair counts only if no other file is as much alike, in either
direction; a file name that just one of them keeps decides among equals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cached_property

from ci.core.content import split_lines
from ci.git.repo import Git
from ci.git.trees import read_contents
from ci.series.compose import BaseTree

_MARGIN = 0.02
"""How much more alike than any other a pair has to be, as a share of the file."""


class Renames:
    """The renames between two trees, found when first asked for."""

    def __init__(self, store: Git, old: BaseTree, new: BaseTree) -> None:
        self._store, self._old, self._new = store, old, new
        self._known: dict[bytes, tuple[bytes, ...]] = {}

    def of(self, path: bytes) -> bytes | None:
        """The new name of a file, if it is certain."""
        certain, *others = self._candidates(path) or [b"", b""]
        return None if others else certain

    def rivals(self, path: bytes) -> tuple[bytes, ...]:
        """The new names that a file may have, where it is not certain which."""
        names = self._candidates(path)
        return tuple(sorted(set(names))) if len(names) > 1 else ()

    def _candidates(self, path: bytes) -> tuple[bytes, ...]:
        """One name if it is certain; more, which may be equal, if it is not."""
        if path not in self._known:
            self._known[path] = self._find(path)
        return self._known[path]

    def _find(self, path: bytes) -> tuple[bytes, ...]:
        if path in self._new.entries or path not in self._old.entries:
            return ()
        found = self._by_git.get(path)
        if found is None:
            return ()
        came = [name for name in self._new.entries if name not in self._old.entries]
        gone = [name for name in self._old.entries if name not in self._new.entries]
        names = _likest(
            self._lines_of(self._old, path), self._all_lines(self._new, came, found), path
        )
        if names != [found]:
            return (found, *names)
        back = _likest(
            self._lines_of(self._new, found), self._all_lines(self._old, gone, path), found
        )
        if back == [path]:
            return (found,)
        others = [self._by_git.get(name, found) for name in back if name != path]
        return (found, *others)

    @cached_property
    def _by_git(self) -> dict[bytes, bytes]:
        out = self._store.run(
            "diff-tree", "-r", "-z", "--name-status", "-M50%", "-l0", "--diff-filter=R",
            self._old.tree, self._new.tree,
        )  # fmt: skip
        words = out.split(b"\0")[:-1]
        return dict(zip(words[1::3], words[2::3], strict=True))

    def _lines_of(self, base: BaseTree, path: bytes) -> Counter[bytes]:
        return self._all_lines(base, [path], path)[path]

    def _all_lines(
        self, base: BaseTree, paths: Iterable[bytes], like: bytes
    ) -> dict[bytes, Counter[bytes]]:
        """The lines of each of the files that end like `like`."""
        ending = like.rpartition(b".")[2]
        entries = {path: base.entries[path] for path in paths if path.rpartition(b".")[2] == ending}
        contents = read_contents(self._store, entries.values())
        return {path: Counter(split_lines(contents[entry].data)) for path, entry in entries.items()}


def _likest(wanted: Counter[bytes], files: dict[bytes, Counter[bytes]], name: bytes) -> list[bytes]:
    """The files that are most alike; the one with the same file name, if just one has it."""
    scores = {path: _alike(wanted, lines) for path, lines in files.items()}
    best = max(scores.values(), default=0.0)
    found = sorted(path for path, score in scores.items() if score >= best - _MARGIN)
    base = name.rpartition(b"/")[2]
    same = [path for path in found if path.rpartition(b"/")[2] == base]
    return same if len(same) == 1 else found


def _alike(one: Counter[bytes], other: Counter[bytes]) -> float:
    """The share of the larger file's bytes that stand in lines of both."""
    size = max(_size(one), _size(other))
    return _size(one & other) / size if size else 1.0


def _size(lines: Counter[bytes]) -> int:
    return sum(len(line) * count for line, count in lines.items())
