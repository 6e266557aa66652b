"""`nox -s baseline`: record how upstream's tests end on the pristine pin."""

from __future__ import annotations

import argparse
import os
import platform

from ci import gate, jobs, testrun
from ci.current import current
from ci.errors import Fault
from ci.gate import Baseline
from ci.layout import Layout
from ci.progress import say
from ci.runlock import alone
from ci.variant import Variant


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
    with alone(layout, "baseline"):
        source = current(layout)
        bed = testrun.make_bed(layout, source, Variant.CPU)
        selection = gate.load_selection(testrun.selection_file(layout))
        groups = [g for g in selection.groups if not args.group or g.name in args.group]
        if not groups:
            raise Fault("no such group", todo="see tests/upstream/selection.toml")
        tests = bed.tree_of_tests(source.pin.base_tree, "pristine")
        path = [bed.pristine, bed.support]
        planned = [
            testrun.upstream_job(bed, group, tests, path, (), bed.pristine) for group in groups
        ]
        logs = layout.build / "tests" / "baseline"
        outcomes = jobs.run_all(planned, logs, args.at_once)
    broken = [outcome for outcome in outcomes if not outcome.ended_well]
    if broken:
        raise Fault(f"{broken[0].job.name} did not come to its end", todo=f"see {broken[0].log}")
    recorded = {
        "vllm": f"{source.pin.tag} {source.pin.commit}",
        "base_tree": source.pin.base_tree,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    found = {node: word for outcome in outcomes for node, word in outcome.tests.items()}
    target = testrun.baseline_file(layout)
    if args.group and target.exists():
        before = gate.load_baseline(target, source.pin.base_tree).tests
        found |= {
            node: word
            for node, word in before.items()
            if not any(group.holds(node) for group in groups)
        }
    target.write_text(gate.dump_baseline(Baseline(recorded, found)), "utf-8")
    say(f"recorded {len(found)} tests in {target.relative_to(layout.root)}")
    return 0
