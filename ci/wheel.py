"""Building a wheel of the composed tree through vLLM's own setup.py.

The compiled libraries come out of the pinned release's wheel (vLLM's
VLLM_USE_PRECOMPILED path), so there is no compiler in this. The tree is
written out of the store, never taken from the work tree; what setup.py makes
is mended (tag, identity, bill of materials, reproducible bytes), verified
file by file against the composed tree, and only then moved to dist/.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci import environments, identity, sbom, verify, wheelfile
from ci.compiled import refuse_compiled_changes
from ci.current import Source
from ci.environments import Environment
from ci.errors import Fault
from ci.extract import export_tree
from ci.git import Git
from ci.layout import Layout
from ci.pin import Artifact
from ci.progress import say, step
from ci.variant import Variant, machine

# The official build backend, called as build front ends call it. The wheel is
# only stored here, not compressed: it is written anew right after.
_BACKEND = """\
import sys
from setuptools import build_meta
options = {"--build-option": ["--compression=stored"]}
name = build_meta.build_wheel(sys.argv[1], options)
print("built", name)
"""


def build(
    layout: Layout,
    source: Source,
    variant: Variant,
    fetch: Callable[[Artifact], Path],
    environment: Callable[[], Environment],
) -> Path:
    """The wheel in dist/, built if it is not there as these inputs make it.

    Args:
        fetch: hands over the verified precompiled wheel.
        environment: makes the build environment, when one is needed.

    Raises:
        Fault: the series touches compiled sources, setup.py fails, or the
            wheel does not hold what the composed tree holds.
    """
    refuse_compiled_changes(source.git, source.pin.base_tree, source.tree)
    artifact = source.pin.wheel(variant.value, machine())
    target = layout.dist / _file_name(source, variant, artifact)
    stamp = Stamp(target, _inputs(source, variant, artifact))
    if stamp.holds():
        say(f"{target.name} is up to date")
        return target
    pinned = fetch(artifact)
    python = environment().python
    scratch = layout.build / "wheel" / variant.value
    if scratch.exists():
        shutil.rmtree(scratch)
    scratch.mkdir(parents=True)
    with step(f"{variant.value}: writing out the composed tree"):
        tree = _lay_out(source, scratch / "source")
    with step(f"{variant.value}: vLLM's setup.py, libraries from {pinned.name}"):
        built = _run_setup(source, variant, tree, pinned, python, scratch)
    layout.dist.mkdir(exist_ok=True)
    partial = layout.dist / f".{target.name}.part"
    with step(f"{variant.value}: writing the wheel"):
        _rewrite(source, variant, artifact, pinned, built, partial)
    with step(f"{variant.value}: verifying it against the composed tree"):
        found = verify.check(verify.WheelFiles(partial), source.git, read_pinned(pinned), source)
        found.raise_for_faults()
    partial.replace(target)
    stamp.write()
    shutil.rmtree(scratch)
    say(f"built dist/{target.name}")
    return target


def read_pinned(pinned: Path) -> dict[str, wheelfile.Entry]:
    """What the precompiled wheel holds."""
    return wheelfile.read_record(pinned)


def built_wheel(layout: Layout, source: Source, variant: Variant) -> Path | None:
    """The wheel of this very series in dist/, None if it has to be built."""
    artifact = source.pin.wheel(variant.value, machine())
    target = layout.dist / _file_name(source, variant, artifact)
    return target if Stamp(target, _inputs(source, variant, artifact)).holds() else None


# -- is it there already? ------------------------------------------------------


@dataclass(frozen=True)
class Stamp:
    """A note beside a wheel: what it was made of, and how the file looked then."""

    wheel: Path
    inputs: str

    @property
    def path(self) -> Path:
        return self.wheel.with_name(f".{self.wheel.name}.json")

    def holds(self) -> bool:
        """Whether the wheel is there, untouched, and made of these inputs."""
        try:
            noted: dict[str, Any] = json.loads(self.path.read_text("ascii"))
            status = self.wheel.stat()
        except (OSError, ValueError):
            return False
        if noted.get("inputs") != self.inputs or noted.get("size") != status.st_size:
            return False
        # Copied or touched, it may still be the same file.
        return noted.get("mtime_ns") == status.st_mtime_ns or noted.get("sha256") == _sha256(
            self.wheel
        )

    def write(self) -> None:
        status = self.wheel.stat()
        noted = {
            "inputs": self.inputs,
            "size": status.st_size,
            "mtime_ns": status.st_mtime_ns,
            "sha256": _sha256(self.wheel),
        }
        partial = self.path.with_suffix(".part")
        partial.write_text(json.dumps(noted, indent=1) + "\n", "ascii")
        partial.replace(self.path)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        digest = hashlib.sha256()
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _inputs(source: Source, variant: Variant, artifact: Artifact) -> str:
    """One hash over all that decides the wheel's bytes, this code included."""
    digest = hashlib.sha256()
    for word in (source.identity.version(variant), source.tree, artifact.sha256):
        digest.update(word.encode() + b"\0")
    for module in (__file__, identity.__file__, sbom.__file__, wheelfile.__file__):
        digest.update(Path(module).read_bytes())
    return digest.hexdigest()


def _file_name(source: Source, variant: Variant, artifact: Artifact) -> str:
    return f"vllm-{source.identity.version(variant)}-{wheelfile.tag_of(artifact.file)}.whl"


# -- how it is made ------------------------------------------------------------


def _lay_out(source: Source, folder: Path) -> Path:
    """The composed tree as files, with a repository over them.

    setuptools packs the data files that git tracks; without a repository the
    templates and other data would be missing from the wheel.
    """
    export_tree(source.git, source.tree, folder)
    git = Git(folder / ".git", work_tree=folder)
    git.run("init", "-q", "--template=", cwd=folder)
    objects = (source.git.git_dir / "objects").absolute()
    (folder / ".git" / "objects" / "info").mkdir(exist_ok=True)
    (folder / ".git" / "objects" / "info" / "alternates").write_text(f"{objects}\n", "utf-8")
    git.run("update-ref", "--no-deref", "HEAD", source.commit)
    git.run("read-tree", "HEAD")
    return folder


def _run_setup(
    source: Source, variant: Variant, tree: Path, pinned: Path, python: Path, scratch: Path
) -> Path:
    """Run the build in an environment made from nothing; the wheel it made."""
    out = scratch / "out"
    home = scratch / "home"
    for folder in (out, home):
        folder.mkdir()
    env = {
        "PATH": os.pathsep.join((str(python.parent), os.environ.get("PATH", os.defpath))),
        "HOME": str(home),
        "TMPDIR": str(home),
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONHASHSEED": "0",
        "SOURCE_DATE_EPOCH": str(source.timestamp),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "VLLM_TARGET_DEVICE": variant.value,
        "VLLM_USE_PRECOMPILED": "1",
        "VLLM_PRECOMPILED_WHEEL_LOCATION": str(pinned.absolute()),
        "VLLM_VERSION_OVERRIDE": source.identity.version(variant),
    }
    environments.run(
        [python, "-c", _BACKEND, out],
        what=f"vLLM's setup.py for {variant.value}",
        env=env,
        cwd=tree,
        log=scratch.parent / f"{variant.value}.log",
    )
    wheels = list(out.glob("*.whl"))
    if len(wheels) != 1:
        raise Fault(f"vLLM's setup.py made {len(wheels)} wheels", todo="see its log")
    return wheels[0]


def _rewrite(
    source: Source, variant: Variant, artifact: Artifact, pinned: Path, built: Path, target: Path
) -> None:
    """Mend the tag, add the identity and the bill of materials, fix the bytes."""
    with wheelfile.open_wheel(built) as archive:
        info = wheelfile.dist_info(archive)
        metadata = archive.read(f"{info}/WHEEL")
    bill = sbom.render(
        source.identity, source.pin, variant, source.tree, artifact, source.timestamp
    )
    content = {
        f"{info}/WHEEL": wheelfile.with_tag(metadata, wheelfile.tag_of(artifact.file)),
        f"{info}/{identity.FILE}": source.identity.as_json(variant, source.tree, artifact),
        f"{info}/{sbom.FILE}": bill,
    }
    executable = frozenset(
        path.decode("utf-8", "surrogateescape")
        for path, (mode, _) in source.git.list_tree(source.tree).items()
        if mode == "100755"
    )
    how = wheelfile.Rewrite(source.timestamp, content, executable, donor=pinned)
    wheelfile.rewrite(built, target, how)
