"""What the last apply composed, and the one way to publish a composed series."""

from __future__ import annotations

import argparse
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from ci.core.checkpoints import checkpoint
from ci.core.errors import Fault
from ci.core.layout import Layout
from ci.core.progress import say
from ci.git.repo import Git, GitError
from ci.git.store import is_damaged, look_into, open_store, set_aside, sweep
from ci.pinned.pin import load_pin
from ci.series import compose as composing
from ci.series import lock as locking
from ci.series.base import open_base, pinned_lock
from ci.series.compose import Composed
from ci.series.export import canonicalize, check_fixed_point
from ci.series.model import SeriesFiles, read_files
from ci.series.write import changed, recover, write_series
from ci.worktree import checkout
from ci.worktree import tree as worktree

_RECORD = 1
"""Raised when a record of an older tool must not count."""


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


def nothing_to_do(layout: Layout, files: SeriesFiles) -> Applied | None:
    """The last apply, if its result still stands for `files`."""
    head = composed_head(layout, files)
    if head is None:
        return None
    state = worktree.WorkTree.of(layout).state()
    if state is None or state.applied != head or state.updating is not None:
        return None
    return Applied(head, False, worktree.standing(state))


def publish(
    layout: Layout, files: SeriesFiles, composed: Composed, *, discard: bool = False
) -> str | None:
    """Make a composed series the current one: ref, work tree, record.

    Args:
        files: the series as it lies on disk.
    """
    store = open_store(layout.store)
    composing.publish(store, composed)
    note = checkout.update(layout, store, composed.head, discard=discard)
    _record(layout, _inputs(layout, files), composed.head)
    return note


def _compose(
    layout: Layout, files: SeriesFiles, args: argparse.Namespace
) -> tuple[SeriesFiles, Composed]:
    """Compose what lies there, and hold it against the lock."""
    pin = load_pin(layout.pin)
    lock = None if args.relock else locking.load_lock(layout)
    if not args.relock:
        locking.check_inputs(lock, files, pin.base_tree)
    store = open_store(layout.store)
    base = open_base(store, layout.downloads, pin, args.source)
    if args.relock:
        planned = composing.plan(store, base, files)
        settled, composed = canonicalize(store, base, planned, files.series.topics)
        locked = pinned_lock(store, layout.downloads, pin, settled, composed)
        if not args.discard:
            checkout.check(layout, store, composed.head)
        for line in changed(layout, write_series(layout, settled, locked)):
            say(line)
        return settled, composed
    planned = composing.plan(store, base, files)
    composed = composing.compose(store, base, files, planned)
    assert lock is not None
    locking.check_trees(lock, composed.lock)
    check_fixed_point(store, files, planned, composed)
    return files, composed


def apply(layout: Layout, args: argparse.Namespace) -> Applied:
    """Apply, with the checkout's lock held.

    Raises:
        Fault: see the rooms that it goes through.
    """
    if recover(layout):
        say("finished a refresh that was cut short")
    files = read_files(layout, settle=args.relock)
    if not (args.relock or args.discard or args.source is not None):
        same = nothing_to_do(layout, files)
        if same is not None:
            return same
    sweep(layout.store, layout.work_tree)
    try:
        return _apply(layout, files, args)
    except GitError as fault:
        if not is_damaged(layout.store):
            raise
        return mend(layout, fault, args)


def _apply(
    layout: Layout, files: SeriesFiles, args: argparse.Namespace, aside: Path | None = None
) -> Applied:
    files, composed = _compose(layout, files, args)
    if aside is not None and aside.exists():
        look_into(layout.store, aside)
    note = publish(layout, files, composed, discard=args.discard)
    return Applied(composed.head, True, note)


def mend(layout: Layout, fault: Fault, args: argparse.Namespace | None = None) -> Applied:
    """Make a damaged store anew, and apply."""
    aside = set_aside(layout.store, fault)
    plain = argparse.Namespace(source=None, relock=False, discard=False)
    args = args or plain
    return _apply(layout, read_files(layout, settle=args.relock), args, aside)
