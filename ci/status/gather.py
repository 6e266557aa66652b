"""Gathering where everything stands, from the files alone."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from ci.core.content import split_lines
from ci.core.errors import Fault
from ci.core.layout import Layout
from ci.pinned.pin import Pin, load_pin
from ci.roll.conflict_tree import open_patch
from ci.series.compose import parse_patches
from ci.series.model import Patch, SeriesFiles, Topic, read_files
from ci.series.patch import PatchFile
from ci.status.model import PatchStatus, PinStatus, RollStatus, Status, TopicStatus, WheelStatus
from ci.wheel.identity import SeriesIdentity, identify
from ci.worktree.applied import as_locked, composed_head

_FRESH = 6 * 3600
"""Seconds for which the newest release is not asked for again."""


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
        rolls=_rolls(layout.build / "roll", files.fingerprint()),
        tests=_tests(layout, identity),
        wheels=_wheels(layout, identity),
        work_tree=tuple(_work_tree(layout, pin, files)),
    )


def _pin(layout: Layout, pin: Pin, *, offline: bool) -> PinStatus:
    try:
        known = _releases(layout.build / "releases.json", offline=offline)
    except Fault as fault:
        return PinStatus(pin.version, pin.commit, note=fault.what)
    if not known:
        return PinStatus(pin.version, pin.commit)
    behind = len(known) - 1 - known.index(pin.version) if pin.version in known else len(known)
    return PinStatus(pin.version, pin.commit, known[-1], behind)


def _releases(kept: Path, *, offline: bool) -> list[str]:
    """The releases there are, the newest last, asked for at most every few hours."""
    from ci.pinned.releases import releases

    with suppress(OSError, ValueError, KeyError, TypeError):
        data = json.loads(kept.read_bytes())
        known = [str(version) for version in data["releases"]]
        if offline or time.time() - data["asked"] < _FRESH:
            return known
    if offline:
        return []
    fresh = releases()
    # A checkout that may only be read can be looked at too.
    with suppress(OSError):
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(json.dumps({"asked": int(time.time()), "releases": fresh}))
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


def _rolls(rolls: Path, fingerprint: str) -> tuple[RollStatus, ...]:
    found = []
    for path in rolls.glob("*/verdicts.json"):
        with suppress(OSError, ValueError, KeyError):
            data = json.loads(path.read_bytes())
            opened = open_patch(path.parent)
            stale = data["series"] != fingerprint
            solving = opened.patch if opened else ""
            found.append(RollStatus(data["target"], data["counts"], stale, solving))
    return tuple(sorted(found, key=lambda roll: _version_key(roll.target)))


def _version_key(name: str) -> tuple[tuple[int, str], ...]:
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in name.split("."))


def _tests(layout: Layout, identity: SeriesIdentity) -> tuple[str, ...]:
    """The last test run's own summary, one line a part."""
    from ci.testing.results import RECORD

    try:
        data = json.loads((layout.build / RECORD).read_bytes())
        stale = "" if data["series"] == identity.id else f" (of series {data['series']})"
        return tuple(f"{part['name']}: {part['summary']}{stale}" for part in data["parts"])
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError):
        return ("the record of the last run cannot be read",)


def _wheels(layout: Layout, identity: SeriesIdentity) -> tuple[WheelStatus, ...]:
    from ci.wheel.verify import WheelFiles, read_identity

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


def _work_tree(layout: Layout, pin: Pin, files: SeriesFiles) -> Iterator[str]:
    """Where the work tree is, and how it differs from the series as it lies here."""
    from ci.core.content import show
    from ci.series.lock import load_lock
    from ci.worktree.tree import WorkTree, standing

    series = None
    try:
        series = as_locked(pin, files, load_lock(layout))
    except Fault as fault:
        yield f"{fault.what}: {fault.todo}"
    tree = WorkTree(layout.work_tree, layout.store)
    try:
        state = tree.state()
    except Fault as fault:
        yield fault.what
        return
    stored = (layout.store / "HEAD").is_file()
    composed = composed_head(layout.store, series) if series and stored else None
    if series and state is not None and stored and composed != state.applied:
        yield "made from another series than the one that lies here: run `nox -s apply`"
    if state is None or state.applied is None:
        yield "not there: `nox -s apply` makes it"
        return
    if not stored:
        yield "its store is gone: `nox -s apply` makes it again"
        return
    yield f"at {state.applied[:12]}"
    if state.updating:
        yield "an update was cut short: `nox -s apply` finishes it"
    if note := standing(state):
        yield note
    # Another run may hold the checkout's lock, and its index with it.
    with tree.aside() as copy:
        edited = copy.edited(state.applied)
    yield from (f"edited: {show(path)}" for path in edited)
    yield from (f"commit: {line}" for line in tree.own_commits(state))
