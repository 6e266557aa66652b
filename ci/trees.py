"""Reading trees, commits and blobs from a repository, many at a time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ci import filediff
from ci.errors import Fault
from ci.filediff import FileDiff
from ci.git import Git, GitError
from ci.messages import Message
from ci.objects import NULL_ID, Content, show

# Whatever a configuration file or a later git may say.
DIFF = (
    "-r",
    "--no-renames",
    "--no-ext-diff",
    "--no-textconv",
    "--full-index",
    "--text",
    "-U3",
    "--inter-hunk-context=0",
    "--diff-algorithm=myers",
    "--indent-heuristic",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    "--no-color",
    "--ignore-submodules=none",
)


@dataclass(frozen=True)
class Entry:
    """A file in a tree."""

    mode: str
    id: str


@dataclass(frozen=True)
class CommitInfo:
    """A commit as an object. `author` is `Name <address>`, `date` git's raw form."""

    id: str
    tree: str
    parents: tuple[str, ...]
    author: str
    date: str
    message: Message


def list_tree(git: Git, tree: str) -> dict[bytes, Entry]:
    """Every file of a tree, by path."""
    return {path: Entry(mode, oid) for path, (mode, oid) in git.list_tree(tree).items()}


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
        words = out[at:end].split()
        if words[-1] == b"missing":
            raise GitError(
                f"{git.git_dir.name} has no object {oid}",
                todo="the repository is shallow, partial or damaged; use a whole one",
            )
        size = int(words[2])
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


def _parse_raw(words: Sequence[bytes]) -> list[Raw]:
    found = []
    for head, path in zip(words[::2], words[1::2], strict=True):
        old_mode, new_mode, old_id, new_id, _ = head[1:].decode().split()
        found.append(Raw(path, _entry(old_mode, old_id), _entry(new_mode, new_id)))
    return found


def _entry(mode: str, oid: str) -> Entry | None:
    return None if mode == "000000" else Entry(mode, oid)


def file_diffs(git: Git, pairs: Sequence[tuple[str, str]]) -> list[tuple[FileDiff, ...]]:
    """The changes of each pair of trees (or commits), read as text throughout.

    One git process for all of them. Every file is shown as lines, whatever its
    bytes; `with_binaries` puts whole bytes where git would see binary.
    """
    if not pairs:
        return []
    feed = "".join(f"{old} {new}\n" for old, new in pairs).encode()
    out = git.run("diff-tree", "--stdin", "-p", *DIFF, stdin=feed)
    # Every line of a diff starts with a letter or a mark, never with an id.
    parts = re.split(rb"^([0-9a-f]{40}) ([0-9a-f]{40})\n", out, flags=re.MULTILINE)
    found: dict[tuple[str, str], tuple[FileDiff, ...]] = {}
    for old, new, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        found[old.decode(), new.decode()] = filediff.parse(text.lstrip(b"\n"))
    return [found.get(pair, ()) for pair in pairs]


def may_be_binary(diff: FileDiff) -> bool:
    """Whether a change that is shown as lines has a byte that text has not."""
    return any(b"\0" in line for hunk in diff.hunks for line in hunk.lines)


def with_binaries(git: Git, diffs: Iterable[FileDiff]) -> list[FileDiff]:
    """The same changes, with whole bytes in place of lines in binary files."""
    listed = list(diffs)
    suspects = [diff for diff in listed if may_be_binary(diff)]
    ids = {oid for d in suspects for oid in (d.old_id, d.new_id) if oid != NULL_ID}
    blobs = {**read_objects(git, ids), NULL_ID: b""}
    return [
        filediff.as_binary(d, blobs[d.old_id], blobs[d.new_id]) if d in suspects else d
        for d in listed
    ]


def read_commits(git: Git, ids: Sequence[str]) -> list[CommitInfo]:
    """Commit objects.

    Raises:
        Fault: a message that is not UTF-8.
    """
    return [_commit(oid, data) for oid, data in read_objects(git, ids).items()]


def _headers(data: bytes) -> Iterator[tuple[str, bytes]]:
    for line in data.split(b"\n"):
        if not line.startswith(b" "):
            name, _, value = line.partition(b" ")
            yield name.decode("ascii", "replace"), value


def _commit(oid: str, data: bytes) -> CommitInfo:
    head, _, message = data.partition(b"\n\n")
    headers = list(_headers(head))
    encoding = next((v.decode() for k, v in headers if k == "encoding"), "utf-8")
    try:
        if encoding.lower() not in ("utf-8", "utf8"):
            message = message.decode(encoding).encode("utf-8")
        author = next(v for k, v in headers if k == "author").decode("utf-8")
        text = Message.from_commit(message)
    except (UnicodeDecodeError, LookupError):
        raise Fault(
            f"the message of commit {oid[:12]} is not {encoding}",
            todo="write it again: git commit --amend",
            details=(show(message.split(b"\n")[0]),),
        ) from None
    who, seconds, zone = author.rsplit(" ", 2)
    return CommitInfo(
        oid,
        next(v for k, v in headers if k == "tree").decode(),
        tuple(v.decode() for k, v in headers if k == "parent"),
        who,
        f"{seconds} {zone}",
        text,
    )
