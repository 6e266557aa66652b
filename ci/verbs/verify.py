"""`nox -s verify`: which series a wheel or an installation is, and whether its files are right."""

from __future__ import annotations

import argparse
from pathlib import Path

from ci.core.errors import Fault
from ci.core.layout import Layout
from ci.wheel.verify import check, open_files


def options(parser: argparse.ArgumentParser) -> None:
    """The verb's options."""
    parser.add_argument(
        "what",
        nargs="*",
        type=Path,
        help="wheels, environments or site-packages folders; default: the line's wheels in dist/",
    )


def run(layout: Layout, args: argparse.Namespace) -> int:
    """The verb: a report for each wheel or installation, a fault at the first wrong one."""
    from ci.pinned.fetch import fetch_artifact
    from ci.wheel.archive import wheels_of
    from ci.wheel.composed import composed_series

    here = composed_series(layout, layout.store)
    named: list[Path] = args.what or wheels_of(layout.dist, here.pin.version)
    if not named:
        todo = "run `nox -s build`, or name a wheel"
        raise Fault(f"no wheel of vLLM {here.pin.version} in dist/", todo=todo)
    for path in named:
        report = check(
            open_files(path),
            here.git,
            lambda artifact: fetch_artifact(layout.downloads, artifact),
            here,
        )
        report.raise_for_faults()
        print("\n".join(report.lines()))
        same = "" if report.ours else " not"
        print(f"  this is{same} this checkout's series, {here.identity.id}")
    return 0
