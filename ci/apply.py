"""`nox -s apply`: pin + series → composed commits → work tree.

Nothing that anyone looks at changes until everything is worked out and
verified; then one ref moves, and the work tree follows. A record of the last
run lets the next one see that there is nothing to do.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from ci import checkout, worktree
from ci import compose as composing
from ci import lock as locking
from ci.base import import_base, sdist_base
from ci.checkpoints import checkpoint
from ci.compose import BaseTree, Composed
from ci.errors import Fault
from ci.export import check_fixed_point, settle
from ci.git import Git, GitError
from ci.layout import Layout
from ci.pin import Pin, load_pin
from ci.progress import say
from ci.runlock import alone
from ci.series import SeriesFiles, read_files
from ci.sources import source_word
from ci.store import open_store
from ci.swap import changed, recover, write_series

_RECORD = 1
"""Raised when a record of an older tool must not count."""


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
        help="put edits in build/vllm aside, under a backup ref, and start clean",
    )


@dataclass(frozen=True)
class Applied:
    """What an apply did.

    Attributes:
        changed: whether anything was composed or moved.
        note: a word for the user, if there is one.
    """

    head: str
    changed: bool
    note: str | None


# --- the base -------------------------------------------------------------------


def open_base(layout: Layout, source: str | None) -> tuple[Git, BaseTree]:
    """The store with the pinned base in it."""
    pin = load_pin(layout.pin)
    base = import_base(layout, pin, source)
    store = open_store(layout)
    return store, composing.read_base(store, base.commit, base.tree)


def sweep(layout: Layout) -> None:
    """Clear away what a killed git left in the store and in our own refs of the
    work tree; we hold the checkout's lock."""
    ours = layout.work_tree / ".git" / "refs"
    for left in (
        *layout.store.glob("*.lock"),
        *layout.store.glob("refs/**/*.lock"),
        *layout.store.glob("objects/pack/tmp_*"),
        *layout.store.glob("fast_import_crash_*"),
        *ours.glob("series/*.lock"),
        *ours.glob("backup/**/*.lock"),
    ):
        left.unlink()


def _set_aside(layout: Layout, fault: Fault) -> Path:
    """Move a damaged store out of the way.

    What it held can be made again, but commits of the user may stand on old
    heads in it, so it is kept.
    """
    number = 1
    while (aside := layout.build / f"store.damaged-{number}.git").exists():
        number += 1
    if layout.store.exists():
        layout.store.rename(aside)
    say(f"the store was damaged ({fault.what}); it is made anew, the old one is {aside}")
    return aside


def _look_into(layout: Layout, aside: Path) -> None:
    """Let the new store find what is left in the old one, now that everything
    of its own is written."""
    alternates = layout.store / "objects" / "info" / "alternates"
    alternates.parent.mkdir(exist_ok=True)
    alternates.write_text(f"../../{aside.name}/objects\n")


# --- nothing to do ----------------------------------------------------------------


def _inputs(layout: Layout, files: SeriesFiles) -> str:
    """sha256 over everything that decides what apply does."""
    total = hashlib.sha256(layout.pin.read_bytes())
    total.update(b"\0" + (layout.lock.read_bytes() if layout.lock.exists() else b""))
    total.update(b"\0" + files.fingerprint().encode())
    return total.hexdigest()


def _recorded(layout: Layout, inputs: str) -> str | None:
    """The head that the last run composed from the same inputs."""
    try:
        record = json.loads((layout.store / "applied.json").read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(record, dict) or record.get("format") != _RECORD:
        return None
    head = record.get("head")
    return head if record.get("inputs") == inputs and isinstance(head, str) else None


def _record(layout: Layout, inputs: str, head: str) -> None:
    draft = layout.store / "applied.draft"
    draft.write_text(json.dumps({"format": _RECORD, "inputs": inputs, "head": head}))
    checkpoint("apply: before the record")
    draft.replace(layout.store / "applied.json")


def _still_there(layout: Layout, head: str) -> bool:
    """Whether the store's head is `head` and its objects can be read."""
    store = Git(layout.store)
    asked = f"{composing.HEAD}\n{composing.HEAD}^{{tree}}\n".encode()
    seen = store.attempt("cat-file", "--batch-check", stdin=asked)
    rows = [line.split() for line in seen.out.decode().splitlines()]
    return [row[1:2] for row in rows] == [["commit"], ["tree"]] and rows[0][0] == head


def composed_head(layout: Layout, files: SeriesFiles) -> str | None:
    """The head in the store, if it is what the last apply composed from `files`."""
    head = _recorded(layout, _inputs(layout, files))
    return head if head is not None and _still_there(layout, head) else None


def _nothing_to_do(layout: Layout, files: SeriesFiles) -> Applied | None:
    head = composed_head(layout, files)
    if head is None:
        return None
    state = worktree.WorkTree.of(layout).state()
    if state is None or state.applied != head or state.updating is not None:
        return None
    return Applied(head, False, worktree.standing(state))


# --- the work -----------------------------------------------------------------------


def _compose(
    layout: Layout, files: SeriesFiles, args: argparse.Namespace
) -> tuple[SeriesFiles, Composed]:
    """Compose what lies there, and hold it against the lock."""
    pin = load_pin(layout.pin)
    lock = None if args.relock else locking.load_lock(layout)
    if not args.relock:
        locking.check_inputs(lock, files, pin.base_tree)
    store, base = open_base(layout, args.source)
    if args.relock:
        settled, composed = settle(store, base, files)
        locked = pinned_lock(layout, store, pin, settled, composed)
        if not args.discard:
            checkout.check(layout, store, composed.head)
        for line in changed(layout, write_series(layout, settled, locked)):
            say(line)
        return settled, composed
    composed = composing.compose(store, base, files)
    assert lock is not None
    locking.check_trees(lock, composed.lock)
    check_fixed_point(store, base, files, composed)
    return files, composed


def pinned_lock(
    layout: Layout, store: Git, pin: Pin, files: SeriesFiles, composed: Composed
) -> locking.Lock:
    """The lock of a composed series: that of the pin's tree, on which it is
    composed again where it stands on vLLM's own commit with another one.

    Raises:
        Fault: it does not give the same there.
    """
    if composed.base.tree == pin.base_tree:
        return composed.lock
    base = sdist_base(layout, pin)
    read = composing.read_base(store, base.commit, base.tree)
    again = composing.compose(store, read, files)
    locking.check_trees(again.lock, composed.lock)
    return again.lock


def apply(layout: Layout, args: argparse.Namespace) -> Applied:
    """Apply, with the checkout's lock held.

    Raises:
        Fault: see the rooms that it goes through.
    """
    if recover(layout):
        say("finished a refresh that was cut short")
    files = read_files(layout)
    if not (args.relock or args.discard or args.source is not None):
        same = _nothing_to_do(layout, files)
        if same is not None:
            return same
    sweep(layout)
    try:
        return _apply(layout, files, args)
    except GitError as fault:
        if not is_damaged(layout):
            raise
        return mend(layout, fault, args)


def _apply(
    layout: Layout, files: SeriesFiles, args: argparse.Namespace, aside: Path | None = None
) -> Applied:
    files, composed = _compose(layout, files, args)
    if aside is not None and aside.exists():
        _look_into(layout, aside)
    note = publish(layout, files, composed, discard=args.discard)
    return Applied(composed.head, True, note)


def publish(
    layout: Layout, files: SeriesFiles, composed: Composed, *, discard: bool = False
) -> str | None:
    """Make a composed series the current one: ref, work tree, record.

    Args:
        files: the series as it lies on disk.
    """
    store = open_store(layout)
    composing.publish(store, composed)
    note = checkout.update(layout, store, composed.head, discard=discard)
    _record(layout, _inputs(layout, files), composed.head)
    return note


def mend(layout: Layout, fault: Fault, args: argparse.Namespace | None = None) -> Applied:
    """Make a damaged store anew, and apply."""
    aside = _set_aside(layout, fault)
    plain = argparse.Namespace(source=None, relock=False, discard=False)
    return _apply(layout, read_files(layout), args or plain, aside)


def is_damaged(layout: Layout) -> bool:
    """Whether the store itself is at fault."""
    if not (layout.store / "HEAD").is_file():
        return True
    return not Git(layout.store).attempt("fsck", "--no-dangling", "--no-progress").ok


def run(layout: Layout, args: argparse.Namespace) -> int:
    """The verb."""
    with alone(layout, "apply"):
        done = apply(layout, args)
    state = "composed" if done.changed else "nothing to do:"
    print(f"{state} {done.head[:12]} in {layout.work_tree}")
    if done.note:
        print(done.note)
    return 0
