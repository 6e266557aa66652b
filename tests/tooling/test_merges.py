"""Two people refresh in two branches, and git merges them."""

from __future__ import annotations

import random
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ci.core.content import REGULAR, Content
from ci.core.errors import Fault
from ci.series import diff as filediff
from ci.series.hunks import apply_diff
from ci.series.merged import settled
from tests.tooling.projects import Project, text

RULES = "/patches/** -text -ident -filter\n/overlay/** -text -ident -filter\n"
THIRD = "patches/L/0003-Bugfix-Thirty-and-no-going.patch"
Work = Callable[[Project], object]


def _git(project: Project, *words: str) -> str:
    return project.git(*words, where=project.root)


def _merge(project: Project, ours: Work, theirs: Work, style: str = "merge") -> list[str]:
    """Let each do their work in a branch, and merge theirs into ours.

    Returns:
        The files that git could not merge.
    """
    (project.root / ".gitignore").write_text("/build/\n")
    (project.root / ".gitattributes").write_text(RULES)
    _git(project, "init", "-q", "-b", "main")
    _git(project, "add", "-A")
    _git(project, "commit", "-qm", "base")
    other = project.copy(project.root.with_name("other"))
    for one, work in ((project, ours), (other, theirs)):
        work(one)
        _git(one, "add", "-A")
        _git(one, "commit", "-qm", "work")
    _git(project, "fetch", "-q", str(other.root), "HEAD")
    words = ["git", "-c", f"merge.conflictStyle={style}", "merge", "-q", "FETCH_HEAD"]
    subprocess.run(words, cwd=project.root, check=False, capture_output=True)
    return _git(project, "diff", "--name-only", "--diff-filter=U").splitlines()


def _lines(*changes: tuple[str, str], to: str) -> Work:
    """Refresh changed lines of vllm/a.py into one patch."""

    def work(project: Project) -> None:
        for old, new in changes:
            project.replace("vllm/a.py", old, new)
        project.refresh("--to", to)

    return work


def _resolve(project: Project, path: str, inside: bytes, keep: bytes) -> None:
    """Put `keep` in the place of the one conflict that holds `inside`, as in an editor."""
    file = project.root / path
    regions = re.findall(rb"<{7} .*?\n>{7} .*?\n", file.read_bytes(), flags=re.DOTALL)
    (region,) = [one for one in regions if inside in one]
    file.write_bytes(file.read_bytes().replace(region, keep))


def _check(project: Project) -> None:
    """The series is whole, in canonical form, and the work tree is its own."""
    assert not project.apply().changed
    assert project.refresh().written == ()
    assert project.git("status", "--porcelain") == ""


@pytest.mark.parametrize("style", ["merge", "diff3"])
def test_what_does_not_touch_settles_by_itself(project: Project, style: str) -> None:
    """Ids, lengths and line numbers of a later patch, where each side's are wrong."""
    ours = _lines(
        ("from vllm import new\n", "from vllm import new\nfrom x import y\n"),
        ("a line 12\n", "a line twelve\nmore\n"),
        to="Add-a-new-file",
    )
    theirs = _lines(
        ("a line thirty\n", "a line thirty!\nand more\n"),
        ("a line 38\n", "a line XXXVIII\n"),
        to="Thirty",
    )
    assert _merge(project, ours, theirs, style) == [THIRD, "patches/L/series.lock"]
    merged = project.series()
    with pytest.raises(Fault, match=f"{THIRD} has merge conflicts, in ids and line numbers only"):
        project.apply()
    assert project.series() == merged
    project.apply("--relock")
    _check(project)
    said = project.files()["vllm/a.py"].decode().splitlines()
    assert said[4:8] == ["a line 5", "from vllm import new", "from x import y", "a line 6"]
    assert said[13:15] == ["a line twelve", "more"]
    assert said[32:34] == ["a line thirty!", "and more"]
    assert said[41] == "a line XXXVIII"
    assert len(said) == 44


def test_both_add_a_line_to_one_hunk(project: Project) -> None:
    """Git merges its header, which both changed alike, and that is too short."""
    ours = _lines(("a line 27\n", "a line 27\nours\n"), to="Thirty")
    theirs = _lines(("a line 33\n", "theirs\na line 33\n"), to="Thirty")
    assert _merge(project, ours, theirs) == [THIRD, "patches/L/series.lock"]
    project.apply("--relock")
    _check(project)
    said = project.files()["vllm/a.py"].decode().splitlines()
    assert said[27:36] == [
        "a line 27", "ours", "a line 28", "a line 29", "a line thirty",
        "a line 31", "a line 32", "theirs", "a line 33",
    ]  # fmt: skip


def test_what_touches_is_left_to_a_person(project: Project) -> None:
    """Who resolves the changed lines, and leaves the rest as git has marked it."""
    ours = _lines(("a line thirty\n", "a line XXX\nours\n"), to="Thirty")
    theirs = _lines(("a line thirty\n", "a line 3*10\n"), to="Thirty")
    assert _merge(project, ours, theirs) == [THIRD, "patches/L/series.lock"]
    merged = project.series()
    for words in ((), ("--relock",)):
        with pytest.raises(Fault, match=f"{THIRD} has merge conflicts: resolve those that hold"):
            project.apply(*words)
    assert project.series() == merged
    _resolve(project, THIRD, b"+a line XXX", b"+a line XXX, or 3*10\n")
    assert b"<<<<<<< " in (project.root / THIRD).read_bytes()
    project.apply("--relock")
    _check(project)
    assert b"29\na line XXX, or 3*10\na line 31\n" in project.files()["vllm/a.py"]


def test_a_hunk_that_fits_twice_is_not_guessed(project: Project) -> None:
    """Its line number was right before the merge: the other block stands there now."""
    block = "".join(f"same {number}\n" for number in range(9))
    _lines(("a line 20\n", f"a line 20\n{block}"), to="Add-a-new-file")(project)
    ours = _lines(("a line 20\n", f"a line 20\n{block}"), to="Add-a-new-file")

    def theirs(project: Project) -> None:
        project.replace("vllm/a.py", "same 4\n", "other\n")
        project.refresh("--new", "[Core] Another")

    _merge(project, ours, theirs)
    merged = project.series()
    with pytest.raises(Fault, match=r"0004-Core-Another.*hunk 1 of 1 .* fits in 2 places"):
        project.apply("--relock")
    assert project.series() == merged


def test_the_same_lines_at_two_places_are_not_one_hunk(project: Project) -> None:
    """Which git takes them for: only their context is in conflict."""
    block = "".join(f"same {number}\n" for number in range(9))
    ours = _lines(("a line 12\n", f"a line 12\n{block}"), to="Say-six")
    theirs = _lines(("a line 24\n", f"a line 24\n{block}"), to="Say-six")
    path = "patches/L/0001-Build-Say-six.patch"
    assert path in _merge(project, ours, theirs)
    with pytest.raises(Fault, match=f"{path} has merge conflicts: resolve"):
        project.apply("--relock")


def test_counts_are_written_anew_where_that_is_asked_for(project: Project) -> None:
    """Lines that no header says are refused, with the way to say that they are meant."""
    patch = project.root / "patches/L/0001-Build-Say-six.patch"
    patch.write_bytes(patch.read_bytes().replace(b"line six\n", b"line six\n+and more\n"))
    with pytest.raises(Fault, match="the hunk's lines do not add up to its header") as caught:
        project.apply("--relock")
    meant = re.search(r"`(index .*?) MODE`", caught.value.todo)
    assert meant is not None
    data = re.sub(rb"index \w+\.\.\w+", meant[1].encode(), patch.read_bytes())
    patch.write_bytes(data)
    project.apply("--relock")
    _check(project)
    assert b"setup line six\nand more\n" in project.files()["setup.py"]


def test_a_patch_of_each(project: Project) -> None:
    """Two patches of one number, both kept in series.toml: the later one moves on."""

    def new(path: str, title: str) -> Work:
        def work(project: Project) -> None:
            project.write(path, text(title))
            project.refresh("--new", title)

        return work

    ours, theirs = new("ours.py", "[Core] Ours"), new("theirs.py", "[Core] Theirs")
    assert _merge(project, ours, theirs) == [
        "patches/L/series.lock",
        "patches/L/series.toml",
    ]
    with pytest.raises(Fault, match=r"series.toml has merge conflicts: resolve them in the file"):
        project.apply("--relock")
    toml = project.root / "patches/L/series.toml"
    both = re.sub(r"(?m)^(<{7}|>{7}) .*\n", "", toml.read_text())
    toml.write_text(both.replace("=======\n", "needs = []\n\n[[patch]]\n"))
    project.apply("--relock")
    _check(project)
    names = sorted(path.name for path in project.layout.patches.glob("*.patch"))
    assert names[3:] == ["0004-Core-Ours.patch", "0005-Core-Theirs.patch"]


def test_conflicts_in_an_overlay_file(project: Project) -> None:
    def new(line: str) -> Work:
        def work(project: Project) -> None:
            project.write("vllm/new.py", text("new = 1", line))
            project.refresh()

        return work

    path = "overlay/L/vllm/new.py"
    conflicts = _merge(project, new("newer = 3"), new("newer = 4"))
    assert conflicts == [path, "patches/L/series.lock"]
    for words in ((), ("--relock",)):
        with pytest.raises(Fault, match=f"{path} has merge conflicts: resolve"):
            project.apply(*words)
    _resolve(project, path, b"newer", b"newer = 34\n")
    with pytest.raises(
        Fault, match=r"series\.lock has merge conflicts: `nox -s apply -- --relock`"
    ):
        project.apply()
    project.apply("--relock")
    _check(project)
    assert project.files()["vllm/new.py"] == b"new = 1\nnewer = 34\n"


def test_refresh_takes_no_conflicts_into_the_overlay(project: Project) -> None:
    before = project.series()
    project.write("vllm/new.py", text("<<<<<<< HEAD", "1", "=======", "2", ">>>>>>> x"))
    with pytest.raises(Fault, match=r"adds vllm/new\.py, which has merge conflicts"):
        project.refresh()
    assert project.series() == before


# -- any two edits -------------------------------------------------------------------

Edits = dict[int, list[bytes]]
"""Lines of a file by their number, each with those that stand in its place."""
LINES = [b"line %d\n" % number for number in range(200)]


def _with(*edits: Edits) -> bytes:
    both = {number: new for some in edits for number, new in some.items()}
    return b"".join(b"".join(both.get(n, [line])) for n, line in enumerate(LINES))


def _patch(where: Path, old: bytes, new: bytes) -> bytes:
    """A file's change as git writes it."""
    for name, data in (("old", old), ("new", new)):
        (where / name).write_bytes(data)
    words = ["git", "diff", "--no-index", "--full-index", "old", "new"]
    said = subprocess.run(words, cwd=where, check=False, capture_output=True).stdout
    return said.replace(b"a/old", b"a/f").replace(b"b/new", b"b/f")


def _merged(where: Path, ours: bytes, base: bytes, theirs: bytes) -> bytes:
    for name, data in (("ours", ours), ("base", base), ("theirs", theirs)):
        (where / name).write_bytes(data)
    words = ["git", "merge-file", "-p", "ours", "base", "theirs"]
    return subprocess.run(words, cwd=where, check=False, capture_output=True).stdout


def _settled_file(where: Path, first: list[Edits], second: list[Edits]) -> bytes:
    """The file that two merged patches give.

    Args:
        first: what the first patch changes: before, in our branch, and in theirs.
        second: the same of the second patch, which stands on the first.
    """
    content = Content(REGULAR, _with())
    lower = [_patch(where, _with(), _with(one)) for one in first]
    pairs = zip(first, second, strict=True)
    upper = [_patch(where, _with(one), _with(one, more)) for one, more in pairs]
    for base, ours, theirs in (lower, upper):
        data = settled(_merged(where, ours, base, theirs))
        (diff,) = filediff.parse(data)
        after = apply_diff(diff, content, "a patch")
        assert after is not None
        content = after
    return content.data


def test_what_settles_is_what_both_have_made(tmp_path: Path) -> None:
    """Two patches of six hunks each, and each of two people adds to one hunk of either."""
    chance = random.Random(7)
    for number in range(25):

        def edit(at: int) -> Edits:
            return {at: [b"text %d.%d\n" % (number, at)] * chance.randrange(3)}  # noqa: B023

        places = chance.sample(range(5, len(LINES) - 5, 10), 12)
        lower, upper = [edit(at) for at in places[:6]], [edit(at) for at in places[6:]]
        ours = edit(places[0] + 1), edit(places[6] + 2)
        theirs = edit(places[1] + 2), edit(places[7] + 1)
        first, second = (dict(i for one in some for i in one.items()) for some in (lower, upper))
        found = _settled_file(
            tmp_path,
            [first, {**first, **ours[0]}, {**first, **theirs[0]}],
            [second, {**second, **ours[1]}, {**second, **theirs[1]}],
        )
        assert found == _with(first, second, *ours, *theirs)
