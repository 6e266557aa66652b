"""Writing a tree of the store out as files, byte for byte.

`git archive` and `git checkout` alter content as attributes say; here the
blobs are written as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from ci.errors import Fault
from ci.git import Git

_LINK = "120000"
_EXECUTABLE = "100755"
_AT_ONCE = 500


def export_tree(
    git: Git, tree: str, folder: Path, wanted: Callable[[bytes], bool] = lambda path: True
) -> list[Path]:
    """Write the files of `tree` for which `wanted(path)` holds below `folder`.

    Raises:
        Fault: the tree holds a link or a submodule, which a wheel cannot.
    """
    entries = [
        (path, mode, blob)
        for path, (mode, blob) in sorted(git.list_tree(tree).items())
        if wanted(path)
    ]
    written = []
    contents = read_blobs(git, [blob for _, _, blob in entries])
    for (path, mode, _), content in zip(entries, contents, strict=True):
        name = path.decode("utf-8", "surrogateescape")
        if not mode.startswith("100"):
            kind = "a link" if mode == _LINK else "a submodule"
            raise Fault(f"{name} is {kind} in the composed tree", todo="make it a plain file")
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        target.chmod(0o755 if mode == _EXECUTABLE else 0o644)
        written.append(target)
    return written


def read_blobs(git: Git, blobs: list[str]) -> Iterator[bytes]:
    """The contents of `blobs`, in their order, a few hundred to a process."""
    for start in range(0, len(blobs), _AT_ONCE):
        some = blobs[start : start + _AT_ONCE]
        out = git.run("cat-file", "--batch", stdin="\n".join(some).encode() + b"\n")
        at = 0
        for blob in some:
            end = out.index(b"\n", at)
            name, kind, size = out[at:end].decode("ascii").split(" ")
            assert (name, kind) == (blob, "blob"), (blob, out[at:end])
            at = end + 1 + int(size)
            yield out[end + 1 : at]
            at += 1
