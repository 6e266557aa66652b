"""`nox -s port`: carry a topic from one line to another."""

from __future__ import annotations

import argparse

from ci.core import files as on_disk
from ci.core import lines
from ci.core.content import Content
from ci.core.errors import Fault
from ci.core.layout import Layout
from ci.core.progress import say
from ci.core.runlock import alone
from ci.git.repo import Git
from ci.git.store import open_store
from ci.pinned.pin import load_pin
from ci.roll.conflict_tree import ConflictTree
from ci.roll.port import Side, port, write
from ci.roll.verdict import shown
from ci.series import resolutions
from ci.series.base import open_base
from ci.series.lock import load_lock
from ci.series.model import read_files
from ci.series.write import changed
from ci.worktree.applied import as_locked


def options(parser: argparse.ArgumentParser) -> None:
    """The verb's options."""
    parser.add_argument("topic", help="the topic of the line (see --line) that is carried")
    parser.add_argument("--to", required=True, metavar="LINE", help="the line that it is tried on")
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    act = parser.add_mutually_exclusive_group()
    act.add_argument(
        "--continue",
        dest="go_on",
        action="store_true",
        help="take the solved files of the work tree, keep how they were solved, go on",
    )
    act.add_argument("--abort", action="store_true", help="leave the work tree; edits are kept")
    act.add_argument("--accept", action="store_true", help="write the topic into the other line")


def run(layout: Layout, args: argparse.Namespace) -> int:
    """The verb; its status is 1 while a patch is open."""
    to = lines.choose(layout.root, args.to)
    if to == layout:
        raise Fault(f"{args.topic} is of the line {args.to} itself", todo="name another with --to")
    with alone(layout.shared, "port"):
        return _run(layout, to, args)


def _run(layout: Layout, to: Layout, args: argparse.Namespace) -> int:
    store = open_store(layout.store)
    command = f"nox -s port -- {args.topic} --to {to.line} --line {layout.line}"
    tree = ConflictTree(layout.build / "port" / f"{args.topic}--{to.line}", store, command)
    if args.abort:
        aside = tree.abort()
        print(f"left the port of {args.topic}" + (f"; your edits are in {aside}" if aside else ""))
        return 0
    old, new = _side(layout, store), _side(to, store)
    solved = layout.patches / "resolutions"
    if args.go_on:
        path = tree.take_solved(solved, f"line {to.line}", old.files.fingerprint())
        say(f"kept how it was solved: {path.relative_to(layout.root)}")
    ported = port(store, old, new, args.topic, resolutions.load(solved))
    if args.accept:
        for line in changed(to, write(to, store, ported, _text(layout, to, args.topic))):
            say(line)
        print(
            f"{args.topic} is the last topic of the line {to.line}; "
            f"`nox -s apply -- --line {to.line}` composes it"
        )
        return 0
    report = ported.rolled.report
    print(shown(report, in_json=args.json))
    if ported.rolled.stuck is not None:
        say(tree.lay_out(ported.head, ported.rolled))
        return 1
    say(f"every patch has a place; `{command} --accept` writes it")
    return 0


def _side(layout: Layout, store: Git) -> Side:
    """A line as it lies on disk, which has to be what its lock says."""
    series = as_locked(load_pin(layout.pin), read_files(layout), load_lock(layout))
    return Side(series.files, open_base(store, layout.downloads, series.pin))


def _text(layout: Layout, to: Layout, topic: str) -> dict[str, Content | None]:
    """The topic's text for the other line, where that has none.

    Its figures stay: they were measured on the first line.
    """
    name = f"topics/{topic}.md"
    text = on_disk.read(on_disk.under(layout.patches, name.encode()))
    if text is None or (to.patches / name).exists():
        return {}
    return {f"patches/{to.line}/{name}": text}
