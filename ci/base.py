"""The base: vLLM's tree at the pin, as the commit that the series stands on.

It is made from the sdist, whose hash the pin names, or fetched from a git
repository, where it is vLLM's own commit. `import_base` puts it into the store.
"""

from __future__ import annotations

import enum
import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ci.archive import Member, members
from ci.errors import Fault
from ci.git import Git, Identity
from ci.indexes import offline, without_secrets
from ci.layout import Layout
from ci.pin import Pin
from ci.progress import say
from ci.sources import INDEX, Show, fetch_artifact

BASE_AUTHOR = Identity("vLLM", "vllm@upstream.invalid", "1767225600 +0000")
"""Who and when the base commit made from an sdist is by: the same everywhere."""

_CHOSEN = "refs/base/chosen"
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
    if source is None and (before := known.get(_CHOSEN)) is not None:
        base = _as_base(pin, before, known)
        if base is not None:
            return base
        if base_ref(pin, Kind.SDIST) not in known:
            show("the base in the store is not that of pin.toml as it is now: making it anew")
    kind = _kind_of(source, pin)
    if kind is Kind.GIT:
        assert source is not None
        base = _from_git(git, pin, source, known, show)
    else:
        base = _from_sdist(layout, git, pin, source, known, show)
    if known.get(_CHOSEN) != (base.commit, base.tree):
        git.run("update-ref", _CHOSEN, base.commit)
    return base


def sdist_base(layout: Layout, pin: Pin, show: Show = say) -> Base:
    """The base made from the pin's sdist, whichever is built on.

    Raises:
        Fault: the sdist cannot be had.
    """
    git = Git(layout.store)
    return _from_sdist(layout, git, pin, None, _bases(git), show)


def _bases(git: Git) -> dict[str, tuple[str, str]]:
    """Every base in the store: ref -> (commit, tree)."""
    out = git.text("for-each-ref", "--format=%(refname) %(objectname) %(tree)", "refs/base/")
    rows = [line.split(" ") for line in out.splitlines()]
    return {name: (commit, tree) for name, commit, tree in rows}


def base_ref(pin: Pin, kind: Kind) -> str:
    """Where a base is kept: under all that the pin says of its source, so that
    none is taken for verified by another pin's words."""
    words = (pin.version, pin.repository, pin.tag, pin.commit, pin.base_tree, pin.sdist)
    digest = hashlib.sha256(repr((*words, pin.generated)).encode()).hexdigest()
    return f"refs/base/{kind.value}/{digest[:16]}"


def _as_base(pin: Pin, found: tuple[str, str], known: Mapping[str, tuple[str, str]]) -> Base | None:
    """The commit and tree as this pin's base; None if they are another pin's."""
    for kind in Kind:
        right = found[0] == pin.commit if kind is Kind.GIT else found[1] == pin.base_tree
        if right and found == known.get(base_ref(pin, kind)):
            return Base(*found, kind)
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
    ref = base_ref(pin, Kind.SDIST)
    if ref in known and known[ref][1] == pin.base_tree and source in (None, INDEX):
        return Base(*known[ref], Kind.SDIST)
    path = fetch_artifact(layout, pin.sdist, source, show)
    show(f"importing {pin.sdist.file}")
    found = list(sdist_files(path))
    _check_words(pin, found)
    tree = import_tree(git, found, pin.generated)
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


def _check_words(pin: Pin, found: Sequence[tuple[str, Member]]) -> None:
    """Hold what the pin says of the release against what its sdist says of itself.

    Raises:
        Fault: names the key of pin.toml.
    """
    if pin.tag != f"v{pin.version}":
        raise Fault(
            f"pin.toml: vllm.tag is {pin.tag}, the tag of {pin.version} is v{pin.version}",
            todo="mend pin.toml",
        )
    contents = {path: member.content for path, member in found}
    version = re.search(rb"^Version: (\S+)$", contents.get("PKG-INFO", b""), re.MULTILINE)
    if version and version[1].decode("utf-8", "replace") != pin.version:
        raise _other(pin, "version", pin.version, version[1].decode("utf-8", "replace"))
    commit = short_commit(contents.get("vllm/_version.py", b""))
    if not pin.commit.startswith(commit):
        raise _other(pin, "commit", pin.commit, f"{commit}…")


def _other(pin: Pin, key: str, said: str, found: str) -> Fault:
    return Fault(
        f"pin.toml: vllm.{key} is {said}, but {pin.sdist.file} was made from {found}",
        todo="mend pin.toml",
    )


def short_commit(version_file: bytes) -> str:
    """The start of the commit id that vLLM's build writes into vllm/_version.py."""
    match = re.search(rb"commit_id = '?g([0-9a-f]{7,40})", version_file)
    return match[1].decode() if match else ""


def base_commit(git: Git, tree: str, what: str) -> Base:
    """A commit without a parent for a tree that came from an sdist."""
    commit = git.commit_tree(tree, (), BASE_AUTHOR, f"vLLM {what}\n".encode())
    return Base(commit, tree, Kind.SDIST)


def import_tree(git: Git, found: Sequence[tuple[str, Member]], generated: tuple[str, ...]) -> str:
    """Write the files of an sdist to a store, without `generated`.

    They arrive as one pack, with no file unpacked on the way.
    """
    files = [
        (path, member)
        for path, member in found
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


def sdist_files(sdist: Path) -> Iterator[tuple[str, Member]]:
    """The files of an sdist, by their paths without its top folder."""
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
    ref = base_ref(pin, Kind.GIT)
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
        Fault: the repository has none of them, or cannot be reached.
    """
    where = os.path.abspath(source) if Path(source).exists() else source  # noqa: PTH100
    words: list[str] = []
    reached = False
    for name in wanted:
        result = git.attempt_fetch(where, f"+{name}:{_ARRIVING}", depth=1)
        if result.ok:
            commit = git.text("rev-parse", f"{_ARRIVING}^{{commit}}")
            git.run("update-ref", ARRIVED, commit)
            git.run("update-ref", "-d", _ARRIVING)
            return
        reached = reached or any(said in result.err for said in _LACKS)
        words += result.err.decode("utf-8", "replace").strip().splitlines()
    if not reached:
        raise Fault(
            f"{_shown(source)} cannot be reached or read",
            todo="UV_OFFLINE is set: unset it, or give a clone on this machine"
            if offline()
            else "look at git's own words below, or give another clone, mirror or URL of vLLM",
            details=tuple(words[:6]),
        )
    raise Fault(
        f"{_shown(source)} has no {' or '.join(wanted)}",
        todo="give a clone, mirror or URL of vLLM that has it",
        details=tuple(words[:6]),
    )


def _shown(source: str) -> str:
    return without_secrets(source) if "://" in source else source
