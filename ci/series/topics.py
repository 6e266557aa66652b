"""Parts of a series: some patches with all that they need, as a series of their own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ci.core.errors import Fault
from ci.series.model import Patch, Series, SeriesFiles, Topic


def topic_named(series: Series, name: str) -> Topic:
    """The topic called `name`.

    Raises:
        Fault: there is none.
    """
    for topic in series.topics:
        if topic.name == name:
            return topic
    known = ", ".join(topic.name for topic in series.topics) or "none"
    raise Fault(f"no topic is called {name}", todo=f"there are: {known}")


def closure(series: Series, names: Iterable[str]) -> tuple[Patch, ...]:
    """The patches called `names` and all that they need, in order."""
    wanted = set(names)
    # Needs point backwards only, so one pass from the end finds all of them.
    for patch in reversed(series.patches):
        if patch.name in wanted:
            wanted.update(patch.needs)
    return tuple(patch for patch in series.patches if patch.name in wanted)


def topic_patches(series: Series, name: str) -> tuple[Patch, ...]:
    """The patches of one topic, in order."""
    return tuple(patch for patch in series.patches if patch.topic == name)


def topic_closure(series: Series, name: str) -> tuple[Patch, ...]:
    """The patches of one topic and all that they need, in order."""
    return closure(series, (patch.name for patch in topic_patches(series, name)))


def subset(files: SeriesFiles, patches: Iterable[Patch]) -> SeriesFiles:
    """Some patches as a series of their own; needs that are left out are dropped."""
    kept = tuple(patches)
    names = {patch.name for patch in kept}
    series = Series(
        files.series.topics,
        tuple(
            replace(patch, needs=tuple(need for need in patch.needs if need in names))
            for patch in kept
        ),
    )
    return SeriesFiles(
        files.line,
        series,
        {patch.file: files.patches[patch.file] for patch in kept},
        {path: files.overlay[path] for patch in kept for path in patch.overlay},
    )
