"""`nox -s test`: a line's wheel, installed, verified and tested."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Sequence

from ci.core.errors import Fault
from ci.core.layout import Layout
from ci.core.progress import say
from ci.core.runlock import alone
from ci.pinned.pin import load_pin
from ci.pinned.variant import gpu_visible
from ci.series.model import read_files
from ci.testing import pytest_runs as jobs
from ci.testing.environment import make_environment
from ci.testing.groups import Selection, load_selection, split_paths
from ci.testing.plan import Part, Wanted, parts_of, plan
from ci.testing.results import RECORD, Result, judge, longest_first, record
from ci.wheel.composed import composed_series
from ci.wheel.identity import identify


def options(parser: argparse.ArgumentParser) -> None:
    """The verb's options; all other arguments reach pytest."""
    parser.add_argument(
        "--part",
        action="append",
        choices=[part.value for part in Part],
        help="run this part only; may be given more than once",
    )
    parser.add_argument(
        "--thorough",
        action="store_true",
        help="also what takes long, and more examples of generated cases",
    )
    parser.add_argument(
        "--gpu", action="store_true", help="the series' own tests with the CUDA wheel, on a GPU"
    )
    parser.add_argument(
        "--at-once", type=int, default=min(2, os.cpu_count() or 1), help="processes at a time"
    )


def run(layout: Layout, args: argparse.Namespace) -> int:
    """The verb: 0 if every test that should pass did."""
    paths, rest = split_paths(layout.tests, args.rest)
    named = [Part(word) for word in args.part or ()] or list(Part)
    parts = _gpu_parts(args.part) if args.gpu else parts_of(layout.tests, paths)
    if not args.first_line:  # The tooling is the same for every line.
        named = [part for part in named if part is not Part.TOOLING]
        if not named:
            return 0
    parts = tuple(part for part in parts if part in named)
    wanted = Wanted(parts, paths, rest, args.thorough, args.gpu, max(1, args.at_once))
    selection = load_selection(layout.tests.upstream)
    with alone(layout.shared, "test"):
        results = _run_parts(layout, selection, wanted)
        if not wanted.partial:
            series = identify(load_pin(layout.pin), read_files(layout)).id
            record(layout.build / RECORD, series, results)
    return _conclude(results, wanted, [group.name for group in selection.group if group.slow])


def _gpu_parts(named: Sequence[str] | None) -> tuple[Part, ...]:
    """The series' own tests; the other parts are made for a machine without a GPU."""
    if named and set(named) != {Part.OVERLAY.value}:
        raise Fault("--gpu runs the part overlay only", todo="leave --part out")
    if not gpu_visible():
        raise Fault("no GPU is visible", todo="leave --gpu out; nvidia-smi -L should list one")
    return (Part.OVERLAY,)


def _run_parts(layout: Layout, selection: Selection, wanted: Wanted) -> list[Result]:
    env = None
    if set(wanted.parts) - {Part.TOOLING}:
        source = composed_series(layout, layout.store)
        env = make_environment(layout.tests, source, wanted.gpu)
    planned = plan(layout.tests, env, selection, wanted)
    planned = longest_first(planned, layout.build / RECORD)
    outcomes = jobs.run_all(planned, layout.tests.runs / "logs", wanted.at_once)
    accepted = [one.test for one in selection.accepted]
    return [judge(outcome, accepted, partial=wanted.partial) for outcome in outcomes]


def _left_out(results: Sequence[Result], wanted: Wanted, slow: Sequence[str]) -> str:
    """What a default run leaves to one with --thorough; empty if nothing."""
    if wanted.thorough or wanted.rest:
        return ""
    tests = sum(result.outcome.report.left_out for result in results)
    found = [f"{tests} tests marked slow"] if tests else []
    if Part.UPSTREAM in wanted.parts and not wanted.paths:
        found += [f"upstream-{name}" for name in slow]
    if Part.TOOLING in wanted.parts:
        found.append("most examples of the property tests")
    return ", ".join(found)


def _conclude(results: Sequence[Result], wanted: Wanted, slow: Sequence[str]) -> int:
    """Tell how it went; the last line counts every test once.

    Args:
        slow: upstream's groups that a default run leaves out.
    """
    for result in results:
        if result.failures:
            jobs.show_failures(result.outcome, result.failures)
    say("")
    for result in results:
        say("; ".join((result.outcome.line(), *result.remarks)))
    gpu = [
        test
        for result in results
        for test, why in result.outcome.report.skips.items()
        if any(word in why.lower() for word in ("cuda", "gpu"))
    ]
    if gpu and not wanted.gpu:
        say(f"not run: {len(gpu)} tests that need a GPU (`nox -s test -- --gpu`)")
    if left_out := _left_out(results, wanted, slow):
        say(f"left out: {left_out} (`nox -s test -- --thorough`)")
    failures = [failure for result in results for failure in result.failures]
    for failure in failures:
        say(f"FAILED {failure}")
    counts: Counter[str] = sum((result.outcome.counts for result in results), Counter())
    print(f"{counts['passed']} passed, {len(failures)} failed, {counts['skipped']} skipped")
    if not failures and not counts["passed"]:
        raise Fault("no test ran", todo="widen the selection")
    return 1 if failures else 0
