"""Trees → series: the inverse of composing, byte for byte."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from ci.core.content import NULL_ID, Content, has_conflicts, show
from ci.core.errors import Fault
from ci.git.repo import Git
from ci.git.trees import read_objects
from ci.series import compose as composing
from ci.series.compose import BaseTree, Composed, Planned
from ci.series.diff import FileDiff
from ci.series.from_git import file_diffs
from ci.series.message import check_message
from ci.series.model import Patch, Series, SeriesFiles, Topic, unfit
from ci.series.patch import file_name, render


def export(
    git: Git,
    base: BaseTree,
    planned: Sequence[Planned],
    trees: Sequence[str],
    topics: Sequence[Topic],
    line: str,
) -> SeriesFiles:
    """Write composed patches as a series.

    Files that the base has go into patches, others into the overlay. What a
    patch needs that is not among them before it is dropped from its needs.

    Args:
        git: a repository that holds every tree.
        planned: entries, messages and authors; `file` and `overlay` are worked out anew.
        trees: the base's, and the one after each patch.
        line: the line that the series is of.

    Raises:
        Fault: a patch changes a file that an earlier one added, changes
            nothing, or has a message that would not survive.
    """
    all_diffs = file_diffs(git, list(pairwise(trees)))
    new = [diff.new_id for diffs in all_diffs for diff in diffs if diff.path not in base.entries]
    blobs = read_objects(git, [oid for oid in new if oid != NULL_ID])
    patches: list[Patch] = []
    written: dict[str, bytes] = {}
    overlay: dict[str, Content] = {}
    renamed: dict[str, str] = {}
    for index, (one, diffs) in enumerate(zip(planned, all_diffs, strict=True)):
        name = file_name(index + 1, one.parsed.subject)
        check_message(one.parsed.message, name)
        upstream = tuple(diff for diff in diffs if diff.path in base.entries)
        added = _added([d for d in diffs if d.path not in base.entries], name, overlay, blobs)
        if not upstream and not added:
            raise Fault(
                f"the patch `{one.parsed.subject}` changes nothing",
                todo="an empty patch is not kept: drop it",
            )
        overlay.update(added)
        written[name] = render(replace(one.parsed, files=upstream))
        patch = replace(
            one.patch,
            file=name,
            overlay=tuple(sorted(added)),
            needs=tuple(renamed[need] for need in one.patch.needs if need in renamed),
        )
        if patch.name.lower() in (other.name.lower() for other in patches):
            raise Fault(
                f"two patches would be called {patch.name}",
                todo="give one of them a title that differs in its first letters",
            )
        renamed[one.patch.name] = patch.name
        patches.append(patch)
    return SeriesFiles(line, Series(tuple(topics), tuple(patches)), written, overlay)


def _added(
    diffs: Sequence[FileDiff],
    name: str,
    owned: Mapping[str, Content],
    blobs: Mapping[str, bytes],
) -> dict[str, Content]:
    """The overlay files of one step."""
    added = {}
    for diff in diffs:
        path = _utf8(diff.path, name)
        if not diff.is_new or path in owned:
            raise Fault(
                f"{name} changes {path}, which an earlier patch adds",
                todo="make the change in the patch that adds the file (git rebase --autosquash)",
            )
        assert diff.new_mode is not None
        added[path] = Content(diff.new_mode, blobs[diff.new_id])
        if has_conflicts(added[path].data):
            raise Fault(
                f"{name} adds {path}, which has merge conflicts",
                todo="resolve them in the work tree",
            )
    return added


def _utf8(path: bytes, name: str) -> str:
    try:
        text = path.decode("utf-8")
    except UnicodeDecodeError:
        raise Fault(
            f"{name} adds {show(path)}, whose name is not UTF-8", todo="rename the file"
        ) from None
    why, todo = unfit(text)
    if why:
        raise Fault(f"{name} adds {show(path)}, {why}", todo=todo)
    return text


def canonicalize(
    store: Git, base: BaseTree, planned: Sequence[Planned], topics: Sequence[Topic], line: str
) -> tuple[SeriesFiles, Composed]:
    """Compose patches, write what came out as a series, and compose that, which
    must give the same trees.

    Raises:
        Fault: see `export`.
    """
    commits = composing.write(store, base, planned)
    trees = [base.tree, *(commit.tree for commit in commits)]
    files = export(store, base, planned, trees, topics, line)
    composed = composing.compose(store, base, files)
    assert composed.trees == trees, "export and compose disagree"
    return files, composed


def check_fixed_point(
    store: Git, files: SeriesFiles, planned: Sequence[Planned], composed: Composed
) -> None:
    """See that exporting a composed series gives it back, byte for byte.

    Args:
        planned: what it was composed from.

    Raises:
        Fault: names the first patch that would come back differently.
    """
    topics, line = files.series.topics, files.line
    exported = export(store, composed.base, planned, composed.trees, topics, line)
    for ours, theirs in zip(exported.series.patches, files.series.patches, strict=True):
        same = exported.patches[ours.file] == files.patches[theirs.file]
        if ours != theirs or not same:
            what = "its entry in series.toml" if same else "its bytes"
            raise Fault(
                f"{files.patch_path(theirs)} is not in canonical form ({what})",
                todo="`nox -s apply -- --relock` writes it so",
            )
