"""Environments: made once for each recipe, and again after an interruption."""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from ci.core.errors import Fault
from ci.env import venvs as environments
from ci.env.venvs import Recipe, ensure


def test_made_once_for_each_recipe(tmp_path: Path) -> None:
    environment = ensure(tmp_path, Recipe("e", ()))
    inside = "import sys; print(sys.prefix != sys.base_prefix)"
    out = subprocess.run([environment.python, "-c", inside], capture_output=True, check=True)
    assert out.stdout.strip() == b"True"
    mark = environment.site_packages / "mark"
    mark.touch()
    assert ensure(tmp_path, Recipe("e", ())) == environment
    assert mark.exists()
    # As an interrupted run leaves it.
    (environment.folder / ".made-from").unlink()
    ensure(tmp_path, Recipe("e", ()))
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
    environment = ensure(tmp_path, Recipe("e", ()))
    with pytest.raises(Fault, match="installing into e failed with status"):
        # No setuptools is in there to build with.
        environments.install_sources(environment, source)


@pytest.mark.parametrize("with_uv", [True, False])
def test_without_a_terminal_it_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    with_uv: bool,
) -> None:
    if not with_uv:
        monkeypatch.setattr(environments, "uv", lambda: None)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("UV_NO_INDEX", "1")
    source = tmp_path / "tiny-1-py3-none-any.whl"
    with zipfile.ZipFile(source, "w") as wheel:
        wheel.writestr(
            "tiny-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1\n"
        )
        wheel.writestr("tiny-1.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("tiny-1.dist-info/RECORD", "")
    ensure(tmp_path, Recipe("e", (f"tiny @ {source.as_uri()}",)))
    told = capfd.readouterr()
    assert (told.out, told.err) == ("", "making the environment e: 1 requirement\n")
    assert "tiny" in (tmp_path / "e.log").read_text()
    with pytest.raises(Fault, match="installing into e failed") as caught:
        ensure(tmp_path, Recipe("e", ("no-such-distribution",)))
    assert caught.value.todo == f"see {tmp_path / 'e.log'}"
    assert any("no-such-distribution" in line for line in caught.value.details)
    told = capfd.readouterr()
    assert (told.out, told.err) == ("", "making the environment e: 1 requirement\n")


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
