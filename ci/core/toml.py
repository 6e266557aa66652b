"""Reading TOML into dataclasses, with a fault that names file, table and key."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ci.core import files
from ci.core.content import has_conflicts
from ci.core.errors import Fault

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_T = TypeVar("_T")
# A step of the place that msgspec names, as in `$.patch[3].overlay[0]`.
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")


def load(path: Path, name: str = "") -> dict[str, Any]:
    """What the TOML file at `path` holds.

    Args:
        name: what to call it in a fault, by its path from the checkout's root.

    Raises:
        Fault: there is no such file, or it is not TOML.
    """
    name = name or path.name
    try:
        return parse(files.read_plain(path), name)
    except FileNotFoundError:
        raise Fault(f"{name} is missing", todo=f"restore it: git checkout -- {name}") from None


def parse(data: bytes, name: str) -> dict[str, Any]:
    """What TOML says that is called `name` in a fault.

    Raises:
        Fault: it is not TOML, or a merge left its conflicts in it.
    """
    try:
        table: dict[str, Any] = tomllib.loads(data.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        if has_conflicts(data):
            todo = f"resolve them in the file, then: git add {name}"
            raise Fault(f"{name} has merge conflicts", todo=todo) from None
        raise Fault(f"{name} is not valid TOML", todo=str(error)) from None
    return table


def read(path: Path, form: type[_T], name: str = "") -> _T:
    """The TOML file at `path` as a `form`, a dataclass whose fields are the file's keys.

    Args:
        name: what to call it in a fault, by its path from the checkout's root.

    Raises:
        Fault: there is no such file, it is not TOML, or a key is missing,
            unknown or of the wrong type.
    """
    name = name or path.name
    return structure(load(path, name), form, name)


def structure(table: Mapping[str, Any], form: type[_T], name: str) -> _T:
    """The table of the file called `name` as a `form`; see `read`.

    Raises:
        Fault: a key is missing, unknown or of the wrong type.
    """
    todo = f"correct it, or restore the file: git checkout -- {name}"
    try:
        value = msgspec.convert(table, form)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at ")
        where = f"{_where(table, place.strip('`').replace('[...]', ''))}: " if place else ""
        raise Fault(f"{name}: {where}{what[0].lower()}{what[1:]}", todo=todo) from None
    # msgspec passes over keys that a dataclass has no field for. A misspelt
    # key is a mistake, so what was read has to be all that was there.
    for where in _left_out(table, msgspec.to_builtins(value), "$"):
        place, _, key = where.rpartition(".")
        said = f"{_where(table, place)}: " if place != "$" else ""
        raise Fault(f"{name}: {said}unknown key `{key}`", todo=todo)
    return value


def _where(table: Any, place: str) -> str:
    """A place in words: each entry of a list by its file, its name or its number."""
    said = []
    for key, index in _STEP.findall(place):
        if key:
            said.append(key)
            table = table.get(key, {}) if isinstance(table, dict) else {}
            continue
        table = table[int(index)]
        names = table if isinstance(table, dict) else {}
        said.append(str(names.get("file") or names.get("name") or f"number {int(index) + 1}"))
    return " ".join(said)


def _left_out(table: Any, read: Any, place: str) -> Iterator[str]:
    """The place of each key of `table` that is not in `read`."""
    if isinstance(table, dict):
        for key, value in table.items():
            if key in read:
                yield from _left_out(value, read[key], f"{place}.{key}")
            else:
                yield f"{place}.{key}"
    elif isinstance(table, list):
        for index, pair in enumerate(zip(table, read, strict=True)):
            yield from _left_out(*pair, f"{place}[{index}]")
