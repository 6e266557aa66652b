"""What `nox -s test` makes of its options and of the outcomes of its jobs."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ci import testrun
from ci.cli import main
from ci.errors import Fault
from ci.jobs import Job, Outcome
from ci.layout import Layout
from ci.testrun import Part, Result, Wanted
from tests.tooling.projects import Project

ALL = Wanted(tuple(Part), (), slow=False, gpu=False, at_once=1)


def _outcome(tests: dict[str, str], *, status: int | None = 0, complete: bool = True) -> Outcome:
    job = Job("tooling", Path(sys.executable), (), Path(), {})
    skips = {test: "needs a CUDA device" for test, word in tests.items() if word == "skipped"}
    return Outcome(job, status, 1.0, Path("none.log"), tests, skips, (), complete)


def test_a_gpu_is_needed_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testrun, "gpu_visible", lambda: False)
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
    testrun.record(project.layout, [one])
    other = Result(_outcome({"a": "failed"}), ("a: failed",))
    job = Job("engine", Path(sys.executable), (), Path(), {})
    testrun.record(project.layout, [replace(other, outcome=replace(other.outcome, job=job))])
    assert main(["status", "--offline"], start=project.root) == 0
    told = capsys.readouterr().out
    assert "tooling: 1 passed, 1 skipped\n" in told
    assert "engine: 1 failed, 1 to be mended\n" in told
    project.replace("setup.py", "setup line six", "setup line VI")
    project.refresh()
    assert main(["status", "--offline"], start=project.root) == 0
    assert "tooling: 1 passed, 1 skipped (of series s" in capsys.readouterr().out


def test_a_run_without_tests_is_no_success() -> None:
    with pytest.raises(Fault, match="no test ran"):
        testrun._conclude([Result(_outcome({}, status=5), ())], ALL)


@pytest.mark.parametrize(
    ("status", "how"),
    [
        (-11, "ended by SIGSEGV"),
        (-9, "ended by SIGKILL (out of memory?)"),
        (3, "ended with status 3"),
        (None, "its time was up"),
    ],
)
def test_a_job_that_broke_off_is_a_failure(status: int | None, how: str) -> None:
    outcome = _outcome({"a": "passed"}, status=status, complete=False)
    selection = testrun.gate.Selection((), {})
    result = testrun._result(Layout(Path()), None, selection, outcome, ALL)
    assert result.failures == (f"tooling: pytest did not come to its end ({how})",)
    assert how in outcome.line()
