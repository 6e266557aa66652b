# SPDX-License-Identifier: Apache-2.0
"""How each test ended, in a file of JSON lines: `-p upstream.outcomes --outcomes FILE`."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

_WORST = ("passed", "skipped", "xfailed", "xpassed", "failed")
"""From best to worst: a test counts as its worst phase."""


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
    if path is None:
        return
    # Where tests are given out to workers, the one that gives hears of all but
    # what each of them has left out.
    worker = hasattr(config, "workerinput")
    plugin = LeftOut() if worker else Outcomes(path)
    config.pluginmanager.register(plugin, "upstream-outcomes-file")


def _word(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    return report.outcome


def _reason(report: pytest.TestReport) -> str:
    """Why a test was skipped or failed, in one line."""
    where = report.longrepr
    if report.skipped and isinstance(where, tuple):
        return str(where[2]).removeprefix("Skipped: ")
    crash = getattr(where, "reprcrash", None)
    lines = crash.message.splitlines() if report.failed and crash else []
    return lines[0][:200] if lines else ""


class LeftOut:
    """A worker's word on how many tests it has left out."""

    def __init__(self) -> None:
        self._count = 0

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self._count += len(items)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        session.config.workeroutput["left_out"] = self._count


class Outcomes:
    """A line for each thing that happened, written at once.

    What is not in a line when the process dies did not happen, and a test that
    has begun and not ended is the one that it died in.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")
        self._words: dict[str, str] = {}
        self._reasons: dict[str, str] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._write(selected=len(session.items))

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self._write(left_out=len(items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        # Each worker collects all tests, so each one's word is the whole.
        self._write(left_out=getattr(node, "workeroutput", {}).get("left_out", 0))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(uncollected=report.nodeid)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write(begun=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        word = _word(report)
        before = self._words.get(report.nodeid, "passed")
        self._words[report.nodeid] = max(before, word, key=_WORST.index)
        if reason := _reason(report):
            self._reasons.setdefault(report.nodeid, reason)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        word = self._words.pop(nodeid, "failed")
        self._write(ended=nodeid, word=word, reason=self._reasons.pop(nodeid, ""))

    def pytest_sessionfinish(self) -> None:
        self._write(complete=True)

    def _write(self, **event: object) -> None:
        self._file.write(json.dumps(event) + "\n")
        self._file.flush()
