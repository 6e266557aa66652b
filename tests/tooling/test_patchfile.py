"""Patch files: git's own form, read and written without loss."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from ci.core.content import EXECUTABLE, REGULAR, SYMLINK, Content
from ci.core.errors import Fault
from ci.series import diff as filediff
from ci.series import patch as patchfile
from ci.series.diff import Malformed
from ci.series.hunks import apply_diff
from ci.series.message import Message, problems
from tests.tooling.projects import commit, text

SUBJECTS = (
    "[Bugfix] x",
    "Fix: it",
    "fix it!",
    "[Core][Spec Decode] A (very) odd -- subject..name",
    "Dots... and  none/of it",
    "Ümläute & other letters: é",
    "-leading and trailing-",
    "[Kernel] A long subject that goes on until git cuts the file's name",
)


def _repository(where: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(where)], check=True)
    return where


def _format_patch(clone: Path, *words: str) -> list[Path]:
    """What git writes, with the settings that our form stands for."""
    out = clone / "out"
    subprocess.run(
        ["git", "format-patch", "-q", "-k", "--full-index", "--zero-commit", "--no-signature",
         "--no-stat", "--no-encode-email-headers", "--no-renames", "-o", str(out), *words],
        cwd=clone,
        check=True,
    )  # fmt: skip
    return sorted(out.iterdir())


def test_the_form_is_format_patch_s(tmp_path: Path) -> None:
    clone = _repository(tmp_path / "clone")
    commit(
        clone,
        "base",
        {
            "a b.txt": text(*map(str, range(30))),
            'é"\t.txt': text("x"),
            "gone": text("gone"),
            "empty": Content(REGULAR, b""),
            "end": Content(REGULAR, b"no newline"),
            "win": Content(REGULAR, b"1\r\n2\r\n"),
            "latin": Content(REGULAR, b"caf\xe9\n"),
            "run": text("run"),
            "link": Content(SYMLINK, b"run"),
        },
    )
    commit(
        clone,
        "[Core] Everything at once",
        {
            "a b.txt": text("0", *map(str, range(2, 20)), "more", *map(str, range(20, 30))),
            'é"\t.txt': text("y"),
            "gone": None,
            "empty": text("no more"),
            "end": Content(REGULAR, b"no newline\neither"),
            "win": Content(REGULAR, b"1\r\n2!\r\n"),
            "latin": Content(REGULAR, b"caf\xe9s\n"),
            "run": Content(EXECUTABLE, b"run\n"),
            "link": Content(SYMLINK, b"end"),
            "new": Content(EXECUTABLE, b"new"),
        },
        "A body.\n\nWith two paragraphs, one of them ünusual.",
    )
    [file] = _format_patch(clone, "-1")
    data = file.read_bytes()
    parsed = patchfile.parse(data)
    assert patchfile.render(parsed) == data
    assert parsed.message.body == "A body.\n\nWith two paragraphs, one of them ünusual."
    assert len(parsed.files) == 10


@pytest.mark.parametrize("subject", SUBJECTS)
def test_file_names_are_git_s(tmp_path: Path, subject: str) -> None:
    clone = _repository(tmp_path / "clone")
    commit(clone, subject, {"a": text("1")})
    [file] = _format_patch(clone, "--root", "HEAD")
    assert file.name == patchfile.file_name(1, subject)


@pytest.mark.parametrize("zone", ["+0000", "-0330", "+1245"])
def test_dates_keep_their_zone(zone: str) -> None:
    patch = patchfile.PatchFile(Message("x", ""), patchfile.AUTHOR, f"1700000000 {zone}", ())
    assert patchfile.parse(patchfile.render(patch)).date == f"1700000000 {zone}"


def test_git_s_signature_is_read(tmp_path: Path) -> None:
    """Also where the last hunk itself removes a line that looks like one."""
    clone = _repository(tmp_path / "clone")
    commit(clone, "base", {"a": text("1", "- ", "2.1"), "b": text("x"), "run": text("r")})
    commit(clone, "[Core] x", {"a": text("1"), "b": text("y"), "run": Content(EXECUTABLE, b"r\n")})
    signed = ("format-patch", "-1", "-k", "--full-index", "--no-renames", "--stdout")
    for words in (signed, (*signed, "--", "a"), (*signed, "--", "run")):
        data = subprocess.run(["git", *words], cwd=clone, check=True, stdout=-1).stdout
        plain = subprocess.run(
            ["git", *words[:5], "--no-signature", *words[5:]], cwd=clone, check=True, stdout=-1
        ).stdout
        assert b"\n-- \n2." in data
        assert patchfile.parse(data) == patchfile.parse(plain)


def test_plain_format_patch_is_read(tmp_path: Path) -> None:
    """With `[PATCH]`, headers that git encoded and folded, a stat and short ids."""
    clone = _repository(tmp_path / "clone")
    commit(clone, "base", {"a": text("1")})
    subject = "[Core] Wörds that are so many that git has to fold them, indeed"
    commit(clone, subject, {"a": text("2")}, "Körper.")
    words = ["git", "-c", "user.name=Ü", "format-patch", "-1", "--stdout"]
    data = subprocess.run(words, cwd=clone, check=True, stdout=-1).stdout
    assert b"[PATCH] =?UTF-8?q?" in data and re.search(rb"^index [0-9a-f]{7}\.", data, re.M)
    parsed = patchfile.parse(data)
    assert parsed.message == Message(subject, "Körper.")
    [diff] = parsed.files
    assert apply_diff(diff, text("1"), "p") == text("2")


def test_a_diff_inside_a_message_says_so() -> None:
    hunk = b"--- a/a\n+++ b/a\n@@ -1 +1 @@\n-x\n+y\n"
    for between in (b"\n", b"---\n a | 2 +-\n\n"):
        data = HEAD + DIFF + hunk + between + DIFF + hunk
        with pytest.raises(Malformed) as caught:
            patchfile.parse(data)
        assert "if a whole diff stands inside the message, indent it" in caught.value.todo


def test_a_mail_tool_s_form_is_read() -> None:
    """With a stat, a folded subject and blank lines that lost their space."""
    data = (
        b"From 1234567890123456789012345678901234567890 Mon Sep 17 00:00:00 2001\n"
        b"From: A <a@b>\nDate: Tue, 14 Nov 2023 22:13:20 +0000\n"
        b"Subject: [Core] A subject that\n was folded\n\nBody.\n---\n a | 2 +-\n\n"
        b"diff --git a/a b/a\nindex %s..%s 100644\n--- a/a\n+++ b/a\n@@ -1,3 +1,3 @@\n"
        b"-x\n+y\n\n z\n" % (b"1" * 40, b"2" * 40)
    )
    parsed = patchfile.parse(data)
    assert parsed.message == Message("[Core] A subject that was folded", "Body.")
    assert parsed.files[0].hunks[0].lines == (b"-x\n", b"+y\n", b" \n", b" z\n")
    assert patchfile.render(parsed) != data


def test_a_stat_of_git_s_is_read(tmp_path: Path) -> None:
    clone = _repository(tmp_path / "clone")
    odd = {
        "a b.txt": text("1"),
        "bin": Content(REGULAR, b"\0"),
        "gone": text("x"),
        "run": text("r"),
    }
    commit(clone, "base", odd)
    odd = {"a b.txt": text("2", "3"), "bin": Content(REGULAR, b"\0\0"), "gone": None}
    commit(clone, "[Core] All", {**odd, "new": text("n"), "run": Content(EXECUTABLE, b"r\n")})
    words = ["git", "format-patch", "-1", "--full-index", "--stdout", "--binary", "--no-renames"]
    data = subprocess.run(words, cwd=clone, check=True, capture_output=True).stdout
    assert b"mode change" in data and b"Bin 1 -> 2 bytes" in data and b"5 files changed" in data
    above = data.partition(b"diff --git")[0]
    assert patchfile.parse(above).message == Message("[Core] All", "")


HEAD = b"From: A <a@b>\nDate: Tue, 14 Nov 2023 22:13:20 +0000\nSubject: x\n\n\n"
DIFF = b"diff --git a/a b/a\nindex %s..%s 100644\n" % (b"1" * 40, b"2" * 40)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "starts with mail headers"),
        (b"Subject: x\n\n", "no `From:` header"),
        (HEAD.replace(b"A <a@b>", b"nobody"), "the author must be"),
        (HEAD.replace(b"14 Nov", b"99 Foo"), "cannot read the date"),
        (HEAD.replace(b"Subject: x", b"Subject: \xe9"), "not UTF-8"),
        (HEAD.replace(b"Subject", b"what is this\nSubject"), "line 3: not a mail header"),
        (HEAD + b"A.\n\n---\n a | 2 +-\n\nMore.\n" + DIFF, "line 11: text below `---`.*`More.`"),
        (HEAD + b"---\n---\n" + DIFF, "line 7: text below `---`.*`---`"),
        (HEAD + b"diff --git a/a c/a\n", "line 6: cannot read the file name|cannot read the file"),
        (HEAD + b"diff --git a/a b/a\nsimilarity index 90%\n", "renames and copies"),
        (HEAD + b"diff --git a/a b/a\nold mode 100644\n", "come together"),
        (HEAD + b"diff --git a/a b/a\nindex 123..456 100644\n", "cannot read `index 123"),
        (HEAD + DIFF + b"Binary files a/a and b/a differ\n", "8: changes the binary file a"),
        (HEAD + DIFF + b"GIT binary patch\nliteral 5\n", "8: changes the binary file a"),
        (HEAD + DIFF + b"--- a/a\n+++ b/a\n@@ -1 +1 @@\n-\0\n+y\n", "changes the binary file a"),
        (HEAD + DIFF + b"--- a/a\n+++ b/a\n", "no hunk"),
        (HEAD + DIFF + b"--- a/a\n", r"expected a `\+\+\+` line"),
        (HEAD + DIFF + b"--- a/a\n+++ b/a\n@@ -1 +1\n", "cannot read the hunk header"),
        (HEAD + DIFF + b"--- a/a\n+++ b/a\n@@ -1,2 +1 @@\n-x\n", "line 12: .*fewer lines"),
        (HEAD + DIFF + b"--- a/a\n+++ b/a\n@@ -1 +1 @@\n-x\n+y\n z\n", "more lines"),
        (HEAD + DIFF + b"--- a/a\n+++ b/a\n@@ -1 +1 @@\n-x\n-y\n", "do not add up"),
        (HEAD + DIFF + b"--- a/a\n+++ b/a\n@@ -1 +1 @@\n-x\n+y\nFrom here on\n", "expected `diff"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named(data: bytes, message: str) -> None:
    with pytest.raises(Malformed, match=message):
        patchfile.parse(data)


@pytest.mark.parametrize(
    ("subject", "body"),
    [
        ("[Bugfix] x", "A `---` in the middle, a From: here, and diffs in words."),
        ("[Bugfix][Core] x", "- a list\n- of --- things\n\n    diff --git a/x b/x indented"),
        ("Ü [not] first", "From: in the second paragraph is fine\n".strip() and "x\n\nFrom: x"),
    ],
)
def test_messages_that_survive(tmp_path: Path, subject: str, body: str) -> None:
    """By our reading, and by git's mailinfo."""
    message = Message(subject, body)
    assert problems(message) == []
    clone = _repository(tmp_path / "clone")
    commit(clone, "base", {"a": text("1")})
    commit(clone, subject, {"a": text("2")}, body)
    [file] = _format_patch(clone, "-1")
    assert patchfile.parse(file.read_bytes()).message == message
    subprocess.run(["git", "reset", "-q", "--hard", "HEAD~1"], cwd=clone, check=True)
    subprocess.run(["git", "am", "-q", "--keep", str(file)], cwd=clone, check=True)
    shown = subprocess.run(
        ["git", "log", "-1", "--format=%B"], cwd=clone, check=True, capture_output=True
    )
    assert shown.stdout.decode().strip("\n") == f"{subject}\n\n{body}"


@pytest.mark.parametrize(
    "message",
    [
        Message("", ""),
        Message("two\nlines", ""),
        Message("double  space", ""),
        Message(" leading", ""),
        Message("[PATCH] x", ""),
        Message("x [RFC PATCH v2 1/3]", ""),
        Message("Re: x", ""),
        Message("fixup! x", ""),
        Message("x" * 73, ""),
        Message("x.", ""),
        Message("tab\tin it", ""),
        Message("x", "above\n---\nbelow"),
        Message("x", "--- a/file"),
        Message("x", "diff --git a/x b/x"),
        Message("x", "diff -u a b"),
        Message("x", "Index: a"),
        Message("x", "From here on"),
        Message("x", ">From here"),
        Message("x", "From: B <b@c>"),
        Message("x", "Date: now"),
        Message("x", "Subject: y"),
        Message("x", "@@ -1 +1 @@"),
        Message("x", "-- >8 --"),
        Message("x", "-- "),
        Message("x", "blanks  \nat the end"),
        Message("x", "form\ffeed"),
        Message("x", "Signed-off-by: A <a@b>"),
    ],
    ids=lambda message: f"{message.subject[:20]!r}-{message.body[:20]!r}",
)
def test_messages_that_do_not(message: Message) -> None:
    assert problems(message)


@pytest.mark.parametrize("path", [b"a", b"a b", b"\xc3\xa9", b"\xe9", b'"', b"\\", b"\t\n\x01\x7f"])
def test_paths_are_quoted_as_git_does(path: bytes) -> None:
    assert filediff.unquote(filediff.quote(path)) == path


def test_unknown_escape() -> None:
    with pytest.raises(Fault):
        filediff.unquote(b'"\\q"')
