"""Environments: made once for each recipe, and again after an interruption."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ci import environments
from ci.environments import Recipe, ensure
from ci.errors import Fault
from ci.layout import Layout


def test_made_once_for_each_recipe(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    environment = ensure(layout, Recipe("e", ()))
    inside = "import sys; print(sys.prefix != sys.base_prefix)"
    out = subprocess.run([environment.python, "-c", inside], capture_output=True, check=True)
    assert out.stdout.strip() == b"True"
    mark = environment.site_packages / "mark"
    mark.touch()
    assert ensure(layout, Recipe("e", ())) == environment
    assert mark.exists()
    # As an interrupted run leaves it.
    (environment.folder / "recipe.key").unlink()
    ensure(layout, Recipe("e", ()))
    assert not mark.exists()


def test_sources_are_built_with_what_the_environment_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_OFFLINE", "1")
    source = tmp_path / "source"
    source.mkdir()
    (source / "pyproject.toml").write_text(
        '[project]\nname = "tiny"\nversion = "1"\n[tool.setuptools]\npy-modules = ["tiny"]\n'
    )
    (source / "tiny.py").write_text("VALUE = 1\n")
    environment = ensure(Layout(tmp_path), Recipe("e", ()))
    with pytest.raises(Fault, match="installing into e failed with status"):
        # No setuptools is in there to build with.
        environments.install_sources(environment, source)


def test_a_program_that_fails_shows_its_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "it.log"
    with pytest.raises(Fault, match="doing it failed with status 3") as caught:
        environments.run(["sh", "-c", "seq 1 50; echo oops >&2; exit 3"], what="doing it", log=log)
    assert caught.value.details[-2:] == ("50", "oops")
    assert "1\n2\n" in log.read_text()


def test_another_interpreters_modules_are_kept_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.invalid/simple")
    cleaned = environments.clean_variables()
    assert "PYTHONPATH" not in cleaned
    assert cleaned["PIP_INDEX_URL"] == "https://index.invalid/simple"
    assert cleaned["PATH"] == os.environ["PATH"]
