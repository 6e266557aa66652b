"""The base: vLLM's tree at the pin, as the commit that the series stands on.

It is made from the sdist, whose hash the pin names, or fetched from a git
repository, where it is vLLM's own commit. `import_base` puts it into the store.
"""

from __future__ import annotations

import enum
import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ci.core.errors import Fault
from ci.core.offline import offline
from ci.core.progress import say
from ci.git.repo import Git
from ci.pinned.fetch import INDEX, Show, fetch_artifact
from ci.pinned.indexes import without_secrets
from ci.pinned.pin import Pin
from ci.pinned.sdist import Member, base_commit, import_tree, sdist_files, short_commit

_ARRIVING = "refs/import/base"
# What git says where a repository answers, but lacks what it was asked for.
_LACKS = (b"couldn't find remote ref", b"not our ref", b"unadvertised object")
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


def import_base(
    git: Git, downloads: Path, pin: Pin, source: str | None = None, show: Show = say
) -> Base:
    """Put vLLM's tree at the pin into the store, as the commit to build on.

    Args:
        source: an sdist file, a folder that holds it, a git clone or mirror,
            a git URL, or `INDEX`; None stays with the source used before, and
            begins with the sdist from the package index.

    Raises:
        Fault: the source is not there, or does not hold what the pin says.
    """
    if source is None and (chosen := _kept(git, pin, _chosen_ref(pin))) is not None:
        return chosen
    if source is not None and _kind_of(source, pin) is Kind.GIT:
        base = _from_git(git, pin, source, show)
    else:
        base = _from_sdist(git, downloads, pin, source, show)
    git.run("update-ref", _chosen_ref(pin), base.commit)
    return base


def sdist_base(git: Git, downloads: Path, pin: Pin, show: Show = say) -> Base:
    """The base made from the pin's sdist, whichever is built on.

    Raises:
        Fault: the sdist cannot be fetched.
    """
    return _from_sdist(git, downloads, pin, None, show)


def base_ref(pin: Pin, kind: Kind) -> str:
    """Where a base of this pin is kept."""
    return f"refs/base/{kind.value}/{_digest(pin)}"


def _chosen_ref(pin: Pin) -> str:
    """Where the base is kept that this pin's series is composed on."""
    return f"refs/base/chosen-{_digest(pin)}"


def _kept(git: Git, pin: Pin, ref: str) -> Base | None:
    """The base at a ref of the store, None if there is none."""
    found = git.text("for-each-ref", "--format=%(objectname) %(tree)", ref)
    if not found:
        return None
    commit, tree = found.split(" ")
    return Base(commit, tree, Kind.GIT if commit == pin.commit else Kind.SDIST)


def _digest(pin: Pin) -> str:
    """Stands for all that the pin says of its source, so that no base is taken
    for verified by another pin."""
    said = (pin.version, pin.repository, pin.tag, pin.commit, pin.base_tree, pin.sdist)
    return hashlib.sha256(repr((*said, pin.generated)).encode()).hexdigest()[:16]


def is_git(source: str) -> bool:
    """Whether the place that the user gave is a git repository, or the URL of one."""
    path = Path(source)
    if path.is_dir():
        return (path / ".git").exists() or (path / "objects").is_dir()
    return not path.exists() and (
        "://" in source or (":" in source and not source.startswith(("/", ".")))
    )


def _kind_of(source: str, pin: Pin) -> Kind:
    """What kind of place the user gave.

    Raises:
        Fault: vLLM cannot come from it.
    """
    path = Path(source)
    if source == INDEX or path.is_file() or (path / pin.sdist.file).is_file():
        return Kind.SDIST
    if is_git(source):
        return Kind.GIT
    if path.is_dir():
        raise Fault(
            f"{source} holds no {pin.sdist.file} and is not a git repository",
            todo="give the sdist, its folder, or a clone or mirror of vLLM",
        )
    raise Fault(
        f"{source} is not there", todo="give the sdist, its folder, or a git clone or URL of vLLM"
    )


def _from_sdist(git: Git, downloads: Path, pin: Pin, source: str | None, show: Show) -> Base:
    kept = _kept(git, pin, base_ref(pin, Kind.SDIST))
    if kept is not None and kept.tree == pin.base_tree and source in (None, INDEX):
        return kept
    path = fetch_artifact(downloads, pin.sdist, source, show)
    show(f"importing {pin.sdist.file}")
    found = list(sdist_files(path))
    _check_claims(pin, found)
    tree = import_tree(git, found, pin.generated)
    if tree != pin.base_tree:
        raise Fault(
            f"{pin.sdist.file} unpacks to tree {tree}, the pin says base_tree {pin.base_tree}",
            todo="correct base_tree or generated in the pin",
        )
    commit = base_commit(
        git,
        tree,
        f"{pin.tag}\n\nThe files of {pin.sdist.file}, as made from\n"
        f"{pin.repository}\ncommit {pin.commit or short_commit(found)}.",
    )
    git.run("update-ref", base_ref(pin, Kind.SDIST), commit)
    return Base(commit, tree, Kind.SDIST)


def _check_claims(pin: Pin, found: Sequence[Member]) -> None:
    """Hold what the pin says of the release against what its sdist says of itself.

    Raises:
        Fault: names the key of the pin.
    """
    if pin.tag != f"v{pin.version}":
        raise Fault(
            f"the pin's vllm.tag is {pin.tag}, the tag of {pin.version} is v{pin.version}",
            todo="correct vllm.tag or vllm.version in the pin",
        )
    info = next((file.content for file in found if file.path == "PKG-INFO"), b"")
    named = re.search(rb"^Version: (\S+)$", info, re.MULTILINE)
    version = named[1].decode("utf-8", "replace") if named else pin.version
    commit = short_commit(found)
    for key, said, made_from, agree in (
        ("version", pin.version, version, pin.version == version),
        ("commit", pin.commit, f"{commit}…", not pin.commit or pin.commit.startswith(commit)),
    ):
        if not agree:
            raise Fault(
                f"the pin's vllm.{key} is {said}, but {pin.sdist.file} was made from {made_from}",
                todo=f"correct vllm.{key} in the pin",
            )


def _from_git(git: Git, pin: Pin, source: str, show: Show) -> Base:
    """vLLM's own commit from a git repository, without its history."""
    if not pin.commit:
        raise Fault(
            "the pin names no commit, so nothing says whether a git repository has the right one",
            todo="give the sdist or its folder, or write vllm.commit into the pin",
        )
    kept = _kept(git, pin, base_ref(pin, Kind.GIT))
    if kept is None or kept.commit != pin.commit:
        show(f"fetching {pin.tag} from {_shown(source)}")
        fetch_commit(git, source, (pin.commit, f"refs/tags/{pin.tag}"))
        got = git.text("rev-parse", ARRIVED)
        if got != pin.commit:
            raise Fault(
                f"{pin.tag} of {_shown(source)} is commit {got}, the pin says {pin.commit}",
                todo="give a clone, mirror or URL of vLLM's own repository",
            )
        git.run("update-ref", base_ref(pin, Kind.GIT), pin.commit)
    return Base(pin.commit, git.tree_of(pin.commit), Kind.GIT)


def fetch_commit(git: Git, source: str, wanted: Sequence[str]) -> None:
    """Fetch the first of `wanted` (ids or refs) that a repository has, as `ARRIVED`.

    Git checks what arrives against the ids it asked for, so the right id is
    the right content. History is left behind.

    Raises:
        Fault: the repository has none of them, or cannot be reached.
    """
    where = os.path.abspath(source) if Path(source).exists() else source  # noqa: PTH100
    said: list[str] = []
    reached = False
    for name in wanted:
        result = git.attempt_fetch(where, f"+{name}:{_ARRIVING}", depth=1)
        if result.ok:
            commit = git.text("rev-parse", f"{_ARRIVING}^{{commit}}")
            git.run("update-ref", ARRIVED, commit)
            git.run("update-ref", "-d", _ARRIVING)
            return
        reached = reached or any(words in result.err for words in _LACKS)
        said += result.err.decode("utf-8", "replace").strip().splitlines()
    what, todo = "cannot be reached or read", "give another clone, mirror or URL of vLLM; git said:"
    if reached:
        what = f"has no {' or '.join(wanted)}"
        todo = "give a clone, mirror or URL of vLLM that has it; git said:"
    elif offline():
        todo = "UV_OFFLINE is set: unset it, or give a clone on this machine; git said:"
    raise Fault(f"{_shown(source)} {what}", todo=todo, details=tuple(said[:6]))


def _shown(source: str) -> str:
    return without_secrets(source) if "://" in source else source
