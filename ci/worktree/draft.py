"""Taking edits of the last tree back into the patches that they belong to.

A `Draft` is a series in memory: its patches, every version of each upstream
file that they touch, and the overlay. An edit of the last version is given to
a patch by changing that patch's version and every later one at the place
where the edit's lines are there; the last version then is what the user has.
Where a later patch touches the same lines, there is no such place, and the
edit is left to the user to route.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ci.core.content import Content, show, split_lines
from ci.series.message import Message
from ci.series.model import Patch
from ci.series.patch import AUTHOR
from ci.worktree import blame as linemap
from ci.worktree.blame import Block
from ci.worktree.renamed import Renames, find_renames


@dataclass(frozen=True)
class Edit:
    """One path that the user changed, as it was and as it is."""

    path: bytes
    old: Content | None
    new: Content | None


@dataclass(frozen=True)
class Routed:
    """Where a change goes.

    Attributes:
        what: the change, for a person: path and lines.
        home: index of the patch, None if there is no single one.
        why: what keeps it from having a home.
    """

    what: str
    home: int | None
    why: str = ""


@dataclass
class DraftPatch:
    """A patch while its series is worked on."""

    entry: Patch
    message: Message
    date: str
    author: str = AUTHOR


@dataclass
class Draft:
    """A series while it is worked on.

    Attributes:
        versions: for each upstream path that matters, what it is before the
            first patch and after each one.
        overlay: owner and content of each overlay file.
        line: the line that the series is of.
        routed: what was done so far, and what could not be.
    """

    patches: list[DraftPatch]
    versions: dict[bytes, list[Content | None]]
    overlay: dict[bytes, tuple[int, Content]]
    base: frozenset[bytes]
    line: str
    routed: list[Routed] = field(default_factory=list)

    @property
    def unassigned(self) -> list[Routed]:
        return [one for one in self.routed if one.home is None]

    def append(self, patch: DraftPatch) -> int:
        """Add a patch that changes nothing yet; its index."""
        self.patches.append(patch)
        for versions in self.versions.values():
            versions.append(versions[-1])
        return len(self.patches) - 1

    def history(self, path: bytes, old: Content | None) -> list[Content | None]:
        """The versions of an upstream file; of one that no patch touches, all the same."""
        return self.versions.setdefault(path, [old] * (len(self.patches) + 1))

    def touching(self, path: bytes) -> list[int]:
        """The patches that change an upstream file."""
        versions = self.versions[path]
        return [i for i in range(len(self.patches)) if versions[i] != versions[i + 1]]

    # -- taking edits in -----------------------------------------------------------

    def take(self, edits: Sequence[Edit], target: int | None, fallback: int | None) -> None:
        """Take one step of edits.

        Args:
            target: the patch that they are meant for, None to find out.
            fallback: where to put what has no home of its own.
        """
        owners = {path: owner for path, (owner, _) in self.overlay.items()}
        renames = self._renames(edits)
        for edit in edits:
            if edit.path in self.base:
                self._take_upstream(edit, target, fallback)
            else:
                self._take_overlay(edit, target, fallback, renames, owners)

    def _say(self, what: str, home: int | None, why: str = "") -> None:
        self.routed.append(Routed(what, home, why))

    # -- overlay ----------------------------------------------------------------------

    def _renames(self, edits: Sequence[Edit]) -> Renames:
        gone = {e.path: e.old for e in edits if e.old and not e.new and e.path in self.overlay}
        known = self.base | set(self.overlay)
        fresh = {e.path: e.new for e in edits if e.new and e.path not in known}
        return find_renames(gone, fresh, {path: self.overlay[path][0] for path in gone})

    def _take_overlay(
        self,
        edit: Edit,
        target: int | None,
        fallback: int | None,
        renames: Renames,
        owners: Mapping[bytes, int],
    ) -> None:
        name = f"overlay/{self.line}/{show(edit.path)}"
        if edit.new is None:
            if edit.path in self.overlay:
                self._say(f"{name} (deleted)", self.overlay.pop(edit.path)[0])
            return
        before = renames.was.get(edit.path)
        if edit.path in self.overlay:
            home: int | None = self.overlay[edit.path][0]
        elif before is not None:
            home = owners[before]
            name += f" (was {show(before)})"
        else:
            home = target if target is not None else fallback
            name += " (new file)"
        if home is None:
            doubts = renames.doubts.get(edit.path, ())
            could = ", ".join(f"{show(old)} of {self._name(owners[old])}" for old in doubts)
            self._say(name, None, f"may have been {could}" if could else "no patch adds it yet")
            return
        self.overlay[edit.path] = (home, edit.new)
        self._say(name, home)

    # -- upstream files -----------------------------------------------------------------

    def _take_upstream(self, edit: Edit, target: int | None, fallback: int | None) -> None:
        versions = self.history(edit.path, edit.old)
        assert versions[-1] == edit.old
        old, new = edit.old, edit.new
        if old is None or new is None or not (old.is_text and new.is_text):
            self._take_whole(edit, target, fallback)
            return
        if old.mode != new.mode:
            self._take_mode(edit.path, new.mode, target, fallback)
        if old.data != new.data:
            self._take_lines(edit.path, new, target, fallback)

    def _take_whole(self, edit: Edit, target: int | None, fallback: int | None) -> None:
        """A file that comes, goes, or is no text: given to one patch as it is."""
        touching = self.touching(edit.path)
        home = target if target is not None else _single(touching, fallback)
        what = f"{show(edit.path)} ({'deleted' if edit.new is None else 'the whole file'})"
        self._from_here_on(edit.path, what, home, touching, "file", lambda _: edit.new)

    def _take_mode(self, path: bytes, mode: str, target: int | None, fallback: int | None) -> None:
        modes = [content.mode if content else None for content in self.versions[path]]
        changing = [i for i in range(len(self.patches)) if modes[i] != modes[i + 1]]
        home = target
        if home is None:
            home = _single(changing or self.touching(path), fallback)
        what = f"{show(path)} (mode {mode})"
        self._from_here_on(
            path, what, home, changing, "mode", lambda now: now and Content(mode, now.data)
        )

    def _from_here_on(
        self,
        path: bytes,
        what: str,
        home: int | None,
        changing: Sequence[int],
        part: str,
        change: Callable[[Content | None], Content | None],
    ) -> None:
        """Change every version from a patch on, where no later one changes the same.

        Args:
            changing: the patches that change this part of the file.
        """
        if home is None:
            self._say(what, None, _blame(self.touching(path), self.patches))
            return
        later = [i for i in changing if i > home]
        if later:
            self._say(what, None, f"{self._name(later[0])} changes the {part} too, later")
            return
        versions = self.versions[path]
        versions[home + 1 :] = [change(content) for content in versions[home + 1 :]]
        self._say(what, home)

    def _take_lines(
        self, path: bytes, new: Content, target: int | None, fallback: int | None
    ) -> None:
        """Line edits: each run of lines finds its own home."""
        start, texts = self._texts(path)
        wanted = split_lines(new.data)
        changed = linemap.blocks(texts[-1], wanted)
        blame = linemap.owners(texts)
        steps = [linemap.blocks(a, b) for a, b in itertools.pairwise(texts)]
        runs: list[list[tuple[int, int, list[bytes]]]] = [[] for _ in texts]
        for block in changed:
            said = blame.of(block.old_start, block.old_end)
            # What is there at the first of these versions is upstream's, unless
            # a patch made the file again.
            owners = sorted(owner + start - 1 for owner in said if owner or start)
            home = target if target is not None else _single(owners, fallback)
            what = f"{show(path)}: {_lines(block)}"
            if home is None:
                self._say(what, None, _blame(owners, self.patches))
                continue
            placed = _places(steps, block, home + 1 - start)
            if isinstance(placed, int):
                blocker = self._name(placed + start)
                self._say(what, None, f"{blocker} changes the same lines, after {home + 1:04d}")
                continue
            lines = wanted[block.new_start : block.new_end]
            for step, (first, last) in placed.items():
                runs[step].append((first, last, lines))
            self._say(what, home)
        self._write(path, start, texts, runs)

    def _texts(self, path: bytes) -> tuple[int, list[list[bytes]]]:
        """The lines of the versions from the last one back, as far as each is
        text and there; and the step at which they begin."""
        versions = self.versions[path]
        start = len(versions) - 1
        while start > 0:
            before = versions[start - 1]
            if before is None or not before.is_text:
                break
            start -= 1
        return start, [split_lines(content.data) for content in versions[start:] if content]

    def _write(
        self,
        path: bytes,
        start: int,
        texts: list[list[bytes]],
        runs: list[list[tuple[int, int, list[bytes]]]],
    ) -> None:
        versions = self.versions[path]
        for step, replaced in enumerate(runs):
            content = versions[start + step]
            if replaced and content is not None:
                data = b"".join(linemap.replace_runs(texts[step], replaced))
                versions[start + step] = Content(content.mode, data)

    def _name(self, index: int) -> str:
        return f"{index + 1:04d} ({self.patches[index].message.subject})"


def _places(
    steps: Sequence[Sequence[Block]], block: Block, first: int
) -> dict[int, tuple[int, int]] | int:
    """Where a block lies in each version from `first` to the last.

    Returns:
        Or the index of the step that is in between.
    """
    if first < 0:
        return -1
    at = (block.old_start, block.old_end)
    places = {len(steps): at}
    for step in range(len(steps), first, -1):
        before = linemap.back(steps[step - 1], *at)
        if before is None:
            return step - 1
        places[step - 1] = at = before
    return places


def _single(owners: Sequence[int], fallback: int | None) -> int | None:
    return owners[0] if len(owners) == 1 else fallback


def _blame(owners: Sequence[int], patches: Sequence[DraftPatch]) -> str:
    if not owners:
        return "no patch touches this"
    names = ", ".join(f"{i + 1:04d} ({patches[i].message.subject})" for i in owners)
    return f"several patches touch this: {names}"


def _lines(block: Block) -> str:
    if block.is_insertion:
        return f"new lines after line {block.old_start}"
    if block.old_end - block.old_start == 1:
        return f"line {block.old_end}"
    return f"lines {block.old_start + 1}-{block.old_end}"
