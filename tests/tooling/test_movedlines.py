"""`nox -s roll -- VERSION --accept`, with the line's folders: moved, or kept beside a new line."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci import cli
from ci.core import lines
from ci.core.layout import Layout
from ci.pinned.pin import load_pin
from tests.tooling.projects import RELEASE_COMMIT as COMMIT
from tests.tooling.projects import UPSTREAM, Project, cuts_of, edit, put, text, write_release

pytestmark = pytest.mark.usefixtures("unreachable")
OLD, NEW = "0.0.1", "0.0.2"
TARGET = {**UPSTREAM, "setup.py": edit(UPSTREAM["setup.py"], ("setup line 1\n", "0\n1\n"))}
OWN = {
    f"patches/{OLD}/topics/core.md": text("Why"),
    f"tests/{OLD}/engine/test_it.py": text("assert True"),
    f"bench/{OLD}/step.py": text("print()"),
}
"""What the line has beside its series."""


@pytest.fixture
def line(project: Project, tmp_path: Path) -> Project:
    """The sample as a line that is called like its vLLM, with a release to roll it to."""
    for folder in ("patches", "overlay", "build"):
        (project.root / folder / project.layout.line).rename(project.root / folder / OLD)
    moved = Project(Layout(project.root, OLD))
    for path, content in OWN.items():
        put(moved.root, path, content)
    (moved.root / lines.DEFAULT).write_text(f'# Mine.\ndefault = "{OLD}"\n')
    moved.apply()
    assert _roll(moved, NEW, "--source", write_release(tmp_path, TARGET, NEW)) == 0
    return moved


def _roll(project: Project, *words: str) -> int:
    return cli.main(["roll", *words], root=project.root)


def _accept(project: Project, *words: str) -> int:
    return _roll(project, NEW, "--accept", "--commit", COMMIT, *words)


def _listed(root: Path) -> dict[str, bytes]:
    """Every file of the checkout that is not made."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for folder in lines.FOLDERS
        for path in sorted((root / folder).rglob("*"))
        if path.is_file()
    }


def _renamed(path: str) -> str:
    return path.replace(f"/{OLD}/", f"/{NEW}/")


def test_a_line_that_is_called_like_its_vllm_goes_on_being_so(line: Project) -> None:
    line.write("vllm/b.py", text("mine"))
    line.write("notes.txt", text("mine, too"))
    before = _listed(line.root)
    assert _accept(line) == 0
    assert lines.names(line.root) == (NEW,)
    assert (line.root / lines.DEFAULT).read_text() == f'# Mine.\ndefault = "{NEW}"\n'
    after = _listed(line.root)
    assert set(after) == {_renamed(path) for path in before}
    assert {path: after[_renamed(path)] for path in OWN} == {
        path: content.data for path, content in OWN.items()
    }
    assert not line.layout.build.exists()
    moved = Project(Layout(line.root, NEW))
    assert load_pin(moved.layout.pin).version == NEW
    assert moved.files()["vllm/b.py"] == b"mine\n"
    assert moved.git("status", "--porcelain") == "M vllm/b.py\n?? notes.txt"
    moved.git("checkout", "-q", "vllm/b.py")
    assert cli.main(["apply"], root=line.root) == 0
    files = moved.files()
    assert files["setup.py"].startswith(b"0\n1\n")
    assert files["notes.txt"] == b"mine, too\n"


def test_a_line_that_stays_beside_the_new_one(line: Project) -> None:
    before = _listed(line.root)
    assert _accept(line, "--as-line", "next") == 0
    after = _listed(line.root)
    assert lines.names(line.root) == (OLD, "next")
    assert {path: after[path] for path in before} == before
    assert {path.replace(f"/{OLD}/", "/next/") for path in before if path != lines.DEFAULT} == set(
        after
    ) - set(before)
    assert cli.main(["apply", "--all-lines"], root=line.root) == 0
    assert Project(Layout(line.root, "next")).files()["setup.py"].startswith(b"0\n1\n")
    assert line.files()["setup.py"].startswith(b"setup line 1\n")


def test_a_new_line_is_called_like_its_vllm(line: Project) -> None:
    assert _accept(line, "--as-line") == 0
    assert lines.names(line.root) == (OLD, NEW)


def test_a_line_of_another_name_keeps_it(project: Project, tmp_path: Path) -> None:
    assert _accept(project, "--source", write_release(tmp_path, TARGET, NEW)) == 0
    assert lines.names(project.root) == (project.layout.line,)
    assert load_pin(project.layout.pin).version == NEW


@pytest.mark.parametrize(
    "words, told",
    [
        (("--as-line", OLD), f"there is a line called {OLD} already"),
        (("--as-line", "a/b"), "a line cannot be called 'a/b'"),
        (("--as-line", "other"), "{root}/tests/other is in the way of the line other"),
    ],
)
def test_names_that_are_not_free(
    line: Project, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str
) -> None:
    put(line.root, "tests/other/mine.py", text("mine"))
    before = _listed(line.root)
    capsys.readouterr()
    assert _accept(line, *words) == 1
    assert (
        capsys.readouterr().err.splitlines()[-1].startswith(f"error: {told.format(root=line.root)}")
    )
    assert _listed(line.root) == before


def test_a_vllm_that_has_a_line(line: Project, capsys: pytest.CaptureFixture[str]) -> None:
    assert _accept(line, "--as-line") == 0
    before = _listed(line.root)
    for words in ((), ("--as-line", "third")):
        capsys.readouterr()
        assert _accept(line, *words) == 1
        assert "there is a line" in capsys.readouterr().err
    assert _listed(line.root) == before


def test_as_line_alone(line: Project, capsys: pytest.CaptureFixture[str]) -> None:
    assert _roll(line, NEW, "--as-line", "next") == 1
    assert capsys.readouterr().err.startswith("error: --as-line goes with --accept")


@pytest.mark.parametrize("words", [(), ("--as-line",)], ids=["moved", "beside"])
def test_killed_while_the_line_moves(line: Project, tmp_path: Path, words: tuple[str, ...]) -> None:
    """The old lines or the new ones, and what is the user's in either."""
    line.write("notes.txt", text("mine"))
    old = _listed(line.root)
    cuts = cuts_of(line, lambda: _accept(line, *words), tmp_path / "cuts")
    new = _listed(line.root)
    assert sum(cut.at.startswith("swap: put") for cut in cuts) >= 6
    for cut in cuts:
        root = cut.project.root
        assert cli.main(["apply", "--all-lines"], root=root) == 0, cut.at
        assert _listed(root) in (old, new), cut.at
        mine = OLD if words or _listed(root) == old else NEW
        assert Project(Layout(root, mine)).files()["notes.txt"] == b"mine\n", cut.at
        if _listed(root) == old:
            assert _accept(Project(Layout(root, OLD)), *words) == 0, cut.at
        assert _listed(root) == new, cut.at
        assert not list(root.glob("build/*/swap")), cut.at
