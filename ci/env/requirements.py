"""What the environment that builds and tests has to hold, read from the composed tree."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from ci.core import toml
from ci.core.errors import Fault
from ci.env.venvs import Recipe
from ci.git.repo import Git


def recipe(tests: Path, git: Git, tree: str, kind: str = "cpu") -> Recipe:
    """vLLM's own requirements and those of its build, as `tree` states them, and the tests'.

    Every environment but that of "cuda" also builds the CUDA wheel: what that
    needs at run time is not needed to build it.

    Args:
        tests: the folder with the tests' requirements.txt and constraints.txt.
        kind: which of vLLM's requirements/KIND.txt; "common" is what no device asks for.

    Raises:
        Fault: the tree lacks one of vLLM's files, or a line of it cannot be read.
    """
    lines = [
        *runtime(git, tree, kind),
        *_build(git, tree),
        *_listed((tests / "requirements.txt").read_text("utf-8")),
    ]
    return Recipe(
        "vllm-cuda" if kind == "cuda" else "vllm",
        tuple(dict.fromkeys(_without_local_label(line) for line in lines)),
        tests / "constraints.txt",
    )


def runtime(git: Git, tree: str, kind: str) -> Iterator[str]:
    """The lines of vLLM's requirements/KIND.txt and of the files that it includes."""
    for line in _listed(_read(git, tree, f"requirements/{kind}.txt").decode("utf-8")):
        if line.startswith("-r "):
            yield from runtime(git, tree, line.removeprefix("-r ").strip().removesuffix(".txt"))
        elif not line.startswith("--"):
            yield line


def _build(git: Git, tree: str) -> list[str]:
    table = toml.parse(_read(git, tree, "pyproject.toml"), "vLLM's pyproject.toml")
    return [str(line) for line in table["build-system"]["requires"]]


def _read(git: Git, tree: str, path: str) -> bytes:
    blob = git.resolve(f"{tree}:{path}")
    if blob is None:
        raise Fault(
            f"the composed tree has no {path}", todo="was it moved? see ci/env/requirements.py"
        )
    return git.blob(blob)


def _listed(text: str) -> Iterator[str]:
    for line in text.splitlines():
        plain = line.split(" #")[0].strip()
        if plain and not plain.startswith("#"):
            yield plain


def _without_local_label(line: str) -> str:
    """`torch==2.10.0+cpu` as `torch==2.10.0`, which an index with `+cpu` builds meets too.

    The package index holds no local versions, so vLLM's own line could only
    be met from PyTorch's index.
    """
    try:
        requirement = Requirement(line)
    except InvalidRequirement as error:
        raise Fault(f"a requirement of vLLM's cannot be read: {line}", todo=str(error)) from None
    for clause in requirement.specifier:
        if "+" in clause.version:
            public = str(clause).split("+")[0]
            return line.replace(str(clause), public)
    return line
