"""Where the pin's files come from. The only room that downloads.

`fetch_artifact` brings a file of the pin into the downloads folder and answers
for its sha256: from an index, or from a file or folder that the user gave.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ci.errors import Fault
from ci.layout import Layout
from ci.pin import Artifact
from ci.progress import say

if TYPE_CHECKING:
    from ci.download import Client

Show = Callable[[str], None]

INDEX = "index"
"""The `--source` that goes back to the sdist from the package index."""


def source_word(word: str) -> str:
    """The type of every `--source` option: a shell variable that is not set is no source."""
    if not word.strip():
        raise argparse.ArgumentTypeError("is empty: give a file, a folder or a git repository")
    return word


def sha256_of(path: Path) -> str:
    """The sha256 of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _memo(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _stamp(path: Path) -> str:
    """What changes whenever the file is written to, without reading it."""
    status = path.stat()
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ino}"


def _is_good(path: Path, artifact: Artifact) -> bool:
    """Whether `path` is the artifact; reads it only if it changed since the last time."""
    if not path.is_file() or path.stat().st_size != artifact.size:
        return False
    known = f"{artifact.sha256} {_stamp(path)}\n"
    memo = _memo(path)
    if memo.is_file() and memo.read_text() == known:
        return True
    if sha256_of(path) != artifact.sha256:
        return False
    memo.write_text(known)
    return True


def _wrong(where: str, artifact: Artifact, got: str, todo: str) -> Fault:
    return Fault(
        f"{artifact.file} from {where} is not the pinned file: "
        f"expected sha256 {artifact.sha256}, got {got}",
        todo=todo,
    )


def fetch_artifact(
    layout: Layout, artifact: Artifact, source: str | None = None, show: Show = say
) -> Path:
    """The pin's file, verified, in the downloads folder; fetched if it is not there.

    Args:
        source: the file itself, or a folder that holds it; None asks the
            package indexes that pip and uv are set to use.

    Raises:
        Fault: it cannot be had, or is not what the pin says.
    """
    target = layout.downloads / artifact.file
    if source not in (None, INDEX):
        assert source is not None
        given = _given_file(Path(source), artifact)
        if not _is_good(target, artifact):
            _copy(given, target, artifact, show)
        return target
    if _is_good(target, artifact):
        return target
    if target.is_file():
        _check_size(target, artifact)
        show(
            f"{target} is not the file that pin.toml names (expected sha256 {artifact.sha256}, "
            f"got {sha256_of(target)}); fetching it"
        )
    from filelock import FileLock

    layout.downloads.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_name(f".{target.name}.lock")):
        if not _is_good(target, artifact):
            _download(target, artifact, show)
    return target


def _check_size(path: Path, artifact: Artifact) -> None:
    """Stop where nothing but the size in the pin is wrong: no source would be right.

    Raises:
        Fault: that is so.
    """
    size = path.stat().st_size
    if size != artifact.size and sha256_of(path) == artifact.sha256:
        raise Fault(
            f"pin.toml says size {artifact.size} for {artifact.file}, "
            f"but the file with its sha256 has {size} bytes",
            todo="mend size in pin.toml",
        )


def _given_file(path: Path, artifact: Artifact) -> Path:
    """The artifact's file at a path that the user gave, checked."""
    file = path / artifact.file if path.is_dir() else path
    if not file.is_file():
        raise Fault(f"{file} is not there", todo=f"give the path of {artifact.file}")
    got = sha256_of(file)
    if got != artifact.sha256:
        raise _wrong(str(file), artifact, got, "give the file that the pin names")
    _check_size(file, artifact)
    return file


def _copy(given: Path, target: Path, artifact: Artifact, show: Show) -> None:
    show(f"copying {given}")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = _part(target)
    shutil.copyfile(given, part)
    _accept(part, target, artifact, str(given))


def _part(target: Path) -> Path:
    return target.with_name(target.name + ".part")


def _accept(part: Path, target: Path, artifact: Artifact, where: str) -> None:
    """Give a whole file its name, if it is the artifact; else throw it away."""
    got = sha256_of(part)
    if got != artifact.sha256:
        part.unlink()
        raise _wrong(where, artifact, got, "use another index, or give the file: --source PATH")
    part.replace(target)
    _memo(target).write_text(f"{artifact.sha256} {_stamp(target)}\n")


def _download(target: Path, artifact: Artifact, show: Show) -> None:
    """Fetch from the first place that has it; tell of all if none has."""
    from ci.download import Client, Unreachable
    from ci.indexes import indexes

    settings = indexes()
    for folder in settings.folders:
        if (folder / artifact.file).is_file():
            _copy(_given_file(folder, artifact), target, artifact, show)
            return
    _need_space(target, artifact)
    failures: list[Unreachable] = []
    refused: list[Fault] = []
    with Client(settings) as client:
        for index in settings.urls:
            try:
                for url in _candidates(client, index, artifact):
                    show(f"downloading {artifact.file} ({_megabytes(artifact.size)})")
                    _download_from(client, url, target, artifact)
                    return
            except Unreachable as failure:
                failures.append(failure)
            except Fault as fault:
                refused.append(fault)
    raise _not_had(artifact, settings.urls, failures, refused)


def _candidates(client: Client, index: str, artifact: Artifact) -> Iterator[str]:
    """The address of the artifact on one index, unless that index lists another file."""
    from ci.indexes import without_secrets

    for package in client.project(index, artifact.project):
        if package.filename == artifact.file:
            listed = package.digests.get("sha256", artifact.sha256)
            if listed != artifact.sha256:
                where = without_secrets(index)
                raise _wrong(
                    where, artifact, listed, "use another index, or give the file: --source PATH"
                )
            yield package.url


def _download_from(client: Client, url: str, target: Path, artifact: Artifact) -> None:
    from ci.download import WrongLength
    from ci.indexes import without_secrets

    part = _part(target)
    old = part.exists()
    try:
        client.continue_file(url, part, artifact.size)
        _accept(part, target, artifact, without_secrets(url))
    except (WrongLength, Fault) as error:
        part.unlink(missing_ok=True)
        if old:
            # What an earlier run left may be what is wrong: once more, whole.
            _download_from(client, url, target, artifact)
            return
        if isinstance(error, Fault):
            raise
        raise Fault(
            f"{artifact.file} from {without_secrets(url)} has {error}, "
            f"pin.toml says size {artifact.size}",
            todo="mend size in pin.toml, or use another index or --source PATH",
        ) from None


def _not_had(
    artifact: Artifact,
    urls: tuple[str, ...],
    failures: Sequence[Exception],
    refused: Sequence[Fault],
) -> Fault:
    """Why no index gave the file: a wrong file first, then no answer, then no file."""
    from ci.indexes import without_secrets

    if refused:
        more = tuple(str(other) for other in [*refused[1:], *failures])
        return Fault(refused[0].what, todo=refused[0].todo, details=more)
    if failures:
        silent = any(getattr(failure, "network", False) for failure in failures)
        return Fault(
            f"{'no network: ' if silent else ''}{artifact.file} could not be fetched",
            todo="connect and run it again, or give the file: --source PATH",
            details=tuple(str(failure) for failure in failures),
        )
    asked = ", ".join(map(without_secrets, urls))
    why = f"is not on {asked}" if urls else "is not here, and pip or uv is set to ask no index"
    return Fault(
        f"{artifact.file} {why}",
        todo=f"set PIP_INDEX_URL to an index that has it, or give the file: --source PATH "
        f"({artifact.project}, sha256 {artifact.sha256})",
    )


def _need_space(target: Path, artifact: Artifact) -> None:
    have = _part(target).stat().st_size if _part(target).exists() else 0
    free = shutil.disk_usage(target.parent).free
    if free < artifact.size - have:
        raise Fault(
            f"no space for {artifact.file} in {target.parent}: "
            f"it needs {_megabytes(artifact.size - have)}, {_megabytes(free)} are free",
            todo="free some space and run it again",
        )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
