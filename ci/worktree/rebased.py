"""Commits of the series that were rewritten: which patch is each of them?

`git commit --amend` and `git rebase -i` put new commits in the place of those
that the series was composed as. A commit is the patch that has its id, its
title, its very change, or its date (which a rebase keeps), in this order, and
only where one commit and one patch alone have it in common.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ci.core.errors import Fault, listed
from ci.git.repo import Git
from ci.series.compose import Composed, Planned
from ci.series.diff import FileDiff
from ci.series.from_git import CommitInfo, file_diffs
from ci.series.model import Patch
from ci.series.patch import AUTHOR


@dataclass(frozen=True)
class Matched:
    """Commits beside the patches that they are.

    Attributes:
        patches: for each commit the index of its patch; None for one that is new.
        changed: the commits whose change is not their patch's.
        parts: for each new commit that was split off a patch, the index of that patch.
        missing: the patches that are no commit any more.
        lost: those of them that are not there in parts, line for line.
    """

    patches: tuple[int | None, ...]
    changed: frozenset[int]
    parts: Mapping[int, int]
    missing: tuple[int, ...]
    lost: tuple[int, ...]


def match(
    git: Git,
    planned: Sequence[Planned],
    composed: Composed,
    before: Sequence[str],
    commits: Sequence[CommitInfo],
) -> Matched:
    """Find the patch of each commit of a line that begins at the base.

    Args:
        before: for each commit the tree that it was made on.
    """
    steps = file_diffs(git, [(old, c.tree) for old, c in zip(before, commits, strict=True)])
    series = file_diffs(git, list(pairwise(composed.trees)))
    theirs, ours = [tuple(map(_change, s)) for s in steps], [tuple(map(_change, s)) for s in series]
    found: dict[int, int] = {}
    keys: list[tuple[Sequence[Hashable], Sequence[Hashable]]] = [
        ([c.id for c in commits], [c.id for c in composed.commits]),
        ([c.message.subject for c in commits], [one.parsed.subject for one in planned]),
        (theirs, ours),
        ([c.date for c in commits], [one.parsed.date for one in planned]),
    ]
    for number, (left, right) in enumerate(keys):
        # A date that other patches share says nothing, whichever of them are found.
        done = number < len(keys) - 1
        ones = _once({i: key for i, key in enumerate(left) if not (done and i in found)})
        taken = set(found.values())
        others = _once({i: key for i, key in enumerate(right) if not (done and i in taken)})
        pairs = {ones[key]: others[key] for key in ones.keys() & others.keys()}
        found |= {i: its for i, its in pairs.items() if i not in found and its not in taken}
    patches = tuple(found.get(index) for index in range(len(commits)))
    changed = frozenset(commit for commit, patch in found.items() if theirs[commit] != ours[patch])
    missing = tuple(index for index in range(len(planned)) if index not in patches)
    open_ones = {*missing, *(found[commit] for commit in changed)}
    pieces = {i: _lines(step) for i, step in enumerate(steps) if i not in found}
    wholes = {i: _lines(step) for i, step in enumerate(series) if i in open_ones}
    parts = {i: of for i, lines in pieces.items() if (of := _source(lines, wholes)) is not None}
    there = {i: Counter[Hashable]() for i in wholes}
    for place, of in parts.items():
        there[of] += pieces[place]
    lost = tuple(index for index in missing if there[index] != wholes[index])
    return Matched(patches, changed, parts, missing, lost)


def _lines(step: Sequence[FileDiff]) -> Counter[Hashable]:
    """What a step adds and takes away, line by line; a file that comes or goes counts, too."""
    found: Counter[Hashable] = Counter()
    for diff in step:
        found.update((diff.path, line) for h in diff.hunks for line in h.lines if line[:1] != b" ")
        if diff.old_mode != diff.new_mode:
            found[diff.path, diff.old_mode, diff.new_mode] += 1
    return found


def _source(lines: Counter[Hashable], patches: Mapping[int, Counter[Hashable]]) -> int | None:
    """The patch that most of a new commit's lines were taken from, if there is just one."""
    shared = {index: (lines & its).total() for index, its in patches.items()}
    most = max(shared.values(), default=0)
    found = [index for index, count in shared.items() if count == most]
    return found[0] if len(found) == 1 and 2 * most > lines.total() else None


def _once(keys: Mapping[int, Hashable]) -> dict[Hashable, int]:
    """The keys that are there once, and where."""
    counts = Counter(keys.values())
    return {key: index for index, key in keys.items() if counts[key] == 1}


def _change(diff: FileDiff) -> Hashable:
    """What a diff changes, wherever in its file it does."""
    return diff.path, diff.old_mode, diff.new_mode, tuple(hunk.lines for hunk in diff.hunks)


def check_age(store: Git, composed: Composed, commits: Sequence[CommitInfo]) -> None:
    """Refuse commits of an older series: taking them for rewritten ones would
    undo what the series has become since.

    Raises:
        Fault: says how to bring the user's own over.
    """
    now = {commit.id for commit in composed.commits}
    # The store holds what was composed; what the user commits is in their repository.
    old = [c for c in commits if c.id not in now and store.resolve(f"{c.id}^{{commit}}")]
    if old:
        raise Fault(
            f"the commits in the work tree stand on an older series ({old[-1].message.subject})",
            todo="bring yours over, there: "
            f"`git rebase --onto refs/series/applied {old[-1].id[:12]}`",
        )


def check_missing(
    matched: Matched, planned: Sequence[Planned], commits: Sequence[CommitInfo]
) -> None:
    """Stop where a patch is no commit any more, which may be meant or a slip.

    Raises:
        Fault: lists what is not there, and what is new.
    """
    if matched.lost:
        new = [commits[i].message.subject for i, one in enumerate(matched.patches) if one is None]
        lines = [f"not there: {planned[index].parsed.subject}" for index in matched.lost]
        count = f"{len(matched.lost)} of the {len(planned)}"
        raise Fault(
            f"{count} patches are none of the commits in the work tree",
            todo="if they are to go, `nox -s refresh -- --drop-empty`; if not, bring them back "
            "(`git log refs/series/applied` has them, `git cherry-pick ID`), and reword a commit "
            "that was edited too with a refresh in between",
            details=listed([*lines, *(f"new: {subject}" for subject in new)]),
        )


def check_order(patches: Sequence[Patch]) -> None:
    """See that each patch comes after what it needs.

    Raises:
        Fault: names the two.
    """
    names = [patch.name for patch in patches]
    for number, patch in enumerate(patches):
        for need in patch.needs:
            if need not in names[:number]:
                raise Fault(
                    f"{patch.name} comes before {need}, which it needs",
                    todo="keep their order in the work tree, or take the need out of "
                    "series.toml and `nox -s apply -- --relock`",
                )


def notes(
    matched: Matched, planned: Sequence[Planned], commits: Sequence[CommitInfo], topic: str | None
) -> Iterator[str]:
    """What was done to the patches, a line each.

    Args:
        topic: that of new patches, where the user names one.
    """
    last = -1
    for place, (commit, index) in enumerate(zip(commits, matched.patches, strict=True)):
        if place in matched.parts:
            source = planned[matched.parts[place]]
            needs = f", needs {', '.join(source.patch.needs)}" if source.patch.needs else ""
            yield (
                f"{place + 1:04d} {commit.message.subject} (split off {source.parsed.subject}: "
                f"topic {topic or source.patch.topic}{needs})"
            )
            continue
        if index is None:
            yield f"{place + 1:04d} {commit.message.subject} (new)"
            continue
        words = []
        if commit.message != planned[index].parsed.message:
            words.append("reworded")
        if place in matched.changed:
            words.append("changed")
        if index < last:
            words.append("moved")
        last = max(last, index)
        if words:
            yield f"{place + 1:04d} {commit.message.subject} ({', '.join(words)})"
    for index in matched.missing:
        yield f"     {planned[index].parsed.subject} (taken out)"


def authors_note(authors: Sequence[str], kept: str = AUTHOR) -> str | None:
    """A word on people whose names the series does not keep; None if there are none."""
    others = list(dict.fromkeys(author for author in authors if author != kept))
    if not others:
        return None
    return (
        f"not kept as author: {', '.join(others)}: the patches are by {kept}, and whoever sends "
        "one signs it (`nox -s upstream`); name them in the message (Based on work by …)"
    )
