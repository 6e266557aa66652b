"""Folders that are costly to make and kept as long as what they are made from stays."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

_KEY = ".made-from"


def kept(folder: Path, key: str, make: Callable[[Path], None]) -> bool:
    """See that `folder` is what `make` makes for `key`; True if it had to be made.

    `make` gets an empty folder beside it, which takes the name only when whole.
    """
    stamp = folder / _KEY
    if stamp.is_file() and stamp.read_text("utf-8") == key:
        return False
    part = folder.with_name(f"{folder.name}.part")
    for old in (part, folder):
        if old.exists():
            shutil.rmtree(old)
    part.mkdir(parents=True)
    make(part)
    (part / _KEY).write_text(key, "utf-8")
    part.rename(folder)
    return True


def key_of(*words: str, files: Iterable[Path] = ()) -> str:
    """A key over words and the content of files."""
    digest = hashlib.sha256()
    for word in words:
        digest.update(word.encode() + b"\0")
    for path in sorted(files):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def sources_below(folder: Path) -> list[Path]:
    """The files below a folder of ours, without what running them leaves there."""
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    ]
