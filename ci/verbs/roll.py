"""`nox -s roll`: try the series on another vLLM, solve, and move the pin there."""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

from ci.core import lines
from ci.core.errors import Fault
from ci.core.layout import Layout
from ci.core.progress import say
from ci.core.runlock import alone
from ci.git.store import open_store
from ci.pinned.fetch import source_word
from ci.pinned.pin import load_pin
from ci.roll.conflict_tree import ConflictTree, open_patch
from ci.roll.line import carried
from ci.roll.target import Targets, key_of, known_targets
from ci.roll.tried import Tried, keep_verdicts, move, try_on
from ci.roll.verdict import shown
from ci.series import resolutions
from ci.series.model import read_files
from ci.series.write import changed


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
    parser.add_argument(
        "--as-line",
        nargs="?",
        const="",
        metavar="NAME",
        help="with --accept: keep the line, and make a new one (called like the version)",
    )


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


def _line_on(layout: Layout, version: str, as_line: str | None) -> Layout:
    """The line that the series will be once it stands on another vLLM.

    One that is called like its vLLM goes on being so.

    Args:
        as_line: the name of a new line, empty for the version; None moves the line itself.

    Raises:
        Fault: another line has that name or that vLLM, or files are in the way.
    """
    keep = as_line is not None
    named_so = layout.line == load_pin(layout.pin).version
    name = lines.check_name(as_line or version) if keep or named_so else layout.line
    lines.check_free(layout.root, name, version, instead_of="" if keep else layout.line)
    becomes = Layout(layout.root, name)
    wanted = [becomes.root / folder / name for folder in lines.FOLDERS]
    wanted += [] if keep else [becomes.build]
    if name != layout.line and (there := [path for path in wanted if os.path.lexists(path)]):
        raise Fault(f"{there[0]} is in the way of the line {name}", todo="move it away")
    return becomes


def _accept(layout: Layout, becomes: Layout, tried: Tried, args: argparse.Namespace) -> None:
    """Write the series for its new vLLM, as the line that it becomes."""
    name, keep = tried.target.name, args.as_line is not None
    if becomes == layout:
        for line in changed(layout, move(layout, tried, args.commit)):
            say(line)
    else:
        more = carried(layout, becomes, keep=keep)
        move(becomes, tried, args.commit, more, None if keep else layout.build)
        if not keep:
            # Programs in an environment name its folder, so it cannot go with the line.
            shutil.rmtree(becomes.tests.envs, ignore_errors=True)
        say(f"the line {layout.line} {'stays' if keep else 'is gone'}, {becomes.line} is new")
    for dropped in tried.rolled.dropped:
        print(f"{dropped} has nothing left to change on {name}: taken out of the series")
    print(f"the series stands on vLLM {name}; `nox -s apply -- --line {becomes.line}` composes it")


def run(layout: Layout, args: argparse.Namespace) -> int:
    """The verb; its status is 1 while a patch is open."""
    if args.as_line is not None and not args.accept:
        raise Fault("--as-line goes with --accept", todo="add --accept, or leave --as-line out")
    with alone(layout.shared, "roll"):
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
    becomes = _line_on(layout, name, args.as_line) if args.accept else layout
    files, solved = read_files(layout), layout.patches / "resolutions"
    if args.go_on:
        path = tree.take_solved(solved, name, files.fingerprint())
        say(f"kept how it was solved: {path.relative_to(layout.root)}")
    targets = Targets(rolls, layout.downloads, store, load_pin(layout.pin))
    tried = try_on(targets, files, resolutions.load(solved), name, args.source)
    keep_verdicts(tried)
    if args.accept:
        _accept(layout, becomes, tried, args)
        return 0
    report = tried.rolled.report
    print(shown(report, in_json=args.json))
    if tried.rolled.stuck is not None:
        say(tree.lay_out(tried.base, tried.rolled))
        return 1
    say(
        f"every patch has a place; `nox -s roll -- {name} --accept` moves the series there"
        if tried.target.sdist
        else "every patch has a place; the pin can be moved to releases only"
    )
    return 0
