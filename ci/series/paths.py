"""Where a series lies, as far as the series needs to know."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class SeriesPaths(Protocol):
    """Files and folders of one series; the layout of a checkout has them all."""

    @property
    def root(self) -> Path:
        """What the paths of its files are named from."""

    @property
    def line(self) -> str: ...

    @property
    def pin(self) -> Path: ...

    @property
    def patches(self) -> Path: ...

    @property
    def series(self) -> Path: ...

    @property
    def lock(self) -> Path: ...

    @property
    def overlay(self) -> Path: ...

    @property
    def build(self) -> Path:
        """For what is made; a change of the series is staged below it."""


def named(folders: SeriesPaths, path: Path) -> str:
    """What a file of the checkout is called: its path from the root."""
    return path.relative_to(folders.root).as_posix()
