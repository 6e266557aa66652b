# SPDX-License-Identifier: Apache-2.0
"""What a device check found: one JSON line each, written as it becomes known.

Also a pytest plugin (`-p findings`), which writes a line for every test. The
file and the part are told in DEVICE_FINDINGS and DEVICE_PART.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"


def finding(what: str, outcome: str, seconds: float = 0.0, **values: Any) -> None:
    """Append one line; it is on disk when this returns."""
    line = {
        "part": os.environ["DEVICE_PART"],
        "what": what,
        "outcome": outcome,
        "seconds": round(seconds, 3),
        **({"values": values} if values else {}),
    }
    with Path(os.environ["DEVICE_FINDINGS"]).open("a") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


def pytest_runtest_logreport(report: Any) -> None:
    """A test counts when it was called, or when it never came to that."""
    if report.when != "call" and report.passed:
        return
    outcome = {"passed": PASSED, "failed": FAILED}.get(report.outcome, NOT_RUN)
    reason = {}
    if report.failed:
        reason["reason"] = report.longreprtext.strip().splitlines()[-1]
    elif report.skipped and isinstance(report.longrepr, tuple):
        reason["reason"] = report.longrepr[2].removeprefix("Skipped: ")
    finding(report.nodeid.rpartition("::")[2], outcome, report.duration, **reason)
