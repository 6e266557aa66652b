"""Which series a wheel is of: one short id over the pin and every byte of the series.

The id is part of the wheel's version (`vllm.__version__` at run time), and the
whole identity lies in the wheel as `ngram_series.json` in its dist-info.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property

from ci.errors import Fault
from ci.pin import Artifact, is_file_name
from ci.variant import Variant

FILE = "ngram_series.json"
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
        return f"{self.vllm}+ngram.{self.id}{variant.local_label}"

    def as_json(self, variant: Variant, tree: str, precompiled: Artifact) -> bytes:
        """What the wheel carries: the identity, the composed tree, the libraries' origin."""
        table = {
            "series": self.id,
            "version": self.version(variant),
            "variant": variant.value,
            "tree": tree,
            "vllm": {"version": self.vllm, "commit": self.commit, "base_tree": self.base_tree},
            "precompiled": asdict(precompiled),
            "patches": [asdict(patch) for patch in self.patches],
        }
        return json.dumps(table, indent=1, ensure_ascii=True).encode("ascii") + b"\n"


@dataclass(frozen=True)
class Carried:
    """An identity as a wheel states it, checked to be in keeping with itself."""

    identity: SeriesIdentity
    variant: Variant
    tree: str
    precompiled: Artifact

    @property
    def version(self) -> str:
        return self.identity.version(self.variant)


def from_json(content: bytes) -> Carried:
    """Read what `as_json` wrote.

    Raises:
        Fault: it is damaged, or its id is not that of the patches that it lists.
    """
    try:
        table = json.loads(content)
        pin = table["vllm"]
        patches = tuple(PatchIdentity(**patch) for patch in table["patches"])
        series = SeriesIdentity(pin["version"], pin["commit"], pin["base_tree"], patches)
        carried = Carried(
            series, Variant(table["variant"]), str(table["tree"]), Artifact(**table["precompiled"])
        )
        claimed = (table["series"], table["version"])
        if not is_file_name(carried.precompiled.file):
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise Fault("the series identity in it is damaged", todo="build the wheel again") from None
    if claimed != (series.id, carried.version):
        raise Fault(
            f"it calls itself series {claimed[0]}, but its patches make {series.id}",
            todo="build the wheel again",
        )
    return carried
