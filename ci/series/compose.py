"""Pin + series → one commit per patch, in the store.

The only module that writes commits. Everything is worked out in memory first:
each patch is parsed, applied to the bytes of the files that it touches, and
joined with its overlay files. Then one `git fast-import` writes blobs, trees
and commits, which needs neither an index nor a work tree, and one ref moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ci.core.checkpoints import checkpoint
from ci.core.content import Content, show
from ci.core.errors import Fault
from ci.git.repo import Git
from ci.git.trees import Entry, list_tree, read_contents
from ci.series import diff as filediff
from ci.series import hunks
from ci.series import patch as patchfile
from ci.series.diff import FileDiff, Malformed
from ci.series.lock import Lock, lock_patch
from ci.series.message import check_message
from ci.series.model import Patch, SeriesFiles
from ci.series.patch import PatchFile


def head_ref(version: str) -> str:
    """The ref of the composed series on a pinned version, as the last apply published it."""
    return f"refs/series/{version}/head"


_STAGED = "refs/series/staged"


@dataclass(frozen=True)
class BaseTree:
    """What the series stands on, with the files that it needs read."""

    commit: str
    tree: str
    entries: Mapping[bytes, Entry]


@dataclass(frozen=True)
class Planned:
    """One patch, worked out but not written.

    Attributes:
        changes: what each touched path becomes; None where it goes.
        base: ids in the base of the upstream files that it touches.
    """

    patch: Patch
    parsed: PatchFile
    changes: Mapping[bytes, Content | None]
    base: Mapping[str, str]


@dataclass(frozen=True)
class Commit:
    """A written patch."""

    id: str
    tree: str


@dataclass(frozen=True)
class Composed:
    """A composed series: commits in the order of its patches, and its lock."""

    base: BaseTree
    commits: tuple[Commit, ...]
    lock: Lock

    @property
    def head(self) -> str:
        return self.commits[-1].id if self.commits else self.base.commit

    @property
    def tree(self) -> str:
        return self.commits[-1].tree if self.commits else self.base.tree

    @property
    def trees(self) -> list[str]:
        """The base's tree and the tree after each patch."""
        return [self.base.tree, *(commit.tree for commit in self.commits)]


def read_base(store: Git, commit: str, tree: str) -> BaseTree:
    """List the base."""
    return BaseTree(commit, tree, list_tree(store, tree))


# --- planning -----------------------------------------------------------------


def parse_patches(files: SeriesFiles) -> list[PatchFile]:
    """Parse every patch of the series.

    Raises:
        Fault: names the patch and line.
    """
    return [parse_patch(files, patch) for patch in files.series.patches]


def parse_patch(files: SeriesFiles, patch: Patch) -> PatchFile:
    """Parse one patch of the series, with its name in the fault."""
    try:
        return patchfile.parse(files.patches[patch.file])
    except Malformed as fault:
        raise Malformed(f"{files.patch_path(patch)}: {fault.what}", todo=fault.todo) from None


def plan(store: Git, base: BaseTree, files: SeriesFiles) -> list[Planned]:
    """Work out what each patch makes of the tree.

    Raises:
        Fault: a patch that does not apply, or breaks a rule of the series.
    """
    parsed = parse_patches(files)
    touched = {diff.path for one in parsed for diff in one.files}
    needed = {path: base.entries[path] for path in touched if path in base.entries}
    contents = read_contents(store, needed.values())
    tree: dict[bytes, Content] = {path: contents[entry] for path, entry in needed.items()}
    planned = []
    for patch, one in zip(files.series.patches, parsed, strict=True):
        planned.append(_plan_patch(base, files, patch, one, tree))
    return planned


def _plan_patch(
    base: BaseTree,
    files: SeriesFiles,
    patch: Patch,
    parsed: PatchFile,
    tree: dict[bytes, Content],
) -> Planned:
    """One patch; `tree` holds the upstream files in its reach and is brought forward."""
    name = files.patch_path(patch)
    check_message(parsed.message, name)
    changes: dict[bytes, Content | None] = {}
    before: dict[bytes, str] = {}
    for diff in parsed.files:
        entry = base.entries.get(diff.path)
        if entry is None:
            raise _not_upstream(files, name, diff)
        before[diff.path] = entry.id
        content = hunks.apply_diff(diff, tree.pop(diff.path, None), name)
        changes[diff.path] = content
        if content is not None:
            tree[diff.path] = content
    for path in patch.overlay:
        _check_new(base, files, path, name)
        changes[path.encode("utf-8")] = files.overlay[path]
    if not changes:
        raise Fault(
            f"{name} changes nothing",
            todo="an empty patch is not kept: delete it and its entry in series.toml",
        )
    ids = {path.decode("utf-8", "backslashreplace"): oid for path, oid in before.items()}
    return Planned(patch, parsed, changes, ids)


def _not_upstream(files: SeriesFiles, name: str, diff: FileDiff) -> Fault:
    path = show(diff.path)
    owner = next((p.file for p in files.series.patches if path in p.overlay), None)
    if owner:
        return Fault(
            f"{name} changes {path}, which is an overlay file of {owner}",
            todo=f"change {files.overlay_path(path)} itself",
        )
    if diff.is_new:
        return Fault(
            f"{name} adds {path}: new files live in overlay/{files.line}/, not in patches",
            todo=f"put it at {files.overlay_path(path)} and name it in series.toml; or "
            "take the patch out, `git am` it in the work tree, and run `nox -s refresh`",
        )
    return Fault(
        f"{name} changes {path}, which the pinned vLLM does not have",
        todo="it may have been renamed or deleted upstream",
    )


def _check_new(base: BaseTree, files: SeriesFiles, path: str, name: str) -> None:
    raw = path.encode("utf-8")
    if raw in base.entries:
        raise Fault(
            f"{files.overlay_path(path)} of {name} exists upstream already",
            todo="change upstream's file with a patch, or give the new file another name",
        )


# --- writing ------------------------------------------------------------------


def _stream(base: BaseTree, planned: Sequence[Planned]) -> Iterable[bytes]:
    """What fast-import reads: a commit per patch, each followed by the two
    questions whose answers are its id and its tree."""
    parent = base.commit.encode()
    for number, one in enumerate(planned, 1):
        who = f"{one.parsed.author} {one.parsed.date}".encode()
        message = one.parsed.message.data
        yield b"commit %s\nmark :%d\n" % (_STAGED.encode(), number)
        yield b"author %s\ncommitter %s\n" % (who, who)
        yield b"data %d\n%s\nfrom %s\n" % (len(message), message, parent)
        for path in sorted(p for p, content in one.changes.items() if content is None):
            yield b"D %s\n" % filediff.quote(path)
        for path, content in sorted(one.changes.items()):
            if content is not None:
                yield b"M %s inline %s\n" % (content.mode.encode(), filediff.quote(path))
                yield b"data %d\n%s\n" % (len(content.data), content.data)
        yield b'get-mark :%d\nls :%d ""\n' % (number, number)
        parent = b":%d" % number
    yield b"done\n"


def write(store: Git, base: BaseTree, planned: Sequence[Planned]) -> tuple[Commit, ...]:
    """Write the commits; nothing that anyone looks at refers to them yet."""
    if not planned:
        return ()
    checkpoint("compose: before writing commits")
    feed = b"".join(_stream(base, planned))
    out = store.run("fast-import", "--quiet", "--force", "--done", "--date-format=raw", stdin=feed)
    checkpoint("compose: commits written")
    answers = out.decode("ascii").split("\n")
    return tuple(
        Commit(commit, tree.split()[2])
        for commit, tree in zip(answers[0:-1:2], answers[1::2], strict=True)
    )


def compose(
    store: Git, base: BaseTree, files: SeriesFiles, planned: Sequence[Planned] | None = None
) -> Composed:
    """Compose the series; `publish` makes the result the series' head.

    Args:
        planned: the series worked out, where that was done before.

    Raises:
        Fault: see `plan`.
    """
    if planned is None:
        planned = plan(store, base, files)
    commits = write(store, base, planned)
    locked = tuple(
        lock_patch(files, index, commit.tree, one.base)
        for index, (commit, one) in enumerate(zip(commits, planned, strict=True))
    )
    return Composed(base, commits, Lock(base.tree, locked))


def publish(store: Git, composed: Composed, version: str) -> None:
    """Move the head of the series on a pinned version, all at once."""
    checkpoint("publish: before the ref moves")
    moves = f"update {head_ref(version)} {composed.head}\n"
    if composed.commits:
        moves += f"delete {_STAGED}\n"
    store.run("update-ref", "--stdin", stdin=moves.encode())
    checkpoint("publish: ref moved")
