"""What the user did in the work tree, taken into a draft of the series.

It is read as steps: each commit, then what is not committed. Commits on top
of the applied head go to the patch that their title names, or become patches;
where the series' own commits were rewritten, the draft is made anew of them.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ci.core.content import MODES, Content, show
from ci.core.errors import Fault
from ci.git.repo import Git
from ci.git.trees import changes, read_contents
from ci.series.compose import Composed, Planned
from ci.series.from_git import CommitInfo, read_commits
from ci.series.message import Message, check_message
from ci.series.model import Patch, Series, SeriesFiles
from ci.series.patch import file_name
from ci.worktree import rebased
from ci.worktree.draft import Draft, DraftPatch, Edit
from ci.worktree.tree import State, WorkTree

_LARGEST = 16 << 20
"""Sources are smaller; what is larger was left there by mistake."""

_MARK = re.compile(r"(fixup|squash|amend)! ")


@dataclass(frozen=True)
class Options:
    """What the user asks of a refresh.

    Attributes:
        to: the patch for unassigned edits.
        new: the title of a new patch for what is not committed.
        topic: that of new patches.
        dry_run: show where each edit would go, and write nothing.
        drop_empty: take out patches that nothing is left of.
    """

    to: str | None = None
    new: str | None = None
    topic: str | None = None
    dry_run: bool = False
    drop_empty: bool = False


@dataclass(frozen=True)
class Taken:
    """Everything that the user did, taken into a draft.

    Attributes:
        tree: the tree that the user has now.
        rewritten: the series' own commits were replaced.
        remarks: what was done to the patches.
    """

    draft: Draft
    tree: str
    rewritten: bool
    remarks: tuple[str, ...]


# --- what the user did ------------------------------------------------------------


def _own_commits(tree: WorkTree, state: State, base: str) -> tuple[list[CommitInfo], bool]:
    """The user's commits, oldest first: those on top of the applied head, or,
    where that was rewritten, all from the base; and whether it was."""
    assert state.applied is not None
    if state.head is None:
        raise Fault(f"{tree.root} has no commit checked out", todo="git switch series")
    if state.head == state.applied:
        return [], False
    start = next((c for c in (state.applied, base) if tree.repo.is_ancestor(c, state.head)), None)
    if start is None:
        raise Fault(
            f"the commits in {tree.root} do not stand on the pinned vLLM",
            todo="`git rebase --onto refs/series/applied START` brings over what comes after "
            "START; `nox -s apply -- --discard` goes back to the series (a backup is kept)",
        )
    words = ("rev-list", "--reverse", "--topo-order", state.head, f"^{start}")
    commits = read_commits(tree.repo, tree.repo.run(*words).decode().split())
    for commit in commits:
        if len(commit.parents) != 1:
            raise Fault(
                f"{commit.id[:12]} ({commit.message.subject}) is a merge",
                todo="rebase your commits into a line",
            )
    return commits, start != state.applied


def _edits(view: Git, old: str, new: str) -> list[Edit]:
    raw = changes(view, old, new) if old != new else []
    for one in raw:
        if one.new and one.new.mode not in MODES:
            raise Fault(
                f"{show(one.path)} is a submodule, which a series cannot hold",
                todo="take it out of your commits",
            )
    contents = read_contents(view, [e for one in raw for e in (one.old, one.new) if e])
    return [
        Edit(one.path, one.old and contents[one.old], one.new and contents[one.new]) for one in raw
    ]


def draft_of(planned: Sequence[Planned], composed: Composed, store: Git, line: str) -> Draft:
    """The series of a line as it is."""
    base = composed.base.entries
    touched = {p for one in planned for p in one.changes if p in base}
    contents = read_contents(store, [base[path] for path in touched])
    versions: dict[bytes, list[Content | None]] = {}
    for path in touched:
        versions[path] = [contents[base[path]]]
        for one in planned:
            versions[path].append(one.changes.get(path, versions[path][-1]))
    overlay = {
        path: (index, content)
        for index, one in enumerate(planned)
        for path, content in one.changes.items()
        if path not in base and content is not None
    }
    patches = [
        DraftPatch(one.patch, one.parsed.message, one.parsed.date, one.parsed.author)
        for one in planned
    ]
    return Draft(patches, versions, overlay, frozenset(base), line)


# --- where it goes ------------------------------------------------------------------


@dataclass(frozen=True)
class _Taking:
    """The user's steps on their way into a draft.

    Attributes:
        view: sees the user's objects.
    """

    draft: Draft
    view: Git
    composed: Composed
    series: Series
    options: Options

    def commit(self, commit: CommitInfo, before: str) -> None:
        """Take a commit to the patch that it names, or make it one."""
        if _MARK.match(commit.message.subject):
            target = self._named(commit)
            self._reword(target, commit)
        else:
            target = self._new(commit.message, commit.date, self.options.topic)
        self.draft.take(_edits(self.view, before, commit.tree), target, None)

    def files(self, edits: Sequence[Edit]) -> None:
        """Take what is not committed."""
        target = None
        to, title = self.options.to, self.options.new
        fallback = self.series.find(to) if to is not None else None
        if title is not None and edits:
            now = f"{int(os.environ.get('SOURCE_DATE_EPOCH') or time.time())} +0000"
            target = self._new(Message(title, ""), now, self.options.topic)
        self.draft.take(edits, target, fallback)

    def rewritten(self, planned: Sequence[Planned], commits: Sequence[CommitInfo]) -> list[str]:
        """Make the draft anew from commits that took the place of the series' own.

        Returns:
            What was done to the patches.
        """
        before = [self.composed.base.tree, *(commit.tree for commit in commits)]
        plain = [i for i, one in enumerate(commits) if not _MARK.match(one.message.subject)]
        real = [commits[i] for i in plain]
        trees = [before[i] for i in plain]
        matched = rebased.match(self.view, planned, self.composed, trees, real)
        if not self.options.drop_empty:
            rebased.check_missing(matched, planned, real)
        homes = dict(zip(plain, matched.patches, strict=True))
        sources = {plain[number]: index for number, index in matched.parts.items()}
        # What stands for each patch that was taken out or split, so far.
        instead: dict[str, list[str]] = {planned[i].patch.name: [] for i in matched.missing}
        for number, commit in enumerate(commits):
            edits = _edits(self.view, before[number], commit.tree)
            if number in sources:
                self._part(commit, edits, planned[sources[number]].patch, instead)
            elif (index := homes.get(number)) is not None:
                self._rewritten_one(commit, edits, planned[index], instead)
            else:
                self.commit(commit, before[number])
        rebased.check_order([patch.entry for patch in self.draft.patches])
        return list(rebased.notes(matched, planned, real, self.options.topic))

    def _part(
        self,
        commit: CommitInfo,
        edits: Sequence[Edit],
        source: Patch,
        instead: dict[str, list[str]],
    ) -> None:
        """Take a commit that was split off a patch."""
        topic = self.options.topic or source.topic
        target = self._new(commit.message, commit.date, topic, _needs(source, instead))
        name = self.draft.patches[target].entry.name
        instead.setdefault(source.name, [source.name]).append(name)
        self.draft.take(edits, target, None)

    def _rewritten_one(
        self,
        commit: CommitInfo,
        edits: Sequence[Edit],
        old: Planned,
        instead: Mapping[str, Sequence[str]],
    ) -> None:
        """Take a commit that is a patch of the series."""
        entry = replace(old.patch, needs=_needs(old.patch, instead))
        made = DraftPatch(entry, commit.message, old.parsed.date, old.parsed.author)
        target = self.draft.append(made)
        said = len(self.draft.routed)
        self.draft.take(edits, target, None)
        # What is its own still needs no word.
        new = self.draft.routed[said:]
        self.draft.routed[said:] = [one for one in new if one.home != target]

    def _named(self, commit: CommitInfo) -> int:
        """The patch that a fixup!, squash! or amend! commit names."""
        wanted = commit.message.subject
        while _MARK.match(wanted):
            wanted = _MARK.sub("", wanted, count=1)
        subjects = [patch.message.subject for patch in self.draft.patches]
        exact = [i for i, subject in enumerate(subjects) if subject == wanted]
        if exact:
            return exact[-1]
        begins = [i for i, subject in enumerate(subjects) if wanted and subject.startswith(wanted)]
        if len(begins) == 1:
            return begins[0]
        files = [
            locked.file
            for one, locked in zip(self.composed.commits, self.composed.lock.patches, strict=True)
            if re.fullmatch(r"[0-9a-f]{7,40}", wanted) and one.id.startswith(wanted)
        ]
        ids = [i for i, patch in enumerate(self.draft.patches) if patch.entry.file in files]
        if len(ids) == 1:
            return ids[0]
        raise Fault(
            f"{commit.id[:12]} ({commit.message.subject}) names no patch of the series",
            todo="git commit --amend with `fixup! ` and the subject of one of these",
            details=tuple(subjects),
        )

    def _reword(self, target: int, commit: CommitInfo) -> None:
        """Take a squash! or amend! commit's words into its patch's message."""
        patch, body = self.draft.patches[target], commit.message.body
        if commit.message.subject.startswith("amend! ") and body:
            patch.message = Message.from_commit(body.encode())
        elif commit.message.subject.startswith("squash! ") and body:
            whole = f"{patch.message.body}\n\n{body}".strip()
            patch.message = Message(patch.message.subject, whole)

    def _new(
        self, message: Message, date: str, topic: str | None, needs: tuple[str, ...] = ()
    ) -> int:
        """Add a patch; without a topic it gets the last patch's, or the only one."""
        check_message(message, f"`{message.subject}`")
        known = [one.name for one in self.series.topics]
        name = topic or ""
        if not topic and self.draft.patches:
            name = self.draft.patches[-1].entry.topic
        elif not topic and len(known) == 1:
            name = known[0]
        if name not in known:
            raise Fault(
                f"series.toml has no topic {name}" if name else "which topic is not clear",
                todo="name one with `-- --topic NAME`, or add a [[topic]] to series.toml",
                details=tuple(known),
            )
        # Its name is what other patches' `needs` may call it by, until it is written.
        file = file_name(len(self.draft.patches) + 1, message.subject)
        return self.draft.append(DraftPatch(Patch(file, name, needs=needs), message, date))


def _needs(patch: Patch, instead: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """What a patch needs, where others stand for some of it."""
    names = [name for need in patch.needs for name in instead.get(need, [need])]
    return tuple(dict.fromkeys(names))


def collect_edits(
    store: Git,
    tree: WorkTree,
    state: State,
    planned: Sequence[Planned],
    composed: Composed,
    files: SeriesFiles,
    options: Options,
) -> Taken:
    """Take every step into a draft."""
    view = tree.view()
    commits, anew = _own_commits(tree, state, composed.base.commit)
    draft = draft_of([] if anew else planned, composed, store, files.line)
    taking = _Taking(draft, view, composed, files.series, options)
    remarks: list[str] = []
    before = composed.tree
    if anew:
        rebased.check_age(store, composed, commits)
        remarks = taking.rewritten(planned, commits)
    for commit in commits:
        if not anew:
            taking.commit(commit, before)
        before = commit.tree
    seen = tree.look(composed.tree)
    # What .gitignore covers counts where the user has committed or staged it.
    held = [before, tree.staged(composed.tree) or before]
    more = [raw.path for one in held for raw in changes(view, composed.tree, one) if raw.new]
    now = tree.write_tree(composed.tree, seen, more, _LARGEST)
    taking.files(_edits(view, before, now))
    known = {one.parsed.author for one in planned}
    people = [c.author for c in commits if not _MARK.match(c.message.subject)]
    note = rebased.authors_note([who for who in people if who not in known])
    return Taken(draft, now, anew, (*remarks, *([note] if note else [])))
