"""Does a wheel, or an installed vLLM, hold the composed tree's files? Checked one by one.

A file counts as right when its bytes are those of
- the composed tree (every file below vllm/), or
- the precompiled wheel that the identity names (libraries and what vLLM's
  build takes from there, and the stubs it generates), or
- RECORD, for what only this build can have made: the version file and dist-info.
And nothing of the composed tree may be missing.
"""

from __future__ import annotations

import argparse
import enum
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from ci import identity
from ci.errors import Fault
from ci.git import Git
from ci.identity import Carried
from ci.layout import Layout
from ci.objects import blob_id
from ci.wheelfile import Entry, dist_info, open_wheel, parse_record

_PACKAGE = b"vllm/"
_VERSION_FILE = "vllm/_version.py"


class Origin(enum.Enum):
    """Where a file's bytes were found."""

    TREE = "the composed tree"
    PRECOMPILED = "the precompiled wheel"
    BUILD = "made by the build"


class Files(Protocol):
    """The files of a wheel or of an installation."""

    @property
    def name(self) -> str: ...

    def info(self, file: str) -> bytes | None:
        """A file of dist-info, None if there is none."""

    def paths(self) -> Iterable[str]:
        """Every file that is there, as RECORD would name it."""

    def open(self, path: str) -> IO[bytes]: ...


class WheelFiles:
    """A wheel file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._archive = open_wheel(path)
        self._info = dist_info(self._archive)

    @property
    def name(self) -> str:
        return self._path.name

    def info(self, file: str) -> bytes | None:
        try:
            return self._archive.read(f"{self._info}/{file}")
        except KeyError:
            return None

    def paths(self) -> Iterable[str]:
        return [name for name in self._archive.namelist() if not name.endswith("/")]

    def open(self, path: str) -> IO[bytes]:
        return self._archive.open(path)


class InstalledFiles:
    """vLLM as it lies in a site-packages folder."""

    # What an installer adds to dist-info, and what Python writes at run time.
    _FOREIGN = ("INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json")

    def __init__(self, site_packages: Path) -> None:
        found = sorted(site_packages.glob("vllm-*.dist-info"))
        if len(found) != 1:
            raise Fault(
                f"{len(found)} installations of vllm in {site_packages}, there should be one",
                todo="install the wheel into that environment",
            )
        self._root = site_packages
        self._info = found[0]

    @property
    def name(self) -> str:
        return str(self._root)

    def info(self, file: str) -> bytes | None:
        path = self._info / file
        return path.read_bytes() if path.is_file() else None

    def paths(self) -> Iterable[str]:
        for top in (self._root / "vllm", self._info):
            for path in sorted(top.rglob("*")):
                name = path.relative_to(self._root).as_posix()
                if path.is_file() and not self._made_later(name):
                    yield name

    def _made_later(self, name: str) -> bool:
        return "__pycache__/" in name or (
            ".dist-info/" in name and name.rsplit("/", 1)[-1] in self._FOREIGN
        )

    def open(self, path: str) -> IO[bytes]:
        return (self._root / path).open("rb")


@dataclass(frozen=True)
class Report:
    """What verifying found.

    Attributes:
        name: of the wheel or installation.
        carried: the identity in it.
        origins: how many files came from where.
        faults: one line for each file that is wrong, missing or foreign.
    """

    name: str
    carried: Carried
    origins: Mapping[Origin, int]
    faults: tuple[str, ...]

    def raise_for_faults(self) -> None:
        """Turn any fault into one that stops the run.

        Raises:
            Fault: there is one.
        """
        if self.faults:
            shown = self.faults[:20]
            more = len(self.faults) - len(shown)
            rest = (f"and {more} more",) if more else ()
            raise Fault(
                f"{self.name} is not series {self.carried.identity.id}: "
                f"{len(self.faults)} file(s) differ from it",
                todo="build it again (nox -s build)",
                details=(*shown, *rest),
            )

    def lines(self) -> Iterable[str]:
        """The report for a person."""
        series = self.carried.identity
        yield f"{self.name}: series {series.id}, {self.carried.variant.value}"
        yield f"  vLLM {series.vllm}, commit {series.commit}"
        for patch in series.patches:
            yield f"  {patch.file}  sha256 {patch.sha256[:16]}…  {patch.upstream}".rstrip()
        for origin in Origin:
            yield f"  {self.origins.get(origin, 0):5d} files from {origin.value}"


def read_identity(files: Files) -> Carried:
    """The identity that a wheel or installation carries.

    Raises:
        Fault: it carries none, or one that contradicts itself or the version.
    """
    content = files.info(identity.FILE)
    if content is None:
        raise Fault(
            f"{files.name} carries no series identity",
            todo="it was not built by `nox -s build`",
        )
    try:
        carried = identity.from_json(content)
    except Fault as fault:
        raise Fault(f"{files.name}: {fault.what}", todo=fault.todo) from None
    if f"\nVersion: {carried.version}\n".encode() not in (files.info("METADATA") or b""):
        raise Fault(
            f"{files.name} has another version than {carried.version}", todo="build it again"
        )
    return carried


def check(files: Files, git: Git, precompiled: Mapping[str, Entry]) -> Report:
    """Compare every file with what the identity in it says it should be.

    Args:
        git: the store, which holds the composed tree.
        precompiled: RECORD of the precompiled wheel.

    Raises:
        Fault: there is no identity, or the store lacks its tree.
    """
    carried = read_identity(files)
    tree = carried.tree
    if git.resolve(f"{tree}^{{tree}}") is None:
        raise Fault(
            f"{files.name} is of series {carried.identity.id}, whose tree is not in the store",
            todo="check out the project at that series and run `nox -s apply`",
        )
    wanted = {
        path.decode("utf-8", "surrogateescape"): blob
        for path, (_, blob) in git.list_tree(tree).items()
        if path.startswith(_PACKAGE)
    }
    record = parse_record(files.info("RECORD") or b"")
    origins: Counter[Origin] = Counter()
    faults = []
    seen = set()
    for path in files.paths():
        seen.add(path)
        with files.open(path) as stream:
            found = _place(path, stream, wanted.get(path), precompiled.get(path), record)
        if isinstance(found, Origin):
            origins[found] += 1
        else:
            faults.append(f"{path}: {found}")
    faults += [f"{path}: missing" for path in sorted(set(wanted) - seen)]
    faults += [
        f"{path}: missing (a library of the precompiled wheel)"
        for path in sorted(precompiled)
        if path.endswith(".so") and path not in seen
    ]
    return Report(files.name, carried, origins, tuple(faults))


def _place(
    path: str,
    stream: IO[bytes],
    blob: str | None,
    precompiled: Entry | None,
    record: Mapping[str, Entry],
) -> Origin | str:
    """Where a file's bytes come from; a string says why from nowhere."""
    if path.endswith(".dist-info/RECORD"):
        return Origin.BUILD
    if blob is not None:
        same = blob_id(stream.read()) == blob
        return Origin.TREE if same else "differs from the composed tree"
    entry = Entry.read(stream)
    if record.get(path) != entry:
        return "differs from RECORD" if path in record else "in neither the tree nor RECORD"
    if precompiled == entry:
        return Origin.PRECOMPILED
    if ".dist-info/" in path or path == _VERSION_FILE:
        return Origin.BUILD
    if precompiled is not None:
        return "differs from the precompiled wheel"
    return "in neither the composed tree nor the precompiled wheel"


# -- the verb ------------------------------------------------------------------


def options(parser: argparse.ArgumentParser) -> None:
    """The verb's options."""
    parser.add_argument(
        "what",
        nargs="*",
        type=Path,
        help="wheels, virtual environments or site-packages folders; default: the wheels in dist/",
    )


def run(layout: Layout, args: argparse.Namespace) -> int:
    """The verb: a report for each wheel or installation, a fault at the first wrong one."""
    from ci.current import current
    from ci.sources import fetch_artifact
    from ci.wheelfile import read_record

    here = current(layout)
    named: list[Path] = args.what or sorted(layout.dist.glob("*.whl"))
    if not named:
        raise Fault("no wheel in dist/", todo="run `nox -s build`, or name a wheel")
    for path in named:
        files = open_files(path)
        carried = read_identity(files)
        pinned = fetch_artifact(layout, carried.precompiled)
        report = check(files, here.git, read_record(pinned))
        report.raise_for_faults()
        print("\n".join(report.lines()))
        same = carried.identity.id == here.identity.id
        print(
            "  this is" + ("" if same else " not") + f" this checkout's series, {here.identity.id}"
        )
    return 0


def open_files(path: Path) -> Files:
    """What `path` names: a wheel, or a folder with vLLM installed in it.

    Raises:
        Fault: there is nothing of the kind.
    """
    if not path.is_dir():
        return WheelFiles(path)
    below = sorted(path.glob("lib/python3.*/site-packages"))
    return InstalledFiles(below[0] if below else path)
