"""Lint: each rule of the series, broken once."""

from __future__ import annotations

import hashlib
import re
import subprocess
from pathlib import Path

import pytest

from ci.core.errors import Fault
from ci.core.layout import Layout
from ci.pinned.pin import load_pin
from ci.series.check import check_series
from ci.series.lock import Lock, LockedPatch, check_inputs, dump_lock, load_lock
from ci.series.model import read_files
from tests.tooling.projects import LINE, UPSTREAM, Project, clone_of, commit, edit, text

BUILD = "patches/L/0001-Build-Say-six.patch"
CORE = "patches/L/0002-Core-Add-a-new-file.patch"
BUGFIX = "patches/L/0003-Bugfix-Thirty-and-no-going.patch"

HUNK = "@@ -3,7 +3,7 @@ setup line 2\n"
WIDER = "@@ -2,8 +2,8 @@ setup line 1\n setup line 2\n"


def _lint(project: Project) -> str:
    return "\n".join(map(str, check_series(project.layout)))


def _relock_by_hand(project: Project) -> None:
    """A lock that agrees with the bytes on disk, so that lint looks further."""
    files = read_files(project.layout)
    lock = load_lock(project.layout)
    assert lock is not None
    patches = []
    for old, patch in zip(lock.patches, files.series.patches, strict=True):
        overlay = {p: f"{files.overlay[p].mode} {files.overlay[p].id}" for p in patch.overlay}
        sha256 = hashlib.sha256(files.patches[patch.file]).hexdigest()
        patches.append(LockedPatch(patch.file, sha256, old.tree, overlay, old.base))
    project.layout.lock.write_bytes(dump_lock(Lock(lock.base_tree, tuple(patches))))


def test_the_sample_is_clean_and_needs_no_build(project: Project) -> None:
    import shutil

    shutil.rmtree(project.layout.build)
    assert _lint(project) == ""
    assert not project.layout.build.exists()


@pytest.mark.parametrize(
    ("path", "old", "new", "message"),
    [
        (BUILD, "Subject: [Build] Say", "Subject: Say", r"should start with a [Tag]"),
        (BUILD, "[Build] Say six", "[Build] Say 6", "should be called 0001-Build-Say-6"),
        (BUILD, "vLLM n-gram series <", "Somebody <", "is by Somebody"),
        (BUILD, "@@ -3,7 +3,7 @@", "@@ -3,07 +3,7 @@", "canonical form, line 11 is"),
        (BUILD, HUNK, WIDER, "more than three"),
        (BUILD, "index ", "index 1", "cannot read `index 1"),
        (BUILD, "+setup line six\n", "+setup line six  \n", "carriage return at the end"),
        (BUILD, "+setup line six\n", "+ \tsetup line six\n", "a space before a tab"),
        (BUILD, "+setup line six\n", "+<<<<<<< ours\n", "a conflict marker"),
        (CORE, "It is needed.", "It is  \nneeded.", "blanks at the end of a line of the message"),
        (CORE, "It is needed.", "From: nobody", "taken as the mail's"),
        (CORE, "It is needed.", "[PATCH] is fine here", ""),
        (BUGFIX, "deleted file mode 100644", "deleted file mode 100755", ""),
        ("patches/L/series.toml", "needs = []\n", "\nneeds = []\n", "toml: is not in canonical"),
        ("overlay/L/vllm/new.py", "newer = 2\n", "newer = 2", "no newline at its end"),
        ("overlay/L/vllm/new.py", "newer = 2\n", "newer = 2\n\n", "blank lines at its end"),
        ("overlay/L/vllm/new.py", "newer = 2\n", "newer = 2 \n", "line 2: blanks"),
        ("overlay/L/vllm/new.py", "newer = 2\n", "newer = 2\r\n", "line 2: blanks or a carriage"),
        ("overlay/L/vllm/new.py", "newer = 2\n", "newer = 2 \0\n", ""),
    ],
)  # fmt: skip
def test_each_rule(project: Project, path: str, old: str, new: str, message: str) -> None:
    file = project.root / path
    data = file.read_bytes()
    assert old.encode() in data
    file.write_bytes(data.replace(old.encode(), new.encode(), 1))
    _relock_by_hand(project)
    said = _lint(project)
    assert message in said
    assert bool(message) == bool(said)


def test_a_patch_made_for_other_bytes(project: Project) -> None:
    file = project.root / BUGFIX
    lines = file.read_bytes().split(b"\n")
    at = next(i for i, line in enumerate(lines) if line.startswith(b"index "))
    lines[at] = b"index " + b"1" * 40 + lines[at][46:]
    file.write_bytes(b"\n".join(lines))
    _relock_by_hand(project)
    assert "is made for 111111111111, but finds" in _lint(project)


def test_a_patch_that_differs_from_the_lock(project: Project) -> None:
    file = project.root / BUGFIX
    file.write_bytes(file.read_bytes().replace(b"thirty", b"30"))
    assert "0003-Bugfix-Thirty-and-no-going.patch differs from the lock" in _lint(project)


def test_names_that_collide(project: Project) -> None:
    toml = project.layout.series
    toml.write_text(
        toml.read_text().replace("0003-Bugfix-Thirty-and-no-going", "0003-build-SAY-six")
    )
    (project.root / BUGFIX).rename(project.root / "patches/L/0003-build-SAY-six.patch")
    assert "has the name of an earlier patch" in _lint(project)


def test_capitals_do_not_tell_files_apart(project: Project) -> None:
    (project.layout.overlay / "vllm/NEW.py").write_text("x\n")
    toml = project.layout.series
    toml.write_text(toml.read_text().replace('["vllm/new.py"]', '["vllm/NEW.py", "vllm/new.py"]'))
    _relock_by_hand(project)
    assert "overlay/L/vllm/new.py: differs from vllm/NEW.py only in capitals" in _lint(project)


def test_droppings_in_patches(project: Project) -> None:
    (project.layout.patches / "0001-x.patch.orig").write_text("x")
    (project.layout.patches / "topics").mkdir()
    assert _lint(project) == "patches/L/0001-x.patch.orig: does not belong here"


def test_a_topic_of_nothing(project: Project) -> None:
    toml = project.layout.series
    text = toml.read_text().replace(
        "\n[[patch]]",
        '\n[[topic]]\nname = "z"\ntitle = "z"\nupstream = ""\nstate = "local"\n\n[[patch]]',
        1,
    )
    toml.write_text(text)
    assert _lint(project) == "patches/L/series.toml: no patch belongs to the topic z"


def test_line_ends_that_git_converted_are_named(project: Project) -> None:
    for path, name in (
        (project.layout.overlay / "vllm/new.py", "overlay/L/vllm/new.py"),
        (project.layout.patches / "0001-Build-Say-six.patch", "0001-Build"),
    ):
        data = path.read_bytes()
        path.write_bytes(data.replace(b"\n", b"\r\n"))
        said = _lint(project)
        assert name in said
        assert "has CRLF line ends where the lock has LF" in said
        assert "core.autocrlf false" in said
        path.write_bytes(data)
    assert _lint(project) == ""


def test_short_ids_are_resolved_by_relock(project: Project) -> None:
    """What plain `git format-patch` writes; the id of a file that is another is no match."""
    before = project.series()
    data = before[BUILD].data
    match = re.search(rb"index ([0-9a-f]{7})[0-9a-f]{33}\.\.([0-9a-f]{7})[0-9a-f]{33}", data)
    assert match is not None
    short = data.replace(match[0], b"index %s..%s" % match.groups())
    (project.root / BUILD).write_bytes(short)
    _relock_by_hand(project)
    assert "setup.py: the ids in its index line are shortened" in _lint(project)
    project.apply("--relock")
    assert project.series() == before
    (project.root / BUILD).write_bytes(short.replace(match[1], b"1234567"))
    _relock_by_hand(project)
    assert "is made for 1234567, but finds" in _lint(project)


def _plain_patch(clone: Path, *words: str) -> bytes:
    """A commit as `git format-patch` writes it when nobody asks for anything."""
    words = ("git", "format-patch", "-1", "--stdout", *words)
    return subprocess.run(words, cwd=clone, check=True, capture_output=True).stdout


def _add(project: Project, data: bytes) -> None:
    """Put a patch at the end of the series by hand."""
    (project.layout.patches / "mine.patch").write_bytes(data)
    entry = '\n[[patch]]\nfile = "mine.patch"\ntopic = "core"\noverlay = []\nneeds = []\n'
    project.layout.series.write_text(project.layout.series.read_text() + entry)


def test_a_plain_patch_of_git_s_is_taken(project: Project, tmp_path: Path) -> None:
    """With `[PATCH]`, a stat, short ids and a signature; its ids are the base's, or not."""
    clone = clone_of(project, tmp_path / "clone")
    ours = edit(UPSTREAM["vllm/b.py"], ("b line 9\n", "b line nine\n"))
    moved = edit(UPSTREAM["vllm/a.py"], ("a line 20\n", "a line twenty\n"))
    commit(clone, "[Core] Words", {"vllm/b.py": ours, "vllm/a.py": moved}, "Why.")
    data = _plain_patch(clone)
    assert b"Subject: [PATCH] [Core]" in data and b"\n-- \n2." in data
    assert re.search(rb"^index [0-9a-f]{7,12}\.\.", data, re.MULTILINE)
    _add(project, data)
    project.apply("--relock")
    assert not (project.layout.patches / "mine.patch").exists()
    taken = (project.layout.patches / "0004-Core-Words.patch").read_bytes()
    assert f"index {UPSTREAM['vllm/b.py'].id}..{ours.id} 100644".encode() in taken
    assert b"-- \n" not in taken and b"[PATCH]" not in taken
    assert project.files()["vllm/b.py"] == ours.data
    assert b"a line twenty\n" in project.files()["vllm/a.py"]
    assert b"a line thirty\n" in project.files()["vllm/a.py"]
    assert not project.apply().changed


def test_a_plain_patch_that_does_not_fit_says_what_to_do(project: Project, tmp_path: Path) -> None:
    clone = clone_of(project, tmp_path / "clone")
    diff = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-1\n+2\n"
    setup = edit(UPSTREAM["setup.py"], ("setup line 6\n", "setup line 6!\n"))
    commit(clone, "[Core] A diff", {"vllm/b.py": text("b")}, f"It was:\n\n{diff}\nThat is all.")
    shown = _plain_patch(clone)
    commit(clone, "[Core] Elsewhere", {"setup.py": setup})
    elsewhere = _plain_patch(clone)
    commit(clone, "[Core] New", {"vllm/more.py": text("more")})
    before = project.series()
    for data, what, todo in (
        (shown, "mine.patch: line", "if a whole diff stands inside the message, indent it"),
        (elsewhere, "hunk 1 of 1 (@@ -3,7 +3,7 @@) does not apply", "make the change again"),
        (_plain_patch(clone), "adds vllm/more.py", "`git am` it in the work tree"),
    ):
        _add(project, data)
        with pytest.raises(Fault) as caught:
            project.apply("--relock")
        assert what in caught.value.what
        assert todo in caught.value.todo
        (project.layout.patches / "mine.patch").unlink()
        project.layout.series.write_bytes(before["patches/L/series.toml"].data)
    assert project.series() == before


def _in_git(project: Project, rules: dict[str, str]) -> None:
    """Make the project a repository, as a user has it."""
    project.git("init", "-q", where=project.root)
    for name, rule in rules.items():
        (project.root / name).write_text(rule)
    project.git("add", "-A", "patches", "overlay", where=project.root)


BYTES = "/patches/** -text -ident -filter\n/overlay/** -text -ident -filter\n"


def test_what_the_project_s_git_ignores_is_named(project: Project) -> None:
    _in_git(project, {".gitignore": "new.*\n", ".gitattributes": BYTES})
    said = _lint(project)
    assert said.startswith("overlay/L/vllm/new.py: is ignored by `new.*` (.gitignore line 1)")
    assert "git add -f -- overlay/L/vllm/new.py" in said
    project.git("add", "-f", "overlay/L/vllm/new.py", where=project.root)
    assert _lint(project) == ""
    (project.root / ".gitignore").write_text("new.*\n!new.py\n")
    project.git("rm", "-q", "--cached", "overlay/L/vllm/new.py", where=project.root)
    assert _lint(project) == ""
    project.write("vllm/new.more", text("1"))
    remarks = project.refresh("--to", "Say-six").remarks
    assert [line.split(":")[0] for line in remarks] == [
        "overlay/L/vllm/new.more is ignored by `new.*` (.gitignore line 1), "
        "so a clone would not have it"
    ]


def test_what_the_project_s_git_converts_is_named(project: Project) -> None:
    _in_git(project, {".gitattributes": BYTES})
    assert _lint(project) == ""
    (project.root / ".gitattributes").write_text(BYTES + "*.py ident\n")
    assert "overlay/L/vllm/new.py: may be converted by git (ident: set)" in _lint(project)
    (project.root / ".gitattributes").write_text(BYTES.replace("patches", "x"))
    assert f"{BUILD}: may be converted by git (text: unspecified)" in _lint(project)


def test_an_overlay_s_own_git_rules_are_refused(project: Project) -> None:
    """They would govern the project's checkout, too: neither written nor read."""
    before = project.series()
    project.write("docs/.gitignore", text("*.tmp"))
    with pytest.raises(Fault, match="govern this project's own checkout") as caught:
        project.refresh("--to", "Say-six")
    assert "put its rules into vLLM's own .gitignore" in caught.value.todo
    assert project.series() == before
    toml = project.layout.series
    toml.write_text(toml.read_text().replace('["vllm/new.py"]', '["vllm/.gitattributes"]'))
    assert "govern this project's own checkout" in _lint(project)


def test_a_clone_under_autocrlf_is_named_and_mended_as_it_says(
    project: Project, tmp_path: Path
) -> None:
    """Where the project has no .gitattributes, each person's setting decides."""
    _in_git(project, {".gitignore": "/build/\n"})
    project.git("add", "-A", where=project.root)
    project.git("commit", "-qm", "x", where=project.root)
    clone = tmp_path / "clone"
    words = ("clone", "-q", "-c", "core.autocrlf=true", str(project.root), str(clone))
    project.git(*words, where=tmp_path)
    other = Project(Layout(clone, LINE))
    assert b"\r\n" in (clone / BUILD).read_bytes()
    tree = load_pin(other.layout.pin).base_tree
    seen: list[str] = []
    for _ in range(2 * len(other.series())):
        try:
            check_inputs(load_lock(other.layout), read_files(other.layout), tree)
            break
        except Fault as fault:
            path, rest = fault.what.split(" ", 1)
            assert rest == "has CRLF line ends where the lock has LF: git converted it"
            assert "git config core.autocrlf false" in fault.todo
            assert f"git checkout -- {path}" in fault.todo
            named = (path, *fault.details)
        project.git("config", "core.autocrlf", "false", where=clone)
        for one in named:
            (clone / one).unlink()
            project.git("checkout", "--", one, where=clone)
        seen += named
    # What holds a CRLF already, as the patch of win.txt does, git leaves alone.
    assert set(seen) == {
        BUILD,
        CORE,
        "overlay/L/tests/test_new.py",
        "overlay/L/vllm/new.py",
    }


def test_the_project_keeps_its_series_as_bytes(tmp_path: Path) -> None:
    """A clone under core.autocrlf holds the bytes that were committed."""
    root = Path(__file__).parents[2]
    clone = tmp_path / "clone"
    origin = tmp_path / "origin"
    for path in ("patches/L/x.patch", "overlay/L/vllm/a/b.py", "other.txt"):
        (origin / path).parent.mkdir(parents=True, exist_ok=True)
        (origin / path).write_bytes(b"1\n2 $Id$\n")
    (origin / ".gitattributes").write_bytes((root / ".gitattributes").read_bytes())
    who = ("-c", "user.name=u", "-c", "user.email=u@u")
    subprocess.run(["git", "init", "-q", origin], check=True)
    subprocess.run(["git", "-C", origin, "add", "-A"], check=True)
    subprocess.run(["git", *who, "-C", origin, "commit", "-qm", "x"], check=True)
    subprocess.run(["git", "clone", "-q", "-c", "core.autocrlf=true", origin, clone], check=True)
    assert (clone / "patches/L/x.patch").read_bytes() == b"1\n2 $Id$\n"
    assert (clone / "overlay/L/vllm/a/b.py").read_bytes() == b"1\n2 $Id$\n"
    assert (clone / "other.txt").read_bytes() == b"1\r\n2 $Id$\r\n"
