"""`nox -s refresh`: edits of the work tree → the series.

The new series is worked out whole (see `ci.worktree.rework`) before the first
file is written, and then written in one step or not at all.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from ci.core.checkpoints import checkpoint
from ci.core.errors import Fault
from ci.core.layout import Layout
from ci.core.runlock import alone
from ci.git.repo import GitError
from ci.git.store import is_damaged, set_aside, sweep
from ci.pinned.pin import load_pin
from ci.series.kept import not_kept
from ci.series.lock import load_lock
from ci.series.model import read_files, series_paths
from ci.series.write import changed, write_series
from ci.worktree.applied import as_locked, compose, publish
from ci.worktree.draft import Routed
from ci.worktree.edits import Options
from ci.worktree.rework import rework
from ci.worktree.tree import WorkTree


def options(parser: argparse.ArgumentParser) -> None:
    """The verb's options."""
    parser.add_argument("--to", metavar="NAME", help="the patch for unassigned edits")
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
    written: tuple[str, ...] = ()
    note: str | None = None
    remarks: tuple[str, ...] = ()


def refresh(layout: Layout, asked: Options) -> Refreshed:
    """Refresh, with the checkout's lock held.

    Raises:
        Fault: an edit is unassigned, or another rule is broken; nothing
            has changed then.
    """
    if asked.to is not None and asked.new is not None:
        raise Fault("--to and --new do not go together", todo="choose one")
    try:
        return _refresh(layout, asked)
    except GitError as fault:
        if not is_damaged(layout.store):
            raise
        damaged = set_aside(layout.store, fault)
        tree = WorkTree(layout.work_tree, layout.store)
        series = as_locked(load_pin(layout.pin), read_files(layout), load_lock(layout))
        publish(tree, series, compose(tree, series, layout.downloads), damaged=damaged)
        return _refresh(layout, asked)


def _refresh(layout: Layout, asked: Options) -> Refreshed:
    series = as_locked(load_pin(layout.pin), read_files(layout), load_lock(layout))
    sweep(layout.store, layout.work_tree)
    tree = WorkTree(layout.work_tree, layout.store)
    made = rework(tree, series, layout.downloads, asked)
    if made.series is None:
        return Refreshed(made.routed, remarks=made.remarks)
    new, composed = made.series
    tree.announce(composed.head)
    try:
        written = write_series(layout, new.files, new.lock)
    except (OSError, Fault):
        tree.announce(None)
        raise
    checkpoint("refresh: series written")
    if read_files(layout) != new.files:
        raise AssertionError("the series on disk is not the one that was written")
    note = publish(tree, new, composed).note
    paths = series_paths(layout, new.files)
    lost = [f"{path} {why}" for path, why in not_kept(layout.root, paths)]
    return Refreshed(made.routed, tuple(written), note, (*made.remarks, *lost))


def run(layout: Layout, args: argparse.Namespace) -> int:
    """The verb."""
    asked = Options(args.to, args.new, args.topic, args.dry_run, args.drop_empty)
    with alone(layout.shared, "refresh"):
        done = refresh(layout, asked)
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
