"""A patch file as a whole: who, when, why, and the changes to each file.

The canonical form is what `git format-patch -k --full-index --zero-commit
--no-signature --no-stat --no-encode-email-headers` writes, but headers are
never folded, which depends on git's version. Binary changes are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from email.header import decode_header, make_header
from email.utils import format_datetime, parsedate_to_datetime

from ci.core.content import show
from ci.core.errors import Fault
from ci.core.project import project
from ci.series import diff as filediff
from ci.series.diff import FileDiff, Malformed
from ci.series.message import Message

AUTHOR = project().author
"""Whose patches these are: the project's, until a person sends one upstream."""

_SPLIT = b"From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001\n"
_MIME = (
    b"MIME-Version: 1.0\nContent-Type: text/plain; charset=UTF-8\nContent-Transfer-Encoding: 8bit\n"
)
# What git puts between a message's `---` and the first diff: a stat and a summary.
_STAT = re.compile(
    rb" .* \| +(\d+( [+-]+)?|Bin( \d+ -> \d+ bytes)?)"
    rb"| \d+ files? changed(, \d+ insertions?\(\+\))?(, \d+ deletions?\(-\))?"
    rb"| (create|delete) mode \d{6} .*| mode change \d{6} => \d{6} .*"
)
# A diff, then what stands between a message and its diff, then a diff again.
_DIFF_AGAIN = re.compile(rb"^(?:---)?\n(?: .*\n|\n)*diff --git ", re.MULTILINE)
_INDENT = (
    "if a whole diff stands inside the message, indent it: a line that starts with "
    "`diff --git` ends a message"
)
_NAME_MAX = 57  # git's limit of 64 less the length of "-.patch" as git counts it


@dataclass(frozen=True)
class PatchFile:
    """What one patch file says.

    Attributes:
        author: `Name <address>`.
        date: git's raw form, `<seconds> <+hhmm>`.
        files: changes to files that vLLM has, in the order of their paths.
    """

    message: Message
    author: str
    date: str
    files: tuple[FileDiff, ...]

    @property
    def subject(self) -> str:
        return self.message.subject


def slug(subject: str) -> str:
    """The subject as git puts it into a file name."""
    words = re.sub(r"[^A-Za-z0-9._]+", "-", subject)
    words = re.sub(r"\.{2,}", ".", words)
    return words.lstrip("-").rstrip(".-")


def file_name(index: int, subject: str) -> str:
    """The file name that git gives patch number `index`."""
    return f"{index:04d}-{slug(subject)}"[:_NAME_MAX] + ".patch"


def _mail_date(raw: str) -> bytes:
    seconds, zone = raw.split()
    sign = -1 if zone[0] == "-" else 1
    offset = timedelta(hours=int(zone[1:3]), minutes=int(zone[3:5])) * sign
    when = datetime.fromtimestamp(int(seconds), timezone(offset))
    # git writes the day of the month without a leading zero.
    return re.sub(r", 0(\d) ", r", \1 ", format_datetime(when)).encode()


def _raw_date(mail: str) -> str:
    when = parsedate_to_datetime(mail)
    zone = re.search(r"[+-]\d{4}$", mail.strip())
    return f"{int(when.timestamp())} {zone[0] if zone else '+0000'}"


def render(patch: PatchFile) -> bytes:
    """The canonical bytes of a patch file.

    Raises:
        Fault: it changes a binary file.
    """
    message = patch.message
    for diff in patch.files:
        if diff.is_binary:
            what = f"`{message.subject}` changes the binary file {show(diff.path)}"
            raise Fault(what, todo=filediff.TEXT_ONLY)
    plain = (patch.author + message.subject + message.body).isascii()
    out = bytearray(_SPLIT)
    out += b"From: " + patch.author.encode() + b"\n"
    out += b"Date: " + _mail_date(patch.date) + b"\n"
    out += b"Subject: " + message.subject.encode() + b"\n"
    out += b"" if plain else _MIME
    out += b"\n" + (message.body.encode() + b"\n" if message.body else b"")
    if patch.files:
        out += b"\n" + b"".join(filediff.render(diff) for diff in patch.files)
    return bytes(out)


def parse(data: bytes) -> PatchFile:
    """Read a patch file; one that is not canonical is read too where it is clear.

    Raises:
        Malformed: it is not clear, with the line.
    """
    head, blank, rest = data.partition(b"\n\n")
    if not blank:
        raise Malformed("line 1: a patch starts with mail headers and an empty line")
    try:
        headers = _headers(head)
        message, diff_at = _body(rest, head.count(b"\n") + 3)
        body = message.decode("utf-8").strip("\n")
    except UnicodeDecodeError:
        raise Malformed("its message is not UTF-8") from None
    first_line = data[: len(data) - len(rest) + diff_at].count(b"\n") + 1
    try:
        files = filediff.parse(rest[diff_at:], first_line)
    except Malformed as fault:
        if _DIFF_AGAIN.search(rest, diff_at):
            raise Malformed(fault.what, todo=_INDENT) from None
        raise
    for diff in files:
        if diff.is_binary:
            what = f"changes the binary file {show(diff.path)}"
            raise Malformed(what, todo=filediff.TEXT_ONLY)
    return PatchFile(Message(headers["subject"], body), headers["from"], headers["date"], files)


def _headers(head: bytes) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, line in enumerate(head.decode("utf-8").split("\n"), 1):
        match = re.match(r"(From|Date|Subject): (.*)$", line)
        if match:
            found[match[1].lower()] = match[2]
        elif line.startswith((" ", "\t")) and "subject" in found:
            found["subject"] += " " + line.strip()
        elif not re.match(r"(From [0-9a-f]{40} |[A-Z][A-Za-z-]+:)", line):
            raise Malformed(f"line {number}: not a mail header: `{show(line.encode())}`")
    for name in ("from", "date", "subject"):
        if name not in found:
            raise Malformed(f"line 1: no `{name.capitalize()}:` header")
    # As `git am` does: what plain `git format-patch` puts before a subject is not part of it.
    found["subject"] = re.sub(r"^\[PATCH[^\]]*\] *", "", _decoded(found["subject"]))
    found["from"] = _decoded(found["from"])
    if not re.fullmatch(r"[^<>]+ <[^<> ]+>", found["from"]):
        raise Malformed(f"the author must be `Name <address>`, not `{found['from']}`")
    try:
        found["date"] = _raw_date(found["date"])
    except (ValueError, TypeError):
        raise Malformed(f"cannot read the date `{found['date']}`") from None
    return found


def _decoded(header: str) -> str:
    """A header's text; git encodes one that is not ASCII unless told otherwise."""
    return str(make_header(decode_header(header))) if "=?" in header else header


def _body(rest: bytes, first_line: int) -> tuple[bytes, int]:
    """The message below the headers, and where the first diff starts.

    Raises:
        Malformed: text stands below the message's end, where it would be lost.
    """
    match = re.search(rb"^(?=diff --git )", rest, re.MULTILINE)
    end = match.start() if match else len(rest)
    message, *stat = re.split(rb"^---\n", rest[:end], maxsplit=1, flags=re.MULTILINE)
    for below, line in enumerate(b"".join(stat).split(b"\n"), message.count(b"\n") + 1):
        if line and not _STAT.fullmatch(line):
            raise Malformed(
                f"line {first_line + below}: text below `---`, which ends the message: "
                f"`{show(line)}`",
                todo="take the `---` out of the message, or the text below it",
            )
    return message, end


__all__ = ["AUTHOR", "Malformed", "PatchFile", "file_name", "parse", "render", "slug"]
