"""`nox -s bundle`: the device checks as a folder for a bare machine, and what they found."""

from __future__ import annotations

import argparse
from pathlib import Path

from ci.core.errors import Fault
from ci.core.layout import Layout
from ci.core.progress import say
from ci.core.runlock import alone
from ci.testing.bundle import make_bundle
from ci.testing.device_figures import page, read_findings, settle_debt
from ci.testing.environment import make_environment
from ci.wheel.composed import composed_series


def options(parser: argparse.ArgumentParser) -> None:
    """The verb's options."""
    parser.add_argument(
        "--record",
        type=Path,
        metavar="FILE",
        help="write a run's findings.jsonl into docs/figures/device.md and settle the debt",
    )


def run(layout: Layout, args: argparse.Namespace) -> int:
    """The verb."""
    if args.record is not None:
        return _record(layout, args.record)
    with alone(layout.shared, "bundle"):
        env = make_environment(layout.tests, composed_series(layout, layout.store))
        folder = layout.build / "device"
        size = make_bundle(layout.tests, env, folder)
        say(f"{folder.relative_to(layout.root)}: {size / 2**20:.1f} MiB")
        say("copy it to the machine and start run.sh there; bring its findings.jsonl back")
    return 0


def _record(layout: Layout, file: Path) -> int:
    findings = read_findings(file)
    on_gpu = next(one for one in findings if one.what == "machine").values.get("cuda")
    if not on_gpu:
        raise Fault(f"{file} comes from a machine without a GPU", todo="run it where there is one")
    figures = layout.root / "docs" / "figures" / "device.md"
    figures.write_text(page(findings), "utf-8")
    debt = layout.root / "docs" / "gpu-debt.md"
    kept, left = settle_debt(debt.read_text("utf-8"), findings)
    debt.write_text(kept, "utf-8")
    say(f"wrote {figures.relative_to(layout.root)}")
    for claim in left:
        say(f"shown, and no longer in docs/gpu-debt.md: {claim}")
    return 0
