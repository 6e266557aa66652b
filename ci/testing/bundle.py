"""The device checks as a folder that travels to a bare machine with a GPU.

Such a machine has Python, torch, triton and the like, but no network and no
vLLM. The bundle holds the composed tree without compiled libraries, the packages
that importing it asks for, a tiny model, and the checks of tests/device with the
script that runs them.
"""

from __future__ import annotations

import gzip
import shutil
import tarfile
from pathlib import Path

from ci.core.errors import Fault
from ci.core.progress import step
from ci.core.testpaths import TestPaths
from ci.env.venvs import install_for
from ci.git.extract import export_tree
from ci.testing.environment import TestEnvironment
from ci.testing.vllm_checks import changed_files
from ci.wheel.composed import ComposedSeries

LIMIT = 60 << 20
"""What a bundle may weigh, in bytes: a lent machine takes 64 MiB beside the checkout."""

PYTHON, MANYLINUX = "3.12", "manylinux_2_28"
"""What the packages are chosen for."""

_MODELS = ("models--*--tiny-llama", "models--*--Qwen3-0.6B")
"""What the engine runs and what the tests of the token buffer name, in the cache of models."""


def make_bundle(paths: TestPaths, env: TestEnvironment, folder: Path) -> int:
    """Make the bundle of the series in `folder`, in place of an older one; its size in bytes.

    Raises:
        Fault: a package cannot be had, or the bundle is larger than LIMIT.
    """
    source, checks, scratch = env.source, paths.root / "tests" / "device", paths.runs / "bundle"
    for old in (folder, scratch):
        shutil.rmtree(old, ignore_errors=True)
    shutil.copytree(checks, folder, ignore=shutil.ignore_patterns("stubs", "__pycache__", "*.txt"))
    (folder / "bench").mkdir()
    shutil.copy(paths.bench / "proposer.py", folder / "bench")
    _lay_out_tree(source, checks / "stubs", scratch / "tree")
    with step("packages that the machine lacks"):
        install_for(
            scratch / "site",
            checks / "requirements.txt",
            paths.requirements / "constraints.txt",
            PYTHON,
            MANYLINUX,
        )
    for pattern in _MODELS:
        for model in (env.models / "hub").glob(pattern):
            shutil.copytree(model, scratch / "models" / "hub" / model.name)
    for name in ("tree", "site", "models"):
        _pack(scratch / name, folder / f"{name}.tar.gz", source.timestamp)
    return _weigh(folder)


def _lay_out_tree(source: ComposedSeries, stubs: Path, folder: Path) -> None:
    """The composed tree as it can be imported: with a version, and stubs for libraries."""
    ours = {path.encode("utf-8", "surrogateescape") for path in changed_files(source)}

    def wanted(path: bytes) -> bool:
        return path.startswith(b"vllm/") or path in ours or path.endswith(b"tests/__init__.py")

    export_tree(source.git, source.tree, folder, wanted)
    for package in ("v1", "v1/spec_decode", "v1/worker"):
        (folder / "tests" / package / "__init__.py").touch()
    shutil.copytree(stubs, folder, dirs_exist_ok=True)
    version = f"{source.pin.version}+{source.identity.id}"
    release = tuple(int(part) for part in source.pin.version.split("."))
    (folder / "vllm" / "_version.py").write_text(
        f'__version__ = version = "{version}"\n__version_tuple__ = version_tuple = {release}\n'
    )
    # vLLM looks its own package up to find the platform.
    info = folder / f"vllm-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")


def _pack(folder: Path, target: Path, timestamp: int) -> None:
    """A tar file that depends on nothing but the files and the series' own time."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if "__pycache__" in member.name:
            return None
        member.mtime, member.uid, member.gid, member.uname, member.gname = timestamp, 0, 0, "", ""
        return member

    with (
        target.open("wb") as out,
        gzip.GzipFile(filename="", mode="wb", fileobj=out, mtime=timestamp) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            archive.add(path, arcname=name, recursive=False, filter=plain)


def _weigh(folder: Path) -> int:
    files = [path for path in folder.rglob("*") if path.is_file()]
    # By path: a name in two folders weighs twice.
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
    total = sum(sizes.values())
    if total > LIMIT:
        largest = sorted(sizes, key=sizes.__getitem__, reverse=True)[:5]
        raise Fault(
            f"the bundle is {total / 2**20:.1f} MiB, more than {LIMIT / 2**20:.0f}",
            todo="take out what the checks do not need: tests/device/requirements.txt",
            details=tuple(f"{name}: {sizes[name] / 2**20:.1f} MiB" for name in largest),
        )
    return total
