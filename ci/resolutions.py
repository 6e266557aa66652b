"""How conflicts were solved: kept in patches/resolutions, and used again.

A resolution is a patch from the marked files to the solved ones. Its context
holds the marks and both sides, so it fits exactly where the same conflict
comes up again, whatever else changed in the file, and a reviewer can read it.
The file's name says for which patch it is and on which vLLM it was made.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ci import patchfile
from ci.errors import Fault
from ci.filediff import FileDiff
from ci.layout import Layout
from ci.messages import Message
from ci.patchfile import AUTHOR, Malformed, PatchFile
from ci.rolling import Resolution

_BETWEEN = "--"
"""Parts patch and target in a file name. No target's part holds it, so that the
last one counts: a patch's name may end in a dash."""
_DATE = "0 +0000"


def folder(layout: Layout) -> Path:
    """Where the resolutions lie."""
    return layout.patches / "resolutions"


def load(layout: Layout) -> list[Resolution]:
    """Every kept resolution.

    Raises:
        Fault: a file there is none.
    """
    return [_read(path) for path in sorted(folder(layout).glob("*.patch"))]


def _read(path: Path) -> Resolution:
    patch, between, _ = path.stem.rpartition(_BETWEEN)
    where = f"patches/resolutions/{path.name}"
    if not between:
        raise Fault(
            f"{where} does not say for which patch it is",
            todo=f"call it PATCH{_BETWEEN}TARGET.patch, or delete it",
        )
    try:
        return Resolution(patch, patchfile.parse(path.read_bytes()).files)
    except Malformed as fault:
        raise Fault(f"{where}: {fault.what}", todo="restore it, or delete it") from None


def save(layout: Layout, patch: str, target: str, diffs: Sequence[FileDiff]) -> Path:
    """Keep a resolution; one of the same name that is for other conflicts stays."""
    message = Message(
        f"Resolution of {patch} on vLLM {target}",
        "From the files as the roll marked them to the files as they were solved.",
    )
    data = patchfile.render(PatchFile(message, AUTHOR, _DATE, tuple(diffs)))
    where = re.sub(r"[^A-Za-z0-9._+]+", "-", target).strip("-")
    path = folder(layout) / f"{patch}{_BETWEEN}{where}.patch"
    number = 2
    while path.exists() and path.read_bytes() != data:
        path = folder(layout) / f"{patch}{_BETWEEN}{where}.{number}.patch"
        number += 1
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    draft.write_bytes(data)
    draft.replace(path)
    return path
