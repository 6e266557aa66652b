"""Trees → series: the inverse of composing, byte for byte."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ci import compose as composing
from ci import filediff
from ci.compose import BaseTree, Composed
from ci.errors import Fault
from ci.filediff import FileDiff
from ci.git import Git
from ci.messages import Message, problems
from ci.objects import NULL_ID, REGULAR, Content, is_binary, show
from ci.patchfile import AUTHOR, PatchFile, file_name, render
from ci.series import Patch, Series, SeriesFiles, Topic, is_unsafe
from ci.trees import Entry, file_diffs, may_be_binary, read_objects


@dataclass(frozen=True)
class Step:
    """One patch as trees: what it was made from and what it gave.

    Attributes:
        patch: its entry in the series; `file`, `overlay` and `declared` are
            worked out anew.
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
    blobs = _needed(git, base, all_diffs)
    patches: list[Patch] = []
    written: dict[str, bytes] = {}
    overlay: dict[str, Content] = {}
    renamed: dict[str, str] = {}
    for index, (step, diffs) in enumerate(zip(steps, all_diffs, strict=True)):
        name = file_name(index + 1, step.message.subject)
        _check_message(step, name)
        upstream = [_whole(diff, blobs) for diff in diffs if diff.path in base]
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
            declared=declared(upstream, added),
        )
        if patch.name.lower() in (other.name.lower() for other in patches):
            raise Fault(
                f"two patches would be called {patch.name}",
                todo="give one of them a title that differs in its first letters",
            )
        renamed[step.patch.name] = patch.name
        patches.append(patch)
    return SeriesFiles(Series((), tuple(patches)), written, overlay)


def _needed(
    git: Git, base: Mapping[bytes, Entry], all_diffs: Sequence[Sequence[FileDiff]]
) -> dict[str, bytes]:
    """The bytes of new files, and of those that may be binary; all read at once."""
    ids = set()
    for diff in (diff for diffs in all_diffs for diff in diffs):
        if diff.path not in base or may_be_binary(diff):
            ids |= {diff.old_id, diff.new_id}
    found = read_objects(git, sorted(ids - {NULL_ID, ""}))
    return {**found, NULL_ID: b""}


def _whole(diff: FileDiff, blobs: Mapping[str, bytes]) -> FileDiff:
    if not may_be_binary(diff):
        return diff
    return filediff.as_binary(diff, blobs[diff.old_id], blobs[diff.new_id])


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
    return added


def _utf8(path: bytes, name: str) -> str:
    try:
        text = path.decode("utf-8")
    except UnicodeDecodeError:
        raise Fault(
            f"{name} adds {show(path)}, whose name is not UTF-8", todo="rename the file"
        ) from None
    if is_unsafe(text):
        raise Fault(f"{name} adds {show(path)}, which overlay/ cannot hold", todo="rename the file")
    return text


def declared(upstream: Sequence[FileDiff], added: Mapping[str, Content]) -> tuple[str, ...]:
    """The paths where a patch does what a reviewer should not overlook: a
    mode that changes or is not the plain one, or binary bytes."""
    found = {show(d.path) for d in upstream if d.binary is not None or _unusual_mode(d)}
    found |= {p for p, c in added.items() if c.mode != REGULAR or is_binary(c.data)}
    return tuple(sorted(found))


def _unusual_mode(diff: FileDiff) -> bool:
    return diff.changes_mode or (diff.is_new and diff.new_mode != REGULAR)


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
