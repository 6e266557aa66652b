"""`nox -s roll`: try the series on another vLLM, solve, and move the pin there."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, replace

from ci import compose as composing
from ci import resolutions, targets
from ci.apply import open_base
from ci.compose import BaseTree, Planned
from ci.errors import Fault
from ci.export import Step, export, with_topics
from ci.git import Git
from ci.layout import Layout
from ci.objects import REGULAR, Content
from ci.pin import Pin, dump_pin, load_pin
from ci.progress import say
from ci.rolling import Rolled, roll
from ci.rollwork import Open, RollWork
from ci.runlock import alone
from ci.series import SeriesFiles, Topic, read_files
from ci.sources import source_word
from ci.swap import changed, recover, write_series
from ci.targets import Target
from ci.verdicts import Report, as_json, as_text


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


@dataclass(frozen=True)
class _Try:
    """One attempt: what was tried on what, and what came of it."""

    layout: Layout
    store: Git
    pin: Pin
    files: SeriesFiles
    target: Target
    base: BaseTree
    rolled: Rolled

    @property
    def work(self) -> RollWork:
        return RollWork(self.layout, self.target.name)


def _attempt(layout: Layout, name: str, source: str | None) -> _Try:
    pin = load_pin(layout.pin)
    files = read_files(layout)
    store, old = open_base(layout, None)
    target = targets.find(layout, store, pin, name, source)
    return _again(layout, store, pin, files, target, old)


def _again(
    layout: Layout, store: Git, pin: Pin, files: SeriesFiles, target: Target, old: BaseTree
) -> _Try:
    new = composing.read_base(store, target.commit, target.tree)
    kept = resolutions.load(layout)
    rolled = roll(store, old, new, files, (pin.version, target.name), kept)
    where = targets.folder(layout, target.name)
    draft = where / "verdicts.draft"
    draft.write_text(json.dumps(as_json(rolled.report), indent=1) + "\n")
    draft.replace(where / "verdicts.json")
    return _Try(layout, store, pin, files, target, new, rolled)


def _which(layout: Layout, name: str | None, *, opened: bool) -> str:
    """The target that is meant: named, or that of the last roll.

    Args:
        opened: only a roll in which a patch is being solved can be meant.

    Raises:
        Fault: there is none, or more than one.
    """
    if name:
        return name
    known = [target.name for target in targets.rolls(layout)]
    if not known:
        raise Fault("nothing was rolled yet", todo="name a version: `nox -s roll -- 0.18.1`")
    if not opened:
        return known[0]
    found = [target for target in known if RollWork(layout, target).opened()]
    if len(found) > 1:
        raise Fault(
            "a patch is open in more than one roll",
            todo=f"name the one that you mean: {', '.join(found)}",
        )
    return found[0] if found else known[0]


# -- solving ------------------------------------------------------------------


def _open_work(tried: _Try) -> str:
    """Lay the first open patch out for solving; what to tell the user."""
    stuck = tried.rolled.stuck
    assert stuck is not None
    done = composing.write(tried.store, tried.base, tried.rolled.planned[: stuck.done])
    head = done[-1].id if done else tried.base.commit
    index = next(n for n, p in enumerate(tried.files.series.patches) if p.name == stuck.patch)
    patch = tried.files.series.patches[index]
    parsed = composing.parse_patch(tried.files, patch)
    marked = Planned(patch, parsed, stuck.marked, {}, False)
    at = BaseTree(head, tried.store.tree_of(head), {})
    (commit,) = composing.write(tried.store, at, [marked])
    tried.store.run("update-ref", f"refs/roll-open/{tried.target.key}", commit.id)
    opened = Open(stuck.patch, tried.rolled.report.series, commit.id)
    tried.work.start(opened, head)
    return (
        f"{patch.file} is open: its conflicts are marked in {tried.work.root}\n"
        f"solve them there, then run `{tried.work.command}`"
    )


def _take_solved(layout: Layout, name: str, files: SeriesFiles) -> None:
    """Keep how the open patch was solved.

    Raises:
        Fault: nothing is open, the series changed since, or a mark is left.
    """
    work = RollWork(layout, name)
    opened = work.opened()
    if opened is None:
        raise Fault(f"nothing is open in the roll to {name}", todo=f"run `nox -s roll -- {name}`")
    if opened.series != files.fingerprint():
        raise Fault(
            f"the series changed since {opened.patch} was laid out in {work.root}",
            todo=f"leave it (`nox -s roll -- {name} --abort` keeps your edits) and roll again",
        )
    path = resolutions.save(layout, opened.patch, name, work.solved(opened))
    aside = work.close()
    say(f"kept how {opened.patch} was solved: {path.relative_to(layout.root)}")
    if aside:
        say(f"files that git ignores were beside it: all is kept in {aside}")


# -- accepting ----------------------------------------------------------------


def _steps(tried: _Try) -> list[Step]:
    """The rolled patches as trees on the new base."""
    commits = composing.write(tried.store, tried.base, tried.rolled.planned)
    before = tried.base.tree
    steps = []
    for one, commit in zip(tried.rolled.planned, commits, strict=True):
        needs = tuple(need for need in one.patch.needs if need not in tried.rolled.dropped)
        patch = replace(one.patch, needs=needs)
        parsed = one.parsed
        steps.append(Step(patch, parsed.message, parsed.date, before, commit.tree, parsed.author))
        before = commit.tree
    return steps


def _topics(tried: _Try) -> tuple[Topic, ...]:
    """The topics; one whose patches are all upstream is merged."""
    left = {one.patch.topic for one in tried.rolled.planned}
    had = {patch.topic for patch in tried.files.series.patches}
    return tuple(
        replace(topic, state="merged") if topic.name in had - left else topic
        for topic in tried.files.series.topics
    )


def _accept(tried: _Try, commit: str | None) -> list[str]:
    """Write the new pin, series and lock, all at once; what changed.

    Raises:
        Fault: a patch is open, or the target cannot be a pin.
    """
    still = tried.rolled.report.open
    if still:
        raise Fault(
            f"not every patch has a place on {tried.target.name} yet",
            todo=f"solve first what is laid out: `{tried.work.command}`",
            details=tuple(f"{patch.file}: {patch.outcome.value}" for patch in still),
        )
    pin = targets.pin_of(tried.layout, tried.store, tried.target, tried.pin, commit)
    steps = _steps(tried)
    exported = with_topics(export(tried.store, tried.base.entries, steps), _topics(tried))
    composed = composing.compose(tried.store, tried.base, exported)
    assert composed.trees == [tried.base.tree, *(step.after for step in steps)]
    if not pin.wheels:
        say(f"no precompiled wheel of {pin.version} is known, so it cannot be built as it is")
    content = Content(REGULAR, dump_pin(pin).encode("utf-8"))
    return write_series(tried.layout, exported, composed.lock, {"pin.toml": content})


def _accepting(target: Target) -> str:
    if target.sdist is None:
        return "the pin can be moved to releases only"
    return f"`nox -s roll -- {target.name} --accept` moves the series there"


# -- the verb -----------------------------------------------------------------


def _print(report: Report, *, plain: bool) -> None:
    if plain:
        json.dump(as_json(report), sys.stdout, indent=1)
        print()
    else:
        print(as_text(report), end="")


def run(layout: Layout, args: argparse.Namespace) -> int:
    """The verb; its status is 1 while a patch is open."""
    with alone(layout, "roll"):
        if recover(layout):
            say("finished a refresh that was cut short")
        return _run(layout, args)


def _run(layout: Layout, args: argparse.Namespace) -> int:
    if args.abort:
        name = _which(layout, args.target, opened=True)
        work = RollWork(layout, name)
        if work.opened() is None:
            raise Fault(f"nothing is open in the roll to {name}", todo="there is nothing to leave")
        kept = work.abort()
        print(f"left the roll to {name}" + (f"; your edits are in {kept}" if kept else ""))
        return 0
    if not args.target and not args.go_on and not args.accept:
        raise Fault("roll to what?", todo="name a version: `nox -s roll -- 0.18.1`")
    name = _which(layout, args.target, opened=args.go_on)
    if args.go_on:
        _take_solved(layout, name, read_files(layout))
    tried = _attempt(layout, name, args.source)
    if args.accept:
        for line in changed(layout, _accept(tried, args.commit)):
            say(line)
        for dropped in tried.rolled.dropped:
            print(f"{dropped} has nothing left to change on {name}: taken out of the series")
        print(f"the series stands on vLLM {name}; `nox -s apply` composes it")
        return 0
    _print(tried.rolled.report, plain=args.json)
    if tried.rolled.stuck is None:
        say(f"every patch has a place; {_accepting(tried.target)}")
        return 0
    say(_open_work(tried))
    return 1
