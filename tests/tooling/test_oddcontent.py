"""Odd content: every kind comes back the same, or is refused with a reason.

Each case is an upstream file and what a user makes of it in the work tree.
Refresh takes them in; a second checkout, composed from nothing but the series,
must hold the very bytes, mode and kind.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from ci.core import files
from ci.core.content import EXECUTABLE, REGULAR, SYMLINK, Content
from ci.core.errors import Fault
from tests.tooling.projects import Project, put, text


def raw(data: bytes, mode: str = REGULAR) -> Content:
    return Content(mode, data)


LONG = b"x" * 300_000 + b"\n"
NUL = bytes(range(256))
LINES = b"".join(b"%d\n" % n for n in range(20))

CASES: dict[str, tuple[str, Content | None, Content | None]] = {
    "crlf changed": ("f", raw(b"1\r\n2\r\n3\r\n"), raw(b"1\r\n2!\r\n3\r\n")),
    "crlf to lf": ("f", raw(b"1\r\n2\r\n"), raw(b"1\n2\n")),
    "crlf new": ("f", None, raw(b"1\r\n2\r\n")),
    "lone carriage returns": ("f", raw(b"1\r2\r\r\n"), raw(b"1\r2\r3\r\r\n")),
    "crlf under eol=crlf": ("f.bat", raw(b"1\n2\n"), raw(b"1\n2\r\n")),
    "no newline at end lost": ("f", raw(b"1\n2\n"), raw(b"1\n2")),
    "no newline at end won": ("f", raw(b"1\n2"), raw(b"1\n2\n")),
    "no newline at end kept": ("f", raw(b"1\n2"), raw(b"1!\n2")),
    "no newline new": ("f", None, raw(b"1")),
    "byte 0xE9": ("f", raw(b"caf\xe9\nx\n"), raw(b"caf\xe9s\nx\n")),
    "byte 0xE9 new": ("f", None, raw(b"\xe9\xff\xfe\n")),
    "executable set": ("f", raw(b"1\n"), raw(b"1\n", EXECUTABLE)),
    "executable unset": ("f", raw(b"1\n", EXECUTABLE), raw(b"1\n")),
    "executable and content": ("f", raw(b"1\n"), raw(b"2\n", EXECUTABLE)),
    "executable new": ("f", None, raw(b"1\n", EXECUTABLE)),
    "executable deleted": ("f", raw(b"1\n", EXECUTABLE), None),
    "symlink changed": ("f", raw(b"a", SYMLINK), raw(b"b/c", SYMLINK)),
    "symlink new": ("f", None, raw(b"../x", SYMLINK)),
    "symlink deleted": ("f", raw(b"a", SYMLINK), None),
    "file to symlink": ("f", raw(b"1\n"), raw(b"g", SYMLINK)),
    "symlink to file": ("f", raw(b"g", SYMLINK), raw(b"1\n")),
    "deleted": ("f", raw(b"1\n2\n"), None),
    "deleted without newline": ("f", raw(b"1\n2"), None),
    "empty deleted": ("f", raw(b""), None),
    "empty new": ("f", None, raw(b"")),
    "emptied": ("f", raw(b"1\n"), raw(b"")),
    "filled": ("f", raw(b""), raw(b"1\n")),
    "one newline": ("f", raw(b""), raw(b"\n")),
    "binary new": ("f", None, raw(NUL * 99)),
    "binary with mode new": ("f", None, raw(NUL, EXECUTABLE)),
    "binary's mode": ("f", raw(NUL), raw(NUL, EXECUTABLE)),
    "text of a binary file": ("f", raw(NUL + LINES), raw(NUL + LINES + b"20\n")),
    "spaces in path": ("a b/c  d", raw(b"1\n"), raw(b"2\n")),
    "spaces in new path": ("a b/c  d", None, raw(b"2\n")),
    "quotes in path": ('"a"\'', raw(b"1\n"), raw(b"2\n")),
    "quotes in new path": ('"a"\'', None, raw(b"2\n")),
    "letters in path": ("été/ß漢", raw(b"1\n"), raw(b"2\n")),
    "letters in new path": ("été/ß漢", None, raw(b"2\n")),
    "tab and backslash in path": ("a\tb\\c", raw(b"1\n"), raw(b"2\n")),
    "tab and backslash in new path": ("a\tb\\c", None, raw(b"2\n")),
    "byte 0xE9 in path": (os.fsdecode(b"caf\xe9"), raw(b"1\n"), raw(b"2\n")),
    "dash first in path": ("-n", raw(b"1\n"), raw(b"2\n")),
    "brackets in path": ("[a]*?", raw(b"1\n"), raw(b"2\n")),
    "brackets in new path": ("[a]*?", None, raw(b"2\n")),
    "a very long line": ("f", raw(LONG), raw(b"y" + LONG)),
    "a very long line new": ("f", None, raw(LONG)),
    "form feeds and separators": (
        "f", raw("1\f2\x1e\x85\u2028\n3\n".encode()), raw("1\f2\x1e\x85\u2028\n4\n".encode())
    ),
    "lines that look like a patch": (
        "f",
        raw(b"diff --git a/x b/x\n--- a\n+++ b\n@@ -1 +1 @@\nFrom x\n"),
        raw(b"diff --git a/x b/x\n--- a\n+++ c\n@@ -1 +1 @@\n-- \nFrom y\n"),
    ),
    "no-newline look-alike": ("f", raw(b"1\n"), raw(b"\\ No newline at end of file\n")),
    "blank lines only": ("f", raw(b"\n\n\n"), raw(b"\n\n\n\n")),
    "repeated lines": ("f", raw(b"a\n" * 30), raw(b"a\n" * 29)),
    "trailing blanks": ("f", raw(b"1 \n2\t\n3\n"), raw(b"1 \n2\t\n4  \n")),
    "keywords": ("ident", raw(b"$Id$\n1\n"), raw(b"$Id$\n2\n")),
    "git's own names": (".gitignore", raw(b"x\n"), raw(b"y\n")),
    "many hunks": ("f", raw(LINES * 10), raw(LINES.replace(b"7", b"seven") * 10)),
}  # fmt: skip

ATTRIBUTES = text("*.bat text eol=crlf", "ident ident", "f text=auto", "* whitespace=fix")


@dataclass(frozen=True)
class Trip:
    """Two checkouts: where the edits were made, and one composed from the series alone."""

    edited: Project
    composed: Project
    head: str


@pytest.fixture(scope="module")
def trip(tmp_path_factory: pytest.TempPathFactory, settled: None) -> Trip:
    """Every case at once, each in a folder of its own."""
    where = tmp_path_factory.mktemp("odd")
    upstream = {".gitattributes": ATTRIBUTES}
    for case, (path, before, _) in CASES.items():
        upstream |= {f"{case}/{path}": before} if before else {}
    edited = Project.make(where / "one", upstream, sdist=False)
    edited.apply()
    for case, (path, _, after) in CASES.items():
        put(edited.work, f"{case}/{path}", after)
    edited.refresh("--new", "[Test] Odd content")
    composed = Project.make(where / "two", upstream, sdist=False)
    for name, content in edited.series().items():
        put(composed.root, name, content)
    return Trip(edited, composed, composed.apply().head)


BINARY = {
    "changed": (NUL, NUL[::-1]),
    "deleted": (NUL, None),
    "from text": (b"1\n", b"1\0\n"),
    "to text": (b"1\0\n", b"1\n"),
    "beside the NUL": (b"1\n" * 5000 + b"\0\n", b"1\n" * 5000 + b"\0\n2\n"),
    "utf-16": ("a\n".encode("utf-16"), "b\n".encode("utf-16")),
}


@pytest.mark.parametrize("case", BINARY)
def test_a_change_of_a_binary_file_is_refused(tmp_path: Path, case: str) -> None:
    before, after = BINARY[case]
    project = Project.make(tmp_path / "p", {"a": text("1"), "f": raw(before)}, sdist=False)
    project.apply()
    old = project.series()
    project.write("f", raw(after) if after is not None else None)
    with pytest.raises(Fault, match="`x` changes the binary file f") as caught:
        project.refresh("--new", "x")
    assert "add a file of another name under overlay/" in caught.value.todo
    assert project.series() == old
    assert _at(project, "f") == (raw(after) if after is not None else None)
    project.write("f", raw(before))
    project.write("g", raw(NUL))
    project.refresh("--new", "x")
    assert project.series()["overlay/L/g"] == raw(NUL)


@pytest.mark.parametrize("case", CASES)
def test_content_comes_back(trip: Trip, case: str) -> None:
    path, _, after = CASES[case]
    assert _at(trip.edited, f"{case}/{path}") == after
    assert _at(trip.composed, f"{case}/{path}") == after


def test_the_whole_comes_back(trip: Trip) -> None:
    assert trip.head == trip.edited.apply().head
    assert trip.composed.git("status", "--porcelain") == ""
    for project in (trip.edited, trip.composed):
        assert project.refresh().written == ()
        assert project.series() == trip.edited.series()


def _at(project: Project, path: str) -> Content | None:
    return files.read(files.under(project.work, os.fsencode(path)))


def test_a_renamed_upstream_file_is_a_deletion_and_an_overlay_file(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "one", {"a": raw(LINES), "b": text("1")}, sdist=False)
    project.apply()
    project.git("mv", "a", "c")
    project.refresh("--new", "[Test] Rename")
    series = project.series()
    assert series["overlay/L/c"].data == LINES
    assert b"deleted file mode 100644" in series["patches/L/0001-Test-Rename.patch"].data
    assert _at(project, "a") is None
    assert project.refresh().written == ()


def test_a_file_gives_way_to_a_folder_and_back(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "one", {"a": text("1"), "d/x": text("1")}, sdist=False)
    project.apply()
    project.write("a", None)
    project.write("a/b/c", text("2"))
    project.write("d/x", None)
    (project.work / "d").rmdir()
    project.write("d", text("3"))
    project.refresh("--new", "[Test] Swap")
    assert project.refresh().written == ()
    project.git("switch", "-q", "--detach", "HEAD~1")
    assert _at(project, "a") == text("1")
    project.git("switch", "-q", "series")
    assert _at(project, "a/b/c") == text("2")


def test_a_new_name_that_is_not_utf8(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "one", {"a": text("1")}, sdist=False)
    project.apply()
    project.write(os.fsdecode(b"caf\xe9"), text("1"))
    with pytest.raises(Fault, match="whose name is not UTF-8"):
        project.refresh("--new", "[Test] Latin")


def test_a_new_name_with_a_newline(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "one", {"a": text("1")}, sdist=False)
    project.apply()
    project.write("a\nb", text("1"))
    with pytest.raises(Fault, match="which overlay/ cannot hold"):
        project.refresh("--new", "[Test] Newline")


def test_an_empty_commit(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "one", {"a": text("1")}, sdist=False)
    project.apply()
    project.git("commit", "-q", "--allow-empty", "-m", "[Test] Nothing")
    with pytest.raises(Fault, match="nothing would be left of"):
        project.refresh()


def test_a_repository_inside(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "one", {"a": text("1")}, sdist=False)
    project.apply()
    (project.work / "inner").mkdir()
    project.git("init", "-q", where=project.work / "inner")
    put(project.work, "inner/x", text("1"))
    with pytest.raises(Fault, match="is a repository of its own"):
        project.refresh("--new", "[Test] Inner")
