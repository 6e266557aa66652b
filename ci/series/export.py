"""Trees → series: the inverse of composing, byte for byte."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ci.core.content import NULL_ID, Content, has_conflicts, show
from ci.core.errors import Fault
from ci.git.repo import Git
from ci.git.trees import Entry, read_objects
from ci.series import compose as composing
from ci.series.compose import BaseTree, Composed
from ci.series.diff import FileDiff
from ci.series.from_git import file_diffs
from ci.series.message import Message, problems
from ci.series.model import Patch, Series, SeriesFiles, Topic, unfit
from ci.series.patch import AUTHOR, PatchFile, file_name, render


@dataclass(frozen=True)
class Step:
    """One patch as trees: what it was made from and what it gave.

    Attributes:
        patch: its entry in the series; `file` and `overlay` are worked out anew.
    """

    patch: Patch
    message: Message
    date: str
    before: str
    after: str
    author: str = AUTHOR


def export(git: Git, base: Mapping[bytes, Entry], steps: Sequence[Step]) -> SeriesFiles:
    """Write steps as a series, without its topics.

    Files that the base has go into patches, others into the overlay.

    Args:
        git: a repository that holds every tree.
        base: the files of the pinned release.

    Raises:
        Fault: a step changes a file that an earlier one added, changes
            nothing, or has a message that would not survive.
    """
    all_diffs = file_diffs(git, [(step.before, step.after) for step in steps])
    new = [diff.new_id for diffs in all_diffs for diff in diffs if diff.path not in base]
    blobs = read_objects(git, [oid for oid in new if oid != NULL_ID])
    patches: list[Patch] = []
    written: dict[str, bytes] = {}
    overlay: dict[str, Content] = {}
    renamed: dict[str, str] = {}
    for index, (step, diffs) in enumerate(zip(steps, all_diffs, strict=True)):
        name = file_name(index + 1, step.message.subject)
        _check_message(step, name)
        upstream = [diff for diff in diffs if diff.path in base]
        added = _added([diff for diff in diffs if diff.path not in base], name, overlay, blobs)
        if not upstream and not added:
            raise Fault(
                f"the patch `{step.message.subject}` changes nothing",
                todo="an empty patch is not kept: drop it",
            )
        overlay.update(added)
        data = render(PatchFile(step.message, step.author, step.date, tuple(upstream)))
        written[name] = data
        patch = replace(
            step.patch,
            file=name,
            overlay=tuple(sorted(added)),
            needs=tuple(renamed.get(need, need) for need in step.patch.needs),
        )
        if patch.name.lower() in (other.name.lower() for other in patches):
            raise Fault(
                f"two patches would be called {patch.name}",
                todo="give one of them a title that differs in its first letters",
            )
        renamed[step.patch.name] = patch.name
        patches.append(patch)
    return SeriesFiles(Series((), tuple(patches)), written, overlay)


def _check_message(step: Step, name: str) -> None:
    bad = problems(step.message)
    if bad:
        raise Fault(f"{name}: {bad[0]}", todo="mend its message", details=tuple(bad[1:]))


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


def steps_of(composed: Composed, series: Series, parsed: Sequence[PatchFile]) -> list[Step]:
    """A composed series as steps."""
    trees = composed.trees
    return [
        Step(patch, one.message, one.date, trees[i], trees[i + 1], one.author)
        for i, (patch, one) in enumerate(zip(series.patches, parsed, strict=True))
    ]


def with_topics(files: SeriesFiles, topics: Sequence[Topic]) -> SeriesFiles:
    """The same series under these topics."""
    return replace(files, series=replace(files.series, topics=tuple(topics)))


def _exported(store: Git, base: BaseTree, files: SeriesFiles, composed: Composed) -> SeriesFiles:
    parsed = composing.parse_patches(files)
    exported = export(store, base.entries, steps_of(composed, files.series, parsed))
    return with_topics(exported, files.series.topics)


def settle(store: Git, base: BaseTree, files: SeriesFiles) -> tuple[SeriesFiles, Composed]:
    """Bring a series into canonical form: compose it, export what came out,
    and compose that, which must give the same trees.

    Raises:
        Fault: it does not compose.
    """
    first = composing.compose(store, base, files)
    exported = _exported(store, base, files, first)
    if exported == files:
        return files, first
    second = composing.compose(store, base, exported)
    assert second.canonical and second.trees == first.trees
    return exported, second


def check_fixed_point(store: Git, base: BaseTree, files: SeriesFiles, composed: Composed) -> None:
    """See that exporting a composed series gives it back, byte for byte.

    Raises:
        Fault: names the first patch that would come back differently.
    """
    exported = _exported(store, base, files, composed)
    for ours, theirs in zip(exported.series.patches, files.series.patches, strict=True):
        same = exported.patches[ours.file] == files.patches[theirs.file]
        if ours != theirs or not same:
            what = "its entry in series.toml" if same else "its bytes"
            raise Fault(
                f"patches/{theirs.file} is not in canonical form ({what})",
                todo="`nox -s apply -- --relock` writes it so",
            )
