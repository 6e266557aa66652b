"""The work tree: a checkout of the composed head, for people to read and edit.

It is a repository of its own, with the store behind it, so that whoever edits
it may use all of git. The tooling never trusts that repository's index,
attributes or excludes: it looks at the files through the store, with an index
of its own that remembers what it wrote. What differs from that is the user's.

Four names say where things stand:

- `refs/heads/series`: the branch that is checked out; the user may commit on it;
- `refs/series/applied`: the composed head that the files were made from;
- `refs/series/updating`: set while files are being written; where a run was
  cut short, the next one finds it and finishes;
- `refs/series/refreshed`: a head whose series a refresh is writing: the files
  are its already, wherever that run was cut short.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ci.core import files
from ci.core.content import Content, show
from ci.core.errors import Fault
from ci.core.project import project
from ci.git.repo import Git, Identity

BRANCH = "refs/heads/series"
APPLIED = "refs/series/applied"
UPDATING = "refs/series/updating"
REFRESHED = "refs/series/refreshed"
BACKUP = "refs/backup"

_PLAIN = ("--no-ext-diff", "--no-renames", "--ignore-submodules=none", "--no-color")
_UNDER_WAY = {
    "MERGE_HEAD": "merge",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
    "rebase-merge": "rebase",
    "rebase-apply": "rebase or am",
    "BISECT_LOG": "bisect",
}


@dataclass(frozen=True)
class State:
    """Where a work tree stands.

    Attributes:
        head: the commit that is checked out.
        branch: the ref that is checked out, None if it is a bare commit.
        series: where the branch `series` is.
        applied: the composed head that the files were made from.
        updating: the head of an update that was cut short.
        refreshed: the head of a refresh that was cut short.
    """

    head: str | None
    branch: str | None
    series: str | None
    applied: str | None
    updating: str | None
    refreshed: str | None


@dataclass(frozen=True)
class Seen:
    """What differs from a tree: files of it, and files that it does not hold."""

    edited: tuple[bytes, ...]
    untracked: tuple[bytes, ...]


@dataclass(frozen=True)
class WorkTree:
    """One work tree, seen safely.

    Attributes:
        root: the folder.
        store: the repository that its commits were composed in.
        own_index: in place of the index that is kept beside it.
    """

    root: Path
    store: Path
    own_index: Path | None = None

    @property
    def git_dir(self) -> Path:
        return self.root / ".git"

    @property
    def repo(self) -> Git:
        """The user's own repository: its refs and its index."""
        return Git(self.git_dir, work_tree=self.root)

    @property
    def index(self) -> Path:
        """The index of our own, kept beside the work tree."""
        return self.own_index or self.root.parent / "worktree.index"

    @contextmanager
    def aside(self) -> Iterator[WorkTree]:
        """The same, with a copy of the index: for looking without the checkout's lock."""
        with tempfile.TemporaryDirectory(prefix="looking-") as folder:
            copy = Path(folder) / "index"
            with suppress(FileNotFoundError):
                shutil.copy2(self.index, copy)
            yield replace(self, own_index=copy)

    def view(self, index: Path | None = None) -> Git:
        """The files, seen through the store; new objects go to the user's repository."""
        objects = self.git_dir / "objects"
        return Git(
            self.store,
            work_tree=self.root,
            index=index or self.index,
            extra={
                "GIT_OBJECT_DIRECTORY": str(objects.absolute()),
                "GIT_ALTERNATE_OBJECT_DIRECTORIES": _quoted(self.store / "objects"),
            },
        )

    # -- looking ---------------------------------------------------------------

    def state(self) -> State | None:
        """Where it stands; None if there is no work tree.

        Raises:
            Fault: the folder is something else, or the user's git is busy in it.
        """
        if self.root.is_symlink():
            raise Fault(
                f"{self.root} is a symbolic link",
                todo="remove it; to have it on another disk, let build/ be the link",
            )
        if not self.root.exists() or (self.root.is_dir() and not any(self.root.iterdir())):
            return None
        marker = self.git_dir / "series-work-tree"
        if not self.git_dir.is_dir() or not marker.is_file():
            raise Fault(
                f"{self.root} is not a work tree that this tool made",
                todo="move it away, and run `nox -s apply` again",
            )
        for name, what in _UNDER_WAY.items():
            if (self.git_dir / name).exists():
                raise Fault(f"a {what} is under way in {self.root}", todo="finish or abort it")
        return self.refs()

    def refs(self) -> State:
        repo = self.repo
        out = repo.run("for-each-ref", "--format=%(refname) %(objectname)", "refs/").decode()
        refs = dict(line.split(" ") for line in out.splitlines())
        head = (self.git_dir / "HEAD").read_text().strip()
        branch = head.removeprefix("ref: ") if head.startswith("ref: ") else None
        return State(
            refs.get(branch) if branch else head,
            branch,
            refs.get(BRANCH),
            refs.get(APPLIED),
            refs.get(UPDATING),
            refs.get(REFRESHED),
        )

    def ready_index(self, tree: str) -> Git:
        """Our index, holding `tree` with what it knew of the files; the view that uses it."""
        view = self.view()
        self.index.with_name(self.index.name + ".lock").unlink(missing_ok=True)
        if not view.attempt("read-tree", "-m", tree).ok:
            self.index.unlink(missing_ok=True)
            view.run("read-tree", tree)
        return view

    def edited(self, tree: str) -> tuple[bytes, ...]:
        """Paths of `tree` whose files are not what it says."""
        view = self.ready_index(tree)
        words = ("-c", "diff.autoRefreshIndex=true", "diff", "--name-only", "-z", *_PLAIN)
        return tuple(path for path in view.run(*words).split(b"\0") if path)

    def look(self, tree: str) -> Seen:
        """What differs from `tree`."""
        edited = self.edited(tree)
        words = ["ls-files", "--others", "--exclude-per-directory=.gitignore", "-z"]
        exclude = self.git_dir / "info" / "exclude"
        if exclude.is_file():
            words.append(f"--exclude-from={exclude.absolute()}")
        others = self.view().run(*words).split(b"\0")
        return Seen(edited, tuple(path for path in others if path))

    def read(self, path: bytes) -> Content | None:
        """A file as it lies there; what is behind a linked folder is not ours."""
        linked = files.link_above(self.root, path)
        return None if linked else files.read(files.under(self.root, path))

    def own_commits(self, state: State) -> list[str]:
        """Commits of the user that no branch but `series` holds, newest first."""
        tips = [tip for tip in (state.head, state.series) if tip]
        others = ["--exclude=series", "--branches", "--tags", "--remotes"]
        known = ["--not", *others] if state.branch != BRANCH else ["--not"]
        known += [state.applied] if state.applied else []
        out = self.repo.run("log", "--format=%h %s", *tips, *known, "--")
        return [show(line) for line in out.splitlines()]

    # -- keeping what is the user's ---------------------------------------------

    def write_tree(
        self, tree: str, seen: Seen, more: Iterable[bytes] = (), largest: int | None = None
    ) -> str:
        """A tree of every file as it lies there; of the ignored ones, those that
        `tree` or `more` name.

        Args:
            largest: how many bytes a file may have; git writes each into the repository.

        Raises:
            Fault: there is a repository inside, a pipe or the like, or a larger file.
        """
        paths = list(dict.fromkeys([*seen.edited, *seen.untracked, *more]))
        if not paths:
            return tree
        for path in paths:
            self._check_file(path, largest)
        draft = self.index.with_name("snapshot.index")
        shutil.copy2(self.index, draft)
        view = self.view(draft)
        # Where a link stands in the place of a folder, what the folder held is gone.
        linked = {path for path in paths if files.link_above(self.root, path)}
        for way, some in (
            (("--force-remove",), linked),
            (
                ("--add", "--remove", "--replace"),
                dict.fromkeys(p for p in paths if p not in linked),
            ),
        ):
            feed = b"".join(path + b"\0" for path in some)
            view.run("update-index", *way, "-z", "--stdin", stdin=feed)
        written = view.text("write-tree")
        draft.unlink()
        return written

    def _check_file(self, path: bytes, largest: int | None) -> None:
        """Stop where git would, with words of our own, or where a file is too large."""
        what = ""
        with suppress(FileNotFoundError, NotADirectoryError):
            where = files.under(self.root, path)
            there = os.lstat(where)
            if not (stat.S_ISLNK(there.st_mode) or stat.S_ISDIR(there.st_mode)):
                files.refuse_special(where, there.st_mode)
            if largest is not None and there.st_size > largest:
                limit = f"a series holds files of up to {largest >> 20}"
                what = f"has {there.st_size >> 20} MiB, and {limit}"
        if path.endswith(b"/"):
            what = "is a repository of its own"
        if what:
            todo = "move it away, or name it in .git/info/exclude there"
            raise Fault(f"{show(path)} in {self.root} {what}", todo=todo)

    def staged(self, *known: str) -> str | None:
        """A tree of what is staged; None if it is one of these trees, or no tree."""
        draft = self.index.with_name("staged.index")
        try:
            shutil.copy2(self.git_dir / "index", draft)
        except FileNotFoundError:
            return None
        wrote = self.view(draft).attempt("write-tree")
        draft.unlink()
        tree = wrote.out.decode().strip()
        return tree if wrote.ok and tree not in known else None

    def back_up(self, state: State, files: str | None, staged: str | None) -> str | None:
        """Keep things of the user's under refs.

        Args:
            state: the branch is kept where it is not the applied head.
            files: a tree of the files.
            staged: a tree of what was staged.

        Returns:
            The first part of the refs; None if there is nothing to keep.
        """
        kept = {}
        who = Identity(project().name, project().email, f"{int(time.time())} +0000")
        parents = [state.head] if state.head else []
        for what, tree in (("files", files), ("staged", staged)):
            if tree is not None:
                message = f"Backup of the work tree ({what})\n".encode()
                kept[what] = self.view().commit_tree(tree, parents, who, message)
        if state.series and state.series != state.applied:
            kept["series"] = state.series
        if state.head and state.head not in (state.series, state.applied):
            kept["head"] = state.head
        if not kept:
            return None
        existing = self.repo.run("for-each-ref", "--format=%(refname)", BACKUP).decode().split()
        number = 1 + max((int(name.split("/")[2]) for name in existing), default=0)
        name = f"{BACKUP}/{number}"
        moves = "".join(f"create {name}/{what} {commit}\n" for what, commit in kept.items())
        self.repo.run("update-ref", "--stdin", stdin=moves.encode())
        return name

    # -- writing -----------------------------------------------------------------

    def announce(self, head: str | None) -> None:
        """Say that a series is being written whose files are those that lie here;
        None takes it back."""
        words = [REFRESHED, head] if head else ["-d", REFRESHED]
        self.repo.run("update-ref", *words)

    def set_refs(self, head: str) -> None:
        """Say that the files are those of `head`, and no update is under way."""
        self._put(self.git_dir / "HEAD", f"ref: {BRANCH}\n")
        moves = [f"update {BRANCH} {head}", f"update {APPLIED} {head}"]
        moves += [f"delete {name}" for name in (UPDATING, REFRESHED)]
        self.repo.run("update-ref", "--stdin", stdin="\n".join(moves).encode() + b"\n")

    def share_boundary(self) -> None:
        """Tell the user's repository where the store's history ends.

        A base that was fetched from git comes without its history. Where the
        user has fetched that themselves, nothing is to be told.
        """
        target = self.git_dir / "shallow"
        ends, known = (
            file.read_text().split() if file.is_file() else []
            for file in (self.store / "shallow", target)
        )
        cut = {end for end in ends if self.repo.resolve(f"{end}^1^{{tree}}") is None}
        if not cut <= set(known):
            self._put(target, "".join(f"{commit}\n" for commit in sorted({*known, *cut})))

    def share_index(self) -> None:
        """Give the user's repository our index, in one rename."""
        draft = self.git_dir / "index.draft"
        shutil.copy2(self.index, draft)
        draft.replace(self.git_dir / "index")

    @staticmethod
    def _put(target: Path, text: str) -> None:
        """Write a file of the repository whole, or not at all."""
        draft = target.with_name(f"{target.name}.draft")
        draft.write_text(text)
        draft.replace(target)


def _quoted(path: Path) -> str:
    """A path in a list of alternates, where `:` would part it."""
    text = str(path.absolute()).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def standing(state: State) -> str | None:
    """What to say where nothing has to move."""
    if state.branch != BRANCH:
        return f"the work tree is on {state.branch or 'no branch'}; `series` is up to date"
    if state.series != state.applied:
        return "the work tree has commits of yours; `nox -s refresh` takes them into the series"
    return None
