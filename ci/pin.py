"""The pin: one vLLM commit, and the files that stand for it, with their hashes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci import toml
from ci.errors import Fault

_HEAD = """\
# The vLLM release that the series stands on, and the files that stand for it.
# Each file is fetched by project and name from the package index and used only
# when its sha256 is the one below. `nox -s roll -- VERSION --accept` writes
# this file.
"""
_SDIST_HEAD = """\
# What the sdist holds beyond the commit's files is listed in `generated`
# (a folder ends in /); the base tree is made without it.
"""
_OBJECT_ID = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
# A file name is used as a name in a folder of ours and nothing else.
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+!-]*")


def is_file_name(word: object) -> bool:
    """Whether a word may name a file in a folder of ours, and leads to no other."""
    return isinstance(word, str) and _FILE.fullmatch(word) is not None


@dataclass(frozen=True)
class Artifact:
    """One file of a release on the package index.

    Attributes:
        project: the name of the package that it belongs to.
        size: in bytes; lets a download stop as soon as it is wrong.
    """

    project: str
    file: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Pin:
    """What the series stands on.

    Attributes:
        base_tree: the git tree of the sdist's files without `generated`.
        generated: what making the sdist added; a folder ends in `/`.
        wheels: the precompiled wheels, by `<variant>-<machine>`.
    """

    version: str
    repository: str
    tag: str
    commit: str
    base_tree: str
    sdist: Artifact
    generated: tuple[str, ...]
    wheels: Mapping[str, Artifact]

    def wheel(self, variant: str, machine: str) -> Artifact:
        """The precompiled wheel for e.g. ("cuda", "x86_64").

        Raises:
            Fault: the pin names none.
        """
        name = f"{variant}-{machine}"
        if name not in self.wheels:
            raise Fault(
                f"pin.toml names no precompiled wheel for {name}",
                todo=f"choose one of {', '.join(sorted(self.wheels))}",
            )
        return self.wheels[name]


class _Table:
    """One table of the pin, read key by key, with faults that name the key."""

    def __init__(self, name: str, values: object) -> None:
        if not isinstance(values, dict):
            raise Fault(f"pin.toml has no [{name}]", todo="restore it from version control")
        self.name = name
        self.left: dict[str, Any] = dict(values)

    def take(self, key: str, kind: type) -> Any:
        value = self.left.pop(key, None)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.wrong(key, f"should be a {kind.__name__}, is {value!r}")
        return value

    def match(self, key: str, pattern: re.Pattern[str], what: str) -> str:
        value: str = self.take(key, str)
        if not pattern.fullmatch(value):
            raise self.wrong(key, f"should be {what}, is {value!r}")
        return value

    def end(self) -> None:
        """Nothing but the known keys may be there: a misspelt one is a mistake."""
        if self.left:
            raise self.wrong(next(iter(self.left)), "is not a key that is known here")

    def wrong(self, key: str, why: str) -> Fault:
        return Fault(f"pin.toml: {self.name}.{key} {why}", todo="mend pin.toml")


def _artifact(table: _Table) -> Artifact:
    size: int = table.take("size", int)
    if size <= 0:
        raise table.wrong("size", f"should be above 0, is {size}")
    return Artifact(
        project=table.take("project", str),
        file=table.match("file", _FILE, "a plain file name"),
        size=size,
        sha256=table.match("sha256", _SHA256, "64 hex digits"),
    )


def _generated(table: _Table) -> tuple[str, ...]:
    names: list[object] = table.take("generated", list)
    if not all(isinstance(name, str) for name in names):
        raise table.wrong("generated", "should be a list of paths")
    return tuple(str(name) for name in names)


def load_pin(path: Path) -> Pin:
    """Read a pin.

    Raises:
        Fault: a key is missing, unknown or of the wrong form.
    """
    everything = toml.load(path)
    vllm = _Table("vllm", everything.pop("vllm", None))
    sdist = _Table("sdist", everything.pop("sdist", None))
    wheels = _Table("wheels", everything.pop("wheels", {}))
    _Table("pin", everything).end()
    tables = {name: _Table(f"wheels.{name}", below) for name, below in wheels.left.items()}
    pin = Pin(
        version=vllm.take("version", str),
        repository=vllm.take("repository", str),
        tag=vllm.take("tag", str),
        commit=vllm.match("commit", _OBJECT_ID, "a full commit id"),
        base_tree=vllm.match("base_tree", _OBJECT_ID, "a full tree id"),
        sdist=_artifact(sdist),
        generated=_generated(sdist),
        wheels={name: _artifact(table) for name, table in tables.items()},
    )
    for table in (vllm, sdist, *tables.values()):
        table.end()
    return pin


def _lines(table: str, values: Mapping[str, object]) -> str:
    # A JSON string, number or list of strings means the same in TOML.
    body = "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
    return f"[{table}]\n{body}"


def _file_keys(artifact: Artifact) -> dict[str, object]:
    return {
        "project": artifact.project,
        "file": artifact.file,
        "size": artifact.size,
        "sha256": artifact.sha256,
    }


def dump_pin(pin: Pin) -> str:
    """The one form of pin.toml: what `load_pin` reads, ready to be written."""
    vllm: dict[str, object] = {
        "version": pin.version,
        "repository": pin.repository,
        "tag": pin.tag,
        "commit": pin.commit,
        "base_tree": pin.base_tree,
    }
    sdist = {**_file_keys(pin.sdist), "generated": list(pin.generated)}
    parts = [
        _HEAD,
        _lines("vllm", vllm),
        _SDIST_HEAD + _lines("sdist", sdist),
        *(_lines(f"wheels.{name}", _file_keys(wheel)) for name, wheel in pin.wheels.items()),
    ]
    return "\n".join(parts)
