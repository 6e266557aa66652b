"""Putting a new series in the place of the old one: all of it or nothing.

What changes is first written down whole, old and new, in one file: that it is in
place is the moment of change. From then on every new file is moved into place,
the lock last. A run that is cut short is finished by the next one, and an error
on the way (a folder that cannot be written) puts the old files back: both go by
comparing the checkout with what was written down.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from ci.core import files as on_disk
from ci.core.checkpoints import checkpoint
from ci.core.content import FOLDER, REGULAR, Content
from ci.core.errors import Fault, listed
from ci.series.lock import Lock, dump_lock
from ci.series.model import SeriesFiles, dump_series, list_files, own_comments
from ci.series.paths import SeriesPaths, named

_Side = Mapping[str, "Content | None"]
"""Paths from the checkout's root, each with its content; None where no file is."""


def _journal(folders: SeriesPaths) -> Path:
    """Where a change is written down until it is made."""
    return folders.build / "swap"


def _at(folder: Path, path: str) -> bytes:
    return on_disk.under(folder, path.encode("utf-8"))


def _read(folder: Path, paths: Iterable[str]) -> dict[str, Content | None]:
    found = {path: on_disk.read(_at(folder, path)) for path in paths}
    return {p: None if c and c.mode == FOLDER else c for p, c in found.items()}


def _present(folders: SeriesPaths) -> set[str]:
    """Every file of the series that is there."""
    overlay = map(folders.overlay.joinpath, list_files(folders.overlay))
    found = [*folders.patches.glob("*.patch"), *overlay]
    return {named(folders, path) for path in found}


def _wanted(folders: SeriesPaths, files: SeriesFiles, lock: Lock) -> dict[str, Content]:
    """Every file of a series."""
    found = {folders.patches / name: Content(REGULAR, data) for name, data in files.patches.items()}
    found[folders.series] = Content(REGULAR, dump_series(files.series))
    found[folders.lock] = Content(REGULAR, dump_lock(lock))
    found.update({folders.overlay / path: content for path, content in files.overlay.items()})
    return {named(folders, path): one for path, one in found.items()}


def write_series(
    folders: SeriesPaths,
    files: SeriesFiles,
    lock: Lock,
    more: Mapping[str, Content] = MappingProxyType({}),
) -> list[str]:
    """Make the checkout hold this series and nothing else of one.

    Args:
        more: files that change with it, by their path from the checkout's root.

    Returns:
        The paths that changed; none are written where nothing differs.

    Raises:
        Fault: series.toml holds comments; nothing is touched then.
    """
    wanted = {**_wanted(folders, files, lock), **more}
    current = _read(folders.root, _present(folders) | set(wanted))
    _keep_comments(folders)
    differing = sorted(path for path in current if current[path] != wanted.get(path))
    if not differing:
        return []
    old = {path: current[path] for path in differing}
    new = {path: wanted.get(path) for path in differing}
    folders.build.mkdir(parents=True, exist_ok=True)
    _put(folders, os.fsencode(_journal(folders)), Content(REGULAR, _dump(old, new)))
    checkpoint("swap: stage in place")
    try:
        _move(folders, new)
    except OSError:
        _move(folders, old)
        _journal(folders).unlink()
        raise
    checkpoint("swap: before the stage goes")
    _journal(folders).unlink()
    checkpoint("swap: stage gone")
    return differing


def changed(folders: SeriesPaths, paths: Iterable[str]) -> list[str]:
    """What `write_series` did, for a person, a line for each path."""
    now = _read(folders.root, paths)
    return [f"{'wrote' if content else 'removed'} {path}" for path, content in now.items()]


def _keep_comments(folders: SeriesPaths) -> None:
    comments = own_comments(folders.series.read_bytes()) if folders.series.exists() else []
    if comments:
        raise Fault(
            f"{named(folders, folders.series)} has comments that would be lost: it is written anew",
            todo="move them to the patches' messages or to docs/",
            details=tuple(comments),
        )


def _dump(old: _Side, new: _Side) -> bytes:
    def plain(content: Content | None) -> list[str] | None:
        return [content.mode, base64.b64encode(content.data).decode()] if content else None

    return json.dumps({path: [plain(old[path]), plain(new[path])] for path in new}).encode()


def _load(data: bytes) -> tuple[_Side, _Side]:
    def content(plain: list[str] | None) -> Content | None:
        return Content(plain[0], base64.b64decode(plain[1])) if plain else None

    sides = json.loads(data).items()
    return {p: content(old) for p, (old, _) in sides}, {p: content(new) for p, (_, new) in sides}


def _put(folders: SeriesPaths, where: bytes, content: Content) -> None:
    """Write a file in one step, over the one that is there."""
    draft = folders.build / "swap.draft"
    draft.unlink(missing_ok=True)
    on_disk.write_new(os.fsencode(draft), content)
    on_disk.put(draft, where)


def _move(folders: SeriesPaths, to: _Side) -> None:
    """Make files of the checkout what they are in `to`, the lock last."""
    now = _read(folders.root, to)
    late = named(folders, folders.lock)
    # Deletions first: a file may make way for a folder of its name.
    for path, content in sorted(to.items(), key=lambda one: (one[1] is not None, one[0] == late)):
        if content is None and now[path] is not None:
            top, _, below = path.partition("/")
            on_disk.remove(folders.root / top, below.encode("utf-8"))
            checkpoint(f"swap: removed {path}")
        elif content is not None and content != now[path]:
            _put(folders, _at(folders.root, path), content)
            checkpoint(f"swap: put {path}")


def recover(folders: SeriesPaths) -> bool:
    """Finish a swap that was cut short.

    Returns:
        Whether there was one.

    Raises:
        Fault: a file of it was edited since; nothing is touched then.
    """
    journal = _journal(folders)
    if not journal.exists():
        return False
    old, new = _load(on_disk.read_plain(journal))
    now = _read(folders.root, new)
    edited = [path for path in new if now[path] not in (old[path], new[path])]
    if edited:
        raise Fault(
            "an interrupted refresh cannot be finished: files were edited since",
            todo=f"move your versions away, or delete {journal} to keep them as they are",
            details=listed(edited),
        )
    _move(folders, new)
    journal.unlink()
    return True
