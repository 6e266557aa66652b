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
from ci.testing.gate import Selection
from ci.testing.plan import Part, Wanted
from ci.testing.pytest_runs import Job, Outcome, Report
from ci.testing.results import RECORD, Result, judge, longest_first, record
from ci.verbs import test as testrun
from ci.wheel.identity import identify
from tests.tooling.projects import Project

ALL = Wanted(tuple(Part), (), thorough=False, gpu=False, at_once=1)


def _outcome(tests: dict[str, str], *, status: int | None = 0, complete: bool = True) -> Outcome:
    job = Job("tooling", Path(sys.executable), (), Path(), {})
    skips = {test: "needs a CUDA device" for test, word in tests.items() if word == "skipped"}
    return Outcome(job, status, 1.0, Path("none.log"), Report(tests, skips, (), complete))


def test_a_gpu_is_needed_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ci.verbs.test.gpu_visible", lambda: False)
    parser = argparse.ArgumentParser()
    testrun.options(parser)
    with pytest.raises(Fault, match="no GPU is visible"):
        testrun.run(Layout(Path()), parser.parse_args(["--gpu"]))
    with pytest.raises(Fault, match="runs the part overlay only"):
        testrun.run(Layout(Path()), parser.parse_args(["--gpu", "--part", "engine"]))


def test_what_pytest_is_meant_to_get() -> None:
    parser = argparse.ArgumentParser()
    testrun.options(parser)
    args, rest = parser.parse_known_args(["--part", "tooling", "-k", "a or b", "-x", "--lf"])
    assert args.part == ["tooling"]
    assert rest == ["-k", "a or b", "-x", "--lf"]


def test_the_end_counts_every_test(capsys: pytest.CaptureFixture[str]) -> None:
    good = Result(_outcome({"a": "passed", "b": "skipped"}), ())
    assert testrun._conclude([good], ALL) == 0
    shown = capsys.readouterr()
    assert shown.out == "1 passed, 0 failed, 1 skipped\n"
    assert "not run: 1 tests that need a GPU" in shown.err
    bad = Result(_outcome({"a": "passed", "c": "failed"}, status=1), ("c: failed",))
    assert testrun._conclude([good, bad], ALL) == 1
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
        testrun._conclude([Result(_outcome({}, status=5), ())], ALL)


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
    monkeypatch.delenv("CI", raising=False)
    paths = Layout(Path()).tests
    for thorough in (False, True):
        wanted = replace(ALL, parts=(Part.TOOLING,), thorough=thorough)
        (job,) = planning.plan(paths, None, Selection(()), wanted)
        assert ("CI" in job.env) == thorough
