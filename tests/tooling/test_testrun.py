"""What `nox -s test` makes of its options and of the outcomes of its jobs."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ci.cli import main
from ci.core.errors import Fault
from ci.core.layout import Layout
from ci.env.venvs import Environment
from ci.pinned.pin import load_pin
from ci.series.model import read_files
from ci.testing import plan as planning
from ci.testing.groups import Group, Selection, narrow, split_paths
from ci.testing.plan import Part, Wanted, may_select, parts_of
from ci.testing.pytest_runs import Job, Outcome, Report
from ci.testing.results import RECORD, Result, judge, longest_first, record
from ci.verbs import test as testrun
from ci.wheel.identity import identify
from tests.tooling.projects import Project

ALL = Wanted(tuple(Part), (), (), thorough=False, gpu=False, at_once=1)


def _outcome(tests: dict[str, str], *, status: int | None = 0, complete: bool = True) -> Outcome:
    job = Job("tooling", Path(sys.executable), (), Path(), {})
    skips = {test: "needs a CUDA device" for test, word in tests.items() if word == "skipped"}
    return Outcome(job, status, 1.0, Path("none.log"), Report(tests, skips, complete=complete))


def test_a_gpu_is_needed_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ci.verbs.test.gpu_visible", lambda: False)
    parser = argparse.ArgumentParser()
    testrun.options(parser)
    with pytest.raises(Fault, match="no GPU is visible"):
        testrun.run(
            Layout(Path(), "0.17.1"), parser.parse_args(["--gpu"], argparse.Namespace(rest=[]))
        )
    with pytest.raises(Fault, match="runs the part overlay only"):
        testrun.run(
            Layout(Path(), "0.17.1"),
            parser.parse_args(["--gpu", "--part", "engine"], argparse.Namespace(rest=[])),
        )


def test_what_pytest_is_meant_to_get() -> None:
    parser = argparse.ArgumentParser()
    testrun.options(parser)
    args, rest = parser.parse_known_args(["--part", "tooling", "-k", "a or b", "-x", "--lf"])
    assert args.part == ["tooling"]
    assert rest == ["-k", "a or b", "-x", "--lf"]


def test_the_end_counts_every_test(capsys: pytest.CaptureFixture[str]) -> None:
    good = Result(_outcome({"a": "passed", "b": "skipped"}), ())
    assert testrun._conclude([good], ALL, []) == 0
    shown = capsys.readouterr()
    assert shown.out == "1 passed, 0 failed, 1 skipped\n"
    assert "not run: 1 tests that need a GPU" in shown.err
    bad = Result(_outcome({"a": "passed", "c": "failed"}, status=1), ("c: failed",))
    assert testrun._conclude([good, bad], ALL, []) == 1
    shown = capsys.readouterr()
    assert shown.out == "2 passed, 1 failed, 1 skipped\n"
    assert "FAILED c: failed" in shown.err


def test_status_tells_the_last_results(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    one = Result(_outcome({"a": "passed", "b": "skipped"}), ())
    kept = project.layout.build / RECORD
    series = identify(load_pin(project.layout.pin), read_files(project.layout)).id
    record(kept, series, [one])
    other = Result(_outcome({"a": "failed"}), ("a: failed",))
    job = Job("engine", Path(sys.executable), (), Path(), {})
    record(kept, series, [replace(other, outcome=replace(other.outcome, job=job))])
    assert main(["status", "--offline"], root=project.root) == 0
    told = capsys.readouterr().out
    assert "tooling: 1 passed, 1 skipped\n" in told
    assert "engine: 1 failed, 1 failures\n" in told
    project.replace("setup.py", "setup line six", "setup line VI")
    project.refresh()
    assert main(["status", "--offline"], root=project.root) == 0
    assert "tooling: 1 passed, 1 skipped (of series s" in capsys.readouterr().out


def test_a_run_without_tests_is_no_success() -> None:
    with pytest.raises(Fault, match="no test ran"):
        testrun._conclude([Result(_outcome({}, status=5), ())], ALL, [])


@pytest.mark.parametrize(
    ("status", "how"),
    [
        (-11, "killed by SIGSEGV"),
        (-9, "killed by SIGKILL (out of memory?)"),
        (3, "exit status 3"),
        (None, "timed out after 1800 s"),
    ],
)
def test_a_job_that_broke_off_is_a_failure(status: int | None, how: str) -> None:
    outcome = _outcome({"a": "passed"}, status=status, complete=False)
    assert judge(outcome).failures == (f"tooling: pytest did not finish: {how}",)
    assert how in outcome.line()


def test_what_took_longest_starts_first(tmp_path: Path) -> None:
    outcomes = [
        replace(_outcome({}), job=Job(name, Path(), (), Path(), {}), seconds=seconds)
        for name, seconds in (("short", 1.0), ("long", 9.0), ("middle", 5.0))
    ]
    planned = [Job("new", Path(), (), Path(), {}), *(outcome.job for outcome in outcomes)]
    kept = tmp_path / "results.json"
    assert longest_first(planned, kept) == planned
    record(kept, "s1", [Result(outcome, ()) for outcome in outcomes])
    names = [job.name for job in longest_first(planned, kept)]
    assert names == ["new", "long", "middle", "short"]


def test_a_thorough_run_takes_more_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "checks_environment", lambda _: Environment(Path("env")))
    paths = Layout(Path(), "0.17.1").tests
    for thorough in (False, True):
        wanted = replace(ALL, parts=(Part.TOOLING,), thorough=thorough)
        (job,) = planning.plan(paths, None, Selection(()), wanted)
        assert bool(job.env["SERIES_THOROUGH"]) == thorough
        assert ("not slow" in job.args) != thorough
    (job,) = planning.plan(paths, None, Selection(()), replace(wanted, paths=("tests/tooling",)))
    assert "-n" not in job.args
    named = replace(ALL, paths=("tests/tooling/test_a.py::test_slow",))
    assert not named.marks


def test_the_end_says_what_was_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = _outcome({"a": "passed"})
    results = [Result(replace(outcome, report=replace(outcome.report, left_out=7)), ())]
    assert testrun._conclude(results, ALL, ["nightly"]) == 0
    said = "left out: 7 tests marked slow, upstream-nightly, most examples of the property tests"
    assert said in capsys.readouterr().err
    for wanted in (replace(ALL, thorough=True), replace(ALL, rest=("-k", "a"))):
        testrun._conclude(results, wanted, ["nightly"])
        assert "left out" not in capsys.readouterr().err


def _file(root: Path, name: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_paths_are_told_from_other_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = Layout(tmp_path, "L").tests
    engine = _file(tmp_path, "tests/L/engine/test_a.py")
    _file(tmp_path, "overlay/L/tests/v1/test_b.py")
    monkeypatch.chdir(tmp_path / "tests")
    args = ["-k", "a/b", "L/engine/test_a.py::test_x[1::2]", "--ignore", "L/engine/test_a.py", "-x"]
    assert split_paths(where, args) == (
        ("tests/L/engine/test_a.py::test_x[1::2]",),
        ("-k", "a/b", "--ignore", "L/engine/test_a.py", "-x"),
    )
    monkeypatch.chdir(tmp_path)
    for word in ("overlay/L/tests/v1/test_b.py", "tests/v1/test_b.py"):
        assert split_paths(where, [word]) == (("tests/v1/test_b.py",), ())
    assert split_paths(where, [str(engine)]) == (("tests/L/engine/test_a.py",), ())
    for word in ("tests/L/engine/test_typo.py", "../other/test_a.py"):
        with pytest.raises(Fault, match=f"there is no {word} to test"):
            split_paths(where, [word])


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("tests/L/engine/test_a.py::test_x", [Part.ENGINE]),
        ("tests/tooling", [Part.TOOLING]),
        ("tests/v1/test_b.py", [Part.UPSTREAM, Part.OVERLAY]),
        ("tests/L/engine_of_vllm", [Part.UPSTREAM, Part.OVERLAY]),
        ("tests", list(Part)),
    ],
)
def test_a_path_selects_its_part(path: str, parts: list[Part]) -> None:
    where = Layout(Path(), "L").tests
    assert parts_of(where, [path]) == tuple(parts)
    assert parts_of(where, []) == tuple(Part)


def test_a_process_gets_what_is_wanted_of_its_files() -> None:
    files = ["tests/a/test_1.py", "tests/a/test_2.py::test_y"]
    assert narrow(files, []) == tuple(files)
    assert narrow(files, ["tests/a/"]) == tuple(files)
    assert narrow(files, ["tests/a/test_1.py::C::t[x]"]) == ("tests/a/test_1.py::C::t[x]",)
    assert narrow(files, ["tests/a/test_2.py"]) == ("tests/a/test_2.py::test_y",)
    assert narrow(files, ["tests/a/test_2.py::test_z", "tests/a/test_10.py"]) == ()


def test_the_series_tests_share_a_process_but_for_those_of_a_group() -> None:
    selection = Selection(
        (), own=(Group("kernels", "", ("tests/v1/gpu/",), options=("-p", "as_gpu")),)
    )
    kernels, rest = selection.groups_of_own(["tests/v1/gpu/test_a.py", "tests/v1/test_b.py::t"])
    assert (kernels.name, kernels.files) == ("overlay-kernels", ("tests/v1/gpu/test_a.py",))
    assert kernels.options == ("-p", "as_gpu")
    assert (rest.name, rest.files) == ("overlay", ("tests/v1/test_b.py::t",))
    (only,) = selection.groups_of_own(["tests/v1/test_b.py"])
    assert only.name == "overlay"
    assert selection.groups_of_own([]) == ()


def test_the_tooling_is_tested_once_for_all_lines() -> None:
    parser = argparse.ArgumentParser()
    testrun.options(parser)
    words = argparse.Namespace(rest=[], first_line=False)
    args = parser.parse_args(["--part", "tooling"], words)
    assert testrun.run(Layout(Path(), "0.17.1"), args) == 0


def test_what_no_wanted_part_holds(tmp_path: Path) -> None:
    wanted = replace(ALL, parts=(Part.TOOLING,), paths=("tests/engine/test_a.py",))
    with pytest.raises(Fault, match="no such test in any part"):
        planning.plan(Layout(tmp_path, "L").tests, None, Selection(()), wanted)


def test_an_expression_skips_files_that_cannot_match(tmp_path: Path) -> None:
    source = tmp_path / "test_a.py"
    source.write_text("@pytest.mark.odd\ndef test_x(n): pass\n")
    known = ["tests/test_a.py::test_x[Two-0]"]
    for expression in ("", "two", "test_x and 0", "odd", "not test_x", "(other or X[)"):
        assert may_select(expression, known, [source]), expression
    assert not may_select("other or (another and more)", known, [source])


@pytest.mark.parametrize(
    "rest", [("-k", "a or b"), ("-x", "-ka or b"), ("-k", "c", "-k", "a or b")]
)
def test_the_expression_among_the_arguments(rest: tuple[str, ...]) -> None:
    assert replace(ALL, rest=rest).expression == "a or b"
    assert ALL.expression == ""
