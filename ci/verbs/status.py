"""`nox -s status`: where everything stands, on one screen, as JSON, or as a page.

What cannot be told (no network, nothing built) is said so; status itself only
fails where the series or the pin cannot be read.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from ci.core.layout import Layout
from ci.status import page
from ci.status.gather import gather
from ci.worktree.tree import WorkTree


def options(parser: argparse.ArgumentParser) -> None:
    """The verb's options."""
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="print it as JSON")
    how.add_argument(
        "--html",
        nargs="?",
        type=Path,
        const=Path("build/status.html"),
        metavar="FILE",
        help="write it as one self-contained page (default: build/status.html)",
    )
    parser.add_argument("--offline", action="store_true", help="do not ask for new releases")


def run(layout: Layout, args: argparse.Namespace) -> int:
    """The verb."""
    status = gather(
        layout, WorkTree(layout.work_tree, layout.store), layout.dist, offline=args.offline
    )
    if args.json:
        json.dump(asdict(status), sys.stdout, indent=1)
        print()
    elif args.html:
        target = args.html if args.html.is_absolute() else layout.root / args.html
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page.as_html(status), encoding="utf-8")
        print(target)
    else:
        print(page.as_text(status), end="")
    return 0
