"""Which series a wheel is of: one short id over the pin and every byte of the series.

The id is part of the wheel's version (`vllm.__version__` at run time), and the
whole identity lies in the wheel as `LABEL_series.json` in its dist-info.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property

from ci.core.errors import Fault
from ci.core.project import project
from ci.pinned.pin import Artifact, Pin, is_file_name
from ci.pinned.variant import Variant
from ci.series import patch as patchfile
from ci.series.model import SeriesFiles

FILE = f"{project().label}_series.json"
"""The identity's name inside dist-info."""

_LENGTH = 10


@dataclass(frozen=True)
class PatchIdentity:
    """One patch, as its wheel knows it.

    Attributes:
        file: the patch's file name.
        sha256: over the patch file.
        overlay: the files that the patch adds, path -> sha256.
        subject: the first line of its message.
        topic: the topic it belongs to.
        upstream: the address of its upstream PR, or "".
    """

    file: str
    sha256: str
    overlay: Mapping[str, str]
    subject: str = ""
    topic: str = ""
    upstream: str = ""


@dataclass(frozen=True)
class SeriesIdentity:
    """A pin and the patches on it.

    Attributes:
        vllm: the pinned version.
        commit: the pinned commit.
        base_tree: the tree of the pinned sources.
        patches: in order.
    """

    vllm: str
    commit: str
    base_tree: str
    patches: tuple[PatchIdentity, ...]

    @cached_property
    def id(self) -> str:
        """Ten hexadecimal digits after a letter.

        The letter keeps packaging tools from reading the label as a number
        and dropping its leading zeros.
        """
        content = [self.vllm, self.commit, self.base_tree]
        for patch in self.patches:
            content += ["patch", patch.file, patch.sha256]
            for path, sha256 in sorted(patch.overlay.items()):
                content += ["overlay", path, sha256]
        digest = hashlib.sha256("\n".join(content).encode("utf-8", "surrogateescape"))
        return "s" + digest.hexdigest()[:_LENGTH]

    def version(self, variant: Variant) -> str:
        """The wheel's version, a PEP 440 local version of the pinned one."""
        return f"{self.vllm}+{project().label}.{self.id}{variant.local_label}"


@dataclass(frozen=True)
class WheelIdentity:
    """What a wheel carries: the series, the composed tree, and where its libraries come from."""

    identity: SeriesIdentity
    variant: Variant
    tree: str
    precompiled: Artifact

    @property
    def version(self) -> str:
        return self.identity.version(self.variant)

    def as_json(self) -> bytes:
        """The content of `FILE`."""
        series = self.identity
        table = {
            "series": series.id,
            "version": self.version,
            "variant": self.variant.value,
            "tree": self.tree,
            "vllm": {
                "version": series.vllm,
                "commit": series.commit,
                "base_tree": series.base_tree,
            },
            "precompiled": asdict(self.precompiled),
            "patches": [asdict(patch) for patch in series.patches],
        }
        return json.dumps(table, indent=1, ensure_ascii=True).encode("ascii") + b"\n"


def from_json(content: bytes) -> WheelIdentity:
    """Read what `as_json` wrote.

    Raises:
        Fault: it is damaged, or its id is not that of the patches that it lists.
    """
    try:
        table = json.loads(content)
        pin = table["vllm"]
        patches = tuple(PatchIdentity(**patch) for patch in table["patches"])
        series = SeriesIdentity(pin["version"], pin["commit"], pin["base_tree"], patches)
        precompiled = Artifact(**table["precompiled"])
        wheel = WheelIdentity(series, Variant(table["variant"]), str(table["tree"]), precompiled)
        claimed = (table["series"], table["version"])
        if not is_file_name(precompiled.file):
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise Fault("the series identity in it is damaged", todo="build the wheel again") from None
    if claimed != (series.id, wheel.version):
        raise Fault(
            f"it calls itself series {claimed[0]}, but its patches make {series.id}",
            todo="build the wheel again",
        )
    return wheel


def identify(pin: Pin, files: SeriesFiles) -> SeriesIdentity:
    """The identity of a series on a pin."""
    links = {topic.name: topic.upstream for topic in files.series.topics}
    patches = tuple(
        PatchIdentity(
            patch.file,
            _sha256(files.patches[patch.file]),
            {path: _sha256(files.overlay[path].data) for path in patch.overlay},
            patchfile.parse(files.patches[patch.file]).message.subject,
            patch.topic,
            patch.upstream or links.get(patch.topic, ""),
        )
        for patch in files.series.patches
    )
    return SeriesIdentity(pin.version, pin.commit, pin.base_tree, patches)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
