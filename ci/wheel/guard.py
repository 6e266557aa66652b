"""The guard of precompiled builds: no change to what is compiled may go unnoticed.

The libraries come out of the pinned release's wheel. A series that changes
their sources, or what builds them, would be built without its own changes.
"""

from __future__ import annotations

import re

from ci.core.errors import Fault, listed
from ci.git.repo import Git
from ci.git.trees import changes

_COMPILED = re.compile(
    rb"""
    (csrc|cmake|rust|\.cargo)/.* | .*/csrc/.* | tools/build_(rust|deepgemm_C)\.(py|sh)
    | (.*/)?(
        CMakeLists\.txt | CMakePresets\.json | torch_bindings\.cpp
        | Cargo\.(toml|lock) | build\.rs | rust-toolchain(\.toml)?
    )
    | (?i:.*\.(
        c|cc|cpp|cxx|cu|cuh|h|hh|hpp|hip|inc|inl|metal|pyx|pxd|rs|s|asm|cmake|so|ptx|cubin
    ))
    """,
    re.VERBOSE | re.DOTALL,
)
"""A file of vLLM's tree that is compiled, or says how that is done."""


def refuse_compiled_changes(git: Git, base_tree: str, tree: str) -> None:
    """Let only a series pass whose libraries are the pinned wheel's.

    Raises:
        Fault: the trees differ in compiled sources; the files are named.
    """
    paths = (change.path for change in changes(git, base_tree, tree))
    touched = [path for path in paths if _COMPILED.fullmatch(path)]
    if touched:
        raise Fault(
            f"the series changes {len(touched)} compiled source file{'s' * (len(touched) > 1)}, "
            "which a wheel made of the pinned release's libraries would not hold",
            todo="keep these out of the series, or build vLLM with a compiler",
            details=listed([path.decode("utf-8", "backslashreplace") for path in touched]),
        )
