"""`nox -s test`: the built CPU wheel, installed, verified and tested.

Four parts: the tooling's own tests; upstream's tests, gated on the pristine
pin (ci/gate.py); the series' tests in vLLM's layout; and the engine tests, in
which the installed wheel generates tokens. The parts run as several pytest
processes at a time; a test counts as its process reported it, by node id.
"""

from __future__ import annotations

import argparse
import enum
import json
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ci import bootstrap, build, environments, gate, jobs, testbed, wheel
from ci.changedtests import series_tests
from ci.current import Source, current, identify
from ci.environments import Environment, Recipe
from ci.errors import Fault
from ci.gate import Group, Selection
from ci.jobs import Job, Outcome
from ci.layout import Layout
from ci.pin import load_pin
from ci.progress import say
from ci.runlock import alone
from ci.series import read_files
from ci.sources import fetch_artifact
from ci.testbed import Bed
from ci.variant import Variant, gpu_visible

CHECKS = (
    "hypothesis",
    "mypy==2.4.1",
    "nox>=2025.5.1",
    "pytest>=8,<10",
    "pytest-xdist>=3.6",
    "ruff==0.14.0",
    "setuptools>=77.0.3,<81",
    "types-requests",
    "types-tqdm",
    "wheel",
)
"""What the tooling's own tests and checks need beside the tooling's libraries."""

RECORD = "test-results.json"
"""Where, under build/, the last results are kept."""


class Part(enum.Enum):
    """What can be run by itself with `--part`."""

    TOOLING = "tooling"
    UPSTREAM = "upstream"
    OVERLAY = "overlay"
    ENGINE = "engine"


@dataclass(frozen=True)
class Wanted:
    """What the user asked for.

    Attributes:
        rest: words for pytest; with any, no test can be missed.
    """

    parts: tuple[Part, ...]
    rest: tuple[str, ...]
    slow: bool
    gpu: bool
    at_once: int

    @property
    def partial(self) -> bool:
        return bool(self.rest)


def options(parser: argparse.ArgumentParser) -> None:
    """The verb's options; all other words reach pytest."""
    parser.add_argument(
        "--part",
        action="append",
        choices=[part.value for part in Part],
        help="run this part only; may be given more than once",
    )
    parser.add_argument("--slow", action="store_true", help="also what takes long")
    parser.add_argument(
        "--gpu", action="store_true", help="the series' own tests with the CUDA wheel, on a GPU"
    )
    parser.add_argument(
        "--at-once", type=int, default=min(2, os.cpu_count() or 1), help="processes at a time"
    )


def run(layout: Layout, args: argparse.Namespace) -> int:
    """The verb: 0 if every test that should pass did."""
    parts = tuple(Part(word) for word in args.part) if args.part else tuple(Part)
    if args.gpu:
        parts = _gpu_parts(args.part)
    wanted = Wanted(parts, tuple(args.rest), args.slow, args.gpu, max(1, args.at_once))
    with alone(layout, "test"):
        results = _run_parts(layout, wanted)
        if not wanted.partial:
            record(layout, results)
    return _conclude(results, wanted)


def record(layout: Layout, results: Sequence[Result]) -> None:
    """Keep how each part went, for `nox -s status`; parts that were not run stay
    as they were if the series is the same."""
    series = identify(load_pin(layout.pin), read_files(layout)).id
    path = layout.build / RECORD
    parts: dict[str, str] = {}
    with suppress(OSError, ValueError, KeyError, TypeError):
        known = json.loads(path.read_bytes())
        if known["series"] == series:
            parts = {part["name"]: part["summary"] for part in known["parts"]}
    for result in results:
        failed = [f"{len(result.failures)} to be mended"] if result.failures else []
        parts[result.outcome.job.name] = ", ".join([*result.outcome.tally, *failed]) or "no test"
    table = [{"name": name, "summary": summary} for name, summary in parts.items()]
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps({"series": series, "parts": table}, indent=1), "utf-8")
    draft.replace(path)


def _gpu_parts(named: Sequence[str] | None) -> tuple[Part, ...]:
    """The series' own tests; the other parts are made for a machine without a GPU."""
    if named and set(named) != {Part.OVERLAY.value}:
        raise Fault("--gpu runs the part overlay only", todo="leave --part out")
    if not gpu_visible():
        raise Fault("no GPU is visible", todo="leave --gpu out; nvidia-smi -L should list one")
    return (Part.OVERLAY,)


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


def _run_parts(layout: Layout, wanted: Wanted) -> list[Result]:
    planned: list[Job] = []
    bed = None
    if set(wanted.parts) - {Part.TOOLING}:
        source = current(layout)
        bed = make_bed(layout, source, Variant.CUDA if wanted.gpu else Variant.CPU)
    selection = gate.load_selection(selection_file(layout))
    for part in sorted(wanted.parts, key=lambda part: _START.index(part)):
        planned += _jobs(layout, bed, part, selection, wanted)
    outcomes = jobs.run_all(planned, layout.build / "tests" / "logs", wanted.at_once)
    return [_result(layout, bed, selection, outcome, wanted) for outcome in outcomes]


# The longest first, so that two processes end at about the same time.
_START = (Part.ENGINE, Part.UPSTREAM, Part.OVERLAY, Part.TOOLING)


def make_bed(layout: Layout, source: Source, variant: Variant) -> Bed:
    """The test environment with this series' wheel, built if it is not there."""
    built = wheel.built_wheel(layout, source, variant) or wheel.build(
        layout,
        source,
        variant,
        lambda artifact: fetch_artifact(layout, artifact),
        lambda: build.environment(layout, source),
    )
    return testbed.make(layout, source, built, variant)


# -- jobs ----------------------------------------------------------------------


def _jobs(
    layout: Layout, bed: Bed | None, part: Part, selection: Selection, wanted: Wanted
) -> list[Job]:
    if part is Part.TOOLING:
        return [tooling_job(layout, wanted.rest)]
    assert bed is not None
    if part is Part.UPSTREAM:
        folder = bed.tree_of_tests(bed.source.tree, "series")
        groups = [group for group in selection.groups if wanted.slow or not group.slow]
        return [
            upstream_job(bed, group, folder, [bed.support], wanted.rest, _site(bed))
            for group in groups
        ]
    return [_overlay_job(bed, wanted)] if part is Part.OVERLAY else _engine_jobs(bed, wanted)


def checks_environment(layout: Layout) -> Environment:
    """What the tooling's tests and checks run in."""
    return environments.ensure(layout, Recipe("checks", (*bootstrap.requirements(), *CHECKS)))


def tooling_job(layout: Layout, rest: Sequence[str] = ()) -> Job:
    """The tooling's own tests, in an environment of their own."""
    environment = checks_environment(layout)
    env = {**os.environ, "PYTHONPATH": str(layout.root / "tests" / "support")}
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    # Nobody but pytest itself knows whether the user's words go with workers.
    workers = () if rest else ("-n", "2")
    words = ("-q", *workers, "tests/tooling", *rest)
    return Job("tooling", environment.python, words, layout.root, env)


def _site(bed: Bed) -> Path:
    return bed.environment.site_packages / "vllm"


def _threads(wanted_at_once: int) -> str:
    return str(max(1, (os.cpu_count() or 1) // wanted_at_once))


_PYTEST = ("-q", "-p", "no:cacheprovider", "-W", "ignore", "--show-capture=no", "--timeout=600")


def upstream_job(
    bed: Bed, group: Group, folder: Path, path: list[Path], rest: Sequence[str], vllm: Path
) -> Job:
    """One group of upstream's tests, run from a copy of a tree's tests."""
    env = {
        **bed.variables(path),
        "HF_HOME": str(bed.models.absolute()),
        "OMP_NUM_THREADS": "1",
        **(group.variables or {}),
    }
    words = (*_PYTEST, "-p", "upstream.seams", *group.options, *group.files, *rest)
    name = f"upstream-{group.name}"
    return Job(name, bed.environment.python, words, folder, env, vllm=vllm)


def _overlay_job(bed: Bed, wanted: Wanted) -> Job:
    folder = bed.tree_of_tests(bed.source.tree, "series")
    files = series_tests(bed.source)
    if not files:
        raise Fault("the series has no tests of its own", todo="leave --part overlay out")
    env = {
        **bed.variables([bed.support]),
        "HF_HOME": str(bed.models.absolute()),
        "OMP_NUM_THREADS": _threads(wanted.at_once),
    }
    seams = () if wanted.gpu else ("-p", "upstream.seams")
    words = (*_PYTEST, *seams, *files, *wanted.rest)
    return Job("overlay", bed.environment.python, words, folder, env, vllm=_site(bed))


def _engine_jobs(bed: Bed, wanted: Wanted) -> list[Job]:
    """A process per file: an ended engine's memory comes back with its process alone."""
    root = bed.layout.root
    env = {
        **bed.variables([bed.support]),
        **bed.engine_variables(),
        "OMP_NUM_THREADS": _threads(wanted.at_once),
        "NGRAM_FIGURES": str((bed.layout.build / "tests" / "figures").absolute()),
    }
    selection = () if wanted.slow else ("-m", "not slow")
    jobs_ = []
    # The matrix, which takes longest, first.
    for path in sorted((root / "tests" / "engine").glob("test_*.py"), key=_matrix_first):
        name = f"engine-{path.stem.removeprefix('test_')}"
        words = ("-q", *selection, "--timeout=900", f"tests/engine/{path.name}", *wanted.rest)
        jobs_.append(Job(name, bed.environment.python, words, root, env, 3600.0, _site(bed)))
    return jobs_


def _matrix_first(path: Path) -> tuple[bool, str]:
    return path.stem != "test_matrix", path.stem


# -- results -------------------------------------------------------------------


def selection_file(layout: Layout) -> Path:
    """Which of upstream's tests are run."""
    return layout.root / "tests" / "upstream" / "selection.toml"


def baseline_file(layout: Layout) -> Path:
    """Where the baseline is kept."""
    return layout.root / "tests" / "upstream" / "baseline.json"


def _result(
    layout: Layout, bed: Bed | None, selection: Selection, outcome: Outcome, wanted: Wanted
) -> Result:
    jobs.check_status(outcome)
    if outcome.job.name.startswith("upstream-"):
        assert bed is not None
        result = _judged(layout, bed, selection, outcome, wanted)
    else:
        failed = [test for test, word in outcome.tests.items() if word in ("failed", "xpassed")]
        result = Result(outcome, tuple(f"{test}: failed" for test in failed))
    if outcome.ended_well:
        return result
    broken = [f"{file}: could not be collected" for file in outcome.uncollected]
    if not broken:
        broken = [f"{outcome.job.name}: pytest did not come to its end ({outcome.ending})"]
    return Result(outcome, (*result.failures, *broken), result.remarks)


def _judged(
    layout: Layout, bed: Bed, selection: Selection, outcome: Outcome, wanted: Wanted
) -> Result:
    baseline = gate.load_baseline(baseline_file(layout), bed.source.pin.base_tree)
    name = outcome.job.name.removeprefix("upstream-")
    group = next(group for group in selection.groups if group.name == name)
    before = {test: word for test, word in baseline.tests.items() if group.holds(test)}
    verdict = gate.judge(before, outcome.tests, selection.accepted, partial=wanted.partial)
    remarks = [f"{verdict.passed} passed as on the pristine pin"]
    for word, tests in (
        ("did not pass on the pristine pin either", verdict.known),
        ("did not pass on the pristine pin, pass now", verdict.mended),
        ("changed on purpose", verdict.accepted),
    ):
        if tests:
            remarks.append(f"{len(tests)} {word}")
    return Result(outcome, verdict.failures, tuple(remarks))


def _conclude(results: Sequence[Result], wanted: Wanted) -> int:
    """Tell how it went; the last line counts every test once."""
    for result in results:
        if result.failures:
            jobs.show_failures(result.outcome, result.failures)
    say("")
    for result in results:
        say("; ".join((result.outcome.line(), *result.remarks)))
    gpu = [
        test
        for result in results
        for test, why in result.outcome.skips.items()
        if any(word in why.lower() for word in ("cuda", "gpu"))
    ]
    if gpu and not wanted.gpu:
        say(f"not run: {len(gpu)} tests that need a GPU (`nox -s test -- --gpu`)")
    failures = [failure for result in results for failure in result.failures]
    for failure in failures:
        say(f"FAILED {failure}")
    counts: Counter[str] = sum((result.outcome.counts for result in results), Counter())
    print(f"{counts['passed']} passed, {len(failures)} failed, {counts['skipped']} skipped")
    if not failures and not counts["passed"]:
        raise Fault("no test ran", todo="widen the selection")
    return 1 if failures else 0
