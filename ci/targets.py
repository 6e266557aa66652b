"""What a series is rolled to: a release from the index, or a ref of a git source."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ci.base import (
    ARRIVED,
    base_commit,
    fetch_commit,
    import_tree,
    sdist_files,
    short_commit,
)
from ci.errors import Fault
from ci.git import Git
from ci.layout import Layout
from ci.pin import Artifact, Pin
from ci.progress import say
from ci.sources import fetch_artifact, sha256_of


@dataclass(frozen=True)
class Target:
    """Another vLLM, in the store.

    Attributes:
        name: as the user calls it: a version or a ref.
        sdist: the release's source file; None for a git ref.
    """

    name: str
    commit: str
    tree: str
    sdist: Artifact | None = None
    wheels: Mapping[str, Artifact] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Its name as one for folders and refs."""
        return re.sub(r"[^A-Za-z0-9._+-]+", "-", self.name).strip(".-") or "target"


def folder(layout: Layout, name: str) -> Path:
    """Where a roll to `name` keeps what it made."""
    return layout.build / "roll" / Target(name, "", "").key


@dataclass(frozen=True)
class Known:
    """An earlier roll: what its target is called, and its folder."""

    name: str
    folder: Path


def rolls(layout: Layout) -> list[Known]:
    """All rolls so far, the last one first."""
    found = sorted(
        (layout.build / "roll").glob("*/target.json"),
        key=lambda path: path.stat().st_mtime,
        reverse=True,
    )
    said = [(path.parent, _said(path.parent)) for path in found]
    return [Known(data["name"], where) for where, data in said if data]


def _said(where: Path) -> dict[str, Any]:
    """What an earlier roll wrote of its target; empty where that cannot be read."""
    try:
        data: dict[str, Any] = json.loads((where / "target.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return data


def load(layout: Layout, store: Git, where: Path) -> Target | None:
    """The target of an earlier roll, if the store still has it."""
    data = _said(where)
    if not data:
        return None
    sdist = Artifact(**data["sdist"]) if data["sdist"] else None
    wheels = {name: Artifact(**wheel) for name, wheel in data["wheels"].items()}
    target = Target(data["name"], data["commit"], data["tree"], sdist, wheels)
    return target if store.resolve(f"{target.commit}^{{tree}}") == target.tree else None


def find(layout: Layout, store: Git, pin: Pin, name: str, source: str | None) -> Target:
    """The vLLM called `name`, brought into the store if it is not there.

    Args:
        source: an sdist file, a folder with it, or a git repository; None
            asks the index for a release, unless an earlier roll had it.

    Raises:
        Fault: there is no such release or ref.
    """
    where = folder(layout, name)
    if source is None:
        known = load(layout, store, where)
        if known is not None:
            (where / "target.json").touch()  # the last roll is the one tried last
            return known
        target = _release(layout, store, pin, name)
    elif _is_git(Path(source), source):
        target = _ref(store, name, source)
    else:
        target = _given(layout, store, pin, name, Path(source))
    store.run("update-ref", f"refs/roll/{target.key}", target.commit)
    where.mkdir(parents=True, exist_ok=True)
    draft = where / "target.draft"
    draft.write_text(json.dumps(asdict(target), indent=1) + "\n")
    draft.replace(where / "target.json")
    return target


def _is_git(path: Path, source: str) -> bool:
    if path.is_dir():
        return (path / ".git").exists() or (path / "objects").is_dir()
    return "://" in source or (":" in source and not path.exists())


def _ref(store: Git, name: str, source: str) -> Target:
    wanted = (
        (name,)
        if re.fullmatch(r"[0-9a-f]{40}", name)
        else (f"refs/tags/v{name}", f"refs/tags/{name}", f"refs/heads/{name}")
    )
    say(f"fetching {name}")
    fetch_commit(store, source, wanted)
    commit = store.text("rev-parse", ARRIVED)
    return Target(name, commit, store.tree_of(commit))


def _release(layout: Layout, store: Git, pin: Pin, version: str) -> Target:
    from ci.releases import find_release

    if not re.match(r"\d", version):
        raise Fault(
            f"{version} is no version", todo="give one (0.18.1), or a git repository with --source"
        )
    release = find_release(version)
    path = fetch_artifact(layout, release.sdist)
    return _imported(store, pin, version, path, release.sdist, release.wheels)


def _given(layout: Layout, store: Git, pin: Pin, name: str, source: Path) -> Target:
    path = source / f"vllm-{name}.tar.gz" if source.is_dir() else source
    if not path.is_file():
        raise Fault(f"{path} is not there", todo=f"give the sdist of vLLM {name}, or its folder")
    artifact = Artifact(pin.sdist.project, path.name, path.stat().st_size, sha256_of(path))
    return _imported(
        store, pin, name, fetch_artifact(layout, artifact, str(path)), artifact, _wheels(name)
    )


def _wheels(name: str) -> Mapping[str, Artifact]:
    """A release's wheels, where an index can be asked; a file alone will do for a roll."""
    from ci.releases import find_release

    try:
        return find_release(name).wheels
    except Fault:
        return {}


def _imported(
    store: Git, pin: Pin, name: str, path: Path, sdist: Artifact, wheels: Mapping[str, Artifact]
) -> Target:
    say(f"importing {path.name}")
    tree = import_tree(store, list(sdist_files(path)), pin.generated)
    base = base_commit(store, tree, f"v{name}\n\nThe files of {sdist.file}.")
    return Target(name, base.commit, tree, sdist, wheels)


def pin_of(layout: Layout, store: Git, target: Target, old: Pin, commit: str | None) -> Pin:
    """The pin that names a release, ready for pin.toml.

    Args:
        commit: the release's full commit id; None looks its tag up.

    Raises:
        Fault: it is no release, its commit is not known, or is not the one
            that the sdist was made from.
    """
    if target.sdist is None:
        raise Fault(
            f"{target.name} is a git ref, a pin names a release",
            todo="roll to the release itself: `nox -s roll -- VERSION --accept`",
        )
    tag = f"v{target.name}"
    short = _commit_of(fetch_artifact(layout, target.sdist))
    full = commit or _tag_commit(store, old.repository, tag)
    if not full or not re.fullmatch(r"[0-9a-f]{40}", full):
        raise Fault(
            f"the full commit id of {tag} is not known: {old.repository} was not reached",
            todo=f"give it: --commit ID (the sdist says that it starts with {short or '?'})",
        )
    if short and not full.startswith(short):
        raise Fault(
            f"{tag} is commit {full}, but its sdist was made from {short}…",
            todo="give the right one: --commit ID",
        )
    return Pin(
        target.name,
        old.repository,
        tag,
        full,
        target.tree,
        target.sdist,
        old.generated,
        target.wheels,
    )


def _commit_of(sdist: Path) -> str:
    """The start of the id of the commit that an sdist was made from."""
    found = {path: member.content for path, member in sdist_files(sdist)}
    return short_commit(found.get("vllm/_version.py", b""))


def _tag_commit(store: Git, repository: str, tag: str) -> str:
    say(f"asking {repository} for {tag}")
    out = store.attempt_list(repository, f"refs/tags/{tag}", f"refs/tags/{tag}^{{}}").out
    rows = [line.split("\t") for line in out.decode("utf-8", "replace").splitlines()]
    found = {row[1]: row[0] for row in rows if len(row) == 2}
    return found.get(f"refs/tags/{tag}^{{}}") or found.get(f"refs/tags/{tag}", "")
