"""Reading and unpacking archives that must not be able to do harm.

An archive is read member by member; each name is checked before anything of
the archive is written anywhere. Only regular files and folders are taken: no
source archive or wheel that we use holds a link, and one that does is refused
rather than interpreted.
"""

from __future__ import annotations

import lzma
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ci.errors import Fault

# What the readers raise for data that is damaged or was never an archive.
_DAMAGE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OverflowError,
    NotImplementedError,
    RuntimeError,
)


@dataclass(frozen=True)
class Member:
    """One regular file of an archive: its path inside, and whether it may be run."""

    path: str
    executable: bool
    content: bytes


class _Names:
    """The names seen so far, and the rules each new one has to keep."""

    def __init__(self, archive: Path) -> None:
        self.archive = archive.name
        self.files: dict[str, str] = {}
        self.folders: dict[str, str] = {}

    def refuse(self, name: str, why: str) -> Fault:
        return Fault(
            f"{self.archive}: member {name!r} {why}",
            todo="nothing was unpacked; get the archive from where the pin says",
        )

    def check(self, name: str, *, folder: bool) -> str:
        """The name in its plain form.

        Raises:
            Fault: it leads out of the folder, names something twice (also where
                capitals make no difference), or would be git's own data.
        """
        plain = name[:-1] if folder and name.endswith("/") else name
        parts = plain.split("/")
        if name.startswith("/") or "\\" in name or ":" in parts[0] or "\0" in name:
            raise self.refuse(name, "is not a plain relative path")
        if any(part in ("", ".", "..") for part in parts):
            raise self.refuse(name, "does not stay in its folder")
        if any(part.lower().rstrip(". ") == ".git" for part in parts):
            raise self.refuse(name, "is git's own data")
        self._enter(name, plain, folder=folder)
        return plain

    def _enter(self, name: str, plain: str, *, folder: bool) -> None:
        key = plain.lower()
        if not folder:
            if key in self.files or key in self.folders:
                raise self.refuse(name, "is there twice, perhaps in other capitals")
            self.files[key] = plain
        above = plain if folder else plain.rpartition("/")[0]
        while above:
            if above.lower() in self.files:
                raise self.refuse(name, f"lies below {above!r}, which is a file")
            known = self.folders.setdefault(above.lower(), above)
            if known != above:
                raise self.refuse(name, f"lies in a folder that is also there as {known!r}")
            above = above.rpartition("/")[0]


def _tar_members(path: Path) -> Iterator[Member]:
    names = _Names(path)
    with tarfile.open(path, "r:gz") as archive:
        for info in archive:
            if not info.isfile() and not info.isdir():
                kind = "a link" if info.issym() or info.islnk() else "no regular file"
                raise names.refuse(info.name, f"is {kind}")
            plain = names.check(info.name, folder=info.isdir())
            if info.isfile():
                reader = archive.extractfile(info)
                assert reader is not None
                yield Member(plain, bool(info.mode & stat.S_IXUSR), reader.read())


def _zip_members(path: Path) -> Iterator[Member]:
    names = _Names(path)
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            mode = info.external_attr >> 16
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                kind = "a link" if stat.S_ISLNK(mode) else "no regular file"
                raise names.refuse(info.filename, f"is {kind}")
            # orig_filename is what the archive says; filename is cut at a NUL.
            plain = names.check(info.orig_filename, folder=info.is_dir())
            if not info.is_dir():
                yield Member(plain, bool(mode & stat.S_IXUSR), archive.read(info))


def members(path: Path) -> Iterator[Member]:
    """Every file of the .tar.gz, .whl or .zip at `path`, each checked first.

    Raises:
        Fault: a member is unsafe (then the caller has seen only earlier ones
            and must not use them), or the file is no archive or is damaged.
    """
    reader = _tar_members if path.name.endswith((".tar.gz", ".tgz")) else _zip_members
    try:
        yield from reader(path)
    except _DAMAGE as error:
        raise _damaged(path, error) from None
    except OSError as error:
        # gzip tells of damaged data by an OSError without a number.
        if error.errno is not None:
            raise
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> Fault:
    return Fault(
        f"{path} is not a whole archive ({error})", todo="get it again from where the pin says"
    )


def unpack(path: Path, folder: Path) -> None:
    """Unpack the archive at `path` as `folder`, which must not be there yet.

    The folder appears only when all of it is there; a half-unpacked one has
    another name and is thrown away by the next run.
    """
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        for member in members(path):
            target = part / member.path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(member.content)
            target.chmod(0o755 if member.executable else 0o644)
        part.rename(folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
