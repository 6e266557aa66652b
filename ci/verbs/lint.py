"""`nox -s lint`: the tooling's own checks, the series', and vLLM's on what the series changes."""

from __future__ import annotations

import argparse

from ci.core.errors import Fault
from ci.core.layout import Layout
from ci.core.progress import say
from ci.core.runlock import alone
from ci.series.check import check_series
from ci.testing.plan import checks_environment
from ci.testing.vllm_checks import Check, changed_files, check_tree, run_checks
from ci.wheel.composed import composed_series


def options(parser: argparse.ArgumentParser) -> None:
    """The verb's options."""
    parser.add_argument(
        "--part",
        choices=("tooling", "series", "form"),
        help="check this part only (form: of the series, what needs no vLLM); default: all",
    )


def run(layout: Layout, args: argparse.Namespace) -> int:
    """The verb: 0 if every check passed."""
    failed: list[str] = []
    with alone(layout.shared, "lint"):
        if args.part in (None, "tooling") and args.first_line:
            failed += run_checks(tooling_checks(layout))
        if args.part != "tooling":
            failed += _form(layout)
        if args.part in (None, "series"):
            source = composed_series(layout, layout.store)
            failed += check_tree(layout.build, source.git, source.tree, changed_files(source))
    if failed:
        raise Fault(
            f"{len(failed)} check(s) failed: {', '.join(failed)}",
            todo="correct what they name above",
        )
    say("all checks passed")
    return 0


def tooling_checks(layout: Layout) -> list[Check]:
    """ruff and mypy --strict, as pyproject.toml sets them."""
    python = str(checks_environment(layout.tests).python)
    return [
        Check("ruff check", (python, "-m", "ruff", "check", "-q", "."), layout.root),
        Check("ruff format", (python, "-m", "ruff", "format", "-q", "--check", "."), layout.root),
        Check("mypy --strict", (python, "-m", "mypy", "--no-error-summary"), layout.root),
    ]


def _form(layout: Layout) -> list[str]:
    """What the series' own files have to be; composes nothing."""
    problems = check_series(layout)
    for problem in problems:
        say(f"    {problem}")
    say(f"series: {'FAILED' if problems else 'ok'}")
    return ["series"] if problems else []
