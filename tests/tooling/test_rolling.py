"""What becomes of a patch on another vLLM: every verdict, and nothing lost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from ci.core.content import REGULAR, Content
from ci.git.repo import Git
from ci.git.trees import list_tree, read_contents
from ci.roll.attempt import NOTE, Rolled, roll
from ci.roll.verdict import (
    Clash,
    FileVerdict,
    HunkVerdict,
    Outcome,
    PatchVerdict,
    Report,
    as_json,
    as_text,
)
from ci.series import compose as composing
from ci.series.from_git import file_diffs
from ci.series.model import read_files
from ci.series.resolutions import Resolution
from tests.tooling.projects import (
    A2,
    A3,
    UPSTREAM,
    Project,
    clone_of,
    commit,
    edit,
    numbered,
    text,
    write_tree,
)

Tree = Mapping[str, Content]


def _without(*paths: str) -> dict[str, Content]:
    return {path: content for path, content in UPSTREAM.items() if path not in paths}


def _roll(project: Project, target: Tree, *resolutions: Resolution) -> Rolled:
    store, old = project.base()
    commit_id, tree = write_tree(store, "refs/base/other", target)
    new = composing.read_base(store, commit_id, tree)
    files = read_files(project.layout)
    return roll(store, old, new, files, ("0.0.1", "0.0.2"), resolutions)


def _result(project: Project, rolled: Rolled) -> dict[str, bytes]:
    """The files after the last patch that could be placed."""
    store = Git(project.layout.store)
    base = store.text("rev-parse", "refs/base/other")
    head = composing.read_base(store, base, store.tree_of(base))
    commits = composing.write(store, head, rolled.planned)
    entries = list_tree(store, commits[-1].tree if commits else head.tree)
    contents = read_contents(store, entries.values())
    return {path.decode(): contents[entry].data for path, entry in entries.items()}


def _file(patch: PatchVerdict, path: str) -> FileVerdict:
    return next(file for file in patch.files if file.path == path)


def _outcomes(rolled: Rolled) -> list[Outcome]:
    return [patch.outcome for patch in rolled.report.patches]


# The sample's patches: 1 changes setup.py; 2 vllm/a.py (one hunk) and adds
# vllm/new.py; 3 vllm/a.py (one hunk), win.txt, deletes vllm/gone.py, and adds
# tests/test_new.py.


def test_the_same_vllm_is_clean(project: Project) -> None:
    rolled = _roll(project, UPSTREAM)
    assert _outcomes(rolled) == [Outcome.CLEAN] * 3
    assert rolled.stuck is None
    assert _result(project, rolled) == project.files()


def test_changes_elsewhere_are_clean(project: Project) -> None:
    target = {**UPSTREAM, "vllm/other.py": text("x"), "vllm/b.py": text("y")}
    assert _outcomes(_roll(project, target)) == [Outcome.CLEAN] * 3


def test_other_lines_in_the_file_but_not_near_are_clean(project: Project) -> None:
    target = {**UPSTREAM, "vllm/a.py": edit(UPSTREAM["vllm/a.py"], ("a line 18\n", "changed\n"))}
    rolled = _roll(project, target)
    assert _outcomes(rolled) == [Outcome.CLEAN] * 3
    assert b"changed\n" in _result(project, rolled)["vllm/a.py"]


def test_moved_lines(project: Project) -> None:
    setup = edit(UPSTREAM["setup.py"], ("setup line 1\n", "new\nnew\nsetup line 1\n"))
    rolled = _roll(project, {**UPSTREAM, "setup.py": setup})
    patch = rolled.report.patches[0]
    assert patch.outcome is Outcome.MOVED
    hunk = _file(patch, "setup.py").hunks[0]
    assert (hunk.outcome, hunk.line, hunk.offset) == (Outcome.MOVED, 5, 2)
    assert b"setup line six" in _result(project, rolled)["setup.py"]


def test_code_moved_to_another_place_in_the_file(project: Project) -> None:
    lines = numbered("a", 40)
    moved = lines[12:] + lines[:12]
    rolled = _roll(project, {**UPSTREAM, "vllm/a.py": text(*moved)})
    assert _outcomes(rolled)[1] is Outcome.MOVED
    assert b"a line 5\nfrom vllm import new\n" in _result(project, rolled)["vllm/a.py"]


def test_some_patches_alone_leave_the_others_where_they_are(project: Project) -> None:
    """The third patch is carried from the tree that holds the second; the second is not."""
    store, old = project.base()
    target = {**UPSTREAM, "vllm/a.py": edit(UPSTREAM["vllm/a.py"], ("a line 1\n", "0\na line 1\n"))}
    new = composing.read_base(store, *write_tree(store, "refs/base/other", target))
    files = read_files(project.layout)
    third = files.series.patches[2].name
    rolled = roll(store, old, new, files, ("0.0.1", "0.0.2"), only={third})
    assert [patch.file for patch in rolled.report.patches] == [files.series.patches[2].file]
    assert [one.patch.name for one in rolled.planned] == [third]
    result = _result(project, rolled)
    assert result["vllm/a.py"] == edit(target["vllm/a.py"], ("a line 30\n", "a line thirty\n")).data
    assert result["setup.py"] == UPSTREAM["setup.py"].data
    assert "vllm/new.py" not in result
    (commit,) = composing.write(store, new, rolled.planned)
    assert store.text("rev-parse", f"{commit.id}^") == new.commit


def test_a_renamed_file(project: Project) -> None:
    target = {**_without("vllm/a.py"), "vllm/core/a2.py": UPSTREAM["vllm/a.py"]}
    rolled = _roll(project, target)
    file = _file(rolled.report.patches[1], "vllm/a.py")
    assert (file.outcome, file.now) == (Outcome.MOVED, "vllm/core/a2.py")
    assert _outcomes(rolled)[2] is Outcome.MOVED
    result = _result(project, rolled)
    assert result["vllm/core/a2.py"] == A3.data
    assert "vllm/a.py" not in result


def test_renamed_twins_are_told_apart_or_left_open(tmp_path: Path) -> None:
    twin = text(*(f"twin {n}" for n in range(12)))
    upstream = {**UPSTREAM, "vllm/x/one.py": twin, "vllm/y/two.py": twin}
    project = Project.make(tmp_path / "p", upstream)
    clone = clone_of(project, tmp_path / "clone")
    change = edit(twin, ("twin 5\n", "twin five\n"))
    commit(clone, "[Core] Twin", {"vllm/y/two.py": change})
    project.take(clone, "HEAD~1..HEAD", "core")
    kept = {**UPSTREAM, "vllm/a/one.py": twin, "vllm/b/two.py": twin}
    rolled = _roll(project, kept)
    file = rolled.report.patches[0].files[0]
    assert (file.outcome, file.now) == (Outcome.MOVED, "vllm/b/two.py")
    assert _result(project, rolled)["vllm/a/one.py"] == twin.data
    for names in (("vllm/a/a.py", "vllm/b/b.py"), ("vllm/a/a.py",), ("vllm/b/x.py", "vllm/x/y.py")):
        rolled = _roll(project, {**UPSTREAM, **dict.fromkeys(names, twin)})
        file = rolled.report.patches[0].files[0]
        assert (file.outcome, file.now) == (Outcome.DELETED, "")
        assert len(names) == 1 or all(name in file.note for name in names)
        assert rolled.stuck is not None
        assert b"vllm/y/two.py" + NOTE in rolled.stuck.marked.changes


@pytest.mark.parametrize(
    ("now", "says"),
    [
        (Content("120000", b"b.py"), "a symbolic link upstream, to b.py"),
        (Content(REGULAR, b"\0bin"), "a binary file upstream"),
    ],
)
def test_what_is_no_text_upstream_is_named(project: Project, now: Content, says: str) -> None:
    rolled = _roll(project, {**UPSTREAM, "setup.py": now})
    file = _file(rolled.report.patches[0], "setup.py")
    assert (file.outcome, file.note) == (Outcome.CONFLICT, says)
    assert says in as_text(rolled.report)


def test_a_hunk_with_two_places_is_open_and_lists_them(tmp_path: Path) -> None:
    body = [f"    step {n}" for n in range(9)]
    upstream = {**UPSTREAM, "vllm/c.py": text("class A:", *body, "", "class B:", *body)}
    project = Project.make(tmp_path / "p", upstream)
    clone = clone_of(project, tmp_path / "clone")
    changed = [*body[:4], *body[6:]]
    commit(clone, "[Core] B", {"vllm/c.py": text("class A:", *body, "", "class B:", *changed)})
    project.take(clone, "HEAD~1..HEAD", "core")
    swapped = {**upstream, "vllm/c.py": text("class B:", *body, "", "class A:", *body)}
    rolled = _roll(project, swapped)
    assert _outcomes(rolled) == [Outcome.MOVED]
    want = text("class B:", *changed, "", "class A:", *body)
    assert _result(project, rolled)["vllm/c.py"] == want.data
    target = {**upstream, "vllm/c.py": text("class C:", *body, "", "class A:", *body)}
    rolled = _roll(project, target)
    assert _outcomes(rolled) == [Outcome.CONFLICT]
    told = as_text(rolled.report)
    assert "line 3 in `class C:`, line 14 in `class A:`" in told
    assert "it belongs in `class B:`" in told
    assert rolled.stuck is not None
    note = rolled.stuck.marked.changes[b"vllm/c.py" + NOTE]
    assert note is not None
    assert b"-    step 4\n" in note.data
    assert b"vllm/c.py" not in rolled.stuck.marked.changes or (
        rolled.stuck.marked.changes[b"vllm/c.py"] == target["vllm/c.py"]
    )


def test_an_open_patch_lists_its_clean_hunks_too(project: Project) -> None:
    target = {**UPSTREAM, "vllm/a.py": edit(UPSTREAM["vllm/a.py"], ("a line 30\n", "XXX\n"))}
    told = as_text(_roll(project, target).report)
    assert "win.txt: clean" in told
    assert "hunk 1 of 1 @@ -1,3 +1,3 @@: clean, line 1" in told


def test_a_changed_neighbour_is_merged_and_said(project: Project) -> None:
    target = {**UPSTREAM, "vllm/a.py": edit(UPSTREAM["vllm/a.py"], ("a line 3\n", "changed\n"))}
    rolled = _roll(project, target)
    hunk = _file(rolled.report.patches[1], "vllm/a.py").hunks[0]
    assert (hunk.outcome, hunk.note) == (Outcome.MERGED, "with other lines around it")
    want = edit(A3, ("a line 3\n", "changed\n"))
    assert _result(project, rolled)["vllm/a.py"] == want.data


def test_a_conflict_names_file_hunk_sides_and_place(project: Project) -> None:
    setup = edit(
        UPSTREAM["setup.py"], ("setup line 1\n", "n\nsetup line 1\n"), ("line 6\n", "line VI\n")
    )
    rolled = _roll(project, {**UPSTREAM, "setup.py": setup})
    patch = rolled.report.patches[0]
    assert patch.outcome is Outcome.CONFLICT
    hunk = _file(patch, "setup.py").hunks[0]
    assert hunk.number == 1
    assert hunk.clashes[0].pinned == "setup line 6"
    assert hunk.clashes[0].upstream == "setup line VI"
    assert hunk.clashes[0].patch == "setup line six"
    assert hunk.clashes[0].line == 7
    assert hunk.nearest is not None
    assert (hunk.nearest.path, hunk.nearest.line, hunk.nearest.agreeing) == ("setup.py", 4, 6)
    assert rolled.stuck is not None
    marked = rolled.stuck.marked.changes[b"setup.py"]
    assert marked is not None
    assert (
        b"<<<<<<< upstream\nsetup line VI\n||||||| pinned\nsetup line 6\n"
        b"=======\nsetup line six\n>>>>>>> patch\n"
    ) in marked.data
    assert _outcomes(rolled)[1:] == [Outcome.CLEAN] * 2


def test_lines_that_went_to_another_file(project: Project) -> None:
    lines = numbered("a", 40)
    target = {
        **UPSTREAM,
        "vllm/a.py": text(*lines[14:]),
        "vllm/split.py": text("head", *lines[:14]),
    }
    rolled = _roll(project, target)
    hunk = _file(rolled.report.patches[1], "vllm/a.py").hunks[0]
    assert hunk.outcome is Outcome.CONFLICT
    assert hunk.nearest is not None
    assert (hunk.nearest.path, hunk.nearest.line) == ("vllm/split.py", 4)
    assert hunk.nearest.agreeing == hunk.nearest.of == 6


def test_a_sibling_that_always_had_the_lines_is_no_new_home(tmp_path: Path) -> None:
    upstream = {**UPSTREAM, "vllm/twin.py": UPSTREAM["vllm/a.py"]}
    project = Project.make(tmp_path / "p", upstream)
    clone = clone_of(project, tmp_path / "clone")
    commit(clone, "[Core] Five", {"vllm/a.py": A2})
    project.take(clone, "HEAD~1..HEAD", "core")
    rolled = _roll(project, {**upstream, "vllm/a.py": text("rewritten", "altogether")})
    hunk = _file(rolled.report.patches[0], "vllm/a.py").hunks[0]
    assert (hunk.outcome, hunk.nearest) == (Outcome.CONFLICT, None)


def test_a_patch_that_is_upstream(project: Project) -> None:
    setup = edit(UPSTREAM["setup.py"], ("line 6\n", "line six\n"))
    rolled = _roll(project, {**UPSTREAM, "setup.py": setup})
    assert _outcomes(rolled) == [Outcome.UPSTREAM, Outcome.CLEAN, Outcome.CLEAN]
    assert rolled.dropped == ("Build-Say-six",)
    assert len(rolled.planned) == 2
    assert _result(project, rolled) == project.files()


def test_upstream_with_other_changes_around(project: Project) -> None:
    setup = edit(
        UPSTREAM["setup.py"],
        ("line 6\n", "line six\n"),
        ("line 4\n", "line IV\n"),
        ("line 1\n", "0\n1\n"),
    )
    rolled = _roll(project, {**UPSTREAM, "setup.py": setup})
    assert _outcomes(rolled)[0] is Outcome.UPSTREAM
    assert rolled.dropped == ("Build-Say-six",)


def test_perhaps_upstream_is_a_conflict_with_a_hint(project: Project) -> None:
    setup = edit(UPSTREAM["setup.py"], ("line 6\n", "line six\n"), ("line 5\n", "line V\n"))
    rolled = _roll(project, {**UPSTREAM, "setup.py": setup})
    hunk = _file(rolled.report.patches[0], "setup.py").hunks[0]
    assert hunk.outcome is Outcome.CONFLICT
    assert "perhaps taken already" in hunk.note


def test_partly_upstream_counts_hunks(project: Project) -> None:
    target = {
        **_without("vllm/gone.py"),
        "vllm/a.py": edit(UPSTREAM["vllm/a.py"], ("a line 30\n", "a line thirty\n")),
    }
    rolled = _roll(project, target)
    patch = rolled.report.patches[2]
    assert patch.outcome is Outcome.PARTLY
    assert _file(patch, "vllm/a.py").outcome is Outcome.UPSTREAM
    assert _file(patch, "vllm/gone.py").outcome is Outcome.UPSTREAM
    assert _file(patch, "win.txt").outcome is Outcome.CLEAN
    assert "1 of 3 hunks left" in as_text(rolled.report)
    assert _result(project, rolled) == project.files()


def test_a_hunk_that_is_half_upstream(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "p", UPSTREAM)
    clone = clone_of(project, tmp_path / "clone")
    change = edit(UPSTREAM["setup.py"], ("line 4\n", "line four\n"), ("line 7\n", "line seven\n"))
    commit(clone, "[Build] Two lines in one hunk", {"setup.py": change})
    project.take(clone, "HEAD~1..HEAD", "build")
    target = {**UPSTREAM, "setup.py": edit(UPSTREAM["setup.py"], ("line 4\n", "line four\n"))}
    rolled = _roll(project, target)
    hunk = _file(rolled.report.patches[0], "setup.py").hunks[0]
    assert hunk.outcome is Outcome.PARTLY
    assert hunk.note == "2 of its changed lines are upstream already"
    assert _result(project, rolled)["setup.py"] == change.data


def test_two_equal_blocks_change_the_right_one(tmp_path: Path) -> None:
    block = ["if x:", "    one()", "    two()", "else:", "    three()", ""]
    body = ["top", *block, "between", "between 2", "between 3", *block, "end"]
    upstream = {**UPSTREAM, "vllm/c.py": text(*body)}
    project = Project.make(tmp_path / "p", upstream)
    clone = clone_of(project, tmp_path / "clone")
    after = [*body]
    after[12] = "    second()"
    commit(clone, "[Core] Second block", {"vllm/c.py": text(*after)})
    project.take(clone, "HEAD~1..HEAD", "core")
    target = {**upstream, "vllm/c.py": text("new", "new", "new", *body)}
    rolled = _roll(project, target)
    assert _result(project, rolled)["vllm/c.py"] == text("new", "new", "new", *after).data


def test_a_line_added_where_it_is_already_is_not_taken_for_upstream(tmp_path: Path) -> None:
    upstream = {**UPSTREAM, "vllm/c.py": text("a", "x", "x", "x", "x", "x", "b")}
    project = Project.make(tmp_path / "p", upstream)
    clone = clone_of(project, tmp_path / "clone")
    commit(clone, "[Core] More", {"vllm/c.py": text("a", "x", "x", "x", "x", "x", "x", "b")})
    project.take(clone, "HEAD~1..HEAD", "core")
    target = {**upstream, "vllm/c.py": text("0", "a", "x", "x", "x", "x", "x", "b")}
    rolled = _roll(project, target)
    assert _outcomes(rolled) == [Outcome.MOVED]
    want = text("0", "a", "x", "x", "x", "x", "x", "x", "b")
    assert _result(project, rolled)["vllm/c.py"] == want.data


def test_a_deleted_file(project: Project) -> None:
    rolled = _roll(project, _without("setup.py"))
    patch = rolled.report.patches[0]
    assert patch.outcome is Outcome.DELETED
    assert _file(patch, "setup.py").hunks[0].outcome is Outcome.DELETED
    assert rolled.stuck is not None
    note = rolled.stuck.marked.changes[b"setup.py" + NOTE]
    assert note is not None
    assert b"deleted this file" in note.data
    assert b"+setup line six" in note.data


def test_a_file_that_the_patch_deletes_was_changed(project: Project) -> None:
    rolled = _roll(project, {**UPSTREAM, "vllm/gone.py": text("still here")})
    file = _file(rolled.report.patches[2], "vllm/gone.py")
    assert file.outcome is Outcome.CONFLICT
    assert "upstream changed" in file.note


def test_an_overlay_file_that_exists(project: Project) -> None:
    target = {**UPSTREAM, "vllm/new.py": text("new = 1", "other = 3")}
    rolled = _roll(project, target)
    file = _file(rolled.report.patches[1], "vllm/new.py")
    assert (file.outcome, file.overlay, file.alike) == (Outcome.EXISTS, True, 0.5)
    assert rolled.stuck is not None
    marked = rolled.stuck.marked.changes[b"vllm/new.py"]
    assert marked is not None
    assert marked.data.startswith(b"new = 1\n<<<<<<< upstream\nother = 3\n")


def test_an_overlay_file_that_is_upstream(project: Project) -> None:
    target = {**UPSTREAM, "vllm/a.py": A2, "vllm/new.py": text("new = 1", "newer = 2")}
    rolled = _roll(project, target)
    assert _outcomes(rolled) == [Outcome.CLEAN, Outcome.UPSTREAM, Outcome.CLEAN]
    assert _file(rolled.report.patches[1], "vllm/new.py").alike == 1.0


@pytest.mark.parametrize(
    ("extra", "note"),
    [
        ({"vllm/new.py/deep.py": text("x")}, "is a folder there"),
        ({"tests": text("x")}, "tests is a file there"),
    ],
)
def test_an_overlay_file_with_no_room(project: Project, extra: Tree, note: str) -> None:
    rolled = _roll(project, {**UPSTREAM, **extra})
    found = [file for patch in rolled.report.patches for file in patch.files if file.note]
    assert [(file.outcome, file.note) for file in found] == [(Outcome.EXISTS, note)]


def test_what_stands_on_an_open_patch_says_so(project: Project) -> None:
    target = {**UPSTREAM, "vllm/a.py": edit(UPSTREAM["vllm/a.py"], ("a line 5\n", "V\n"))}
    rolled = _roll(project, target)
    first, second, third = rolled.report.patches
    assert second.outcome is Outcome.CONFLICT
    assert (first.after, second.after) == ("", "")
    assert third.after == second.file
    assert third.outcome is Outcome.CLEAN


def test_crlf_and_bytes_survive(project: Project) -> None:
    target = {**UPSTREAM, "win.txt": Content(REGULAR, b"\xe9\r\nr1\r\nr2\r\nr3\r\n")}
    rolled = _roll(project, target)
    assert _result(project, rolled)["win.txt"] == b"\xe9\r\nr1\r\nR2\r\nr3\r\n"


def test_a_resolution_is_used_again_and_only_where_it_fits(project: Project) -> None:
    target = {**UPSTREAM, "setup.py": edit(UPSTREAM["setup.py"], ("line 6\n", "line VI\n"))}
    rolled = _roll(project, target)
    assert rolled.stuck is not None
    resolution = _resolved(project, rolled, {"setup.py": (b"setup line six", b"line VI and six")})
    again = _roll(project, target, resolution)
    assert _outcomes(again) == [Outcome.REMEMBERED, Outcome.CLEAN, Outcome.CLEAN]
    assert b"line VI and six\n" in _result(project, again)["setup.py"]
    later = {**target, "setup.py": edit(target["setup.py"], ("line 1\n", "line 0\nline 1\n"))}
    assert _outcomes(_roll(project, later, resolution))[0] is Outcome.REMEMBERED
    other = {**UPSTREAM, "setup.py": edit(UPSTREAM["setup.py"], ("line 6\n", "line 6a\n"))}
    assert _outcomes(_roll(project, other, resolution))[0] is Outcome.CONFLICT


def _resolved(
    project: Project, rolled: Rolled, sides: Mapping[str, tuple[bytes, bytes]]
) -> Resolution:
    """Settle each marked file by taking one line of the patch's side, changed."""
    assert rolled.stuck is not None
    marked = {p.decode(): c for p, c in rolled.stuck.marked.changes.items() if c is not None}
    solved = dict(marked)
    for path, (old, new) in sides.items():
        head, _, rest = marked[path].data.partition(b"<<<<<<< upstream\n")
        tail = rest.partition(b">>>>>>> patch\n")[2]
        assert old in marked[path].data
        solved[path] = Content(REGULAR, head + new + b"\n" + tail)
    store = Git(project.layout.store)
    before = write_tree(store, "refs/test/marked", marked)[1]
    after = write_tree(store, "refs/test/solved", solved)[1]
    return Resolution(rolled.stuck.marked.patch.name, file_diffs(store, [(before, after)])[0])


def test_json_says_all_that_the_table_says(project: Project) -> None:
    target = {**UPSTREAM, "setup.py": edit(UPSTREAM["setup.py"], ("line 6\n", "line VI\n"))}
    report = _roll(project, target).report
    data = json.loads(json.dumps(as_json(report)))
    assert data["counts"] == {"clean": 2, "conflict": 1}
    assert data["patches"][0]["files"][0]["hunks"][0]["clashes"][0]["upstream"] == "setup line VI"
    table = as_text(report)
    for word in ("0001-Build-Say-six.patch", "conflict", "setup line VI", "nearest upstream"):
        assert word in table


def test_a_long_clash_shows_what_the_patch_changes() -> None:
    lines = [f"line {n}" for n in range(40)]
    changed = [*lines[:20], "new", *lines[21:]]
    clash = Clash("\n".join(lines), "\n".join(["other"] * 30), "\n".join(changed), 7)
    hunk = HunkVerdict(1, "@@ -1 +1 @@", Outcome.CONFLICT, 7, clashes=(clash,))
    file = FileVerdict("a.py", Outcome.CONFLICT, hunks=(hunk,))
    report = Report("1", "2", "", "", (PatchVerdict("p.patch", Outcome.CONFLICT, (file,)),))
    told = as_text(report)
    assert "pinned   | … 20 lines as pinned\n               | line 20\n" in told
    assert "patch    | … 20 lines as pinned\n               | new\n" in told
    assert "… 18 more lines" in told
    assert "line 3\n" not in told
