"""Wheels as files: RECORD, tags, and bytes that depend on content only."""

from __future__ import annotations

import os
import zipfile
import zlib
from pathlib import Path

import pytest

from ci.core.errors import Fault
from ci.wheel import archive as wheelfile
from ci.wheel.archive import Entry

INFO = "vllm-1.0.dist-info"
LIBRARY = os.urandom(3000) * 40


def _wheel(path: Path, members: dict[str, bytes], level: int = 6) -> Path:
    record = {name: Entry.of(content) for name, content in members.items()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=level) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        own = f"{INFO}/RECORD"
        archive.writestr(own, wheelfile.render_record(record, own))
    return path


def _rewrite(tmp_path: Path, built: Path, donor: Path, **content: bytes) -> Path:
    target = tmp_path / f"out-{built.stem}.whl"
    named = {f"{INFO}/{name}": data for name, data in content.items()}
    wheelfile.rewrite(
        built,
        target,
        donor=donor,
        timestamp=1_700_000_000,
        content=named,
        executable={"vllm/run.sh"},
    )
    return target


@pytest.fixture
def donor(tmp_path: Path) -> Path:
    """A wheel whose library was compressed in another way than ours would be."""
    return _wheel(tmp_path / "donor.whl", {"vllm/_C.so": LIBRARY, "vllm/a.py": b"old"}, level=1)


def test_same_content_gives_the_same_bytes(tmp_path: Path, donor: Path) -> None:
    members = {"vllm/a.py": b"a" * 500, "vllm/_C.so": LIBRARY, f"{INFO}/WHEEL": b"w"}
    one = _wheel(tmp_path / "one.whl", members)
    two = _wheel(tmp_path / "two.whl", dict(reversed(members.items())), level=9)
    assert one.read_bytes() != two.read_bytes()
    first = _rewrite(tmp_path, one, donor, sbom=b"{}")
    second = _rewrite(tmp_path, two, donor, sbom=b"{}")
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes() != _rewrite(tmp_path, one, donor, sbom=b"[]").read_bytes()


def test_a_rewritten_wheel_is_whole(tmp_path: Path, donor: Path) -> None:
    members = {"vllm/é.py": b"x\r\n\xe9", "vllm/run.sh": b"#!", "vllm/_C.so": LIBRARY}
    built = _wheel(tmp_path / "built.whl", {f"{INFO}/WHEEL": b"w", **members})
    target = _rewrite(tmp_path, built, donor, WHEEL=b"new", extra=b"e")
    with zipfile.ZipFile(target) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        assert names[:3] == sorted(members)
        assert names[-1] == f"{INFO}/RECORD"
        assert {name: archive.read(name) for name in members} == members
        assert archive.read(f"{INFO}/WHEEL") == b"new"
        modes = {i.filename: i.external_attr >> 16 for i in archive.infolist()}
        assert modes["vllm/run.sh"] == 0o100755
        assert modes["vllm/_C.so"] == 0o100644
        record = wheelfile.parse_record(archive.read(f"{INFO}/RECORD"))
        assert record == {name: Entry.of(archive.read(name)) for name in names[:-1]}


def test_a_library_keeps_its_compressed_form(tmp_path: Path, donor: Path) -> None:
    built = _wheel(tmp_path / "built.whl", {"vllm/_C.so": LIBRARY, "vllm/a.py": b"new"})
    target = _rewrite(tmp_path, built, donor)
    with zipfile.ZipFile(donor) as old, zipfile.ZipFile(target) as new:
        was, is_ = old.getinfo("vllm/_C.so"), new.getinfo("vllm/_C.so")
        assert is_.compress_size == was.compress_size
        assert zlib.crc32(LIBRARY) == is_.CRC
        # Another content under a name that the donor has is not taken over.
        assert new.read("vllm/a.py") == b"new"


def test_record_quotes_what_csv_would_split() -> None:
    entries = {'vllm/a,"b".json': Entry.of(b"x")}
    assert wheelfile.parse_record(wheelfile.render_record(entries, "i/RECORD")) == entries


@pytest.mark.parametrize(
    ("file", "tags"),
    [
        ("vllm-0.17.1-cp38-abi3-manylinux_2_31_x86_64.whl", ["cp38-abi3-manylinux_2_31_x86_64"]),
        ("v-1-py2.py3-none-any.whl", ["py2-none-any", "py3-none-any"]),
    ],
)
def test_tags(file: str, tags: list[str]) -> None:
    before = b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp311-cp311-linux_x86_64\n\n"
    after = wheelfile.with_tag(before, wheelfile.tag_of(file)).decode()
    assert after.splitlines() == [
        "Wheel-Version: 1.0",
        "Root-Is-Purelib: false",
        *(f"Tag: {tag}" for tag in tags),
    ]


def test_what_is_no_wheel(tmp_path: Path) -> None:
    with pytest.raises(Fault, match="does not exist"):
        wheelfile.read_record(tmp_path / "none.whl")
    (tmp_path / "text.whl").write_text("no")
    with pytest.raises(Fault, match="is not a wheel"):
        wheelfile.read_record(tmp_path / "text.whl")
    with zipfile.ZipFile(tmp_path / "plain.zip", "w") as archive:
        archive.writestr("a", "b")
    with pytest.raises(Fault, match="0 dist-info folders"):
        wheelfile.read_record(tmp_path / "plain.zip")


def test_wheels_of_a_release_are_not_those_of_one_that_begins_alike(tmp_path: Path) -> None:
    names = ["vllm-0.1.1+x.cpu-py3-none-any.whl", "vllm-0.1.1-py3-none-any.whl"]
    for name in (*names, "vllm-0.1.10+x-py3-none-any.whl", "vllm-0.1.1.tar.gz"):
        (tmp_path / name).touch()
    assert [path.name for path in wheelfile.wheels_of(tmp_path, "0.1.1")] == names
