"""Where everything lies in a checkout of this project.

A checkout carries lines. What belongs to one line lies in a folder of its name
below `patches/`, `overlay/`, `tests/` and `build/`; what the lines share (the
object store, downloads, wheels, the tooling's environments) lies beside them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ci.core.testpaths import TestPaths


@dataclass(frozen=True)
class Layout:
    """Paths of one line in one checkout; tests point it at small generated projects."""

    root: Path
    line: str

    # -- what the line is ----------------------------------------------------------

    @property
    def patches(self) -> Path:
        """The line's pin, series, lock, topic texts and resolutions."""
        return self.root / "patches" / self.line

    @property
    def pin(self) -> Path:
        return self.patches / "pin.toml"

    @property
    def series(self) -> Path:
        return self.patches / "series.toml"

    @property
    def lock(self) -> Path:
        return self.patches / "series.lock"

    @property
    def overlay(self) -> Path:
        """Files that vLLM does not have, at their paths in vLLM."""
        return self.root / "overlay" / self.line

    @property
    def bench(self) -> Path:
        """The line's benchmarks."""
        return self.root / "bench" / self.line

    # -- what is made from it --------------------------------------------------------

    @property
    def build(self) -> Path:
        """Everything that the tooling makes for the line and may make again."""
        return self.shared / self.line

    @property
    def work_tree(self) -> Path:
        """A checkout of the composed head, for people to read and edit."""
        return self.build / "vllm"

    # -- what the lines share ----------------------------------------------------------

    @property
    def shared(self) -> Path:
        """What is made once for all lines, and the lock that only one run holds."""
        return self.root / "build"

    @property
    def store(self) -> Path:
        """The tool-owned bare git repository in which every line is composed."""
        return self.shared / "store.git"

    @property
    def downloads(self) -> Path:
        """Verified inputs (sdist, precompiled wheels), by file name."""
        return self.shared / "downloads"

    @property
    def dist(self) -> Path:
        """Built wheels; a line's carry its version."""
        return self.root / "dist"

    @property
    def tests(self) -> TestPaths:
        """Where the tests lie and run."""
        own = self.root / "tests" / self.line
        return TestPaths(
            root=self.root,
            requirements=own,
            support=self.root / "tests" / "support",
            upstream=own / "upstream",
            engine=own / "engine",
            bench=self.bench,
            overlay=self.overlay,
            work_tree=self.work_tree,
            build=self.build,
            shared=self.shared,
            downloads=self.downloads,
            dist=self.dist,
        )
