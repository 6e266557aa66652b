"""The work tree in which the conflicts of one patch are solved.

It is a repository of its own over the store's objects. Its branch stands on the
patches that have a place; the next one is laid over it with its conflicts
marked, so `git diff` there shows just what has to be solved.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from ci.core.content import show
from ci.core.errors import Fault, listed
from ci.core.progress import say
from ci.git.repo import Git
from ci.git.store import repository_over
from ci.git.trees import changes, read_contents
from ci.roll.attempt import NOTE, Rolled
from ci.roll.merging import marked_lines
from ci.series import compose as composing
from ci.series import resolutions
from ci.series.compose import BaseTree
from ci.series.diff import FileDiff
from ci.series.from_git import file_diffs

_BRANCH = "refs/heads/roll"


@dataclass(frozen=True)
class Open:
    """The patch that is being solved.

    Attributes:
        series: fingerprint of the series that it is from.
        marked: the commit that holds the marked files.
    """

    patch: str
    series: str
    marked: str


def open_patch(folder: Path) -> Open | None:
    """What is being solved in a folder of `ConflictTree`, if anything."""
    state = folder / "open.json"
    if not (folder / "vllm").is_dir() or not state.is_file():
        return None
    return Open(**json.loads(state.read_bytes()))


@dataclass(frozen=True)
class ConflictTree:
    """Where the conflicts of one roll (or of another attempt) are solved.

    Attributes:
        folder: holds the work tree and what is noted of it.
        command: what the user runs for this attempt, without its options.
    """

    folder: Path
    store: Git
    command: str

    @property
    def root(self) -> Path:
        return self.folder / "vllm"

    def opened(self) -> Open:
        """The patch that is being solved here.

        Raises:
            Fault: there is none.
        """
        opened = open_patch(self.folder)
        if opened is None:
            raise Fault(f"no patch is open in {self.folder}", todo=f"run `{self.command}`")
        return opened

    def _view(self, root: Path) -> Git:
        """The files, with an index of our own."""
        return Git(root / ".git", work_tree=root, index=self.folder / "roll.index")

    def lay_out(self, base: BaseTree, rolled: Rolled) -> str:
        """Lay the first open patch out for solving; what to tell the user.

        Args:
            base: what the patches were tried on.

        Raises:
            Fault: another patch is being solved here, and would be lost.
        """
        stuck = rolled.stuck
        assert stuck is not None
        done = composing.write(self.store, base, rolled.planned[: stuck.done])
        head = done[-1].id if done else base.commit
        on = BaseTree(head, self.store.tree_of(head), {})
        (commit,) = composing.write(self.store, on, [stuck.marked])
        self._start(Open(stuck.marked.patch.name, rolled.report.series, commit.id), head)
        return (
            f"{stuck.marked.patch.file} is open: its conflicts are marked in {self.root}\n"
            f"solve them there, then run `{self.command} --continue`"
        )

    def _start(self, opened: Open, head: str) -> None:
        """Check `head` out, and lay the marked files over it."""
        before = open_patch(self.folder)
        if before == opened:
            return
        if before is not None and self._tree_now(before) is not None:
            raise Fault(
                f"{self.root} holds your resolution of {before.patch}",
                todo=f"go on with `{self.command} --continue`, or leave it: --abort",
            )
        making = self.folder / "making"
        for left in (making, self.root):
            shutil.rmtree(left, ignore_errors=True)
        making.mkdir(parents=True)
        repo = repository_over(self.store.git_dir, making, _BRANCH.rpartition("/")[2])
        (self.folder / "roll.index").unlink(missing_ok=True)
        self._view(making).run("read-tree", "-m", "-u", opened.marked)
        repo.run("update-ref", _BRANCH, head)
        repo.run("read-tree", head)
        self.store.run("update-ref", f"refs/roll-open/{opened.marked}", opened.marked)
        (self.folder / "open.json").write_text(json.dumps(asdict(opened)))
        making.rename(self.root)

    def _tree_now(self, opened: Open) -> str | None:
        """The tree of the files as they lie there; None if nobody edited them."""
        view = self._view(self.root)
        view.run("read-tree", opened.marked)
        view.run("add", "-A", "--", ".")
        tree = view.text("write-tree")
        return None if tree == view.tree_of(opened.marked) else tree

    def take_solved(self, kept: Path, target: str, series: str) -> Path:
        """Keep how the open patch was solved, and take the work tree away.

        Args:
            kept: the folder of the resolutions.
            target: what the patches were tried on, for the resolution's name.
            series: fingerprint of the series as it is now.

        Raises:
            Fault: nothing is open, the series changed since, or a conflict is left.
        """
        opened = self.opened()
        if opened.series != series:
            raise Fault(
                f"the series changed since {opened.patch} was laid out in {self.root}",
                todo=f"leave it (`{self.command} --abort` keeps your edits) and roll again",
            )
        path = resolutions.save(kept, opened.patch, target, self._solved(opened))
        aside = self._leave("solved", edited=False)
        if aside:
            say(f"the work tree held ignored files: everything in it is kept in {aside}")
        return path

    def _solved(self, opened: Open) -> list[FileDiff]:
        """The changes from the marked files to the solved ones."""
        now = self._tree_now(opened) or opened.marked
        view = self._view(self.root)
        left = _left(view, now)
        if left:
            raise Fault(
                f"{len(left)} conflicts in {self.root} are not solved yet",
                todo=f"edit them, then run `{self.command} --continue`",
                details=listed(left),
            )
        before = view.tree_of(opened.marked)
        return list(file_diffs(view, [(before, now)])[0])

    def abort(self) -> Path | None:
        """Leave what is being solved; where the user's edits are kept, if there are any."""
        return self._leave("aborted", edited=self._tree_now(self.opened()) is not None)

    def _leave(self, how: str, *, edited: bool) -> Path | None:
        """Take the work tree away, or put it aside where it holds what is nowhere else."""
        self.store.run("update-ref", "-d", f"refs/roll-open/{self.opened().marked}")
        (self.folder / "open.json").unlink()
        view = self._view(self.root)
        ignored = view.run("ls-files", "-z", "--others", "--ignored", "--exclude-standard")
        if not edited and not ignored:
            shutil.rmtree(self.root, ignore_errors=True)
            return None
        number = 1
        while (aside := self.folder / f"vllm.{how}-{number}").exists():
            number += 1
        return self.root.rename(aside)


def _left(view: Git, now: str) -> list[str]:
    """Where a conflict is still marked: `file:line`."""
    entries = {raw.path: raw.new for raw in changes(view, _BRANCH, now) if raw.new}
    contents = read_contents(view, entries.values())
    found = []
    for path, entry in entries.items():
        if path.endswith(NOTE):
            found.append(f"{show(path)}: find a place for this change, then delete this file")
        else:
            found += [f"{show(path)}:{number}" for number in marked_lines(contents[entry].data)]
    return found
