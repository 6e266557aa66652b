"""Refresh after the user's git rewrote the commits of the series; bases from git."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from ci.cli import main
from ci.core.content import Content
from ci.core.errors import Fault
from ci.git.repo import Git
from ci.pinned.pin import dump_pin, load_pin
from tests.tooling.projects import CLOCK, UPSTREAM, Project, text, write_tree

BUILD = "patches/L/0001-Build-Say-six.patch"
CORE = "patches/L/0002-Core-Add-a-new-file.patch"
BUGFIX = "patches/L/0003-Bugfix-Thirty-and-no-going.patch"


def _rebase(project: Project, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """`git rebase -i` of the whole series, with an edit of its list."""
    monkeypatch.setenv("GIT_SEQUENCE_EDITOR", f"sed -i {script}")
    monkeypatch.setenv("GIT_EDITOR", "true")
    project.git("rebase", "-q", "-i", project.git("rev-list", "--max-parents=0", "HEAD"))


def _settled(project: Project) -> None:
    """The fixed point holds, and the work tree is clean."""
    assert project.refresh().written == ()
    assert not project.apply().changed
    assert project.git("status", "--porcelain") == ""
    named = [p for p in project.series() if p.endswith(".patch")]
    assert project.git("rev-list", "--count", "HEAD") == str(len(named) + 1)


def test_an_amended_tip(project: Project) -> None:
    before = project.series()
    project.replace("vllm/a.py", "a line thirty", "a line XXX")
    project.git(
        "commit", "-q", "-a", "--amend", "-m", "[Bugfix] Thirty, and no going", "-m", "Why."
    )
    done = project.refresh()
    assert done.remarks[0] == "0003 [Bugfix] Thirty, and no going (reworded, changed)"
    assert done.routed == ()
    assert "refs/backup/1" in (done.note or "")
    after = project.series()
    assert b"going\n\nWhy.\n\ndiff" in after[BUGFIX].data
    assert b"+a line XXX" in after[BUGFIX].data
    assert {p for p in after if after[p] != before[p]} == {BUGFIX, "patches/L/series.lock"}
    _settled(project)


def test_an_amended_tip_with_other_words_only(project: Project) -> None:
    project.git("commit", "-q", "--amend", "-m", "[Bugfix] Say thirty")
    assert project.refresh().remarks == ("0003 [Bugfix] Say thirty (reworded)",)
    after = project.series()
    assert "patches/L/0003-Bugfix-Say-thirty.patch" in after
    assert BUGFIX not in after
    _settled(project)


def test_a_dry_run_tells_what_was_done(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    before = project.series()
    project.git("commit", "-q", "--amend", "-m", "[Bugfix] Say thirty")
    assert main(["refresh", "--dry-run"], root=project.root) == 0
    assert capsys.readouterr().out == "0003 [Bugfix] Say thirty (reworded)\n"
    assert project.series() == before


def test_a_dry_run_tells_what_moved(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.git("reset", "-q", "--hard", "HEAD~3")
    project.git("cherry-pick", "refs/series/applied~1", "refs/series/applied~2")
    project.git("cherry-pick", "refs/series/applied")
    assert main(["refresh", "--dry-run"], root=project.root) == 0
    assert capsys.readouterr().out == "0002 [Build] Say six (moved)\n"


def test_amended_to_the_same(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    before = project.series()
    monkeypatch.setenv("GIT_COMMITTER_DATE", "1800000000 +0000")
    project.git("commit", "-q", "--amend", "--no-edit")
    project.refresh()
    assert project.series() == before
    assert project.git("rev-parse", "HEAD") == project.git("rev-parse", "refs/series/applied")
    _settled(project)


def test_autosquash(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    before = project.series()
    project.replace("setup.py", "setup line six", "setup line VI")
    project.replace("vllm/new.py", "new = 1", "new = 3")
    project.commit("--fixup", ":/Say six")
    # The fixup holds a file of the second patch, so git itself cannot squash it.
    project.git("reset", "-q", "HEAD~1")
    project.git("commit", "-q", "--fixup", ":/Say six", "setup.py")
    project.git("commit", "-q", "--fixup", ":/Add a new", "vllm/new.py")
    monkeypatch.setenv("GIT_SEQUENCE_EDITOR", "true")
    base = project.git("rev-list", "--max-parents=0", "HEAD")
    project.git("rebase", "-q", "-i", "--autosquash", base)
    done = project.refresh()
    assert done.remarks[:2] == (
        "0001 [Build] Say six (changed)",
        "0002 [Core] Add a new file (changed)",
    )
    after = project.series()
    assert b"+setup line VI" in after[BUILD].data
    assert after["overlay/L/vllm/new.py"].data.startswith(b"new = 3\n")
    assert {p for p in after if after[p] != before.get(p)} == {
        BUILD, "overlay/L/vllm/new.py", "patches/L/series.lock"
    }  # fmt: skip
    _settled(project)


def test_fixups_and_edits_on_top_of_rewritten_commits(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    _rebase(project, monkeypatch, "-e '1s/pick/reword/'")
    project.git("commit", "-q", "--amend", "-m", "[Bugfix] Say thirty")
    project.replace("setup.py", "setup line six", "setup line VI")
    project.commit("--fixup", ":/Say six")
    project.replace("vllm/new.py", "new = 1", "new = 3")
    done = project.refresh()
    assert [(one.what, subject) for one, subject in done.routed] == [
        ("setup.py: line 6", "[Build] Say six"),
        ("overlay/L/vllm/new.py", "[Core] Add a new file"),
    ]
    assert b"+setup line VI" in project.series()[BUILD].data
    _settled(project)


def test_another_order(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    _rebase(project, monkeypatch, "-e '1{h;d}' -e '2G'")
    done = project.refresh()
    assert done.remarks[0] == "0002 [Build] Say six (moved)"
    after = project.series()
    assert "patches/L/0001-Core-Add-a-new-file.patch" in after
    assert "patches/L/0002-Build-Say-six.patch" in after
    _settled(project)


def test_an_order_against_a_need(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    toml = project.layout.series
    head, mark, entry = toml.read_text().partition('file = "0002-')
    entry = entry.replace("needs = []", 'needs = ["Build-Say-six"]', 1)
    toml.write_text(head + mark + entry)
    project.apply("--relock")
    before = project.series()
    _rebase(project, monkeypatch, "-e '1{h;d}' -e '2G'")
    with pytest.raises(Fault, match=r"Core-Add-a-new-file comes before Build-Say-six, which"):
        project.refresh()
    assert project.series() == before


def test_dropped_and_squashed_commits_have_to_be_meant(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = project.series()
    _rebase(project, monkeypatch, "-e 1d -e 3s/pick/fixup/")
    with pytest.raises(Fault, match=r"2 of the 3 patches are none of the commits") as caught:
        project.refresh()
    assert caught.value.details == (
        "not there: [Build] Say six",
        "not there: [Bugfix] Thirty, and no going",
    )
    assert project.series() == before
    assert main(["refresh", "--drop-empty"], root=project.root) == 0
    out = capsys.readouterr().out
    assert "0001 [Core] Add a new file (changed)\n     [Build] Say six (taken out)\n" in out
    assert f"removed {BUILD}\n" in out
    assert "wrote patches/L/0001-Core-Add-a-new-file.patch\n" in out
    after = project.series()
    assert [p for p in after if p.endswith(".patch")] == [
        "patches/L/0001-Core-Add-a-new-file.patch"
    ]
    assert b"+a line thirty" in after["patches/L/0001-Core-Add-a-new-file.patch"].data
    assert after["overlay/L/tests/test_new.py"] == before["overlay/L/tests/test_new.py"]
    _settled(project)


def _needing(project: Project, number: str, need: str) -> None:
    """Make a patch need an earlier one."""
    toml = project.layout.series
    head, mark, entry = toml.read_text().partition(f'file = "{number}-')
    toml.write_text(head + mark + entry.replace("needs = []", f'needs = ["{need}"]', 1))
    project.apply("--relock")


def _split(project: Project, *parts: tuple[str, tuple[str, ...]]) -> None:
    """Take the second patch apart: new commits, each of a title and files; then the third."""
    project.git("reset", "-q", "--hard", "HEAD~2")
    project.git("cherry-pick", "-n", "refs/series/applied~1")
    project.git("reset", "-q")
    for title, paths in parts:
        project.git("add", *paths)
        project.git("commit", "-q", "-m", title)
    project.git("cherry-pick", "refs/series/applied")


HALVES = (("[Core] One", ("vllm/a.py",)), ("[Core] Two", ("vllm/new.py",)))


def _entries(project: Project) -> list[str]:
    return project.layout.series.read_text().split("\n[[patch]]\n")[1:]


def test_a_split_patch_keeps_topic_and_needs(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both halves are what the patch was; who needed it needs both."""
    _needing(project, "0002", "Build-Say-six")
    _needing(project, "0003", "Core-Add-a-new-file")
    before = project.files()
    _split(project, *HALVES)
    assert main(["refresh"], root=project.root) == 0
    off = "(split off [Core] Add a new file: topic core, needs Build-Say-six)"
    out = capsys.readouterr().out.splitlines()
    assert f"0002 [Core] One {off}" in out
    assert f"0003 [Core] Two {off}" in out
    assert "     [Core] Add a new file (taken out)" in out
    _, one, two, last = _entries(project)
    assert 'topic = "core"\noverlay = []\nneeds = ["Build-Say-six"]' in one
    assert 'topic = "core"\noverlay = ["vllm/new.py"]\nneeds = ["Build-Say-six"]' in two
    assert 'needs = ["Core-One", "Core-Two"]' in last
    assert project.files() == before
    _settled(project)


@pytest.mark.parametrize("kept", [0, 1])
def test_a_part_split_off_a_patch_that_keeps_its_title(project: Project, kept: int) -> None:
    _needing(project, "0003", "Core-Add-a-new-file")
    parts = list(HALVES)
    parts[kept] = ("[Core] Add a new file", parts[kept][1])
    _split(project, *parts)
    done = project.refresh()
    title = parts[1 - kept][0]
    assert f"000{3 - kept} {title} (split off [Core] Add a new file: topic core)" in done.remarks
    assert f"000{2 + kept} [Core] Add a new file (reworded, changed)" in done.remarks
    entries = _entries(project)
    assert [entry.splitlines()[1] for entry in entries[1:]] == ['topic = "core"'] * 3
    named = f'"Core-{title.split()[-1]}"'
    assert f'needs = ["Core-Add-a-new-file", {named}]' in entries[3]
    _settled(project)


def test_a_named_topic_is_that_of_the_parts(project: Project) -> None:
    _split(project, *HALVES)
    done = project.refresh("--topic", "build")
    assert "0002 [Core] One (split off [Core] Add a new file: topic build)" in done.remarks
    assert [entry.splitlines()[1] for entry in _entries(project)] == [
        'topic = "build"', 'topic = "build"', 'topic = "build"', 'topic = "core"',
    ]  # fmt: skip


def test_a_part_that_was_lost_in_the_split_has_to_be_meant(project: Project) -> None:
    _split(project, HALVES[0])
    with pytest.raises(Fault, match="1 of the 3 patches are none of the commits") as caught:
        project.refresh()
    assert caught.value.details == ("not there: [Core] Add a new file", "new: [Core] One")
    project.git("clean", "-q", "-f", "vllm/new.py")
    assert project.refresh("--drop-empty").remarks[0] == (
        "0002 [Core] One (split off [Core] Add a new file: topic core)"
    )


def test_reset_to_an_earlier_patch_loses_nothing(project: Project) -> None:
    before = project.series()
    project.git("reset", "-q", "--hard", "HEAD~2")
    with pytest.raises(Fault, match="2 of the 3 patches are none of the commits"):
        project.refresh()
    assert project.series() == before


def test_a_new_commit_between_rewritten_ones(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("vllm/third.py", text("third = 3"))
    project.commit("-m", "[Misc] A third", "--date", "1800000000 +0000")
    _rebase(project, monkeypatch, "-e '1{h;d}' -e '4G'")
    done = project.refresh()
    assert done.remarks == (
        "0003 [Misc] A third (new)",
        "0004 [Build] Say six (moved)",
        "not kept as author: A User <user@example.invalid>: the patches are by vLLM n-gram series "
        "<series@ngram.invalid>, and whoever sends one signs it (`nox -s upstream`); name them in "
        "the message (Based on work by …)",
    )
    assert b"Subject: [Misc] A third" in project.series()["patches/L/0003-Misc-A-third.patch"].data
    _settled(project)


def test_reworded_and_edited_is_known_by_a_date_of_its_own(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("vllm/third.py", text("third = 3"))
    monkeypatch.setenv("GIT_AUTHOR_DATE", "1800000000 +0000")
    project.commit("-m", "[Misc] A third")
    project.refresh()
    monkeypatch.setenv("GIT_AUTHOR_DATE", CLOCK)
    project.replace("vllm/third.py", "third = 3", "third = 4")
    project.git("commit", "-q", "-a", "--amend", "-m", "[Misc] Another third")
    assert project.refresh().remarks == ("0004 [Misc] Another third (reworded, changed)",)
    _settled(project)


def test_reworded_and_edited_of_one_date_is_not_guessed(project: Project) -> None:
    project.replace("vllm/a.py", "a line thirty", "a line XXX")
    project.git("commit", "-q", "-a", "--amend", "-m", "[Bugfix] Say thirty")
    with pytest.raises(Fault, match="1 of the 3 patches are none") as caught:
        project.refresh()
    assert caught.value.details == (
        "not there: [Bugfix] Thirty, and no going",
        "new: [Bugfix] Say thirty",
    )


def test_commits_of_an_older_series_are_not_taken_for_rewritten_ones(project: Project) -> None:
    project.git("switch", "-q", "-c", "mine")
    project.git("commit", "-q", "--allow-empty", "-m", "[Misc] Mine")
    project.git("switch", "-q", "series")
    project.replace("setup.py", "setup line six", "setup line VI")
    project.refresh()
    before = project.series()
    project.git("switch", "-q", "mine")
    with pytest.raises(Fault, match="stand on an older series") as caught:
        project.refresh()
    assert project.series() == before
    _, _, words = caught.value.todo.partition("`git ")
    project.git(*words.strip("`").split())
    assert project.git("show", "HEAD:setup.py").splitlines()[5] == "setup line VI"


def test_commits_that_stand_on_nothing_known(project: Project) -> None:
    project.git("checkout", "-q", "--orphan", "alone")
    project.git("commit", "-q", "-m", "alone")
    with pytest.raises(Fault, match=r"do not stand on the pinned vLLM.*--discard"):
        project.refresh()
    project.apply("--discard")
    _settled(project)


def test_empty_commits_do_not_go_round_in_circles(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    before = project.series()
    project.git("commit", "-q", "--allow-empty", "-m", "[Misc] Nothing")
    with pytest.raises(Fault, match="nothing would be left of `\\[Misc\\] Nothing`"):
        project.refresh()
    assert main(["refresh", "--drop-empty"], root=project.root) == 0
    assert "kept as refs/backup/1" in capsys.readouterr().out
    assert project.series() == before
    _settled(project)


def test_a_fixup_that_was_taken_back(project: Project) -> None:
    before = project.series()
    project.replace("setup.py", "setup line six", "setup line VI")
    project.commit("--fixup", ":/Say six")
    project.replace("setup.py", "setup line VI", "setup line six")
    project.commit("--fixup", ":/Say six")
    project.refresh()
    assert project.series() == before
    _settled(project)


def test_a_long_list_is_cut(project: Project) -> None:
    for number in range(30):
        project.write(f"vllm/more{number:02d}.py", text("x"))
    with pytest.raises(Fault, match="30 edits in the work tree are unassigned") as caught:
        project.refresh()
    assert len(caught.value.details) == 21
    assert caught.value.details[-1] == "… and 10 more"


# -- a base from git -----------------------------------------------------------------


def _upstream_repository(project: Project, where: Path, more: dict[str, Content]) -> Path:
    """vLLM's repository for a project, whose pin is made to name its commit."""
    repo = Git(where)
    repo.init()
    commit, _ = write_tree(repo, "refs/tags/v0.0.1", {**UPSTREAM, **more})
    pin = dataclasses.replace(load_pin(project.layout.pin), commit=commit)
    project.layout.pin.write_text(dump_pin(pin))
    return where


MORE = {".github/own.yml": text("only in git")}


@pytest.mark.parametrize("more", [{}, MORE], ids=["the pin's tree", "another tree"])
def test_refresh_on_a_git_base(project: Project, tmp_path: Path, more: dict[str, Content]) -> None:
    other = project.copy(tmp_path / "other")
    where = _upstream_repository(project, tmp_path / "vllm.git", more)
    (other.layout.pin).write_bytes(project.layout.pin.read_bytes())
    project.apply("--source", str(where))
    assert (project.work / ".github").exists() == bool(more)
    assert project.refresh().written == ()
    for one in (project, other):
        one.apply()
        one.replace("vllm/a.py", "from vllm import new", "from vllm import newer")
        one.write("vllm/third.py", text("third = 3"))
        one.refresh("--to", "2")
        one.git("commit", "-q", "--amend", "-m", "[Bugfix] Say thirty")
        one.refresh()
        one.apply("--relock")
        _settled(one)
    assert project.series() == other.series()
    assert project.git("rev-list", "--max-parents=0", "HEAD") == load_pin(project.layout.pin).commit


def test_a_git_base_s_own_file_cannot_be_patched(project: Project, tmp_path: Path) -> None:
    where = _upstream_repository(project, tmp_path / "vllm.git", MORE)
    project.apply("--source", str(where))
    before = project.series()
    project.write(".github/own.yml", text("changed"))
    with pytest.raises(Fault, match=r"changes \.github/own\.yml, which the pinned vLLM does not"):
        project.refresh("--to", "2")
    assert project.series() == before
