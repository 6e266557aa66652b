"""Files as git knows them: a mode and bytes, and the ids that follow from these."""

from __future__ import annotations

import difflib
import hashlib
import re
from dataclasses import dataclass

REGULAR = "100644"
EXECUTABLE = "100755"
SYMLINK = "120000"
FOLDER = "040000"
MODES = (REGULAR, EXECUTABLE, SYMLINK)

_CONFLICT = re.compile(rb"^(<{7}|>{7}) ", re.MULTILINE)

NULL_ID = "0" * 40

_REF_STEP = re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._+-]*(?<![.])(?<!\.lock)")

_BINARY_PROBE = 8000
"""How far git looks for a NUL byte when it decides whether a file is text."""


def may_be_ref(name: str) -> bool:
    """Whether git takes a name as the last step of a ref, and never as an option."""
    return _REF_STEP.fullmatch(name) is not None


def blob_id(data: bytes) -> str:
    """The id that git gives a file's bytes."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def is_binary(data: bytes) -> bool:
    """Whether git shows a change to these bytes as binary."""
    return b"\0" in data[:_BINARY_PROBE]


@dataclass(frozen=True)
class Content:
    """One file of a tree. For a symlink, `data` is the path that it points to."""

    mode: str
    data: bytes

    @property
    def id(self) -> str:
        return blob_id(self.data)

    @property
    def is_text(self) -> bool:
        """Whether line edits make sense: a plain file with no NUL byte."""
        return self.mode != SYMLINK and not is_binary(self.data)


def has_conflicts(data: bytes) -> bool:
    """Whether a merge left its conflict markers in a file."""
    return _CONFLICT.search(data) is not None


def split_lines(data: bytes) -> list[bytes]:
    """Lines with their ends; only a newline ends one, so a carriage return,
    a form feed and any other byte are content."""
    lines = data.split(b"\n")
    last = lines.pop()
    return [line + b"\n" for line in lines] + ([last] if last else [])


def likeness(one: bytes, other: bytes) -> float:
    """The share of lines that two files have in common, in order."""
    if one == other:
        return 1.0
    return difflib.SequenceMatcher(None, split_lines(one), split_lines(other)).ratio()


def show(data: bytes) -> str:
    """Bytes for a person to read, in any locale: what is not plain is escaped."""
    text = data.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
