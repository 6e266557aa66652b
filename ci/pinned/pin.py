"""The pin: one vLLM commit, and the files that stand for it, with their hashes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated

import msgspec

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
    size: Annotated[int, msgspec.Meta(gt=0)]
    sha256: str


@dataclass(frozen=True)
class Pin:
    """What the series stands on.

    Attributes:
        commit: empty where only the start of its id is known, as the sdist has it;
            then vLLM comes from the sdist only.
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
                f"the pin of vLLM {self.version} names no precompiled wheel for {name}",
                todo=f"choose one of {', '.join(sorted(self.wheels))}"
                if self.wheels
                else "none is known",
            )
        return self.wheels[name]


@dataclass(frozen=True, kw_only=True)
class _Release:
    """[vllm] of the file."""

    version: str
    repository: str
    tag: str
    commit: str = ""
    base_tree: str


@dataclass(frozen=True)
class _Sdist(Artifact):
    """[sdist] of the file."""

    generated: tuple[str, ...]


@dataclass(frozen=True)
class _File:
    """The file as a whole."""

    vllm: _Release
    sdist: _Sdist
    wheels: Mapping[str, Artifact] = field(default_factory=dict)


# Some of these become arguments of git and pip: none may be taken for an option.
_FORMS: Mapping[str, tuple[str, str]] = {
    "version": (r"[0-9][0-9A-Za-z.!+_-]*", "a version"),
    "repository": (r"[A-Za-z0-9/.~][^\s\0]*", "a URL or a path"),
    "tag": (r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._+/-]*", "a tag"),
    "commit": (r"[0-9a-f]{40}", "a full commit id"),
    "base_tree": (r"[0-9a-f]{40}", "a full tree id"),
    "project": (r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", "the name of a package"),
    "file": (_FILE.pattern, "a plain file name"),
    "sha256": (r"[0-9a-f]{64}", "64 hex digits"),
}
"""Key -> what its value looks like, and what that is called."""


def load_pin(path: Path) -> Pin:
    """Read a pin.

    Raises:
        Fault: a key is missing, unknown or of the wrong form.
    """
    name = "/".join(path.parts[-3:])  # patches/LINE/pin.toml
    read = toml.read(path, _File, name)
    named = {f"wheels.{name}": wheel for name, wheel in read.wheels.items()}
    for where, table in {"vllm": read.vllm, "sdist": read.sdist, **named}.items():
        for key, (form, what) in _FORMS.items():
            value = getattr(table, key, None)
            if value is None or (key == "commit" and not value):
                continue
            if not re.fullmatch(form, value):
                raise Fault(
                    f"{name}: {where}.{key} should be {what}, is {value!r}",
                    todo=f"correct it, or restore the file: git checkout -- {name}",
                )
    sdist = asdict(read.sdist)
    generated = sdist.pop("generated")
    return Pin(
        **asdict(read.vllm), sdist=Artifact(**sdist), generated=generated, wheels=read.wheels
    )


def _lines(table: str, values: Mapping[str, object]) -> str:
    # A JSON string, number or list of strings means the same in TOML.
    body = "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
    return f"[{table}]\n{body}"


def dump_pin(pin: Pin) -> str:
    """The one form of pin.toml: what `load_pin` reads, ready to be written."""
    vllm = {one.name: getattr(pin, one.name) for one in fields(_Release)}
    if not pin.commit:
        del vllm["commit"]
    sdist = {**asdict(pin.sdist), "generated": list(pin.generated)}
    parts = [
        _HEAD,
        _lines("vllm", vllm),
        _SDIST_HEAD + _lines("sdist", sdist),
        *(_lines(f"wheels.{name}", asdict(wheel)) for name, wheel in pin.wheels.items()),
    ]
    return "\n".join(parts)
