"""Files of a tree on disk, by paths that are bytes.

pathlib knows text only, and how text becomes a file's name depends on the
locale; a path inside a tree is bytes and must stay what it is.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from ci.core.content import EXECUTABLE, FOLDER, REGULAR, SYMLINK, Content, show
from ci.core.errors import Fault


def under(root: Path, path: bytes) -> bytes:
    """Where a tree's `path` lies below `root`."""
    return os.path.join(os.fsencode(root), path)


def folders(path: bytes) -> list[bytes]:
    """The folders that a tree's `path` lies in, the outermost first."""
    parts = path.split(b"/")
    return [b"/".join(parts[:depth]) for depth in range(1, len(parts))]


def read(where: bytes) -> Content | None:
    """A file's mode and bytes as git would take them, symlinks unfollowed.

    Returns:
        None if there is nothing, and a content with the mode `FOLDER` for a folder.

    Raises:
        Fault: it is a pipe, a socket or a device, which git takes no notice of
            and which might never end.
    """
    try:
        mode = os.lstat(where).st_mode
        if stat.S_ISLNK(mode):
            return Content(SYMLINK, os.readlink(where))
        if stat.S_ISDIR(mode):
            return Content(FOLDER, b"")
        refuse_special(where, mode)
        with open(where, "rb") as file:
            return Content(EXECUTABLE if mode & stat.S_IXUSR else REGULAR, file.read())
    except (FileNotFoundError, NotADirectoryError):
        return None


def refuse_special(where: bytes, mode: int) -> None:
    """Refuse what is not a file before it is opened.

    Raises:
        Fault: it is a folder, a pipe, a socket or a device.
    """
    if not stat.S_ISREG(mode):
        raise Fault(f"{show(where)} is not a file", todo="move it away")


def read_plain(path: Path) -> bytes:
    """The bytes of a file that has to be there, links followed.

    Raises:
        Fault: what is there is not a file.
        FileNotFoundError: nothing is.
    """
    refuse_special(os.fsencode(path), path.stat().st_mode)
    return path.read_bytes()


def write_new(where: bytes, content: Content) -> None:
    """Write a file that is not there yet, down to the disk."""
    if content.mode == SYMLINK:
        os.symlink(content.data, where)
        return
    mode = 0o777 if content.mode == EXECUTABLE else 0o666
    handle = os.open(where, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(content.data)
        file.flush()
        os.fsync(file.fileno())


def link_above(root: Path, path: bytes) -> bytes | None:
    """The symbolic link that stands in the place of a folder of `path`, if one does."""
    return next((one for one in folders(path) if os.path.islink(under(root, one))), None)


def unlink(root: Path, path: bytes) -> None:
    """Delete a file or a link below `root`; a folder stays."""
    where = under(root, path)
    if os.path.islink(where) or os.path.isfile(where):
        os.unlink(where)


def remove(root: Path, path: bytes) -> None:
    """Delete a file below `root`, and the folders that it leaves empty."""
    unlink(root, path)
    top = os.fsencode(root)
    where = os.path.join(top, path)
    above = os.path.dirname(where)
    while above != top:
        try:
            os.rmdir(above)
        except OSError:
            return
        above = os.path.dirname(above)


def is_empty_folder(where: bytes) -> bool:
    """Whether there is a folder with nothing in it."""
    return os.path.isdir(where) and not any(os.scandir(where))


def below(root: Path, path: bytes) -> Iterator[bytes]:
    """The files below a folder of a tree on disk, links unfollowed."""
    for entry in os.scandir(under(root, path)):
        inner = path + b"/" + entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from below(root, inner)
        else:
            yield inner


def put(source: Path, where: bytes) -> None:
    """Move a file into place in one step; one that has been moved already stays."""
    if not os.path.lexists(source):
        return
    os.makedirs(os.path.dirname(where), exist_ok=True)
    try:
        os.replace(source, where)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        # The two are on different disks: copy beside it, then move.
        beside = where + b".swap"
        shutil.copy2(os.fsencode(source), beside, follow_symlinks=False)
        os.replace(beside, where)
        source.unlink()
