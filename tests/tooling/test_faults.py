"""Whatever cuts a run short, nothing is lost and the next plain run is right."""

from __future__ import annotations

import contextlib
import errno
import importlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ci.cli import main
from ci.core import files
from ci.core.content import Content
from ci.core.errors import Fault
from ci.core.runlock import alone
from ci.git import repo as sealed
from ci.pinned.indexes import indexes
from ci.worktree.checkout import Dirty
from tests.tooling.projects import LINE, UPSTREAM, Cut, Project, cuts_of, text

ROOT = Path(__file__).resolve().parents[2]
NEW = "[Misc] A third"


# -- what kill -9 leaves -----------------------------------------------------------
#
# A run is watched at every checkpoint and before every git process. Whatever
# lies on the disk there is what a kill at that moment leaves; each state that
# differs from the one before is copied, and a plain run is let loose on the copy.


@pytest.fixture
def before(project: Project, tmp_path: Path) -> Project:
    """The sample as it is, to compare with."""
    return project.copy(tmp_path / "before")


def _check(cut: Cut, like: Project) -> None:
    """A plain apply makes the cut project like the finished one."""
    cut.project.apply()
    assert cut.project.files() == like.files(), cut.at
    assert cut.project.series() == like.series(), cut.at
    assert cut.project.git("status", "--porcelain") == "", cut.at
    assert cut.project.git("rev-parse", "HEAD") == like.git("rev-parse", "HEAD"), cut.at
    assert not cut.project.apply().changed, cut.at
    assert not list(cut.project.root.rglob("*.lock.*")), cut.at


def test_killed_while_composing_from_nothing(project: Project, tmp_path: Path) -> None:
    shutil.rmtree(project.layout.store)
    shutil.rmtree(project.work)
    cuts = cuts_of(project, project.apply, tmp_path / "cuts")
    assert len(cuts) > 10
    for cut in cuts:
        _check(cut, project)


def test_killed_while_the_work_tree_moves(
    project: Project, before: Project, tmp_path: Path
) -> None:
    """From the whole series to its first patch: files come, go and change."""
    _shorten(project)
    project.write("notes.txt", text("mine"))
    cuts = cuts_of(project, project.apply, tmp_path / "cuts")
    assert {"work tree: files moved", "work tree: index moved"} <= {cut.at for cut in cuts}
    (project.work / "notes.txt").unlink()
    for cut in cuts:
        assert (cut.project.work / "notes.txt").read_bytes() == b"mine\n"
        (cut.project.work / "notes.txt").unlink()
        _check(cut, project)
    assert project.files() != before.files()


def test_killed_and_the_user_edits_before_the_next_run(project: Project, tmp_path: Path) -> None:
    _shorten(project)
    cuts = cuts_of(project, project.apply, tmp_path / "cuts")
    assert {"work tree: update announced", "work tree: files moved"} <= {cut.at for cut in cuts}
    for cut in cuts:
        put = cut.project
        put.write("vllm/a.py", text("mine"))
        try:
            put.apply()
        except Dirty as fault:
            assert fault.details == ("vllm/a.py",), cut.at
        assert put.files()["vllm/a.py"] == b"mine\n", cut.at


def test_git_killed_in_the_middle_of_a_file(project: Project, tmp_path: Path) -> None:
    """Git writes files in place: one may be half there, another gone."""
    shorter = project.copy(tmp_path / "shorter")
    _shorten(shorter)
    [cut] = [
        c
        for c in cuts_of(shorter, shorter.apply, tmp_path / "cuts")
        if c.at == "work tree: update announced"
    ]
    half = shorter.files()["vllm/a.py"][:100]
    (cut.project.work / "vllm/a.py").write_bytes(half)
    (cut.project.work / "win.txt").unlink()
    (cut.project.work / ".git/index.lock").touch()
    (cut.project.layout.build / "worktree.index.lock").touch()
    (cut.project.layout.store / "refs/series/0.0.1/head.lock").touch()
    _check(cut, shorter)


def _shorten(project: Project) -> None:
    """Cut the series on disk to its first patch, as a checkout of an older state would."""
    toml = project.layout.series
    whole = toml.read_text()
    toml.write_text(whole[: whole.index('\n[[patch]]\nfile = "0002')])
    lock = project.layout.lock
    whole = lock.read_text()
    lock.write_text(whole[: whole.index('\n[[patch]]\nfile = "0002')])
    for patch in sorted(project.layout.patches.glob("*.patch"))[1:]:
        patch.unlink()
    shutil.rmtree(project.layout.overlay)


def _edit(project: Project) -> None:
    """A bit of everything: commits, staged and unstaged edits, new and gone files."""
    project.replace("setup.py", "setup line six", "setup line VI")
    project.commit("--fixup", ":/Say six")
    project.write("vllm/third.py", text("third = 3"))
    project.commit("-m", NEW)
    project.replace("vllm/a.py", "from vllm import new", "from vllm import newer")
    project.git("add", "-A")
    project.replace("vllm/a.py", "from vllm import newer", "from vllm import newest")
    project.write("tests/test_new.py", None)
    project.git("mv", "vllm/new.py", "vllm/newest.py")


def test_killed_while_refreshing(project: Project, tmp_path: Path) -> None:
    _edit(project)
    edited = project.files()
    old = project.series()
    cuts = cuts_of(project, project.refresh, tmp_path / "cuts")
    new = project.series()
    assert project.files() == edited
    assert sum(cut.at.startswith("swap: put") for cut in cuts) >= 6
    for cut in cuts:
        one = cut.project
        assert one.files() == edited, cut.at
        one.apply()
        # Old or new, never in between; and the edits are still there.
        assert one.series() in (old, new), cut.at
        assert one.files() == edited, cut.at
        one.refresh()
        assert one.series() == new, cut.at
        assert one.git("rev-parse", "HEAD") == project.git("rev-parse", "HEAD"), cut.at
        assert one.git("status", "--porcelain") == "", cut.at
        assert NEW in one.git("log", "--all", "--format=%s"), cut.at


def test_killed_while_discarding(project: Project, before: Project, tmp_path: Path) -> None:
    _edit(project)
    project.write("notes.txt", text("mine"))
    project.write("ignored.txt", text("mine"))
    cuts = cuts_of(project, lambda: project.apply("--discard"), tmp_path / "cuts")
    assert {"work tree: discard announced", "work tree: files discarded"} <= {c.at for c in cuts}
    for cut in cuts:
        one = cut.project
        one.apply("--discard")
        own = {"notes.txt": b"mine\n", "ignored.txt": b"mine\n"}
        assert one.files() == before.files() | own, cut.at
        kept = one.git("for-each-ref", "--format=%(refname)", "refs/backup").splitlines()
        assert "newest" in one.git("grep", "-h", "import newest", *kept, "--", "vllm/a.py"), cut.at
        assert NEW in one.git("log", "--all", "--format=%s"), cut.at


def test_a_swap_that_was_cut_short_and_edited_since(project: Project, tmp_path: Path) -> None:
    _edit(project)
    cuts = cuts_of(project, project.refresh, tmp_path / "cuts")
    [cut] = [c for c in cuts if c.at == "swap: stage in place"]
    patch = cut.project.root / "patches/L/0001-Build-Say-six.patch"
    patch.write_bytes(b"mine")
    with pytest.raises(Fault, match="files were edited since"):
        cut.project.apply()
    assert patch.read_bytes() == b"mine"


HELD = """
import sys, time
from pathlib import Path
from ci.cli import main
from ci.core import checkpoints

def watch(name):
    if name == sys.argv[1]:
        print(name, flush=True)
        time.sleep(600)

checkpoints.watch(watch)
sys.exit(main(["refresh"], root=Path.cwd()))
"""


@pytest.mark.parametrize(
    "moment",
    ["compose: before writing commits", "swap: stage in place", "refresh: series written"],
)
def test_a_real_kill(project: Project, tmp_path: Path, moment: str) -> None:
    """The same with a process and a signal, which leaves a process's lock and threads too."""
    _edit(project)
    edited = project.files()
    one = project.copy(tmp_path / "killed")
    project.refresh()
    run = subprocess.Popen(
        [sys.executable, "-c", HELD, moment],
        cwd=one.root,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None
    with run.stdout:
        assert run.stdout.readline() == f"{moment}\n"
    run.send_signal(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL
    assert one.files() == edited
    one.apply()
    one.refresh()
    assert one.series() == project.series()
    assert one.files() == edited


# -- a disk that is full, folders that cannot be written ------------------------------


@contextmanager
def _failing(
    monkeypatch: pytest.MonkeyPatch, name: str, code: int, skip: int
) -> Iterator[list[object]]:
    """Let the call of `files.<name>` after `skip` good ones fail."""
    real = getattr(files, name)
    calls: list[object] = []

    def fail(*args: object) -> object:
        calls.append(args)
        if len(calls) == skip + 1:
            raise OSError(code, os.strerror(code))
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(files, name, fail)
        yield calls


@pytest.mark.parametrize(
    ("name", "code"),
    [("write_new", errno.ENOSPC), ("put", errno.EACCES), ("remove", errno.EROFS)],
)
def test_an_error_takes_everything_back(
    project: Project, monkeypatch: pytest.MonkeyPatch, name: str, code: int
) -> None:
    _edit(project)
    old, edited = project.series(), project.files()
    skip = 0
    while True:
        with _failing(monkeypatch, name, code, skip) as calls:
            try:
                project.refresh()
            except OSError:
                assert project.series() == old
                assert project.files() == edited
                assert not (project.layout.build / "swap").exists()
            else:
                break
        assert len(calls) > skip
        skip += 1 + skip // 2
    assert skip > 1
    assert project.refresh().written == ()


def _as_nobody(work: Callable[[], object]) -> bool:
    """Do `work` as a user whom permissions hold back; whether it failed with an OSError."""
    child = os.fork()
    if child == 0:
        status = 2
        try:
            if os.geteuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            sealed._sealed_home.cache_clear()
            work()
            status = 0
        except OSError:
            status = 1
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status < 2
    return status == 1


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can get to."""
    where = Path(tempfile.mkdtemp(prefix="series-"))
    where.chmod(0o755)
    yield where
    for path in where.rglob("*"):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)
    shutil.rmtree(where)


@pytest.mark.parametrize("folder", ["patches/L", "overlay/L/vllm", "build/L"])
def test_a_read_only_folder(project: Project, open_folder: Path, folder: str) -> None:
    _edit(project)
    one = project.copy(open_folder / "project")
    old, edited = one.series(), one.files()
    if os.geteuid() == 0:
        for path in (one.root, *one.root.rglob("*")):
            os.lchown(path, 65534, 65534)
    (one.root / folder).chmod(0o555)
    assert _as_nobody(one.refresh)
    assert one.series() == old
    assert one.files() == edited
    (one.root / folder).chmod(0o755)
    assert not _as_nobody(one.refresh)
    assert one.series() != old
    assert one.files() == edited


def test_someone_else_s_checkout_can_be_looked_at(
    project: Project, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing can be written, and what is below the home not even read."""
    monkeypatch.setattr("ci.pinned.releases.releases", lambda: ["0.0.1"])
    # What it imports on first use may lie in a home that the other user cannot enter.
    importlib.import_module("pypi_simple")
    one = project.copy(open_folder / "project")
    home = open_folder / "home"
    (home / ".config" / "uv").mkdir(parents=True)
    (home / ".config").chmod(0)
    monkeypatch.delenv("UV_NO_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
    one.root.chmod(0o555)
    (one.root / "build").chmod(0o555)

    def look() -> None:
        indexes()
        assert main(["status"], root=one.root) == 0

    assert not _as_nobody(look)
    assert not (one.root / "build" / "releases.json").exists()


def test_git_runs_into_a_full_disk(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every git process in turn; nothing is lost, and the store is not blamed."""
    _edit(project)
    old, edited = project.series(), project.files()
    real = sealed.Git.attempt
    said = b"fatal: unable to write: No space left on device\n"
    failed = 0
    for skip in range(100):
        calls = itertools.count()

        def attempt(self: sealed.Git, *args: str, **more: Any) -> sealed.Result:
            if next(calls) == skip:  # noqa: B023
                return sealed.Result(128, b"", said)
            return real(self, *args, **more)

        with monkeypatch.context() as patch:
            patch.setattr(sealed.Git, "attempt", attempt)
            with contextlib.suppress(OSError, Fault):
                project.refresh()
        assert project.files() == edited
        assert not list(project.layout.shared.glob("store.damaged-*"))
        if project.series() != old:
            break  # the new series is in place; what failed comes after
        failed += 1
    assert failed > 10
    project.apply()
    assert project.files() == edited
    assert project.refresh().written == ()
    assert project.git("status", "--porcelain") == ""


# -- two runs at once -----------------------------------------------------------------

HOLD = """
import sys, time
from pathlib import Path
from ci.core.layout import Layout
from ci.core.runlock import alone
with alone(Path(sys.argv[1]) / 'build', "refresh"):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock of `tmp_path`."""
    run = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None
    assert run.stdout.readline() == "held\n"
    yield run
    run.kill()
    run.wait()
    run.stdout.close()


def test_the_second_says_who_holds_it(
    holder: subprocess.Popen[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    who = rf"`refresh` \(process {holder.pid}, since"
    with pytest.raises(Fault, match=who), alone(tmp_path / "build", "apply", wait=0.2):
        pass
    assert f"waiting for `refresh` (process {holder.pid}" in capsys.readouterr().err


def test_the_second_waits(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    """A lock goes with its process, however that ends."""
    os.kill(holder.pid, signal.SIGKILL)
    with alone(tmp_path / "build", "apply"):
        who = json.loads((tmp_path / "build/run.json").read_bytes())
    assert who["pid"] == os.getpid()


# -- a store that was damaged ---------------------------------------------------------


def _packs(store: Path) -> Sequence[Path]:
    return sorted(store.glob("objects/pack/*.pack"))


def _no_pack(store: Path) -> None:
    for pack in _packs(store):
        pack.unlink()


def _short_pack(store: Path) -> None:
    for pack in _packs(store):
        pack.chmod(0o644)
        pack.write_bytes(pack.read_bytes()[: pack.stat().st_size // 2])


def _rotten_pack(store: Path) -> None:
    for pack in _packs(store):
        pack.chmod(0o644)
        data = bytearray(pack.read_bytes())
        data[40:-40] = bytes(len(data) - 80)
        pack.write_bytes(data)


def _no_loose(store: Path) -> None:
    for folder in store.glob("objects/??"):
        shutil.rmtree(folder)


def _no_head(store: Path) -> None:
    (store / "HEAD").unlink()


def _bad_ref(store: Path) -> None:
    (store / "refs/series/0.0.1/head").write_text("rubbish\n")


def _bad_base_ref(store: Path) -> None:
    (ref,) = store.glob("refs/base/chosen-*")
    ref.write_text("f" * 40 + "\n")


def _no_index(store: Path) -> None:
    (store.parent / LINE / "worktree.index").unlink()


def _bad_index(store: Path) -> None:
    (store.parent / LINE / "worktree.index").write_bytes(b"rubbish")


def _bad_record(store: Path) -> None:
    (store / "applied.json").write_bytes(b"[1]")


def _all_gone(store: Path) -> None:
    shutil.rmtree(store)


DAMAGES = [_no_pack, _short_pack, _rotten_pack, _no_loose, _no_head, _bad_ref, _bad_base_ref,
           _no_index, _bad_index, _bad_record, _all_gone]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("moved", [False, True], ids=["same series", "another series"])
def test_a_damaged_store_is_made_anew(
    project: Project, damage: Callable[[Path], None], moved: bool
) -> None:
    expected = UPSTREAM["vllm/b.py"].data
    if moved:
        _shorten(project)
    project.write("notes.txt", text("mine"))
    damage(project.layout.store)
    try:
        project.apply()
    except Dirty as fault:
        # What the work tree was made from is gone for good; nothing is touched.
        assert moved
        assert "is not in the store any more" in str(fault)
        assert (project.work / "vllm/new.py").exists()
        project.work.rename(project.work.with_name("aside"))
        project.apply()
        project.write("notes.txt", text("mine"))
    assert project.files()["vllm/b.py"] == expected
    assert project.files()["notes.txt"] == b"mine\n"
    assert (project.work / "vllm/new.py").exists() != moved
    project.write("notes.txt", None)
    project.write("vllm/b.py", Content("100644", expected + b"more\n"))
    project.refresh("--to", "Say-six")
    assert project.git("status", "--porcelain") == ""


def test_commits_on_an_old_head_outlive_the_store(project: Project) -> None:
    """The user's commits stand on objects of a store that is damaged."""
    project.write("vllm/b.py", text("mine"))
    project.commit("-m", "mine")
    _shorten(project)
    _bad_ref(project.layout.store)
    _bad_base_ref(project.layout.store)
    with pytest.raises(Dirty, match="commits of yours"):
        project.apply()
    assert project.git("show", "HEAD:vllm/b.py") == "mine"
    assert project.git("show", "HEAD~1:vllm/new.py") == "new = 1\nnewer = 2"
    assert list(project.layout.shared.glob("store.damaged-*"))
