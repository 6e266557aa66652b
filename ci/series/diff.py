"""One file's part of a patch: reading it and writing it in canonical form.

The form is git's own with full ids, no renames and quoted paths. Every file is
read as lines; whether a series takes a change with NUL bytes is for its callers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ci.core.content import show
from ci.core.errors import Fault


@dataclass(frozen=True)
class Hunk:
    """A run of changed lines with its context.

    `lines` keep their first byte (space, `-` or `+`) and their end; a line
    that ends its file without a newline has none.
    """

    old_start: int
    old_count: int
    new_start: int
    new_count: int
    section: bytes
    lines: tuple[bytes, ...]

    @property
    def old_lines(self) -> list[bytes]:
        return [line[1:] for line in self.lines if line[:1] != b"+"]

    @property
    def new_lines(self) -> list[bytes]:
        return [line[1:] for line in self.lines if line[:1] != b"-"]

    @property
    def title(self) -> str:
        return f"@@ -{self.old_start},{self.old_count} +{self.new_start},{self.new_count} @@"


@dataclass(frozen=True)
class FileDiff:
    """What a patch does to one path.

    A mode of None says that the file is not there on that side. Ids are those
    of the whole file's bytes; both are empty where only the mode changes. They
    may be shortened, as plain `git format-patch` writes them, or `OPEN_ID`.
    """

    path: bytes
    old_mode: str | None
    new_mode: str | None
    old_id: str
    new_id: str
    hunks: tuple[Hunk, ...] = ()

    @property
    def is_new(self) -> bool:
        return self.old_mode is None

    @property
    def is_deleted(self) -> bool:
        return self.new_mode is None

    @property
    def has_short_ids(self) -> bool:
        return any(0 < len(oid) < 40 for oid in (self.old_id, self.new_id))

    @property
    def is_binary(self) -> bool:
        """Whether a line of it has a byte that text has not."""
        return any(b"\0" in line for hunk in self.hunks for line in hunk.lines)


OPEN_ID = "0" * 7
"""Stands for ids that a merge has left open, as it has line numbers; no file has it."""


class Malformed(Fault):
    """A patch that cannot be read."""


TEXT_ONLY = (
    "patches hold text, which a reviewer can read: leave the file as vLLM has it, "
    "and add a file of another name under overlay/, where any bytes may be"
)


# --- paths -----------------------------------------------------------------

_ESCAPES = {7: b"a", 8: b"b", 9: b"t", 10: b"n", 11: b"v", 12: b"f", 13: b"r", 34: b'"', 92: b"\\"}
_UNESCAPES = {value[0]: key for key, value in _ESCAPES.items()}


def quote(path: bytes) -> bytes:
    """A path as git writes it: in double quotes with escapes where a byte is not plain."""
    if all(32 <= byte < 127 and byte not in b'"\\' for byte in path):
        return path
    out = bytearray(b'"')
    for byte in path:
        if byte in _ESCAPES:
            out += b"\\" + _ESCAPES[byte]
        elif 32 <= byte < 127:
            out.append(byte)
        else:
            out += b"\\%03o" % byte
    return bytes(out + b'"')


def unquote(word: bytes) -> bytes:
    """The path that `quote` wrote.

    Raises:
        Malformed: an escape that git does not know.
    """
    if not word.startswith(b'"'):
        return word
    out = bytearray()
    rest = word[1:-1]
    at = 0
    while at < len(rest):
        if rest[at : at + 1] != b"\\":
            out.append(rest[at])
            at += 1
        elif re.match(rb"[0-3][0-7]{2}", rest[at + 1 : at + 4]):
            out.append(int(rest[at + 1 : at + 4], 8))
            at += 4
        elif at + 1 < len(rest) and rest[at + 1] in _UNESCAPES:
            out.append(_UNESCAPES[rest[at + 1]])
            at += 2
        else:
            raise Malformed(f"cannot read the path {show(word)}")
    return bytes(out)


def _header_path(rest: bytes) -> bytes:
    """The path in `a/PATH b/PATH`; both are the same, as there are no renames."""
    if rest.startswith(b'"'):
        match = re.fullmatch(rb'("(?:[^"\\]|\\.)*") ("(?:[^"\\]|\\.)*")', rest)
        halves = (unquote(match[1]), unquote(match[2])) if match else (b"", b"")
    else:
        middle = len(rest) // 2
        halves = (rest[:middle], rest[middle + 1 :])
    if halves[0][:2] != b"a/" or halves[1][:2] != b"b/" or halves[0][2:] != halves[1][2:]:
        raise Malformed(
            f"cannot read the file name in `diff --git {show(rest)}`",
            todo="prefixes must be a/ and b/, and a rename is a deletion and a new file",
        )
    return halves[0][2:]


# --- writing ---------------------------------------------------------------


def _range(start: int, count: int) -> bytes:
    return b"%d" % start if count == 1 else b"%d,%d" % (start, count)


def _render_hunk(hunk: Hunk) -> bytes:
    old = _range(hunk.old_start, hunk.old_count)
    new = _range(hunk.new_start, hunk.new_count)
    section = b" " + hunk.section if hunk.section else b""
    body = b"".join(
        line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n"
        for line in hunk.lines
    )
    return b"@@ -" + old + b" +" + new + b" @@" + section + b"\n" + body


def _render_modes(diff: FileDiff) -> bytes:
    if diff.old_mode is None:
        return f"new file mode {diff.new_mode}\n".encode()
    if diff.new_mode is None:
        return f"deleted file mode {diff.old_mode}\n".encode()
    if diff.old_mode != diff.new_mode:
        return f"old mode {diff.old_mode}\nnew mode {diff.new_mode}\n".encode()
    return b""


def render(diff: FileDiff) -> bytes:
    """The canonical text of one file's change."""
    old, new = quote(b"a/" + diff.path), quote(b"b/" + diff.path)
    out = bytearray(b"diff --git " + old + b" " + new + b"\n" + _render_modes(diff))
    if diff.old_id != diff.new_id:
        same = diff.old_mode if diff.old_mode == diff.new_mode else None
        tail = f" {same}" if same else ""
        out += f"index {diff.old_id}..{diff.new_id}{tail}\n".encode()
    if diff.hunks:
        out += b"--- " + _label(b"/dev/null" if diff.is_new else old)
        out += b"+++ " + _label(b"/dev/null" if diff.is_deleted else new)
        out += b"".join(_render_hunk(hunk) for hunk in diff.hunks)
    return bytes(out)


def _label(name: bytes) -> bytes:
    """A file name in a `---` line; git ends it with a tab where it holds a
    space, so that other tools do not take the rest for a date."""
    return name + (b"\t\n" if b" " in name else b"\n")


# --- reading ---------------------------------------------------------------

_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(?: (.*))?\n", re.DOTALL)
_INDEX = re.compile(rb"index ([0-9a-f]{7,40})\.\.([0-9a-f]{7,40})(?: (\d{6}))?\n")
_NO_NEWLINE = b"\\ No newline"
_COUNT_ANEW = (
    "restore it; or, if these lines are meant, change its index line to "
    f"`index {OPEN_ID}..{OPEN_ID} MODE`, and `nox -s apply -- --relock` counts them"
)


class _Reader:
    """Lines with a place, for the reading functions below."""

    def __init__(self, lines: list[bytes], first: int) -> None:
        self.lines = lines
        self.at = 0
        self.first = first

    def peek(self) -> bytes:
        return self.lines[self.at] if self.at < len(self.lines) else b""

    def take(self) -> bytes:
        line = self.peek()
        self.at += 1
        return line

    def bad(self, why: str, todo: str = "") -> Malformed:
        return Malformed(f"line {self.first + self.at}: {why}", todo=todo)

    def at_signature(self) -> bool:
        """Whether all that is left is what `git format-patch` signs with: `-- `
        and git's version. Inside a hunk, `-- ` is a removed line."""
        below = [line for line in self.lines[self.at + 1 :] if line.strip()]
        return self.peek() == b"-- \n" and len(below) <= 1


def parse(data: bytes, first_line: int = 1) -> tuple[FileDiff, ...]:
    """Every file's change in `data`, which holds nothing else.

    Args:
        first_line: number of the first line in its file, for messages.

    Raises:
        Malformed: with the line number and what is wrong there.
    """
    text = data if data.endswith(b"\n") or not data else data + b"\n"
    reader = _Reader([line + b"\n" for line in text.split(b"\n")[:-1]], first_line)
    diffs = []
    while reader.peek() and not reader.at_signature():
        diffs.append(_parse_file(reader))
    return tuple(diffs)


def _parse_file(reader: _Reader) -> FileDiff:
    line = reader.peek()
    if not line.startswith(b"diff --git "):
        raise reader.bad(f"expected `diff --git`, found `{show(line.rstrip())}`")
    path = _header_path(reader.take()[len(b"diff --git ") : -1])
    if not path:
        raise reader.bad("a file with no name")
    modes = _parse_modes(reader)
    ids = _INDEX.fullmatch(reader.peek())
    old_id, new_id = "", ""
    old_mode, new_mode = modes or (None, None)
    if ids:
        reader.take()
        old_id, new_id = ids[1].decode(), ids[2].decode()
        if ids[3]:
            old_mode = new_mode = ids[3].decode()
    elif reader.peek().startswith(b"index "):
        raise reader.bad(
            f"cannot read `{show(reader.peek().rstrip())}`",
            "write the patch with `git format-patch --full-index --no-renames`",
        )
    if (old_mode, new_mode) == (None, None):
        raise reader.bad(f"no index line with a mode for {show(path)}")
    return FileDiff(path, old_mode, new_mode, old_id, new_id, _parse_hunks(reader, path))


def _parse_modes(reader: _Reader) -> tuple[str | None, str | None] | None:
    found: dict[bytes, str] = {}
    while match := re.fullmatch(rb"(new file|deleted file|old|new) mode (\d{6})\n", reader.peek()):
        found[match[1]] = match[2].decode()
        reader.take()
    if re.match(rb"(similarity|dissimilarity|rename|copy) ", reader.peek()):
        raise reader.bad(
            "renames and copies are written as a deletion and a new file",
            "write the patch with `git format-patch --no-renames`",
        )
    if b"new file" in found:
        return None, found[b"new file"]
    if b"deleted file" in found:
        return found[b"deleted file"], None
    if found.keys() == {b"old", b"new"}:
        return found[b"old"], found[b"new"]
    if found:
        raise reader.bad("`old mode` and `new mode` come together")
    return None


def _parse_hunks(reader: _Reader, path: bytes) -> tuple[Hunk, ...]:
    if reader.peek().startswith((b"Binary files ", b"GIT binary patch")):
        raise reader.bad(f"changes the binary file {show(path)}", TEXT_ONLY)
    if not reader.peek().startswith(b"--- "):
        return ()
    reader.take()
    if not reader.peek().startswith(b"+++ "):
        raise reader.bad("expected a `+++` line")
    reader.take()
    hunks = []
    while reader.peek().startswith(b"@@ "):
        hunks.append(_parse_hunk(reader))
    if not hunks:
        raise reader.bad(f"no hunk for {show(path)}")
    return tuple(hunks)


def _parse_hunk(reader: _Reader) -> Hunk:
    match = _HUNK.fullmatch(reader.peek())
    if match is None:
        raise reader.bad(f"cannot read the hunk header `{show(reader.peek().rstrip())}`")
    reader.take()
    old_start, new_start = int(match[1]), int(match[3])
    old_count, new_count = int(match[2] or 1), int(match[4] or 1)
    old_left, new_left = old_count, new_count
    lines: list[bytes] = []
    while old_left or new_left:
        line = reader.peek()
        if line == b"\n":  # an editor or diff.suppressBlankEmpty took the space
            line = b" \n"
        kind = line[:1]
        if kind not in (b" ", b"-", b"+"):
            raise reader.bad("the hunk has fewer lines than its header says", _COUNT_ANEW)
        old_left -= kind != b"+"
        new_left -= kind != b"-"
        if old_left < 0 or new_left < 0:
            raise reader.bad("the hunk's lines do not add up to its header", _COUNT_ANEW)
        reader.take()
        if reader.peek().startswith(_NO_NEWLINE):
            reader.take()
            line = line[:-1]
        lines.append(line)
    if reader.peek()[:1] in (b" ", b"-", b"+") and not reader.at_signature():
        raise reader.bad("the hunk has more lines than its header says", _COUNT_ANEW)
    return Hunk(old_start, old_count, new_start, new_count, match[5] or b"", tuple(lines))
