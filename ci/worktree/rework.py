"""A series made anew of the edits in the work tree.

What the user did is taken into a draft, the draft is composed, exported and
composed again, and only if that gives the very files that lie in the work
tree is there anything to write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ci.core.content import Content
from ci.core.errors import Fault, listed
from ci.core.progress import say
from ci.git.repo import Git
from ci.git.store import open_store
from ci.series import compose as composing
from ci.series.base import open_base, pinned_lock
from ci.series.compose import BaseTree, Composed, Planned
from ci.series.export import canonicalize
from ci.series.model import SeriesFiles
from ci.series.patch import PatchFile
from ci.worktree import checkout
from ci.worktree.applied import Locked, publish
from ci.worktree.draft import Draft, Routed
from ci.worktree.edits import Options, collect_edits
from ci.worktree.tree import State, WorkTree


@dataclass(frozen=True)
class Reworked:
    """Where the user's edits go, and the series that they make.

    Attributes:
        routed: where each edit goes, with the names of the patches.
        remarks: what else the user should know.
        series: the new series, and what composing it gave; None where nothing
            is to be written.
    """

    routed: tuple[tuple[Routed, str], ...]
    remarks: tuple[str, ...]
    series: tuple[Locked, Composed] | None = None


def rework(tree: WorkTree, series: Locked, downloads: Path, options: Options) -> Reworked:
    """Take the user's edits into the series; nothing is written but the store.

    Raises:
        Fault: an edit is unassigned, or another rule is broken.
    """
    store = open_store(tree.store)
    base = open_base(store, downloads, series.pin)
    files = series.files
    planned = composing.plan(store, base, files)
    composed = composing.compose(store, base, files, planned)
    state = tree.state()
    if state is not None and state.applied != composed.head == state.refreshed:
        say("finished a refresh that was cut short")
        publish(tree, series, composed)
    state = _ready(tree, store, composed)
    taken = collect_edits(store, tree, state, planned, composed, files, options)
    draft = taken.draft
    reworded = [] if taken.rewritten else _reworded(draft, planned)
    subjects = [one.message.subject for one in draft.patches]
    routed = tuple((r, "" if r.home is None else subjects[r.home]) for r in draft.routed)
    told = Reworked(routed, (*reworded, *taken.remarks))
    if not (routed or reworded or taken.rewritten) and len(draft.patches) == len(planned):
        return told
    if draft.unassigned and not options.dry_run:
        raise _unassigned(draft)
    if draft.unassigned:
        return told
    new, again = series_of(store, base, draft, files, options.drop_empty)
    if again.tree != taken.tree:
        raise AssertionError("the new series does not give the files of the work tree")
    lock = pinned_lock(store, downloads, series.pin, new, again)
    return told if options.dry_run else replace(told, series=(Locked(series.pin, new, lock), again))


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
            todo=checkout.migration_steps(state, tree.own_commits(state), "run `nox -s apply`"),
        )
    return state


def _reworded(draft: Draft, planned: Sequence[Planned]) -> list[str]:
    """The patches whose message an amend! or squash! commit changed, a line each."""
    return [
        f"{number:04d} {patch.message.subject} (reworded)"
        for number, (one, patch) in enumerate(zip(planned, draft.patches, strict=False), 1)
        if patch.message != one.parsed.message
    ]


def _unassigned(draft: Draft) -> Fault:
    lines = [f"{one.what}: {one.why}" for one in draft.unassigned]
    many = f"{len(lines)} edits in the work tree are" if lines[1:] else "1 edit in the work tree is"
    return Fault(
        f"{many} unassigned",
        todo='route with `nox -s refresh -- --to NAME` or `-- --new "title"`',
        details=listed(lines),
    )


# --- the draft as a series -----------------------------------------------------------


def _planned(draft: Draft, drop_empty: bool) -> list[Planned]:
    """The patches of the draft that change something, ready to be composed.

    Raises:
        Fault: one does not any more, and that was not asked for.
    """
    planned = []
    for index, one in enumerate(draft.patches):
        diffs: dict[bytes, Content | None] = {
            path: versions[index + 1]
            for path, versions in draft.versions.items()
            if versions[index] != versions[index + 1]
        }
        diffs.update({p: c for p, (owner, c) in draft.overlay.items() if owner == index})
        if diffs:
            parsed = PatchFile(one.message, one.author, one.date, ())
            planned.append(Planned(one.entry, parsed, diffs, {}))
        elif not drop_empty:
            raise Fault(
                f"nothing would be left of `{one.message.subject}`",
                todo="drop such patches with `nox -s refresh -- --drop-empty`",
            )
    return planned


def series_of(
    store: Git, base: BaseTree, draft: Draft, files: SeriesFiles, drop_empty: bool
) -> tuple[SeriesFiles, Composed]:
    """Compose the draft of a series, export it, and compose what was exported."""
    planned = _planned(draft, drop_empty)
    return canonicalize(store, base, planned, files.series.topics, files.line)
