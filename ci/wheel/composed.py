"""The series as this checkout holds it now, composed and ready to be built from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ci.core.errors import Fault
from ci.git.repo import Git
from ci.pinned.pin import Pin, load_pin
from ci.pinned.variant import Variant, machine
from ci.series.lock import load_lock
from ci.series.model import read_files
from ci.series.paths import SeriesPaths
from ci.wheel.identity import SeriesIdentity, WheelIdentity, identify
from ci.worktree.applied import as_locked, composed_head


@dataclass(frozen=True)
class ComposedSeries:
    """What is built: a composed series in the store.

    Attributes:
        git: the store.
        commit: the series' last commit.
        tree: that commit's tree.
    """

    git: Git
    commit: str
    tree: str
    pin: Pin
    identity: SeriesIdentity

    @property
    def timestamp(self) -> int:
        """The time that everything in the wheel carries: the last commit's."""
        return int(self.git.text("show", "-s", "--format=%ct", self.commit))

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Those that the pin names a precompiled wheel for, for this machine."""
        return tuple(v for v in Variant if f"{v.value}-{machine()}" in self.pin.wheels)

    def wheel(self, variant: Variant) -> WheelIdentity:
        """What this machine's wheel of the series carries."""
        return WheelIdentity(
            self.identity, variant, self.tree, self.pin.wheel(variant.value, machine())
        )


def composed_series(folders: SeriesPaths, store: Path) -> ComposedSeries:
    """What the last apply composed, if the series has not changed since.

    Raises:
        Fault: it has changed, or nothing was composed yet.
    """
    pin, files = load_pin(folders.pin), read_files(folders)
    head = composed_head(store, as_locked(pin, files, load_lock(folders)))
    if head is None:
        raise Fault("this series has not been composed yet", todo="run `nox -s apply` first")
    git = Git(store)
    return ComposedSeries(git, head, git.tree_of(head), pin, identify(pin, files))
