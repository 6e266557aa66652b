"""Reading trees, commits and blobs from a repository, many at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ci.core.content import Content
from ci.git.repo import Git, GitError


class Entry(NamedTuple):
    """A file in a tree."""

    mode: str
    id: str


def list_tree(git: Git, tree: str) -> dict[bytes, Entry]:
    """Every file of a tree, by path."""
    entries: dict[bytes, Entry] = {}
    for line in git.run("ls-tree", "-rz", "--full-tree", tree).split(b"\0")[:-1]:
        meta, path = line.split(b"\t", 1)
        mode, _, oid = meta.decode("ascii").split(" ")
        entries[path] = Entry(mode, oid)
    return entries


def read_objects(git: Git, ids: Iterable[str]) -> dict[str, bytes]:
    """The bytes of objects, by the names that were asked for.

    Raises:
        GitError: one is not there.
    """
    wanted = list(dict.fromkeys(ids))
    if not wanted:
        return {}
    out = git.run("cat-file", "--batch", stdin="".join(f"{oid}\n" for oid in wanted).encode())
    found = {}
    at = 0
    for oid in wanted:
        end = out.index(b"\n", at)
        fields = out[at:end].split()
        if fields[-1] == b"missing":
            raise GitError(
                f"{git.git_dir.name} has no object {oid}",
                todo="the repository is shallow, partial or damaged; use a whole one",
            )
        size = int(fields[2])
        found[oid] = out[end + 1 : end + 1 + size]
        at = end + 1 + size + 1
    return found


def read_contents(git: Git, entries: Iterable[Entry]) -> dict[Entry, Content]:
    """The files that entries stand for."""
    wanted = list(dict.fromkeys(entries))
    blobs = read_objects(git, (entry.id for entry in wanted))
    return {entry: Content(entry.mode, blobs[entry.id]) for entry in wanted}


@dataclass(frozen=True)
class Raw:
    """One changed path between two trees."""

    path: bytes
    old: Entry | None
    new: Entry | None


def changes(git: Git, old: str, new: str) -> list[Raw]:
    """The paths that differ between two trees."""
    # git reads the index even where two trees are compared, and a damaged one
    # (made anew by the next apply) would stop it.
    apart = replace(git, index=None)
    out = apart.run("diff-tree", "-r", "--no-renames", "--raw", "-z", "--no-abbrev", old, new)
    return _parse_raw(out.split(b"\0")[:-1])


def _parse_raw(fields: Sequence[bytes]) -> list[Raw]:
    found = []
    for head, path in zip(fields[::2], fields[1::2], strict=True):
        old_mode, new_mode, old_id, new_id, _ = head[1:].decode().split()
        found.append(Raw(path, _entry(old_mode, old_id), _entry(new_mode, new_id)))
    return found


def _entry(mode: str, oid: str) -> Entry | None:
    return None if mode == "000000" else Entry(mode, oid)
