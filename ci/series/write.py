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
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from ci.core import files as on_disk
from ci.core.checkpoints import checkpoint
from ci.core.content import FOLDER, REGULAR, Content
from ci.core.errors import Fault, listed
from ci.core.progress import say
from ci.series.lock import Lock, dump_lock
from ci.series.model import SeriesFiles, dump_series, list_files, own_comments
from ci.series.paths import SeriesPaths, named

_Side = Mapping[str, "Content | None"]
"""Paths from the checkout's root, each with its content; None where no file is."""
_JOURNAL = "swap"


@dataclass(frozen=True)
class _Swap:
    """A change of files.

    Attributes:
        build: the folder of the line's build, in which the change is written down.
        old, new: the files before and after it.
        becomes: the name that `build` gets with it.
    """

    root: Path
    build: Path
    old: _Side
    new: _Side
    becomes: str

    @property
    def journal(self) -> Path:
        return self.build / _JOURNAL


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
    more: _Side = MappingProxyType({}),
    build: Path | None = None,
) -> list[str]:
    """Make the checkout hold this series and nothing else of one.

    Args:
        more: files that change with it, by their path from the checkout's root.
        build: the line's build folder so far, if it is to get another name.

    Returns:
        The paths that changed; none are written where nothing differs.

    Raises:
        Fault: series.toml holds comments; nothing is touched then.
    """
    wanted: dict[str, Content | None] = {**_wanted(folders, files, lock), **more}
    current = _read(folders.root, _present(folders) | set(wanted))
    _keep_comments(current)
    differing = sorted(path for path in current if current[path] != wanted.get(path))
    if not differing:
        return []
    old = {path: current[path] for path in differing}
    new = {path: wanted.get(path) for path in differing}
    swap = _Swap(folders.root, build or folders.build, old, new, folders.build.name)
    swap.build.mkdir(parents=True, exist_ok=True)
    _put(swap, os.fsencode(swap.journal), Content(REGULAR, _dump(swap)))
    checkpoint("swap: stage in place")
    try:
        _move(swap, new)
    except OSError:
        _move(swap, old)
        swap.journal.unlink()
        raise
    checkpoint("swap: before the stage goes")
    _finish(swap)
    checkpoint("swap: stage gone")
    return differing


def _finish(swap: _Swap) -> None:
    """Give the build folder its name, and forget the change, which is made."""
    build = swap.build.with_name(swap.becomes)
    if swap.build != build:
        swap.build.rename(build)
        checkpoint("swap: build folder renamed")
    (build / _JOURNAL).unlink()


def changed(folders: SeriesPaths, paths: Iterable[str]) -> list[str]:
    """What `write_series` did, for a person, a line for each path."""
    now = _read(folders.root, paths)
    return [f"{'wrote' if content else 'removed'} {path}" for path, content in now.items()]


def _keep_comments(current: _Side) -> None:
    for path, content in current.items():
        comments = own_comments(content.data) if content and path.endswith("/series.toml") else []
        if comments:
            raise Fault(
                f"{path} has comments that would be lost: it is written anew",
                todo="move them to the patches' messages or to docs/",
                details=tuple(comments),
            )


def _dump(swap: _Swap) -> bytes:
    def plain(content: Content | None) -> list[str] | None:
        return [content.mode, base64.b64encode(content.data).decode()] if content else None

    files = {path: [plain(swap.old[path]), plain(swap.new[path])] for path in swap.new}
    return json.dumps({"files": files, "becomes": swap.becomes}).encode()


def _load(root: Path, journal: Path) -> _Swap:
    def content(plain: list[str] | None) -> Content | None:
        return Content(plain[0], base64.b64decode(plain[1])) if plain else None

    data = json.loads(on_disk.read_plain(journal))
    # An older one holds nothing but the files.
    sides = data.get("files", data).items()
    old = {path: content(before) for path, (before, _) in sides}
    new = {path: content(after) for path, (_, after) in sides}
    return _Swap(root, journal.parent, old, new, data.get("becomes", journal.parent.name))


def _put(swap: _Swap, where: bytes, content: Content) -> None:
    """Write a file in one step, over the one that is there."""
    draft = swap.build / "swap.draft"
    draft.unlink(missing_ok=True)
    on_disk.write_new(os.fsencode(draft), content)
    on_disk.put(draft, where)


def _move(swap: _Swap, to: _Side) -> None:
    """Make files of the checkout what they are in `to`, the lock last."""
    now = _read(swap.root, to)

    def late(change: tuple[str, Content | None]) -> tuple[bool, bool]:
        path, content = change
        return content is not None, path.endswith("/series.lock")

    # Deletions first: a file may make way for a folder of its name.
    for path, content in sorted(to.items(), key=late):
        if content is None and now[path] is not None:
            top, _, below = path.partition("/")
            on_disk.remove(swap.root / top, below.encode("utf-8"))
            checkpoint(f"swap: removed {path}")
        elif content is not None and content != now[path]:
            _put(swap, _at(swap.root, path), content)
            checkpoint(f"swap: put {path}")


def cut_short(root: Path) -> list[Path]:
    """The changes of a checkout's series that wait to be finished."""
    return sorted(root.glob(f"build/*/{_JOURNAL}"))


def recover(root: Path) -> None:
    """Finish what was cut short, with the checkout's lock held.

    Raises:
        Fault: a file of it was edited since; nothing is touched then.
    """
    for journal in cut_short(root):
        swap = _load(root, journal)
        now = _read(root, swap.new)
        edited = [path for path in now if now[path] not in (swap.old[path], swap.new[path])]
        if edited:
            raise Fault(
                "an interrupted refresh cannot be finished: files were edited since",
                todo=f"move your versions away, or delete {journal} to keep them as they are",
                details=listed(edited),
            )
        _move(swap, swap.new)
        _finish(swap)
        say("finished a change of the series that was cut short")
