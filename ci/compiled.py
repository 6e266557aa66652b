"""The guard of precompiled builds: no change to what is compiled may go unnoticed.

The libraries come out of the pinned release's wheel. A series that changes
their sources, or what builds them, would be built without its own changes.
"""

from __future__ import annotations

from ci.errors import Fault, listed
from ci.git import Git

_FOLDERS = (b"csrc/", b"cmake/", b"rust/", b".cargo/")
_NAMES = (
    b"CMakeLists.txt",
    b"CMakePresets.json",
    b"Cargo.toml",
    b"Cargo.lock",
    b"build.rs",
    b"rust-toolchain",
    b"rust-toolchain.toml",
    b"torch_bindings.cpp",
)
_ENDINGS = (
    b".c",
    b".cc",
    b".cpp",
    b".cxx",
    b".cu",
    b".cuh",
    b".h",
    b".hh",
    b".hpp",
    b".hip",
    b".inc",
    b".inl",
    b".metal",
    b".pyx",
    b".pxd",
    b".rs",
    b".s",
    b".asm",
    b".cmake",
    b".so",
    b".ptx",
    b".cubin",
)


def is_compiled_source(path: bytes) -> bool:
    """Whether a file of vLLM's tree is compiled, or says how that is done."""
    name = path.rsplit(b"/", 1)[-1]
    return (
        path.startswith(_FOLDERS)
        or b"/csrc/" in path
        or name in _NAMES
        or name.lower().endswith(_ENDINGS)
    )


def refuse_compiled_changes(git: Git, base_tree: str, tree: str) -> None:
    """Let only a series pass whose libraries are the pinned wheel's.

    Raises:
        Fault: the trees differ in compiled sources; the files are named.
    """
    out = git.run("diff-tree", "-r", "-z", "--name-only", "--no-renames", base_tree, tree)
    touched = [path for path in out.split(b"\0") if path and is_compiled_source(path)]
    if touched:
        raise Fault(
            f"the series changes {len(touched)} compiled source file{'s' * (len(touched) > 1)}, "
            "which a wheel made of the pinned release's libraries would not hold",
            todo="keep these out of the series, or build vLLM with a compiler",
            details=listed([path.decode("utf-8", "backslashreplace") for path in touched]),
        )
