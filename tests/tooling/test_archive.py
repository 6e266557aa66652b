"""Archives: read and unpacked when plain, refused by member name when not."""

from __future__ import annotations

import io
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ci.archive import Member, members, unpack
from ci.errors import Fault

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


def _zip(tmp_path: Path, *entries: tuple[str, int]) -> Path:
    path = tmp_path / "some.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, mode in entries:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            archive.writestr(info, b"x")
    return path


def test_plain_files_and_folders(tmp_path: Path) -> None:
    path = _tar(
        tmp_path,
        _other("top", tarfile.DIRTYPE),
        _file("top/a", b"\xe9\r\n"),
        _file("top/run.sh", b"#!", 0o775),
        _file("top/é/b"),
    )
    assert list(members(path)) == [
        Member("top/a", False, b"\xe9\r\n"),
        Member("top/run.sh", True, b"#!"),
        Member("top/é/b", False, b"x"),
    ]
    unpack(path, tmp_path / "out")
    assert (tmp_path / "out/top/a").read_bytes() == b"\xe9\r\n"
    assert stat.S_IMODE((tmp_path / "out/top/run.sh").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "out/top/a").stat().st_mode) == 0o644


def test_a_wheel(tmp_path: Path) -> None:
    path = _zip(tmp_path, ("p/", 0o40755), ("p/a.py", 0o100644), ("p/t", 0o100755), ("old", 0))
    assert [(m.path, m.executable) for m in members(path)] == [
        ("p/a.py", False),
        ("p/t", True),
        ("old", False),
    ]


UNSAFE_NAMES = [
    "../out",
    "a/../../out",
    "/etc/out",
    "a//b",
    "./a",
    "a/./b",
    "..",
    "a\\..\\b",
    "C:/out",
    ".git/config",
    "a/.GIT/hooks/x",
    "a/.git. /x",
]


@pytest.mark.parametrize("name", UNSAFE_NAMES)
def test_unsafe_names_are_refused(tmp_path: Path, name: str) -> None:
    for path in (
        _tar(tmp_path, _file("good"), _file(name)),
        _zip(tmp_path, ("good", 0), (name, 0)),
    ):
        with pytest.raises(Fault) as caught:
            unpack(path, tmp_path / "in" / "out")
        assert repr(name) in str(caught.value)
        assert path.name in str(caught.value)
        assert list((tmp_path / "in").iterdir()) == []


@pytest.mark.parametrize(
    ("adds", "says"),
    [
        ([_other("l", tarfile.SYMTYPE, "/etc/passwd")], "'l' is a link"),
        ([_other("l", tarfile.SYMTYPE, "a")], "'l' is a link"),
        ([_file("a"), _other("l", tarfile.LNKTYPE, "a")], "'l' is a link"),
        ([_other("d", tarfile.CHRTYPE)], "'d' is no regular file"),
        ([_other("d", tarfile.FIFOTYPE)], "'d' is no regular file"),
        ([_file("a"), _file("a")], "'a' is there twice"),
        ([_file("a/B"), _file("a/b")], "'a/b' is there twice"),
        ([_file("A/x"), _file("a/y")], "'a/y' lies in a folder that is also there as 'A'"),
        ([_file("a"), _file("a/b")], "'a/b' lies below 'a', which is a file"),
        ([_file("a/b"), _file("a")], "'a' is there twice"),
        ([_file("a"), _other("a", tarfile.DIRTYPE)], "'a' lies below 'a', which is a file"),
    ],
)
def test_unsafe_members_are_refused(tmp_path: Path, adds: list[Add], says: str) -> None:
    with pytest.raises(Fault) as caught:
        unpack(_tar(tmp_path, *adds), tmp_path / "out")
    assert says in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["some.tar.gz"]


def test_a_link_in_a_wheel_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Fault, match="'l' is a link"):
        list(members(_zip(tmp_path, ("l", stat.S_IFLNK | 0o777))))


def _damage_middle(data: bytes) -> bytes:
    return data[: len(data) // 2] + bytes(20) + data[len(data) // 2 + 20 :]


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[: len(data) // 2], _damage_middle, lambda data: b"<html>", lambda data: b""],
    ids=["cut", "changed", "another thing", "empty"],
)
@pytest.mark.parametrize("suffix", ["tar.gz", "whl"])
def test_damage_is_a_fault(tmp_path: Path, damage: Callable[[bytes], bytes], suffix: str) -> None:
    noise = bytes((i * 7919 + i // 256 * 31) % 256 for i in range(5000))
    if suffix == "tar.gz":
        path = _tar(tmp_path, _file("a", noise))
    else:
        path = tmp_path / "some.whl"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a", noise)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(Fault, match="is not a whole archive"):
        list(members(path))


def test_a_half_unpacked_folder_is_thrown_away(tmp_path: Path) -> None:
    (tmp_path / "out.part").mkdir()
    (tmp_path / "out.part/stale").write_text("")
    unpack(_tar(tmp_path, _file("a")), tmp_path / "out")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["a"]
