"""`nox -s upstream`: branch, sign-off, mail files and text; nothing is sent."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from ci import cli
from ci.core.errors import Fault
from ci.send import body
from ci.series.model import Patch, Series, SeriesFiles, Topic, dump_series, load_series
from ci.series.topics import closure, subset, topic_closure
from tests.tooling.projects import UPSTREAM, Project, put, sdist_of, text

TEMPLATE = (
    "<!-- x -->\nPLEASE FILL IN THE PR DESCRIPTION HERE\n\n## Purpose\n\n## Test Plan\n\n"
    "## Test Result\n\n---\nchecklist\n"
)
TEXT = (
    "## Purpose\n\nTo say six.\n\n### Why\n\nBecause.\n\n## Test Plan\n\npytest\n\n"
    "## Test Result\n\n<!-- include: build-table.md -->\n"
)
SPDX = "# SPDX-License-Identifier: Apache-2.0"


@pytest.fixture(autouse=True)
def _user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Ada User")
    monkeypatch.setenv("GIT_AUTHOR_EMAIL", "ada@example.com")


@pytest.fixture
def ready(project: Project) -> Project:
    """The sample with titles, texts and licence headers as a sender would have them."""
    put(project.root, "overlay/L/vllm/new.py", text(SPDX, "new = 1"))
    put(project.root, "overlay/L/tests/test_new.py", text(SPDX, "def test_new():", "    pass"))
    series = load_series(project.layout)
    titled = tuple(
        Topic(t.name, {"build": "[CI/Build] Say six", "core": "[Core] News"}[t.name])
        for t in series.topics
    )
    project.layout.series.write_bytes(dump_series(Series(titled, series.patches)))
    put(project.root, "patches/L/topics/build.md", text(*TEXT.splitlines()))
    put(project.root, "patches/L/topics/build-table.md", text("| a | b |", "|---|---|"))
    put(project.root, "patches/L/topics/core.md", text(*TEXT.splitlines()))
    put(project.root, "patches/L/topics/core-table.md", text("none"))
    project.apply("--relock")
    return project


@pytest.fixture
def upstream(tmp_path: Path) -> Path:
    """A clone of vLLM whose main has moved on since the pin."""
    clone = tmp_path / "upstream"
    moved = text("# moved", *UPSTREAM["setup.py"].data.decode().splitlines())
    trees = (UPSTREAM, {**UPSTREAM, "setup.py": moved})
    _git(tmp_path, "init", "-q", "-b", "main", str(clone))
    for tree in trees:
        for path, content in tree.items():
            put(clone, path, content)
        put(clone, ".github/PULL_REQUEST_TEMPLATE.md", text(*TEMPLATE.splitlines()))
        _git(clone, "add", "-A", "-f")
        _git(clone, "commit", "-q", "-m", "x")
    return clone


def _git(where: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=where, check=True, capture_output=True)
    return done.stdout.decode().strip()


def _run(project: Project, *words: str) -> int:
    return cli.main(["upstream", "--unchecked", *words], root=project.root)


def _send(project: Project, upstream: Path, topic: str = "build", *words: str) -> int:
    return _run(project, topic, "--onto", "main", "--source", str(upstream), *words)


def test_a_topic_on_main(
    ready: Project, upstream: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _send(ready, upstream, "build", "--fork", "git@example.com:ada/vllm.git") == 0
    told = capsys.readouterr().out
    log = ready.git("log", "--format=%an <%ae>%n%B", "-1", "upstream/build")
    assert log.startswith("Ada User <ada@example.com>\n[Build] Say six\n")
    assert log.endswith("\n\nSigned-off-by: Ada User <ada@example.com>")
    assert ready.git("rev-parse", "upstream/build^") == _git(upstream, "rev-parse", "main")
    assert ready.git("log", "--oneline", "upstream/build").count("\n") == 1
    diff = ready.git("diff", "--stat", "upstream/build^", "upstream/build")
    assert "setup.py | 2 +-" in diff
    assert "git -C build/L/vllm remote add fork git@example.com:ada/vllm.git\n" in told
    assert "git -C build/L/vllm push --force-with-lease fork upstream/build\n" in told
    assert (
        "gh pr create --repo vllm-project/vllm --base main --head ada:upstream/build "
        "--title '[CI/Build] Say six' --body-file build/L/upstream/build/body.md\n"
    ) in told


def test_the_work_tree_and_the_series_stay(ready: Project, upstream: Path) -> None:
    before = (ready.series(), ready.files(), ready.git("rev-parse", "HEAD"))
    assert _send(ready, upstream) == 0
    assert (ready.series(), ready.files(), ready.git("rev-parse", "HEAD")) == before
    assert ready.git("status", "--porcelain") == ""
    ready.apply()
    assert ready.git("branch", "--list", "upstream/build") != ""


def test_the_text_is_vllm_s_template_filled(ready: Project, upstream: Path) -> None:
    assert _send(ready, upstream) == 0
    body = (ready.layout.build / "upstream/build/body.md").read_text()
    assert body == (
        "<!-- x -->\n\n## Purpose\n\nTo say six.\n\n### Why\n\nBecause.\n\n## Test Plan\n\n"
        "pytest\n\n## Test Result\n\n| a | b |\n|---|---|\n\n---\nchecklist\n"
    )


def test_mail_files_give_the_same_tree(ready: Project, upstream: Path) -> None:
    assert _send(ready, upstream, "core") == 0
    mails = sorted((ready.layout.build / "upstream/core").glob("*.patch"))
    assert [path.name[:4] for path in mails] == ["0001", "0002"]
    _git(upstream, "am", "-q", "--keep-cr", "--keep-non-patch", *map(str, mails))
    subjects = ready.git("log", "-2", "--format=%s", "upstream/core")
    assert _git(upstream, "log", "-2", "--format=%s") == subjects
    tree = ready.git("rev-parse", "upstream/core^{tree}")
    assert _git(upstream, "rev-parse", "HEAD^{tree}") == tree
    assert "Signed-off-by: Ada User" in _git(upstream, "log", "-1", "--format=%B")


def test_needed_topics_come_along_and_are_named(
    ready: Project, upstream: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = ready.layout.series
    old = 'file = "0002-Core-Add-a-new-file.patch"\ntopic = "core"\noverlay = ["vllm/new.py"]\n'
    assert old + "needs = []" in path.read_text()
    path.write_text(path.read_text().replace(old + "needs = []", old + 'needs = ["Build-Say-six"]'))
    assert _send(ready, upstream, "core") == 0
    told = capsys.readouterr()
    assert "(needed) [Build] Say six" in told.out
    assert "1 of its commits belong to topics that it needs" in told.err
    assert ready.git("log", "--oneline", "upstream/core").count("\n") == 3
    assert len(list((ready.layout.build / "upstream/core").glob("*.patch"))) == 2


def test_the_second_export_shows_what_changed(
    ready: Project, upstream: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _send(ready, upstream) == 0
    assert "since the last export" not in capsys.readouterr().out
    assert _send(ready, upstream) == 0
    assert "since the last export" not in capsys.readouterr().out
    patch = ready.layout.patches / "0001-Build-Say-six.patch"
    patch.write_bytes(patch.read_bytes().replace(b"+setup line six", b"+setup line 6!"))
    ready.apply("--relock")
    assert _send(ready, upstream) == 0
    told = capsys.readouterr().out
    assert "since the last export" in told
    assert "+setup line six" in told
    assert "setup line 6!" in told


def test_on_the_sdist_it_cannot_be_pushed_and_says_so(
    tmp_path: Path, ready: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(ready, "build") == 1
    assert "has no .github/PULL_REQUEST_TEMPLATE.md" in capsys.readouterr().err
    tree = {**UPSTREAM, ".github/PULL_REQUEST_TEMPLATE.md": text(*TEMPLATE.splitlines())}
    (tmp_path / "vllm-0.0.2.tar.gz").write_bytes(sdist_of(tree))
    words = ("--onto", "0.0.2", "--source", str(tmp_path))
    assert _run(ready, "build", *words) == 0
    told = capsys.readouterr()
    assert "git push" not in told.out
    assert "stands on the sdist's files" in told.err


def test_a_branch_with_commits_of_the_user_is_left_alone(
    ready: Project, upstream: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _send(ready, upstream) == 0
    ready.git("switch", "-q", "upstream/build")
    assert _send(ready, upstream) == 1
    assert "is checked out" in capsys.readouterr().err
    ready.git("commit", "-q", "--allow-empty", "-m", "mine")
    mine = ready.git("rev-parse", "HEAD")
    ready.git("switch", "-q", "series")
    assert _send(ready, upstream) == 1
    assert "has commits of yours" in capsys.readouterr().err
    assert ready.git("rev-parse", "upstream/build") == mine


@pytest.mark.parametrize(
    ("name", "email", "says"),
    [("", "", "git knows no name"), ("A", "a@b.invalid", "no address that vLLM's DCO")],
)
def test_no_identity_no_sign_off(
    ready: Project,
    upstream: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    email: str,
    says: str,
) -> None:
    for variable, value in (("NAME", name), ("EMAIL", email)):
        if value:
            monkeypatch.setenv(f"GIT_AUTHOR_{variable}", value)
        else:
            monkeypatch.delenv(f"GIT_AUTHOR_{variable}")
            monkeypatch.delenv(f"GIT_COMMITTER_{variable}")
    assert _send(ready, upstream) == 1
    assert says in capsys.readouterr().err


def test_a_file_without_a_licence_header(
    ready: Project, upstream: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(ready.root, "overlay/L/vllm/new.py", text("new = 1"))
    assert _send(ready, upstream, "core") == 1
    told = capsys.readouterr().err
    assert "have no SPDX header" in told
    assert "vllm/new.py" in told


def _replace(ready: Project, path: str, old: str, new: str) -> None:
    file = ready.root / path
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("path", "old", "new", "says"),
    [
        ("patches/L/series.toml", "[CI/Build] Say", "Say", "has no prefix that vLLM knows"),
        (
            "patches/L/series.toml",
            "[CI/Build] Say",
            "[Odd] Say",
            "has no prefix that vLLM knows",
        ),
        ("patches/L/topics/build.md", "## Purpose", "## Porpoise", "no section 'Porpoise'"),
        ("patches/L/topics/build.md", "To say six.", "<!-- x -->", ""),
        (
            "patches/L/topics/build.md",
            "pytest",
            "<!-- later -->",
            "Test Plan` is missing or empty",
        ),
        ("patches/L/topics/build.md", "build-table", "other", "includes other.md"),
    ],
)
def test_what_is_not_ready_is_said(
    ready: Project,
    upstream: Path,
    capsys: pytest.CaptureFixture[str],
    path: str,
    old: str,
    new: str,
    says: str,
) -> None:
    _replace(ready, path, old, new)
    assert _send(ready, upstream) == (1 if says else 0)
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["none"], "no topic is called none: there are: build, core"),
        (["build", "--onto", "main"], "--onto needs a git source"),
        ([], "the following arguments are required: topic"),
    ],
)
def test_wrong_use(
    ready: Project, capsys: pytest.CaptureFixture[str], words: Sequence[str], says: str
) -> None:
    assert _run(ready, *words) == 1
    assert says in capsys.readouterr().err


def test_a_text_has_the_sections_of_its_template(tmp_path: Path) -> None:
    template = "## Overview\n\n<!-- in 1-2 lines -->\n\n## Claims\n\n---\nchecklist\n"
    wanted = body.headings(template)
    assert wanted == ("Overview", "Claims")
    path = tmp_path / "one.md"
    path.write_text("## Overview\n\nSix.\n\n## Claims\n\n- six\n")
    filled = body.fill(template, body.sections(path, wanted))
    assert filled.startswith("## Overview\n\nSix.\n")
    assert "## Claims\n\n- six\n" in filled
    path.write_text("## Purpose\n\nSix.\n")
    with pytest.raises(Fault, match="no section 'Purpose': use Overview, Claims"):
        body.sections(path, wanted)


def test_a_closure_follows_needs_of_needs() -> None:
    patches = (
        Patch("0001-a.patch", "t"),
        Patch("0002-b.patch", "t", needs=("a",)),
        Patch("0003-c.patch", "t"),
        Patch("0004-d.patch", "u", needs=("b",)),
    )
    series = Series((Topic("t", "t"), Topic("u", "u")), patches)
    assert [p.name for p in closure(series, ["d"])] == ["a", "b", "d"]
    assert [p.name for p in topic_closure(series, "u")] == ["a", "b", "d"]
    files = SeriesFiles("L", series, {p.file: b"" for p in patches})
    part = subset(files, (patches[1], patches[2]))
    assert [p.needs for p in part.series.patches] == [(), ()]
