"""Putting a new series in the place of the old one: all of it or nothing.

The new files are staged whole, then a journal is put in place by one rename;
that is the moment of change. From then on the files are moved into place, and
a run that is cut short is finished by the next one. An error that comes up
while files are moved (a folder that cannot be written) takes back what was
moved.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from ci import files as on_disk
from ci.checkpoints import checkpoint
from ci.errors import Fault, listed
from ci.layout import Layout
from ci.lock import Lock, dump_lock
from ci.objects import REGULAR, Content
from ci.series import SeriesFiles, dump_series, list_overlay, own_comments

_JOURNAL = "journal.json"


@dataclass(frozen=True)
class _Move:
    """One file of the swap; `old` and `new` are `mode id` or empty for none."""

    path: str
    old: str
    new: str


def _folder(layout: Layout) -> Path:
    return layout.build / "swap"


def _key(content: Content | None) -> str:
    return f"{content.mode} {content.id}" if content else ""


def _now(layout: Layout, path: str) -> Content | None:
    return on_disk.read(_target(layout, path))


def _target(layout: Layout, path: str) -> bytes:
    return on_disk.under(layout.root, path.encode("utf-8"))


def series_content(files: SeriesFiles, lock: Lock) -> dict[str, Content]:
    """Every file of a series, by its path from the checkout's root."""
    found = {f"patches/{name}": Content(REGULAR, data) for name, data in files.patches.items()}
    found["patches/series.toml"] = Content(REGULAR, dump_series(files.series))
    found["patches/series.lock"] = Content(REGULAR, dump_lock(lock))
    found.update({f"overlay/{path}": content for path, content in files.overlay.items()})
    return found


def _present(layout: Layout) -> set[str]:
    patches = {f"patches/{p.name}" for p in layout.patches.glob("*.patch")}
    return patches | {f"overlay/{path}" for path in list_overlay(layout)}


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
    wanted = {**series_content(files, lock), **more}
    current = {path: _now(layout, path) for path in _present(layout) | set(wanted)}
    _keep_comments(current["patches/series.toml"])
    moves = [
        _Move(path, _key(current[path]), _key(wanted.get(path)))
        for path in sorted(current)
        if _key(current[path]) != _key(wanted.get(path))
    ]
    if moves:
        _stage(layout, moves, current, wanted)
        try:
            _carry_out(layout, moves)
        except OSError:
            _take_back(layout, moves)
            raise
        _clear(layout)
    return [move.path for move in moves]


def changed(layout: Layout, paths: Iterable[str]) -> list[str]:
    """What `write_series` did, for a person, a line for each path."""
    return [f"{'removed' if _now(layout, path) is None else 'wrote'} {path}" for path in paths]


def _keep_comments(old: Content | None) -> None:
    comments = own_comments(old.data) if old else []
    if comments:
        raise Fault(
            "patches/series.toml has comments that would be lost: it is written anew",
            todo="move them to the patches' messages or to docs/",
            details=tuple(comments),
        )


def _stage(
    layout: Layout,
    moves: list[_Move],
    old: Mapping[str, Content | None],
    new: Mapping[str, Content],
) -> None:
    folder = _folder(layout)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for number, move in enumerate(moves):
        for side, content in (("old", old[move.path]), ("new", new.get(move.path))):
            if content is not None:
                on_disk.write_new(os.fsencode(folder / f"{side}.{number}"), content)
        checkpoint(f"swap: staged {move.path}")
    text = json.dumps([[move.path, move.old, move.new] for move in moves])
    draft = folder / "journal.draft"
    on_disk.write_new(os.fsencode(draft), Content(REGULAR, text.encode()))
    checkpoint("swap: before the journal")
    draft.replace(folder / _JOURNAL)
    checkpoint("swap: journal in place")


def _remove(layout: Layout, path: str) -> None:
    top, _, below = path.partition("/")
    on_disk.remove(layout.root / top, below.encode("utf-8"))


def _carry_out(layout: Layout, moves: list[_Move]) -> None:
    # Deletions first: a file may make way for a folder of its name.
    for move in moves:
        if not move.new:
            _remove(layout, move.path)
            checkpoint(f"swap: removed {move.path}")
    for number, move in enumerate(moves):
        if move.new:
            on_disk.put(_folder(layout) / f"new.{number}", _target(layout, move.path))
            checkpoint(f"swap: put {move.path}")


def _take_back(layout: Layout, moves: list[_Move]) -> None:
    for move in moves:
        now = _key(_now(layout, move.path))
        if now != move.old and not move.old:
            _remove(layout, move.path)
    for number, move in enumerate(moves):
        if move.old and _key(_now(layout, move.path)) != move.old:
            on_disk.put(_folder(layout) / f"old.{number}", _target(layout, move.path))
    _clear(layout)


def _clear(layout: Layout) -> None:
    checkpoint("swap: before the journal goes")
    (_folder(layout) / _JOURNAL).unlink()
    checkpoint("swap: journal gone")
    shutil.rmtree(_folder(layout), ignore_errors=True)


def recover(layout: Layout) -> bool:
    """Finish a swap that was cut short.

    Returns:
        Whether there was one.

    Raises:
        Fault: a file of it was edited since; nothing is touched then.
    """
    journal = _folder(layout) / _JOURNAL
    if not journal.exists():
        return False
    moves = [_Move(*words) for words in json.loads(journal.read_bytes())]
    edited = [
        move.path for move in moves if _key(_now(layout, move.path)) not in (move.old, move.new)
    ]
    if edited:
        raise Fault(
            "an interrupted refresh cannot be finished: files were edited since",
            todo=f"move your versions away, or delete {_folder(layout)} to keep them as they are",
            details=listed(edited),
        )
    _carry_out(layout, moves)
    _clear(layout)
    return True
