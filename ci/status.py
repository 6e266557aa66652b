"""`nox -s status`: where everything stands, on one screen, as JSON, or as a page.

What cannot be told (no network, nothing built) is said so; status itself only
fails where the series or the pin cannot be read.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ci import targets
from ci.compose import parse_patches
from ci.current import identify
from ci.errors import Fault
from ci.identity import SeriesIdentity
from ci.layout import Layout
from ci.objects import split_lines
from ci.patchfile import PatchFile
from ci.pin import Pin, load_pin
from ci.series import Patch, SeriesFiles, Topic, read_files

if TYPE_CHECKING:
    from ci.releases import Calendar

_FRESH = 6 * 3600
"""Seconds for which the newest release is not asked for again."""


@dataclass(frozen=True)
class PinStatus:
    """The pin and its age. `newest` is empty where no index could be asked."""

    version: str
    commit: str
    newest: str = ""
    behind: int = 0
    days: int | None = None
    note: str = ""


@dataclass(frozen=True)
class PatchStatus:
    """One patch: lines added to and taken from upstream's files, and its own files."""

    file: str
    subject: str
    added: int
    removed: int
    files: int
    overlay_files: int
    overlay_lines: int


@dataclass(frozen=True)
class TopicStatus:
    """One topic with its patches."""

    name: str
    title: str
    upstream: str
    state: str
    needs: tuple[str, ...]
    patches: tuple[PatchStatus, ...]


@dataclass(frozen=True)
class RollStatus:
    """What the last roll to one target found. `stale`: the series changed since."""

    target: str
    counts: Mapping[str, int]
    stale: bool
    solving: str = ""


@dataclass(frozen=True)
class WheelStatus:
    """A wheel in dist/. `matches`: it is of the series as it lies here."""

    file: str
    series: str
    variant: str
    matches: bool
    note: str = ""


@dataclass(frozen=True)
class Status:
    """All of it."""

    series: str
    pin: PinStatus
    topics: tuple[TopicStatus, ...]
    rolls: tuple[RollStatus, ...]
    tests: tuple[str, ...]
    wheels: tuple[WheelStatus, ...]
    work_tree: tuple[str, ...]


# -- gathering ----------------------------------------------------------------


def gather(layout: Layout, *, offline: bool = False) -> Status:
    """Look at everything.

    Raises:
        Fault: the pin or the series cannot be read.
    """
    pin = load_pin(layout.pin)
    files = read_files(layout)
    identity = identify(pin, files)
    return Status(
        series=identity.id,
        pin=_pin(layout, pin, offline=offline),
        topics=_topics(files),
        rolls=_rolls(layout, files.fingerprint()),
        tests=_tests(layout, identity),
        wheels=_wheels(layout, identity),
        work_tree=(*_series(layout, pin, files), *_work_tree(layout)),
    )


def _pin(layout: Layout, pin: Pin, *, offline: bool) -> PinStatus:
    try:
        calendar = _calendar(layout, offline=offline)
    except Fault as fault:
        return PinStatus(pin.version, pin.commit, note=fault.what)
    if calendar is None:
        return PinStatus(pin.version, pin.commit)
    return PinStatus(
        pin.version,
        pin.commit,
        calendar.newest,
        calendar.behind(pin.version),
        calendar.days(pin.version),
    )


def _calendar(layout: Layout, *, offline: bool) -> Calendar | None:
    """The releases there are, asked for at most every few hours."""
    from ci.releases import Calendar, calendar

    kept = layout.build / "releases.json"
    try:
        data = json.loads(kept.read_bytes())
        known = Calendar({str(k): str(v) for k, v in data["released"].items()})
        if offline or time.time() - data["asked"] < _FRESH:
            return known
    except (OSError, ValueError, KeyError, AttributeError):
        if offline:
            return None
    fresh = calendar()
    # A checkout that may only be read can be looked at too.
    with suppress(OSError):
        layout.build.mkdir(exist_ok=True)
        kept.write_text(json.dumps({"asked": int(time.time()), "released": dict(fresh.released)}))
    return fresh


def _topics(files: SeriesFiles) -> tuple[TopicStatus, ...]:
    parsed = dict(zip((p.file for p in files.series.patches), parse_patches(files), strict=True))
    topic_of = {patch.name: patch.topic for patch in files.series.patches}
    return tuple(_topic(files, topic, parsed, topic_of) for topic in files.series.topics)


def _topic(
    files: SeriesFiles,
    topic: Topic,
    parsed: Mapping[str, PatchFile],
    topic_of: Mapping[str, str],
) -> TopicStatus:
    patches = [patch for patch in files.series.patches if patch.topic == topic.name]
    needs = {topic_of[need] for patch in patches for need in patch.needs} - {topic.name}
    return TopicStatus(
        topic.name,
        topic.title,
        topic.upstream,
        topic.state,
        tuple(sorted(needs)),
        tuple(_patch(files, patch, parsed[patch.file]) for patch in patches),
    )


def _patch(files: SeriesFiles, patch: Patch, parsed: PatchFile) -> PatchStatus:
    lines = [line[:1] for diff in parsed.files for hunk in diff.hunks for line in hunk.lines]
    overlay = [files.overlay[path] for path in patch.overlay]
    return PatchStatus(
        patch.file,
        parsed.subject,
        lines.count(b"+"),
        lines.count(b"-"),
        len(parsed.files),
        len(overlay),
        sum(len(split_lines(content.data)) for content in overlay),
    )


def _rolls(layout: Layout, fingerprint: str) -> tuple[RollStatus, ...]:
    found = []
    for known in targets.rolls(layout):
        try:
            data = json.loads((known.folder / "verdicts.json").read_bytes())
            solving = _solving(known.folder)
            found.append(
                RollStatus(data["target"], data["counts"], data["series"] != fingerprint, solving)
            )
        except (OSError, ValueError, KeyError):
            continue
    return tuple(sorted(found, key=lambda roll: _version_key(roll.target)))


def _solving(folder: Path) -> str:
    state = folder / "open.json"
    return str(json.loads(state.read_bytes())["patch"]) if state.is_file() else ""


def _version_key(name: str) -> tuple[tuple[int, str], ...]:
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in name.split("."))


def _tests(layout: Layout, identity: SeriesIdentity) -> tuple[str, ...]:
    """The last test run's own summary, one line a part."""
    from ci.testrun import RECORD

    try:
        data = json.loads((layout.build / RECORD).read_bytes())
        stale = "" if data["series"] == identity.id else f" (of series {data['series']})"
        return tuple(f"{part['name']}: {part['summary']}{stale}" for part in data["parts"])
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError):
        return ("the record of the last run cannot be read",)


def _wheels(layout: Layout, identity: SeriesIdentity) -> tuple[WheelStatus, ...]:
    from ci.verify import WheelFiles, read_identity

    found = []
    for path in sorted(layout.dist.glob("*.whl")):
        try:
            carried = read_identity(WheelFiles(path))
        except Fault as fault:
            found.append(WheelStatus(path.name, "", "", False, fault.what))
            continue
        of = carried.identity.id
        found.append(WheelStatus(path.name, of, carried.variant.value, of == identity.id))
    return tuple(found)


def _series(layout: Layout, pin: Pin, files: SeriesFiles) -> tuple[str, ...]:
    """A word where the work tree is not that of the series as it lies here."""
    from ci import apply as applying
    from ci import lock as locking
    from ci.worktree import WorkTree

    try:
        locking.check_inputs(locking.load_lock(layout), files, pin.base_tree)
        state = WorkTree.of(layout).state()
    except Fault as fault:
        return (f"{fault.what}: {fault.todo}",)
    if state is None or not (layout.store / "HEAD").is_file():
        return ()
    if applying.composed_head(layout, files) != state.applied:
        return ("made from another series than the one that lies here: run `nox -s apply`",)
    return ()


def _work_tree(layout: Layout) -> tuple[str, ...]:
    from ci.objects import show
    from ci.worktree import WorkTree, standing

    tree = WorkTree.of(layout)
    try:
        state = tree.state()
    except Fault as fault:
        return (fault.what,)
    if state is None or state.applied is None:
        return ("not there: `nox -s apply` makes it",)
    if not (layout.store / "HEAD").is_file():
        return ("its store is gone: `nox -s apply` makes it again",)
    said = [f"at {state.applied[:12]}"]
    if state.updating:
        said.append("an update was cut short: `nox -s apply` finishes it")
    note = standing(state)
    said += [note] if note else []
    # Another run may hold the checkout's lock, and its index with it.
    with tree.aside() as copy:
        said += [f"edited: {show(path)}" for path in copy.edited(state.applied)]
    said += [f"commit: {line}" for line in tree.own_commits(state)]
    return tuple(said)


# -- the verb -----------------------------------------------------------------


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
    from ci import statuspage

    status = gather(layout, offline=args.offline)
    if args.json:
        json.dump(asdict(status), sys.stdout, indent=1)
        print()
    elif args.html:
        target = args.html if args.html.is_absolute() else layout.root / args.html
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(statuspage.as_html(status), encoding="utf-8")
        print(target)
    else:
        print(statuspage.as_text(status), end="")
    return 0


def total(patches: Sequence[PatchStatus], name: str) -> int:
    """The sum of one number over patches."""
    return sum(int(getattr(patch, name)) for patch in patches)
