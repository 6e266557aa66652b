"""What is costly to make is made once for each key: folders, and single files.

The key says what something is made from. A folder carries its key inside; a
file has a note beside it, which also says what the file looked like, so that
one that was changed by hand does not count as made.
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
    """See that `folder` is what `make` makes for `key`; True if it had to be made.

    `make` gets an empty folder, which carries the key only when whole.

    Args:
        in_place: make it under its own name, for what cannot be renamed (a
            virtual environment holds its own path); else it is made beside it.
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
    """Note that the file at `path` is what `key` says; its sha256, where it is known."""
    noted = {"key": key, **_look(path), "sha256": sha256 or sha256_of(path)}
    partial = _note_of(path).with_suffix(".part")
    partial.write_text(json.dumps(noted) + "\n", "utf-8")
    partial.replace(_note_of(path))


def is_noted(path: Path, key: str) -> bool:
    """Whether the file at `path` is there, unchanged since `note(path, key)`.

    Its content is read only where size or time differ: copied or touched, it
    may still be the same file.
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
    """What changes whenever a file is written to, without reading it."""
    status = path.stat()
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "inode": status.st_ino}


def sha256_of(path: Path) -> str:
    """The sha256 of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


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
