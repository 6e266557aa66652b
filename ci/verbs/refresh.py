"""`nox -s refresh`: edits of build/vllm → the series.

What the user did is read as steps: each commit, then what is not committed.
Each step is taken into a draft of the series (see `ci.absorb`), the draft is
composed, exported and composed again, and only if that gives the very files
that lie in the work tree is anything written.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ci.core.checkpoints import checkpoint
from ci.core.content import Content
from ci.core.errors import Fault, listed
from ci.core.layout import Layout
from ci.core.progress import say
from ci.core.runlock import alone
from ci.git.repo import Git, GitError
from ci.git.store import is_damaged, open_store, sweep
from ci.pinned.pin import load_pin
from ci.series import compose as composing
from ci.series import lock as locking
from ci.series.base import open_base, pinned_lock
from ci.series.compose import BaseTree, Composed, Planned
from ci.series.export import canonicalize
from ci.series.kept import not_kept
from ci.series.model import SeriesFiles, Topic, read_files, series_paths
from ci.series.patch import PatchFile
from ci.series.write import changed, recover, write_series
from ci.worktree import checkout
from ci.worktree.applied import mend, publish
from ci.worktree.draft import Draft, Routed
from ci.worktree.edits import take_all
from ci.worktree.tree import State, WorkTree


def options(parser: argparse.ArgumentParser) -> None:
    """The verb's options."""
    parser.add_argument("--to", metavar="NAME", help="the patch for what has no single home")
    parser.add_argument(
        "--new", metavar="TITLE", help="make what is not committed a new patch of this title"
    )
    parser.add_argument("--topic", help="the topic of new patches (default: the last patch's)")
    parser.add_argument("--dry-run", action="store_true", help="show where each edit would go")
    parser.add_argument(
        "--drop-empty", action="store_true", help="take out patches that nothing is left of"
    )


@dataclass(frozen=True)
class Refreshed:
    """What a refresh did, or would do.

    Attributes:
        routed: where each edit went, with the names of the patches.
        written: the files of the series that changed.
        remarks: what else the user should know.
    """

    routed: tuple[tuple[Routed, str], ...]
    written: tuple[str, ...]
    note: str | None = None
    remarks: tuple[str, ...] = ()


# --- the new series ----------------------------------------------------------------


def _planned(draft: Draft, kept: Sequence[int]) -> list[Planned]:
    """The draft as something that can be composed."""
    planned = []
    for index in kept:
        one = draft.patches[index]
        diffs: dict[bytes, Content | None] = {
            path: versions[index + 1]
            for path, versions in draft.versions.items()
            if versions[index] != versions[index + 1]
        }
        diffs.update({p: c for p, (owner, c) in draft.overlay.items() if owner == index})
        parsed = PatchFile(one.message, one.author, one.date, ())
        planned.append(Planned(one.entry, parsed, diffs, {}))
    return planned


def _kept(draft: Draft, drop_empty: bool) -> list[int]:
    """The patches that change something.

    Raises:
        Fault: one does not any more, and that was not asked for.
    """
    full = {i for path in draft.versions for i in draft.touching(path)}
    full |= {owner for owner, _ in draft.overlay.values()}
    empty = [i for i in range(len(draft.patches)) if i not in full]
    if empty and not drop_empty:
        raise Fault(
            f"nothing would be left of `{draft.patches[empty[0]].message.subject}`",
            todo="drop such patches with `nox -s refresh -- --drop-empty`",
        )
    return [i for i in range(len(draft.patches)) if i in full]


def series_of(
    store: Git, base: BaseTree, draft: Draft, topics: Sequence[Topic], drop_empty: bool
) -> tuple[SeriesFiles, Composed]:
    """Compose the draft, export it, and compose what was exported."""
    planned = _planned(draft, _kept(draft, drop_empty))
    return canonicalize(store, base, planned, topics)


# --- the verb ----------------------------------------------------------------------


def refresh(layout: Layout, args: argparse.Namespace) -> Refreshed:
    """Refresh, with the checkout's lock held.

    Raises:
        Fault: an edit has no single home, or another rule is broken; nothing
            has changed then.
    """
    if args.to is not None and args.new is not None:
        raise Fault("--to and --new do not go together", todo="choose one")
    if recover(layout):
        say("finished a refresh that was cut short")
    try:
        return _refresh(layout, args)
    except GitError as fault:
        if not is_damaged(layout.store):
            raise
        mend(layout, fault)
        return _refresh(layout, args)


def _refresh(layout: Layout, args: argparse.Namespace) -> Refreshed:
    files = read_files(layout)
    pin = load_pin(layout.pin)
    locking.check_inputs(locking.load_lock(layout), files, pin.base_tree)
    store = open_store(layout.store)
    base = open_base(store, layout.downloads, pin)
    sweep(layout.store, layout.work_tree)
    planned = composing.plan(store, base, files)
    composed = composing.compose(store, base, files, planned)
    tree = WorkTree.of(layout)
    state = tree.state()
    if state is not None and state.applied != composed.head == state.refreshed:
        say("finished a refresh that was cut short")
        publish(layout, files, composed)
    state = _ready(tree, store, composed)
    taken = take_all(store, tree, state, planned, composed, files.series, args)
    draft = taken.draft
    reworded = [] if taken.rewritten else _reworded(draft, planned)
    told = Refreshed(_told(draft), (), None, (*reworded, *taken.remarks))
    if not (draft.routed or reworded or taken.rewritten) and len(draft.patches) == len(planned):
        return told
    if draft.homeless and not args.dry_run:
        raise _homeless(draft)
    if draft.homeless:
        return told
    new, again = series_of(store, base, draft, files.series.topics, args.drop_empty)
    if again.tree != taken.tree:
        raise AssertionError("the new series does not give the files of the work tree")
    lock = pinned_lock(store, layout.downloads, pin, new, again)
    if args.dry_run:
        return told
    tree.announce(again.head)
    try:
        written = write_series(layout, new, lock)
    except (OSError, Fault):
        tree.announce(None)
        raise
    checkpoint("refresh: series written")
    if read_files(layout) != new:
        raise AssertionError("the series on disk is not the one that was written")
    note = publish(layout, new, again)
    lost = [f"{path} {why}" for path, why in not_kept(layout.root, series_paths(layout, new))]
    remarks = (*told.remarks, *lost)
    return replace(told, written=tuple(written), note=note, remarks=remarks)


def _ready(tree: WorkTree, store: Git, composed: Composed) -> State:
    """The state of a work tree that was made from the series as it lies there."""
    state = tree.state()
    if state is None:
        raise Fault(f"there is no work tree at {tree.root}", todo="`nox -s apply` makes it")
    if state.applied is None:
        raise Fault(
            f"{tree.root} does not say which series it was made from",
            todo="move it away, and run `nox -s apply`",
        )
    state = checkout.finish(tree, store, state)
    if state.applied != composed.head:
        raise Fault(
            f"{tree.root} was made from another series than the one that lies there now",
            todo=checkout.way_over(state, tree.own_commits(state), "run `nox -s apply`"),
        )
    return state


def _reworded(draft: Draft, planned: Sequence[Planned]) -> list[str]:
    """The patches whose message an amend! or squash! commit changed, a line each."""
    return [
        f"{number:04d} {patch.message.subject} (reworded)"
        for number, (one, patch) in enumerate(zip(planned, draft.patches, strict=False), 1)
        if patch.message != one.parsed.message
    ]


def _told(draft: Draft) -> tuple[tuple[Routed, str], ...]:
    return tuple(
        (one, "" if one.home is None else draft.patches[one.home].message.subject)
        for one in draft.routed
    )


def _homeless(draft: Draft) -> Fault:
    lines = [f"{one.what}: {one.why}" for one in draft.homeless]
    return Fault(
        f"{len(lines)} edit{'s' * (len(lines) > 1)} in build/vllm ha"
        f"{'ve' if len(lines) > 1 else 's'} no single home in the series",
        todo='route with `nox -s refresh -- --to NAME` or `-- --new "title"`',
        details=listed(lines),
    )


def run(layout: Layout, args: argparse.Namespace) -> int:
    """The verb."""
    with alone(layout.build, "refresh"):
        done = refresh(layout, args)
    for routed, subject in done.routed:
        where = f"→ {routed.home + 1:04d} {subject}" if routed.home is not None else "→ ?"
        print(f"{routed.what} {where}" + (f" ({routed.why})" if routed.why else ""))
    for remark in done.remarks:
        print(remark)
    if not (done.routed or done.written or done.note or done.remarks):
        print("nothing to refresh")
    for line in changed(layout, done.written):
        print(line)
    if done.note:
        print(done.note)
    return 0
