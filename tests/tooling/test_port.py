"""`nox -s port`: a topic of one line on another, tried, solved and written."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ci import cli
from ci.core.content import Content
from ci.series.model import read_files
from tests.tooling.projects import UPSTREAM, Project, edit, put, second_line, text

# What the sample's topic `core` changes in vllm/a.py lies below line 5 and at line 30.
EASY = {**UPSTREAM, "vllm/a.py": edit(UPSTREAM["vllm/a.py"], ("a line 1\n", "0\n1\n"))}
HARD = {**UPSTREAM, "vllm/a.py": edit(UPSTREAM["vllm/a.py"], ("a line 30\n", "a line XXX\n"))}


def _port(project: Project, *words: str) -> int:
    return cli.main(["port", *words], root=project.root)


def _line(project: Project, upstream: Mapping[str, Content]) -> Project:
    other = second_line(project, upstream)
    other.apply()
    return other


def test_a_topic_that_fits(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    put(project.root, "patches/L/topics/core.md", text("Why it is needed."))
    put(project.root, "patches/L/topics/core-result.md", text("Measured on that line."))
    other = _line(project, EASY)
    before, theirs = project.series(), other.series()
    assert _port(project, "core", "--to", "M") == 0
    told = capsys.readouterr()
    assert "series on vLLM L, tried on the line M" in told.out
    assert "2 moved" in told.out
    assert "--accept` writes it" in told.err
    assert (project.series(), other.series()) == (before, theirs)
    assert _port(project, "core", "--to", "M", "--accept") == 0
    assert project.series() == before
    written = read_files(other.layout)
    assert [patch.name for patch in written.series.patches] == [
        "Core-Add-a-new-file",
        "Bugfix-Thirty-and-no-going",
    ]
    assert [topic.name for topic in written.series.topics] == ["all", "core"]
    assert (other.layout.patches / "topics/core.md").read_text() == "Why it is needed.\n"
    assert not (other.layout.patches / "topics/core-result.md").exists()
    other.apply()
    files = other.files()
    assert b"a line 5\nfrom vllm import new\n" in files["vllm/a.py"]
    assert files["vllm/a.py"].startswith(b"0\n1\n")
    assert b"setup line 6\n" in files["setup.py"]
    assert files["vllm/new.py"] == b"new = 1\nnewer = 2\n"
    assert "vllm/gone.py" not in files


def test_it_stands_on_what_the_other_line_has(project: Project) -> None:
    other = _line(project, EASY)
    other.replace("vllm/a.py", "a line 5\n", "a line five\n")
    other.refresh("--new", "[Misc] Five", "--topic", "all")
    other.replace("vllm/b.py", "b line 1\n", "b line one\n")
    assert _port(project, "build", "--to", "M", "--accept") == 0
    assert [patch.topic for patch in read_files(other.layout).series.patches] == ["all", "build"]
    assert other.git("diff", "--name-only") == "vllm/b.py"  # edits stay
    other.git("stash", "-q")
    other.apply()
    assert b"setup line six\n" in other.files()["setup.py"]
    assert b"a line five\n" in other.files()["vllm/a.py"]


def test_a_conflict_is_solved_and_remembered(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    other = _line(project, HARD)
    theirs = other.series()
    words = ("core", "--to", "M")
    assert _port(project, *words) == 1
    told = capsys.readouterr().err
    assert "nox -s port -- core --to M --line L --continue" in told
    assert _port(project, *words, "--accept") == 1
    assert "not every patch of core has a place" in capsys.readouterr().err
    assert _port(project, *words, "--continue") == 1
    assert "not solved yet" in capsys.readouterr().err
    work = project.layout.build / "port" / "core--M" / "vllm" / "vllm" / "a.py"
    head, _, rest = work.read_text().partition("<<<<<<< upstream\n")
    work.write_text(f"{head}a line thirty, XXX\n{rest.partition('>>>>>>> patch')[2][1:]}")
    assert _port(project, *words, "--continue") == 0
    assert other.series() == theirs
    assert _port(project, *words, "--accept") == 0
    other.apply()
    assert b"a line thirty, XXX\n" in other.files()["vllm/a.py"]
    # The resolution names a patch of the line that it is kept in.
    assert cli.main(["apply"], root=project.root) == 0


def test_left_with_edits(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    _line(project, HARD)
    assert _port(project, "core", "--to", "M") == 1
    work = project.layout.build / "port" / "core--M" / "vllm"
    (work / "vllm" / "a.py").write_text("mine\n")
    assert _port(project, "core", "--to", "M", "--abort") == 0
    assert "your edits are in" in capsys.readouterr().out
    assert (work.with_name("vllm.aborted-1") / "vllm" / "a.py").read_text() == "mine\n"


def test_what_it_needs_goes_first(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    toml = project.layout.series
    whole = toml.read_text()
    at = whole.index("needs = []", whole.index("0002-Core"))
    toml.write_text(f'{whole[:at]}needs = ["Build-Say-six"]{whole[at + len("needs = []") :]}')
    project.apply("--relock")
    other = _line(project, EASY)
    capsys.readouterr()
    assert _port(project, "core", "--to", "M", "--accept") == 1
    told = capsys.readouterr().err
    assert told.startswith("error: core needs build, which the other line does not have")
    assert told.count("\n") == 1
    assert _port(project, "build", "--to", "M", "--accept") == 0
    assert _port(project, "core", "--to", "M", "--accept") == 0
    needs = {patch.name: patch.needs for patch in read_files(other.layout).series.patches}
    assert needs["Core-Add-a-new-file"] == ("Build-Say-six",)


def test_what_the_other_vllm_has_already(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    setup = edit(UPSTREAM["setup.py"], ("setup line 6\n", "setup line six\n"))
    other = _line(project, {**UPSTREAM, "setup.py": setup})
    theirs = other.series()
    assert _port(project, "build", "--to", "M") == 0
    assert "1 upstream" in capsys.readouterr().out
    assert _port(project, "build", "--to", "M", "--accept") == 1
    assert "error: build has nothing left to change on the line M" in capsys.readouterr().err
    assert other.series() == theirs


@pytest.mark.parametrize(
    "words, told",
    [
        (("core",), "the following arguments are required: --to"),
        (("--to", "M"), "the following arguments are required: topic"),
        (("core", "--to", "N"), "there is no line N"),
        (("core", "--to", "L"), "core is of the line L itself"),
        (("gone", "--to", "M"), "no topic is called gone"),
        (("all", "--to", "L", "--line", "M"), "the topic all has no patches"),
        (("build", "--to", "M"), "the line M has the topic build already"),
        (("core", "--to", "M", "--continue"), "no patch is open in"),
        (("core", "--to", "M", "--abort"), "no patch is open in"),
    ],
)
def test_wrong_words(
    project: Project, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str
) -> None:
    other = _line(project, EASY)
    if "build" in words:
        assert _port(project, "build", "--to", "M", "--accept") == 0
    before = (project.series(), other.series())
    capsys.readouterr()
    assert _port(project, *words) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: {told}")
    assert said.count("\n") == 1
    assert (project.series(), other.series()) == before
