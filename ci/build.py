"""`nox -s build`: the composed series as wheels in dist/."""

from __future__ import annotations

import argparse

from ci import environments, requirements, wheel
from ci.current import Source, current
from ci.environments import Environment
from ci.layout import Layout
from ci.runlock import alone
from ci.sources import fetch_artifact
from ci.variant import choose


def options(parser: argparse.ArgumentParser) -> None:
    """The verb's options."""
    parser.add_argument(
        "variant",
        nargs="?",
        choices=("cuda", "cpu", "all"),
        help="default: cuda where a GPU is visible, else cpu",
    )
    parser.add_argument(
        "--source", help="a folder with the precompiled wheels; default: the package index"
    )


def environment(layout: Layout, source: Source) -> Environment:
    """The one environment that builds and tests this series."""
    return environments.ensure(layout, requirements.recipe(layout, source.git, source.tree))


def run(layout: Layout, args: argparse.Namespace) -> int:
    """The verb."""
    with alone(layout, "build"):
        source = current(layout)
        for variant in choose(args.variant):
            built = wheel.build(
                layout,
                source,
                variant,
                lambda artifact: fetch_artifact(layout, artifact, args.source),
                lambda: environment(layout, source),
            )
            print(built.relative_to(layout.root))
    return 0
