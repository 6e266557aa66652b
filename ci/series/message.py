"""Commit messages: which ones survive the way out and back, and which do not.

A patch travels as mail, and mail tools read a message: they end it at `---`
or at anything that looks like a diff, split it at `From `, take a header at
its top for their own, and strip `[PATCH]`. Such a message is refused when it
comes in rather than changed in silence.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ci.core.errors import Fault

MAX_SUBJECT = 72

_ENDERS = (
    (re.compile(r"---(\s|$)"), "a line that starts with `---` ends a message"),
    (re.compile(r"diff -"), "a line that starts like a diff ends a message"),
    (re.compile(r"Index: "), "a line `Index: …` ends a message"),
    (re.compile(r"From "), "a line that starts with `From ` splits a mail box"),
    (re.compile(r">+From "), "a line `>From ` is unquoted by mail tools"),
    (re.compile(r"-- $"), "a line `-- ` starts a signature"),
    (re.compile(r"@@ -\d"), "a line that starts like a hunk can be applied"),
    (re.compile(r"\s*[-*>8<%]*\s*(8<|>8|%<|>%)"), "a scissors line cuts a message"),
)
_HEADER = re.compile(r"(From|Date|Subject|In-Reply-To|Message-I[dD]):")
_TRAILER = re.compile(r"(Signed-off-by|Co-authored-by|Reviewed-by|Change-Id): ", re.IGNORECASE)
_TRIMMED = re.compile(r"\[[^\]]*PATCH[^\]]*\]", re.IGNORECASE)


@dataclass(frozen=True)
class Message:
    """A commit's message: one line, and paragraphs below (without end newline)."""

    subject: str
    body: str

    @property
    def data(self) -> bytes:
        """The bytes that go into the commit."""
        text = f"{self.subject}\n\n{self.body}\n" if self.body else f"{self.subject}\n"
        return text.encode("utf-8")

    @classmethod
    def from_commit(cls, data: bytes) -> Message:
        """The message of a commit object, without blank lines around it.

        Raises:
            UnicodeDecodeError: it is not UTF-8.
        """
        subject, _, body = data.decode("utf-8").strip("\n").partition("\n")
        return cls(subject, body.strip("\n"))


def _subject_problems(subject: str) -> list[str]:
    found = []
    if not subject.strip():
        found.append("the subject is empty")
    if subject != " ".join(subject.split()):
        found.append("the subject has blanks at an end or in a row, or a control character")
    if len(subject) > MAX_SUBJECT:
        found.append(f"the subject is {len(subject)} characters long, over {MAX_SUBJECT}")
    if _TRIMMED.search(subject):
        found.append("a `[PATCH]` in the subject is stripped on the way in")
    if re.match(r"(?i)(re|aw|fwd?):", subject):
        found.append("a subject that starts like a reply is stripped on the way in")
    if re.match(r"(fixup|squash|amend)!", subject):
        found.append("the subject names another commit (fixup!): run `nox -s refresh`")
    if subject.endswith("."):
        found.append("the subject ends with a full stop")
    return found


def _body_problems(body: str) -> list[str]:
    found: list[str] = []
    lines = body.split("\n")
    for line in lines:
        found.extend(f"{why}: `{line[:60]}`" for pattern, why in _ENDERS if pattern.match(line))
        if line != line.rstrip():
            found.append(f"blanks at the end of a line of the message: `{line[:60]}`")
        if any((ord(c) < 32 and c != "\t") or c == "\x7f" for c in line):
            found.append(f"a control character in the message: `{line[:60]!r}`")
        if _TRAILER.match(line):
            found.append(
                f"a trailer is added when a topic is sent, not kept in the series: `{line[:60]}`"
            )
    if _HEADER.match(lines[0]):
        found.append(f"a header at the top of a message is taken as the mail's: `{lines[0][:60]}`")
    if body != body.strip("\n"):
        found.append("blank lines around the message")
    return found


def problems(message: Message) -> list[str]:
    """Why `message` would not come back the same; nothing if it would."""
    found = _subject_problems(message.subject)
    return found + (_body_problems(message.body) if message.body else [])


def check_message(message: Message, name: str) -> None:
    """Refuse a message that would not come back the same.

    Args:
        name: the patch's file.

    Raises:
        Fault: with all that is wrong.
    """
    bad = problems(message)
    if bad:
        raise Fault(f"{name}: {bad[0]}", todo="correct its message", details=tuple(bad[1:]))
