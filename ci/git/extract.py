"""Writing a tree of the store out as files, byte for byte.

`git archive` and `git checkout` alter content as attributes say; here the
blobs are written as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ci.core.content import EXECUTABLE, SYMLINK
from ci.core.errors import Fault
from ci.git.repo import Git
from ci.git.trees import list_tree, read_objects


def export_tree(
    git: Git, tree: str, folder: Path, wanted: Callable[[bytes], bool] = lambda path: True
) -> list[Path]:
    """Write the files of `tree` for which `wanted(path)` holds below `folder`.

    Raises:
        Fault: the tree holds a link or a submodule, which a wheel cannot.
    """
    entries = [
        (path, mode, blob)
        for path, (mode, blob) in sorted(list_tree(git, tree).items())
        if wanted(path)
    ]
    written = []
    contents = read_objects(git, (blob for _, _, blob in entries))
    for path, mode, blob in entries:
        name = path.decode("utf-8", "surrogateescape")
        if not mode.startswith("100"):
            kind = "a link" if mode == SYMLINK else "a submodule"
            raise Fault(f"{name} is {kind} in the composed tree", todo="make it a plain file")
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(contents[blob])
        target.chmod(0o755 if mode == EXECUTABLE else 0o644)
        written.append(target)
    return written
