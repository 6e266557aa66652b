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
import struct
import time
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import IO, NamedTuple

from packaging.tags import parse_tag

from ci.core.errors import Fault

_CHUNK = 1 << 20
_LOCAL_HEADER = struct.Struct("<4s22xHH")
_LEVEL = 6
_EARLIEST = 315532800  # 1980-01-01, where a zip file's time starts


class Entry(NamedTuple):
    """One line of RECORD: `digest` is urlsafe base64 without padding, as there."""

    digest: str
    size: int

    @classmethod
    def of(cls, content: bytes) -> Entry:
        return cls.read(io.BytesIO(content))

    @classmethod
    def read(cls, stream: IO[bytes]) -> Entry:
        """The entry of what `stream` still holds."""
        digest = hashlib.sha256()
        size = 0
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
        return cls(base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode("ascii"), size)


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
    writer.writerows([path, f"sha256={e.digest}", e.size] for path, e in entries.items())
    writer.writerow([own_path, "", ""])
    return out.getvalue().encode("utf-8")


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


def dist_info(archive: zipfile.ZipFile) -> str:
    """The name of the dist-info folder of an open wheel.

    Raises:
        Fault: there is none, or more than one.
    """
    tops = {name.split("/")[0] for name in archive.namelist()}
    folders = [name for name in tops if name.endswith(".dist-info")]
    if len(folders) != 1:
        raise Fault(
            f"{archive.filename} holds {len(folders)} dist-info folders, a wheel holds one",
            todo="name a wheel",
        )
    return folders[0]


def read_record(path: Path) -> dict[str, Entry]:
    """RECORD of the wheel at `path`."""
    with open_wheel(path) as archive:
        return parse_record(archive.read(f"{dist_info(archive)}/RECORD"))


def rewrite(
    built: Path,
    target: Path,
    *,
    donor: Path,
    timestamp: int,
    content: Mapping[str, bytes],
    executable: Collection[str],
) -> None:
    """Write the wheel `built` anew to `target`, in place: the caller moves it where it belongs.

    Args:
        donor: a wheel whose compressed members may be copied.
        timestamp: seconds since 1970, for every member.
        content: members to add, or to give another content.
        executable: members that are marked executable.
    """
    donated = read_record(donor)
    moment = time.gmtime(max(timestamp, _EARLIEST))[:6]

    def header(name: str) -> zipfile.ZipInfo:
        info = zipfile.ZipInfo(name, moment)
        info.compress_type = zipfile.ZIP_DEFLATED
        info.create_system = 3  # Unix, on which the modes below have a meaning
        info.external_attr = (0o100755 if name in executable else 0o100644) << 16
        return info

    with (
        zipfile.ZipFile(built) as source,
        zipfile.ZipFile(donor) as other,
        zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as out,
    ):
        own_path = f"{dist_info(source)}/RECORD"
        names = {name for name in (*source.namelist(), *content) if not name.endswith("/")}
        record: dict[str, Entry] = {}
        for name in sorted(names - {own_path}, key=lambda name: (".dist-info/" in name, name)):
            with io.BytesIO(content[name]) if name in content else source.open(name) as stream:
                record[name] = Entry.read(stream)
                if donated.get(name) == record[name] and _is_deflated(other.getinfo(name)):
                    _copy_compressed(out, header(name), other, name)
                else:
                    stream.seek(0)
                    out.writestr(header(name), stream.read())
        out.writestr(header(own_path), render_record(record, own_path))


def _is_deflated(info: zipfile.ZipInfo) -> bool:
    encrypted = info.flag_bits & 0x1
    return info.compress_type == zipfile.ZIP_DEFLATED and not encrypted


def _copy_compressed(
    out: zipfile.ZipFile, info: zipfile.ZipInfo, donor: zipfile.ZipFile, name: str
) -> None:
    """Copy a member's compressed bytes from one archive to the end of another.

    zipfile has no call for this; what is done here is what its own writer
    does when a member is complete.
    """
    assert out.fp is not None
    assert donor.filename is not None
    old = donor.getinfo(name)
    info.CRC, info.file_size, info.compress_size = old.CRC, old.file_size, old.compress_size
    out.fp.seek(out.start_dir)
    info.header_offset = out.fp.tell()
    out.fp.write(info.FileHeader(zip64=False))
    with Path(donor.filename).open("rb") as stream:
        stream.seek(old.header_offset)
        _, name_length, extra_length = _LOCAL_HEADER.unpack(stream.read(_LOCAL_HEADER.size))
        stream.seek(name_length + extra_length, io.SEEK_CUR)
        out.fp.write(stream.read(old.compress_size))
    out.filelist.append(info)
    out.NameToInfo[info.filename] = info
    out.start_dir = out.fp.tell()


def with_tag(metadata: bytes, tag: str) -> bytes:
    """WHEEL's content with `tag` (maybe a compressed set) in place of its own tags."""
    lines = [line for line in metadata.decode("utf-8").splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("Tag:")]
    lines += sorted(f"Tag: {one}" for one in parse_tag(tag))
    return "\n".join([*lines, ""]).encode("utf-8")


def wheels_of(folder: Path, version: str) -> list[Path]:
    """The wheels in a folder of a vLLM release, whatever their local version."""
    return sorted(folder.glob(f"*-{version}[+-]*.whl"))


def tag_of(file_name: str) -> str:
    """The tag part of a wheel's file name."""
    return "-".join(file_name.removesuffix(".whl").split("-")[-3:])
