"""Prefixes, topics and needs, tried with real imports and tests on tiny trees."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from ci.core.content import Content
from ci.series.model import Patch, Series, Topic, dump_series, load_series, read_files
from ci.testing.trials import Kind, Runner, Trier, trials
from ci.verbs.prefixes import Row, as_text, run_all
from tests.tooling.projects import Project, clone_of, commit, text

PYTHON = {
    "vllm/__init__.py": text(""),
    "vllm/core.py": text(
        "def one():", "    return 1", "", "", "", "", "", "", "def two():", "    pass"
    ),
    "vllm/needs_gpu.py": text("import no_such_driver"),
    "other.txt": text("x"),
}
ONE = text("def one():", "    return 11", "", "", "", "", "", "", "def two():", "    pass")
BOTH = text("def one():", "    return 11", "", "", "", "", "", "", "def two():", "    return 22")


SUPPORT = Path(__file__).resolve().parents[1] / "support"


def _project(tmp_path: Path, steps: list[tuple[str, str, Mapping[str, Content | None]]]) -> Project:
    project = Project.make(tmp_path / "project", PYTHON)
    clone = clone_of(project, tmp_path / "clone")
    for topic, subject, change in steps:
        commit(clone, subject, change)
        project.take(clone, "HEAD~1..HEAD", topic)
    return project


def _needs(project: Project, needs: Mapping[str, tuple[str, ...]]) -> None:
    series = load_series(project.layout)
    patches = tuple(
        Patch(p.file, p.topic, p.overlay, needs.get(p.name, ())) for p in series.patches
    )
    project.layout.series.write_bytes(dump_series(Series(series.topics, patches)))


def _rows(project: Project, kind: Kind) -> list[Row]:
    store, base = project.base()
    folder = project.layout.build / "prefixes" / "tree"
    path = f"{folder}{os.pathsep}{SUPPORT}"
    env = {
        **os.environ,
        "PYTHONPATH": path,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    runner = Runner(Path(sys.executable), env, options=("-c", os.devnull, "--rootdir=."))
    files = read_files(project.layout)
    trier = Trier(project.layout.build / "prefixes", store, base, files, runner)
    return run_all(trier, [t for t in trials(files.series) if t.kind is kind])


def test_a_run_that_was_ended_is_not_kept(tmp_path: Path) -> None:
    kill = _test_of("import os; os.kill(os.getpid(), 15)")
    project = _project(tmp_path, [("a", "[Core] Killed", {"tests/test_it.py": kill})])
    (row,) = _rows(project, Kind.PREFIX)
    assert not row.good
    assert "killed by SIGTERM" in row.outcome.failed[0]
    assert not (project.layout.build / "prefixes" / "results.json").exists()


def _test_of(body: str) -> Content:
    return text("from vllm import core", "", "def test_it():", f"    {body}")


STEPS: list[tuple[str, str, Mapping[str, Content | None]]] = [
    (
        "a",
        "[Core] One",
        {"vllm/core.py": ONE, "tests/test_one.py": _test_of("assert core.one() == 11")},
    ),
    (
        "b",
        "[Core] Two",
        {"vllm/core.py": BOTH, "tests/test_two.py": _test_of("assert core.two() == 22")},
    ),
    (
        "b",
        "[Core] Helper",
        {"vllm/helper.py": text("from vllm.core import two", "assert two() == 22")},
    ),
]


def test_what_is_tried() -> None:
    patches = (
        Patch("0001-a.patch", "t"),
        Patch("0002-b.patch", "t", needs=("a",)),
        Patch("0003-c.patch", "u", needs=("b",)),
    )
    found = trials(Series((Topic("t", ""), Topic("u", ""), Topic("empty", "")), patches))
    assert [(t.kind.value, t.name, [p.name for p in t.patches]) for t in found] == [
        ("prefix", "0001-a.patch", ["a"]),
        ("prefix", "0002-b.patch", ["a", "b"]),
        ("prefix", "0003-c.patch", ["a", "b", "c"]),
        ("topic", "t", ["a", "b"]),
        ("topic", "u", ["a", "b", "c"]),
        ("need", "b needs a", ["b"]),
        ("need", "c needs b", ["a", "c"]),
    ]


def test_a_good_series(tmp_path: Path) -> None:
    project = _project(tmp_path, STEPS)
    _needs(project, {"Core-Helper": ("Core-Two",)})
    prefixes = _rows(project, Kind.PREFIX)
    assert [row.good for row in prefixes] == [True] * 3
    assert [dict(row.outcome.tests or {}) for row in prefixes] == [{"passed": 1}, {"passed": 1}, {}]
    assert [row.outcome.imported for row in prefixes] == [1, 1, 1]
    (need,) = _rows(project, Kind.NEED)
    assert need.good
    assert "AssertionError" in (need.outcome.broken or {})["vllm.helper"]


def test_a_prefix_that_stands_only_later(tmp_path: Path) -> None:
    helper = ("b", "[Core] Helper", {"vllm/helper.py": text("x = 1")})
    early = ("a", "[Core] Early", {"vllm/early.py": text("import vllm.helper")})
    rows = _rows(_project(tmp_path, [early, helper]), Kind.PREFIX)
    assert [row.good for row in rows] == [False, True]
    told = as_text(rows)
    assert "vllm.early: ModuleNotFoundError: No module named 'vllm.helper'" in told
    assert "1 of 2 as they should be" in told


def test_a_topic_that_lacks_a_declared_need(tmp_path: Path) -> None:
    helper = ("b", "[Core] Helper", {"vllm/helper.py": text("x = 1")})
    use = ("c", "[Core] Use", {"vllm/use.py": text("import vllm.helper")})
    project = _project(tmp_path, [helper, use])
    assert [row.good for row in _rows(project, Kind.TOPIC)] == [True, False]
    _needs(project, {"Core-Use": ("Core-Helper",)})
    assert [row.good for row in _rows(project, Kind.TOPIC)] == [True, True]


def test_a_need_that_shows_in_the_lines(tmp_path: Path) -> None:
    lines = PYTHON["vllm/core.py"].data.decode().splitlines()
    steps: list[tuple[str, str, Mapping[str, Content | None]]] = [
        ("b", "[Core] Early", {"vllm/core.py": text("# early", *lines)}),
        ("c", "[Core] Late", {"vllm/core.py": text("# earlier", *lines)}),
        ("d", "[Core] Last", {"vllm/last.py": text("x = 1")}),
    ]
    project = _project(tmp_path, steps)
    rows = {row.name: row for row in _rows(project, Kind.TOPIC)}
    assert [name for name, row in rows.items() if not row.good] == ["c"]
    assert rows["c"].outcome.stuck == "0002-Core-Late.patch"
    assert rows["c"].outcome.applies in as_text([rows["c"]])
    _needs(project, {"Core-Last": ("Core-Late", "Core-Early")})
    rows = {row.name: row for row in _rows(project, Kind.NEED)}
    unclear = rows["Core-Last needs Core-Early"]
    assert not unclear.good
    assert "cannot be told while 0002-Core-Late.patch does not apply" in as_text([unclear])


def test_an_idle_need(tmp_path: Path) -> None:
    project = _project(tmp_path, STEPS)
    _needs(project, {"Core-Two": ("Core-One",)})
    (row,) = _rows(project, Kind.NEED)
    assert not row.good
    assert "it stands without it" in as_text([row])


def test_a_failing_test_and_one_that_cannot_be_read(tmp_path: Path) -> None:
    bad = {
        "tests/test_bad.py": _test_of("assert core.one() == 2"),
        "tests/test_worse.py": text("import nothing_here"),
    }
    empty = {"tests/test_empty.py": text("x = 1")}
    project = _project(tmp_path, [("a", "[Core] Bad", bad), ("a", "[Core] Empty", empty)])
    rows = _rows(project, Kind.PREFIX)
    assert [row.good for row in rows] == [False] * 2
    assert rows[0].outcome.failed == (
        "tests/test_worse.py: could not be collected",
        f"exit status 2, see {project.layout.build / 'prefixes' / 'overlay.log'}",
    )
    assert "exit status 5, see" in rows[1].outcome.failed[0]


def test_of_upstream_s_test_files_only_what_changed_is_run(tmp_path: Path) -> None:
    before = ["import os", "", "def test_one():", "    assert os", "", "", "class TestIt:",
              "    def test_two(self):", "        assert False", "", "", "", "", "",
              "def test_three():", "    assert False"]  # fmt: skip
    upstream = {**PYTHON, "tests/test_up.py": text(*before)}
    project = Project.make(tmp_path / "project", upstream)
    clone = clone_of(project, tmp_path / "clone")
    after = [*before]
    after[8] = "        assert True"
    commit(clone, "[Core] Mend", {"tests/test_up.py": text(*after), "vllm/x.py": text("")})
    gone = [*after[:6], *after[9:], "", "", "def test_four():", "    pass"]
    commit(clone, "[Core] Mend more", {"tests/test_up.py": text(*gone)})
    project.take(clone, "HEAD~2..HEAD", "a")
    first, second = _rows(project, Kind.PREFIX)
    assert first.good and second.good
    assert first.outcome.tests == second.outcome.tests == {"passed": 1}
    # A test that is gone again when the topic is whole cannot be asked for.
    (row,) = _rows(project, Kind.TOPIC)
    assert row.good
    assert row.outcome.tests == {"passed": 1}


def test_a_module_that_upstream_cannot_import_here(tmp_path: Path) -> None:
    change = {"vllm/needs_gpu.py": text("import no_such_driver  # really")}
    (row,) = _rows(_project(tmp_path, [("a", "[Core] Gpu", change)]), Kind.PREFIX)
    assert row.good
    assert (row.outcome.imported, row.outcome.aside) == (0, 1)
    assert "0 of 0 (1)" in as_text([row])


def test_results_are_kept_by_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = _project(tmp_path, STEPS[:2])
    first = _rows(project, Kind.PREFIX)
    laid: list[str] = []
    lay_out = Trier._lay_out
    monkeypatch.setattr(
        Trier, "_lay_out", lambda self, tree: (laid.append(tree), lay_out(self, tree))
    )
    assert _rows(project, Kind.PREFIX) == first
    assert laid == []
    path = project.layout.overlay / "tests/test_two.py"
    path.write_text(path.read_text().replace("22", "23"))
    rows = _rows(project, Kind.PREFIX)
    assert len(laid) == 1
    assert [row.good for row in rows] == [True, False]


def test_libraries_are_laid_beside_the_sources(tmp_path: Path) -> None:
    project = _project(tmp_path, [("a", "[Core] Lib", {"vllm/lib.py": text("import vllm.made")})])
    installed = tmp_path / "site" / "vllm"
    installed.mkdir(parents=True)
    (installed / "made.py").write_text("x = 1\n")
    (installed / "core.py").write_text("raise SystemExit\n")
    store, base = project.base()
    folder = project.layout.build / "prefixes" / "tree"
    env = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    runner = Runner(Path(sys.executable), env, installed)
    files = read_files(project.layout)
    rows = run_all(
        Trier(project.layout.build / "prefixes", store, base, files, runner),
        trials(files.series)[:1],
    )
    assert rows[0].good
    assert (folder / "vllm/core.py").read_text().startswith("def one")
