"""How a run went, judged and kept for `nox -s status`."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.testing import gate
from ci.testing.pytest_runs import Job, Outcome, check_status

RECORD = "test-results.json"
"""Where, under build/, the last results are kept."""


@dataclass(frozen=True)
class Result:
    """A job's outcome, and what of it counts against the series.

    Attributes:
        failures: one line each.
        remarks: what a person should know beside that.
    """

    outcome: Outcome
    failures: tuple[str, ...]
    remarks: tuple[str, ...] = ()


def judge(outcome: Outcome, accepted: Collection[str] = (), *, partial: bool = False) -> Result:
    """What of an outcome counts against the series; see `ci.testing.gate.judge`.

    Raises:
        Fault: pytest did not understand its arguments.
    """
    check_status(outcome)
    remarks: tuple[str, ...] = ()
    if outcome.job.baseline is None:
        failures = outcome.failures
    else:
        verdict = gate.judge(outcome.job.baseline, outcome.tests, accepted, partial=partial)
        failures, remarks = verdict.failures, verdict.remarks
    return Result(outcome, (*failures, *outcome.breakdown), remarks)


def record(path: Path, series: str, results: Sequence[Result]) -> None:
    """Keep how each part went; parts that were not run stay as they were if the
    series is the same."""
    parts: dict[str, dict[str, Any]] = {}
    with suppress(OSError, ValueError, KeyError, TypeError):
        known = json.loads(path.read_bytes())
        if known["series"] == series:
            parts = {part["name"]: part for part in known["parts"]}
    for result in results:
        failed = [f"{len(result.failures)} failures"] if result.failures else []
        name = result.outcome.job.name
        summary = ", ".join([*result.outcome.tally, *failed]) or "no test"
        parts[name] = {"name": name, "summary": summary, "seconds": result.outcome.seconds}
    draft = path.with_suffix(".draft")
    draft.write_text(
        json.dumps({"series": series, "parts": list(parts.values())}, indent=1), "utf-8"
    )
    draft.replace(path)


def longest_first(jobs: Sequence[Job], path: Path) -> list[Job]:
    """Jobs by how long they took in the run recorded at `path`, so that the last
    ones end at about the same time; new ones come first, as they stand."""
    seconds: dict[str, float] = {}
    with suppress(OSError, ValueError, KeyError, TypeError):
        parts = json.loads(path.read_bytes())["parts"]
        seconds = {part["name"]: float(part["seconds"]) for part in parts}
    return sorted(jobs, key=lambda job: -seconds.get(job.name, math.inf))
