"""`nox -s apply`: pin + series → composed commits → work tree.

Nothing that anyone looks at changes until everything is worked out and
verified; then one ref moves, and the work tree follows. A record of the last
run lets the next one see that there is nothing to do.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ci.core.layout import Layout
from ci.core.progress import say
from ci.core.runlock import alone
from ci.git.repo import GitError
from ci.git.store import is_damaged, set_aside, sweep
from ci.pinned.fetch import source_word
from ci.pinned.pin import load_pin
from ci.series.lock import load_lock
from ci.series.model import read_files
from ci.series.write import changed, write_series
from ci.worktree import applied
from ci.worktree.adopt import adopt
from ci.worktree.applied import Applied, Locked
from ci.worktree.tree import WorkTree


def options(parser: argparse.ArgumentParser) -> None:
    """The verb's options."""
    parser.add_argument(
        "--source",
        type=source_word,
        help="where vLLM comes from: an sdist, its folder, a git clone or URL, or `index`",
    )
    parser.add_argument(
        "--relock",
        action="store_true",
        help="accept the series as it lies there: bring it into canonical form, write its lock",
    )
    parser.add_argument(
        "--discard",
        action="store_true",
        help="put edits in the work tree aside, under a backup ref, and start clean",
    )


def apply(
    layout: Layout, *, source: str | None = None, relock: bool = False, discard: bool = False
) -> Applied:
    """Apply, with the checkout's lock held.

    Raises:
        Fault: see the rooms that it goes through.
    """
    adopt(layout.shared, layout.work_tree, layout.store, layout.line)
    tree = WorkTree(layout.work_tree, layout.store)
    if not (relock or discard or source is not None):
        same = applied.nothing_to_do(tree, _locked(layout))
        if same is not None:
            return same
    sweep(layout.store, layout.work_tree)
    try:
        return _apply(layout, tree, source, relock, discard)
    except GitError as fault:
        if not is_damaged(layout.store):
            raise
        return _apply(layout, tree, source, relock, discard, set_aside(layout.store, fault))


def _apply(
    layout: Layout,
    tree: WorkTree,
    source: str | None,
    relock: bool,
    discard: bool,
    damaged: Path | None = None,
) -> Applied:
    if relock:
        files, pin = read_files(layout, settle=True), load_pin(layout.pin)
        series, composed = applied.relocked(
            tree, files, pin, layout.downloads, source=source, discard=discard
        )
        for line in changed(layout, write_series(layout, series.files, series.lock)):
            say(line)
    else:
        series = _locked(layout)
        composed = applied.compose(tree, series, layout.downloads, source)
    return applied.publish(tree, series, composed, discard=discard, damaged=damaged)


def _locked(layout: Layout) -> Locked:
    return applied.as_locked(load_pin(layout.pin), read_files(layout), load_lock(layout))


def run(layout: Layout, args: argparse.Namespace) -> int:
    """The verb."""
    with alone(layout.shared, "apply"):
        done = apply(layout, source=args.source, relock=args.relock, discard=args.discard)
    state = "composed" if done.changed else "nothing to do:"
    print(f"{state} {done.head[:12]} in {layout.work_tree}")
    if done.note:
        print(done.note)
    return 0
