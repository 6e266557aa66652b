"""Refresh: every kind of edit finds its patch, or is listed; all or nothing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from ci.cli import main
from ci.core import checkpoints
from ci.core.content import EXECUTABLE, REGULAR, Content
from ci.core.errors import Fault
from tests.tooling.projects import Project, text

BUILD = "patches/L/0001-Build-Say-six.patch"
CORE = "patches/L/0002-Core-Add-a-new-file.patch"
BUGFIX = "patches/L/0003-Bugfix-Thirty-and-no-going.patch"
LOCK = "patches/L/series.lock"


def _changed(project: Project, before: dict[str, Content]) -> list[str]:
    """Paths of the series that differ, the lock aside; and the fixed point holds."""
    after = project.series()
    assert project.refresh().written == ()
    assert not project.apply().changed
    assert project.git("status", "--porcelain") == ""
    paths = {p for p in {*before, *after} if before.get(p) != after.get(p)}
    return sorted(paths - {LOCK})


def test_right_after_apply_nothing_changes(project: Project) -> None:
    before = project.series()
    assert project.refresh().written == ()
    assert project.series() == before


def test_a_changed_line_goes_to_the_patch_that_brought_it(project: Project) -> None:
    before = project.series()
    project.replace("vllm/a.py", "from vllm import new", "from vllm import newer")
    project.refresh()
    # The later patch to the same file stands on another one now.
    assert _changed(project, before) == [CORE, BUGFIX]
    assert b"+from vllm import newer" in project.series()[CORE].data


def test_lines_of_two_patches_at_once(project: Project) -> None:
    before = project.series()
    project.replace("vllm/a.py", "from vllm import new", "from vllm import newer")
    project.replace("vllm/a.py", "a line thirty", "a line XXX")
    project.refresh()
    assert b"+from vllm import newer" in project.series()[CORE].data
    assert b"+a line XXX" in project.series()[BUGFIX].data
    assert _changed(project, before) == [CORE, BUGFIX]


def test_lines_below_a_patch_s_own_belong_to_it(project: Project) -> None:
    project.replace("setup.py", "setup line six\n", "setup line six\nand more\n")
    project.refresh()
    assert b"+setup line six\n+and more\n" in project.series()[BUILD].data


def test_untouched_lines_have_no_home_and_nothing_changes(project: Project) -> None:
    before = project.series()
    project.replace("vllm/b.py", "b line 3\n", "b line III\n")
    project.replace("setup.py", "setup line six", "setup line 6.0")
    with pytest.raises(Fault, match="unassigned") as caught:
        project.refresh()
    assert caught.value.details == ("vllm/b.py: line 3: no patch touches this",)
    assert project.series() == before
    assert b"b line III" in project.files()["vllm/b.py"]
    project.refresh("--to", "Say-six")
    after = project.series()
    assert b"+b line III" in after[BUILD].data
    assert b"+setup line 6.0" in after[BUILD].data
    assert _changed(project, before) == [BUILD]


def test_dry_run_shows_the_routing_and_writes_nothing(project: Project) -> None:
    before = project.series()
    project.replace("vllm/b.py", "b line 3\n", "b line III\n")
    project.replace("vllm/new.py", "new = 1", "new = 3")
    done = project.refresh("--dry-run")
    assert [(one.what, subject) for one, subject in done.routed] == [
        ("vllm/b.py: line 3", ""),
        ("overlay/L/vllm/new.py", "[Core] Add a new file"),
    ]
    assert project.series() == before


def test_a_dry_run_tells_of_other_words(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "amend! [Core] Add a new file\n\n[Core] Add one file\n\nIt is needed."
    project.git("commit", "-q", "--allow-empty", "-m", words)
    for more in (["--dry-run"], []):
        assert main(["refresh", *more], root=project.root) == 0
        out = capsys.readouterr().out
        assert out.startswith("0002 [Core] Add one file (reworded)\n")
        assert "nothing to refresh" not in out
    assert "wrote patches/L/0002-Core-Add-one-file.patch" in out


@pytest.mark.parametrize("words", [("-c", "mine"), ("--detach",)])
def test_a_refresh_says_that_it_leaves_a_branch(project: Project, words: tuple[str, ...]) -> None:
    project.git("switch", "-q", *words)
    project.replace("vllm/new.py", "new = 1", "new = 3")
    note = project.refresh().note or ""
    was = "refs/heads/mine, which is kept" if "mine" in words else "no branch"
    assert f"the work tree was on {was}; it is on `series` now" in note
    assert project.git("branch", "--show-current") == "series"
    assert "`series` now" not in (project.refresh().note or "")


def test_a_new_patch_from_what_is_not_committed(project: Project) -> None:
    before = project.series()
    project.replace("vllm/b.py", "b line 3\n", "b line III\n")
    project.write("vllm/third.py", text("third = 3"))
    project.refresh("--new", "[Misc] A third", "--topic", "build")
    after = project.series()
    assert after["overlay/L/vllm/third.py"].data == b"third = 3\n"
    assert b"+b line III" in after["patches/L/0004-Misc-A-third.patch"].data
    assert b'topic = "build"\noverlay = ["vllm/third.py"]' in after["patches/L/series.toml"].data
    assert _changed(project, before) == [
        "overlay/L/vllm/third.py",
        "patches/L/0004-Misc-A-third.patch",
        "patches/L/series.toml",
    ]


def test_fixup_goes_to_the_patch_it_names(project: Project) -> None:
    before = project.series()
    project.replace("vllm/b.py", "b line 3\n", "b line III\n")
    project.write("vllm/helper.py", text("helper = 1"))
    project.commit("--fixup", ":/Say six")
    done = project.refresh()
    assert b"+b line III" in project.series()[BUILD].data
    assert project.series()["overlay/L/vllm/helper.py"].data == b"helper = 1\n"
    assert "refs/backup/1" in (done.note or "")
    assert project.git("log", "-1", "--format=%s", "refs/backup/1/series").startswith("fixup!")
    assert _changed(project, before) == [
        "overlay/L/vllm/helper.py",
        BUILD,
        "patches/L/series.toml",
    ]


def test_squash_adds_its_words(project: Project) -> None:
    project.replace("setup.py", "setup line six", "setup line VI")
    project.git("add", "-A")
    project.git("commit", "-q", "-m", "squash! [Build] Say six", "-m", "In Roman numerals.")
    project.refresh()
    assert b"Subject: [Build] Say six\n\nIn Roman numerals.\n\ndiff" in project.series()[BUILD].data


def test_amend_gives_a_new_message_and_name(project: Project) -> None:
    project.git(
        "commit", "-q", "--allow-empty", "-m", "amend! [Build] Say six", "-m", "[Build] Say VI"
    )
    project.refresh()
    assert BUILD not in project.series()
    assert "patches/L/0001-Build-Say-VI.patch" in project.series()
    assert project.refresh().written == ()


def test_a_commit_of_its_own_becomes_a_patch(project: Project) -> None:
    project.write("vllm/third.py", text("third = 3"))
    project.commit("-m", "[Misc] A third", "-m", "Why not.")
    project.replace("vllm/third.py", "third = 3", "third = 4")
    project.commit("-m", "fixup! [Misc] A third")
    project.refresh()
    after = project.series()
    assert after["overlay/L/vllm/third.py"].data == b"third = 4\n"
    assert b"Why not." in after["patches/L/0004-Misc-A-third.patch"].data
    assert project.git("log", "-1", "--format=%s") == "[Misc] A third"


def test_a_fixup_that_names_nothing(project: Project) -> None:
    project.replace("setup.py", "setup line six", "setup line VI")
    project.commit("-m", "fixup! [Build] Say seven")
    with pytest.raises(Fault, match="names no patch"):
        project.refresh()


def test_a_later_patch_in_between(project: Project) -> None:
    before = project.series()
    project.replace("vllm/a.py", "a line thirty", "a line XXX")
    project.commit("--fixup", ":/Say six")
    with pytest.raises(Fault, match="unassigned") as caught:
        project.refresh()
    assert "0003 ([Bugfix] Thirty, and no going) changes the same lines" in str(caught.value)
    assert project.series() == before


def test_overlay_files_renamed_deleted_and_changed(project: Project) -> None:
    before = project.series()
    project.git("mv", "vllm/new.py", "vllm/newest.py")
    project.write("tests/test_new.py", None)
    project.refresh()
    after = project.series()
    assert "overlay/L/vllm/new.py" not in after
    assert after["overlay/L/vllm/newest.py"] == before["overlay/L/vllm/new.py"]
    assert not (project.layout.overlay / "tests").exists()
    assert b'overlay = ["vllm/newest.py"]' in after["patches/L/series.toml"].data
    assert _changed(project, before) == [
        "overlay/L/tests/test_new.py",
        "overlay/L/vllm/new.py",
        "overlay/L/vllm/newest.py",
        "patches/L/series.toml",
    ]


def test_renamed_twins_of_two_patches_do_not_swap_owners(project: Project) -> None:
    """Which of two equal files became which is not known; it is asked for."""
    for patch, folder in (("Say-six", "x"), ("Add-a-new-file", "y")):
        project.write(f"vllm/{folder}/__init__.py", Content(REGULAR, b""))
        project.refresh("--to", patch)
    before = project.series()
    project.git("mv", "vllm/x", "vllm/zx")
    project.git("mv", "vllm/y", "vllm/ay")
    with pytest.raises(Fault, match="2 edits in the work tree are unassigned") as caught:
        project.refresh()
    twins = (
        "may have been vllm/x/__init__.py of 0001 ([Build] Say six), "
        "vllm/y/__init__.py of 0002 ([Core] Add a new file)"
    )
    assert caught.value.details == (
        f"overlay/L/vllm/ay/__init__.py (new file): {twins}",
        f"overlay/L/vllm/zx/__init__.py (new file): {twins}",
    )
    assert project.series() == before
    # One after the other there is no doubt.
    project.git("mv", "vllm/ay", "vllm/y")
    project.refresh()
    project.git("mv", "vllm/y", "vllm/ay")
    project.refresh()
    toml = project.series()["patches/L/series.toml"].data
    assert b'topic = "build"\noverlay = ["vllm/zx/__init__.py"]' in toml
    assert b'topic = "core"\noverlay = ["vllm/ay/__init__.py", "vllm/new.py"]' in toml


def _twins(project: Project, *files: str, content: Content) -> None:
    """The same files in `vllm/x` of the first patch and `vllm/y` of the second."""
    for patch, folder in (("Say-six", "x"), ("Add-a-new-file", "y")):
        for file in files:
            project.write(f"vllm/{folder}/{file}", content)
        project.refresh("--to", patch)


def test_twins_that_were_edited_alike_do_not_swap_owners(project: Project) -> None:
    _twins(project, "t.py", content=text("1", "2", "3", "4"))
    project.git("mv", "vllm/x", "vllm/zx")
    project.git("mv", "vllm/y", "vllm/ay")
    for folder in ("zx", "ay"):
        project.write(f"vllm/{folder}/t.py", text("1", "2", "3", folder))
    before = project.series()
    with pytest.raises(Fault, match="2 edits in the work tree are unassigned") as caught:
        project.refresh()
    assert all("vllm/x/t.py of 0001" in line for line in caught.value.details)
    assert all("vllm/y/t.py of 0002" in line for line in caught.value.details)
    assert project.series() == before
    project.refresh("--to", "Bugfix")
    toml = project.series()["patches/L/series.toml"].data
    assert b'"vllm/ay/t.py", "vllm/zx/t.py"]' in toml[toml.index(b"0003-") :]


def test_a_folder_that_moved_tells_twins_apart(project: Project) -> None:
    """Only one file of each folder has no twin, and it says where the others went."""
    _twins(project, "__init__.py", "deep/__init__.py", content=Content(REGULAR, b""))
    project.write("vllm/x/one.py", text("one"))
    project.refresh("--to", "Say-six")
    project.write("vllm/y/two.py", text("two"))
    project.refresh("--to", "Add-a-new-file")
    project.git("mv", "vllm/x", "vllm/zx")
    project.git("mv", "vllm/y", "vllm/ay")
    project.refresh()
    toml = project.series()["patches/L/series.toml"].data
    for owner, folder, file in (("0001-", "zx", "one"), ("0002-", "ay", "two")):
        entry = toml[toml.index(owner.encode()) :].partition(b"[[patch]]")[0]
        assert [path for path in (f"vllm/{folder}/__init__.py", f"vllm/{folder}/{file}.py",
                f"vllm/{folder}/deep/__init__.py") if path.encode() not in entry] == []  # fmt: skip


def test_a_file_that_was_moved_and_copied_is_asked_for(project: Project) -> None:
    project.git("mv", "vllm/new.py", "vllm/b1.py")
    shutil.copy(project.work / "vllm/b1.py", project.work / "vllm/b2.py")
    with pytest.raises(Fault, match="2 edits in the work tree are unassigned") as caught:
        project.refresh()
    why = "may have been vllm/new.py of 0002 ([Core] Add a new file)"
    assert caught.value.details == tuple(
        f"overlay/L/vllm/b{number}.py (new file): {why}" for number in (1, 2)
    )


def test_modes_deletions_and_comebacks(project: Project) -> None:
    project.write("vllm/gone.py", text("going"))
    (project.work / "vllm/new.py").chmod(0o755)
    (project.work / "setup.py").chmod(0o755)
    project.refresh()
    after = project.series()
    assert b"gone.py" not in after[BUGFIX].data
    assert after["overlay/L/vllm/new.py"].mode == EXECUTABLE
    assert b"old mode 100644\nnew mode 100755\n" in after[BUILD].data
    assert project.refresh().written == ()


@pytest.mark.parametrize("path", ["vllm/__pycache__/x.py", ".DS_Store", "vllm/x.pyc"])
def test_a_by_product_of_tools_is_refused(project: Project, path: str) -> None:
    """What refresh would write, apply could not read."""
    before = project.series()
    project.write(path, text("x"))
    project.git("add", "-f", path)
    with pytest.raises(Fault, match="a by-product of tools") as caught:
        project.refresh("--to", "build")
    assert f"git rm --cached -- {path}" in str(caught.value)
    assert project.series() == before
    project.git("rm", "-q", "--cached", path)
    (project.work / path).unlink()
    assert project.refresh().written == ()
    assert not project.apply().changed


@pytest.mark.parametrize("words", [(), ("--to", "2"), ("--new", "[Misc] A model")])
def test_a_huge_file_is_refused_before_it_is_read(project: Project, words: tuple[str, ...]) -> None:
    """Git would compress it into the repository first, and keep it there."""
    (project.work / "model.bin").touch()
    os.truncate(project.work / "model.bin", 200 << 20)
    objects = sorted((project.work / ".git/objects").rglob("*"))
    with pytest.raises(Fault, match=r"model\.bin in \S+ has 200 MiB") as caught:
        project.refresh(*words)
    assert "move it away, or name it in .git/info/exclude there" in caught.value.todo
    assert sorted((project.work / ".git/objects").rglob("*")) == objects
    (project.work / ".git/info/exclude").write_text("model.bin\n")
    assert project.refresh().written == ()


@pytest.mark.parametrize("path", ["setup.py", "vllm/new.py", "vllm/b.py"])
def test_a_pipe_in_the_place_of_a_file(project: Project, path: str) -> None:
    before = project.series()
    project.write(path, None)
    os.mkfifo(project.work / path)
    for run in (project.refresh, lambda: project.apply("--discard")):
        with pytest.raises(Fault, match=rf"{path} is not a file: move it away") as caught:
            run()
        assert caught.value.details == ()
    assert project.series() == before
    (project.work / path).unlink()
    project.git("checkout", "--", path)
    assert project.refresh().written == ()


def test_a_link_in_the_place_of_a_folder(project: Project, tmp_path: Path) -> None:
    """Its files are gone, and a link is new; git's own words are not for the user."""
    before = project.series()
    (project.work / "vllm").rename(tmp_path / "elsewhere")
    (project.work / "vllm").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Fault, match="edits in the work tree are unassigned") as caught:
        project.refresh()
    assert "overlay/L/vllm (new file): no patch adds it yet" in caught.value.details
    assert project.series() == before


def test_nothing_left_of_a_patch(project: Project) -> None:
    before = project.series()
    project.replace("setup.py", "setup line six", "setup line 6")
    with pytest.raises(Fault, match="nothing would be left"):
        project.refresh()
    assert project.series() == before
    project.refresh("--drop-empty")
    assert "patches/L/0001-Core-Add-a-new-file.patch" in project.series()
    assert len(project.git("log", "--format=%s").splitlines()) == 3
    assert project.refresh().written == ()


def test_a_message_that_would_not_survive(project: Project) -> None:
    project.write("vllm/third.py", text("third = 3"))
    project.commit("-m", "[Misc] A third", "-m", "above\n---\nbelow")
    with pytest.raises(Fault, match="ends a message"):
        project.refresh()


def test_a_series_that_changed_underneath(project: Project) -> None:
    project.replace("setup.py", "setup line six", "setup line VI")
    patch = project.root / BUILD
    patch.write_bytes(patch.read_bytes().replace(b"+setup line six", b"+setup line sechs"))
    with pytest.raises(Fault, match=r"0001-Build-Say-six\.patch differs from the lock"):
        project.refresh()


def test_carriage_returns_are_kept(project: Project) -> None:
    project.write("win.txt", Content(REGULAR, b"r1\r\nR2!\r\nr3\r\n"))
    project.refresh()
    assert b"-r2\r\n+R2!\r\n" in project.series()[BUGFIX].data


def test_a_title_that_another_patch_has(project: Project) -> None:
    before = project.series()
    project.replace("vllm/b.py", "b line 3\n", "b line III\n")
    with pytest.raises(Fault, match="two patches would be called Core-add-a-new-file"):
        project.refresh("--new", "[Core] add a new file")
    assert project.series() == before
    project.refresh("--new", "[Core] Say three")
    assert not project.apply().changed


def test_an_empty_title_is_no_title(project: Project) -> None:
    project.replace("vllm/b.py", "b line 3\n", "b line III\n")
    with pytest.raises(Fault, match="the subject is empty"):
        project.refresh("--new", "")


@pytest.mark.parametrize("committed", [True, False])
def test_an_ignored_file_that_was_added_by_force(project: Project, committed: bool) -> None:
    project.write("ignored.txt", text("kept"))
    project.git("add", "-f", "ignored.txt")
    if committed:
        project.git("commit", "-q", "-m", "[Core] Keep an ignored file")
        project.refresh()
    else:
        project.refresh("--to", "2")
    assert project.series()["overlay/L/ignored.txt"] == text("kept")
    assert project.refresh().written == ()
    assert project.git("status", "--porcelain") == ""


def test_a_submodule_is_refused(project: Project) -> None:
    inner = project.work / "inner"
    inner.mkdir()
    project.git("init", "-q", where=inner)
    project.git("commit", "-q", "--allow-empty", "-m", "x", where=inner)
    project.commit("-m", "[Core] Add a submodule")
    with pytest.raises(Fault, match="inner is a submodule"):
        project.refresh()


def _cut_at(point: str) -> None:
    class Killed(BaseException):
        """Not an error that anything handles."""

    def watcher(name: str) -> None:
        if name == point:
            raise Killed

    checkpoints.watch(watcher)


@pytest.mark.parametrize("verb", ["apply", "refresh"])
@pytest.mark.parametrize("point", ["swap: stage in place", "refresh: series written"])
def test_edits_after_a_refresh_that_was_cut_short(project: Project, verb: str, point: str) -> None:
    """The series has the first edit, the work tree a second one on top."""
    project.replace("vllm/a.py", "from vllm import new", "from vllm import newer")
    _cut_at(point)
    try:
        with pytest.raises(BaseException, match=r"^$"):
            project.refresh()
    finally:
        checkpoints.watch(None)
    project.replace("vllm/a.py", "from vllm import newer", "from vllm import newest")
    if verb == "apply":
        project.apply()
        assert project.git("diff", "--name-only") == "vllm/a.py"
    project.refresh()
    assert b"+from vllm import newest" in project.series()[CORE].data
    assert project.refresh().written == ()
    assert project.git("status", "--porcelain") == ""


def test_a_link_in_the_place_of_the_work_tree(project: Project) -> None:
    shutil.rmtree(project.work)
    project.work.symlink_to(project.root / "elsewhere")
    with pytest.raises(Fault, match="is a symbolic link"):
        project.apply()
    assert not list(project.layout.build.glob("vllm.making-*"))


def test_comments_in_the_series_are_not_dropped(project: Project) -> None:
    noted = project.layout.series.read_bytes() + b"# why this order\n"
    project.layout.series.write_bytes(noted)
    project.replace("vllm/a.py", "from vllm import new", "from vllm import newer")
    before = project.series()
    with pytest.raises(Fault, match="comments that would be lost") as caught:
        project.refresh()
    assert caught.value.details == ("# why this order",)
    assert project.series() == before
    with pytest.raises(Fault, match="comments that would be lost"):
        project.apply("--relock", "--discard")


def test_a_missing_series_is_named_by_its_path(project: Project) -> None:
    project.layout.series.unlink()
    with pytest.raises(Fault, match=r"git checkout -- patches/L/series\.toml"):
        project.refresh()
