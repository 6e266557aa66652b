"""The pinned base, in the store and ready to compose on."""

from __future__ import annotations

from pathlib import Path

from ci.git.repo import Git
from ci.pinned.base import import_base, sdist_base
from ci.pinned.pin import Pin
from ci.series import compose as composing
from ci.series import lock as locking
from ci.series.compose import BaseTree, Composed
from ci.series.model import SeriesFiles


def open_base(store: Git, downloads: Path, pin: Pin, source: str | None = None) -> BaseTree:
    """The pinned base, brought into the store if it is not there."""
    base = import_base(store, downloads, pin, source)
    return composing.read_base(store, base.commit, base.tree)


def pinned_lock(
    store: Git, downloads: Path, pin: Pin, files: SeriesFiles, composed: Composed
) -> locking.Lock:
    """The lock of a composed series: that of the pin's tree, on which it is
    composed again where it stands on vLLM's own commit with another one.

    Raises:
        Fault: it does not give the same there.
    """
    if composed.base.tree == pin.base_tree:
        return composed.lock
    base = sdist_base(store, downloads, pin)
    read = composing.read_base(store, base.commit, base.tree)
    again = composing.compose(store, read, files)
    locking.check_trees(again.lock, composed.lock)
    return again.lock
