"""The series tried on another vLLM, and moved there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from ci.core.content import REGULAR, Content
from ci.core.errors import Fault
from ci.core.progress import say
from ci.pinned.pin import dump_pin
from ci.roll.attempt import Rolled, roll
from ci.roll.target import Target, Targets, key_of
from ci.roll.verdict import as_json
from ci.series import compose as composing
from ci.series.base import open_base
from ci.series.compose import BaseTree
from ci.series.export import canonicalize
from ci.series.model import SeriesFiles, Topic
from ci.series.paths import SeriesPaths, named
from ci.series.resolutions import Resolution
from ci.series.write import write_series


@dataclass(frozen=True)
class Tried:
    """What was tried on what, and what came of it."""

    targets: Targets
    files: SeriesFiles
    target: Target
    base: BaseTree
    rolled: Rolled


def try_on(
    targets: Targets,
    files: SeriesFiles,
    resolutions: Sequence[Resolution],
    name: str,
    source: str | None,
) -> Tried:
    """Try a series, or a part of it, on a target.

    Args:
        name, source: as in `Targets.find`.
    """
    store, pin = targets.store, targets.pin
    old = open_base(store, targets.downloads, pin)
    target = targets.find(name, source)
    new = composing.read_base(store, target.commit, target.tree)
    rolled = roll(store, old, new, files, (pin.version, name), resolutions)
    return Tried(targets, files, target, new, rolled)


def keep_verdicts(tried: Tried) -> None:
    """Write the verdicts where `nox -s status` looks for them."""
    where = tried.targets.rolls / key_of(tried.target.name) / "verdicts.json"
    draft = where.with_suffix(".draft")
    draft.write_text(json.dumps(as_json(tried.rolled.report), indent=1) + "\n")
    draft.replace(where)


def move(
    folders: SeriesPaths,
    tried: Tried,
    commit: str | None,
    more: Mapping[str, Content | None] = MappingProxyType({}),
    build: Path | None = None,
) -> list[str]:
    """Write the new pin, series and lock, all at once; the files that changed.

    Args:
        folders: of the line that they become, which may be another.
        commit: as in `Targets.pin_of`.
        more, build: as in `write_series`.

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
    exported, composed = canonicalize(
        store, tried.base, tried.rolled.planned, _topics(tried), folders.line
    )
    if not pin.wheels:
        say(f"no precompiled wheel of {pin.version} is known, so it cannot be built as it is")
    content = Content(REGULAR, dump_pin(pin).encode("utf-8"))
    changes = {**more, named(folders, folders.pin): content}
    return write_series(folders, exported, composed.lock, changes, build)


def _topics(tried: Tried) -> tuple[Topic, ...]:
    """The topics; one whose patches are all upstream is merged."""
    left = {one.patch.topic for one in tried.rolled.planned}
    had = {patch.topic for patch in tried.files.series.patches}
    return tuple(
        replace(topic, state="merged") if topic.name in had - left else topic
        for topic in tried.files.series.topics
    )
