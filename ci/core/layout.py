"""Where everything lies in a checkout of this project."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ci.core.testpaths import TestPaths


@dataclass(frozen=True)
class Layout:
    """Paths of one checkout; tests point it at small generated projects."""

    root: Path

    @property
    def pin(self) -> Path:
        return self.root / "pin.toml"

    @property
    def patches(self) -> Path:
        return self.root / "patches"

    @property
    def series(self) -> Path:
        return self.patches / "series.toml"

    @property
    def lock(self) -> Path:
        return self.patches / "series.lock"

    @property
    def overlay(self) -> Path:
        return self.root / "overlay"

    @property
    def build(self) -> Path:
        """Everything that the tooling makes and may make again."""
        return self.root / "build"

    @property
    def store(self) -> Path:
        """The tool-owned bare git repository in which the series is composed."""
        return self.build / "store.git"

    @property
    def work_tree(self) -> Path:
        """A checkout of the composed head, for people to read and edit."""
        return self.build / "vllm"

    @property
    def downloads(self) -> Path:
        """Verified inputs (sdist, precompiled wheels), by file name."""
        return self.build / "downloads"

    @property
    def dist(self) -> Path:
        """Built wheels."""
        return self.root / "dist"

    @property
    def tests(self) -> TestPaths:
        """Where the tests lie and run."""
        folder = self.root / "tests"
        return TestPaths(
            root=self.root,
            requirements=folder,
            support=folder / "support",
            upstream=folder / "upstream",
            engine=folder / "engine",
            build=self.build,
            downloads=self.downloads,
            dist=self.dist,
        )
