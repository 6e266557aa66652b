"""`nox -s roll`: try the series on another vLLM, solve, and move the pin there."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ci.core.errors import Fault
from ci.core.layout import Layout
from ci.core.progress import say
from ci.core.runlock import alone
from ci.git.store import open_store
from ci.pinned.fetch import source_word
from ci.pinned.pin import load_pin
from ci.roll.conflict_tree import ConflictTree, open_patch
from ci.roll.target import Targets, key_of, known_targets
from ci.roll.tried import keep_verdicts, move, try_on
from ci.roll.verdict import as_json, as_text
from ci.series import resolutions
from ci.series.model import read_files
from ci.series.write import changed, recover


def options(parser: argparse.ArgumentParser) -> None:
    """The verb's options."""
    parser.add_argument(
        "target", nargs="?", help="a version (0.18.1), or with --source a tag, branch or commit"
    )
    parser.add_argument(
        "--source",
        type=source_word,
        help="where it comes from: an sdist, its folder, or a git clone or URL",
    )
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    act = parser.add_mutually_exclusive_group()
    act.add_argument(
        "--continue",
        dest="go_on",
        action="store_true",
        help="take the solved files of the roll's work tree, keep how they were solved, go on",
    )
    act.add_argument(
        "--abort", action="store_true", help="leave the roll's work tree; edits are kept aside"
    )
    act.add_argument(
        "--accept", action="store_true", help="write the new pin and the series for it"
    )
    parser.add_argument("--commit", help="with --accept: the full commit id of the release")


def _which(rolls: Path, name: str | None, *, opened: bool) -> str:
    """The target that is meant: named, or that of the last roll.

    Args:
        opened: only a roll in which a patch is being solved can be meant.

    Raises:
        Fault: there is none, or more than one.
    """
    if name:
        return name
    known = [target.name for target in known_targets(rolls)]
    if not known:
        raise Fault("nothing was rolled yet", todo="name a version: `nox -s roll -- 0.18.1`")
    found = [target for target in known if opened and open_patch(rolls / key_of(target))]
    if len(found) > 1:
        raise Fault(
            "a patch is open in more than one roll",
            todo=f"name the one that you mean: {', '.join(found)}",
        )
    return found[0] if found else known[0]


def run(layout: Layout, args: argparse.Namespace) -> int:
    """The verb; its status is 1 while a patch is open."""
    with alone(layout.shared, "roll"):
        if recover(layout):
            say("finished a refresh that was cut short")
        return _run(layout, args)


def _run(layout: Layout, args: argparse.Namespace) -> int:
    if not args.target and not (args.abort or args.go_on or args.accept):
        raise Fault("no target version given", todo="name a version: `nox -s roll -- 0.18.1`")
    rolls = layout.build / "roll"
    name = _which(rolls, args.target, opened=args.abort or args.go_on)
    store = open_store(layout.store)
    tree = ConflictTree(rolls / key_of(name), store, f"nox -s roll -- {name}")
    if args.abort:
        aside = tree.abort()
        print(f"left the roll to {name}" + (f"; your edits are in {aside}" if aside else ""))
        return 0
    files, solved = read_files(layout), layout.patches / "resolutions"
    if args.go_on:
        path = tree.take_solved(solved, name, files.fingerprint())
        say(f"kept how it was solved: {path.relative_to(layout.root)}")
    targets = Targets(rolls, layout.downloads, store, load_pin(layout.pin))
    tried = try_on(targets, files, resolutions.load(solved), name, args.source)
    keep_verdicts(tried)
    if args.accept:
        for line in changed(layout, move(layout, tried, args.commit)):
            say(line)
        for dropped in tried.rolled.dropped:
            print(f"{dropped} has nothing left to change on {name}: taken out of the series")
        print(f"the series stands on vLLM {name}; `nox -s apply` composes it")
        return 0
    report = tried.rolled.report
    print(json.dumps(as_json(report), indent=1) if args.json else as_text(report).rstrip("\n"))
    if tried.rolled.stuck is not None:
        say(tree.lay_out(tried.base, tried.rolled))
        return 1
    say(
        f"every patch has a place; `nox -s roll -- {name} --accept` moves the series there"
        if tried.target.sdist
        else "every patch has a place; the pin can be moved to releases only"
    )
    return 0
