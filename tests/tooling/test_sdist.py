"""An sdist: read and imported when plain, refused by member name when not."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ci.core.errors import Fault
from ci.git.repo import Git
from ci.git.trees import list_tree
from ci.pinned.sdist import Member, import_tree, sdist_files

Add = Callable[[tarfile.TarFile], None]


def _file(name: str, content: bytes = b"x", mode: int = 0o644) -> Add:
    def add(archive: tarfile.TarFile) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(content), mode
        archive.addfile(info, io.BytesIO(content))

    return add


def _other(name: str, kind: bytes, target: str = "") -> Add:
    def add(archive: tarfile.TarFile) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.linkname, info.mode = kind, target, 0o755
        archive.addfile(info)

    return add


def _tar(tmp_path: Path, *adds: Add) -> Path:
    path = tmp_path / "some.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for add in adds:
            add(archive)
    return path


@pytest.fixture
def store(tmp_path: Path) -> Git:
    git = Git(tmp_path / "store.git")
    git.init()
    return git


def test_plain_files_and_folders(tmp_path: Path, store: Git) -> None:
    path = _tar(
        tmp_path,
        _other("top", tarfile.DIRTYPE),
        _other("top/d", tarfile.DIRTYPE),
        _file("top/a", b"\xe9\r\n"),
        _file("top/run.sh", b"#!", 0o775),
        _file("top/é/b"),
        _file("top/made/c"),
    )
    found = list(sdist_files(path))
    assert found == [
        Member("a", False, b"\xe9\r\n"),
        Member("run.sh", True, b"#!"),
        Member("é/b", False, b"x"),
        Member("made/c", False, b"x"),
    ]
    listed = list_tree(store, import_tree(store, found, ("made/",)))
    assert {name.decode(): (mode, store.blob(oid)) for name, (mode, oid) in listed.items()} == {
        "a": ("100644", b"\xe9\r\n"),
        "run.sh": ("100755", b"#!"),
        "é/b": ("100644", b"x"),
    }


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("../out", "lies outside the one folder"),
        ("/etc/out", "lies outside the one folder"),
        ("out", "lies outside the one folder"),
        ("other/out", "lies outside the one folder"),
        ("./top/a", "lies outside the one folder"),
        ("top/../../out", "does not stay in its folder"),
        ("top/a//b", "does not stay in its folder"),
        ("top/a/./b", "does not stay in its folder"),
        ("top/..", "does not stay in its folder"),
        ("top/.git/config", "is git's own data"),
        ("top/a/.GIT/hooks/x", "is git's own data"),
        ("top/a/.git. /x", "is git's own data"),
    ],
)
def test_unsafe_names_are_refused(tmp_path: Path, store: Git, name: str, says: str) -> None:
    path = _tar(tmp_path, _file("top/good"), _file(name))
    with pytest.raises(Fault) as caught:
        import_tree(store, sdist_files(path), ())
    assert f"{path.name}: member {name!r} {says}" in str(caught.value)
    assert store.run("for-each-ref") == b""


@pytest.mark.parametrize(
    ("add", "says"),
    [
        (_other("top/l", tarfile.SYMTYPE, "/etc/passwd"), "is a link"),
        (_other("top/l", tarfile.SYMTYPE, "a"), "is a link"),
        (_other("top/l", tarfile.LNKTYPE, "top/a"), "is a link"),
        (_other("top/l", tarfile.CHRTYPE), "is not a regular file"),
        (_other("top/l", tarfile.FIFOTYPE), "is not a regular file"),
    ],
)
def test_other_members_are_refused(tmp_path: Path, store: Git, add: Add, says: str) -> None:
    with pytest.raises(Fault, match=f"'top/l' {says}"):
        import_tree(store, sdist_files(_tar(tmp_path, _file("top/a"), add)), ())
    assert store.run("for-each-ref") == b""


def _damage_middle(data: bytes) -> bytes:
    return data[: len(data) // 2] + bytes(20) + data[len(data) // 2 + 20 :]


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[: len(data) // 2], _damage_middle, lambda data: b"<html>", lambda data: b""],
    ids=["cut", "changed", "another thing", "empty"],
)
def test_damage_is_a_fault(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    noise = bytes((i * 7919 + i // 256 * 31) % 256 for i in range(5000))
    path = _tar(tmp_path, _file("top/a", noise))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(Fault, match="is not a whole archive"):
        list(sdist_files(path))
