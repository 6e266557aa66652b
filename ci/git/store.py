"""The tool-owned bare repository in which bases and series are kept."""

from __future__ import annotations

import os
from pathlib import Path

from ci.core.errors import Fault
from ci.core.progress import say
from ci.git.repo import Git

# Highest in precedence, so that no attribute of vLLM's tree or of a user turns
# line ends, expands keywords or picks a diff driver.
ATTRIBUTES = b"* -text !eol !ident !filter !working-tree-encoding !diff !merge !whitespace\n"


def open_store(folder: Path) -> Git:
    """The store in `folder`, made if it is not there."""
    store = Git(folder)
    if not (folder / "HEAD").is_file():
        store.init()
    attributes = folder / "info" / "attributes"
    if not attributes.is_file() or attributes.read_bytes() != ATTRIBUTES:
        attributes.parent.mkdir(exist_ok=True)
        attributes.write_bytes(ATTRIBUTES)
    return store


# For whoever works there with git of their own: bytes stay what they are.
_SETTINGS = """\
[core]
\tautocrlf = false
\teol = lf
\tsafecrlf = false
\tquotePath = false
[gc]
\tauto = 0
"""


def point_at(store: Path, git_dir: Path, objects: str = "") -> None:
    """Let a repository find the store's objects, by a relative path unless one is given."""
    objects = objects or os.path.relpath(store / "objects", git_dir / "objects")
    alternates = git_dir / "objects" / "info" / "alternates"
    alternates.parent.mkdir(exist_ok=True)
    alternates.write_bytes(os.fsencode(objects) + b"\n")


def repository_over(store: Path, root: Path, branch: str) -> Git:
    """A new repository in the folder `root`, for work on files of the store's trees.

    It finds the store's objects by a relative path, so that a checkout can be
    moved as a whole; `root` may be moved within its folder.

    Args:
        branch: the one that it is on; the caller makes it.
    """
    repo = Git(root / ".git", work_tree=root)
    repo.run("init", "-q", "--template=", f"--initial-branch={branch}", cwd=root)
    point_at(store, repo.git_dir)
    (repo.git_dir / "info").mkdir(exist_ok=True)
    (repo.git_dir / "info" / "attributes").write_bytes(ATTRIBUTES)
    with (repo.git_dir / "config").open("a") as config:
        config.write(_SETTINGS)
    return repo


def sweep(store: Path, work_tree: Path) -> None:
    """Clear away what a killed git left in the store and in our own refs of the
    work tree; we hold the checkout's lock."""
    ours = work_tree / ".git" / "refs"
    for left in (
        *store.glob("*.lock"),
        *work_tree.parent.glob("*.index.lock"),
        *store.glob("refs/**/*.lock"),
        *store.glob("objects/pack/tmp_*"),
        *store.glob("fast_import_crash_*"),
        *ours.glob("series/*.lock"),
        *ours.glob("backup/**/*.lock"),
    ):
        left.unlink()


def set_aside(store: Path, fault: Fault) -> Path:
    """Move a damaged store out of the way.

    What it held can be made again, but commits of the user may stand on old
    heads in it, so it is kept.
    """
    number = 1
    while (aside := store.with_name(f"store.damaged-{number}.git")).exists():
        number += 1
    if store.exists():
        store.rename(aside)
    say(f"the store was damaged ({fault.what}); it is made anew, the old one is {aside}")
    return aside


def look_into(store: Path, aside: Path) -> None:
    """Let the new store find what is left in the old one, now that everything
    of its own is written."""
    alternates = store / "objects" / "info" / "alternates"
    alternates.parent.mkdir(exist_ok=True)
    alternates.write_text(f"../../{aside.name}/objects\n")


def is_damaged(store: Path) -> bool:
    """Whether the store itself is at fault."""
    if not (store / "HEAD").is_file():
        return True
    return not Git(store).attempt("fsck", "--no-dangling", "--no-progress").ok
