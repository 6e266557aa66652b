"""Folders and files that are costly to make, made once for each key.

The key stands for everything that the result depends on. A folder carries its
key inside; a file has a note beside it, which also records size, time and
sha256, so that a file changed by hand is made again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

_KEY = ".made-from"


def ensure_built(
    folder: Path, key: str, make: Callable[[Path], None], *, in_place: bool = False
) -> bool:
    """Make sure that `folder` holds what `make` gives for `key`; True if it was made now.

    `make` gets an empty folder, which carries the key only when complete.

    Args:
        in_place: make it under its final name, for what cannot be renamed (a
            virtual environment holds its own path), instead of beside it.
    """
    stamp = folder / _KEY
    if stamp.is_file() and stamp.read_text("utf-8") == key:
        return False
    part = folder if in_place else folder.with_name(f"{folder.name}.part")
    for old in {part, folder}:
        if old.exists():
            shutil.rmtree(old)
    part.mkdir(parents=True)
    make(part)
    (part / _KEY).write_text(key, "utf-8")
    if part != folder:
        part.rename(folder)
    return True


def note(path: Path, key: str, sha256: str = "") -> None:
    """Record that the file at `path` was made for `key`; its sha256, where known."""
    noted = {"key": key, **_look(path), "sha256": sha256 or sha256_of(path)}
    partial = _note_of(path).with_suffix(".part")
    partial.write_text(json.dumps(noted) + "\n", "utf-8")
    partial.replace(_note_of(path))


def is_noted(path: Path, key: str) -> bool:
    """Whether the file at `path` exists, unchanged since `note(path, key)`.

    Its content is read only where size or time differ: a copied or touched
    file may still be the same.
    """
    try:
        noted: dict[str, Any] = json.loads(_note_of(path).read_bytes())
        look = _look(path)
        if noted["key"] != key:
            return False
        if {name: noted[name] for name in look} == look:
            return True
        if noted["size"] != look["size"] or noted["sha256"] != sha256_of(path):
            return False
    except (OSError, ValueError, KeyError, TypeError):
        return False
    note(path, key, noted["sha256"])
    return True


def _note_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.json")


def _look(path: Path) -> dict[str, int]:
    """What changes whenever a file is written, found without reading it."""
    status = path.stat()
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "inode": status.st_ino}


def sha256_of(path: Path) -> str:
    """The sha256 of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def key_of(*parts: str, files: Iterable[Path] = ()) -> str:
    """A key over texts and the names and contents of files."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() + b"\0")
    for path in sorted(files):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def sources_below(folder: Path) -> list[Path]:
    """The files below a folder of ours, without compiled Python."""
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    ]
