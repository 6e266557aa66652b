"""Commits and diffs of a repository, as the series knows them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ci.core.content import show
from ci.core.errors import Fault
from ci.git.repo import Git
from ci.git.trees import read_objects
from ci.series import diff as filediff
from ci.series.diff import FileDiff
from ci.series.message import Message

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
class CommitInfo:
    """A commit as an object. `author` is `Name <address>`, `date` git's raw form."""

    id: str
    tree: str
    parents: tuple[str, ...]
    author: str
    date: str
    message: Message


def file_diffs(git: Git, pairs: Sequence[tuple[str, str]]) -> list[tuple[FileDiff, ...]]:
    """The changes of each pair of trees (or commits), read as text throughout.

    One git process for all of them.
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
