"""Small generated projects: a tiny upstream, a series on it, a fixed clock."""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from ci.core import checkpoints
from ci.core.content import EXECUTABLE, REGULAR, Content
from ci.core.layout import Layout
from ci.git.repo import Git
from ci.git.store import open_store
from ci.pinned import pin
from ci.pinned.base import Kind, base_ref
from ci.pinned.pin import Artifact, Pin
from ci.series.base import open_base
from ci.series.compose import BaseTree
from ci.series.diff import quote
from ci.series.lock import Lock, dump_lock
from ci.series.model import Series, Topic, dump_series, load_series
from ci.series.write import recover
from ci.verbs import apply as applying
from ci.verbs import refresh as refreshing
from ci.worktree.applied import Applied
from ci.worktree.edits import Options

ROOT = Path(__file__).resolve().parents[2]
CLOCK = "1700000000 +0000"
TAG = "v0.0.1"
COMMIT = "1" * 40
LINE = "L"
"""Not the pinned version, so that neither can stand for the other unnoticed."""


def text(*lines: str) -> Content:
    return Content(REGULAR, "".join(f"{line}\n" for line in lines).encode())


def numbered(name: str, count: int) -> list[str]:
    return [f"{name} line {number}" for number in range(1, count + 1)]


UPSTREAM: dict[str, Content] = {
    ".gitattributes": Content(REGULAR, b"*.bat text eol=crlf\nvllm/b.py ident export-ignore\n"),
    ".gitignore": text("*.so", "/build/", "ignored.txt"),
    "setup.py": text(*numbered("setup", 12)),
    "vllm/__init__.py": Content(REGULAR, b""),
    "vllm/a.py": text(*numbered("a", 40)),
    "vllm/b.py": text(*numbered("b", 30), "# $Id$"),
    "vllm/gone.py": text("going"),
    "tools/run.sh": Content(EXECUTABLE, b"#!/bin/sh\nexit 0\n"),
    'docs/été "1".md': text("un", "deux", "trois"),
    "win.txt": Content(REGULAR, b"r1\r\nr2\r\nr3\r\n"),
}


def sdist_of(tree: Mapping[str, Content]) -> bytes:
    """The same bytes each time: no time, no owner."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", compresslevel=1) as archive:
        for path, content in {**tree, "PKG-INFO": text("Name: vllm")}.items():
            member = tarfile.TarInfo(f"vllm-0.0.1/{path}")
            member.size = len(content.data)
            member.mode = 0o755 if content.mode == EXECUTABLE else 0o644
            archive.addfile(member, io.BytesIO(content.data))
    return out.getvalue()


RELEASE_COMMIT = "abcdef123" + "4" * 31
"""The commit that a release of `write_release` names the start of."""


def write_release(folder: Path, tree: Mapping[str, Content], version: str = "0.0.2") -> str:
    """Put the sdist of a release into a folder, and hand the folder back for --source."""
    release = {**tree, "vllm/_version.py": text("commit_id = 'gabcdef123'")}
    (folder / f"vllm-{version}.tar.gz").write_bytes(sdist_of(release))
    return str(folder)


def write_tree(store: Git, ref: str, tree: Mapping[str, Content]) -> tuple[str, str]:
    """Put a tree into a repository under `ref`; its commit and tree."""
    feed = [b"commit %s\ncommitter u <u@u> %s\ndata 0\n" % (ref.encode(), CLOCK.encode())]
    for path, content in tree.items():
        raw = quote(os.fsencode(path))
        feed.append(b"M %s inline %s\n" % (content.mode.encode(), raw))
        feed.append(b"data %d\n%s\n" % (len(content.data), content.data))
    store.run("fast-import", "--quiet", "--force", "--done", stdin=b"".join([*feed, b"done\n"]))
    return store.text("rev-parse", ref), store.text("rev-parse", f"{ref}^{{tree}}")


def put(root: Path, path: str, content: Content | None) -> None:
    """Make a file on disk what `content` says."""
    target = root / path
    if target.is_symlink() or target.exists():
        target.unlink()
    if content is None:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if content.mode == "120000":
        target.symlink_to(os.fsdecode(content.data))
        return
    target.write_bytes(content.data)
    target.chmod(0o755 if content.mode == EXECUTABLE else 0o644)


@dataclass(frozen=True)
class Project:
    """A checkout of a project like this one, in small."""

    layout: Layout

    @property
    def root(self) -> Path:
        return self.layout.root

    @property
    def work(self) -> Path:
        return self.layout.work_tree

    @classmethod
    def make(cls, root: Path, upstream: Mapping[str, Content], *, sdist: bool = True) -> Project:
        """A project with a pin and no patch.

        Args:
            sdist: put its sdist into the downloads, so that a lost store can
                be made again; without, the base is put into the store itself,
                and may hold what an sdist cannot (symlinks, odd names).
        """
        layout = Layout(root, LINE)
        layout.downloads.mkdir(parents=True)
        packed = sdist_of(upstream) if sdist else b""
        (layout.downloads / "vllm-0.0.1.tar.gz").write_bytes(packed)
        store = Git(layout.build / "scratch.git") if sdist else Git(layout.store)
        store.init()
        tree = write_tree(store, "refs/heads/upstream", upstream)[1]
        if sdist:
            shutil.rmtree(store.git_dir)
        digest = hashlib.sha256(packed).hexdigest()
        artifact = Artifact("vllm", "vllm-0.0.1.tar.gz", max(len(packed), 1), digest)
        made = Pin(
            "0.0.1",
            "https://vllm.invalid/vllm",
            TAG,
            COMMIT,
            tree,
            artifact,
            ("PKG-INFO",),
            {"cpu-x86_64": artifact},
        )
        if not sdist:
            store.run("update-ref", base_ref(made, Kind.SDIST), "refs/heads/upstream")
            store.run("update-ref", "-d", "refs/heads/upstream")
        layout.patches.mkdir(parents=True)
        layout.pin.write_text(pin.dump_pin(made))
        (root / "patches" / "lines.toml").write_text(f'default = "{LINE}"\n')
        topic = Topic("all", "Everything")
        layout.series.write_bytes(dump_series(Series((topic,), ())))
        layout.lock.write_bytes(dump_lock(Lock(tree, ())))
        return cls(layout)

    def copy(self, root: Path) -> Project:
        shutil.copytree(self.root, root, symlinks=True)
        return Project(Layout(root, LINE))

    def base(self) -> tuple[Git, BaseTree]:
        """The store, with the pinned base in it."""
        store = open_store(self.layout.store)
        return store, open_base(store, self.layout.downloads, pin.load_pin(self.layout.pin))

    def with_tooling(self) -> Project:
        """The same, where `python -m ci` acts on it: the tooling runs from here."""
        for name in ("ci", "pyproject.toml"):
            if not (self.root / name).exists():
                (self.root / name).symlink_to(ROOT / name)
        return self

    # -- verbs -------------------------------------------------------------------

    def apply(self, *words: str) -> Applied:
        parser = argparse.ArgumentParser()
        applying.options(parser)
        recover(self.root)
        return applying.apply(self.layout, **vars(parser.parse_args(words)))

    def refresh(self, *words: str) -> refreshing.Refreshed:
        parser = argparse.ArgumentParser()
        refreshing.options(parser)
        recover(self.root)
        return refreshing.refresh(self.layout, Options(**vars(parser.parse_args(words))))

    def take(self, clone: Path, commits: str, topic: str, title: str = "") -> None:
        """Bring commits of a clone into the series: cherry-pick them, and refresh."""
        series = load_series(self.layout)
        if topic not in [known.name for known in series.topics]:
            topics = (*series.topics, Topic(topic, title or topic))
            self.layout.series.write_bytes(dump_series(Series(topics, series.patches)))
        self.apply()
        self.git("fetch", "-q", str(clone), "HEAD")
        found = self.git("rev-list", "--reverse", commits, where=clone).split()
        self.git("cherry-pick", *found)
        self.refresh("--topic", topic)

    # -- what a user does ----------------------------------------------------------

    def write(self, path: str, content: Content | None) -> None:
        """Change a file of the work tree; None deletes it."""
        put(self.work, path, content)

    def replace(self, path: str, old: str, new: str) -> None:
        """Change words of a file of the work tree, which are there once."""
        data = (self.work / path).read_bytes()
        assert data.count(old.encode()) == 1, old
        (self.work / path).write_bytes(data.replace(old.encode(), new.encode()))

    def commit(self, *words: str) -> None:
        """Commit everything in the work tree with the user's own git."""
        self.git("add", "-A")
        self.git("commit", "-q", *words)

    # -- looking -----------------------------------------------------------------

    def series(self) -> dict[str, Content]:
        """Every file of the series on disk."""
        found = {}
        for top in (self.layout.patches, self.layout.overlay):
            for path in sorted(top.rglob("*")):
                if path.is_symlink():
                    found[str(path.relative_to(self.root))] = Content(
                        "120000", os.fsencode(path.readlink())
                    )
                elif path.is_file():
                    mode = EXECUTABLE if path.stat().st_mode & 0o100 else REGULAR
                    found[str(path.relative_to(self.root))] = Content(mode, path.read_bytes())
        return found

    def files(self) -> dict[str, bytes]:
        """Every file of the work tree."""
        return {
            str(path.relative_to(self.work)): path.read_bytes()
            for path in sorted(self.work.rglob("*"))
            if path.is_file() and ".git" not in path.parts
        }

    def git(self, *words: str, where: Path | None = None) -> str:
        """The user's own git in the work tree, with the user's environment."""
        done = subprocess.run(
            ["git", *words], cwd=where or self.work, check=True, capture_output=True
        )
        return done.stdout.decode("utf-8", "surrogateescape").strip()


@dataclass(frozen=True)
class Cut:
    """A project as it was at one moment of a run."""

    at: str
    project: Project


def _listing(root: Path) -> list[tuple[str, int, int]]:
    found = []
    for path in sorted(root.rglob("*")):
        stat = path.lstat()
        found.append((str(path), stat.st_size, 0 if path.is_dir() else stat.st_mtime_ns))
    return found


def cuts_of(project: Project, run: Callable[[], object], where: Path) -> list[Cut]:
    """Every state that `run` goes through, the last one aside."""
    cuts: list[Cut] = []
    seen = _listing(project.root)

    def watch(name: str) -> None:
        nonlocal seen
        if name.startswith("swap: staged") and cuts and cuts[-1].at.startswith("swap: staged"):
            return  # one more file in a folder that nothing reads yet
        now = _listing(project.root)
        if now != seen:
            seen = now
            cuts.append(Cut(name, project.copy(where / str(len(cuts)))))

    checkpoints.watch(watch)
    try:
        run()
    finally:
        checkpoints.watch(None)
    return cuts


def second_line(
    project: Project,
    upstream: Mapping[str, Content] = MappingProxyType({"vllm/a.py": text("another a")}),
    version: str = "0.0.9",
) -> Project:
    """Another line of the project, `M`, on another vLLM, without a patch."""
    other = Project.make(project.root / "other", upstream)
    line = Project(Layout(project.root, "M"))
    other.layout.patches.rename(line.layout.patches)
    pin = line.layout.pin.read_text().replace("0.0.1", version)
    line.layout.pin.write_text(pin)
    sdist = other.layout.downloads / "vllm-0.0.1.tar.gz"
    sdist.rename(line.layout.downloads / f"vllm-{version}.tar.gz")
    shutil.rmtree(other.root)
    return line


def clone_of(project: Project, where: Path) -> Path:
    """A developer's clone of the upstream."""
    base = project.base()[1].commit
    subprocess.run(["git", "init", "-q", str(where)], check=True)
    run = ["git", "-C", str(where)]
    subprocess.run([*run, "fetch", "-q", str(project.layout.store), base], check=True)
    subprocess.run([*run, "reset", "-q", "--hard", "FETCH_HEAD"], check=True)
    subprocess.run([*run, "tag", TAG], check=True)
    return where


def commit(
    clone: Path, subject: str, changes: Mapping[str, Content | None], body: str = ""
) -> None:
    """One commit in a developer's clone."""
    for path, content in changes.items():
        put(clone, path, content)
    subprocess.run(["git", "-C", str(clone), "add", "-A"], check=True)
    words = ["-m", subject, *(["-m", body] if body else [])]
    subprocess.run(["git", "-C", str(clone), "commit", "-q", "--allow-empty", *words], check=True)


def edit(content: Content, *changes: tuple[str, str]) -> Content:
    """A file with words replaced, each of which is there once."""
    data = content.data
    for old, new in changes:
        assert data.count(old.encode()) == 1, old
        data = data.replace(old.encode(), new.encode())
    return Content(content.mode, data)


A2 = edit(UPSTREAM["vllm/a.py"], ("a line 5\n", "a line 5\nfrom vllm import new\n"))
A3 = edit(A2, ("a line 30\n", "a line thirty\n"))
