"""Which lines a checkout carries, and which one is meant.

A line is a folder below `patches/` that holds a pin. `patches/lines.toml` names
the one that is meant where nobody names another.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ci.core import toml
from ci.core.errors import Fault
from ci.core.layout import Layout

# The name is a folder's and a part of a ref's.
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
DEFAULT = "patches/lines.toml"
FOLDERS = ("patches", "overlay", "tests", "bench")
"""What holds a folder for each line that is the line's own."""


def check_name(name: str) -> str:
    """Hand back a name that a line can have.

    Raises:
        Fault: it is no plain folder name.
    """
    if not _NAME.fullmatch(name) or ".." in name or name.endswith(".lock"):
        raise Fault(
            f"a line cannot be called {name!r}",
            todo="take letters, digits, dots and dashes, such as 0.34.0",
        )
    return name


def names(root: Path) -> tuple[str, ...]:
    """The lines of a checkout, sorted by name.

    Raises:
        Fault: a folder below patches/ holds no pin, or there is none.
    """
    if os.path.lexists(root / "pin.toml"):
        raise Fault(
            f"{root} is laid out for one vLLM: pin.toml lies at its top",
            todo="git mv pin.toml, the content of patches/ and overlay/ and the line's tests into "
            "patches/NAME, overlay/NAME and tests/NAME, and name it in patches/lines.toml",
        )
    folders = [path for path in sorted((root / "patches").glob("*")) if path.is_dir()]
    for folder in folders:
        if not os.path.lexists(folder / "pin.toml"):
            where = folder.relative_to(root)
            raise Fault(
                f"{where} has no pin.toml, so it is no line",
                todo=f"restore it (git checkout -- {where}) or delete the folder",
            )
        check_name(folder.name)
    _check_pins(root, [folder.name for folder in folders])
    if not folders:
        raise Fault(
            f"{root} has no line: no folder of patches/ holds a pin.toml",
            todo="run this in a checkout of the project",
        )
    return tuple(folder.name for folder in folders)


def _version(root: Path, line: str) -> str:
    """The vLLM that a line's pin names, checked no further."""
    name = f"patches/{line}/pin.toml"
    vllm = toml.load(root / name, name).get("vllm")
    return str(vllm.get("version")) if isinstance(vllm, dict) else f"of {line}"


def _check_pins(root: Path, lines: Sequence[str]) -> None:
    """See that no two lines stand on the same vLLM: they would share refs and wheels' versions."""
    seen: dict[str, str] = {}
    for line in lines:
        version = _version(root, line)
        if other := seen.get(version):
            raise Fault(
                f"the lines {other} and {line} have the same pin, vLLM {version}",
                todo=f"merge one into the other, and delete its folder (say, patches/{line})",
            )
        seen[version] = line


def check_free(root: Path, name: str, version: str, instead_of: str = "") -> None:
    """See that there may be a line `name` on the vLLM `version`.

    Args:
        instead_of: a line that it takes the place of.

    Raises:
        Fault: another line has the name or the pin.
    """
    for line in (line for line in names(root) if line != instead_of):
        if line == name or _version(root, line) == version:
            what = f"called {name}" if line == name else f"on vLLM {version}, {line}"
            raise Fault(
                f"there is a line {what} already",
                todo=f"work on that one (--line {line}), or delete its folders first",
            )


def default(root: Path, known: tuple[str, ...]) -> str:
    """The line that patches/lines.toml names.

    Raises:
        Fault: it names none, or one that is not there.
    """
    name = toml.load(root / DEFAULT, DEFAULT).get("default")
    if not isinstance(name, str) or name not in known:
        what = f"names the line {name}, which is not there" if name else "names no line"
        raise Fault(f"{DEFAULT} {what}", todo=f'write default = "{known[-1]}" into it')
    return name


def choose(root: Path, name: str | None, env: Mapping[str, str] = os.environ) -> Layout:
    """The line `name`, or the one that LINE names, or the default.

    Raises:
        Fault: there is no such line; says which there are.
    """
    known = names(root)
    wanted = name or env.get("LINE") or default(root, known)
    if wanted not in known:
        raise Fault(f"there is no line {wanted}", todo=f"choose one of {', '.join(known)}")
    return Layout(root, wanted)


def every(root: Path) -> list[Layout]:
    """All lines, the default one first."""
    known = names(root)
    first = default(root, known)
    return [Layout(root, name) for name in (first, *(n for n in known if n != first))]
