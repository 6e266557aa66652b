"""What the last apply composed, and the one way to publish a composed series."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ci.core.checkpoints import checkpoint
from ci.git.repo import Git
from ci.git.store import look_into, open_store
from ci.pinned.pin import Pin, dump_pin
from ci.series import compose as composing
from ci.series import lock as locking
from ci.series.base import open_base, pinned_lock
from ci.series.compose import Composed
from ci.series.export import canonicalize, check_fixed_point
from ci.series.lock import Lock
from ci.series.model import SeriesFiles
from ci.worktree import checkout
from ci.worktree.tree import WorkTree, standing

_RECORD = "3"
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


@dataclass(frozen=True)
class Locked:
    """A series with the pin that it stands on and the lock that it meets."""

    pin: Pin
    files: SeriesFiles
    lock: Lock

    @property
    def key(self) -> str:
        """sha256 over everything that decides what apply does."""
        parts = (_RECORD.encode(), dump_pin(self.pin).encode(), locking.dump_lock(self.lock))
        total = hashlib.sha256(self.files.fingerprint().encode())
        for part in parts:
            total.update(b"\0" + part)
        return total.hexdigest()


def as_locked(pin: Pin, files: SeriesFiles, lock: Lock | None) -> Locked:
    """A series that lies on disk.

    Raises:
        Fault: it is not what the lock says; names the first patch that differs.
    """
    locking.check_inputs(lock, files, pin.base_tree)
    assert lock is not None
    return Locked(pin, files, lock)


def _record(store: Path) -> dict[str, dict[str, str]]:
    """For each pinned version what was composed last: the series' key, and its head."""
    with suppress(OSError, ValueError):
        record = json.loads((store / "applied.json").read_bytes())
        if isinstance(record, dict):
            return record
    return {}


def composed_head(store: Path, series: Locked) -> str | None:
    """The head in the store, if it is what the last apply composed from this series."""
    try:
        head = _record(store)[series.pin.version][series.key]
    except (LookupError, TypeError):
        return None
    # Its objects have to be there, too.
    ref = composing.head_ref(series.pin.version)
    asked = f"{ref}\n{ref}^{{tree}}\n".encode()
    seen = Git(store).attempt("cat-file", "--batch-check", stdin=asked)
    rows = [line.split()[:2] for line in seen.out.decode().splitlines()]
    whole = len(rows) == 2 and rows[0] == [head, "commit"] and rows[1][1:] == ["tree"]
    return head if whole else None


def nothing_to_do(tree: WorkTree, series: Locked) -> Applied | None:
    """The last apply, if its result still stands for this series."""
    head = composed_head(tree.store, series)
    state = tree.state() if head is not None else None
    if head is None or state is None or state.applied != head or state.updating is not None:
        return None
    return Applied(head, False, standing(state))


def publish(
    tree: WorkTree,
    series: Locked,
    composed: Composed,
    *,
    discard: bool = False,
    damaged: Path | None = None,
) -> Applied:
    """Make a composed series the current one: ref, work tree, record.

    Args:
        series: as it lies on disk.
        discard: put the user's edits aside.
        damaged: the store that stood in this one's place; commits of the user
            may stand on what is left in it.
    """
    if damaged is not None and damaged.exists():
        look_into(tree.store, damaged)
    store = open_store(tree.store)
    version = series.pin.version
    composing.publish(store, composed, version)
    note = checkout.update(tree, store, composed.head, discard=discard)
    draft = tree.store / "applied.draft"
    draft.write_text(json.dumps({**_record(tree.store), version: {series.key: composed.head}}))
    checkpoint("apply: before the record")
    draft.replace(tree.store / "applied.json")
    return Applied(composed.head, True, note)


def compose(tree: WorkTree, series: Locked, downloads: Path, source: str | None = None) -> Composed:
    """Compose a series, and hold what came out against its lock.

    Args:
        source: where vLLM comes from.

    Raises:
        Fault: see the rooms that it goes through.
    """
    store = open_store(tree.store)
    base = open_base(store, downloads, series.pin, source)
    planned = composing.plan(store, base, series.files)
    composed = composing.compose(store, base, series.files, planned)
    locking.check_trees(series.lock, composed.lock)
    check_fixed_point(store, series.files, planned, composed)
    return composed


def relocked(
    tree: WorkTree,
    files: SeriesFiles,
    pin: Pin,
    downloads: Path,
    *,
    source: str | None = None,
    discard: bool = False,
) -> tuple[Locked, Composed]:
    """A series in canonical form, with a lock of its own; nothing is written but
    the store.

    Raises:
        Fault: it does not compose, or edits in the work tree are in its way.
    """
    store = open_store(tree.store)
    base = open_base(store, downloads, pin, source)
    planned = composing.plan(store, base, files)
    settled, composed = canonicalize(store, base, planned, files.series.topics, files.line)
    lock = pinned_lock(store, downloads, pin, settled, composed)
    if not discard:
        checkout.check(tree, store, composed.head)
    return Locked(pin, settled, lock), composed
