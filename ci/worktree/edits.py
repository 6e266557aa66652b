"""What the user did in build/vllm, taken into a draft of the series.

It is read as steps: each commit, then what is not committed. Commits on top
of the applied head go to the patch that their title names, or become patches;
where the series' own commits were rewritten, the draft is made anew of them.
"""

from __future__ import annotations

import argparse
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
from ci.series.message import Message, problems
from ci.series.model import Patch, Series, Topic
from ci.series.patch import file_name
from ci.worktree import rebased as rewritten
from ci.worktree.draft import Draft, DraftPatch, Edit
from ci.worktree.tree import State, WorkTree

_MARK = re.compile(r"(fixup|squash|amend)! ")


@dataclass(frozen=True)
class Taken:
    """Everything that the user did, taken into a draft.

    Attributes:
        tree: the tree that the user has now.
        rewritten: the series' own commits were replaced.
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
    ids = tree.repo.run(*words).decode().split()
    commits = read_commits(tree.repo, ids)
    for commit in commits:
        if len(commit.parents) != 1:
            raise Fault(
                f"{commit.id[:12]} ({commit.message.subject}) is a merge",
                todo="rebase your commits into a line",
            )
    return commits, start != state.applied


def _edits(view: Git, old: str, new: str) -> list[Edit]:
    if old == new:
        return []
    raw = changes(view, old, new)
    for one in raw:
        if one.new and one.new.mode not in MODES:
            raise Fault(
                f"{show(one.path)} is a submodule, which a series cannot hold",
                todo="take it out of your commits",
            )
    contents = read_contents(view, [e for one in raw for e in (one.old, one.new) if e])

    def content(entry: object) -> Content | None:
        return contents[entry] if entry else None  # type: ignore[index]

    return [Edit(one.path, content(one.old), content(one.new)) for one in raw]


def draft_of(planned: Sequence[Planned], composed: Composed, store: Git) -> Draft:
    """The series as it is."""
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
    return Draft(patches, versions, overlay, frozenset(base))


# --- where commits go ----------------------------------------------------------------


def _find(draft: Draft, commit: CommitInfo, composed: Composed) -> int:
    """The patch that a fixup!, squash! or amend! commit names."""
    wanted = commit.message.subject
    while _MARK.match(wanted):
        wanted = _MARK.sub("", wanted, count=1)
    subjects = [patch.message.subject for patch in draft.patches]
    exact = [i for i, subject in enumerate(subjects) if subject == wanted]
    if exact:
        return exact[-1]
    begins = [i for i, subject in enumerate(subjects) if wanted and subject.startswith(wanted)]
    if len(begins) == 1:
        return begins[0]
    files = [
        locked.file
        for one, locked in zip(composed.commits, composed.lock.patches, strict=True)
        if re.fullmatch(r"[0-9a-f]{7,40}", wanted) and one.id.startswith(wanted)
    ]
    ids = [i for i, patch in enumerate(draft.patches) if patch.entry.file in files]
    if len(ids) == 1:
        return ids[0]
    raise Fault(
        f"{commit.id[:12]} ({commit.message.subject}) names no patch of the series",
        todo="git commit --amend with `fixup! ` and the subject of one of these",
        details=tuple(subjects),
    )


def _new_patch(
    draft: Draft,
    message: Message,
    date: str,
    topic: str | None,
    topics: Sequence[Topic],
    needs: tuple[str, ...] = (),
) -> int:
    bad = problems(message)
    if bad:
        raise Fault(
            f"`{message.subject}`: {bad[0]}", todo="mend the message", details=tuple(bad[1:])
        )
    name = topic or ""
    if not topic and draft.patches:
        name = draft.patches[-1].entry.topic
    elif not topic and len(topics) == 1:
        name = topics[0].name
    if name not in [known.name for known in topics]:
        raise Fault(
            f"patches/series.toml has no topic {name}" if name else "which topic is not clear",
            todo="name one with `-- --topic NAME`, or add a [[topic]] to patches/series.toml",
            details=tuple(known.name for known in topics),
        )
    # Its name is what other patches' `needs` may call it by, until it is written.
    file = file_name(len(draft.patches) + 1, message.subject)
    return draft.append(DraftPatch(Patch(file, name, needs=needs), message, date))


def _remark(draft: Draft, target: int, commit: CommitInfo) -> None:
    """Take a squash! or amend! commit's words into its patch's message."""
    patch = draft.patches[target]
    body = commit.message.body
    if commit.message.subject.startswith("amend! "):
        patch.message = Message.from_commit(body.encode()) if body else patch.message
    elif commit.message.subject.startswith("squash! ") and body:
        patch.message = Message(patch.message.subject, f"{patch.message.body}\n\n{body}".strip())


def _take_commit(
    draft: Draft,
    view: Git,
    commit: CommitInfo,
    before: str,
    composed: Composed,
    args: argparse.Namespace,
    topics: Sequence[Topic],
) -> None:
    if _MARK.match(commit.message.subject):
        target = _find(draft, commit, composed)
        _remark(draft, target, commit)
    else:
        target = _new_patch(draft, commit.message, commit.date, args.topic, topics)
    draft.take(_edits(view, before, commit.tree), target, None)


def _take_rewritten(
    draft: Draft,
    tree: WorkTree,
    planned: Sequence[Planned],
    composed: Composed,
    commits: Sequence[CommitInfo],
    args: argparse.Namespace,
    topics: Sequence[Topic],
) -> list[str]:
    """Make the draft anew from commits that took the place of the series' own.

    Returns:
        What was done to the patches.
    """
    view = tree.view()
    before = [composed.base.tree, *(commit.tree for commit in commits)]
    plain = [i for i, one in enumerate(commits) if not _MARK.match(one.message.subject)]
    real = [commits[i] for i in plain]
    matched = rewritten.match(view, planned, composed, [before[i] for i in plain], real)
    if not args.drop_empty:
        rewritten.check_missing(matched, planned, real)
    homes = dict(zip(plain, matched.patches, strict=True))
    sources = {plain[number]: index for number, index in matched.parts.items()}
    # What stands for each patch that was taken out or split, so far.
    instead: dict[str, list[str]] = {planned[index].patch.name: [] for index in matched.missing}
    for number, commit in enumerate(commits):
        if number in sources:
            source = planned[sources[number]].patch
            needs = _needs(source, instead)
            topic = args.topic or source.topic
            target = _new_patch(draft, commit.message, commit.date, topic, topics, needs)
            name = draft.patches[target].entry.name
            instead.setdefault(source.name, [source.name]).append(name)
            draft.take(_edits(view, before[number], commit.tree), target, None)
            continue
        index = homes.get(number)
        if index is None:
            _take_commit(draft, view, commit, before[number], composed, args, topics)
            continue
        old = planned[index]
        entry = replace(old.patch, needs=_needs(old.patch, instead))
        target = draft.append(DraftPatch(entry, commit.message, old.parsed.date, old.parsed.author))
        said = len(draft.routed)
        draft.take(_edits(view, before[number], commit.tree), target, None)
        # What is its own still needs no word.
        draft.routed[said:] = [one for one in draft.routed[said:] if one.home != target]
    rewritten.check_order([(patch.entry.name, patch.entry.needs) for patch in draft.patches])
    return list(rewritten.notes(matched, planned, real, args.topic))


def _needs(patch: Patch, instead: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """What a patch needs, where others stand for some of it."""
    names = [name for need in patch.needs for name in instead.get(need, [need])]
    return tuple(dict.fromkeys(names))


def _now() -> str:
    return f"{int(os.environ.get('SOURCE_DATE_EPOCH') or time.time())} +0000"


def _take_files(
    draft: Draft, series: Series, edits: Sequence[Edit], args: argparse.Namespace
) -> None:
    """Take what is not committed."""
    target = None
    fallback = series.find(args.to) if args.to is not None else None
    if args.new is not None and edits:
        target = _new_patch(draft, Message(args.new, ""), _now(), args.topic, series.topics)
    draft.take(edits, target, fallback)


def take_all(
    store: Git,
    tree: WorkTree,
    state: State,
    planned: Sequence[Planned],
    composed: Composed,
    series: Series,
    args: argparse.Namespace,
) -> Taken:
    """Take every step into a draft."""
    view = tree.view()
    commits, anew = _own_commits(tree, state, composed.base.commit)
    remarks = []
    draft = draft_of([] if anew else planned, composed, store)
    if anew:
        rewritten.check_age(store, composed, commits)
        remarks = _take_rewritten(draft, tree, planned, composed, commits, args, series.topics)
    before = commits[-1].tree if anew and commits else composed.tree
    for commit in [] if anew else commits:
        _take_commit(draft, view, commit, before, composed, args, series.topics)
        before = commit.tree
    seen = tree.look(composed.tree)
    # What .gitignore covers counts where the user has committed or staged it.
    held = [before, tree.staged(composed.tree) or before]
    more = [raw.path for one in held for raw in changes(view, composed.tree, one) if raw.new]
    tree.refuse_large([*seen.edited, *seen.untracked, *more])
    now = tree.write_tree(composed.tree, seen, more)
    _take_files(draft, series, _edits(view, before, now), args)
    known = {one.parsed.author for one in planned}
    people = [c.author for c in commits if not _MARK.match(c.message.subject)]
    note = rewritten.authors_note([who for who in people if who not in known])
    return Taken(draft, now, anew, (*remarks, *([note] if note else [])))
