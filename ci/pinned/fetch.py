"""Where the pin's files come from.

`fetch_artifact` puts a file of the pin into the downloads folder and vouches
for its sha256: from an index, or from a file or folder that the user gave. A
file gets its name only when it is whole and verified; a broken download starts
over.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from ci.core.cache import is_noted, note, sha256_of
from ci.core.errors import Fault
from ci.core.progress import say
from ci.pinned.indexes import Indexes, indexes, without_secrets
from ci.pinned.pin import Artifact

Show = Callable[[str], None]

INDEX = "index"
"""The `--source` that goes back to the sdist from the package index."""
_ELSEWHERE = "use another index, or give the file: --source PATH"


def source_word(text: str) -> str:
    """The type of every `--source` option; an unset shell variable is no source."""
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty: give a file, a folder or a git repository")
    return text


def fetch_artifact(
    downloads: Path, artifact: Artifact, source: str | None = None, show: Show = say
) -> Path:
    """The pin's file, verified, in the downloads folder; fetched if it is not there.

    Args:
        source: the file itself, or a folder that holds it; None asks the
            package indexes that pip and uv are set to use.

    Raises:
        Fault: no place has it, or it is not what the pin says.
    """
    target = downloads / artifact.file
    given = None if source in (None, INDEX) else _given_file(Path(str(source)), artifact)
    if _is_good(target, artifact):
        return target
    if given is None and target.is_file():
        show(
            f"{target} is not the file that the pin names (expected sha256 {artifact.sha256}, "
            f"got {sha256_of(target)}); fetching it"
        )
    from filelock import FileLock

    downloads.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_name(f".{target.name}.lock")):
        if given is not None or not _is_good(target, artifact):
            _bring(given, target, artifact, show)
    return target


def _is_good(path: Path, artifact: Artifact) -> bool:
    """Whether `path` is the artifact; read only if it changed since the last time."""
    if is_noted(path, artifact.sha256) and path.stat().st_size == artifact.size:
        return True
    if not path.is_file() or sha256_of(path) != artifact.sha256:
        return False
    _verify(path, str(path), artifact, "")
    note(path, artifact.sha256, artifact.sha256)
    return True


def _verify(path: Path, where: str, artifact: Artifact, todo: str) -> None:
    """Compare a file with the pin.

    Raises:
        Fault: its content is another, or the size in the pin is wrong.
    """
    got, size = sha256_of(path), path.stat().st_size
    if got != artifact.sha256:
        raise _wrong(where, artifact, f"{got} ({size} bytes, the pin says {artifact.size})", todo)
    if size != artifact.size:
        raise Fault(
            f"the pin says size {artifact.size} for {artifact.file}, "
            f"but the file with its sha256 has {size} bytes",
            todo="correct its size in the pin",
        )


def _wrong(where: str, artifact: Artifact, got: str, todo: str) -> Fault:
    return Fault(
        f"{artifact.file} from {where} is not the pinned file: "
        f"expected sha256 {artifact.sha256}, got {got}",
        todo=todo,
    )


def _given_file(path: Path, artifact: Artifact) -> Path:
    """The artifact's file at a path that the user gave, checked."""
    file = path / artifact.file if path.is_dir() else path
    if not file.is_file():
        raise Fault(f"{file} is not there", todo=f"give the path of {artifact.file}")
    _verify(file, str(file), artifact, "give the file that the pin names")
    return file


def _bring(given: Path | None, target: Path, artifact: Artifact, show: Show) -> None:
    """Put the artifact in its place, whole: a given file, or from the first place that has it."""
    settings = indexes()
    folders = [folder for folder in settings.folders if (folder / artifact.file).is_file()]
    if given is None and folders:
        given = _given_file(folders[0], artifact)
    part = target.with_name(target.name + ".part")
    try:
        if given is not None:
            show(f"copying {given}")
            shutil.copyfile(given, part)
        else:
            _need_space(target, artifact)
            _download(settings, part, artifact, show)
        part.replace(target)
        note(target, artifact.sha256, artifact.sha256)
    finally:
        part.unlink(missing_ok=True)


def _download(settings: Indexes, part: Path, artifact: Artifact, show: Show) -> None:
    """Fetch from the first index that has the artifact, verified.

    Raises:
        Fault: none has it: a wrong file is reported first, then no answer, then no file.
    """
    from ci.pinned.download import Client

    wrong: list[Fault] = []
    with closing(Client(settings)) as client:
        for package in client.files(artifact.project):
            if package.filename != artifact.file:
                continue
            where = without_secrets(package.url)
            listed = package.digests.get("sha256", artifact.sha256)
            try:
                if listed != artifact.sha256:
                    raise _wrong(where, artifact, listed, _ELSEWHERE)
                show(f"downloading {artifact.file} ({_megabytes(artifact.size)})")
                if client.save(package, part, artifact.size):
                    return _verify(part, where, artifact, _ELSEWHERE)
            except Fault as fault:
                wrong.append(fault)
        if wrong:
            others = (*map(str, wrong[1:]), *client.failures)
            raise Fault(wrong[0].what, todo=wrong[0].todo, details=others)
        if client.failures:
            raise client.fault(
                f"{artifact.file} could not be fetched",
                "connect and run it again, or give the file: --source PATH",
            )
    asked = ", ".join(map(without_secrets, settings.urls))
    why = f"is not on {asked}" if asked else "is not here, and pip or uv is set to ask no index"
    raise Fault(
        f"{artifact.file} {why}",
        todo=f"set PIP_INDEX_URL to an index that has it, or give the file: --source PATH "
        f"({artifact.project}, sha256 {artifact.sha256})",
    )


def _need_space(target: Path, artifact: Artifact) -> None:
    free = shutil.disk_usage(target.parent).free
    if free < artifact.size:
        raise Fault(
            f"no space for {artifact.file} in {target.parent}: "
            f"it needs {_megabytes(artifact.size)}, {_megabytes(free)} are free",
            todo="free some space and run it again",
        )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
