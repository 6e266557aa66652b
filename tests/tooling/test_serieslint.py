"""Lint: each rule of the series, broken once."""

from __future__ import annotations

import pytest

from ci.lock import Lock, LockedPatch, dump_lock, load_lock
from ci.serieslint import check_series
from tests.tooling.projects import Project

BUILD = "patches/0001-Build-Say-six.patch"
CORE = "patches/0002-Core-Add-a-new-file.patch"
BUGFIX = "patches/0003-Bugfix-Thirty-and-no-going.patch"

HUNK = "@@ -3,7 +3,7 @@ setup line 2\n"
WIDER = "@@ -2,8 +2,8 @@ setup line 1\n setup line 2\n"


def _lint(project: Project) -> str:
    return "\n".join(map(str, check_series(project.layout)))


def _relock_by_hand(project: Project) -> None:
    """A lock that agrees with the bytes on disk, so that lint looks further."""
    import hashlib

    from ci.series import read_files

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
        (BUILD, "index ", "index 1", "must be whole"),
        (BUILD, "+setup line six\n", "+setup line six  \n", "carriage return at the end"),
        (BUILD, "+setup line six\n", "+ \tsetup line six\n", "a space before a tab"),
        (BUILD, "+setup line six\n", "+<<<<<<< ours\n", "a conflict marker"),
        (CORE, "It is needed.", "It is  \nneeded.", "blanks at the end of a line of the message"),
        (CORE, "It is needed.", "From: nobody", "taken as the mail's"),
        (CORE, "It is needed.", "[PATCH] is fine here", ""),
        (BUGFIX, "deleted file mode 100644", "deleted file mode 100755", ""),
        ("patches/series.toml", "needs = []\n", "\nneeds = []\n", "toml: is not in canonical"),
        ("patches/series.toml", 'needs = []\n\n', 'needs = []\ndeclared = ["setup.py"]\n\n',
         "setup.py is declared in series.toml, but"),
        ("overlay/vllm/new.py", "newer = 2\n", "newer = 2", "no newline at its end"),
        ("overlay/vllm/new.py", "newer = 2\n", "newer = 2\n\n", "blank lines at its end"),
        ("overlay/vllm/new.py", "newer = 2\n", "newer = 2 \n", "line 2: blanks"),
        ("overlay/vllm/new.py", "newer = 2\n", "newer = 2\r\n", "line 2: blanks or a carriage"),
        ("overlay/vllm/new.py", "newer = 2\n", "newer = 2\0\n", "binary bytes; declare it"),
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


def test_a_mode_must_be_declared(project: Project) -> None:
    (project.root / "overlay/vllm/new.py").chmod(0o755)
    _relock_by_hand(project)
    assert "vllm/new.py has a mode that changes or is not plain" in _lint(project)


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
    (project.root / BUGFIX).rename(project.root / "patches/0003-build-SAY-six.patch")
    assert "has the name of an earlier patch" in _lint(project)


def test_capitals_do_not_tell_files_apart(project: Project) -> None:
    (project.layout.overlay / "vllm/NEW.py").write_text("x\n")
    toml = project.layout.series
    toml.write_text(toml.read_text().replace('["vllm/new.py"]', '["vllm/NEW.py", "vllm/new.py"]'))
    _relock_by_hand(project)
    assert "overlay/vllm/new.py: differs from vllm/NEW.py only in capitals" in _lint(project)


def test_droppings_in_patches(project: Project) -> None:
    (project.layout.patches / "0001-x.patch.orig").write_text("x")
    (project.layout.patches / "topics").mkdir()
    assert _lint(project) == "patches/0001-x.patch.orig: does not belong here"


def test_a_topic_of_nothing(project: Project) -> None:
    toml = project.layout.series
    text = toml.read_text().replace(
        "\n[[patch]]",
        '\n[[topic]]\nname = "z"\ntitle = "z"\nupstream = ""\nstate = "local"\n\n[[patch]]',
        1,
    )
    toml.write_text(text)
    assert _lint(project) == "patches/series.toml: no patch belongs to the topic z"
