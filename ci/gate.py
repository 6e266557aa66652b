"""The gate of upstream's tests: what passed on the pristine pin has to pass on the series.

The baseline is recorded on the pristine pin, with the same tests run in the
same way; a test that did not pass there says nothing about the series.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ci import toml
from ci.errors import Fault

PASSED = "passed"


@dataclass(frozen=True)
class Group:
    """Upstream test files that run in one process.

    Attributes:
        why: what the series could break there.
        files: test files, or single tests as `file::test`.
        options: pytest's arguments beside the files.
        variables: of the environment.
        slow: left out unless asked for.
    """

    name: str
    why: str
    files: tuple[str, ...]
    options: tuple[str, ...] = ()
    variables: Mapping[str, str] | None = None
    slow: bool = False

    def holds(self, node: str) -> bool:
        """Whether a node id is of one of the files (or tests) that the group names."""
        return any(
            node == name or node.startswith((f"{name}::", f"{name}[")) for name in self.files
        )


@dataclass(frozen=True)
class Selection:
    """tests/upstream/selection.toml.

    Attributes:
        accepted: node ids which the series changes on purpose -> why.
    """

    groups: tuple[Group, ...]
    accepted: Mapping[str, str]


def load_selection(path: Path) -> Selection:
    """Read the selection.

    Raises:
        Fault: it is missing or of another form.
    """
    table = toml.load(path)
    try:
        groups = tuple(
            Group(
                str(entry["name"]),
                str(entry["why"]),
                tuple(str(file) for file in entry["files"]),
                tuple(str(word) for word in entry.get("options", ())),
                dict(entry.get("variables", {})),
                bool(entry.get("slow", False)),
            )
            for entry in table["group"]
        )
        accepted = {str(entry["test"]): str(entry["why"]) for entry in table.get("accepted", ())}
    except (KeyError, TypeError) as error:
        raise Fault(f"{path.name}: {error} is missing or wrong", todo="mend it") from None
    return Selection(groups, accepted)


@dataclass(frozen=True)
class Baseline:
    """Outcomes on the pristine pin.

    Attributes:
        recorded_on: the pin and the versions that the outcomes depend on.
        tests: node id -> outcome.
    """

    recorded_on: Mapping[str, str]
    tests: Mapping[str, str]


def load_baseline(path: Path, base_tree: str) -> Baseline:
    """Read the baseline of a pin.

    Raises:
        Fault: there is none, or it is that of another pin.
    """
    todo = "record it with `nox -s baseline`"
    try:
        table = json.loads(path.read_text("utf-8"))
        recorded = dict(table["recorded_on"])
        tests = {
            f"{file}::{test}": outcome
            for file, outcomes in table["files"].items()
            for outcome, names in outcomes.items()
            for test in names
        }
    except FileNotFoundError:
        raise Fault(f"{path} is missing", todo=todo) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Fault(f"{path} is damaged", todo=todo) from None
    if recorded.get("base_tree") != base_tree:
        raise Fault(f"{path} was recorded on another vLLM", todo=todo)
    return Baseline(recorded, tests)


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
        regressed: passed on the pin, ran here and did not pass.
        vanished: passed on the pin, did not run here.
        unknown: failed here and is not in the baseline.
        known: did not pass on the pin either.
        mended: did not pass on the pin, passes here.
        accepted: regressed or vanished, but listed as meant.
        passed: how many passed there and here.
    """

    regressed: tuple[str, ...]
    vanished: tuple[str, ...]
    unknown: tuple[str, ...]
    known: tuple[str, ...]
    mended: tuple[str, ...]
    accepted: tuple[str, ...]
    passed: int

    @property
    def failures(self) -> tuple[str, ...]:
        return (
            *(f"{test}: passed on the pristine pin, fails now" for test in self.regressed),
            *(f"{test}: passed on the pristine pin, does not run now" for test in self.vanished),
            *(f"{test}: fails, and is not in the baseline" for test in self.unknown),
        )


def judge(
    baseline: Mapping[str, str],
    now: Mapping[str, str],
    accepted: Iterable[str] = (),
    *,
    partial: bool = False,
) -> Verdict:
    """Compare outcomes with the baseline's for the same files.

    Args:
        partial: only some tests were selected, so that none can vanish.
    """
    meant = set(accepted)
    before = {test for test, outcome in baseline.items() if outcome == PASSED}
    passed = {test for test, outcome in now.items() if outcome == PASSED}
    failed = {test for test, outcome in now.items() if outcome in ("failed", "xpassed")}
    regressed = (before & now.keys()) - passed
    vanished = set() if partial else before - now.keys()
    return Verdict(
        tuple(sorted(regressed - meant)),
        tuple(sorted(vanished - meant)),
        tuple(sorted(failed - baseline.keys())),
        tuple(sorted((now.keys() & baseline.keys()) - before - passed)),
        tuple(sorted((passed & baseline.keys()) - before)),
        tuple(sorted((regressed | vanished) & meant)),
        len(passed & before),
    )
