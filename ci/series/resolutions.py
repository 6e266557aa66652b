"""How conflicts were solved: kept beside the patches, and used again.

A resolution is a patch from the marked files to the solved ones. Its context
holds the marks and both sides, so it fits exactly where the same conflict
comes up again, whatever else changed in the file, and a reviewer can read it.
The file's name says for which patch it is and on which vLLM it was made.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ci.core.errors import Fault
from ci.series import patch as patchfile
from ci.series.diff import FileDiff, Malformed
from ci.series.message import Message
from ci.series.patch import AUTHOR, PatchFile

_BETWEEN = "--"
"""Parts patch and target in a file name. No target's part holds it, so that the
last one counts: a patch's name may end in a dash."""
_DATE = "0 +0000"


@dataclass(frozen=True)
class Resolution:
    """How the conflicts of one patch were solved before: changes to its marked files."""

    patch: str
    diffs: tuple[FileDiff, ...]


def load(folder: Path) -> list[Resolution]:
    """Every resolution in a folder.

    Raises:
        Fault: a file there is none.
    """
    return [_read(path) for path in sorted(folder.glob("*.patch"))]


def _read(path: Path) -> Resolution:
    patch, between, _ = path.stem.rpartition(_BETWEEN)
    if not between:
        raise Fault(
            f"{path} does not say for which patch it is",
            todo=f"call it PATCH{_BETWEEN}TARGET.patch, or delete it",
        )
    try:
        return Resolution(patch, patchfile.parse(path.read_bytes()).files)
    except Malformed as fault:
        raise Fault(f"{path}: {fault.what}", todo="restore it, or delete it") from None


def save(folder: Path, patch: str, target: str, diffs: Sequence[FileDiff]) -> Path:
    """Keep a resolution; one of the same name that is for other conflicts stays."""
    message = Message(
        f"Resolution of {patch} on vLLM {target}",
        "From the files as the roll marked them to the files as they were solved.",
    )
    data = patchfile.render(PatchFile(message, AUTHOR, _DATE, tuple(diffs)))
    name = f"{patch}{_BETWEEN}" + re.sub(r"[^A-Za-z0-9._+]+", "-", target).strip("-")
    path = folder / f"{name}.patch"
    number = 2
    while path.exists() and path.read_bytes() != data:
        path = folder / f"{name}.{number}.patch"
        number += 1
    folder.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    draft.write_bytes(data)
    draft.replace(path)
    return path
