"""Does a wheel, or an installed vLLM, hold the composed tree's files? Checked one by one.

A file counts as right when its bytes are those of
- the composed tree (every file below vllm/), or
- the precompiled wheel that the identity names (libraries and what vLLM's
  build takes from there, and the stubs it generates), or
- what RECORD says, for the version file and what a build writes into dist-info;
  identity and bill of materials have to be those of the series.
And nothing of the composed tree may be missing.

This finds damage and mix-ups. RECORD is part of the wheel, so whoever writes
that anew can change METADATA or the version file unseen.

A wheel of this checkout's series has to name this checkout's tree and the
pin's precompiled wheel. One of another series can only be held against what it
names itself, and the report says so.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from ci.core.content import blob_id
from ci.core.errors import Fault, listed
from ci.git.repo import Git
from ci.git.trees import list_tree
from ci.pinned.pin import Artifact
from ci.wheel import identity, sbom
from ci.wheel.archive import Entry, dist_info, open_wheel, parse_record, read_record
from ci.wheel.composed import ComposedSeries
from ci.wheel.identity import WheelIdentity

_VERSION_FILE = "vllm/_version.py"
"""What setuptools-scm writes into the package."""

_MADE = ("METADATA", "WHEEL", "entry_points.txt", "top_level.txt", identity.FILE, sbom.FILE)
"""What a build writes into dist-info, beside RECORD and the licenses."""


class Origin(enum.Enum):
    """Where a file's bytes were found."""

    TREE = "from the composed tree"
    PRECOMPILED = "from the precompiled wheel"
    BUILD = "made by the build"


class Files(Protocol):
    """The files of a wheel or of an installation, named as RECORD names them.

    Attributes:
        name: for a person.
        info: the name of the dist-info folder.
    """

    name: str
    info: str

    def paths(self) -> Iterable[str]:
        """Every file that is there."""

    def open(self, path: str) -> IO[bytes]:
        """A file's bytes.

        Raises:
            KeyError, OSError: it is not there.
        """


class WheelFiles:
    """A wheel file."""

    def __init__(self, path: Path) -> None:
        self._archive = open_wheel(path)
        self.name = path.name
        self.info = dist_info(self._archive)

    def paths(self) -> Iterable[str]:
        return [name for name in self._archive.namelist() if not name.endswith("/")]

    def open(self, path: str) -> IO[bytes]:
        return self._archive.open(path)


class InstalledFiles:
    """vLLM as it lies in a site-packages folder, of several the one that has it."""

    # What an installer adds to dist-info, and what Python writes at run time.
    _FOREIGN = ("INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json")

    def __init__(self, *site_packages: Path) -> None:
        found = [info for one in site_packages for info in sorted(one.glob("vllm-*.dist-info"))]
        if len(found) != 1:
            where = " and ".join(map(str, site_packages))
            raise Fault(
                f"{len(found)} installations of vllm in {where}, there should be one",
                todo="name the folder that you mean" if found else "install the wheel first",
                details=listed([str(info) for info in found]),
            )
        self._root = found[0].parent
        self.name = str(self._root)
        self.info = found[0].name

    def paths(self) -> Iterable[str]:
        foreign = {f"{self.info}/{name}" for name in self._FOREIGN}
        for top in ("vllm", self.info):
            for path in sorted((self._root / top).rglob("*")):
                name = path.relative_to(self._root).as_posix()
                if path.is_file() and "__pycache__/" not in name and name not in foreign:
                    yield name

    def open(self, path: str) -> IO[bytes]:
        return (self._root / path).open("rb")


def open_files(path: Path) -> Files:
    """What `path` names: a wheel, or a folder with vLLM installed in it.

    Raises:
        Fault: there is nothing of the kind.
    """
    if not path.is_dir():
        return WheelFiles(path)
    below = sorted(path.glob("lib/python3.*/site-packages"))
    return InstalledFiles(*below or (path,))


def _info(files: Files, name: str) -> bytes:
    """A file of dist-info, empty if there is none."""
    try:
        with files.open(f"{files.info}/{name}") as stream:
            return stream.read()
    except (KeyError, OSError):
        return b""


@dataclass(frozen=True)
class Report:
    """What verifying found.

    Attributes:
        name: of the wheel or installation.
        wheel: the identity in it.
        origins: how many files came from where.
        faults: one line for each file that is wrong, missing or foreign.
        ours: whether it was held against a checkout of its own series.
    """

    name: str
    wheel: WheelIdentity
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
                f"{self.name} is not series {self.wheel.identity.id}: "
                f"{count} file{'s differ' if count > 1 else ' differs'} from it",
                todo="build it again (nox -s build)",
                details=listed(self.faults),
            )

    def lines(self) -> Iterable[str]:
        """The report for a person."""
        series = self.wheel.identity
        yield f"{self.name}: series {series.id}, {self.wheel.variant.value}"
        yield f"  vLLM {series.vllm}, commit {series.commit or 'not known'}"
        for patch in series.patches:
            yield f"  {patch.file}  sha256 {patch.sha256[:16]}…  {patch.upstream}".rstrip()
        for origin in Origin:
            yield f"  {self.origins.get(origin, 0):5d} files {origin.value}"
        if not self.ours:
            yield "  not checked: that these patches make the tree it names, which is"
            yield f"  {self.wheel.tree}, that its libraries are the pin's (they are those of"
            yield f"  {self.wheel.precompiled.file}, which it names), its bill of materials"


def read_identity(files: Files) -> WheelIdentity:
    """The identity that a wheel or installation carries.

    Raises:
        Fault: it carries none, or one that contradicts itself or the version.
    """
    content = _info(files, identity.FILE)
    if not content:
        raise Fault(
            f"{files.name} carries no series identity",
            todo="it was not built by `nox -s build`",
        )
    try:
        wheel = identity.from_json(content)
    except Fault as fault:
        raise Fault(f"{files.name}: {fault.what}", todo=fault.todo) from None
    if f"\nVersion: {wheel.version}\n".encode() not in _info(files, "METADATA"):
        raise Fault(f"{files.name} has another version than {wheel.version}", todo="build it again")
    return wheel


def _is_ours(files: Files, wheel: WheelIdentity, here: ComposedSeries) -> bool:
    """Whether a wheel is of this checkout's series; asked before what it names is fetched.

    Raises:
        Fault: it is, but names another tree or other libraries; or its
            libraries are of a project that is not vLLM's.
    """
    named = wheel.precompiled
    ours = wheel.identity.id == here.identity.id
    own = {w for name, w in here.pin.wheels.items() if name.startswith(wheel.variant.value)}
    projects = sorted({one.project for one in here.pin.wheels.values()})
    wrong = []
    if ours and wheel.tree != here.tree:
        wrong.append(f"tree {wheel.tree}, where the series makes {here.tree}")
    if ours and named not in own:
        wrong.append(f"libraries of {named.file} (sha256 {named.sha256}), not the pin's")
    if named.project not in projects:
        wrong.append(f"libraries of {named.project}, the pin has those of {' and '.join(projects)}")
    if wrong:
        raise Fault(
            f"{files.name} calls itself series {wheel.identity.id}, but names {wrong[0]}",
            todo="build it again (nox -s build)",
            details=tuple(wrong[1:]),
        )
    return ours


def check(
    files: Files,
    git: Git,
    fetch: Callable[[Artifact], Path],
    here: ComposedSeries | None = None,
) -> Report:
    """Compare every file with what the identity in it says it should be.

    Args:
        git: the store, which holds the composed tree.
        fetch: hands over the verified precompiled wheel.
        here: this checkout's series, for a wheel that may be of it.

    Raises:
        Fault: there is no identity, it names another tree or other libraries
            than this checkout, or the store lacks its tree.
    """
    wheel = read_identity(files)
    ours = here is not None and _is_ours(files, wheel, here)
    if git.resolve(f"{wheel.tree}^{{tree}}") is None:
        raise Fault(
            f"{files.name} is of series {wheel.identity.id}, whose tree is not in the store",
            todo="check out the project at that series and run `nox -s apply`",
        )
    precompiled = read_record(fetch(wheel.precompiled))
    expected = _Expected.of(files, wheel, git, precompiled, here if ours else None)
    origins: Counter[Origin] = Counter()
    faults = []
    seen: set[str] = set()
    for path in files.paths():
        with files.open(path) as stream:
            found = expected.place(path, stream)
        if path in seen:
            faults.append(f"{path}: is there twice")
        elif isinstance(found, Origin):
            origins[found] += 1
        else:
            faults.append(f"{path}: {found}")
        seen.add(path)
    faults += [f"{path}: missing" for path in sorted(set(expected.wanted) - seen)]
    faults += [
        f"{path}: missing (a library of the precompiled wheel)"
        for path in sorted(set(precompiled) - seen)
        if path.endswith(".so")
    ]
    return Report(files.name, wheel, origins, tuple(faults), ours)


@dataclass(frozen=True)
class _Expected:
    """What the files have to be.

    Attributes:
        info: the dist-info folder, with a slash.
        wanted: the composed tree's files, path -> blob id.
        dropped: the pinned release's files that the series deletes.
        rendered: files whose bytes follow from the identity, by path.
    """

    info: str
    record: Mapping[str, Entry]
    wanted: Mapping[str, str]
    dropped: frozenset[str]
    precompiled: Mapping[str, Entry]
    rendered: Mapping[str, bytes]

    @classmethod
    def of(
        cls,
        files: Files,
        wheel: WheelIdentity,
        git: Git,
        precompiled: Mapping[str, Entry],
        here: ComposedSeries | None,
    ) -> _Expected:
        wanted = _package(git, wheel.tree)
        base = wheel.identity.base_tree
        known = git.resolve(f"{base}^{{tree}}") is not None
        dropped = frozenset(_package(git, base) if known else ()) - wanted.keys()
        rendered = {f"{files.info}/{identity.FILE}": wheel.as_json()}
        if here is not None:
            bill = sbom.render(wheel, here.pin, here.timestamp)
            rendered[f"{files.info}/{sbom.FILE}"] = bill
        record = parse_record(_info(files, "RECORD"))
        return cls(f"{files.info}/", record, wanted, dropped, precompiled, rendered)

    def place(self, path: str, stream: IO[bytes]) -> Origin | str:
        """Where a file's bytes come from; a string says why from nowhere."""
        if path == f"{self.info}RECORD":
            return Origin.BUILD
        if path in self.wanted:
            same = blob_id(stream.read()) == self.wanted[path]
            return Origin.TREE if same else "differs from the composed tree"
        if path in self.dropped:
            return "the series deletes it"
        entry = Entry.read(stream)
        if path not in self.record:
            return "in neither the tree nor RECORD"
        if entry != self.record[path]:
            return "differs from RECORD"
        if path in self.rendered and entry != Entry.of(self.rendered[path]):
            return "is not what this series makes"
        if self._is_made(path):
            return Origin.BUILD
        if path not in self.precompiled:
            return "in neither the composed tree nor the precompiled wheel"
        same = self.precompiled[path] == entry
        return Origin.PRECOMPILED if same else "differs from the precompiled wheel"

    def _is_made(self, path: str) -> bool:
        name = path.removeprefix(self.info)
        own = name != path and (name in _MADE or name.startswith("licenses/"))
        return own or path == _VERSION_FILE


def _package(git: Git, tree: str) -> dict[str, str]:
    """The files below vllm/ of a tree, path -> blob id."""
    return {
        path.decode("utf-8", "surrogateescape"): blob
        for path, (_, blob) in list_tree(git, tree).items()
        if path.startswith(b"vllm/")
    }
