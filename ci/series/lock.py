"""series.lock: what the series must be, and what it must give.

It holds the base tree, and for each patch the sha256 of its file, the ids of
its overlay files, the ids that upstream's files have before the series where
the patch touches them, and the tree after it. Composing is compared with it,
so a change that nobody meant is named by the first patch where it shows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from ci.core import toml
from ci.core.content import Content, has_conflicts
from ci.core.errors import Fault, listed
from ci.core.files import read_plain
from ci.series.model import SeriesFiles, toml_string
from ci.series.paths import SeriesPaths, named

_HEAD = """\
# What the series must be and give: checked by every apply. Written by
# `nox -s refresh` and `nox -s apply -- --relock`.
"""
_RELOCK = "undo the change, or accept it with `nox -s apply -- --relock`"


@dataclass(frozen=True)
class LockedPatch:
    """One patch: its input and its result.

    Attributes:
        tree: the whole tree after this patch.
        overlay: mode and blob id of each overlay file.
        base: blob id, in the pinned release, of each upstream file it touches.
    """

    file: str
    sha256: str
    tree: str
    overlay: Mapping[str, str] = field(default_factory=dict)
    base: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Lock:
    """The whole lock file."""

    base_tree: str
    patches: tuple[LockedPatch, ...]


@dataclass(frozen=True)
class _LockToml:
    """The keys of series.lock."""

    base_tree: str
    patch: tuple[LockedPatch, ...] = ()


def load_lock(folders: SeriesPaths) -> Lock | None:
    """Read the lock; None if there is none.

    Raises:
        Fault: it is not a lock.
    """
    if not folders.lock.exists():
        return None
    name = named(folders, folders.lock)
    if has_conflicts(read_plain(folders.lock)):
        raise Fault(
            f"{name} has merge conflicts",
            todo="`nox -s apply -- --relock` writes it anew from the merged patches",
        )
    read = toml.read(folders.lock, _LockToml, name)
    return Lock(read.base_tree, read.patch)


def dump_lock(lock: Lock) -> bytes:
    """The canonical text of the lock."""
    out = [_HEAD, f"base_tree = {toml_string(lock.base_tree)}\n"]
    for patch in lock.patches:
        out.append(f"\n[[patch]]\nfile = {toml_string(patch.file)}\n")
        out.append(f'sha256 = "{patch.sha256}"\ntree = "{patch.tree}"\n')
        for name, table in (("overlay", patch.overlay), ("base", patch.base)):
            if table:
                out.append(f"[patch.{name}]\n")
                out += [f'{toml_string(path)} = "{table[path]}"\n' for path in sorted(table)]
    return "".join(out).encode("utf-8")


def _overlay_ids(files: SeriesFiles, paths: tuple[str, ...]) -> dict[str, str]:
    return {path: f"{files.overlay[path].mode} {files.overlay[path].id}" for path in paths}


def lock_patch(files: SeriesFiles, index: int, tree: str, base: Mapping[str, str]) -> LockedPatch:
    """The lock's entry for one patch."""
    patch = files.series.patches[index]
    sha256 = hashlib.sha256(files.patches[patch.file]).hexdigest()
    return LockedPatch(patch.file, sha256, tree, _overlay_ids(files, patch.overlay), base)


def check_inputs(lock: Lock | None, files: SeriesFiles, base_tree: str) -> None:
    """Compare the series on disk with the lock, before anything is composed.

    Raises:
        Fault: names the first patch that differs, and how.
    """
    where = files.patch_folder
    if lock is None:
        raise Fault(
            f"{where}/series.lock is missing",
            todo="restore it, or write it anew with `nox -s apply -- --relock`",
        )
    if lock.base_tree != base_tree:
        raise Fault(
            f"{where}/series.lock is for the base tree {lock.base_tree}, "
            f"pin.toml names {base_tree}",
            todo=f"restore the one that was changed (`git checkout -- {where}`); "
            "`nox -s roll` is what moves the series to another vLLM",
        )
    for index, patch in enumerate(files.series.patches):
        if index >= len(lock.patches):
            raise Fault(f"{files.patch_path(patch)} is not in the lock", todo=_RELOCK)
        _check_patch(lock.patches[index], files, index)
    if len(lock.patches) > len(files.series.patches):
        gone = lock.patches[len(files.series.patches)].file
        raise Fault(f"{where}/series.lock holds {gone}, the series does not", todo=_RELOCK)


def _check_patch(locked: LockedPatch, files: SeriesFiles, index: int) -> None:
    now = lock_patch(files, index, locked.tree, locked.base)
    if now.file != locked.file:
        raise Fault(f"patch {index + 1} is {now.file}, the lock says {locked.file}", todo=_RELOCK)
    _check_line_ends(locked, files, index)
    if now.sha256 != locked.sha256:
        raise Fault(
            f"{files.patch_path(files.series.patches[index])} differs from the lock",
            todo=_RELOCK,
            details=(f"sha256 expected {locked.sha256}", f"sha256 found    {now.sha256}"),
        )
    for path in sorted({*now.overlay, *locked.overlay}):
        if now.overlay.get(path) != locked.overlay.get(path):
            raise Fault(
                f"{files.overlay_path(path)} of {now.file} differs from the lock",
                todo=_RELOCK,
                details=(
                    f"expected {locked.overlay.get(path, 'no such file')}",
                    f"found    {now.overlay.get(path, 'no such file')}",
                ),
            )


def _check_line_ends(locked: LockedPatch, files: SeriesFiles, index: int) -> None:
    """Name files that are the lock's but for CRLF, which git makes under `core.autocrlf`."""
    patch = files.series.patches[index]

    def with_lf(data: bytes) -> bytes:
        return data.replace(b"\r\n", b"\n")

    data = files.patches[patch.file]
    converted = []
    if locked.sha256 == hashlib.sha256(with_lf(data)).hexdigest() and b"\r\n" in data:
        converted.append(files.patch_path(patch))
    for path in patch.overlay:
        content = files.overlay[path]
        as_locked = Content(content.mode, with_lf(content.data))
        same = locked.overlay.get(path) == f"{as_locked.mode} {as_locked.id}"
        if same and as_locked != content:
            converted.append(files.overlay_path(path))
    if converted:
        raise Fault(
            f"{converted[0]} has CRLF line ends where the lock has LF: git converted it",
            todo="git config core.autocrlf false, then delete each file named here and "
            f"restore it: git checkout -- {converted[0]}",
            details=listed(converted[1:]),
        )


def check_trees(lock: Lock, composed: Lock) -> None:
    """Compare what composing gave with the lock.

    On vLLM's own commit, which holds files that the sdist leaves out, trees
    cannot be the lock's; there the touched files' ids must be.

    Raises:
        Fault: names the first patch after which the tree differs.
    """
    same_base = lock.base_tree == composed.base_tree
    for expected, found in zip(lock.patches, composed.patches, strict=True):
        if expected.base != found.base:
            paths = sorted({*expected.base.items()} ^ {*found.base.items()})
            raise Fault(
                f"{expected.file} touches {paths[0][0]}, which is not the lock's file in this base",
                todo="use the pinned source, or " + _RELOCK,
            )
        if same_base and expected.tree != found.tree:
            raise Fault(
                f"the tree after {expected.file} is {found.tree}, the lock says {expected.tree}",
                todo="the lock was changed by hand; " + _RELOCK,
            )
