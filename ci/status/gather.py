"""Gathering where everything stands, from the files alone."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ci.core.content import show, split_lines
from ci.core.errors import Fault
from ci.pinned.pin import Pin, load_pin
from ci.roll.conflict_tree import open_patch
from ci.series.compose import parse_patches
from ci.series.drift import Drift, Verdict, load_drift
from ci.series.lock import load_lock
from ci.series.model import Patch, SeriesFiles, read_files
from ci.series.patch import PatchFile
from ci.series.paths import SeriesPaths
from ci.series.topics import topic_patches
from ci.status.model import (
    PatchStatus,
    PinStatus,
    RollStatus,
    SharedTopic,
    Status,
    TopicOnLine,
    TopicStatus,
    WheelStatus,
)
from ci.wheel.identity import SeriesIdentity, identify
from ci.worktree.applied import as_locked, composed_head
from ci.worktree.tree import WorkTree, standing

_FRESH = 6 * 3600
"""Seconds for which the newest release is not asked for again."""


def gather(
    folders: SeriesPaths,
    lines: Sequence[SeriesPaths],
    tree: WorkTree,
    dist: Path,
    *,
    offline: bool = False,
) -> Status:
    """Look at everything.

    Args:
        lines: every line that is to be shown beside the others; none for no table.
        dist: where the wheels are.
        offline: do not ask for new releases.

    Raises:
        Fault: the pin or the series cannot be read.
    """
    pin = load_pin(folders.pin)
    files = read_files(folders)
    identity = identify(pin, files)
    return Status(
        series=identity.id,
        pin=_pin(pin, folders.build / "releases.json", offline=offline),
        topics=tuple(_topics(files)),
        lines=_side_by_side(lines) if len(lines) > 1 else (),
        rolls=_rolls(folders.build / "roll", files.fingerprint()),
        tests=_tests(folders.build, identity),
        wheels=_wheels(dist, pin.version, identity),
        work_tree=tuple(_work_tree(tree, pin, files, folders)),
    )


def _pin(pin: Pin, releases: Path, *, offline: bool) -> PinStatus:
    try:
        known = _releases(releases, offline=offline)
    except Fault as fault:
        return PinStatus(pin.version, pin.commit, note=fault.what)
    if not known:
        return PinStatus(pin.version, pin.commit)
    behind = len(known) - 1 - known.index(pin.version) if pin.version in known else len(known)
    return PinStatus(pin.version, pin.commit, known[-1], behind)


def _releases(cache: Path, *, offline: bool) -> list[str]:
    """The releases there are, the newest last, asked for at most every few hours."""
    from ci.pinned.releases import releases

    with suppress(OSError, ValueError, KeyError, TypeError):
        data = json.loads(cache.read_bytes())
        known = [str(version) for version in data["releases"]]
        if offline or time.time() - data["asked"] < _FRESH:
            return known
    if offline:
        return []
    fresh = releases()
    # A checkout that may only be read can be looked at too.
    with suppress(OSError):
        cache.parent.mkdir(exist_ok=True)
        cache.write_text(json.dumps({"asked": int(time.time()), "releases": fresh}))
    return fresh


def _topics(files: SeriesFiles) -> Iterator[TopicStatus]:
    """Every topic with its patches, and with the topics that these need."""
    patches = files.series.patches
    parsed = dict(zip((patch.file for patch in patches), parse_patches(files), strict=True))
    topic_of = {patch.name: patch.topic for patch in patches}
    for topic in files.series.topics:
        own = topic_patches(files.series, topic.name)
        needs = {topic_of[need] for patch in own for need in patch.needs} - {topic.name}
        yield TopicStatus(
            topic.name,
            topic.title,
            topic.upstream,
            topic.state,
            tuple(sorted(needs)),
            tuple(_patch(files, patch, parsed[patch.file]) for patch in own),
        )


def _side_by_side(lines: Sequence[SeriesPaths]) -> tuple[SharedTopic, ...]:
    """Every topic of any line, on each of them; topics are known by their names."""
    topics = {at.line: {t.name: t for t in _topics(read_files(at))} for at in lines}
    names = list(dict.fromkeys(name for own in topics.values() for name in own))
    cells: dict[str, dict[str, TopicOnLine | Drift | None]] = {name: {} for name in names}
    for at in lines:
        own = topics[at.line]
        others = {name for line, its in topics.items() if line != at.line for name in its}
        said = load_drift(at, own, others)
        for name in names:
            untried = None if said is None else Drift(name, Verdict.UNTRIED, "")
            cells[name][at.line] = (
                _on_line(own[name]) if name in own else (said or {}).get(name, untried)
            )
    return tuple(SharedTopic(name, on) for name, on in cells.items())


def _on_line(topic: TopicStatus) -> TopicOnLine:
    return TopicOnLine(topic.state, topic.upstream, topic.added, topic.removed)


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


def _tests(build: Path, identity: SeriesIdentity) -> tuple[str, ...]:
    """The last test run's own summary, one line a part."""
    from ci.testing.results import RECORD

    try:
        data = json.loads((build / RECORD).read_bytes())
        stale = "" if data["series"] == identity.id else f" (of series {data['series']})"
        return tuple(f"{part['name']}: {part['summary']}{stale}" for part in data["parts"])
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError):
        return ("the record of the last run cannot be read",)


def _wheels(dist: Path, version: str, identity: SeriesIdentity) -> tuple[WheelStatus, ...]:
    from ci.wheel.archive import wheels_of
    from ci.wheel.verify import WheelFiles, read_identity

    found = []
    for path in wheels_of(dist, version):
        try:
            wheel = read_identity(WheelFiles(path))
        except Fault as fault:
            found.append(WheelStatus(path.name, "", "", False, fault.what))
            continue
        of = wheel.identity.id
        found.append(WheelStatus(path.name, of, wheel.variant.value, of == identity.id))
    return tuple(found)


def _work_tree(tree: WorkTree, pin: Pin, files: SeriesFiles, folders: SeriesPaths) -> Iterator[str]:
    """Where the work tree is, and how it differs from the series on disk."""
    series = None
    try:
        series = as_locked(pin, files, load_lock(folders))
    except Fault as fault:
        yield f"{fault.what}: {fault.todo}"
    try:
        state = tree.state()
    except Fault as fault:
        yield fault.what
        return
    stored = (tree.store / "HEAD").is_file()
    composed = composed_head(tree.store, series) if series and stored else None
    if series and state is not None and stored and composed != state.applied:
        yield "made from another version of the series: run `nox -s apply`"
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
