"""Making the work tree, and bringing it from one composed head to the next.

Nothing of the user's is overwritten: an update looks first, and refuses where
something would be lost, or keeps it under a backup ref where that was asked
for. It says what it is about to do before it writes the first file, so that
the next run can finish one that was cut short.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from ci.core import files
from ci.core.checkpoints import checkpoint
from ci.core.content import FOLDER, show
from ci.core.errors import Fault, listed
from ci.git.repo import Git
from ci.git.store import repository_over
from ci.git.trees import Raw, changes, list_tree, read_contents
from ci.worktree.tree import APPLIED, BRANCH, UPDATING, State, WorkTree, standing

_OR_DISCARD = "; or put it aside with `nox -s apply -- --discard` (a backup is kept)"


class Dirty(Fault):
    """The work tree holds edits that an update would overwrite."""


# --- making one ----------------------------------------------------------------


def create(tree: WorkTree, head: str) -> None:
    """Make the work tree aside and put it in place by one rename."""
    build = tree.root.parent
    build.mkdir(parents=True, exist_ok=True)
    for left in build.glob("vllm.making-*"):
        shutil.rmtree(left)
    making = WorkTree(Path(tempfile.mkdtemp(prefix="vllm.making-", dir=build)), tree.store)
    making.root.chmod(0o777 & ~_umask())
    repo = repository_over(tree.store, making.root, "series")
    (making.git_dir / "series-work-tree").write_text("made by `nox -s apply`\n")
    checkpoint("work tree: made empty")
    making.index.unlink(missing_ok=True)
    making.view().run("read-tree", "-m", "-u", head)
    checkpoint("work tree: files written")
    making.share_boundary()
    moves = f"update {BRANCH} {head}\nupdate {APPLIED} {head}\n"
    repo.run("update-ref", "--stdin", stdin=moves.encode())
    making.share_index()
    if tree.root.is_dir():
        tree.root.rmdir()
    checkpoint("work tree: before it is put in place")
    making.root.rename(tree.root)
    checkpoint("work tree: in place")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


# --- bringing one forward --------------------------------------------------------


def update(tree: WorkTree, store: Git, head: str, *, discard: bool = False) -> str | None:
    """Make the work tree that of `head`.

    Args:
        discard: put the user's edits and commits aside, under a backup ref.

    Returns:
        A word on what was kept aside or left alone; None if there is nothing to say.

    Raises:
        Dirty: the user's edits are in the way; lists them.
        Fault: it is no work tree, or the user's git is busy in it.
    """
    state = tree.state()
    if state is None:
        create(tree, head)
        return None
    applied = _origin(tree, store, state, head)
    tree.share_boundary()
    if discard:
        return _discard(tree, store, state, applied, head)
    state = finish(tree, store, state)
    applied = state.applied or applied
    if state.refreshed == head:
        # A refresh has written the series: the files are the head's, but for
        # what was edited since if it was cut short. The head may be the old one
        # still, where commits of the user's change nothing in the end.
        return _adopt(tree, store, state, head)
    if applied == head:
        return standing(state)
    moved = _free_to_move(tree, store, state, head)
    if moved is None:
        return _adopt(tree, store, state, head)
    _write(tree, [raw.path for raw in moved], head)
    return _switched(state)


def check(tree: WorkTree, store: Git, head: str) -> None:
    """See that an update to `head` would go through, before anything else is written.

    Raises:
        Dirty, Fault: as `update`.
    """
    state = tree.state()
    if state is None:
        return
    _origin(tree, store, state, head)
    state = finish(tree, store, state)
    if head not in (state.applied, state.refreshed):
        _free_to_move(tree, store, state, head)


def _origin(tree: WorkTree, store: Git, state: State, head: str) -> str:
    """The head that the files were made from.

    Raises:
        Dirty: nobody can tell the user's files from the series'.
    """
    if state.applied is None:
        lost = f"{tree.root} does not say which series it was made from"
    elif state.applied != head and store.resolve(f"{state.applied}^{{tree}}") is None:
        lost = f"the series that {tree.root} was made from is not in the store any more"
    else:
        return state.applied
    raise Dirty(lost, todo="move it away, and run `nox -s apply` again")


def _free_to_move(tree: WorkTree, store: Git, state: State, head: str) -> list[Raw] | None:
    """What has to change; None where what the user has is what the series has
    become, as after a refresh.

    Raises:
        Dirty: something of the user's would be lost.
    """
    assert state.applied is not None
    commits = tree.own_commits(state)
    edited = {*tree.edited(state.applied), *_staged(tree, state.applied)}
    moved = changes(store, state.applied, head)
    if (commits or edited) and _same_files(tree, moved, head):
        return None
    _refuse(tree, state, commits, edited, {*_in_the_way(tree, store, moved)})
    return moved


def migration_steps(state: State, commits: list[str], run: str) -> str:
    """How what the user has in a work tree gets onto another series.

    Args:
        commits: the user's.
        run: what brings the work tree there.
    """
    if not commits:
        elsewhere = state.branch != BRANCH and state.head != state.applied
        switch = "`git switch series`, " if elsewhere else ""
        return f"there, `git stash -u` your edits, {switch}{run}, and `git stash pop`"
    old = (state.applied or "")[:12]
    return (
        f"there, `git stash -u` what is not committed, `git branch mine`, `git reset --keep {old}`,"
        f" {run}, and `git cherry-pick {old}..mine` (and `git stash pop`)"
    )


def _refuse(
    tree: WorkTree, state: State, commits: list[str], edited: set[bytes], in_the_way: set[bytes]
) -> None:
    """Stop where something of the user's would be lost."""
    way = migration_steps(state, commits, "run this again") + _OR_DISCARD
    paths = [show(path) for path in sorted(edited | in_the_way)]
    many = f"{len(paths)} {{}} file{'s' * (len(paths) > 1)}"
    if commits:
        what = "commits of yours"
    elif edited:
        what = many.format("edited")
    elif in_the_way:
        raise Dirty(
            f"{many.format('untracked')} in {tree.root} would be overwritten",
            todo="move them away" + _OR_DISCARD,
            details=listed(paths),
        )
    else:
        return
    raise Dirty(
        f"the series has changed, and {tree.root} has {what}",
        todo=way,
        details=listed(commits or paths),
    )


def _same_files(tree: WorkTree, moved: Iterable[Raw], head: str) -> bool:
    gone = [tree.read(raw.path) for raw in moved if raw.new is None]
    # Where a file went, a folder may be.
    return all(there is None or there.mode == FOLDER for there in gone) and not tree.edited(head)


def _adopt(tree: WorkTree, store: Git, state: State, head: str) -> str | None:
    """Say that the files are those of `head`, which they are already."""
    assert state.applied is not None
    known = [store.tree_of(state.applied), store.tree_of(head)]
    kept = tree.back_up(state, None, tree.staged(*known))
    checkpoint("work tree: before it is adopted")
    tree.ready_index(head)
    tree.share_index()
    checkpoint("work tree: index adopted")
    tree.set_refs(head)
    backup = f"your commits and what was staged are kept as {kept}" if kept else None
    return "\n".join(note for note in (_switched(state), backup) if note) or None


def _switched(state: State) -> str | None:
    """A word where the user was elsewhere than on the branch that is checked out now."""
    if state.branch == BRANCH:
        return None
    was = f"{state.branch}, which is kept" if state.branch else "no branch"
    return f"the work tree was on {was}; it is on `series` now"


def _discard(tree: WorkTree, store: Git, state: State, applied: str, head: str) -> str | None:
    """Make everything that of `head`, with what was there under a backup ref.

    Cut short, it can be done again: what is left then is kept once more.
    """
    seen = tree.look(applied)
    entries = list_tree(store, head)
    blocked = [path for path in seen.edited if path in entries and _own_folder(tree, path, ())]
    if blocked:
        raise Dirty(
            f"{tree.root} has a folder where the series has a file",
            todo="move it away, and run this again",
            details=listed([show(path) for path in blocked]),
        )
    moved = [raw for to in {state.updating or head, head} for raw in changes(store, applied, to)]
    old = store.tree_of(applied)
    there = tree.write_tree(old, seen, _in_the_way(tree, store, moved))
    kept = tree.back_up(state, None if there == old else there, tree.staged(old))
    # Of the files that are not the series', those that were committed or staged go.
    index = tree.git_dir / "index"
    held = tree.view(index).run("ls-files", "-z").split(b"\0") if index.exists() else []
    own = {*held} & {*seen.untracked}
    _write(tree, {*(raw.path for raw in moved), *seen.edited, *own}, head, "discard", "discarded")
    return f"what was there is kept as {kept} (`git log --all` shows it)" if kept else None


def _staged(tree: WorkTree, applied: str) -> list[bytes]:
    index = tree.git_dir / "index"
    if not index.exists():
        return []
    view = tree.view(index)
    # The user's HEAD may be elsewhere; what counts is what we wrote.
    out = view.run("diff-index", "--cached", "--name-only", "-z", applied, "--")
    return [path for path in out.split(b"\0") if path]


def _in_the_way(tree: WorkTree, store: Git, moved: Sequence[Raw]) -> list[bytes]:
    """Files that nobody tracks, where the update has to put a file or a folder."""
    fresh = {raw.path: raw.new for raw in moved if raw.old is None and raw.new}
    going = {raw.path for raw in moved if raw.new is None}
    contents = read_contents(store, fresh.values())
    found = []
    for path, entry in fresh.items():
        there = tree.read(path)
        blocked = there not in (None, contents[entry])
        if there is not None and there.mode == FOLDER:
            blocked = _own_folder(tree, path, going)
        if blocked:
            found.append(path)
        for above in files.folders(path):
            there = tree.read(above)
            if there is not None and there.mode != FOLDER and above not in going:
                found.append(above)
    return found


def _own_folder(tree: WorkTree, path: bytes, going: Collection[bytes]) -> bool:
    """Whether there is a folder at `path` that holds more than files that are to go."""
    there = tree.read(path)
    if there is None or there.mode != FOLDER:
        return False
    held = list(files.below(tree.root, path))
    empty = files.is_empty_folder(files.under(tree.root, path))
    return any(name not in going for name in held) if held else not empty


def _write(
    tree: WorkTree, paths: Iterable[bytes], head: str, what: str = "update", done: str = "moved"
) -> None:
    """Make these paths what `head` says, whatever lies there; cut short,
    `finish` does the rest.

    Args:
        what, done: what this is called at its checkpoints.
    """
    tree.repo.run("update-ref", UPDATING, head)
    checkpoint(f"work tree: {what} announced")
    view = tree.ready_index(head)
    entries = list_tree(view, head)
    touched = list(dict.fromkeys(paths))
    for path in touched:
        if link := files.link_above(tree.root, path):
            files.unlink(tree.root, link)
        drop = files.unlink if path in entries else files.remove
        drop(tree.root, path)
    for path in touched:
        where = files.under(tree.root, path)
        if path in entries and files.is_empty_folder(where):
            Path(os.fsdecode(where)).rmdir()
    checkpoint("work tree: old files dropped")
    feed = b"".join(path + b"\0" for path in touched if path in entries)
    view.run("checkout-index", "-u", "-z", "--stdin", stdin=feed)
    checkpoint(f"work tree: files {done}")
    tree.share_index()
    checkpoint("work tree: index moved")
    tree.set_refs(head)
    checkpoint("work tree: refs moved")


def finish(tree: WorkTree, store: Git, state: State) -> State:
    """Complete an update that was cut short.

    Raises:
        Dirty: a file is neither what it was nor what it was to become.
    """
    target, applied = state.updating, state.applied
    if target is None or applied is None:
        return state
    moved = changes(store, applied, target)
    if foreign := _foreign(tree, store, moved):
        raise Dirty(
            f"an update of {tree.root} was cut short, and files were edited since",
            todo="move your versions away, and run `nox -s apply` again" + _OR_DISCARD,
            details=listed([show(path) for path in foreign]),
        )
    for name in ("index.lock", "HEAD.lock"):
        (tree.git_dir / name).unlink(missing_ok=True)
    _write(tree, [raw.path for raw in moved], target)
    return tree.refs()


def _foreign(tree: WorkTree, store: Git, moved: Sequence[Raw]) -> list[bytes]:
    """Files that are neither old, nor new, nor the start of the new."""
    contents = read_contents(store, [e for raw in moved for e in (raw.old, raw.new) if e])
    found = []
    for raw in moved:
        if link := files.link_above(tree.root, raw.path):
            found.append(link)
            continue
        there = tree.read(raw.path)
        old, new = (contents[entry] if entry else None for entry in (raw.old, raw.new))
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
