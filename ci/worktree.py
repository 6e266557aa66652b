"""build/vllm: a checkout of the composed head, for people to read and edit.

It is a repository of its own, with the store behind it, so that whoever edits
it may use all of git. The tooling never trusts that repository's index,
attributes or excludes: it looks at the files through the store, with an index
of its own that remembers what it wrote. What differs from that is the user's.

Three names say where things stand:

- `refs/heads/series`: the branch that is checked out; the user may commit on it;
- `refs/series/applied`: the composed head that the files were made from;
- `refs/series/updating`: set while files are being written; where a run was
  cut short, the next one finds it and finishes. `refs/series/discarding` is
  set with it where edits are being put aside.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ci import files
from ci.checkpoints import checkpoint
from ci.errors import Fault
from ci.git import Git, Identity
from ci.layout import Layout
from ci.objects import FOLDER, Content, show
from ci.store import ATTRIBUTES
from ci.trees import Raw, changes, list_tree, read_contents

BRANCH = "refs/heads/series"
APPLIED = "refs/series/applied"
UPDATING = "refs/series/updating"
DISCARDING = "refs/series/discarding"
BACKUP = "refs/backup"

_TODO = (
    "take the edits into the series with `nox -s refresh`, "
    "or put them aside with `nox -s apply -- --discard` (a backup is kept)"
)
_SETTINGS = (
    ("core.autocrlf", "false"),
    ("core.eol", "lf"),
    ("core.safecrlf", "false"),
    ("core.quotePath", "false"),
    ("gc.auto", "0"),
)
_UNDER_WAY = {
    "MERGE_HEAD": "merge",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
    "rebase-merge": "rebase",
    "rebase-apply": "rebase or am",
    "BISECT_LOG": "bisect",
}


class Dirty(Fault):
    """The work tree holds edits that an update would overwrite."""


@dataclass(frozen=True)
class State:
    """Where a work tree stands.

    Attributes:
        head: the commit that is checked out.
        branch: the ref that is checked out, None if it is a bare commit.
        series: where the branch `series` is.
        applied: the composed head that the files were made from.
        updating: the head of an update that was cut short.
        discarding: whether that update was to put edits aside.
    """

    head: str | None
    branch: str | None
    series: str | None
    applied: str | None
    updating: str | None
    discarding: bool


@dataclass(frozen=True)
class WorkTree:
    """One work tree, seen safely."""

    layout: Layout
    root: Path

    @classmethod
    def of(cls, layout: Layout) -> WorkTree:
        return cls(layout, layout.work_tree)

    @property
    def git_dir(self) -> Path:
        return self.root / ".git"

    @property
    def repo(self) -> Git:
        """The user's own repository: its refs and its index."""
        return Git(self.git_dir, work_tree=self.root)

    @property
    def index(self) -> Path:
        """The index of our own, kept with the store."""
        return self.layout.store / "worktree.index"

    def view(self, index: Path | None = None) -> Git:
        """The files, seen through the store; new objects go to the user's repository."""
        objects = self.git_dir / "objects"
        return Git(
            self.layout.store,
            work_tree=self.root,
            index=index or self.index,
            extra={
                "GIT_OBJECT_DIRECTORY": str(objects.absolute()),
                "GIT_ALTERNATE_OBJECT_DIRECTORIES": _quoted(self.layout.store / "objects"),
            },
        )

    # -- looking ---------------------------------------------------------------

    def state(self) -> State | None:
        """Where it stands; None if there is no work tree.

        Raises:
            Fault: the folder is something else, or the user's git is busy in it.
        """
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
                raise Fault(
                    f"a {what} is under way in {self.root}",
                    todo="finish or abort it first",
                )
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
            DISCARDING in refs,
        )

    def ready_index(self, tree: str) -> Git:
        """Our index, holding `tree` and fresh stat data; the view that uses it."""
        view = self.view()
        self.index.with_name(self.index.name + ".lock").unlink(missing_ok=True)
        known = view.attempt("diff-index", "--cached", "--quiet", tree, "--")
        if known.status != 0:
            self.index.unlink(missing_ok=True)
            view.run("read-tree", tree)
        view.attempt("update-index", "-q", "--really-refresh")
        return view

    def edited(self, tree: str) -> list[bytes]:
        """Paths of `tree` whose files are not what it says."""
        view = self.ready_index(tree)
        return [p for p in view.run("diff-files", "--name-only", "-z").split(b"\0") if p]

    def untracked(self, tree: str) -> list[bytes]:
        """Files that `tree` does not hold and vLLM's .gitignore does not cover."""
        view = self.ready_index(tree)
        words = ["ls-files", "--others", "--exclude-per-directory=.gitignore", "-z"]
        exclude = self.git_dir / "info" / "exclude"
        if exclude.is_file():
            words.append(f"--exclude-from={exclude.absolute()}")
        return [path for path in view.run(*words).split(b"\0") if path]

    def read(self, path: bytes) -> Content | None:
        """A file as it lies there."""
        return files.read(files.under(self.root, path))

    def own_commits(self, state: State) -> list[str]:
        """Commits of the user that no branch but `series` holds, newest first."""
        tips = [tip for tip in (state.head, state.series) if tip]
        others = ["--exclude=series", "--branches", "--tags", "--remotes"]
        known = ["--not", *others] if state.branch != BRANCH else ["--not"]
        known += [state.applied] if state.applied else []
        out = self.repo.run("log", "--format=%h %s", *tips, *known, "--")
        return [show(line) for line in out.splitlines()]

    # -- keeping what is the user's ---------------------------------------------

    def write_tree(self, tree: str, more: Iterable[bytes] = ()) -> str:
        """A tree of every file as it lies there; of the ignored ones, those that
        `tree` or `more` name.

        Raises:
            Fault: there is a repository inside.
        """
        draft = self.index.with_name("snapshot.index")
        paths = [*self.edited(tree), *self.untracked(tree), *more]
        inner = [path for path in paths if path.endswith(b"/")]
        if inner:
            raise Fault(
                f"{show(inner[0])} in {self.root} is a repository of its own",
                todo="move it away, or name it in .git/info/exclude there",
            )
        shutil.copy2(self.index, draft)
        view = self.view(draft)
        feed = b"".join(path + b"\0" for path in dict.fromkeys(paths))
        view.run("update-index", "--add", "--remove", "-z", "--stdin", stdin=feed)
        written = view.text("write-tree")
        draft.unlink()
        return written

    def staged(self) -> str | None:
        """A tree of what the user has staged; None if it cannot be written."""
        draft = self.index.with_name("staged.index")
        try:
            shutil.copy2(self.git_dir / "index", draft)
        except FileNotFoundError:
            return None
        wrote = self.view(draft).attempt("write-tree")
        draft.unlink()
        return wrote.out.decode().strip() if wrote.ok else None

    def back_up(self, state: State, tree: str, more: Iterable[bytes] = ()) -> str:
        """Keep files, staged files and commits under refs; returns their first part."""
        existing = self.repo.run("for-each-ref", "--format=%(refname)", BACKUP).decode().split()
        number = 1 + max((int(name.split("/")[2]) for name in existing), default=0)
        name = f"{BACKUP}/{number}"
        who = Identity("vLLM n-gram series", "series@ngram.invalid", f"{int(time.time())} +0000")
        parents = [state.head] if state.head else []
        seen = self.write_tree(tree, more)
        kept = self.view().commit_tree(seen, parents, who, b"Backup of the files\n")
        moves = [f"create {name}/files {kept}"]
        if state.series:
            moves.append(f"create {name}/series {state.series}")
        staged = self.staged()
        if staged:
            commit = self.view().commit_tree(staged, parents, who, b"Backup of the index\n")
            moves.append(f"create {name}/staged {commit}")
        self.repo.run("update-ref", "--stdin", stdin="\n".join(moves).encode() + b"\n")
        return name

    # -- writing -----------------------------------------------------------------

    def set_refs(self, head: str) -> None:
        """Say that the files are those of `head`, and no update is under way."""
        self.repo.run("symbolic-ref", "HEAD", BRANCH)
        moves = [f"update {BRANCH} {head}", f"update {APPLIED} {head}"]
        moves += [f"delete {name}" for name in (UPDATING, DISCARDING) if self._has(name)]
        self.repo.run("update-ref", "--stdin", stdin="\n".join(moves).encode() + b"\n")

    def _has(self, ref: str) -> bool:
        return self.repo.resolve(ref) is not None

    def share_boundary(self) -> None:
        """Tell the user's repository where the store's history ends.

        A base that was fetched from git comes without its history. Where the
        user has fetched that themselves, nothing is to be told.
        """
        ends = self.layout.store / "shallow"
        if not ends.is_file():
            return
        target = self.git_dir / "shallow"
        known = set(target.read_text().split()) if target.is_file() else set()
        new = {
            commit
            for commit in ends.read_text().split()
            if commit not in known and self.repo.resolve(f"{commit}^1^{{tree}}") is None
        }
        if new:
            draft = self.git_dir / "shallow.draft"
            draft.write_text("".join(f"{commit}\n" for commit in sorted(known | new)))
            draft.replace(target)

    def share_index(self) -> None:
        """Give the user's repository our index, in one rename."""
        target = self.git_dir / "index"
        draft = self.git_dir / "index.draft"
        shutil.copy2(self.index, draft)
        draft.replace(target)


def _quoted(path: Path) -> str:
    """A path in a list of alternates, where `:` would part it."""
    text = str(path.absolute()).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


# --- making one ----------------------------------------------------------------


def create(layout: Layout, head: str) -> None:
    """Make the work tree aside and put it in place by one rename."""
    for left in layout.build.glob("vllm.making-*"):
        shutil.rmtree(left)
    making = WorkTree(layout, Path(tempfile.mkdtemp(prefix="vllm.making-", dir=layout.build)))
    making.root.chmod(0o777 & ~_umask())
    repo = making.repo
    repo.run("init", "-q", "--template=", cwd=making.root)
    info = making.git_dir / "objects" / "info"
    info.mkdir(exist_ok=True)
    # From build/vllm/.git/objects: a checkout can be moved as a whole.
    (info / "alternates").write_text("../../../store.git/objects\n")
    (making.git_dir / "info").mkdir(exist_ok=True)
    (making.git_dir / "info" / "attributes").write_bytes(ATTRIBUTES)
    for name, value in _SETTINGS:
        repo.run("config", name, value)
    (making.git_dir / "series-work-tree").write_text("made by `nox -s apply`\n")
    checkpoint("work tree: made empty")
    making.index.unlink(missing_ok=True)
    making.view().run("read-tree", "-m", "-u", head)
    checkpoint("work tree: files written")
    making.share_boundary()
    repo.run("symbolic-ref", "HEAD", BRANCH)
    moves = f"update {BRANCH} {head}\nupdate {APPLIED} {head}\n"
    repo.run("update-ref", "--stdin", stdin=moves.encode())
    making.share_index()
    if layout.work_tree.is_dir():
        layout.work_tree.rmdir()
    checkpoint("work tree: before it is put in place")
    making.root.rename(layout.work_tree)
    checkpoint("work tree: in place")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


# --- bringing one forward --------------------------------------------------------


def update(layout: Layout, store: Git, head: str, *, discard: bool = False) -> str | None:
    """Make the work tree that of `head`.

    Args:
        discard: put the user's edits and commits aside, under a backup ref.

    Returns:
        A word on what was kept aside or left alone; None if there is nothing to say.

    Raises:
        Dirty: the user's edits are in the way; lists them.
        Fault: it is no work tree, or the user's git is busy in it.
    """
    tree = WorkTree.of(layout)
    state = tree.state()
    if state is None:
        create(layout, head)
        return None
    if state.applied is None:
        raise Dirty(
            f"{tree.root} does not say which series it was made from",
            todo="move it away, and run `nox -s apply` again",
        )
    tree.share_boundary()
    state = finish(tree, store, state)
    assert state.applied is not None
    blocked = _in_the_way(tree, store, state.applied, head)
    if discard:
        kept = tree.back_up(state, state.applied, blocked)
        _move(tree, store, state.applied, head, force=True)
        return f"what was there is kept as {kept} (git log --all in {tree.root})"
    if state.applied == head:
        return standing(state)
    commits = tree.own_commits(state)
    edits = tree.edited(state.applied)
    if (commits or edits) and _same_files(tree, store, state.applied, head):
        # What the user has is what the series has become: after a refresh, for one.
        kept = tree.back_up(state, head)
        _adopt(tree, head)
        return f"your commits and what was staged are kept as {kept}"
    _refuse(tree, state, commits, edits, blocked)
    _move(tree, store, state.applied, head, force=False)
    if state.branch not in (BRANCH, None):
        return f"the work tree was on {state.branch}, which is kept; it is on `series` now"
    return None


def standing(state: State) -> str | None:
    """What to say where nothing has to move."""
    if state.branch != BRANCH:
        return f"the work tree is on {state.branch or 'no branch'}; `series` is up to date"
    if state.series != state.applied:
        return "the work tree has commits of yours; `nox -s refresh` takes them into the series"
    return None


def _refuse(
    tree: WorkTree, state: State, commits: list[str], edits: list[bytes], blocked: list[bytes]
) -> None:
    """Stop where something of the user's would be lost."""
    assert state.applied is not None
    if commits:
        raise Dirty(f"{tree.root} has commits of yours", todo=_TODO, details=tuple(commits))
    listed = sorted({*edits, *_staged(tree, state.applied), *blocked})
    if listed:
        raise Dirty(
            f"{tree.root} has {len(listed)} edited file{'s' * (len(listed) > 1)}",
            todo=_TODO,
            details=tuple(show(path) for path in listed[:50]),
        )


def _same_files(tree: WorkTree, store: Git, applied: str, head: str) -> bool:
    gone = [raw.path for raw in changes(store, applied, head) if raw.new is None]
    return not any(tree.read(path) for path in gone) and not tree.edited(head)


def _adopt(tree: WorkTree, head: str) -> None:
    """Say that the files are those of `head`, which they are already."""
    checkpoint("work tree: before it is adopted")
    tree.ready_index(head)
    tree.share_index()
    checkpoint("work tree: index adopted")
    tree.set_refs(head)


def _staged(tree: WorkTree, applied: str) -> list[bytes]:
    index = tree.git_dir / "index"
    if not index.exists():
        return []
    view = tree.view(index)
    # The user's HEAD may be elsewhere; what counts is what we wrote.
    out = view.run("diff-index", "--cached", "--name-only", "-z", applied, "--")
    return [path for path in out.split(b"\0") if path]


def _in_the_way(tree: WorkTree, store: Git, applied: str, head: str) -> list[bytes]:
    """Files that nobody tracks, where the update has to put a file or a folder."""
    moved = changes(store, applied, head)
    fresh = [raw for raw in moved if raw.old is None and raw.new]
    going = {raw.path for raw in moved if raw.new is None}
    contents = read_contents(store, (raw.new for raw in fresh if raw.new))
    found = []
    for raw in fresh:
        assert raw.new is not None
        there = tree.read(raw.path)
        if there is not None and there != contents[raw.new]:
            found.append(raw.path)
        for above in _folders(raw.path):
            there = tree.read(above)
            if there is not None and there.mode != FOLDER and above not in going:
                found.append(above)
    return found


def _folders(path: bytes) -> list[bytes]:
    parts = path.split(b"/")
    return [b"/".join(parts[:depth]) for depth in range(1, len(parts))]


def _move(tree: WorkTree, store: Git, old: str, head: str, *, force: bool) -> None:
    """Write the files that differ; cut short, `finish` does the rest."""
    moves = f"update {UPDATING} {head}\n" + (f"update {DISCARDING} {head}\n" if force else "")
    tree.repo.run("update-ref", "--stdin", stdin=moves.encode())
    checkpoint("work tree: update announced")
    if force:
        _overwrite(tree, [*changes(store, old, head), *_edits(tree, old, head)], head)
    else:
        view = tree.ready_index(old)
        for raw in changes(store, old, head):
            if raw.old is None:  # equal to what comes, as `_in_the_way` has seen
                files.remove(tree.root, raw.path)
        view.run("read-tree", "-m", "-u", old, head)
    checkpoint("work tree: files moved")
    tree.share_index()
    checkpoint("work tree: index moved")
    tree.set_refs(head)
    checkpoint("work tree: refs moved")


def _edits(tree: WorkTree, old: str, head: str) -> list[Raw]:
    """The user's edits as changes to be made good."""
    entries = list_tree(tree.view(), head)
    return [Raw(path, None, entries.get(path)) for path in tree.edited(old)]


def _overwrite(tree: WorkTree, moved: Iterable[Raw], head: str) -> None:
    """Make these paths what `head` says, whatever lies there."""
    listed = list(moved)
    for raw in listed:
        if raw.new is None or tree.read(raw.path) is not None:
            files.remove(tree.root, raw.path)
    checkpoint("work tree: old files dropped")
    tree.index.unlink(missing_ok=True)
    view = tree.ready_index(head)
    feed = b"".join(raw.path + b"\0" for raw in listed if raw.new is not None)
    view.run("checkout-index", "-u", "-z", "--stdin", stdin=feed)


def finish(tree: WorkTree, store: Git, state: State) -> State:
    """Complete an update that was cut short.

    Raises:
        Dirty: a file is neither what it was nor what it was to become.
    """
    target, applied = state.updating, state.applied
    if target is None or applied is None:
        return state
    moved = changes(store, applied, target)
    if state.discarding:
        tree.back_up(state, applied, _in_the_way(tree, store, applied, target))
        moved += _edits(tree, applied, target)
    elif foreign := _foreign(tree, store, moved):
        raise Dirty(
            f"an update of {tree.root} was cut short, and files were edited since",
            todo="move your versions away, and run `nox -s apply` again",
            details=tuple(show(path) for path in foreign),
        )
    for name in ("index.lock", "HEAD.lock"):
        (tree.git_dir / name).unlink(missing_ok=True)
    _overwrite(tree, moved, target)
    tree.share_index()
    tree.set_refs(target)
    return tree.refs()


def _foreign(tree: WorkTree, store: Git, moved: Iterable[Raw]) -> list[bytes]:
    """Files that are neither old, nor new, nor the start of the new."""
    listed = list(moved)
    entries = [entry for raw in listed for entry in (raw.old, raw.new) if entry]
    contents = read_contents(store, entries)
    found = []
    for raw in listed:
        there = tree.read(raw.path)
        old = contents[raw.old] if raw.old else None
        new = contents[raw.new] if raw.new else None
        if there in (None, old, new):
            continue
        assert there is not None
        if there.mode == FOLDER:
            # A file may have given way to a folder of its name, or the reverse.
            empty = files.is_empty_folder(files.under(tree.root, raw.path))
            if new is not None and not empty:
                found.append(raw.path)
        elif new is None or not new.data.startswith(there.data):
            found.append(raw.path)
    return found
