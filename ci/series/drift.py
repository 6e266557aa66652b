"""What became of other lines' topics on the vLLM of a line that does not have them.

A line may say so in its drift.toml, a table for each topic; one that it does not
name was not tried there.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass

from ci.core import toml
from ci.core.errors import Fault
from ci.series.paths import SeriesPaths, named

FILE = "drift.toml"


class Verdict(enum.Enum):
    """What a topic is on another vLLM."""

    OPEN = "still open"
    """The fault or the cost is there too: a topic of the line is about it."""
    UPSTREAM = "done upstream"
    NO_OBJECT = "without object"
    """The code that it changes is gone."""
    UNTRIED = "not tried"


@dataclass(frozen=True)
class Drift:
    """One topic on a vLLM that it is not made for.

    Attributes:
        name: the topic, as the line calls it that has it.
        reason: what was seen, and where.
        here: the line's own topic that is about the same, if it has one.
    """

    name: str
    verdict: Verdict
    reason: str
    here: str = ""


@dataclass(frozen=True)
class _DriftToml:
    topic: tuple[Drift, ...] = ()


def load_drift(
    folders: SeriesPaths, own: Collection[str], others: Collection[str]
) -> dict[str, Drift] | None:
    """What the line says of each topic, by name; None where it says nothing at all.

    Args:
        own: the line's own topics.
        others: the topics of the other lines.

    Raises:
        Fault: the file is malformed, or names a topic that is not there, twice, or
            one that the line has itself.
    """
    path = folders.patches / FILE
    if not path.exists():
        return None
    name = named(folders, path)
    found: dict[str, Drift] = {}
    for drift in toml.read(path, _DriftToml, name).topic:
        wrong = ""
        if drift.name in found:
            wrong = "is there twice"
        elif drift.name in own:
            wrong = "is a topic of the line itself"
        elif drift.name not in others:
            wrong = "is no topic of another line"
        elif drift.here and drift.here not in own:
            wrong = f"names {drift.here}, which is no topic of the line"
        elif (drift.verdict is Verdict.OPEN) != bool(drift.here):
            wrong = f"should name the line's topic in `here` where it is {Verdict.OPEN.value}"
        if wrong:
            raise Fault(f"{name}: {drift.name} {wrong}", todo="correct or delete its table")
        found[drift.name] = drift
    return found
