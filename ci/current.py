"""The series as this checkout holds it now, composed and ready to be built from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from ci import apply as applying
from ci import lock as locking
from ci import patchfile
from ci.errors import Fault
from ci.git import Git
from ci.identity import PatchIdentity, SeriesIdentity
from ci.layout import Layout
from ci.pin import Pin, load_pin
from ci.series import SeriesFiles, read_files


@dataclass(frozen=True)
class Source:
    """What is built: a composed series in the store.

    Attributes:
        git: the store.
        commit: the series' last commit.
        tree: that commit's tree.
    """

    git: Git
    commit: str
    tree: str
    pin: Pin
    identity: SeriesIdentity

    @property
    def timestamp(self) -> int:
        """The time that everything in the wheel carries: the last commit's."""
        return int(self.git.text("show", "-s", "--format=%ct", self.commit))


def current(layout: Layout) -> Source:
    """What the last apply composed, if the series has not changed since.

    Raises:
        Fault: it has changed, or nothing was composed yet.
    """
    pin = load_pin(layout.pin)
    files = read_files(layout)
    locking.check_inputs(locking.load_lock(layout), files, pin.base_tree)
    head = applying.composed_head(layout, files)
    if head is None:
        raise Fault(
            "the series as it lies here has not been composed", todo="run `nox -s apply` first"
        )
    git = Git(layout.store)
    return Source(git, head, git.tree_of(head), pin, identify(pin, files))


def identify(pin: Pin, files: SeriesFiles) -> SeriesIdentity:
    """The identity of a series on a pin."""
    topics = {topic.name: topic for topic in files.series.topics}
    patches = []
    for patch in files.series.patches:
        content = files.patches[patch.file]
        topic = topics.get(patch.topic)
        patches.append(
            PatchIdentity(
                patch.file,
                hashlib.sha256(content).hexdigest(),
                {
                    path: hashlib.sha256(files.overlay[path].data).hexdigest()
                    for path in patch.overlay
                },
                patchfile.parse(content).message.subject,
                patch.topic,
                patch.upstream or (topic.upstream if topic else ""),
            )
        )
    return SeriesIdentity(pin.version, pin.commit, pin.base_tree, tuple(patches))
