"""Does a wheel, or an installed vLLM, hold the composed tree's files? Checked one by one.

A file counts as right when its bytes are those of
- the composed tree (every file below vllm/), or
- the precompiled wheel that the identity names (libraries and what vLLM's
  build takes from there, and the stubs it generates), or
- what the build writes, for the version file and dist-info (see `ci.generated`).
And nothing of the composed tree may be missing.

A wheel of this checkout's series has to name this checkout's tree and the
pin's precompiled wheel. One of another series can only be held against what it
names itself, and the report says so.
"""

from __future__ import annotations

import argparse
import enum
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

from ci import identity, sbom
from ci.errors import Fault, listed
from ci.generated import VERSION_FILE, Generated
from ci.git import Git
from ci.identity import Carried
from ci.layout import Layout
from ci.objects import blob_id
from ci.wheelfile import Entry, dist_info, open_wheel, parse_record

if TYPE_CHECKING:
    from ci.current import Source

_PACKAGE = b"vllm/"


class Origin(enum.Enum):
    """Where a file's bytes were found."""

    TREE = "from the composed tree"
    PRECOMPILED = "from the precompiled wheel"
    BUILD = "made by the build"


class Files(Protocol):
    """The files of a wheel or of an installation."""

    @property
    def name(self) -> str: ...

    @property
    def info_folder(self) -> str:
        """The name of its dist-info folder."""

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

    @property
    def info_folder(self) -> str:
        return self._info

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

    @property
    def info_folder(self) -> str:
        return self._info.name

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
        ours: whether it was held against a checkout of its own series.
    """

    name: str
    carried: Carried
    origins: Mapping[Origin, int]
    faults: tuple[str, ...]
    ours: bool

    def raise_for_faults(self) -> None:
        """Turn any fault into one that stops the run.

        Raises:
            Fault: there is one.
        """
        if self.faults:
            count = len(self.faults)
            raise Fault(
                f"{self.name} is not series {self.carried.identity.id}: "
                f"{count} file{'s differ' if count > 1 else ' differs'} from it",
                todo="build it again (nox -s build)",
                details=listed(self.faults),
            )

    def lines(self) -> Iterable[str]:
        """The report for a person."""
        series = self.carried.identity
        yield f"{self.name}: series {series.id}, {self.carried.variant.value}"
        yield f"  vLLM {series.vllm}, commit {series.commit}"
        for patch in series.patches:
            yield f"  {patch.file}  sha256 {patch.sha256[:16]}…  {patch.upstream}".rstrip()
        for origin in Origin:
            yield f"  {self.origins.get(origin, 0):5d} files {origin.value}"
        if not self.ours:
            yield "  not checked: that these patches make the tree it names, which is"
            yield f"  {self.carried.tree}, that its libraries are the pin's (they are those of"
            yield f"  {self.carried.precompiled.file}, which it names), its bill of materials"


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


def check_origin(files: Files, carried: Carried, here: Source) -> None:
    """See that a wheel of this checkout's series names its tree and its libraries.

    Raises:
        Fault: it names others.
    """
    pinned = here.pin.wheels
    its = {w for name, w in pinned.items() if name.startswith(f"{carried.variant.value}-")}
    wrong = []
    if carried.tree != here.tree:
        wrong.append(f"tree {carried.tree}, where the series makes {here.tree}")
    if carried.precompiled not in its:
        named = carried.precompiled
        wrong.append(f"libraries of {named.file} (sha256 {named.sha256}), not the pin's")
    if wrong:
        raise Fault(
            f"{files.name} calls itself series {here.identity.id}, but names {wrong[0]}",
            todo="build it again (nox -s build)",
            details=tuple(wrong[1:]),
        )


def _check_project(files: Files, carried: Carried, here: Source) -> None:
    """Fetch nothing for a wheel of another series but a wheel of vLLM's."""
    known = sorted({wheel.project for wheel in here.pin.wheels.values()})
    if carried.precompiled.project not in known:
        raise Fault(
            f"{files.name} names libraries of {carried.precompiled.project}, "
            f"the pin has those of {' and '.join(known)}",
            todo="build it again (nox -s build)",
        )


def check(
    files: Files, git: Git, precompiled: Mapping[str, Entry], here: Source | None = None
) -> Report:
    """Compare every file with what the identity in it says it should be.

    Args:
        git: the store, which holds the composed tree.
        precompiled: RECORD of the precompiled wheel.
        here: this checkout's series, for a wheel that may be of it.

    Raises:
        Fault: there is no identity, it names another tree or other libraries
            than this checkout, or the store lacks its tree.
    """
    carried = read_identity(files)
    if here is not None and here.identity.id == carried.identity.id:
        ours: Source | None = here
        check_origin(files, carried, here)
    else:
        ours = None
    tree = carried.tree
    if git.resolve(f"{tree}^{{tree}}") is None:
        raise Fault(
            f"{files.name} is of series {carried.identity.id}, whose tree is not in the store",
            todo="check out the project at that series and run `nox -s apply`",
        )
    makes = _Expected.of(files, carried, git, precompiled, ours)
    wanted = makes.wanted
    origins: Counter[Origin] = Counter()
    faults = []
    seen: set[str] = set()
    for path in files.paths():
        with files.open(path) as stream:
            found = makes.place(path, stream)
        if path in seen:
            faults.append(f"{path}: is there twice")
        elif isinstance(found, Origin):
            origins[found] += 1
        else:
            faults.append(f"{path}: {found}")
        seen.add(path)
    faults += [f"{path}: missing" for path in sorted(set(wanted) - seen)]
    faults += [
        f"{path}: missing (a library of the precompiled wheel)"
        for path in sorted(precompiled)
        if path.endswith(".so") and path not in seen
    ]
    return Report(files.name, carried, origins, tuple(faults), ours is not None)


@dataclass(frozen=True)
class _Expected:
    """What the files have to be.

    Attributes:
        wanted: the composed tree's files, path -> blob id.
        dropped: the pinned release's files that the series deletes.
    """

    info: str
    record: Mapping[str, Entry]
    wanted: Mapping[str, str]
    dropped: frozenset[str]
    precompiled: Mapping[str, Entry]
    generated: Generated

    @classmethod
    def of(
        cls,
        files: Files,
        carried: Carried,
        git: Git,
        precompiled: Mapping[str, Entry],
        here: Source | None,
    ) -> _Expected:
        wanted = _package(git, carried.tree)
        base = carried.identity.base_tree
        known = git.resolve(f"{base}^{{tree}}") is not None
        dropped = frozenset(set(_package(git, base)) - set(wanted) if known else ())
        bill = None if here is None else _bill(carried, here)
        record = parse_record(files.info("RECORD") or b"")
        made = Generated(git, carried, bill)
        return cls(f"{files.info_folder}/", record, wanted, dropped, precompiled, made)

    def place(self, path: str, stream: IO[bytes]) -> Origin | str:
        """Where a file's bytes come from; a string says why from nowhere."""
        if path == f"{self.info}RECORD":
            return Origin.BUILD
        if (blob := self.wanted.get(path)) is not None:
            same = blob_id(stream.read()) == blob
            return Origin.TREE if same else "differs from the composed tree"
        if path == VERSION_FILE or path.startswith(self.info):
            content = stream.read()
            wrong = self._recorded(path, Entry.of(content))
            wrong = wrong or self.generated.wrong(path.removeprefix(self.info), content)
            return wrong or Origin.BUILD
        if path in self.dropped:
            return "the series deletes it"
        entry = Entry.read(stream)
        if wrong := self._recorded(path, entry):
            return wrong
        if path not in self.precompiled:
            return "in neither the composed tree nor the precompiled wheel"
        same = self.precompiled[path] == entry
        return Origin.PRECOMPILED if same else "differs from the precompiled wheel"

    def _recorded(self, path: str, entry: Entry) -> str | None:
        if self.record.get(path) == entry:
            return None
        return "differs from RECORD" if path in self.record else "in neither the tree nor RECORD"


def _package(git: Git, tree: str) -> dict[str, str]:
    """The files below vllm/ of a tree, path -> blob id."""
    return {
        path.decode("utf-8", "surrogateescape"): blob
        for path, (_, blob) in git.list_tree(tree).items()
        if path.startswith(_PACKAGE)
    }


def _bill(carried: Carried, here: Source) -> bytes:
    return sbom.render(
        carried.identity,
        here.pin,
        carried.variant,
        carried.tree,
        carried.precompiled,
        here.timestamp,
    )


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
        if carried.identity.id == here.identity.id:
            check_origin(files, carried, here)
        else:
            _check_project(files, carried, here)
        pinned = fetch_artifact(layout, carried.precompiled)
        report = check(files, here.git, read_record(pinned), here)
        report.raise_for_faults()
        print("\n".join(report.lines()))
        same = "" if report.ours else " not"
        print(f"  this is{same} this checkout's series, {here.identity.id}")
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
