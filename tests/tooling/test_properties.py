"""Random upstream trees, random series, random edits: nothing is ever lost or changed.

The tests without git look at one rule each; the last two go the whole way.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ci.core import checkpoints
from ci.core.content import EXECUTABLE, REGULAR, SYMLINK, Content, split_lines
from ci.git.repo import Git
from ci.git.trees import Entry, list_tree
from ci.series import compose
from ci.series import diff as filediff
from ci.series import patch as patchfile
from ci.series.compose import BaseTree, Planned
from ci.series.diff import FileDiff, Hunk
from ci.series.export import check_fixed_point, export
from ci.series.hunks import apply_diff
from ci.series.message import Message
from ci.series.model import Patch, SeriesFiles, Topic
from ci.series.patch import AUTHOR, PatchFile
from ci.worktree import blame as linemap
from ci.worktree.draft import Draft, DraftPatch, Edit
from ci.worktree.edits import draft_of
from ci.worktree.rework import series_of
from tests.tooling.projects import CLOCK, Project, put

# The clock of the fixtures is the same for every example, so sharing them is fine.
SHARED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
THOROUGH = bool(os.environ.get("SERIES_THOROUGH"))
settings.register_profile("pure", max_examples=500, deadline=None, suppress_health_check=SHARED)
# The two that go the whole way take a second an example: fewer in daily use.
PURE = settings.get_profile("pure")
settings.register_profile("whole", PURE, max_examples=500 if THOROUGH else 100)
settings.register_profile("killed", PURE, max_examples=500 if THOROUGH else 10)

UPSTREAM = ("a", "d/b", "d e/ç", '"q"')
ADDED = ("n1", "d/n 2")
LINES = (
    b"one\n",
    b"two\n",
    b"\n",
    b"  three\r\n",
    b"\xe9\n",
    b"@@ -1 +1 @@\n",
    b"diff --git a b\n",
)

lines = st.lists(st.sampled_from(LINES), max_size=9)


@st.composite
def contents(draw: st.DrawFn, binary: bool = True) -> Content:
    """Mostly text, of few different lines so that they repeat; at times odd."""
    kind = draw(st.integers(0, 19))
    if kind == 0:
        return Content(SYMLINK, draw(st.sampled_from([b"a", b"../x", b"\xe9"])))
    if kind == 1 and binary:
        return Content(REGULAR, draw(st.binary(max_size=40)) + b"\0")
    data = b"".join(draw(lines))
    if draw(st.integers(0, 7)) == 0:
        data = data[:-1]
    return Content(EXECUTABLE if kind == 2 else REGULAR, data)


@st.composite
def edited(draw: st.DrawFn, old: Content | None) -> Content | None:
    """Another version of a file: mostly a few of its lines changed."""
    kind = draw(st.integers(0, 9))
    binary = old is not None and b"\0" in old.data
    if not binary and (old is None or not old.is_text or kind == 0):
        return draw(contents(binary=False))
    assert old is not None
    if kind == 1 and not binary:
        return None
    if kind == 2 or binary:
        return Content(EXECUTABLE if old.mode == REGULAR else REGULAR, old.data)
    now = split_lines(old.data)
    at = draw(st.integers(0, len(now)))
    end = draw(st.integers(at, min(len(now), at + 2)))
    now[at:end] = draw(st.lists(st.sampled_from(LINES), max_size=2))
    return Content(old.mode, b"".join(now))


# -- one rule each ----------------------------------------------------------------


@settings(settings.get_profile("pure"))
@given(lines, lines)
def test_blocks_lead_from_one_version_to_the_other(old: list[bytes], new: list[bytes]) -> None:
    runs = [
        (b.old_start, b.old_end, new[b.new_start : b.new_end]) for b in linemap.blocks(old, new)
    ]
    assert linemap.replace_runs(old, runs) == new


@settings(settings.get_profile("pure"))
@given(lines, lines, st.data())
def test_lines_are_found_where_they_were(
    old: list[bytes], new: list[bytes], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(new)))
    end = data.draw(st.integers(start, len(new)))
    changed = linemap.blocks(old, new)
    was = linemap.back(changed, start, end)
    # Where each line of the new version was, told another way.
    origin: dict[int, int] = {}
    shift = done = 0
    for block in [*changed, linemap.Block(len(old), len(old), len(new), len(new))]:
        origin |= {at: at + shift for at in range(done, block.new_start)}
        done, shift = block.new_end, block.old_end - block.new_end
    were = [origin[at] for at in range(start, end) if at in origin]
    if start < end:
        together = len(were) == end - start == were[-1] - were[0] + 1 if were else False
        assert was == ((were[0], were[-1] + 1) if together else None)
    elif was is not None:
        assert was[0] == was[1]
        assert origin.get(start - 1, was[0] - 1) == was[0] - 1 or origin.get(start) == was[0]


@settings(settings.get_profile("pure"))
@given(st.lists(lines, min_size=1, max_size=4))
def test_every_line_has_an_owner_who_has_it(versions: list[list[bytes]]) -> None:
    found = linemap.owners(versions)
    assert len(found.lines) == len(versions[-1])
    for line, owner in zip(versions[-1], found.lines, strict=True):
        assert all(line in version for version in versions[owner:])


def _diff(old: bytes, new: bytes) -> FileDiff:
    """A change of a file, as one hunk a block, without context."""
    before, after = split_lines(old), split_lines(new)
    hunks = []
    for block in linemap.blocks(before, after):
        gone = before[block.old_start : block.old_end]
        come = after[block.new_start : block.new_end]
        hunks.append(
            Hunk(
                block.old_start + bool(gone),
                len(gone),
                block.new_start + bool(come),
                len(come),
                b"",
                tuple([b"-" + line for line in gone] + [b"+" + line for line in come]),
            )
        )
    ids = [Content(REGULAR, data).id for data in (old, new)]
    return FileDiff(b"f", REGULAR, REGULAR, *ids, hunks=tuple(hunks))


@settings(settings.get_profile("pure"))
@given(contents(), contents())
def test_a_patch_gives_what_it_was_made_from(one: Content, other: Content) -> None:
    if one.data == other.data:
        return
    diff = _diff(one.data, other.data)
    [again] = filediff.parse(filediff.render(diff))
    assert again == diff
    given_back = apply_diff(again, Content(REGULAR, one.data), "p")
    assert given_back == Content(REGULAR, other.data)


@settings(settings.get_profile("pure"))
@given(st.binary(min_size=1, max_size=12))
def test_paths_come_back(path: bytes) -> None:
    assert filediff.unquote(filediff.quote(path)) == path


words = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "Zs"]), max_size=30)


@settings(settings.get_profile("pure"))
@given(words, st.lists(words, max_size=4), st.integers(0, 2**31), st.integers(-11, 13))
def test_messages_come_back_or_are_refused(
    subject: str, body: list[str], seconds: int, zone: int
) -> None:
    from ci.series.message import problems

    message = Message(subject, "\n".join(body))
    patch = PatchFile(message, AUTHOR, f"{seconds} {zone:+03d}30", ())
    if not problems(message):
        assert patchfile.parse(patchfile.render(patch)) == patch


@settings(settings.get_profile("pure"))
@given(st.data())
def test_an_absorbed_edit_is_there_and_nowhere_too_early(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 3))
    versions: list[Content | None] = [data.draw(contents())]
    for _ in range(count):
        versions.append(data.draw(st.one_of(st.just(versions[-1]), edited(versions[-1]))))
    before = list(versions)
    draft = Draft(
        [DraftPatch(Patch(f"{i}.patch", "t"), Message(f"{i}", ""), CLOCK) for i in range(count)],
        {b"a": versions},
        {},
        frozenset([b"a"]),
        "L",
    )
    new = data.draw(edited(versions[-1]))
    target = data.draw(st.none() | st.integers(0, count - 1))
    fallback = data.draw(st.none() | st.integers(0, count - 1))
    if new == versions[-1]:
        return
    draft.take([Edit(b"a", versions[-1], new)], target, fallback)
    homes = [one.home for one in draft.routed if one.home is not None]
    first = min(homes, default=count)
    assert versions[: first + 1] == before[: first + 1]
    assert draft.routed
    if not draft.unassigned:
        assert versions[-1] == new
    if not homes:
        assert versions == before
    else:
        assert versions[first + 1] != before[first + 1]


# -- the whole way, without a work tree -----------------------------------------------

Tree = dict[str, Content]


@dataclass(frozen=True)
class Bench:
    """A repository that the examples share."""

    store: Git


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    store = Git(tmp_path_factory.mktemp("bench") / "store.git")
    store.init()
    (store.git_dir / "info").mkdir(exist_ok=True)
    return Bench(store)


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    found = {path: draw(st.none() | contents()) for path in UPSTREAM}
    return {"always": Content(REGULAR, b"there\n")} | {p: c for p, c in found.items() if c}


def _changed(tree: Mapping[str, Content], changes: Mapping[str, Content | None]) -> Tree:
    return {p: c for p, c in {**tree, **changes}.items() if c is not None}


@st.composite
def series_steps(draw: st.DrawFn, base: Tree) -> list[dict[str, Content | None]]:
    """What each patch changes; each changes something, and adds only what is not there."""
    steps = []
    tree = dict(base)
    for _ in range(draw(st.integers(0, 3))):
        step: dict[str, Content | None] = {}
        for path in UPSTREAM:
            if path in base and draw(st.booleans()):
                step[path] = draw(edited(tree.get(path)))
        for path in ADDED:
            if path not in tree and draw(st.integers(0, 2)) == 0:
                step[path] = draw(contents())
        step = {path: c for path, c in step.items() if tree.get(path) != c}
        if step:
            steps.append(step)
            tree = _changed(tree, step)
    return steps


def _base(store: Git, tree: Tree) -> BaseTree:
    """Write a base, with what is known of it."""
    who = f"u <u@u> {CLOCK}".encode()
    feed = [b"commit refs/heads/base\nmark :1\ncommitter %s\ndata 0\n" % who]
    for path, content in tree.items():
        head = b"M %s inline %s\n" % (content.mode.encode(), filediff.quote(path.encode()))
        feed.append(head + b"data %d\n%s\n" % (len(content.data), content.data))
    feed.append(b'get-mark :1\nls :1 ""\ndone\n')
    out = store.run("fast-import", "--quiet", "--force", "--done", stdin=b"".join(feed)).split()
    entries = {p.encode(): Entry(c.mode, c.id) for p, c in tree.items()}
    return BaseTree(out[0].decode(), out[3].decode(), entries)


def _series(store: Git, base: BaseTree, steps: list[dict[str, Content | None]]) -> SeriesFiles:
    """The steps as a series on paper, by way of commits."""
    topics = (Topic("t", "T"),)
    planned = []
    for number, step in enumerate(steps):
        parsed = PatchFile(Message(f"[Test] Step {number}", ""), AUTHOR, CLOCK, ())
        changes = {path.encode(): content for path, content in step.items()}
        planned.append(Planned(Patch(f"{number}.patch", "t"), parsed, changes, {}))
    commits = compose.write(store, base, planned)
    trees_after = [base.tree, *(commit.tree for commit in commits)]
    return export(store, base, planned, trees_after, topics, "L")


def _ids(tree: Mapping[str, Content]) -> dict[bytes, Entry]:
    return {path.encode(): Entry(content.mode, content.id) for path, content in tree.items()}


@settings(settings.get_profile("whole"))
@given(st.data())
def test_series_and_commits_are_two_views_of_one_thing(bench: Bench, data: st.DataObject) -> None:
    """export(compose(s)) == s; and random edits come back as a series that gives them."""
    store = bench.store
    upstream = data.draw(trees(), label="upstream")
    steps = data.draw(series_steps(upstream), label="series")
    base = _base(store, upstream)
    files = _series(store, base, steps)
    planned = compose.plan(store, base, files)
    composed = compose.compose(store, base, files, planned)
    check_fixed_point(store, files, planned, composed)

    tree = upstream
    for step in steps:
        tree = _changed(tree, step)
    draft = draft_of(planned, composed, store, "L")
    for number in range(data.draw(st.integers(1, 2))):
        paths = data.draw(st.sets(st.sampled_from(UPSTREAM + ADDED), min_size=1), label="paths")
        changes = {path: data.draw(edited(tree.get(path)), label=path) for path in sorted(paths)}
        edits = [
            Edit(path.encode(), tree.get(path), content)
            for path, content in changes.items()
            if tree.get(path) != content
        ]
        target = fallback = None
        where = data.draw(st.integers(-1, len(draft.patches)), label="where")
        if where == len(draft.patches):
            message = Message(f"[Test] New {number}", "")
            target = draft.append(DraftPatch(Patch("", "t"), message, CLOCK))
        elif where >= 0 and data.draw(st.booleans(), label="named"):
            target = where
        elif where >= 0:
            fallback = where
        draft.take(edits, target, fallback)
        if draft.unassigned:
            return
        tree = _changed(tree, changes)
    new, again = series_of(store, base, draft, files, drop_empty=True)
    assert list_tree(store, again.tree) == _ids(tree)
    first = min((one.home for one in draft.routed if one.home is not None), default=0)
    for ours, theirs in itertools.islice(
        zip(files.series.patches, new.series.patches, strict=False), first
    ):
        assert files.patches[ours.file] == new.patches[theirs.file]


# -- the whole way, with one; cut short at a random step --------------------------------


class Killed(BaseException):
    """The run ends here."""


@pytest.fixture(autouse=True)
def _unwatched() -> Iterator[None]:
    yield
    checkpoints.watch(None)


def _cut_short(project: Project, after: int, *words: str) -> bool:
    """Run refresh until the checkpoint number `after`; whether it came to its end."""
    left = itertools.count(after, -1)

    def watch(name: str) -> None:
        if next(left) == 0:
            raise Killed(name)

    checkpoints.watch(watch)
    try:
        project.refresh(*words)
    except Killed:
        return False
    finally:
        checkpoints.watch(None)
    return True


def test_no_edit_is_lost(tmp_path_factory: pytest.TempPathFactory) -> None:
    cut: list[bool] = []

    @settings(settings.get_profile("killed"))
    # A refresh passes some fifty checkpoints.
    @given(data=st.data(), after=st.integers(0, 55))
    def check(data: st.DataObject, after: int) -> None:
        cut.append(_edit_is_kept(tmp_path_factory.mktemp("killed"), data, after))

    check()
    # Runs that came to their end say nothing of those that did not.
    assert any(cut)


def _edit_is_kept(root: Path, data: st.DataObject, after: int) -> bool:
    """Refresh random edits, cut short at a checkpoint; whether any run was."""
    cut = False
    upstream = data.draw(trees())
    project = Project.make(root / "project", upstream, sdist=False)
    project.apply()
    tree = dict(upstream)
    for number in range(data.draw(st.integers(1, 2))):
        paths = data.draw(st.sets(st.sampled_from(UPSTREAM + ADDED), min_size=1))
        for path in sorted(paths):
            content = data.draw(edited(tree.get(path)))
            tree = _changed(tree, {path: content})
            put(project.work, path, content)
        old = project.series()
        edits = project.files()
        words = ("--new", f"[Test] Step {number}") if number == 0 else ("--to", "1")
        if tree == upstream:
            break
        try:
            done = _cut_short(project, after, *words, "--drop-empty")
        except Exception as fault:
            assert "no patch" in str(fault) or "unassigned" in str(fault), fault
            break
        cut = cut or not done
        assert project.files() == edits
        project.apply()
        assert project.files() == edits
        if not done and project.series() == old:
            project.refresh(*words, "--drop-empty")
        assert project.files() == edits
        assert project.refresh().written == ()
        assert project.git("status", "--porcelain") == ""
        assert not project.apply().changed
    shutil.rmtree(root)
    return cut
