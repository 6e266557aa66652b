"""The series on another vLLM, worked out in memory: a verdict for every patch.

A pure function of the series, the two trees and the earlier resolutions. Nothing
of the checkout or of a work tree is touched, so it can be asked again at any
time and a roll has no state of its own that could go stale.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace

from ci.core.content import SYMLINK, Content, likeness, show, split_lines
from ci.git.repo import Git
from ci.git.trees import read_contents
from ci.roll import place as placing
from ci.roll.merging import MARKS, marked_lines, merge
from ci.roll.renames import Renames
from ci.roll.verdict import FileVerdict, HunkVerdict, Near, Outcome, PatchVerdict, Report, of_hunks
from ci.series import diff as filediff
from ci.series import hunks
from ci.series.compose import BaseTree, Planned, plan
from ci.series.diff import FileDiff
from ci.series.hunks import DoesNotApply
from ci.series.model import SeriesFiles
from ci.series.resolutions import Resolution

Changes = dict[bytes, "Content | None"]

NOTE = b".conflict"
"""Ending of the file that stands, in a roll's work tree, for a change that has
no place: it holds the change, and goes when the change has found one."""


@dataclass(frozen=True)
class Stuck:
    """The first patch that a person has to decide on.

    Attributes:
        done: how many patches of `Rolled.planned` come before it.
        marked: it, with its files as far as they could be placed, and conflicts marked.
    """

    done: int
    marked: Planned


@dataclass(frozen=True)
class Rolled:
    """What a roll gives.

    Attributes:
        planned: the patches that still change something, on the other vLLM.
        dropped: names of those that have nothing left to change: they are
            upstream altogether, or were solved so.
    """

    report: Report
    planned: tuple[Planned, ...]
    dropped: tuple[str, ...]
    stuck: Stuck | None


@dataclass
class _One:
    """One patch while it is worked out."""

    changes: Changes = field(default_factory=dict)
    marked: Changes = field(default_factory=dict)
    files: list[FileVerdict] = field(default_factory=list)

    def record(self, path: bytes, content: Content | None, verdict: FileVerdict) -> None:
        self.changes[path] = self.marked[path] = content
        self.files.append(verdict)


class _Side:
    """One of the two vLLMs, as patch after patch brings it forward."""

    def __init__(self, store: Git, base: BaseTree) -> None:
        self._store, self.base = store, base
        self.changes: Changes = {}

    def pristine(self, path: bytes) -> Content | None:
        """A file before the series."""
        entry = self.base.entries.get(path)
        return read_contents(self._store, [entry])[entry] if entry else None

    def read(self, path: bytes) -> Content | None:
        """A file with the series so far."""
        if path not in self.changes:
            self.changes[path] = self.pristine(path)
        return self.changes[path]


class _Roll:
    """A series on its way from one vLLM to another."""

    def __init__(
        self, store: Git, old: BaseTree, new: BaseTree, resolutions: Sequence[Resolution]
    ) -> None:
        self.store = store
        self.old, self.new = _Side(store, old), _Side(store, new)
        self.resolutions = resolutions
        self.open: dict[bytes, str] = {}
        self._renames = Renames(store, old, new)

    def where(self, path: bytes) -> bytes:
        """The path that a file has on the other vLLM; its own where it is gone."""
        return self._renames.of(path) or path

    # -- one patch -------------------------------------------------------------

    def take(self, planned: Planned) -> tuple[_One, PatchVerdict]:
        """Work one patch out and bring both trees forward."""
        one = _One()
        after = self._stands_on(planned)
        for diff in planned.parsed.files:
            self._take_file(one, diff, planned.changes[diff.path])
        for name in planned.patch.overlay:
            content = planned.changes[name.encode("utf-8")]
            assert content is not None
            self._take_overlay(one, name.encode("utf-8"), content)
        self._use_resolution(one, planned.patch.name)
        one.changes = {p: c for p, c in one.changes.items() if c != self.new.read(p)}
        outcome = _outcome(one.files)
        verdict = PatchVerdict(planned.patch.file, outcome, tuple(one.files), after)
        self.old.changes.update(planned.changes)
        self.new.changes.update(one.changes)
        if outcome.open:
            for path in (*one.changes, *(diff.path for diff in planned.parsed.files)):
                self.open.setdefault(path, planned.patch.file)
        return one, verdict

    def _stands_on(self, planned: Planned) -> str:
        for diff in planned.parsed.files:
            for path in (diff.path, self.where(diff.path)):
                if path in self.open:
                    return self.open[path]
        return ""

    def _take_file(self, one: _One, diff: FileDiff, after: Content | None) -> None:
        before = self.old.read(diff.path)
        path = self.where(diff.path)
        now = self.new.read(path)
        renamed = show(path) if path != diff.path else ""
        verdict = FileVerdict(show(diff.path), Outcome.CLEAN, now=renamed)
        assert before is not None
        if now == after:
            one.record(path, now, _all(verdict, diff, Outcome.UPSTREAM))
        elif now is None:
            self._gone(one, diff, verdict)
        elif now == before:
            moved = Outcome.MOVED if renamed else Outcome.CLEAN
            one.record(path, after, _all(verdict, diff, moved))
        elif after is None or not (before.is_text and now.is_text and after.is_text):
            note = "upstream changed the file that the patch deletes"
            if after is not None:
                note = _no_text(before, now, after)
            verdict = replace(verdict, outcome=Outcome.CONFLICT, note=note)
            one.record(path, now, verdict)
            one.marked[path + NOTE] = _note(diff, b"changed this file")
        else:
            self._place(one, diff, path, before, after, now, verdict)

    def _gone(self, one: _One, diff: FileDiff, verdict: FileVerdict) -> None:
        found = [self._elsewhere(hunk.old_lines, diff.path) for hunk in diff.hunks]
        verdicts = tuple(
            HunkVerdict(n, hunk.title, Outcome.DELETED, nearest=near)
            for n, (hunk, near) in enumerate(zip(diff.hunks, found, strict=True), 1)
        )
        names = self._renames.rivals(diff.path)
        note = f"perhaps renamed to {' or '.join(map(show, names))}: not certain" if names else ""
        one.files.append(replace(verdict, outcome=Outcome.DELETED, note=note, hunks=verdicts))
        one.marked[diff.path + NOTE] = _note(diff, b"deleted this file")

    def _place(
        self,
        one: _One,
        diff: FileDiff,
        path: bytes,
        before: Content,
        after: Content,
        now: Content,
        verdict: FileVerdict,
    ) -> None:
        placed = placing.place(self.store, diff, before, now)
        mode = after.mode if after.mode != before.mode else now.mode
        found = tuple(self._with_place(hunk, diff, n) for n, hunk in enumerate(placed.hunks))
        outcome = of_hunks(hunk.outcome for hunk in found)
        if outcome is Outcome.CLEAN and verdict.now:
            outcome = Outcome.MOVED
        one.record(
            path, Content(mode, placed.content), replace(verdict, outcome=outcome, hunks=found)
        )
        if placed.marked is not None:
            one.marked[path] = Content(mode, placed.marked)
        if placed.homeless:
            left = replace(diff, hunks=placed.homeless)
            one.marked[path + NOTE] = _note(left, b"has no proven place for this change")

    def _with_place(self, verdict: HunkVerdict, diff: FileDiff, index: int) -> HunkVerdict:
        """A hunk in conflict, with where its lines went if they left the file."""
        near = verdict.nearest
        if verdict.outcome is not Outcome.CONFLICT or (near and near.agreeing * 2 > near.of):
            return verdict
        other = self._elsewhere(diff.hunks[index].old_lines, diff.path)
        better = other is not None and (near is None or other.agreeing > near.agreeing)
        return replace(verdict, nearest=other) if better else verdict

    def _elsewhere(self, wanted: list[bytes], path: bytes) -> Near | None:
        """The file of the other vLLM in which the most of these lines are."""
        lines = {line.strip() for line in wanted if len(line.strip()) >= 8}
        telling = sorted(lines, key=lambda line: (-len(line), line))[:3]
        found = _files_with(self.store, self.new.base.tree, telling, path) if telling else []
        best: Near | None = None
        for name in found:
            near, before = (self._near(side, name, wanted) for side in (self.new, self.old))
            # A sibling that always looked like it is no new home.
            least = max((one.agreeing for one in (before, best) if one), default=0)
            if near is not None and near.agreeing > least:
                best = near
        return best

    def _near(self, side: _Side, path: bytes, wanted: list[bytes]) -> Near | None:
        content = side.pristine(path)
        return placing.near(path, wanted, split_lines(content.data)) if content else None

    def _take_overlay(self, one: _One, path: bytes, content: Content) -> None:
        name = show(path)
        now = self.new.read(path)
        blocked = _blocked(self.new.base, path)
        if blocked:
            one.files.append(FileVerdict(name, Outcome.EXISTS, overlay=True, note=blocked))
            one.marked[path + NOTE] = _stands_for(b"has no place for this file", content.data)
        elif now is None:
            one.record(path, content, FileVerdict(name, Outcome.CLEAN, overlay=True))
        elif now == content:
            one.record(path, content, FileVerdict(name, Outcome.UPSTREAM, overlay=True, alike=1.0))
        else:
            alike = likeness(now.data, content.data)
            one.record(path, content, FileVerdict(name, Outcome.EXISTS, overlay=True, alike=alike))
            one.marked[path] = _both(self.store, now, content)

    # -- what was solved before ---------------------------------------------------

    def _use_resolution(self, one: _One, patch: str) -> None:
        if not _outcome(one.files).open:
            return
        fitting = [r for r in self.resolutions if r.patch == patch]
        found = [changes for r in fitting if (changes := self._solved(one, r)) is not None]
        # Two that fit and differ do not say which is meant.
        if found and all(changes == found[0] for changes in found):
            one.changes, one.marked = found[0], dict(found[0])
            one.files = [_remembered(file) for file in one.files]

    def _solved(self, one: _One, resolution: Resolution) -> Changes | None:
        """The patch's files with a resolution; None if it is for other conflicts."""
        changes = dict(one.marked)
        for diff in resolution.diffs:
            content = changes[diff.path] if diff.path in changes else self.new.read(diff.path)
            try:
                solved = hunks.apply_diff(diff, content, "resolution")
            except DoesNotApply:
                return None
            changes[diff.path] = solved
        left = [p for p, c in changes.items() if c and (p.endswith(NOTE) or marked_lines(c.data))]
        if left:
            return None
        return changes


def _outcome(files: Sequence[FileVerdict]) -> Outcome:
    return of_hunks(file.outcome for file in files)


def _no_text(before: Content, now: Content, after: Content) -> str:
    """Why a file's change cannot be merged by lines."""
    for content, where in ((now, "upstream"), (before, "as pinned"), (after, "in the patch")):
        if content.mode == SYMLINK:
            return f"a symbolic link {where}, to {show(content.data)}"
        if not content.is_text:
            return f"a binary file {where}"
    raise AssertionError("all three are text")


def _all(verdict: FileVerdict, diff: FileDiff, outcome: Outcome) -> FileVerdict:
    """One outcome for the file and each of its hunks."""
    found = tuple(
        HunkVerdict(n, hunk.title, outcome, hunk.old_start) for n, hunk in enumerate(diff.hunks, 1)
    )
    return replace(verdict, outcome=outcome, hunks=found)


def _remembered(file: FileVerdict) -> FileVerdict:
    if not file.outcome.open:
        return file
    found = tuple(
        replace(h, outcome=Outcome.REMEMBERED) if h.outcome.open else h for h in file.hunks
    )
    return replace(file, outcome=Outcome.REMEMBERED, hunks=found)


def _note(diff: FileDiff, what: bytes) -> Content:
    return _stands_for(what, filediff.render(diff))


def _stands_for(what: bytes, text: bytes) -> Content:
    head = MARKS[0] + b" upstream " + what + b"\n"
    body = text if text.endswith(b"\n") else text + b"\n"
    return Content("100644", head + body + MARKS[3] + b" patch\n")


def _both(git: Git, upstream: Content, ours: Content) -> Content:
    """Upstream's file and the overlay's in one, with marks where they differ."""
    if not (upstream.is_text and ours.is_text):
        return _stands_for(b"has another binary file here", b"")
    merged = merge(git, upstream.data, b"", ours.data, fine=True)
    return Content(ours.mode, merged.text(marked=True))


def _blocked(base: BaseTree, path: bytes) -> str:
    """Why a file cannot be where it is meant to be, if folders are in its way."""
    parts = path.split(b"/")
    for depth in range(1, len(parts)):
        above = b"/".join(parts[:depth])
        if above in base.entries:
            return f"{show(above)} is a file there"
    below = path + b"/"
    if any(name.startswith(below) for name in base.entries):
        return "is a folder there"
    return ""


def _files_with(
    store: Git, tree: str, lines: Sequence[bytes], like: bytes, most: int = 12
) -> list[bytes]:
    """Files of the same kind, below the same top folder, that hold one of `lines`.

    Those with the most such lines come first: they are the likeliest new home.
    """
    ending = like.rpartition(b".")[2] if b"." in like else b""
    top = like.partition(b"/")[0] + b"/" if b"/" in like else b""
    only = show(top + b"*" + (b"." + ending if ending else b""))
    feed = b"".join(line + b"\n" for line in lines)
    result = store.attempt(
        "grep", "-c", "-z", "--full-name", "-F", "-f", "-", tree, "--", only, stdin=feed
    )
    # Each answer is `TREE:PATH NUL COUNT newline`.
    found = [row.partition(b"\0") for row in result.out.split(b"\n") if row]
    ranked = sorted(found, key=lambda row: -int(row[2] or b"0"))
    return [name.partition(b":")[2] for name, _, _ in ranked][:most]


def roll(
    store: Git,
    old: BaseTree,
    new: BaseTree,
    files: SeriesFiles,
    names: tuple[str, str],
    resolutions: Sequence[Resolution] = (),
    only: Container[str] | None = None,
) -> Rolled:
    """Try a series, or some of its patches, on another tree.

    Each patch is moved from the tree before it in the series (`old` with all
    patches before it) to `new` with those that were moved before it.

    Args:
        old: what the series stands on.
        names: what the two are called in the report.
        only: names of the patches to try; the others are in `old` alone.

    Raises:
        Fault: the series does not even stand on `old`.
    """
    work = _Roll(store, old, new, resolutions)
    verdicts: list[PatchVerdict] = []
    planned: list[Planned] = []
    dropped: list[str] = []
    stuck: Stuck | None = None
    for one in plan(store, old, files):
        if only is not None and one.patch.name not in only:
            work.old.changes.update(one.changes)
            continue
        got, verdict = work.take(one)
        verdicts.append(verdict)
        if stuck is None and verdict.outcome.open:
            marked = replace(one, changes=got.marked, base={})
            stuck = Stuck(len(planned), marked)
        if not got.changes and not verdict.outcome.open:
            dropped.append(one.patch.name)
        else:
            planned.append(replace(one, changes=got.changes, base={}))
    report = Report(names[0], names[1], new.tree, files.fingerprint(), tuple(verdicts))
    return Rolled(report, tuple(planned), tuple(dropped), stuck)
