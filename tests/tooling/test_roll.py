"""`nox -s roll`: try, solve, remember, accept; nothing of the user's lost."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from ci import cli
from ci.git.repo import Git, Result
from ci.pinned.pin import load_pin
from ci.series import check as serieslint
from ci.series.model import read_files
from tests.tooling.projects import RELEASE_COMMIT as COMMIT
from tests.tooling.projects import UPSTREAM, Project, edit, put, text, write_release

SETUP = edit(UPSTREAM["setup.py"], ("line 6\n", "line VI\n"))
CONFLICT = {**UPSTREAM, "setup.py": SETUP}
EASY = {**UPSTREAM, "setup.py": edit(UPSTREAM["setup.py"], ("setup line 1\n", "0\n1\n"))}


_ASK_REPOSITORY = Git.attempt_list
pytestmark = pytest.mark.usefixtures("unreachable")


def _run(project: Project, *words: str) -> int:
    return cli.main(["roll", *words], root=project.root)


def _work(project: Project, version: str = "0.0.2") -> Path:
    return project.layout.build / "roll" / version / "vllm"


def _solve(project: Project, path: str, new: str, target: str = "0.0.2") -> None:
    file = _work(project, target) / path
    head, _, rest = file.read_text().partition("<<<<<<< upstream\n")
    file.write_text(head + new + rest.partition(">>>>>>> patch\n")[2])


def test_a_roll_that_fits(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = project.series()
    assert _run(project, "0.0.2", "--source", write_release(tmp_path, EASY)) == 0
    told = capsys.readouterr()
    assert "series on vLLM 0.0.1, tried on 0.0.2" in told.out
    assert "1 moved" in told.out
    assert "--accept" in told.err
    assert project.series() == before
    assert not _work(project).exists()


def test_json_is_all_there_is_on_stdout(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(project, "0.0.2", "--json", "--source", write_release(tmp_path, EASY)) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["target"] == "0.0.2"
    kept = json.loads((project.layout.build / "roll/0.0.2/verdicts.json").read_bytes())
    assert kept == data


def test_the_second_time_needs_no_source(project: Project, tmp_path: Path) -> None:
    assert _run(project, "0.0.2", "--source", write_release(tmp_path, EASY)) == 0
    (tmp_path / "vllm-0.0.2.tar.gz").unlink()
    assert _run(project, "0.0.2") == 0


def test_accept_writes_pin_and_series(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(project, "0.0.2", "--source", write_release(tmp_path, EASY)) == 0
    assert _run(project, "0.0.2", "--accept") == 1
    assert "--commit ID (the sdist says that it starts with abcdef123)" in capsys.readouterr().err
    assert _run(project, "0.0.2", "--accept", "--commit", "9" * 40) == 1
    assert "its sdist was made from abcdef123" in capsys.readouterr().err
    assert _run(project, "0.0.2", "--accept", "--commit", COMMIT) == 0
    pin = load_pin(project.layout.pin)
    assert (pin.version, pin.tag, pin.commit) == ("0.0.2", "v0.0.2", COMMIT)
    project.apply("--discard")
    assert project.files()["setup.py"].startswith(b"0\n1\n")
    assert b"setup line six" in project.files()["setup.py"]
    assert _run(project, "0.0.2") == 0
    assert "3 clean" in capsys.readouterr().out


def test_accept_asks_the_repository_for_the_tag(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peeled = f"{'7' * 40}\trefs/tags/v0.0.2\n{COMMIT}\trefs/tags/v0.0.2^{{}}\n"
    monkeypatch.setattr(Git, "attempt_list", lambda self, *words: Result(0, peeled.encode(), b""))
    assert _run(project, "0.0.2", "--source", write_release(tmp_path, EASY), "--accept") == 0
    assert load_pin(project.layout.pin).commit == COMMIT


def test_a_patch_that_is_upstream_is_taken_out_and_said(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = {**UPSTREAM, "setup.py": edit(UPSTREAM["setup.py"], ("line 6\n", "line six\n"))}
    source = write_release(tmp_path, taken)
    words = ("0.0.2", "--source", source, "--accept", "--commit", COMMIT)
    assert _run(project, *words) == 0
    assert "Build-Say-six has nothing left to change" in capsys.readouterr().out
    series = read_files(project.layout).series
    assert [patch.file[:4] for patch in series.patches] == ["0001", "0002"]
    assert {topic.name: topic.state for topic in series.topics} == {
        "build": "merged",
        "core": "local",
    }
    project.apply("--discard")


def test_a_conflict_is_laid_out_solved_and_remembered(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_release(tmp_path, CONFLICT)
    assert _run(project, "0.0.2", "--source", source) == 1
    assert "its conflicts are marked in" in capsys.readouterr().err
    status = subprocess.run(
        ["git", "status", "--porcelain"], cwd=_work(project), capture_output=True, check=True
    )
    assert status.stdout == b" M setup.py\n"
    config = (_work(project) / ".git" / "config").read_text()
    assert "autocrlf = false" in config  # whatever the user's own git is set to
    assert _run(project, "--continue") == 1
    assert "setup.py:6" in capsys.readouterr().err
    _solve(project, "setup.py", "setup line VI, six\n")
    assert _run(project, "--continue") == 0
    assert "1 remembered" in capsys.readouterr().out
    assert not _work(project).exists()
    (kept,) = (project.layout.patches / "resolutions").iterdir()
    assert kept.name == "Build-Say-six--0.0.2.patch"
    assert _run(project, "0.0.3", "--source", write_release(tmp_path, CONFLICT, "0.0.3")) == 0
    assert _run(project, "0.0.2", "--accept", "--commit", COMMIT) == 0
    project.apply("--discard")
    assert b"setup line VI, six\n" in project.files()["setup.py"]


def test_names_that_end_or_part_oddly(project: Project, tmp_path: Path) -> None:
    """A patch's name is cut at a dash, a ref has a slash and dashes in it."""
    long = f"[Build] {'x' * 45} six"
    project.git("commit", "-q", "--allow-empty", "-m", "amend! [Build] Say six", "-m", long)
    project.refresh()
    assert read_files(project.layout).series.patches[0].name.endswith("x-")
    clone = tmp_path / "upstream"
    for path, content in CONFLICT.items():
        put(clone, path, content)
    ref = "release/-0--2"
    for words in (["init", "-q", "-b", ref], ["add", "-A", "-f"], ["commit", "-q", "-m", "x"]):
        subprocess.run(["git", *words], cwd=clone, check=True)
    assert _run(project, ref, "--source", str(clone)) == 1
    _solve(project, "setup.py", "setup line VI, six\n", "release--0--2")
    assert _run(project, "--continue") == 0
    (kept,) = (project.layout.patches / "resolutions").iterdir()
    assert kept.name.endswith("x---release-0-2.patch")
    assert not [
        found for found in serieslint.check_series(project.layout) if "resol" in found.where
    ]


def test_nothing_is_accepted_while_a_patch_is_open(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = project.series()
    words = ("0.0.2", "--source", write_release(tmp_path, CONFLICT), "--accept", "--commit", COMMIT)
    assert _run(project, *words) == 1
    told = capsys.readouterr().err
    assert "not every patch has a place on 0.0.2 yet" in told
    assert "0001-Build-Say-six.patch: conflict" in told
    assert project.series() == before


def test_a_deleted_file_is_solved_elsewhere(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = {path: c for path, c in UPSTREAM.items() if path != "setup.py"}
    assert _run(project, "0.0.2", "--source", write_release(tmp_path, tree)) == 1
    note = _work(project) / "setup.py.conflict"
    assert "+setup line six" in note.read_text()
    assert _run(project, "--continue") == 1
    assert "setup.py.conflict" in capsys.readouterr().err
    note.unlink()
    b = _work(project) / "vllm/b.py"
    b.write_text(b.read_text().replace("b line 3\n", "b line 3, and setup line six\n"))
    assert _run(project, "--continue") == 0
    assert _run(project, "0.0.2", "--accept", "--commit", COMMIT) == 0
    project.apply("--discard")
    assert b"b line 3, and setup line six\n" in project.files()["vllm/b.py"]


def test_dropping_a_change_is_a_decision(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(project, "0.0.2", "--source", write_release(tmp_path, CONFLICT)) == 1
    _solve(project, "setup.py", "setup line VI\n")
    assert _run(project, "--continue") == 0
    capsys.readouterr()
    assert _run(project, "0.0.2", "--accept", "--commit", COMMIT) == 0
    assert "Build-Say-six has nothing left to change" in capsys.readouterr().out


def test_two_conflicts_one_after_the_other(project: Project, tmp_path: Path) -> None:
    tree = {**CONFLICT, "vllm/a.py": edit(UPSTREAM["vllm/a.py"], ("a line 5\n", "a V\n"))}
    assert _run(project, "0.0.2", "--source", write_release(tmp_path, tree)) == 1
    _solve(project, "setup.py", "setup line VI and six\n")
    assert _run(project, "--continue") == 1
    assert "setup line VI and six" in (_work(project) / "setup.py").read_text()
    _solve(project, "vllm/a.py", "a V\nfrom vllm import new\n")
    assert _run(project, "--continue") == 0


def test_edits_are_not_lost(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_release(tmp_path, CONFLICT)
    assert _run(project, "0.0.2", "--source", source) == 1
    put(_work(project), "mine.txt", text("mine"))
    assert _run(project, "0.0.2") == 1
    assert (_work(project) / "mine.txt").read_text() == "mine\n"
    assert _run(project, "--abort", "0.0.2") == 0
    kept = _work(project).with_name("vllm.aborted-1")
    assert (kept / "mine.txt").read_text() == "mine\n"
    assert str(kept) in capsys.readouterr().out
    assert _run(project, "0.0.2") == 1
    assert not (_work(project) / "mine.txt").exists()
    assert _run(project, "--abort") == 0
    assert not _work(project).exists()


def test_a_series_that_changed_meanwhile(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(project, "0.0.2", "--source", write_release(tmp_path, CONFLICT)) == 1
    _solve(project, "setup.py", "setup line VI and six\n")
    put(project.root, "overlay/L/vllm/new.py", text("newest"))
    assert _run(project, "--continue") == 1
    assert "the series changed since" in capsys.readouterr().err
    assert "VI and six" in (_work(project) / "setup.py").read_text()


def test_a_git_ref(project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clone = tmp_path / "upstream"
    for path, content in EASY.items():
        put(clone, path, content)
    for words in (["init", "-q", "-b", "main"], ["add", "-A", "-f"], ["commit", "-q", "-m", "x"]):
        subprocess.run(["git", *words], cwd=clone, check=True)
    assert _run(project, "main", "--source", str(clone)) == 0
    assert "tried on main" in capsys.readouterr().out
    assert _run(project, "main", "--accept") == 1
    assert "main is a git ref, a pin names a release" in capsys.readouterr().err
    assert _run(project, "other", "--source", str(clone)) == 1
    assert "has no refs/tags/vother or" in capsys.readouterr().err


def test_a_tag_and_a_branch_of_one_name(
    project: Project,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Git, "attempt_list", _ASK_REPOSITORY)
    clone = tmp_path / "upstream"
    put(clone, "setup.py", UPSTREAM["setup.py"])
    commit = ["commit", "-q", "--allow-empty", "-m", "x"]
    tag = ["tag", "-a", "-m", "x", "next"]
    for words in (["init", "-q", "-b", "next"], ["add", "-A"], commit, tag):
        subprocess.run(["git", *words], cwd=clone, check=True)
    assert _run(project, "next", "--source", str(clone)) == 1
    assert "tried on next" in capsys.readouterr().out
    subprocess.run(["git", *commit], cwd=clone, check=True)
    assert _run(project, "next", "--source", str(clone)) == 1
    told = capsys.readouterr().err
    assert "next could be any of 2 refs, which are not the same commit" in told
    for ref in ("refs/tags/next", "refs/heads/next"):
        words = ["git", "rev-parse", f"{ref}^{{commit}}"]
        done = subprocess.run(words, cwd=clone, check=True, capture_output=True, text=True)
        assert f"{done.stdout.strip()} {ref}" in told


def test_any_mark_that_is_left_is_named(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(project, "0.0.2", "--source", write_release(tmp_path, CONFLICT)) == 1
    file = _work(project) / "setup.py"
    marked = file.read_text()
    for mark in ("<<<<<<< upstream\n", "||||||| pinned\n", ">>>>>>> patch\n"):
        _solve(project, "setup.py", mark + "setup line VI and six\n")
        number = 1 + file.read_text().splitlines().index(mark.strip())
        assert _run(project, "--continue") == 1
        assert f"setup.py:{number}" in capsys.readouterr().err
        file.write_text(marked)
    assert not (project.layout.patches / "resolutions").exists()


def test_what_git_ignores_is_kept(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_release(tmp_path, {**CONFLICT, ".gitignore": text("*.log")})
    assert _run(project, "0.0.2", "--source", source) == 1
    _solve(project, "setup.py", "setup line VI and six\n")
    put(_work(project), "notes.log", text("mine"))
    assert _run(project, "--continue") == 0
    kept = _work(project).with_name("vllm.solved-1")
    assert (kept / "notes.log").read_text() == "mine\n"
    assert str(kept) in capsys.readouterr().err


def test_what_is_left_unnamed_is_the_open_roll(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    open_one, easy = write_release(tmp_path, CONFLICT), write_release(tmp_path, EASY, "0.0.3")
    assert _run(project, "0.0.2", "--source", open_one) == 1
    assert "`nox -s roll -- 0.0.2 --continue`" in capsys.readouterr().err
    assert _run(project, "0.0.3", "--source", easy) == 0
    _solve(project, "setup.py", "setup line VI and six\n")
    assert _run(project, "--continue") == 0
    assert "tried on 0.0.2" in capsys.readouterr().out
    # Nothing is open any more: the last roll is meant, and nothing can be left.
    assert _run(project, "0.0.3") == 0
    assert _run(project, "--abort") == 1
    assert "roll/0.0.3: run `nox -s roll -- 0.0.3`" in capsys.readouterr().err


def test_an_earlier_roll_that_cannot_be_read_is_passed_over(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(project, "0.0.2", "--source", write_release(tmp_path, CONFLICT)) == 1
    broken = project.layout.build / "roll" / "0.0.3"
    broken.mkdir()
    (broken / "target.json").write_text("{")
    assert _run(project, "--abort") == 0
    assert "left the roll to 0.0.2" in capsys.readouterr().out


def test_two_open_rolls_have_to_be_named(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for version in ("0.0.2", "0.0.3"):
        assert _run(project, version, "--source", write_release(tmp_path, CONFLICT, version)) == 1
    assert _run(project, "--abort") == 1
    assert "name the one that you mean: 0.0.3, 0.0.2" in capsys.readouterr().err
    assert _run(project, "0.0.2", "--abort") == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "no target version given"),
        (("--continue",), "nothing was rolled yet"),
        (("--abort",), "nothing was rolled yet"),
        (("main",), "main is not a version"),
        (("0.0.9", "--source", "/nonexistent"), "is not there"),
        (("0.0.9",), "no index has a source file of vLLM 0.0.9"),
        (("0.0.9", "--continue"), "no patch is open in "),
        (("0.0.9", "--continue", "--abort"), "not allowed with"),
    ],
)
def test_wrong_use_is_one_line(
    project: Project, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], says: str
) -> None:
    assert _run(project, *words) == 1
    assert says in capsys.readouterr().err
