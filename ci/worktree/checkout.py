"""Making build/vllm, and bringing it from one composed head to the next.

Nothing of the user's is overwritten: an update looks first, and refuses where
something would be lost, or keeps it under a backup ref where that was asked
for. It says what it is about to do before it writes the first file, so that
the next run can finish one that was cut short.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from ci.core import files
from ci.core.checkpoints import checkpoint
from ci.core.content import FOLDER, show
from ci.core.errors import Fault, listed
from ci.core.layout import Layout
from ci.git.repo import Git
from ci.git.store import repository_over
from ci.git.trees import Raw, changes, list_tree, read_contents
from ci.worktree.tree import APPLIED, BRANCH, DISCARDING, UPDATING, Seen, State, WorkTree, standing

_OR_DISCARD = "; or put it aside with `nox -s apply -- --discard` (a backup is kept)"


class Dirty(Fault):
    """The work tree holds edits that an update would overwrite."""


# --- making one ----------------------------------------------------------------


def create(layout: Layout, head: str) -> None:
    """Make the work tree aside and put it in place by one rename."""
    for left in layout.build.glob("vllm.making-*"):
        shutil.rmtree(left)
    making = WorkTree(layout, Path(tempfile.mkdtemp(prefix="vllm.making-", dir=layout.build)))
    making.root.chmod(0o777 & ~_umask())
    repo = repository_over(layout.store, making.root, "series")
    (making.git_dir / "series-work-tree").write_text("made by `nox -s apply`\n")
    checkpoint("work tree: made empty")
    making.index.unlink(missing_ok=True)
    making.view().run("read-tree", "-m", "-u", head)
    checkpoint("work tree: files written")
    making.share_boundary()
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
    _check_origin(tree, store, state, head)
    tree.share_boundary()
    state = finish(tree, store, state)
    assert state.applied is not None
    if discard:
        return _discard(tree, store, state, head)
    if state.refreshed == head:
        # A refresh has written the series: the files are the head's, but for
        # what was edited since if it was cut short. The head may be the old one
        # still, where commits of the user's change nothing in the end.
        return _adopt(tree, store, state, head)
    if state.applied == head:
        return standing(state)
    moved = _free_to_move(tree, store, state, head)
    if moved is None:
        return _adopt(tree, store, state, head)
    _move(tree, state.applied, head, moved)
    return _switched(state)


def check(layout: Layout, store: Git, head: str) -> None:
    """See that an update to `head` would go through, before anything else is written.

    Raises:
        Dirty, Fault: as `update`.
    """
    tree = WorkTree.of(layout)
    state = tree.state()
    if state is None:
        return
    _check_origin(tree, store, state, head)
    state = finish(tree, store, state)
    if head not in (state.applied, state.refreshed):
        _free_to_move(tree, store, state, head)


def _free_to_move(tree: WorkTree, store: Git, state: State, head: str) -> list[Raw] | None:
    """What has to change; None where what the user has is what the series has
    become, as after a refresh.

    Raises:
        Dirty: something of the user's would be lost.
    """
    assert state.applied is not None
    commits = tree.own_commits(state)
    edited = {*tree.edited(state.applied), *_staged(tree, state.applied)}
    if (commits or edited) and _same_files(tree, store, state.applied, head):
        return None
    moved = changes(store, state.applied, head)
    _refuse(tree, state, commits, edited, {*_in_the_way(tree, store, moved)})
    return moved


def _check_origin(tree: WorkTree, store: Git, state: State, head: str) -> None:
    """Stop where nobody can tell the user's files from the series'."""
    if state.applied is None:
        raise Dirty(
            f"{tree.root} does not say which series it was made from",
            todo="move it away, and run `nox -s apply` again",
        )
    if state.applied != head and store.resolve(f"{state.applied}^{{tree}}") is None:
        raise Dirty(
            f"the series that {tree.root} was made from is not in the store any more",
            todo="move it away, and run `nox -s apply` again",
        )


def way_over(state: State, commits: list[str], run: str) -> str:
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
    way = way_over(state, commits, "run this again") + _OR_DISCARD
    if commits:
        raise Dirty(
            f"the series has changed, and {tree.root} has commits of yours",
            todo=way,
            details=listed(commits),
        )
    paths = listed([show(path) for path in sorted(edited | in_the_way)])
    count = len(edited | in_the_way)
    if edited:
        what = f"{count} edited file{'s' * (count > 1)}"
        raise Dirty(f"the series has changed, and {tree.root} has {what}", todo=way, details=paths)
    if in_the_way:
        what = f"{count} file{'s' * (count > 1)} of yours where the series has its own"
        raise Dirty(f"{tree.root} has {what}", todo="move them away" + _OR_DISCARD, details=paths)


def _same_files(tree: WorkTree, store: Git, applied: str, head: str) -> bool:
    gone = [tree.read(raw.path) for raw in changes(store, applied, head) if raw.new is None]
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


def _discard(tree: WorkTree, store: Git, state: State, head: str) -> str | None:
    """Make everything that of `head`, with what was there under a backup ref."""
    assert state.applied is not None
    seen = tree.look(state.applied)
    moved = changes(store, state.applied, head)
    kept = _keep(tree, store, state, seen, moved)
    moves = f"update {UPDATING} {head}\nupdate {DISCARDING} {head}\n"
    tree.repo.run("update-ref", "--stdin", stdin=moves.encode())
    checkpoint("work tree: discard announced")
    _overwrite(tree, [*moved, *_edits(tree, seen, head)], head)
    checkpoint("work tree: files discarded")
    tree.share_index()
    tree.set_refs(head)
    return f"what was there is kept as {kept} (`git log --all` shows it)" if kept else None


def _keep(tree: WorkTree, store: Git, state: State, seen: Seen, moved: Iterable[Raw]) -> str | None:
    assert state.applied is not None
    applied = store.tree_of(state.applied)
    there = tree.write_tree(applied, seen, _in_the_way(tree, store, moved))
    return tree.back_up(state, None if there == applied else there, tree.staged(applied))


def _staged(tree: WorkTree, applied: str) -> list[bytes]:
    index = tree.git_dir / "index"
    if not index.exists():
        return []
    view = tree.view(index)
    # The user's HEAD may be elsewhere; what counts is what we wrote.
    out = view.run("diff-index", "--cached", "--name-only", "-z", applied, "--")
    return [path for path in out.split(b"\0") if path]


def _in_the_way(tree: WorkTree, store: Git, moved: Iterable[Raw]) -> list[bytes]:
    """Files that nobody tracks, where the update has to put a file or a folder."""
    listed = list(moved)
    fresh = [raw for raw in listed if raw.old is None and raw.new]
    going = {raw.path for raw in listed if raw.new is None}
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


def _move(tree: WorkTree, old: str, head: str, moved: Iterable[Raw]) -> None:
    """Write the files that differ; cut short, `finish` does the rest."""
    tree.repo.run("update-ref", UPDATING, head)
    checkpoint("work tree: update announced")
    for raw in moved:
        if raw.old is None:  # equal to what comes, as `_in_the_way` has seen
            files.remove(tree.root, raw.path)
    checkpoint("work tree: the way cleared")
    tree.view().run("read-tree", "-m", "-u", old, head)
    checkpoint("work tree: files moved")
    tree.share_index()
    checkpoint("work tree: index moved")
    tree.set_refs(head)
    checkpoint("work tree: refs moved")


def _edits(tree: WorkTree, seen: Seen, head: str) -> list[Raw]:
    """The user's edits as changes to be made good: files that differ, and new
    ones that were committed or staged. Files that git does not track stay."""
    entries = list_tree(tree.view(), head)
    index = tree.git_dir / "index"
    held = tree.view(index).run("ls-files", "-z").split(b"\0") if index.exists() else []
    new = {*held} & {*seen.untracked}
    return [Raw(path, None, entries.get(path)) for path in (*seen.edited, *sorted(new))]


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
        seen = tree.look(applied)
        _keep(tree, store, state, seen, moved)
        moved += _edits(tree, seen, target)
    elif foreign := _foreign(tree, store, moved):
        raise Dirty(
            f"an update of {tree.root} was cut short, and files were edited since",
            todo="move your versions away, and run `nox -s apply` again",
            details=listed([show(path) for path in foreign]),
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
