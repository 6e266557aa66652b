"""A topic of one line carried to another, by the means of a roll.

Its patches are moved from the tree before them in their own series to the other
line's composed head, and become the last topic of that line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ci.core.content import Content
from ci.core.errors import Fault
from ci.git.repo import Git
from ci.roll.attempt import Rolled, roll
from ci.series import compose as composing
from ci.series.compose import BaseTree
from ci.series.export import canonicalize
from ci.series.model import Series, SeriesFiles, Topic
from ci.series.paths import SeriesPaths
from ci.series.resolutions import Resolution
from ci.series.topics import topic_named, topic_patches
from ci.series.write import write_series


@dataclass(frozen=True)
class Side:
    """One of the two lines: its series, and the pinned vLLM that it stands on."""

    files: SeriesFiles
    base: BaseTree


@dataclass(frozen=True)
class Ported:
    """What was carried where, and what came of it.

    Attributes:
        head: the other line's composed head, on which the patches were tried.
    """

    topic: Topic
    to: Side
    head: BaseTree
    rolled: Rolled


def _needs(old: Series, new: Series, topic: str) -> dict[str, tuple[str, ...]]:
    """What each patch of a topic needs on the other line.

    Raises:
        Fault: it needs a topic that the other line does not have.
    """
    own = {patch.name for patch in topic_patches(old, topic)}
    topic_of = {patch.name: patch.topic for patch in old.patches}
    there = {one.name: [p.name for p in topic_patches(new, one.name)] for one in new.topics}
    found: dict[str, tuple[str, ...]] = {}
    missing: set[str] = set()
    for patch in topic_patches(old, topic):
        others = {topic_of[need] for need in patch.needs} - {topic}
        missing |= {other for other in others if not there.get(other)}
        needs = [name for other in sorted(others) for name in there.get(other, [])]
        found[patch.name] = (*needs, *(need for need in patch.needs if need in own))
    if missing:
        first = min(missing)
        raise Fault(
            f"{topic} needs {', '.join(sorted(missing))}, which the other line does not have",
            todo=f"carry that first: `nox -s port -- {first} --to LINE`",
        )
    return found


def port(store: Git, old: Side, new: Side, topic: str, resolutions: Sequence[Resolution]) -> Ported:
    """Try a topic of the line `old` on the head of the line `new`.

    Raises:
        Fault: there is no such topic, it is there already, or lacks what it needs.
    """
    there = new.files.line
    found = topic_named(old.files.series, topic)
    if any(one.name == topic for one in new.files.series.topics):
        raise Fault(
            f"the line {there} has the topic {topic} already",
            todo=f"work on that one, or take it out of {new.files.patch_folder}/series.toml first",
        )
    if not topic_patches(old.files.series, topic):
        raise Fault(f"the topic {topic} has no patches", todo="there is nothing to carry")
    needs = _needs(old.files.series, new.files.series, topic)
    composed = composing.compose(store, new.base, new.files)
    head = composing.read_base(store, composed.head, composed.tree)
    names = (old.files.line, f"the line {there}")
    rolled = roll(store, old.base, head, old.files, names, resolutions, only=frozenset(needs))
    planned = tuple(
        replace(one, patch=replace(one.patch, needs=needs[one.patch.name]))
        for one in rolled.planned
    )
    return Ported(found, new, head, replace(rolled, planned=planned))


def write(
    folders: SeriesPaths, store: Git, ported: Ported, more: Mapping[str, Content | None]
) -> list[str]:
    """Write the other line's series with the topic at its end; the files that changed.

    Args:
        folders: the other line's.
        more: as in `write_series`.

    Raises:
        Fault: a patch is open, or nothing is left to change.
    """
    still, line = ported.rolled.report.open, folders.line
    if still:
        raise Fault(
            f"not every patch of {ported.topic.name} has a place on the line {line} yet",
            todo="solve first what is laid out, then run it with --continue",
            details=tuple(f"{patch.file}: {patch.outcome.value}" for patch in still),
        )
    if not ported.rolled.planned:
        raise Fault(
            f"{ported.topic.name} has nothing left to change on the line {line}",
            todo="there is nothing to carry",
        )
    base, files = ported.to.base, ported.to.files
    planned = (*composing.plan(store, base, files), *ported.rolled.planned)
    # Where it stands upstream is said of the line that it was sent from.
    topic = replace(ported.topic, upstream="", state="local")
    topics = (*files.series.topics, topic)
    exported, composed = canonicalize(store, base, planned, topics, line)
    return write_series(folders, exported, composed.lock, more)
