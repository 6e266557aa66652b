"""`nox -s refresh`: edits of build/vllm → the series.

What the user did is read as steps: each commit, then what is not committed.
Each step is taken into a draft of the series (see `ci.absorb`), the draft is
composed, exported and composed again, and only if that gives the very files
that lie in the work tree is anything written.
"""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ci import apply as applying
from ci import checkout
from ci import compose as composing
from ci import lock as locking
from ci.absorb import Draft, DraftPatch, Edit, Routed
from ci.checkpoints import checkpoint
from ci.compose import BaseTree, Composed, Planned
from ci.errors import Fault
from ci.export import Step, export
from ci.git import Git, GitError
from ci.layout import Layout
from ci.messages import Message, problems
from ci.objects import MODES, Content, show
from ci.patchfile import PatchFile
from ci.pin import load_pin
from ci.progress import say
from ci.runlock import alone
from ci.series import Patch, Series, SeriesFiles, Topic, read_files
from ci.swap import recover, write_series
from ci.trees import CommitInfo, changes, read_commits, read_contents
from ci.worktree import State, WorkTree

_MARK = re.compile(r"(fixup|squash|amend)! ")


def options(parser: argparse.ArgumentParser) -> None:
    """The verb's options."""
    parser.add_argument("--to", metavar="NAME", help="the patch for what has no single home")
    parser.add_argument(
        "--new", metavar="TITLE", help="make what is not committed a new patch of this title"
    )
    parser.add_argument("--topic", help="the topic of new patches (default: the last patch's)")
    parser.add_argument("--dry-run", action="store_true", help="show where each edit would go")
    parser.add_argument(
        "--drop-empty", action="store_true", help="take out patches that nothing is left of"
    )


@dataclass(frozen=True)
class Refreshed:
    """What a refresh did, or would do.

    Attributes:
        routed: where each edit went, with the names of the patches.
        written: the files of the series that changed.
    """

    routed: tuple[tuple[Routed, str], ...]
    written: tuple[str, ...]
    note: str | None = None


# --- what the user did ------------------------------------------------------------


def _own_commits(tree: WorkTree, state: State) -> list[CommitInfo]:
    """The user's commits on top of the applied head, oldest first."""
    assert state.applied is not None
    if state.head is None:
        raise Fault(f"{tree.root} has no commit checked out", todo="git switch series")
    if state.head == state.applied:
        return []
    if not tree.repo.attempt("merge-base", "--is-ancestor", state.applied, state.head).ok:
        raise Fault(
            f"the commits in {tree.root} do not stand on the applied series",
            todo="rebase them onto refs/series/applied; to change a patch use "
            "`git commit --fixup`, not `git rebase`",
        )
    listed = (
        tree.repo.run("rev-list", "--reverse", "--topo-order", state.head, f"^{state.applied}")
        .decode()
        .split()
    )
    commits = read_commits(tree.repo, listed)
    for commit in commits:
        if len(commit.parents) != 1:
            raise Fault(
                f"{commit.id[:12]} ({commit.message.subject}) is a merge",
                todo="rebase your commits into a line",
            )
    return commits


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
    ids = [
        i
        for i, one in enumerate(composed.commits)
        if re.fullmatch(r"[0-9a-f]{7,40}", wanted) and one.id.startswith(wanted)
    ]
    if len(ids) == 1:
        return ids[0]
    raise Fault(
        f"{commit.id[:12]} ({commit.message.subject}) names no patch of the series",
        todo="git commit --amend with `fixup! ` and the subject of one of these",
        details=tuple(subjects),
    )


def _new_patch(
    draft: Draft, message: Message, date: str, topic: str | None, topics: Sequence[Topic]
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
    return draft.append(DraftPatch(Patch("", name), message, date))


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


# --- the new series ----------------------------------------------------------------


def _planned(draft: Draft, kept: Sequence[int]) -> list[Planned]:
    """The draft as something that can be composed."""
    planned = []
    for index in kept:
        one = draft.patches[index]
        diffs: dict[bytes, Content | None] = {
            path: versions[index + 1]
            for path, versions in draft.versions.items()
            if versions[index] != versions[index + 1]
        }
        diffs.update({p: c for p, (owner, c) in draft.overlay.items() if owner == index})
        parsed = PatchFile(one.message, one.author, one.date, ())
        planned.append(Planned(one.entry, parsed, diffs, {}, canonical=True))
    return planned


def _kept(draft: Draft, drop_empty: bool) -> list[int]:
    """The patches that change something.

    Raises:
        Fault: one does not any more, and that was not asked for.
    """
    full = {i for path in draft.versions for i in draft.touching(path)}
    full |= {owner for owner, _ in draft.overlay.values()}
    empty = [i for i in range(len(draft.patches)) if i not in full]
    if empty and not drop_empty:
        raise Fault(
            f"nothing would be left of `{draft.patches[empty[0]].message.subject}`",
            todo="drop such patches with `nox -s refresh -- --drop-empty`",
        )
    return [i for i in range(len(draft.patches)) if i in full]


def series_of(
    store: Git, base: BaseTree, draft: Draft, topics: Sequence[Topic], drop_empty: bool
) -> tuple[SeriesFiles, Composed]:
    """Compose the draft, export it, and compose what was exported."""
    kept = _kept(draft, drop_empty)
    gone = {p.entry.name for i, p in enumerate(draft.patches) if i not in kept}
    planned = _planned(draft, kept)
    commits = composing.write(store, base, planned)
    trees = [base.tree, *(commit.tree for commit in commits)]
    steps = []
    for number, one in enumerate(planned):
        needs = tuple(need for need in one.patch.needs if need not in gone)
        entry = replace(one.patch, needs=needs)
        steps.append(
            Step(
                entry,
                one.parsed.message,
                one.parsed.date,
                trees[number],
                trees[number + 1],
                one.parsed.author,
            )
        )
    files = export(store, base.entries, steps)
    files = replace(files, series=replace(files.series, topics=tuple(topics)))
    composed = composing.compose(store, base, files)
    assert composed.canonical and composed.trees == trees, "export and compose disagree"
    return files, composed


# --- the verb ----------------------------------------------------------------------


def refresh(layout: Layout, args: argparse.Namespace) -> Refreshed:
    """Refresh, with the checkout's lock held.

    Raises:
        Fault: an edit has no single home, or another rule is broken; nothing
            has changed then.
    """
    if args.to is not None and args.new is not None:
        raise Fault("--to and --new do not go together", todo="choose one")
    if recover(layout):
        say("finished a refresh that was cut short")
    try:
        return _refresh(layout, args)
    except GitError as fault:
        if not applying.is_damaged(layout):
            raise
        applying.mend(layout, fault)
        return _refresh(layout, args)


def _refresh(layout: Layout, args: argparse.Namespace) -> Refreshed:
    files = read_files(layout)
    pin = load_pin(layout.pin)
    locking.check_inputs(locking.load_lock(layout), files, pin.base_tree)
    store, base = applying.open_base(layout, None)
    if base.tree != pin.base_tree:
        raise Fault(
            "the series is refreshed on the sdist's tree, not on a git commit's",
            todo="`nox -s apply -- --source index` first",
        )
    applying.sweep(layout)
    planned = composing.plan(store, base, files)
    composed = composing.compose(store, base, files, planned)
    tree = WorkTree.of(layout)
    state = tree.state()
    if state is not None and state.applied != composed.head == state.refreshed:
        say("finished a refresh that was cut short")
        applying.publish(layout, files, composed)
    state = _ready(tree, store, composed)
    draft = draft_of(planned, composed, store)
    now = _take_all(draft, tree, state, composed, files.series, args)
    routed = _told(draft)
    if not draft.routed and not _remarked(draft, planned):
        return Refreshed((), ())
    if draft.homeless and not args.dry_run:
        raise _homeless(draft)
    if draft.homeless:
        return Refreshed(routed, ())
    new, again = series_of(store, base, draft, files.series.topics, args.drop_empty)
    if again.tree != now:
        raise AssertionError("the new series does not give the files of the work tree")
    if args.dry_run:
        return Refreshed(routed, ())
    tree.announce(again.head)
    try:
        written = write_series(layout, new, again.lock)
    except (OSError, Fault):
        tree.announce(None)
        raise
    checkpoint("refresh: series written")
    note = applying.publish(layout, new, again)
    return Refreshed(routed, tuple(written), note)


def _ready(tree: WorkTree, store: Git, composed: Composed) -> State:
    """The state of a work tree that was made from the series as it lies there."""
    state = tree.state()
    if state is None:
        raise Fault(f"there is no work tree at {tree.root}", todo="`nox -s apply` makes it")
    if state.applied is None:
        raise Fault(
            f"{tree.root} does not say which series it was made from",
            todo="move it away, and run `nox -s apply`",
        )
    state = checkout.finish(tree, store, state)
    if state.applied != composed.head:
        raise Fault(
            f"{tree.root} was made from another series than the one that lies there now",
            todo="`git stash` your edits there, run `nox -s apply`, and `git stash pop`",
        )
    return state


def _take_all(
    draft: Draft,
    tree: WorkTree,
    state: State,
    composed: Composed,
    series: Series,
    args: argparse.Namespace,
) -> str:
    """Take every step into the draft; the tree that the user has now."""
    before = composed.tree
    for commit in _own_commits(tree, state):
        _take_commit(draft, tree.view(), commit, before, composed, args, series.topics)
        before = commit.tree
    seen = tree.look(composed.tree)
    view = tree.view()
    # What .gitignore covers counts where the user has committed or staged it.
    held = [before, tree.staged(composed.tree) or before]
    more = [raw.path for one in held for raw in changes(view, composed.tree, one) if raw.new]
    now = tree.write_tree(composed.tree, seen, more)
    _take_files(draft, series, _edits(tree.view(), before, now), args)
    return now


def _remarked(draft: Draft, planned: Sequence[Planned]) -> bool:
    """Whether a message changed or a patch came."""
    before = [one.parsed.message for one in planned]
    return before != [patch.message for patch in draft.patches]


def _told(draft: Draft) -> tuple[tuple[Routed, str], ...]:
    return tuple(
        (one, "" if one.home is None else draft.patches[one.home].message.subject)
        for one in draft.routed
    )


def _homeless(draft: Draft) -> Fault:
    listed = [f"{one.what}: {one.why}" for one in draft.homeless]
    return Fault(
        f"{len(listed)} edit{'s' * (len(listed) > 1)} in build/vllm ha"
        f"{'ve' if len(listed) > 1 else 's'} no single home in the series",
        todo='route with `nox -s refresh -- --to NAME` or `-- --new "title"`',
        details=tuple(listed),
    )


def run(layout: Layout, args: argparse.Namespace) -> int:
    """The verb."""
    with alone(layout, "refresh"):
        done = refresh(layout, args)
    for routed, subject in done.routed:
        where = f"→ {routed.home + 1:04d} {subject}" if routed.home is not None else "→ ?"
        print(f"{routed.what} {where}" + (f" ({routed.why})" if routed.why else ""))
    if not done.routed and not done.written:
        print("nothing to refresh")
    for path in done.written:
        print(f"wrote {path}")
    if done.note:
        print(done.note)
    return 0
