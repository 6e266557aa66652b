"""Several lines in one checkout: which one is meant, and what each has of its own."""

from __future__ import annotations

import argparse
import shutil
import subprocess
from pathlib import Path

import pytest

from ci import cli
from ci.core import lines
from ci.core.errors import Fault
from ci.core.layout import Layout
from tests.tooling.projects import LINE, Project, second_line, text


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("1.0", "2.0"):
        Layout(tmp_path, name).patches.mkdir(parents=True)
        Layout(tmp_path, name).pin.touch()
    (tmp_path / "patches" / "lines.toml").write_text('default = "2.0"\n')
    return tmp_path


def _run(checkout: Path, *words: str, fail: str = "") -> tuple[int, list[tuple[str, bool]]]:
    seen: list[tuple[str, bool]] = []

    def act(layout: Layout, args: argparse.Namespace) -> int:
        seen.append((layout.line, args.first_line))
        if layout.line == fail:
            raise Fault("it failed")
        return 0

    verbs = (cli.Verb("try", "a verb for tests", act, all_lines=True),)
    return cli.main(["try", *words], verbs, checkout), seen


def test_the_default_line_is_meant_where_none_is_named(checkout: Path) -> None:
    assert _run(checkout) == (0, [("2.0", True)])


def test_a_line_by_option_or_variable(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _run(checkout, "--line", "1.0") == (0, [("1.0", True)])
    monkeypatch.setenv("LINE", "1.0")
    assert _run(checkout) == (0, [("1.0", True)])
    assert _run(checkout, "--line", "2.0") == (0, [("2.0", True)])


def test_all_lines_the_default_first(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(checkout, "--all-lines") == (0, [("2.0", True), ("1.0", False)])
    assert capsys.readouterr().out == "== line 2.0\n== line 1.0\n"


def test_a_line_that_fails_keeps_none_of_the_others_back(checkout: Path) -> None:
    assert _run(checkout, "--all-lines", fail="2.0") == (1, [("2.0", True), ("1.0", False)])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--line", "3.0"), "there is no line 3.0: choose one of 1.0, 2.0"),
        (("--line", "../1.0"), "there is no line ../1.0: choose one of 1.0, 2.0"),
        (("--line", "1.0", "--all-lines"), "not allowed with argument --line"),
    ],
)
def test_wrong_words(
    checkout: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], says: str
) -> None:
    assert _run(checkout, *words) == (1, [])
    told = capsys.readouterr().err
    assert says in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("default", "says"),
    [
        ('default = "3.0"\n', "names the line 3.0, which is not there: write default"),
        ("", "names no line: write default"),
        ("default = 2.0\n", "names the line 2.0, which is not there: write default"),
        ("default = \n", "is not valid TOML"),
        (None, "is missing: restore it"),
    ],
)
def test_a_default_that_is_not_there(
    checkout: Path, capsys: pytest.CaptureFixture[str], default: str | None, says: str
) -> None:
    file = checkout / "patches" / "lines.toml"
    if default is None:
        file.unlink()
    else:
        file.write_text(default)
    assert _run(checkout) == (1, [])
    assert capsys.readouterr().err.startswith(f"error: patches/lines.toml {says}")
    # A line that is named needs no default.
    assert _run(checkout, "--line", "1.0") == (0, [("1.0", True)])


def test_a_folder_without_a_pin(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (checkout / "patches" / "1.5").mkdir()
    assert _run(checkout) == (1, [])
    told = capsys.readouterr().err
    assert told.startswith("error: patches/1.5 has no pin.toml, so it is no line")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-x", "a..b", "x.lock", "a b", "é", "x."])
def test_names_that_a_line_cannot_have(name: str) -> None:
    with pytest.raises(Fault, match="a line cannot be called"):
        lines.check_name(name)


@pytest.mark.parametrize("name", ["0.34.0", "stable", "0.34.0-rc1", "x_1"])
def test_names_that_a_line_can_have(name: str) -> None:
    assert lines.check_name(name) == name


def test_outside_a_checkout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(tmp_path) == (1, [])
    assert "no folder of patches/ holds a pin.toml" in capsys.readouterr().err


# --- a checkout from before there were lines ---------------------------------------------


def _as_before_lines(project: Project) -> Path:
    """Lay a checkout out as it was; its work tree."""
    build, shared = project.layout.build, project.layout.shared
    for path in build.iterdir():
        path.rename((project.layout.store if path.suffix == ".index" else shared) / path.name)
    build.rmdir()
    objects = "../../../store.git/objects\n"
    (shared / "vllm/.git/objects/info/alternates").write_text(objects)
    run = ["git", "--git-dir", str(project.layout.store), "update-ref"]
    subprocess.run([*run, "refs/upstream/core", "refs/series/0.0.1/head"], check=True)
    return shared / "vllm"


def test_an_old_checkout_moves_over_with_its_edits(project: Project) -> None:
    old = _as_before_lines(project)
    (old / "vllm" / "b.py").write_text("mine\n")
    project.git("commit", "-qam", "[Misc] Mine", where=old)
    (old / "vllm" / "a.py").write_text("mine, too\n")
    project.apply()
    assert not old.exists()
    assert project.git("log", "-1", "--format=%s") == "[Misc] Mine"
    assert project.git("status", "--porcelain") == "M vllm/a.py"
    assert (project.work / "vllm" / "a.py").read_text() == "mine, too\n"
    exported = ("for-each-ref", "--format=%(refname)", "refs/upstream")
    refs = project.git(*exported, where=project.layout.store)
    assert refs == f"refs/upstream/{LINE}/core"
    project.git("fsck", "--connectivity-only")


def test_a_move_that_is_cut_short_is_finished(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = _as_before_lines(project)
    (old / "vllm" / "a.py").write_text("mine\n")
    real = Path.rename
    for name in ("worktree.index", "vllm"):

        def rename(self: Path, target: Path, name: str = name) -> Path:
            if self.name == name:
                raise KeyboardInterrupt
            return real(self, target)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Path, "rename", rename)
            project.apply()
    project.apply()
    assert (project.work / "vllm" / "a.py").read_text() == "mine\n"
    assert project.git("status", "--porcelain") == "M vllm/a.py"


# --- two lines beside each other -----------------------------------------------------------


def test_two_lines_share_a_store_and_nothing_else(project: Project) -> None:
    line = second_line(project)
    first = project.apply().head
    line.apply()
    assert line.files()["vllm/a.py"] == b"another a\n"
    assert not project.apply().changed
    assert not line.apply().changed
    line.write("vllm/a.py", text("changed"))
    before = project.series()
    line.refresh("--new", "[Core] Change a", "--topic", "all")
    assert project.series() == before
    assert project.apply().head == first
    assert [p for p in line.series() if p.endswith(".patch")] == [
        "patches/M/0001-Core-Change-a.patch"
    ]


def test_a_series_on_the_pin_of_another_line(project: Project) -> None:
    line = second_line(project)
    shutil.copy(line.layout.pin, project.layout.pin)
    shutil.rmtree(line.layout.patches)
    with pytest.raises(Fault, match=r"patches/L/series\.lock is for the base tree"):
        project.apply()


def test_two_lines_with_one_pin(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    line = second_line(project)
    shutil.copy(project.layout.pin, line.layout.pin)
    assert cli.main(["apply"], root=project.root) == 1
    told = capsys.readouterr().err
    assert told.startswith("error: the lines L and M have the same pin, vLLM 0.0.1")
    assert told.count("\n") == 1
