"""`nox -s baseline`: record how upstream's tests end on the pristine pin."""

from __future__ import annotations

import argparse
import os
import platform

from ci.core.errors import Fault
from ci.core.layout import Layout
from ci.core.progress import say
from ci.core.runlock import alone
from ci.testing import gate
from ci.testing import pytest_runs as jobs
from ci.testing.environment import make_environment
from ci.testing.gate import Baseline
from ci.testing.groups import load_selection
from ci.testing.plan import upstream_job
from ci.wheel.composed import composed_series


def options(parser: argparse.ArgumentParser) -> None:
    """The verb's options."""
    parser.add_argument(
        "--group", action="append", help="record this group only; may be given more than once"
    )
    parser.add_argument(
        "--at-once", type=int, default=min(2, os.cpu_count() or 1), help="processes at a time"
    )


def run(layout: Layout, args: argparse.Namespace) -> int:
    """The verb."""
    with alone(layout.shared, "baseline"):
        source = composed_series(layout, layout.store)
        env = make_environment(layout.tests, source)
        selection = load_selection(layout.tests.upstream)
        groups = [g for g in selection.group if not args.group or g.name in args.group]
        if not groups:
            raise Fault(
                "no such group", todo=f"name one of {', '.join(g.name for g in selection.group)}"
            )
        tests = env.tree_of_tests(source.pin.base_tree, "pristine")
        path = [env.pristine, env.support]
        planned = [
            upstream_job(env, group, tests, path, env.pristine, selection.options)
            for group in groups
        ]
        logs = layout.build / "tests" / "baseline"
        outcomes = jobs.run_all(planned, logs, args.at_once)
    broken = [outcome for outcome in outcomes if not outcome.ended_well]
    if broken:
        raise Fault(broken[0].breakdown[0], todo=f"see {broken[0].log}")
    recorded = {
        "vllm": f"{source.pin.tag} {source.pin.commit}".rstrip(),
        "base_tree": source.pin.base_tree,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    found = {node: word for outcome in outcomes for node, word in outcome.tests.items()}
    target = gate.baseline_file(layout.tests.upstream)
    if args.group and target.exists():
        before = gate.load_baseline(layout.tests.upstream, source.pin.base_tree).tests
        found |= {
            node: word
            for node, word in before.items()
            if not any(group.holds(node) for group in groups)
        }
    target.write_text(gate.dump_baseline(Baseline(recorded, found)), "utf-8")
    say(f"recorded {len(found)} tests in {target.relative_to(layout.root)}")
    return 0
