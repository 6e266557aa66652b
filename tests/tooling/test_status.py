"""`nox -s status`: what stands where, in three forms that say the same."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ci import cli
from tests.tooling.projects import UPSTREAM, Project, put, sdist_of, second_line, text

NOW = ["0.0.1", "0.0.2", "0.1.0"]


@pytest.fixture(autouse=True)
def _releases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ci.pinned.releases.releases", lambda: NOW)


def _told(project: Project, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert cli.main(["status", *words], root=project.root) == 0
    return capsys.readouterr().out


def test_one_screen(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    told = _told(project, capsys)
    assert "on vLLM 0.0.1 (111111111111): 2 releases behind 0.1.0" in told
    assert "build: The build  [local]" in told
    assert "0002 [Core] Add a new file  +1 −0  1 new" in told
    assert "+3 −3 upstream, 2 new files (4 lines)" in told
    assert len(told.splitlines()) <= 24


def test_json(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(_told(project, capsys, "--json"))
    assert data["pin"]["behind"] == 2
    assert [topic["name"] for topic in data["topics"]] == ["build", "core"]
    patch = data["topics"][1]["patches"][0]
    assert (patch["added"], patch["removed"], patch["overlay_files"]) == (1, 0, 1)


class _Reader(HTMLParser):
    """Collects what a page would load, and its words."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.words: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)
        self.loads += [value or "" for name, value in attrs if name == "src"]
        self.loads += [tag] if tag in ("script", "link", "img", "iframe") else []

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_html_is_whole_and_escaped(
    project: Project, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    series = project.layout.series
    series.write_text(series.read_text().replace("The build", "A <b> & B"))
    page = tmp_path / "page.html"
    assert str(page) in _told(project, capsys, "--html", str(page))
    reader = _Reader()
    reader.feed(page.read_text())
    assert reader.open == []
    assert reader.loads == []
    assert "build: A <b> & B" in "".join(reader.words)
    assert "http" not in re.sub(r"https://vllm\.invalid\S*", "", page.read_text())


def test_without_network(
    project: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "newest release not asked for" in _told(project, capsys, "--offline")
    _told(project, capsys)
    monkeypatch.setattr("ci.pinned.releases.releases", lambda: pytest.fail("asked again"))
    assert "behind 0.1.0" in _told(project, capsys)
    assert "behind 0.1.0" in _told(project, capsys, "--offline")


def test_rolls(project: Project, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    conflict = {**UPSTREAM, "setup.py": text("other")}
    for version, tree in (("0.0.10", UPSTREAM), ("0.0.2", conflict)):
        (tmp_path / f"vllm-{version}.tar.gz").write_bytes(sdist_of(tree))
        cli.main(["roll", version, "--source", str(tmp_path)], root=project.root)
    told = _told(project, capsys, "--offline")
    assert "0.0.2: 2 clean, 1 conflict; being solved: Build-Say-six" in told
    assert told.index("0.0.2:") < told.index("0.0.10:")
    assert "older series" not in told
    put(project.root, "overlay/L/vllm/new.py", text("newest"))
    assert "3 clean (of an older series)" in _told(project, capsys, "--offline")


def test_the_work_tree(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    put(project.work, "setup.py", text("mine"))
    project.git("commit", "-q", "--allow-empty", "-m", "My own")
    told = _told(project, capsys, "--offline")
    assert "edited: setup.py" in told
    assert "My own" in told
    shutil.rmtree(project.work)
    assert "not there: `nox -s apply` makes it" in _told(project, capsys, "--offline")


def _of_work_tree(project: Project, capsys: pytest.CaptureFixture[str]) -> list[str]:
    found: list[str] = json.loads(_told(project, capsys, "--offline", "--json"))["work_tree"]
    return found


def test_a_series_that_is_not_the_work_tree_s(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    at = f"at {project.git('rev-parse', 'HEAD')[:12]}"
    assert _of_work_tree(project, capsys) == [at]
    lock = project.layout.lock.read_bytes()
    other = project.copy(project.root.with_name("other"))
    other.replace("vllm/a.py", "a line thirty\n", "a line 31\n")
    other.refresh()
    shutil.rmtree(project.layout.patches)
    shutil.copytree(other.layout.patches, project.layout.patches)
    said = "made from another version of the series: run `nox -s apply`"
    assert _of_work_tree(project, capsys) == [said, at]
    project.layout.lock.write_bytes(lock)
    [said, *_] = _of_work_tree(project, capsys)
    assert "0003-Bugfix-Thirty-and-no-going.patch differs from the lock: undo the change" in said
    project.layout.lock.write_text("base_tree = 3\npatch = 4\n")
    said = "series.lock: base_tree: expected `str`, got `int`: correct it"
    assert said in _of_work_tree(project, capsys)[0]
    project.layout.lock.unlink()
    assert "series.lock is missing: restore it" in _of_work_tree(project, capsys)[0]


def test_a_wheel_that_is_not_ours(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.layout.dist.mkdir()
    (project.layout.dist / "vllm-0.0.1-py3-none-any.whl").write_bytes(b"no zip")
    told = _told(project, capsys, "--offline")
    assert "vllm-0.0.1-py3-none-any.whl: " in told
    assert "this series" not in told


def test_looking_leaves_another_run_s_index_alone(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.replace("vllm/b.py", "b line 3\n", "b line III\n")
    index = project.layout.build / "worktree.index"
    lock = index.with_name("worktree.index.lock")
    lock.write_bytes(b"")
    before = index.read_bytes()
    assert "edited: vllm/b.py" in _told(project, capsys)
    assert lock.exists()
    assert index.read_bytes() == before
    index.unlink()
    assert "edited: vllm/b.py" in _told(project, capsys)
    assert not index.exists()


# --- several lines -------------------------------------------------------------------


def _drift(line: Project, **entry: str) -> None:
    table = "".join(f'{key} = "{value}"\n' for key, value in entry.items())
    with (line.layout.patches / "drift.toml").open("a") as file:
        file.write(f"[[topic]]\n{table}")


def _table(told: str) -> dict[str, str]:
    """The rows of the table, by topic, with one blank between cells."""
    rows = told[told.index("topics by line") :].split("\n\n")[0].splitlines()
    return {row.split()[0]: " ".join(row.split()[1:]) for row in rows[1:]}


def test_topics_side_by_side(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    other = second_line(project, UPSTREAM)
    assert cli.main(["port", "build", "--to", "M", "--accept"], root=project.root) == 0
    told = _told(project, capsys, "--offline")
    assert _table(told) == {
        "build": "local +1 −1 local +1 −1",
        "core": "local +3 −3 –",
        "all": "– local +0 −0",
    }
    _drift(other, name="core", verdict="done upstream", reason="Seen in a.py.")
    told = _told(project, capsys, "--offline")
    assert _table(told)["core"] == "local +3 −3 done upstream"
    assert "\ncore: Seen in a.py.\n" in told
    assert _table(told)["all"] == "– local +0 −0"
    data = json.loads(_told(project, capsys, "--offline", "--json"))["lines"]
    assert data[1]["on"]["M"]["verdict"] == "done upstream"
    told = _told(project, capsys, "--offline", "--all-lines")
    assert told.count("topics by line") == 1


def test_what_nobody_tried(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    other = second_line(project, UPSTREAM)
    _drift(other, name="core", verdict="without object", reason="Gone.")
    assert _table(_told(project, capsys, "--offline"))["build"] == "local +1 −1 not tried"


def test_one_line_has_no_table(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    assert "topics by line" not in _told(project, capsys, "--offline")


def test_each_line_has_its_page(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    second_line(project, UPSTREAM)
    _told(project, capsys, "--offline", "--all-lines", "--html")
    assert "Topics by line" in (project.layout.build / "status.html").read_text()
    assert (project.layout.shared / "M" / "status.html").is_file()


@pytest.mark.parametrize(
    "entry, told",
    [
        ({"name": "gone", "verdict": "not tried"}, "gone is no topic of another line"),
        ({"name": "all", "verdict": "not tried"}, "all is a topic of the line itself"),
        ({"name": "core", "verdict": "perhaps"}, "topic core verdict: invalid enum value"),
        ({"name": "core", "verdict": "still open"}, "core should name the line's topic in `here`"),
        (
            {"name": "core", "verdict": "still open", "here": "gone"},
            "core names gone, which is no topic of the line",
        ),
    ],
)
def test_wrong_drift(
    project: Project, capsys: pytest.CaptureFixture[str], entry: dict[str, str], told: str
) -> None:
    other = second_line(project, UPSTREAM)
    _drift(other, **entry, reason="Why.")
    capsys.readouterr()
    assert cli.main(["status", "--offline"], root=project.root) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: patches/M/drift.toml: {told}")
    assert said.count("\n") == 1
