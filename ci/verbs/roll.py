"""`nox -s roll`: try the series on another vLLM, solve, and move the pin there."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path

from ci.core.content import REGULAR, Content
from ci.core.errors import Fault
from ci.core.layout import Layout
from ci.core.progress import say
from ci.core.runlock import alone
from ci.git.store import open_store
from ci.pinned.fetch import source_word
from ci.pinned.pin import dump_pin, load_pin
from ci.roll.attempt import Rolled, roll
from ci.roll.conflict_tree import ConflictTree, open_patch
from ci.roll.target import Target, Targets, key_of, known_targets
from ci.roll.verdict import as_json, as_text
from ci.series import compose as composing
from ci.series import resolutions
from ci.series.base import open_base
from ci.series.compose import BaseTree
from ci.series.export import canonicalize
from ci.series.model import SeriesFiles, Topic, read_files
from ci.series.write import changed, recover, write_series


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


@dataclass(frozen=True)
class _Try:
    """One attempt: what was tried on what, and what came of it."""

    targets: Targets
    files: SeriesFiles
    target: Target
    base: BaseTree
    rolled: Rolled


def _try(layout: Layout, targets: Targets, name: str, source: str | None) -> _Try:
    files = read_files(layout)
    old = open_base(targets.store, layout.downloads, targets.pin)
    target = targets.find(name, source)
    new = composing.read_base(targets.store, target.commit, target.tree)
    kept = resolutions.load(layout.patches / "resolutions")
    rolled = roll(targets.store, old, new, files, (targets.pin.version, name), kept)
    where = targets.rolls / key_of(name) / "verdicts.json"
    draft = where.with_suffix(".draft")
    draft.write_text(json.dumps(as_json(rolled.report), indent=1) + "\n")
    draft.replace(where)
    return _Try(targets, files, target, new, rolled)


# -- accepting ----------------------------------------------------------------


def _topics(tried: _Try) -> tuple[Topic, ...]:
    """The topics; one whose patches are all upstream is merged."""
    left = {one.patch.topic for one in tried.rolled.planned}
    had = {patch.topic for patch in tried.files.series.patches}
    return tuple(
        replace(topic, state="merged") if topic.name in had - left else topic
        for topic in tried.files.series.topics
    )


def _accept(layout: Layout, tried: _Try, commit: str | None) -> list[str]:
    """Write the new pin, series and lock, all at once; what changed.

    Raises:
        Fault: a patch is open, or the target cannot be a pin.
    """
    name = tried.target.name
    still = tried.rolled.report.open
    if still:
        raise Fault(
            f"not every patch has a place on {name} yet",
            todo=f"solve first what is laid out: `nox -s roll -- {name} --continue`",
            details=tuple(f"{patch.file}: {patch.outcome.value}" for patch in still),
        )
    pin = tried.targets.pin_of(tried.target, commit)
    store = tried.targets.store
    exported, composed = canonicalize(store, tried.base, tried.rolled.planned, _topics(tried))
    if not pin.wheels:
        say(f"no precompiled wheel of {pin.version} is known, so it cannot be built as it is")
    content = Content(REGULAR, dump_pin(pin).encode("utf-8"))
    return write_series(layout, exported, composed.lock, {"pin.toml": content})


def _accepting(target: Target) -> str:
    if target.sdist is None:
        return "the pin can be moved to releases only"
    return f"`nox -s roll -- {target.name} --accept` moves the series there"


# -- the verb -----------------------------------------------------------------


def run(layout: Layout, args: argparse.Namespace) -> int:
    """The verb; its status is 1 while a patch is open."""
    with alone(layout.build, "roll"):
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
        kept = tree.abort()
        print(f"left the roll to {name}" + (f"; your edits are in {kept}" if kept else ""))
        return 0
    if args.go_on:
        kept = layout.patches / "resolutions"
        path = tree.take_solved(kept, name, read_files(layout).fingerprint())
        say(f"kept how it was solved: {path.relative_to(layout.root)}")
    targets = Targets(rolls, layout.downloads, store, load_pin(layout.pin))
    tried = _try(layout, targets, name, args.source)
    if args.accept:
        for line in changed(layout, _accept(layout, tried, args.commit)):
            say(line)
        for dropped in tried.rolled.dropped:
            print(f"{dropped} has nothing left to change on {name}: taken out of the series")
        print(f"the series stands on vLLM {name}; `nox -s apply` composes it")
        return 0
    if args.json:
        print(json.dumps(as_json(tried.rolled.report), indent=1))
    else:
        print(as_text(tried.rolled.report), end="")
    if tried.rolled.stuck is None:
        say(f"every patch has a place; {_accepting(tried.target)}")
        return 0
    say(tree.lay_out(tried.base, tried.rolled))
    return 1
