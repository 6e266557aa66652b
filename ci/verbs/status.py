"""`nox -s status`: where everything stands, on one screen, as JSON, or as a page.

What cannot be told (no network, nothing built) is said so; status itself only
fails where the series or the pin cannot be read.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import msgspec

from ci.core import lines
from ci.core.layout import Layout
from ci.status import page
from ci.status.gather import gather
from ci.worktree.tree import WorkTree

_PAGE = Path("build/LINE/status.html")


def options(parser: argparse.ArgumentParser) -> None:
    """The verb's options."""
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="print it as JSON")
    how.add_argument(
        "--html",
        nargs="?",
        type=Path,
        const=_PAGE,
        metavar="FILE",
        help=f"write it as one self-contained page (default: {_PAGE})",
    )
    parser.add_argument("--offline", action="store_true", help="do not ask for new releases")


def run(layout: Layout, args: argparse.Namespace) -> int:
    """The verb."""
    # With --all-lines, once.
    beside = lines.every(layout.root) if args.first_line else []
    tree = WorkTree(layout.work_tree, layout.store)
    status = gather(layout, beside, tree, layout.dist, offline=args.offline)
    if args.json:
        print(json.dumps(msgspec.to_builtins(status), indent=1))
    elif args.html:
        target = layout.root / (layout.build / "status.html" if args.html == _PAGE else args.html)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page.as_html(status), encoding="utf-8")
        print(target)
    else:
        print(page.as_text(status), end="")
    return 0
