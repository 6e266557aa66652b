"""Reading vLLM's source archive, and importing it into the store.

Its files go from the archive into git; none is unpacked on the way.
"""

from __future__ import annotations

import re
import stat
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ci.core.errors import Fault
from ci.git.repo import Git, Identity

BASE_AUTHOR = Identity("vLLM", "vllm@upstream.invalid", "1767225600 +0000")
"""Who and when the base commit made from an sdist is by: the same everywhere."""

_ARRIVING = "refs/import/sdist"


@dataclass(frozen=True)
class Member:
    """One file of an sdist: its path below the top folder, and whether it may be run."""

    path: str
    executable: bool
    content: bytes


def sdist_files(sdist: Path) -> Iterator[Member]:
    """The files of the .tar.gz at `sdist`.

    Raises:
        Fault: a member is not a plain file below the one top folder, or the
            file is not an archive or is damaged. Members that came before it
            must not be used.
    """
    try:
        with tarfile.open(sdist, "r:gz") as archive:
            top = ""
            for info in archive:
                first, _, below = info.name.partition("/")
                top = top or first
                why = _refused(info, below if first == top else "")
                if why:
                    raise Fault(
                        f"{sdist.name}: member {info.name!r} {why}",
                        todo="nothing was imported; get vLLM's sdist from where the pin says",
                    )
                reader = archive.extractfile(info)
                if reader is not None:
                    yield Member(below, bool(info.mode & stat.S_IXUSR), reader.read())
    except (tarfile.TarError, zlib.error, EOFError) as error:
        raise _damaged(sdist, error) from None
    except OSError as error:
        # gzip tells of damaged data by an OSError without a number.
        if error.errno is not None:
            raise
        raise _damaged(sdist, error) from None


def _refused(info: tarfile.TarInfo, path: str) -> str:
    """Why a member cannot be a file of vLLM's tree; empty if it can."""
    if info.issym() or info.islnk():
        return "is a link"
    if not info.isfile() and not info.isdir():
        return "is not a regular file"
    parts = path.split("/")
    if info.isfile() and not path:
        return "lies outside the one folder of an sdist"
    if (path and any(part in ("", ".", "..") for part in parts)) or "\0" in path:
        return "does not stay in its folder"
    if any(part.lower().rstrip(". ") == ".git" for part in parts):
        return "is git's own data"
    return ""


def _damaged(path: Path, error: Exception) -> Fault:
    return Fault(
        f"{path} is not a whole archive ({error})", todo="get it again from where the pin says"
    )


def short_commit(files: Iterable[Member]) -> str:
    """The start of the commit id that vLLM's build writes into vllm/_version.py."""
    content = {file.path: file.content for file in files}.get("vllm/_version.py", b"")
    match = re.search(rb"commit_id = '?g([0-9a-f]{7,40})", content)
    return match[1].decode() if match else ""


def import_tree(git: Git, files: Iterable[Member], generated: tuple[str, ...]) -> str:
    """Write the files of an sdist to a store, without `generated`; the tree that they make."""
    folders = tuple(name for name in generated if name.endswith("/"))
    wanted = [
        file
        for file in files
        if file.path not in generated and not (folders and file.path.startswith(folders))
    ]
    # One commit's files have no earlier versions to be told apart from: looking
    # for deltas and pressing harder would only take 10 s longer.
    fast = ("-c", "core.compression=1", "fast-import", "--depth=0")
    git.run(*fast, "--quiet", "--force", "--done", stdin=_import_stream(wanted))
    tree = git.tree_of(_ARRIVING)
    git.run("update-ref", "-d", _ARRIVING)
    return tree


def _import_stream(files: Iterable[Member]) -> bytes:
    who = BASE_AUTHOR
    parts = [
        f"commit {_ARRIVING}\ncommitter {who.name} <{who.email}> {who.date}\ndata 0\n".encode()
    ]
    for file in files:
        raw = file.path.encode("utf-8", "surrogateescape")
        if b"\n" in raw or raw.startswith(b'"'):
            raw = b'"' + raw.replace(b'"', b'\\"').replace(b"\n", b"\\n") + b'"'
        mode = b"100755" if file.executable else b"100644"
        parts.append(b"M %s inline %s\ndata %d\n" % (mode, raw, len(file.content)))
        parts += [file.content, b"\n"]
    return b"".join([*parts, b"done\n"])


def base_commit(git: Git, tree: str, what: str) -> str:
    """A commit without a parent for a tree that came from an sdist."""
    return git.commit_tree(tree, (), BASE_AUTHOR, f"vLLM {what}\n".encode())
