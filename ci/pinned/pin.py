"""The pin: one vLLM commit, and the files that stand for it, with their hashes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ci.core import toml
from ci.core.errors import Fault

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
# A file name is used as a name in one folder and nothing else.
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+!-]*")


def is_file_name(name: object) -> bool:
    """Whether a value may name a file in one of our folders, and leads to no other."""
    return isinstance(name, str) and _FILE.fullmatch(name) is not None


@dataclass(frozen=True)
class Artifact:
    """One file of a release on the package index.

    Attributes:
        project: the name of the package that it belongs to.
        size: in bytes; tells a download that was cut off from one that is wrong.
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


_Forms = Mapping[str, tuple[re.Pattern[str], str]]
"""Key -> what its value looks like, and what that is called.

Some of these become arguments of git and pip: none may be taken for an option.
"""
_OBJECT_ID = re.compile(r"[0-9a-f]{40}")
_VLLM: _Forms = {
    "version": (re.compile(r"[0-9][0-9A-Za-z.!+_-]*"), "a version"),
    "repository": (re.compile(r"[A-Za-z0-9/.~][^\s\0]*"), "a URL or a path"),
    "tag": (re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._+/-]*"), "a tag"),
    "commit": (_OBJECT_ID, "a full commit id"),
    "base_tree": (_OBJECT_ID, "a full tree id"),
}
_ARTIFACT: _Forms = {
    "project": (re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"), "the name of a package"),
    "file": (_FILE, "a plain file name"),
    "sha256": (re.compile(r"[0-9a-f]{64}"), "64 hex digits"),
}


def _wrong(key: str, why: str) -> Fault:
    return Fault(f"pin.toml: {key} {why}", todo="correct it, or restore the file")


def _table(name: str, values: object, forms: _Forms, *others: str) -> dict[str, Any]:
    """One table of the pin, with the keys of `forms` checked and those of `others` there.

    Raises:
        Fault: names the key that is missing, unknown or of the wrong form.
    """
    if not isinstance(values, dict):
        raise Fault(f"pin.toml has no [{name}]", todo="restore the file from version control")
    for key in values:
        # A misspelt key is a mistake, not one to be passed over.
        if key not in forms and key not in others:
            raise _wrong(f"{name}.{key}", "is not a known key")
    for key in (*forms, *others):
        if key not in values:
            raise _wrong(f"{name}.{key}", "is missing")
    for key, (pattern, what) in forms.items():
        if not isinstance(values[key], str) or not pattern.fullmatch(values[key]):
            raise _wrong(f"{name}.{key}", f"should be {what}, is {values[key]!r}")
    return values


def _artifact(name: str, table: Mapping[str, Any]) -> Artifact:
    if type(table["size"]) is not int or table["size"] <= 0:
        raise _wrong(f"{name}.size", f"should be a number of bytes, is {table['size']!r}")
    return Artifact(table["project"], table["file"], table["size"], table["sha256"])


def load_pin(path: Path) -> Pin:
    """Read a pin.

    Raises:
        Fault: a key is missing, unknown or of the wrong form.
    """
    everything = {"wheels": {}, **toml.load(path)}
    tables = _table("pin", everything, {}, "vllm", "sdist", "wheels")
    vllm = _table("vllm", tables["vllm"], _VLLM)
    sdist = _table("sdist", tables["sdist"], _ARTIFACT, "size", "generated")
    generated = sdist["generated"]
    if not isinstance(generated, list) or not all(isinstance(path, str) for path in generated):
        raise _wrong("sdist.generated", "should be a list of paths")
    names = _table("wheels", tables["wheels"], {}, *tables["wheels"])
    wheels = {name: _table(f"wheels.{name}", names[name], _ARTIFACT, "size") for name in names}
    return Pin(
        **vllm,
        sdist=_artifact("sdist", sdist),
        generated=tuple(generated),
        wheels={name: _artifact(f"wheels.{name}", table) for name, table in wheels.items()},
    )


def _lines(table: str, values: Mapping[str, object]) -> str:
    # A JSON string, number or list of strings means the same in TOML.
    body = "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
    return f"[{table}]\n{body}"


def dump_pin(pin: Pin) -> str:
    """The one form of pin.toml: what `load_pin` reads, ready to be written."""
    vllm = {key: getattr(pin, key) for key in _VLLM}
    sdist = {**asdict(pin.sdist), "generated": list(pin.generated)}
    parts = [
        _HEAD,
        _lines("vllm", vllm),
        _SDIST_HEAD + _lines("sdist", sdist),
        *(_lines(f"wheels.{name}", asdict(wheel)) for name, wheel in pin.wheels.items()),
    ]
    return "\n".join(parts)
