"""What a series is rolled to: a release from the index, or a ref of a git source."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from ci.core.cache import sha256_of
from ci.core.errors import Fault
from ci.core.progress import say
from ci.git.repo import Git
from ci.pinned.base import ARRIVED, fetch_commit, is_git
from ci.pinned.fetch import fetch_artifact
from ci.pinned.pin import Artifact, Pin
from ci.pinned.sdist import base_commit, import_tree, sdist_files, short_commit


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


def key_of(name: str) -> str:
    """A target's name as one for folders and refs."""
    return re.sub(r"[^A-Za-z0-9._+-]+|\.{2,}|\.lock$", "-", name).strip("._+-") or "target"


def known_targets(rolls: Path) -> list[Target]:
    """The targets of all rolls below a folder, the last one first."""
    found = []
    paths = [(path.stat().st_mtime, path) for path in rolls.glob("*/target.json")]
    for _, path in sorted(paths, reverse=True):
        with suppress(OSError, msgspec.MsgspecError):
            found.append(msgspec.json.decode(path.read_bytes(), type=Target))
    return found


@dataclass(frozen=True)
class Targets:
    """Finds what to roll to, and keeps what it found.

    Attributes:
        rolls: holds a folder for each target.
        pin: what the series stands on now.
    """

    rolls: Path
    downloads: Path
    store: Git
    pin: Pin

    def find(self, name: str, source: str | None) -> Target:
        """The vLLM called `name`, brought into the store if it is not there.

        Args:
            source: an sdist file, a folder with it, or a git repository; None
                asks the index for a release, unless an earlier roll had it.

        Raises:
            Fault: there is no such release or ref.
        """
        note = self.rolls / key_of(name) / "target.json"
        if source is None:
            for known in known_targets(self.rolls):
                if known.name == name and self.store.resolve(known.commit):
                    note.touch()  # the last roll is the one tried last
                    return known
            target = self._release(name)
        elif is_git(source):
            target = self._ref(name, source)
        else:
            target = self._given(name, Path(source))
        self.store.run("update-ref", f"refs/roll/{key_of(name)}", target.commit)
        note.parent.mkdir(parents=True, exist_ok=True)
        draft = note.with_suffix(".draft")
        draft.write_bytes(msgspec.json.encode(target))
        draft.replace(note)
        return target

    def _ref(self, name: str, source: str) -> Target:
        wanted = (
            (name,)
            if re.fullmatch(r"[0-9a-f]{40}", name)
            else (f"refs/tags/v{name}", f"refs/tags/{name}", f"refs/heads/{name}")
        )
        say(f"fetching {name}")
        found = self._commits(source, wanted)
        if len(set(found.values())) > 1:
            raise Fault(
                f"{name} could be any of {len(found)} refs, which are not the same commit",
                todo=f"give the id of the one that you mean: `nox -s roll -- ID --source {source}`",
                details=tuple(f"{commit} {ref}" for ref, commit in found.items()),
            )
        fetch_commit(self.store, source, wanted)
        commit = self.store.text("rev-parse", ARRIVED)
        return Target(name, commit, self.store.tree_of(commit))

    def _release(self, version: str) -> Target:
        from ci.pinned.releases import find_release

        if not re.match(r"\d", version):
            raise Fault(
                f"{version} is not a version",
                todo="give one (0.18.1), or a git repository with --source",
            )
        release = find_release(version)
        path = fetch_artifact(self.downloads, release.sdist)
        return self._imported(version, path, release.sdist, release.wheels)

    def _given(self, name: str, source: Path) -> Target:
        from ci.pinned.releases import find_release

        path = source / f"vllm-{name}.tar.gz" if source.is_dir() else source
        if not path.is_file():
            raise Fault(
                f"{path} is not there", todo=f"give the sdist of vLLM {name}, or its folder"
            )
        project = self.pin.sdist.project
        artifact = Artifact(project, path.name, path.stat().st_size, sha256_of(path))
        copy = fetch_artifact(self.downloads, artifact, str(path))
        wheels: Mapping[str, Artifact] = {}
        with suppress(Fault):  # where no index can be asked, a file alone will do for a roll
            wheels = find_release(name).wheels
        return self._imported(name, copy, artifact, wheels)

    def _imported(
        self, name: str, path: Path, sdist: Artifact, wheels: Mapping[str, Artifact]
    ) -> Target:
        say(f"importing {path.name}")
        tree = import_tree(self.store, sdist_files(path), self.pin.generated)
        commit = base_commit(self.store, tree, f"v{name}\n\nThe files of {sdist.file}.")
        return Target(name, commit, tree, sdist, wheels)

    def pin_of(self, target: Target, commit: str | None) -> Pin:
        """The pin that names a release.

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
        short = short_commit(sdist_files(fetch_artifact(self.downloads, target.sdist)))
        ref = f"refs/tags/{tag}"
        if not commit:
            say(f"asking {self.pin.repository} for {tag}")
        full = commit or self._commits(self.pin.repository, (ref,)).get(ref, "")
        if not full or not re.fullmatch(r"[0-9a-f]{40}", full):
            raise Fault(
                f"the full commit id of {tag} is not known: {self.pin.repository} was not reached",
                todo=f"give it: --commit ID (the sdist says that it starts with {short or '?'})",
            )
        if short and not full.startswith(short):
            raise Fault(
                f"{tag} is commit {full}, but its sdist was made from {short}…",
                todo="give the right one: --commit ID",
            )
        return replace(
            self.pin,
            version=target.name,
            tag=tag,
            commit=full,
            base_tree=target.tree,
            sdist=target.sdist,
            wheels=target.wheels,
        )

    def _commits(self, source: str, refs: Sequence[str]) -> dict[str, str]:
        """The commits that a repository has under these refs."""
        where = os.path.abspath(source) if Path(source).exists() else source  # noqa: PTH100
        # A tag may be an object of its own, which names the commit.
        asked = [word for ref in refs for word in (ref, f"{ref}^{{}}")]
        rows = self.store.attempt_list(where, *asked).out.decode("utf-8", "replace").splitlines()
        ids = {ref: commit for commit, _, ref in (row.partition("\t") for row in rows)}
        return {ref: ids.get(f"{ref}^{{}}", ids[ref]) for ref in refs if ref in ids}
