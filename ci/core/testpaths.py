"""Where a line's tests lie, and where their runs leave what they make."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TestPaths:
    """Folders that the tests are run from and to.

    Attributes:
        root: the checkout's, which tests are named from.
        requirements: holds requirements.txt and constraints.txt.
        support: the packages that tests import beside the wheel.
        upstream: holds selection.toml and baseline.json.
        engine: the engine's tests.
        bench: the line's benchmarks.
        overlay: the series' own files; its tests are those below tests/.
        work_tree: the checkout of the composed head.
        build: for what is made for the line; may be deleted at any time.
        shared: for what is made once for all lines.
        downloads: verified inputs.
        dist: built wheels.
    """

    __test__ = False  # no test class of pytest's

    root: Path
    requirements: Path
    support: Path
    upstream: Path
    engine: Path
    bench: Path
    overlay: Path
    work_tree: Path
    build: Path
    shared: Path
    downloads: Path
    dist: Path

    @property
    def envs(self) -> Path:
        return self.build / "envs"

    @property
    def tooling_envs(self) -> Path:
        """Environments in which no line is installed."""
        return self.shared / "envs"

    @property
    def runs(self) -> Path:
        """Logs, trees and figures of test runs."""
        return self.build / "tests"
