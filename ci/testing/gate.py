"""The gate of upstream's tests: what passed on the pristine pin has to pass on the series.

The baseline is recorded on the pristine pin, with the same tests run in the
same way; a test that did not pass there says nothing about the series.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ci.core.errors import Fault

PASSED = "passed"
FAILED = ("failed", "xpassed")


@dataclass(frozen=True)
class Baseline:
    """Outcomes on the pristine pin.

    Attributes:
        recorded_on: the pin and the versions that the outcomes depend on.
        tests: node id -> outcome.
    """

    recorded_on: Mapping[str, str]
    tests: Mapping[str, str]


@dataclass(frozen=True)
class _Form:
    """A baseline as it is written: file -> outcome -> tests."""

    recorded_on: dict[str, str]
    files: dict[str, dict[str, list[str]]]


def baseline_file(folder: Path) -> Path:
    """Where the baseline is kept."""
    return folder / "baseline.json"


def load_baseline(folder: Path, base_tree: str) -> Baseline:
    """The baseline in `folder`.

    Raises:
        Fault: there is none, or it is that of another pin.
    """
    path = baseline_file(folder)
    todo = "record it with `nox -s baseline`"
    try:
        form = msgspec.json.decode(path.read_bytes(), type=_Form)
    except FileNotFoundError:
        raise Fault(f"{path} is missing", todo=todo) from None
    except msgspec.MsgspecError:
        raise Fault(f"{path} is damaged", todo=todo) from None
    if form.recorded_on.get("base_tree") != base_tree:
        raise Fault(f"{path} was recorded on another vLLM", todo=todo)
    tests = {
        f"{file}::{test}": outcome
        for file, outcomes in form.files.items()
        for outcome, names in outcomes.items()
        for test in names
    }
    return Baseline(form.recorded_on, tests)


def dump_baseline(baseline: Baseline) -> str:
    """One line for each test, in a form that shows well in a diff."""
    files: dict[str, dict[str, list[str]]] = {}
    for node, outcome in sorted(baseline.tests.items()):
        file, test = node.split("::", 1)
        files.setdefault(file, {}).setdefault(outcome, []).append(test)
    table = {"recorded_on": dict(baseline.recorded_on), "files": files}
    return json.dumps(table, indent=1, ensure_ascii=True) + "\n"


@dataclass(frozen=True)
class Verdict:
    """What changed against the baseline.

    Attributes:
        failures: one line each.
        remarks: what a person should know beside that.
    """

    failures: tuple[str, ...]
    remarks: tuple[str, ...]


def judge(
    baseline: Mapping[str, str],
    now: Mapping[str, str],
    accepted: Collection[str] = (),
    *,
    partial: bool = False,
) -> Verdict:
    """Compare outcomes with the baseline's for the same files.

    Args:
        accepted: tests that may fail or be gone.
        partial: only some tests were selected, so that none can vanish.
    """
    before = {test for test, outcome in baseline.items() if outcome == PASSED}
    passed = {test for test, outcome in now.items() if outcome == PASSED}
    failed = {test for test, outcome in now.items() if outcome in FAILED}
    regressed = (before & now.keys()) - passed
    vanished = set() if partial else before - now.keys()
    both = now.keys() & baseline.keys()
    failures = (
        (regressed.difference(accepted), "passed on the pristine pin, fails now"),
        (vanished.difference(accepted), "passed on the pristine pin, does not run now"),
        (failed - baseline.keys(), "fails, and is not in the baseline"),
    )
    remarks = (
        (both - before - passed, "did not pass on the pristine pin either"),
        ((passed & both) - before, "did not pass on the pristine pin, pass now"),
        ((regressed | vanished).intersection(accepted), "changed on purpose"),
    )
    return Verdict(
        tuple(f"{test}: {why}" for tests, why in failures for test in sorted(tests)),
        (
            f"{len(passed & before)} passed as on the pristine pin",
            *(f"{len(tests)} {what}" for tests, what in remarks if tests),
        ),
    )
