"""The work tree in which a conflict of a roll is solved, beside build/vllm.

It is a repository of its own with the store behind it. Its branch stands on
the series as far as it could be rolled; the next patch is laid over it with
its conflicts marked, so `git diff` there shows just what has to be solved.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from ci import targets
from ci.errors import Fault, listed
from ci.filediff import FileDiff
from ci.git import Git
from ci.layout import Layout
from ci.objects import show
from ci.placing import marked_lines
from ci.rolling import NOTE
from ci.store import ATTRIBUTES
from ci.trees import changes, file_diffs, read_contents, with_binaries

_BRANCH = "refs/heads/roll"


@dataclass(frozen=True)
class Open:
    """The patch that is being solved.

    Attributes:
        series: fingerprint of the series that is rolled.
        marked: the commit that holds the marked files.
    """

    patch: str
    series: str
    marked: str


@dataclass(frozen=True)
class RollWork:
    """One roll's work tree.

    Attributes:
        name: the target's, as the user calls it.
    """

    layout: Layout
    name: str

    @property
    def folder(self) -> Path:
        return targets.folder(self.layout, self.name)

    @property
    def command(self) -> str:
        """What goes on with it."""
        return f"nox -s roll -- {self.name} --continue"

    @property
    def root(self) -> Path:
        return self.folder / "vllm"

    @property
    def _state(self) -> Path:
        return self.folder / "open.json"

    def opened(self) -> Open | None:
        """What is being solved here, if anything."""
        if not self.root.is_dir() or not self._state.is_file():
            return None
        return Open(**json.loads(self._state.read_bytes()))

    def _view(self, root: Path) -> Git:
        """The files, with an index of our own."""
        return Git(root / ".git", work_tree=root, index=self.folder / "roll.index")

    def start(self, opened: Open, head: str) -> None:
        """Check `head` out, and lay the marked files over it.

        Raises:
            Fault: what is being solved here would be lost.
        """
        before = self.opened()
        if before is not None and before != opened and self.tree_now(before) is not None:
            raise Fault(
                f"{self.root} holds your resolution of {before.patch}",
                todo=f"go on with `{self.command}`, or leave it: `-- {self.name} --abort`",
            )
        if before == opened:
            return
        making = self.folder / "making"
        for left in (making, self.root):
            shutil.rmtree(left, ignore_errors=True)
        making.mkdir(parents=True)
        repo = Git(making / ".git", work_tree=making)
        repo.run("init", "-q", "--template=", cwd=making)
        info = making / ".git" / "objects" / "info"
        info.mkdir(exist_ok=True)
        up = os.path.relpath(self.layout.store / "objects", self.root / ".git" / "objects")
        # git reads it from where the repository is now as well as later: same depth.
        (info / "alternates").write_text(f"{up}\n")
        (making / ".git" / "info").mkdir(exist_ok=True)
        (making / ".git" / "info" / "attributes").write_bytes(ATTRIBUTES)
        repo.run("config", "gc.auto", "0")
        index = self.folder / "roll.index"
        index.unlink(missing_ok=True)
        self._view(making).run("read-tree", "-m", "-u", opened.marked)
        repo.run("update-ref", _BRANCH, head)
        repo.run("symbolic-ref", "HEAD", _BRANCH)
        repo.run("read-tree", head)
        self._state.write_text(json.dumps(asdict(opened)))
        making.rename(self.root)

    def tree_now(self, opened: Open) -> str | None:
        """The tree of the files as they lie there; None if nobody edited them."""
        view = self._view(self.root)
        view.run("read-tree", opened.marked)
        view.run("add", "-A", "--", ".")
        tree = view.text("write-tree")
        return None if tree == view.tree_of(opened.marked) else tree

    def solved(self, opened: Open) -> list[FileDiff]:
        """The changes from the marked files to the solved ones.

        Raises:
            Fault: a conflict is left, or nothing was done; names files and lines.
        """
        now = self.tree_now(opened)
        view = self._view(self.root)
        left = _left(view, opened.marked, now or opened.marked)
        if left:
            raise Fault(
                f"{len(left)} places in {self.root} are not solved yet",
                todo=f"edit them, then run `{self.command}`",
                details=listed(left),
            )
        assert now is not None
        before = view.tree_of(opened.marked)
        return with_binaries(view, file_diffs(view, [(before, now)])[0])

    def close(self) -> Path | None:
        """Take the work tree away; all that it held is in a resolution now.

        Returns:
            Where it lies if it held ignored files, which are in none.
        """
        self._state.unlink(missing_ok=True)
        view = self._view(self.root)
        if view.run("ls-files", "-z", "--others", "--ignored", "--exclude-standard"):
            return self._aside("solved")
        shutil.rmtree(self.root, ignore_errors=True)
        return None

    def _aside(self, how: str) -> Path:
        number = 1
        while (aside := self.folder / f"vllm.{how}-{number}").exists():
            number += 1
        return self.root.rename(aside)

    def abort(self) -> Path | None:
        """Leave what is being solved; edits are kept in a folder beside it."""
        opened = self.opened()
        if opened is None:
            return None
        if self.tree_now(opened) is not None:
            self._state.unlink()
            return self._aside("aborted")
        return self.close()


def _left(view: Git, marked: str, now: str) -> list[str]:
    """Where a conflict is still marked: `file:line`."""
    parent = view.text("rev-parse", f"{_BRANCH}^{{tree}}")
    entries = {raw.path: raw.new for raw in changes(view, parent, now) if raw.new}
    contents = read_contents(view, entries.values())
    found = []
    for path, entry in entries.items():
        data = contents[entry].data
        if path.endswith(NOTE):
            found.append(f"{show(path)}: find a place for this change, then delete this file")
        else:
            found += [f"{show(path)}:{number}" for number in marked_lines(data)]
    return found
