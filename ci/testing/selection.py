"""Which tests are the series' own: files that it adds, and test functions that it changes.

A file of upstream's in which one test was added may hold hundreds of others
that take an hour where kernels are interpreted; of such a file only the
functions that differ from the pin are run. (Whole files are upstream's part.)
"""

from __future__ import annotations

import ast
from pathlib import PurePosixPath

from ci.git.repo import Git
from ci.git.trees import changes
from ci.wheel.composed import ComposedSeries


def series_tests(source: ComposedSeries) -> tuple[str, ...]:
    """What the series adds to the pin's tests; see `changed_tests`."""
    return changed_tests(source.git, source.pin.base_tree, source.tree)


def changed_tests(git: Git, before: str, after: str) -> tuple[str, ...]:
    """pytest's arguments for what a tree's tests have over another's: files, and
    `file::test` where only a part of the file is new."""
    found: list[str] = []
    for change in changes(git, before, after):
        path = change.path.decode("utf-8", "surrogateescape")
        if change.new is None or not is_test_file(path):
            continue
        if change.old is None:
            found.append(path)
            continue
        names = changed_functions(git.blob(change.old.id), git.blob(change.new.id))
        found += [f"{path}::{name}" for name in names]
    return tuple(found)


def is_test_file(path: str) -> bool:
    """Whether pytest collects a file of vLLM's tree."""
    name = PurePosixPath(path).name
    return path.startswith("tests/") and name.startswith("test_") and name.endswith(".py")


def changed_functions(before: bytes, after: bytes) -> list[str]:
    """Test functions and classes of `after` that `before` has not, or not so."""
    old = _tests(before)
    return [name for name, content in _tests(after).items() if old.get(name) != content]


def _tests(source: bytes) -> dict[str, str]:
    """What pytest would collect from a file, by name, without its place in the file."""
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            collected = node.name.startswith("test")
        elif isinstance(node, ast.ClassDef):
            collected = node.name.startswith("Test")
        else:
            continue
        if collected:
            found[node.name] = ast.dump(node)
    return found
