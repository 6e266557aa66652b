"""Putting a new series in the place of the old one: all of it or nothing.

What changes is first staged whole, the old files and the new ones each in a
folder; one rename of that stage is the moment of change. From then on every
new file is copied and moved into place, the lock last. A run that is cut short
is finished by the next one, and an error on the way (a folder that cannot be
written) puts the old files back: both go by comparing the checkout with the stage.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from ci.core import files as on_disk
from ci.core.checkpoints import checkpoint
from ci.core.content import FOLDER, REGULAR, Content
from ci.core.errors import Fault, listed
from ci.core.layout import Layout
from ci.series.lock import Lock, dump_lock
from ci.series.model import SeriesFiles, dump_series, list_files, own_comments

_Side = Mapping[str, "Content | None"]
"""Paths from the checkout's root, each with its content; None where no file is."""


def _stage(layout: Layout) -> Path:
    return layout.build / "swap"


def _at(folder: Path, path: str) -> bytes:
    return on_disk.under(folder, path.encode("utf-8"))


def _read(folder: Path, paths: Iterable[str]) -> dict[str, Content | None]:
    found = {path: on_disk.read(_at(folder, path)) for path in paths}
    return {p: None if c and c.mode == FOLDER else c for p, c in found.items()}


def _present(layout: Layout) -> set[str]:
    """Every file of the series that is there."""
    found = [
        *layout.patches.glob("*.patch"),
        *map(layout.overlay.joinpath, list_files(layout.overlay)),
    ]
    return {path.relative_to(layout.root).as_posix() for path in found}


def _wanted(layout: Layout, files: SeriesFiles, lock: Lock) -> dict[str, Content]:
    """Every file of a series."""
    found = {layout.patches / name: Content(REGULAR, data) for name, data in files.patches.items()}
    found[layout.series] = Content(REGULAR, dump_series(files.series))
    found[layout.lock] = Content(REGULAR, dump_lock(lock))
    found.update({layout.overlay / path: content for path, content in files.overlay.items()})
    return {path.relative_to(layout.root).as_posix(): one for path, one in found.items()}


def write_series(
    layout: Layout,
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
    wanted = {**_wanted(layout, files, lock), **more}
    current = _read(layout.root, _present(layout) | set(wanted))
    _keep_comments(layout)
    changed = sorted(path for path in current if current[path] != wanted.get(path))
    if not changed:
        return []
    old = {path: current[path] for path in changed}
    new = {path: wanted.get(path) for path in changed}
    _write_stage(layout, old, new)
    try:
        _move(layout, new)
    except OSError:
        _move(layout, old)
        _clear(layout)
        raise
    _clear(layout)
    return changed


def changed(layout: Layout, paths: Iterable[str]) -> list[str]:
    """What `write_series` did, for a person, a line for each path."""
    now = _read(layout.root, paths)
    return [f"{'wrote' if content else 'removed'} {path}" for path, content in now.items()]


def _keep_comments(layout: Layout) -> None:
    comments = own_comments(layout.series.read_bytes()) if layout.series.exists() else []
    if comments:
        raise Fault(
            f"{layout.series.relative_to(layout.root)} has comments that would be lost: "
            "it is written anew",
            todo="move them to the patches' messages or to docs/",
            details=tuple(comments),
        )


def _write_stage(layout: Layout, old: _Side, new: _Side) -> None:
    stage = _stage(layout)
    draft = stage.with_name("swap.draft")
    for left in (draft, stage):
        shutil.rmtree(left, ignore_errors=True)
    draft.mkdir(parents=True)
    for name, side in (("old", old), ("new", new)):
        for path, content in side.items():
            if content is not None:
                where = _at(draft / name, path)
                Path(os.fsdecode(where)).parent.mkdir(parents=True, exist_ok=True)
                on_disk.write_new(where, content)
                checkpoint(f"swap: staged {name} {path}")
    draft.replace(stage)
    checkpoint("swap: stage in place")


def _move(layout: Layout, to: _Side) -> None:
    """Make files of the checkout what they are in `to`, the lock last."""
    now = _read(layout.root, to)
    late = layout.lock.relative_to(layout.root).as_posix()
    draft = _stage(layout) / "draft"
    # Deletions first: a file may make way for a folder of its name.
    for path, content in sorted(to.items(), key=lambda one: (one[1] is not None, one[0] == late)):
        if content is None and now[path] is not None:
            top, _, below = path.partition("/")
            on_disk.remove(layout.root / top, below.encode("utf-8"))
            checkpoint(f"swap: removed {path}")
        elif content is not None and content != now[path]:
            draft.unlink(missing_ok=True)
            on_disk.write_new(os.fsencode(draft), content)
            on_disk.put(draft, _at(layout.root, path))
            checkpoint(f"swap: put {path}")


def _clear(layout: Layout) -> None:
    stage = _stage(layout)
    checkpoint("swap: before the stage goes")
    stage.replace(stage.with_name("swap.draft"))
    checkpoint("swap: stage gone")
    shutil.rmtree(stage.with_name("swap.draft"), ignore_errors=True)


def recover(layout: Layout) -> bool:
    """Finish a swap that was cut short.

    Returns:
        Whether there was one.

    Raises:
        Fault: a file of it was edited since; nothing is touched then.
    """
    stage = _stage(layout)
    if not stage.exists():
        return False
    paths = sorted({*list_files(stage / "old"), *list_files(stage / "new")})
    old, new = _read(stage / "old", paths), _read(stage / "new", paths)
    now = _read(layout.root, paths)
    edited = [path for path in paths if now[path] not in (old[path], new[path])]
    if edited:
        raise Fault(
            "an interrupted refresh cannot be finished: files were edited since",
            todo=f"move your versions away, or delete {stage} to keep them as they are",
            details=listed(edited),
        )
    _move(layout, new)
    _clear(layout)
    return True
