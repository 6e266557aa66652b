"""A bare interpreter makes the tooling's environment once and goes on in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ci import CHECKOUT
from ci.env import bootstrap
from ci.env.venvs import Environment, Recipe


class _Gone(Exception):
    """Stands for the process that execv replaced."""


def test_an_interpreter_with_the_libraries_goes_on() -> None:
    assert bootstrap.enter() == 0


def test_a_bare_one_gets_as_far_as_entering() -> None:
    # -S: without site-packages, so none of the tooling's libraries is there.
    code = "import ci.__main__, sys; sys.exit('msgspec' in sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=CHECKOUT, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr


def test_a_bare_one_goes_on_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []

    def ensure(envs: Path, recipe: Recipe) -> Environment:
        seen.extend([recipe.name, "filelock>=3.16" in recipe.requirements])
        return Environment(tmp_path)

    def execv(program: Path, words: list[str]) -> None:
        seen.extend([str(program), words[1:]])
        raise _Gone

    monkeypatch.setattr(bootstrap, "_is_missing", lambda requirement: True)
    monkeypatch.setattr(bootstrap, "ensure", ensure)
    monkeypatch.setattr(os, "execv", execv)
    monkeypatch.setattr(sys, "argv", ["ci", "apply", "--relock"])
    with pytest.raises(_Gone):
        bootstrap.enter()
    python = str(tmp_path / "bin" / "python")
    assert seen == ["tooling", True, python, ["-m", "ci", "apply", "--relock"]]


def test_what_is_missing() -> None:
    assert bootstrap._is_missing("no-such-distribution>=1")
    assert not bootstrap._is_missing("pytest>=1")
    assert all(";" not in r or "python_version" in r for r in bootstrap.requirements())
