"""`nox -s apply`: pin + series → composed commits → work tree.

Nothing that anyone looks at changes until everything is worked out and
verified; then one ref moves, and the work tree follows. A record of the last
run lets the next one see that there is nothing to do.
"""

from __future__ import annotations

import argparse

from ci.core.layout import Layout
from ci.core.runlock import alone
from ci.pinned.fetch import source_word
from ci.worktree.applied import apply


def options(parser: argparse.ArgumentParser) -> None:
    """The verb's options."""
    parser.add_argument(
        "--source",
        type=source_word,
        help="where vLLM comes from: an sdist, its folder, a git clone or URL, or `index`",
    )
    parser.add_argument(
        "--relock",
        action="store_true",
        help="accept the series as it lies there: bring it into canonical form, write its lock",
    )
    parser.add_argument(
        "--discard",
        action="store_true",
        help="put edits in build/vllm aside, under a backup ref, and start clean",
    )


def run(layout: Layout, args: argparse.Namespace) -> int:
    """The verb."""
    with alone(layout.build, "apply"):
        done = apply(layout, args)
    state = "composed" if done.changed else "nothing to do:"
    print(f"{state} {done.head[:12]} in {layout.work_tree}")
    if done.note:
        print(done.note)
    return 0
