"""Which tests run together in one process, and which of them a user's paths name.

`selection.toml` in a folder of tests lists groups of files: a process costs the
time of its imports, so a group holds as many files as can share one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ci.core import toml
from ci.core.errors import Fault
from ci.core.testpaths import TestPaths

_TAKE_A_VALUE = (
    *("-k", "-m", "-p", "-c", "-o", "-W", "-n", "-r", "--deselect", "--ignore", "--ignore-glob"),
    *("--rootdir", "--confcutdir", "--basetemp", "--junit-xml", "--junitxml", "--log-file"),
)
"""Options of pytest's whose next argument is theirs, whatever it looks like."""


@dataclass(frozen=True)
class Group:
    """Test files that run in one process.

    Attributes:
        why: what could break there.
        files: test files, or single tests as `file::test`.
        options: pytest's arguments beside the files.
        variables: of the environment.
        slow: left out unless asked for.
    """

    name: str
    why: str
    files: tuple[str, ...]
    options: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    slow: bool = False

    def holds(self, node: str) -> bool:
        """Whether a node id is of one of the files (or tests) that the group names."""
        return any(_is_in(node, name) for name in self.files)


@dataclass(frozen=True)
class Accepted:
    """A test that the series changes on purpose."""

    test: str
    why: str


@dataclass(frozen=True)
class Selection:
    """selection.toml: which tests run, in which processes.

    Attributes:
        group: what runs of upstream's tests, or of the engine's.
        own: the series' tests in vLLM's layout that need a process of their own;
            the others share one.
        options: pytest's arguments for each process that has no GPU.
    """

    group: tuple[Group, ...]
    own: tuple[Group, ...] = ()
    accepted: tuple[Accepted, ...] = ()
    options: tuple[str, ...] = ()

    def groups_of_own(self, tests: Sequence[str]) -> tuple[Group, ...]:
        """The series' own tests, each in the first group of `own` that holds it."""
        left, found = list(tests), []
        for group in self.own:
            files = tuple(test for test in left if group.holds(test))
            left = [test for test in left if test not in files]
            found.append(replace(group, name=f"overlay-{group.name}", files=files))
        found.append(Group("overlay", "", tuple(left)))
        return tuple(group for group in found if group.files)


def load_selection(folder: Path) -> Selection:
    """The selection in `folder`.

    Raises:
        Fault: it is missing or of another form.
    """
    return toml.read(folder / "selection.toml", Selection)


def _is_in(inner: str, outer: str) -> bool:
    """Whether a path or node id is `outer` or something in it."""
    outer = outer.rstrip("/")
    return inner == outer or inner.startswith((f"{outer}/", f"{outer}::", f"{outer}["))


def narrow(names: Sequence[str], paths: Sequence[str]) -> tuple[str, ...]:
    """Of the files and tests that a process would run, what `paths` name.

    Args:
        paths: files, folders and node ids; with none, everything stays.
    """
    if not paths:
        return tuple(names)
    found = [
        path if _is_in(path, name) else name
        for name in names
        for path in paths
        if _is_in(path, name) or _is_in(name, path)
    ]
    return tuple(dict.fromkeys(found))


def split_paths(where: TestPaths, args: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The paths of tests among pytest's arguments, and the other arguments.

    A path may be written as from anywhere, with `::test` behind it; an overlay
    file is called by the name that it has in vLLM.

    Raises:
        Fault: there is no such file.
    """
    root, paths, rest = where.root, [], []
    trees = [path.relative_to(root).as_posix() for path in (where.overlay, where.work_tree)]
    for before, word in zip(("", *args), args, strict=False):
        file, _, test = word.partition("::")
        looks_like_one = "/" in file or file.endswith(".py")
        if word.startswith("-") or before in _TAKE_A_VALUE or not looks_like_one:
            rest.append(word)
            continue
        path = Path(os.path.relpath(Path(file).resolve(), root.resolve())).as_posix()
        for tree in trees:
            path = path.removeprefix(f"{tree}/")
        places = (root / folder / path for folder in ("", *trees))
        if path.startswith("../") or not any(place.exists() for place in places):
            raise Fault(
                f"there is no {file} to test", todo=f"name a file below tests/ or {trees[0]}/"
            )
        paths.append(f"{path}::{test}" if test else path)
    return tuple(paths), tuple(rest)
