"""Building a wheel of the composed tree through vLLM's own setup.py.

The compiled libraries come out of the pinned release's wheel (vLLM's
VLLM_USE_PRECOMPILED path), so there is no compiler in this. The tree is
written out of the store, never taken from the work tree; what setup.py makes
is corrected (tag, identity, bill of materials, reproducible bytes), verified
file by file against the composed tree, and only then moved to dist/.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from ci.core.cache import is_noted, key_of, note
from ci.core.content import EXECUTABLE
from ci.core.errors import Fault
from ci.core.progress import say, step
from ci.env import venvs as environments
from ci.env.venvs import Environment
from ci.git.extract import export_tree
from ci.git.store import repository_over
from ci.git.trees import list_tree
from ci.pinned.pin import Artifact
from ci.pinned.variant import Variant
from ci.wheel import archive, identity, sbom, verify
from ci.wheel.composed import ComposedSeries
from ci.wheel.guard import refuse_compiled_changes
from ci.wheel.identity import WheelIdentity

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
    source: ComposedSeries,
    variant: Variant,
    dist: Path,
    scratch: Path,
    fetch: Callable[[Artifact], Path],
    environment: Callable[[], Environment],
) -> Path:
    """The wheel in `dist`, built if it is not there as these inputs make it.

    Args:
        scratch: a folder for what is only needed while it is built, and the log.
        fetch: hands over the verified precompiled wheel.
        environment: makes the build environment, when one is needed.

    Raises:
        Fault: the series touches compiled sources, setup.py fails, or the
            wheel does not hold what the composed tree holds.
    """
    refuse_compiled_changes(source.git, source.pin.base_tree, source.tree)
    wheel = source.wheel(variant)
    tag = archive.tag_of(wheel.precompiled.file)
    target = dist / f"vllm-{wheel.version}-{tag}.whl"
    # All that decides the wheel's bytes, this code included.
    code = (__file__, identity.__file__, sbom.__file__, archive.__file__)
    inputs = key_of(wheel.version, source.tree, wheel.precompiled.sha256, files=map(Path, code))
    if is_noted(target, inputs):
        say(f"{target.name} is up to date")
        return target
    pinned = fetch(wheel.precompiled)
    python = environment().python
    folder = scratch / variant.value
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    with step(f"{variant.value}: writing out the composed tree"):
        tree = _lay_out(source, folder / "source")
    with step(f"{variant.value}: vLLM's setup.py, libraries from {pinned.name}"):
        built = _run_setup(source, wheel, tree, pinned, python, folder)
    dist.mkdir(exist_ok=True)
    partial = dist / f".{target.name}.part"
    with step(f"{variant.value}: writing the wheel"):
        _rewrite(source, wheel, pinned, built, partial)
    with step(f"{variant.value}: verifying it against the composed tree"):
        files = verify.WheelFiles(partial)
        verify.check(files, source.git, lambda _: pinned, source).raise_for_faults()
    partial.replace(target)
    note(target, inputs)
    shutil.rmtree(folder)
    say(f"built {target.name}")
    return target


# -- how it is made ------------------------------------------------------------


def _lay_out(source: ComposedSeries, folder: Path) -> Path:
    """The composed tree as files, with a repository over them.

    setuptools packs the data files that git tracks; without a repository the
    templates and other data would be missing from the wheel.
    """
    export_tree(source.git, source.tree, folder)
    git = repository_over(source.git.git_dir, folder, "series")
    git.run("update-ref", "HEAD", source.commit)
    git.run("read-tree", "HEAD")
    return folder


def _run_setup(
    source: ComposedSeries,
    wheel: WheelIdentity,
    tree: Path,
    pinned: Path,
    python: Path,
    scratch: Path,
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
        "VLLM_TARGET_DEVICE": wheel.variant.value,
        "VLLM_USE_PRECOMPILED": "1",
        "VLLM_PRECOMPILED_WHEEL_LOCATION": str(pinned.absolute()),
        "VLLM_VERSION_OVERRIDE": wheel.version,
    }
    environments.run(
        [python, "-c", _BACKEND, out],
        what=f"vLLM's setup.py for {wheel.variant.value}",
        env=env,
        cwd=tree,
        log=scratch.parent / f"{wheel.variant.value}.log",
    )
    wheels = list(out.glob("*.whl"))
    if len(wheels) != 1:
        raise Fault(f"vLLM's setup.py made {len(wheels)} wheels", todo="see its log")
    return wheels[0]


def _rewrite(
    source: ComposedSeries, wheel: WheelIdentity, pinned: Path, built: Path, target: Path
) -> None:
    """Correct the tag, add the identity and the bill of materials, fix the bytes."""
    with archive.open_wheel(built) as opened:
        info = archive.dist_info(opened)
        metadata = opened.read(f"{info}/WHEEL")
    archive.rewrite(
        built,
        target,
        donor=pinned,
        timestamp=source.timestamp,
        content={
            f"{info}/WHEEL": archive.with_tag(metadata, archive.tag_of(pinned.name)),
            f"{info}/{identity.FILE}": wheel.as_json(),
            f"{info}/{sbom.FILE}": sbom.render(wheel, source.pin, source.timestamp),
        },
        executable={
            path.decode("utf-8", "surrogateescape")
            for path, entry in list_tree(source.git, source.tree).items()
            if entry.mode == EXECUTABLE
        },
    )
