"""The environment's requirements, read from the composed tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.core.content import REGULAR, Content
from ci.core.errors import Fault
from ci.env import requirements
from ci.git.repo import Git
from tests.tooling.projects import write_tree

FILES = {
    "requirements/common.txt": "regex # why\n\n# a comment\nnumpy\n",
    "requirements/cpu.txt": (
        "-r common.txt\n--extra-index-url https://example.invalid\n"
        'torch==2.10.0+cpu; platform_machine == "x86_64"\nnumpy\n'
    ),
    "requirements/cuda.txt": "-r common.txt\ntorch==2.10.0\nray[cgraph]>=2\n",
    "pyproject.toml": '[build-system]\nrequires = ["setuptools>=77", "torch == 2.10.0"]\n',
}


def _project(root: Path, files: dict[str, str]) -> tuple[Path, Git, str]:
    (root / "tests").mkdir()
    (root / "tests" / "requirements.txt").write_text("# tests\npytest  # runs them\n")
    (root / "tests" / "constraints.txt").write_text("pytest==9\n")
    git = Git(root / "store.git")
    git.init()
    tree = {path: Content(REGULAR, text.encode()) for path, text in files.items()}
    return root / "tests", git, write_tree(git, "refs/heads/tree", tree)[1]


def test_cpu(tmp_path: Path) -> None:
    recipe = requirements.recipe(*_project(tmp_path, FILES))
    assert recipe.requirements == (
        "regex",
        "numpy",
        'torch==2.10.0; platform_machine == "x86_64"',
        "setuptools>=77",
        "torch == 2.10.0",
        "pytest",
    )


def test_cuda_has_an_environment_of_its_own(tmp_path: Path) -> None:
    project = _project(tmp_path, FILES)
    recipe = requirements.recipe(*project, "cuda")
    assert "ray[cgraph]>=2" in recipe.requirements
    assert recipe.name != requirements.recipe(*project).name


def test_without_a_device_nothing_is_added(tmp_path: Path) -> None:
    project = _project(tmp_path, FILES)
    recipe = requirements.recipe(*project, "common")
    assert recipe.requirements == ("regex", "numpy", "setuptools>=77", "torch == 2.10.0", "pytest")


def test_the_key_follows_what_is_asked_for(tmp_path: Path) -> None:
    project = _project(tmp_path, FILES)
    before = requirements.recipe(*project).key()
    assert requirements.recipe(*project).key() == before
    (tmp_path / "tests" / "constraints.txt").write_text("pytest==10\n")
    assert requirements.recipe(*project).key() != before


def test_a_tree_without_them(tmp_path: Path) -> None:
    files = {path: text for path, text in FILES.items() if "common" not in path}
    with pytest.raises(Fault, match=r"has no requirements/common\.txt"):
        requirements.recipe(*_project(tmp_path, files))
