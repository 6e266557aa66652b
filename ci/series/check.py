"""What `nox -s lint` asks of the series, with no checkout of vLLM at hand.

That each patch applies at its exact context follows from ids: every patch
says which bytes it was made for and which it gives, the first must be the
base's as the lock has them, and each next one what the one before gave.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from ci.core.content import SYMLINK, is_binary, show, split_lines
from ci.core.errors import Fault
from ci.pinned.pin import load_pin
from ci.series import drift, resolutions
from ci.series import lock as locking
from ci.series import patch as patchfile
from ci.series.compose import parse_patch
from ci.series.diff import FileDiff
from ci.series.kept import not_kept
from ci.series.lock import Lock
from ci.series.message import problems
from ci.series.model import Patch, SeriesFiles, dump_series, read_files, series_paths
from ci.series.patch import AUTHOR, PatchFile
from ci.series.paths import SeriesPaths, named

_RELOCK = "`nox -s apply -- --relock` writes it in canonical form"
_SUBJECT = re.compile(r"\[[A-Za-z][A-Za-z0-9 _/-]*\]")
_MARKERS = (b"<<<<<<< ", b">>>>>>> ", b"||||||| ")


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: where, and what."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


def check_series(folders: SeriesPaths) -> list[Problem]:
    """Everything that is wrong with the series; nothing if it is good."""
    try:
        files = read_files(folders)
        lock = locking.load_lock(folders)
        locking.check_inputs(lock, files, load_pin(folders.pin).base_tree)
    except Fault as fault:
        more = "; ".join((fault.todo, *fault.details)).strip("; ")
        return [Problem("series", f"{fault.what} ({more})" if more else fault.what)]
    assert lock is not None
    found = list(_check_tables(folders, files, lock))
    found += _check_folder(folders)
    parsed: list[PatchFile] = []
    for index, patch in enumerate(files.series.patches):
        try:
            one = parse_patch(files, patch)
        except Fault as fault:
            found.append(Problem("series", str(fault)))
            continue
        parsed.append(one)
        found += [
            Problem(files.patch_path(patch), what)
            for what in _check_patch(files, index, patch, one)
        ]
    if len(parsed) == len(files.series.patches):
        found += _check_chain(files, lock, parsed)
    found += _check_overlay(files)
    found += [Problem(*one) for one in not_kept(folders.root, series_paths(folders, files))]
    return found


def _check_tables(folders: SeriesPaths, files: SeriesFiles, lock: Lock) -> Iterator[Problem]:
    table, lockfile = named(folders, folders.series), named(folders, folders.lock)
    if folders.series.read_bytes() != dump_series(files.series):
        yield Problem(table, f"is not in canonical form: {_RELOCK}")
    if folders.lock.read_bytes() != locking.dump_lock(lock):
        yield Problem(lockfile, f"is not in canonical form: {_RELOCK}")
    used = {patch.topic for patch in files.series.patches}
    for topic in files.series.topics:
        if topic.name not in used and topic.state == "local":
            yield Problem(table, f"no patch belongs to the topic {topic.name}")


def _check_folder(folders: SeriesPaths) -> Iterator[Problem]:
    known = {"pin.toml", "series.toml", "series.lock", "topics", "resolutions", drift.FILE}
    for path in sorted(folders.patches.iterdir()):
        if path.name not in known and path.suffix != ".patch":
            yield Problem(named(folders, path), "does not belong here")
    solved = folders.patches / "resolutions"
    try:
        resolutions.load(solved)
    except Fault as fault:
        yield Problem(named(folders, solved), str(fault))


# --- one patch -----------------------------------------------------------------


def _check_patch(files: SeriesFiles, index: int, patch: Patch, one: PatchFile) -> Iterator[str]:
    data = files.patches[patch.file]
    canonical = patchfile.render(one)
    if data != canonical:
        yield f"is not in canonical form, {_first_difference(data, canonical)}: {_RELOCK}"
    yield from problems(one.message)
    if not _SUBJECT.match(one.subject):
        yield f"the subject should start with a [Tag], as vLLM's do: `{one.subject}`"
    expected = patchfile.file_name(index + 1, one.subject)
    if patch.file != expected:
        yield f"should be called {expected}"
    if one.author != AUTHOR:
        yield f"is by {one.author}, not by {AUTHOR}"
    paths = [path for path, _ in groupby(diff.path for diff in one.files)]
    if paths != sorted(set(paths)):
        yield "its files are not in order, or one is there twice"
    if list(patch.overlay) != sorted(patch.overlay):
        yield "its overlay files are not in order in series.toml"
    for diff in one.files:
        yield from _check_diff(diff)


def _first_difference(data: bytes, canonical: bytes) -> str:
    theirs, ours = data.split(b"\n"), canonical.split(b"\n")
    for number, (one, other) in enumerate(zip(theirs, ours, strict=False), 1):
        if one != other:
            return f"line {number} is `{show(one)}`, should be `{show(other)}`"
    return f"it has {len(theirs)} lines, should have {len(ours)}"


def _check_diff(diff: FileDiff) -> Iterator[str]:
    name = show(diff.path)
    if diff.has_short_ids:
        yield f"{name}: the ids in its index line are shortened: {_RELOCK}"
    before = 0
    for number, hunk in enumerate(diff.hunks, 1):
        where = f"{name}: hunk {number}"
        if hunk.old_start < before:
            yield f"{where} begins before the one above it ends"
        before = hunk.old_start + hunk.old_count
        kinds = b"".join(line[:1] for line in hunk.lines)
        if not kinds.strip(b" "):
            yield f"{where} changes nothing"
        elif max(len(kinds) - len(kinds.lstrip(b" ")), len(kinds) - len(kinds.rstrip(b" "))) > 3:
            yield f"{where} has more than three lines of context: {_RELOCK}"
        windows = all(line.endswith(b"\r\n") for line in hunk.old_lines) and hunk.old_lines
        for line in hunk.lines:
            if line[:1] == b"+":
                yield from (f"{where}: {w}" for w in _damage(line[1:], windows=bool(windows)))


def _damage(line: bytes, *, windows: bool) -> Iterator[str]:
    """What is wrong with the blanks of a new line."""
    text = line.removesuffix(b"\n")
    if text.endswith(b"\r") and windows:
        text = text[:-1]
    shown = show(text[:60])
    if text != text.rstrip(b" \t\r\f\v"):
        yield f"blanks or a carriage return at the end of `{shown}`"
    if re.match(rb"[ \t]* \t", text):
        yield f"a space before a tab in `{shown}`"
    if text.startswith(_MARKERS):
        yield f"a conflict marker: `{shown}`"


# --- the whole ---------------------------------------------------------------------


def _check_chain(files: SeriesFiles, lock: Lock, parsed: list[PatchFile]) -> Iterator[Problem]:
    """Each patch must be made for what the ones before it give."""
    now: dict[str, str] = {}
    for patch, locked, one in zip(files.series.patches, lock.patches, parsed, strict=True):
        where = files.patch_path(patch)
        touched = {show(diff.path) for diff in one.files}
        for path in sorted(touched ^ {*locked.base}):
            yield Problem(where, f"{path} is in only one of the patch and the lock: {_RELOCK}")
        for diff in one.files:
            path = show(diff.path)
            there = now.get(path, locked.base.get(path))
            if diff.old_id and (there is None or not _same_id(diff.old_id, there)):
                yield Problem(
                    where,
                    f"{path}: is made for {diff.old_id[:12]}, but finds {(there or 'none')[:12]}, "
                    "so its hunks need not fit exactly",
                )
            if diff.new_id:
                now[path] = diff.new_id


def _same_id(one: str, other: str) -> bool:
    """Whether two ids, each of which may be shortened, agree."""
    return one.startswith(other) or other.startswith(one)


def _check_overlay(files: SeriesFiles) -> Iterator[Problem]:
    seen: dict[str, str] = {}
    for path, content in sorted(files.overlay.items()):
        where = files.overlay_path(path)
        other = seen.setdefault(path.lower(), path)
        if other != path:
            yield Problem(where, f"differs from {other} only in capitals")
        if content.mode == SYMLINK or is_binary(content.data):
            continue
        lines = split_lines(content.data)
        for number, line in enumerate(lines, 1):
            yield from (Problem(where, f"line {number}: {w}") for w in _damage(line, windows=False))
        if lines and not lines[-1].endswith(b"\n"):
            yield Problem(where, "no newline at its end")
        elif lines and not lines[-1].strip():
            yield Problem(where, "blank lines at its end")
