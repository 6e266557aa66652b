"""`nox -s build`: the composed series as wheels in dist/."""

from __future__ import annotations

import argparse

from ci.core.layout import Layout
from ci.core.runlock import alone
from ci.pinned.fetch import fetch_artifact
from ci.pinned.variant import choose
from ci.testing.environment import build_environment
from ci.wheel import build as wheel
from ci.wheel.composed import composed_series


def options(parser: argparse.ArgumentParser) -> None:
    """The verb's options."""
    parser.add_argument(
        "variant",
        nargs="?",
        choices=("cuda", "cpu", "all"),
        help="default: cuda where a GPU is visible or the pin names no CPU wheel, else cpu",
    )
    parser.add_argument(
        "--source", help="a folder with the precompiled wheels; default: the package index"
    )


def run(layout: Layout, args: argparse.Namespace) -> int:
    """The verb."""
    with alone(layout.shared, "build"):
        source = composed_series(layout, layout.store)
        for variant in choose(args.variant, source.variants):
            built = wheel.build(
                source,
                variant,
                layout.dist,
                layout.build / "wheel",
                lambda artifact: fetch_artifact(layout.downloads, artifact, args.source),
                lambda: build_environment(layout.tests, source),
            )
            print(built.relative_to(layout.root))
    return 0
