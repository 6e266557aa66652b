"""Apply: the same commits everywhere, nothing of the user's lost."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ci.cli import main
from ci.core.errors import Fault
from ci.worktree.checkout import Dirty
from tests.tooling.projects import A3, UPSTREAM, Project, text

BUILD = "patches/L/0001-Build-Say-six.patch"
CORE = "patches/L/0002-Core-Add-a-new-file.patch"
BUGFIX = "patches/L/0003-Bugfix-Thirty-and-no-going.patch"


def _rewrite(project: Project, path: str, old: str, new: str) -> None:
    """Change a file of the series by hand."""
    file = project.root / path
    data = file.read_bytes()
    assert old.encode() in data
    file.write_bytes(data.replace(old.encode(), new.encode()))


def test_the_sample_is_what_was_committed(project: Project) -> None:
    files = project.files()
    assert files["vllm/a.py"] == A3.data
    assert files["win.txt"] == b"r1\r\nR2\r\nr3\r\n"
    assert "vllm/gone.py" not in files
    assert files['docs/été "1".md'] == UPSTREAM['docs/été "1".md'].data
    assert project.git("status", "--porcelain") == ""
    assert project.git("branch", "--show-current") == "series"
    assert len(project.git("log", "--format=%s").splitlines()) == 4


def test_the_commits_are_the_same_anywhere(project: Project, tmp_path: Path) -> None:
    shutil.rmtree(project.layout.store)
    shutil.rmtree(project.work)
    head = project.apply().head
    again = project.copy(tmp_path / "elsewhere é")
    shutil.rmtree(again.layout.store)
    shutil.rmtree(again.work)
    assert again.apply().head == head
    # Author and committer are the patch's own, whoever runs it.
    shown = project.git("log", "-1", "--format=%an|%ae|%cn|%ce|%ad|%cd", "--date=raw")
    who = "vLLM n-gram series|series@ngram.invalid"
    assert shown == f"{who}|{who}|1700000000 +0000|1700000000 +0000"


def test_nothing_to_do_changes_nothing(project: Project) -> None:
    before = {p: p.stat().st_mtime_ns for p in project.root.rglob("*") if p.is_file()}
    done = project.apply()
    assert not done.changed
    after = {p: p.stat().st_mtime_ns for p in project.root.rglob("*") if p.is_file()}
    assert after == before


def test_composing_touches_no_work_tree(project: Project) -> None:
    """A series that does not compose leaves ref, files and index alone."""
    before = project.files()
    head = project.git("rev-parse", "HEAD")
    _rewrite(project, CORE, " a line 5\n", " a line fünf\n")
    with pytest.raises(Fault):
        project.apply("--relock")
    assert project.files() == before
    assert project.git("rev-parse", "HEAD") == head
    assert project.git("status", "--porcelain") == ""


# -- the lock ------------------------------------------------------------------


def test_the_first_patch_that_differs_is_named(project: Project) -> None:
    _rewrite(project, CORE, "+from vllm import new", "+from vllm import old")
    _rewrite(project, BUGFIX, "+a line thirty", "+a line 31")
    with pytest.raises(Fault, match=r"0002-Core-Add-a-new-file\.patch differs from the lock"):
        project.apply()


def test_another_base_tree_in_the_pin(project: Project) -> None:
    pin = project.layout.pin
    pin.write_text(re.sub(r'base_tree = "\w+"', f'base_tree = "{"a" * 40}"', pin.read_text()))
    with pytest.raises(Fault, match=r"pin\.toml names a{40}: restore the one that was changed"):
        project.apply()


def test_an_overlay_file_that_differs_is_named(project: Project) -> None:
    _rewrite(project, "overlay/L/tests/test_new.py", "True", "False")
    with pytest.raises(Fault, match=r"overlay/L/tests/test_new\.py of 0003-\S+ differs"):
        project.apply()


def test_an_order_that_differs_is_named(project: Project) -> None:
    file = project.layout.series
    head, *entries = file.read_text().split("\n[[patch]]\n")
    entries[1], entries[2] = entries[2], entries[1]
    file.write_text("\n[[patch]]\n".join([head, *entries]))
    with pytest.raises(Fault, match="patch 2 is 0003-Bugfix"):
        project.apply()


def test_a_patch_more_or_less_is_named(project: Project) -> None:
    file = project.layout.series
    whole = file.read_text()
    file.write_text(whole[: whole.rindex("\n[[patch]]\n")])
    (project.root / BUGFIX).unlink()
    (project.root / "overlay/L/tests/test_new.py").unlink()
    with pytest.raises(Fault, match=r"series\.lock holds 0003-Bugfix"):
        project.apply()


@pytest.mark.parametrize(
    ("key", "message"),
    [("tree", "the tree after 0001-"), ('"setup.py"', "0001-Build-Say-six.patch touches setup.py")],
)
def test_a_result_that_differs_is_named(project: Project, key: str, message: str) -> None:
    lines = project.layout.lock.read_text().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if line.startswith(f"{key} = "))
    lines[at] = f'{key} = "{"0" * 40}"\n'
    project.layout.lock.write_text("".join(lines))
    with pytest.raises(Fault, match=message):
        project.apply()


@pytest.mark.parametrize("data", [b"base_tree = 1\n[[patch]]\n", b"\xff", b"[["])
def test_a_damaged_lock(project: Project, data: bytes) -> None:
    project.layout.lock.write_bytes(data)
    with pytest.raises(Fault, match=r"series\.lock"):
        project.apply()


def _conflict(project: Project, path: str, ours: bytes, theirs: bytes) -> None:
    """What `git merge` writes where two people changed the same line."""
    file = project.root / path
    both = b"<<<<<<< HEAD\n" + ours + b"=======\n" + theirs + b">>>>>>> theirs\n"
    file.write_bytes(file.read_bytes().replace(ours, both, 1))


def test_merge_conflicts_are_named_and_relock_settles_them(project: Project) -> None:
    """Two people refreshed: the ids of a later patch conflict, and the lock."""
    patch = project.root / BUGFIX
    ids = re.search(rb"index \w+\.\.\w+ 100644\n", patch.read_bytes())
    assert ids is not None
    before = project.series()
    wrong = b"index %s..%s 100644\n" % (b"1" * 40, b"2" * 40)
    _conflict(project, "patches/L/series.lock", b"[[patch]]\n", b"[[patch]]\n\n")
    with pytest.raises(
        Fault, match=r"series\.lock has merge conflicts: `nox -s apply -- --relock`"
    ):
        project.apply()
    _conflict(project, BUGFIX, ids[0], wrong)
    with pytest.raises(Fault, match=r"0003-\S+ has merge conflicts, in ids.*`nox -s apply -- --re"):
        project.apply()
    project.apply("--relock")
    assert project.series() == before
    assert project.refresh().written == ()


@pytest.mark.parametrize("path", ["patches/L/pin.toml", "patches/L/series.toml"])
def test_merge_conflicts_in_toml_are_named(project: Project, path: str) -> None:
    first = (project.root / path).read_bytes().splitlines(keepends=True)[-1]
    _conflict(project, path, first, first)
    with pytest.raises(Fault, match=rf"{path.split('/')[-1]} has merge conflicts"):
        project.apply()


def test_no_lock(project: Project) -> None:
    project.layout.lock.unlink()
    with pytest.raises(Fault, match="missing"):
        project.apply()
    before = project.git("rev-parse", "HEAD")
    project.apply("--relock")
    assert project.git("rev-parse", "HEAD") == before


def test_relock_loses_no_text_of_a_message(project: Project) -> None:
    _rewrite(project, CORE, "It is needed.", "---\nIt is needed.")
    before = project.series()
    with pytest.raises(Fault, match=r"Add-a-new-file.*text below `---`.*: `It is needed.`"):
        project.apply("--relock")
    assert project.series() == before


def test_relock_brings_a_hand_edited_patch_into_form(project: Project) -> None:
    """A changed line makes every later id wrong; relock mends them all."""
    _rewrite(project, CORE, "+from vllm import new", "+from vllm import newer")
    done = project.apply("--relock")
    assert b"from vllm import newer" in project.files()["vllm/a.py"]
    assert project.apply().head == done.head
    assert project.refresh().written == ()


def test_another_context_is_not_canonical(project: Project) -> None:
    """It applies all the same, but would not come back the same."""
    patch = project.root / BUILD
    data = patch.read_bytes()
    wider = data.replace(
        b"@@ -3,7 +3,7 @@ setup line 2\n", b"@@ -2,8 +2,8 @@ setup line 1\n setup line 2\n"
    )
    patch.write_bytes(wider)
    lock = project.layout.lock
    hashes = [hashlib.sha256(one).hexdigest() for one in (data, wider)]
    lock.write_text(lock.read_text().replace(*hashes))
    with pytest.raises(Fault, match=r"0001-Build-Say-six\.patch is not in canonical form"):
        project.apply()
    project.apply("--relock")
    assert patch.read_bytes() == data


# -- series on disk that does not hold together ----------------------------------


def test_an_overlay_file_that_no_patch_names(project: Project) -> None:
    (project.layout.overlay / "vllm/stray.py").write_text("x")
    with pytest.raises(Fault, match=r"overlay/L/vllm/stray\.py is not named in"):
        project.apply()


def test_what_python_and_linters_drop_is_no_overlay_file(project: Project) -> None:
    cache = project.layout.overlay / "vllm/__pycache__"
    cache.mkdir()
    (cache / "new.cpython-311.pyc").write_bytes(b"x")
    assert not project.apply().changed


def test_a_missing_overlay_file(project: Project) -> None:
    (project.root / "overlay/L/vllm/new.py").unlink()
    with pytest.raises(Fault, match=r"overlay/L/vllm/new\.py is missing, but 0002-\S+ names it"):
        project.apply()


def test_an_overlay_file_that_upstream_has(project: Project) -> None:
    (project.layout.overlay / "vllm/b.py").write_text("mine")
    _rewrite(project, "patches/L/series.toml", '["vllm/new.py"]', '["vllm/new.py", "vllm/b.py"]')
    with pytest.raises(Fault, match=r"overlay/L/vllm/b\.py of \S+ exists upstream already"):
        project.apply("--relock")


def test_an_overlay_file_with_two_owners(project: Project) -> None:
    _rewrite(
        project,
        "patches/L/series.toml",
        '["tests/test_new.py"]',
        '["tests/test_new.py", "vllm/new.py"]',
    )
    with pytest.raises(Fault, match=r"adds vllm/new\.py, which 0002-\S+ adds already"):
        project.apply()


@pytest.mark.parametrize("path", ["../up.py", "/abs.py", ".git/hooks/x", "a//b", "x/.GIT/y", "."])
def test_an_overlay_path_that_leaves_the_tree(project: Project, path: str) -> None:
    _rewrite(project, "patches/L/series.toml", '"vllm/new.py"', f'"{path}"')
    with pytest.raises(Fault, match="which overlay/ cannot hold"):
        project.apply()


def test_a_missing_and_a_stray_patch(project: Project) -> None:
    (project.root / CORE).rename(project.root / "patches/L/0002-other.patch")
    with pytest.raises(Fault, match="is missing, but"):
        project.apply()
    shutil.copy(project.root / "patches/L/0002-other.patch", project.root / CORE)
    with pytest.raises(Fault, match=r"0002-other\.patch is not named"):
        project.apply()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('topic = "core"', 'topic = "none"', "names the topic none"),
        ("overlay = []", "overlay = 1", "overlay: expected `array`, got `int`"),
        ("overlay = []", "overly = []", "unknown key `overly`"),
        ('state = "local"', 'state = "sent"', "has the state sent"),
        ("needs = []\n", 'needs = ["later"]\n', "needs later"),
        ('name = "core"', 'name = "build"', "is there twice"),
        ('file = "0001-Build-Say-six.patch"', 'file = "../x.patch"', "plain file name"),
        ("[[topic]]", "[topic]", "not valid TOML"),
    ],
)
def test_a_series_that_contradicts_itself(
    project: Project, old: str, new: str, message: str
) -> None:
    _rewrite(project, "patches/L/series.toml", old, new)
    with pytest.raises(Fault, match=message):
        project.apply()


# -- patches that do not apply ---------------------------------------------------


def _refused(project: Project) -> str:
    with pytest.raises(Fault) as caught:
        project.apply("--relock")
    return str(caught.value)


def test_conflicting_lines_and_the_nearest_match_are_shown(project: Project) -> None:
    _rewrite(project, BUGFIX, " a line 29\n", " a line twenty-nine\n")
    said = _refused(project)
    assert "patches/L/0003-Bugfix-Thirty-and-no-going.patch: vllm/a.py: hunk 1 of 1" in said
    assert "nearest match: line 28, 6 of 7 lines agree" in said
    assert "line 30 expected: a line twenty-nine" in said
    assert "line 30 found:    a line 29" in said


def test_nothing_like_it(project: Project) -> None:
    patch = project.root / BUGFIX
    data = patch.read_bytes().replace(b"a line", b"z line")
    patch.write_bytes(data)
    assert "none of its 7 lines is in the file" in _refused(project)


def test_a_hunk_that_is_there_already(project: Project) -> None:
    """The same patch twice: the second finds its own result."""
    data = (project.root / BUILD).read_bytes().replace(b"Say six", b"Say it again")
    (project.root / "patches/L/0004-Build-Say-it-again.patch").write_bytes(data)
    with project.layout.series.open("a") as file:
        file.write('\n[[patch]]\nfile = "0004-Build-Say-it-again.patch"\ntopic = "build"\n')
    assert "upstream may have taken the change" in _refused(project)


def test_a_file_that_is_not_there(project: Project) -> None:
    _rewrite(project, BUGFIX, "vllm/gone.py", "vllm/left.py")
    assert "changes vllm/left.py, which the pinned vLLM does not have" in _refused(project)


def test_a_new_file_in_a_patch(project: Project) -> None:
    with (project.root / BUILD).open("ab") as file:
        file.write(
            b"diff --git a/x b/x\nnew file mode 100644\n"
            b"index 0000000000000000000000000000000000000000.."
            b"587be6b4c3f93f93c489c0111bba5596147a26cb\n"
            b"--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+x\n"
        )
    assert "adds x: new files live in overlay/" in _refused(project)


def test_a_patch_on_an_overlay_file(project: Project) -> None:
    with (project.root / BUGFIX).open("ab") as file:
        file.write(
            b"diff --git a/vllm/new.py b/vllm/new.py\n"
            b"index 1111111111111111111111111111111111111111.."
            b"2222222222222222222222222222222222222222 100644\n"
            b"--- a/vllm/new.py\n+++ b/vllm/new.py\n@@ -1 +1 @@\n-new = 1\n+new = 2\n"
        )
    assert "vllm/new.py, which is an overlay file of 0002-Core" in _refused(project)


def test_an_empty_patch_is_refused(project: Project) -> None:
    patch = project.root / BUILD
    patch.write_bytes(patch.read_bytes().partition(b"\ndiff --git")[0])
    assert "0001-Build-Say-six.patch changes nothing" in _refused(project)


def test_failing_twice_says_the_same(project: Project) -> None:
    """No half-finished state of the first failure leads the second astray."""
    _rewrite(project, BUILD, " setup line 5\n", " setup line V\n")
    assert _refused(project) == _refused(project)


# -- the user's edits ------------------------------------------------------------


def _another_series(project: Project) -> None:
    """Move the series on, as a pull would."""
    _rewrite(project, "overlay/L/vllm/new.py", "new = 1", "new = 100")
    lock = project.layout.lock
    work = project.work.rename(project.work.with_name("aside"))
    project.apply("--relock")
    shutil.rmtree(project.work)
    work.rename(project.work)
    assert lock.exists()


@pytest.mark.parametrize("path", ["vllm/b.py", "vllm/new.py", "setup.py"])
def test_an_edited_file_stops_an_update(project: Project, path: str) -> None:
    _another_series(project)
    project.write(path, text("mine"))
    with pytest.raises(Dirty, match="1 edited file") as caught:
        project.apply()
    assert caught.value.details == (path,)
    assert "`git stash -u` your edits, run this again, and `git stash pop`" in caught.value.todo
    assert project.files()[path] == b"mine\n"


def test_edits_get_onto_a_changed_series(project: Project) -> None:
    """What apply and refresh both say to do, and refresh takes them then."""
    _another_series(project)
    project.replace("vllm/b.py", "b line 3\n", "b line III\n")
    project.write("vllm/more.py", text("more"))
    with pytest.raises(Dirty) as caught:
        project.apply()
    with pytest.raises(Fault, match="another series") as again:
        project.refresh()
    way = "there, `git stash -u` your edits, {}, and `git stash pop`"
    assert caught.value.todo.startswith(way.format("run this again") + "; or put")
    assert again.value.todo == way.format("run `nox -s apply`")
    project.git("stash", "-u")
    project.apply()
    project.git("stash", "pop")
    assert project.files()["vllm/new.py"].startswith(b"new = 100")
    assert project.refresh("--new", "[Core] Three").written
    assert project.files()["vllm/more.py"] == b"more\n"
    assert b"b line III" in project.files()["vllm/b.py"]
    assert not project.apply().changed


def test_commits_get_onto_a_changed_series(project: Project) -> None:
    _another_series(project)
    project.replace("vllm/b.py", "b line 3\n", "b line III\n")
    project.commit("-m", "[Core] Three")
    project.write("vllm/more.py", text("more"))
    with pytest.raises(Dirty) as caught:
        project.apply()
    with pytest.raises(Fault, match="another series") as again:
        project.refresh()
    old = project.git("rev-parse", "--short=12", "refs/series/applied")
    for fault, run in ((caught.value, "run this again"), (again.value, "run `nox -s apply`")):
        assert fault.todo.startswith(
            "there, `git stash -u` what is not committed, `git branch mine`, "
            f"`git reset --keep {old}`, {run}, and `git cherry-pick {old}..mine`"
        )
    project.git("stash", "-u")
    project.git("branch", "mine")
    project.git("reset", "--keep", old)
    project.apply()
    project.git("cherry-pick", f"{old}..mine")
    project.git("stash", "pop")
    assert project.refresh("--new", "[Core] More").written
    assert b"[Core] Three" in b"".join(c.data for c in project.series().values())
    assert project.files()["vllm/more.py"] == b"more\n"


def test_an_edited_file_stops_relock_before_it_writes(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    _rewrite(project, "overlay/L/vllm/new.py", "new = 1", "new = 100")
    before = project.series()
    project.write("setup.py", text("mine"))
    with pytest.raises(Dirty, match="1 edited file"):
        project.apply("--relock")
    assert project.series() == before
    assert "wrote" not in capsys.readouterr().err
    project.git("stash", "-u")
    project.apply("--relock")
    assert "wrote patches/L/series.lock" in capsys.readouterr().err
    assert project.series() != before


def test_a_deleted_file_stops_an_update(project: Project) -> None:
    _another_series(project)
    project.write("vllm/b.py", None)
    with pytest.raises(Dirty):
        project.apply()


def test_a_staged_file_stops_an_update(project: Project) -> None:
    _another_series(project)
    kept = (project.work / "vllm/b.py").read_bytes()
    project.write("vllm/b.py", text("mine"))
    project.git("add", "vllm/b.py")
    (project.work / "vllm/b.py").write_bytes(kept)
    with pytest.raises(Dirty) as caught:
        project.apply()
    assert caught.value.details == ("vllm/b.py",)


def test_an_edit_that_git_was_told_to_overlook(project: Project) -> None:
    _another_series(project)
    project.git("update-index", "--assume-unchanged", "vllm/b.py")
    project.write("vllm/b.py", text("mine"))
    with pytest.raises(Dirty):
        project.apply()


@pytest.mark.parametrize("path", ["vllm/next.py", "ignored.txt"])
def test_an_untracked_file_in_the_way(project: Project, path: str) -> None:
    (project.layout.overlay / path).write_text("theirs\n")
    _rewrite(project, "patches/L/series.toml", '["vllm/new.py"]', f'["{path}", "vllm/new.py"]')
    project.write(path, text("mine"))
    with pytest.raises(Dirty, match=r"1 untracked file in .* would be overwritten") as caught:
        project.apply("--relock")
    assert caught.value.details == (path,)
    assert project.files()[path] == b"mine\n"
    project.write(path, text("theirs"))
    project.apply("--relock")
    assert project.files()[path] == b"theirs\n"


def test_a_file_where_a_folder_has_to_be(project: Project) -> None:
    (project.layout.overlay / "extra").mkdir()
    (project.layout.overlay / "extra/x.py").write_text("x\n")
    _rewrite(project, "patches/L/series.toml", '["vllm/new.py"]', '["extra/x.py", "vllm/new.py"]')
    project.write("extra", text("mine"))
    with pytest.raises(Dirty) as caught:
        project.apply("--relock")
    assert caught.value.details == ("extra",)
    assert project.files()["extra"] == b"mine\n"


def test_the_series_makes_a_file_of_a_folder_and_back(project: Project) -> None:
    before = project.series()
    folder = project.layout.overlay / "tests"
    (folder / "test_new.py").rename(project.root / "kept")
    folder.rmdir()
    (project.root / "kept").rename(folder)
    _rewrite(project, "patches/L/series.toml", '["tests/test_new.py"]', '["tests"]')
    (project.work / "tests/notes.txt").write_text("mine")
    with pytest.raises(Dirty, match=r"1 untracked file in .* would be overwritten") as caught:
        project.apply("--relock")
    assert caught.value.details == ("tests",)
    (project.work / "tests/notes.txt").unlink()
    project.apply("--relock")
    assert (project.work / "tests").read_bytes() == before["overlay/L/tests/test_new.py"].data
    assert project.git("status", "--porcelain") == ""
    folder.rename(project.root / "kept")
    folder.mkdir()
    (project.root / "kept").rename(folder / "test_new.py")
    _rewrite(project, "patches/L/series.toml", '["tests"]', '["tests/test_new.py"]')
    project.apply("--relock")
    assert project.series() == before
    assert project.git("status", "--porcelain") == ""


def test_other_untracked_files_are_left_alone(project: Project) -> None:
    _another_series(project)
    project.write("notes.txt", text("mine"))
    project.write("vllm/lib.so", text("mine"))
    project.apply()
    assert project.files()["notes.txt"] == b"mine\n"
    assert project.files()["vllm/lib.so"] == b"mine\n"
    assert project.files()["vllm/new.py"].startswith(b"new = 100")


def test_own_commits_stop_an_update(project: Project) -> None:
    _another_series(project)
    project.write("vllm/b.py", text("mine"))
    project.commit("-m", "mine")
    with pytest.raises(Dirty, match="has commits of yours") as caught:
        project.apply()
    assert caught.value.details[0].endswith(" mine")


def test_commits_on_no_branch_stop_an_update(project: Project) -> None:
    _another_series(project)
    project.git("switch", "-q", "--detach")
    project.write("vllm/b.py", text("mine"))
    project.commit("-m", "mine")
    with pytest.raises(Dirty, match="has commits of yours"):
        project.apply()


def test_another_branch_is_kept(project: Project) -> None:
    _another_series(project)
    project.git("switch", "-q", "-c", "mine")
    project.write("vllm/b.py", text("mine"))
    project.commit("-m", "mine")
    with pytest.raises(Dirty, match="edited file"):
        project.apply()  # its files are not the series'
    tip = project.git("rev-parse", "mine")
    project.git("switch", "-q", "-c", "same", "series")
    done = project.apply()
    assert "refs/heads/same, which is kept" in (done.note or "")
    assert project.git("branch", "--show-current") == "series"
    assert project.git("rev-parse", "mine") == tip


def test_a_merge_under_way(project: Project) -> None:
    _another_series(project)
    (project.work / ".git/MERGE_HEAD").write_text("0" * 40)
    with pytest.raises(Fault, match="a merge is under way"):
        project.apply()


def test_discard_keeps_a_backup(project: Project) -> None:
    _another_series(project)
    project.write("vllm/a.py", text("mine"))
    project.commit("-m", "mine")
    project.write("vllm/b.py", text("staged"))
    project.git("add", "-A")
    project.write("vllm/b.py", text("mine"))
    project.write("vllm/new.py", None)
    project.write("own.txt", text("mine"))
    done = project.apply("--discard")
    assert "refs/backup/1" in (done.note or "")
    files = project.files()
    assert files["vllm/a.py"] == A3.data
    assert files["vllm/b.py"] == UPSTREAM["vllm/b.py"].data
    assert files["vllm/new.py"] == b"new = 100\nnewer = 2\n"
    assert files["own.txt"] == b"mine\n"
    assert project.git("status", "--porcelain") == "?? own.txt"
    assert project.git("show", "refs/backup/1/files:vllm/b.py") == "mine"
    assert project.git("show", "refs/backup/1/staged:vllm/b.py") == "staged"
    assert project.git("show", "refs/backup/1/series:vllm/a.py") == "mine"
    assert project.git("show", "refs/backup/1/files:own.txt") == "mine"
    assert not project.apply().changed


@pytest.mark.parametrize("moved", [False, True], ids=["same series", "another series"])
def test_discard_goes_through_no_link_in_the_place_of_a_folder(
    project: Project, tmp_path: Path, moved: bool
) -> None:
    """What lies behind the link is not the series', even where it looks like it."""
    if moved:
        _another_series(project)
    elsewhere = tmp_path / "elsewhere"
    (project.work / "vllm").rename(elsewhere)
    (project.work / "vllm").symlink_to(elsewhere)
    before = {path.name: path.read_bytes() for path in elsewhere.iterdir()}
    done = project.apply("--discard")
    assert {path.name: path.read_bytes() for path in elsewhere.iterdir()} == before
    assert not (project.work / "vllm").is_symlink()
    assert project.git("status", "--porcelain") == ""
    assert "refs/backup/1" in (done.note or "")
    assert project.git("show", "refs/backup/1/files:vllm") == str(elsewhere)


def test_a_folder_in_the_place_of_a_file_stops_discard(project: Project) -> None:
    """Git could only delete it, with what it ignores inside."""
    project.write("setup.py", None)
    for name in ("x", "ignored.txt"):
        project.write(f"setup.py/{name}", text("mine"))
    before = project.files()
    with pytest.raises(Dirty, match="has a folder where the series has a file") as caught:
        project.apply("--discard")
    assert caught.value.details == ("setup.py",)
    assert project.files() == before
    assert not project.git("for-each-ref", "refs/backup")
    (project.work / "setup.py").rename(project.work / "aside")
    (project.work / "setup.py").mkdir()
    assert "refs/backup/1" in (project.apply("--discard").note or "")
    assert project.git("status", "--porcelain") == "?? aside/"


def test_no_edit_is_lost_where_nothing_has_to_move(project: Project) -> None:
    project.write("vllm/b.py", text("mine"))
    project.commit("-m", "mine")
    project.write("vllm/b.py", text("more"))
    done = project.apply()
    assert not done.changed
    assert "nox -s refresh" in (done.note or "")
    assert project.files()["vllm/b.py"] == b"more\n"


# -- work trees that are no such thing ---------------------------------------------


def test_a_deleted_work_tree_comes_back(project: Project) -> None:
    before = project.files()
    shutil.rmtree(project.work)
    project.apply()
    assert project.files() == before


def test_an_empty_folder_is_filled(project: Project) -> None:
    before = project.files()
    shutil.rmtree(project.work)
    project.work.mkdir()
    project.apply()
    assert project.files() == before


def test_another_folder_is_refused(project: Project) -> None:
    shutil.rmtree(project.work / ".git")
    with pytest.raises(Fault, match="not a work tree that this tool made"):
        project.apply()
    subprocess.run(["git", "init", "-q", str(project.work)], check=True)
    with pytest.raises(Fault, match="not a work tree that this tool made"):
        project.apply()


# -- as a user runs it --------------------------------------------------------------


def _run(project: Project, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ci", *words],
        cwd=project.with_tooling().root,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )


def test_the_command_line(project: Project) -> None:
    done = _run(project, "apply")
    assert done.returncode == 0
    assert done.stdout.startswith("nothing to do: ")
    (project.root / BUILD).unlink()
    failed = _run(project, "apply")
    assert failed.returncode == 1
    first = failed.stderr.splitlines()[0]
    assert first.startswith("error: patches/L/0001-Build-Say-six.patch is missing, but")
    assert "Traceback" not in failed.stderr


@pytest.mark.parametrize("verb", ["apply", "roll", "upstream"])
def test_an_empty_source_is_no_source(
    project: Project, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    words = [verb, "--source", ""]
    assert main(words, root=project.root) == 1
    assert "argument --source: is empty" in capsys.readouterr().err


def test_a_pin_that_changed_is_looked_at_again(project: Project) -> None:
    before = project.series()
    good = project.layout.pin.read_text()
    project.layout.pin.write_text(good.replace('tag = "v0.0.1"', 'tag = "v0.0.2"'))
    with pytest.raises(Fault, match=r"vllm\.tag is v0\.0\.2, the tag of 0\.0\.1 is v0\.0\.1"):
        project.apply()
    project.layout.pin.write_text(re.sub('sha256 = "...', 'sha256 = "000', good, count=1))
    with pytest.raises(Fault, match=r"vllm-0\.0\.1\.tar\.gz could not be fetched"):
        project.apply()
    project.layout.pin.write_text(good)
    assert not project.apply().changed
    assert project.series() == before
