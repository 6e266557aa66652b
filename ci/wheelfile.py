"""Wheels as files: reading RECORD, and writing one whose bytes depend on its content only.

Members are sorted (dist-info last, RECORD at the very end), carry one
timestamp and plain modes. A member that the pinned wheel already holds in
compressed form (the libraries, hundreds of megabytes) is copied in that form:
that is quick, and the same whatever zlib is installed.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import shutil
import struct
import time
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ci.errors import Fault

_CHUNK = 1 << 20
_FILE = 0o100644
_EXECUTABLE = 0o100755
_LOCAL_HEADER = struct.Struct("<4s22xHH")
_LEVEL = 6
_EARLIEST = 315532800  # 1980-01-01, where a zip file's time starts


@dataclass(frozen=True)
class Entry:
    """One line of RECORD: `digest` is urlsafe base64 without padding, as there."""

    digest: str
    size: int

    @classmethod
    def of(cls, content: bytes) -> Entry:
        return cls(_encoded(hashlib.sha256(content).digest()), len(content))

    @classmethod
    def read(cls, stream: IO[bytes]) -> Entry:
        """The entry of what `stream` still holds."""
        digest = hashlib.sha256()
        size = 0
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
        return cls(_encoded(digest.digest()), size)


def _encoded(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")


def parse_record(content: bytes) -> dict[str, Entry]:
    """RECORD's lines that carry a hash, by path."""
    rows = csv.reader(io.StringIO(content.decode("utf-8"), newline=""))
    return {
        row[0]: Entry(row[1].removeprefix("sha256="), int(row[2]))
        for row in rows
        if len(row) == 3 and row[1].startswith("sha256=")
    }


def render_record(entries: Mapping[str, Entry], own_path: str) -> bytes:
    """RECORD's content, its own line (without a hash) at the end."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    for path, entry in entries.items():
        writer.writerow([path, f"sha256={entry.digest}", entry.size])
    writer.writerow([own_path, "", ""])
    return out.getvalue().encode("utf-8")


def dist_info(archive: zipfile.ZipFile) -> str:
    """The name of the dist-info folder of an open wheel.

    Raises:
        Fault: there is none, or more than one.
    """
    found = {name.split("/")[0] for name in archive.namelist()}
    folders = sorted(name for name in found if name.endswith(".dist-info"))
    if len(folders) != 1:
        raise Fault(
            f"{archive.filename} holds {len(folders)} dist-info folders, a wheel holds one",
            todo="name a wheel",
        )
    return folders[0]


def open_wheel(path: Path) -> zipfile.ZipFile:
    """The wheel at `path`, open for reading.

    Raises:
        Fault: there is no such file, or it is no zip file.
    """
    try:
        return zipfile.ZipFile(path)
    except (FileNotFoundError, NotADirectoryError):
        raise Fault(f"{path} does not exist", todo="name a wheel file") from None
    except (zipfile.BadZipFile, IsADirectoryError):
        raise Fault(f"{path} is not a wheel", todo="name a wheel file") from None


def read_record(path: Path) -> dict[str, Entry]:
    """RECORD of the wheel at `path`."""
    with open_wheel(path) as archive:
        return parse_record(archive.read(f"{dist_info(archive)}/RECORD"))


@dataclass(frozen=True)
class Rewrite:
    """How a wheel is written anew.

    Attributes:
        timestamp: seconds since 1970, for every member.
        content: members to add, or to give another content.
        executable: members that keep the executable bit.
        donor: a wheel whose compressed members may be taken over.
    """

    timestamp: int
    content: Mapping[str, bytes]
    executable: frozenset[str]
    donor: Path


def rewrite(built: Path, target: Path, how: Rewrite) -> dict[str, Entry]:
    """Write `built` to `target` as `how` says, and hand back its RECORD.

    `target` is written in place: the caller moves it to where it belongs.
    """
    donated = read_record(how.donor)
    with (
        zipfile.ZipFile(built) as source,
        zipfile.ZipFile(how.donor) as donor,
        zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as out,
    ):
        own_path = f"{dist_info(source)}/RECORD"
        record: dict[str, Entry] = {}
        for name in _order({*source.namelist(), *how.content} - {own_path}):
            info = _info(name, how)
            if name in how.content:
                record[name] = Entry.of(how.content[name])
                out.writestr(info, how.content[name], compresslevel=_LEVEL)
                continue
            with source.open(name) as stream:
                record[name] = Entry.read(stream)
            if donated.get(name) == record[name] and _deflated(donor, name):
                _take_over(out, info, donor, donor.getinfo(name))
            else:
                out.writestr(info, source.read(name), compresslevel=_LEVEL)
        out.writestr(_info(own_path, how), render_record(record, own_path), compresslevel=_LEVEL)
    return record


def _order(names: set[str]) -> Iterator[str]:
    """Files in order of their names, those of dist-info after all others."""
    files = [name for name in names if not name.endswith("/")]
    return iter(sorted(files, key=lambda name: (".dist-info/" in name, name)))


def _info(name: str, how: Rewrite) -> zipfile.ZipInfo:
    moment = time.gmtime(max(how.timestamp, _EARLIEST))
    info = zipfile.ZipInfo(name, moment[:6])
    info.compress_type = zipfile.ZIP_DEFLATED
    info.create_system = 3  # Unix, on which the modes below have a meaning
    mode = _EXECUTABLE if name in how.executable else _FILE
    info.external_attr = mode << 16
    return info


def _deflated(archive: zipfile.ZipFile, name: str) -> bool:
    info = archive.getinfo(name)
    return info.compress_type == zipfile.ZIP_DEFLATED and info.flag_bits & 0x1 == 0


def _take_over(
    out: zipfile.ZipFile, info: zipfile.ZipInfo, donor: zipfile.ZipFile, old: zipfile.ZipInfo
) -> None:
    """Copy a member's compressed bytes from one archive to the end of another.

    zipfile has no call for this; what is done here is what its own writer
    does when a member is complete.
    """
    assert out.fp is not None
    assert donor.filename is not None
    info.CRC, info.file_size, info.compress_size = old.CRC, old.file_size, old.compress_size
    out.fp.seek(out.start_dir)
    info.header_offset = out.fp.tell()
    out.fp.write(info.FileHeader(zip64=False))
    with Path(donor.filename).open("rb") as stream:
        stream.seek(old.header_offset)
        _, name_length, extra_length = _LOCAL_HEADER.unpack(stream.read(_LOCAL_HEADER.size))
        stream.seek(name_length + extra_length, io.SEEK_CUR)
        shutil.copyfileobj(_Part(stream, old.compress_size), out.fp, _CHUNK)
    out.filelist.append(info)
    out.NameToInfo[info.filename] = info
    out.start_dir = out.fp.tell()


class _Part(io.RawIOBase):
    """The next `size` bytes of a stream."""

    def __init__(self, stream: IO[bytes], size: int) -> None:
        self._stream = stream
        self._left = size

    def read(self, size: int = -1) -> bytes:
        chunk = self._stream.read(min(size, self._left) if size >= 0 else self._left)
        self._left -= len(chunk)
        return chunk


def with_tag(metadata: bytes, tag: str) -> bytes:
    """WHEEL's content with `tag` (maybe a compressed set) in place of its own tags."""
    kept = [line for line in metadata.decode("utf-8").splitlines() if line.strip()]
    kept = [line for line in kept if not line.startswith("Tag:")]
    python, abi, platforms = tag.split("-")
    tags = [
        f"Tag: {p}-{a}-{on}"
        for p in python.split(".")
        for a in abi.split(".")
        for on in platforms.split(".")
    ]
    return "\n".join([*kept, *tags, ""]).encode("utf-8")


def tag_of(file_name: str) -> str:
    """The tag part of a wheel's file name."""
    return "-".join(file_name.removesuffix(".whl").split("-")[-3:])
