"""Taking over what was made before the checkout had lines.

Then everything of the one series lay in `build/` itself. Work trees hold edits of
the user, so they move to the line's folder; what costs no one anything to make
again (environments, logs) stays, and may be deleted.
"""

from __future__ import annotations

import os
from pathlib import Path

from ci.core.progress import say
from ci.git.repo import Git
from ci.git.store import point_at

_KEPT = ("roll", "upstream", "swap", "releases.json", "test-results.json")


def adopt(shared: Path, new: Path, store: Path, line: str) -> None:
    """Move a work tree that lies in `shared` itself to where the line's is, `new`.

    A run that is cut short is finished by the next one: the work tree goes last.
    """
    old, build = shared / "vllm", new.parent
    if not (old / ".git" / "series-work-tree").is_file() or new.exists():
        return
    build.mkdir(parents=True, exist_ok=True)
    for tree in (old, *shared.glob("roll/*/vllm")):
        # It holds wherever the tree is, should this run be cut short.
        point_at(store, tree / ".git", str(store.absolute() / "objects"))
    for name in _KEPT:
        _move(shared / name, build / name)
    _move(store / "worktree.index", build / "worktree.index")
    _rename_exports(Git(store), line)
    _move(old, new)
    for tree in (new, *build.glob("roll/*/vllm")):
        point_at(store, tree / ".git")
    say(f"moved {old} to {new}, edits and all; other folders of {shared} may be deleted")


def _move(old: Path, new: Path) -> None:
    if os.path.lexists(old) and not os.path.lexists(new):
        old.rename(new)


def _rename_exports(store: Git, line: str) -> None:
    """Let the heads of exported topics be the line's."""
    for kind in ("upstream", "upstream-before"):
        listed = store.text("for-each-ref", "--format=%(objectname) %(refname)", f"refs/{kind}/")
        for head, _, ref in (row.partition(" ") for row in listed.splitlines()):
            topic = ref.removeprefix(f"refs/{kind}/")
            if "/" not in topic:
                moves = f"create refs/{kind}/{line}/{topic} {head}\ndelete {ref} {head}\n"
                store.run("update-ref", "--stdin", stdin=moves.encode())
