"""Trees written out byte for byte, whatever their attributes file says."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from ci.core.content import REGULAR, Content
from ci.core.errors import Fault
from ci.git.extract import export_tree
from ci.git.repo import Git
from tests.tooling.projects import write_tree


def _tree(git: Git, *entries: tuple[str, str, bytes]) -> str:
    files = {path: Content(mode, data) for mode, path, data in entries}
    return write_tree(git, "refs/heads/entries", files)[1]


@pytest.fixture
def git(tmp_path: Path) -> Git:
    git = Git(tmp_path / "store.git")
    git.init()
    return git


def test_bytes_and_modes(git: Git, tmp_path: Path) -> None:
    tree = _tree(
        git,
        ("100644", ".gitattributes", b"* text eol=crlf ident\nsecret export-ignore\n"),
        ("100644", "a/$Id$.txt", b"$Id$\n$Format:%H$\n"),
        ("100644", "secret", b"\xff\x00\r\n"),
        ("100755", "run.sh", b""),
    )
    export_tree(git, tree, tmp_path / "out")
    out = tmp_path / "out"
    assert (out / "a/$Id$.txt").read_bytes() == b"$Id$\n$Format:%H$\n"
    assert (out / "secret").read_bytes() == b"\xff\x00\r\n"
    assert stat.S_IMODE((out / "run.sh").stat().st_mode) == 0o755
    assert stat.S_IMODE((out / "secret").stat().st_mode) == 0o644


def test_a_part_of_a_large_tree(git: Git, tmp_path: Path) -> None:
    files = {f"d{n % 7}/f{n}": Content(REGULAR, b"%d" % n) for n in range(1203)}
    tree = write_tree(git, "refs/heads/large", files)[1]
    written = export_tree(git, tree, tmp_path / "out", lambda path: path.startswith(b"d3/"))
    assert len(written) == 172
    for path in written:
        assert path.parent.name == "d3"
        assert path.read_text() == path.name[1:]


def test_a_link_is_refused(git: Git, tmp_path: Path) -> None:
    tree = _tree(git, ("120000", "link", b"/etc/passwd"))
    with pytest.raises(Fault, match="link is a link in the composed tree"):
        export_tree(git, tree, tmp_path / "out")
    assert not (tmp_path / "out" / "link").exists()
