# SPDX-License-Identifier: Apache-2.0
"""How each test ended, as a JSON file: `-p upstream.outcomes --outcomes FILE`.

The file is written anew after every test, so that what a crash leaves behind
says how far the run came.
"""

from __future__ import annotations

import importlib.util
import json
import os
import time
from pathlib import Path

import pytest

_WORST = ("passed", "skipped", "xfailed", "xpassed", "failed")
"""From best to worst: a test counts as its worst phase."""

_EVERY = 5.0
"""Seconds between two writes."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", type=Path, default=None, help="write outcomes to this file")


def pytest_sessionstart() -> None:
    """Stop at once if another vLLM than the one under test would be imported."""
    expected = os.environ.get("NGRAM_EXPECT_VLLM")
    if expected is None:
        return
    spec = importlib.util.find_spec("vllm")
    origin = Path(spec.origin if spec and spec.origin else "nowhere")
    if not origin.resolve().is_relative_to(Path(expected).resolve()):
        pytest.exit(f"vllm comes from {origin}, not from {expected}", returncode=3)


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--outcomes")
    # Where tests are given out to workers, the one that gives hears of all.
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(path), "upstream-outcomes-file")


def _word(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    return report.outcome


class Outcomes:
    """The outcomes so far, by node id."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tests: dict[str, str] = {}
        self._skips: dict[str, str] = {}
        self._errors: list[str] = []
        self._written = 0.0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        word = _word(report)
        before = self._tests.get(report.nodeid, "passed")
        self._tests[report.nodeid] = max(before, word, key=_WORST.index)
        if word == "skipped" and isinstance(report.longrepr, tuple):
            self._skips[report.nodeid] = str(report.longrepr[2]).removeprefix("Skipped: ")
        if time.monotonic() - self._written > _EVERY:
            self._write(complete=False)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._errors.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._write(complete=True)

    def _write(self, *, complete: bool) -> None:
        self._written = time.monotonic()
        content = {
            "complete": complete,
            "uncollected": self._errors,
            "tests": self._tests,
            "skips": self._skips,
        }
        partial = self._path.with_suffix(".part")
        partial.write_text(json.dumps(content, indent=1), "utf-8")
        os.replace(partial, self._path)
