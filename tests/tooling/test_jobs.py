"""pytest processes: outcomes as data, whatever becomes of the process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ci.core.errors import Fault
from ci.testing import pytest_runs as jobs
from ci.testing.pytest_runs import Job, Outcome

SUPPORT = Path(__file__).parents[1] / "support"


def _run(tmp_path: Path, *tests: str, args: tuple[str, ...] = (), limit: float = 60) -> Outcome:
    """The outcome of the first of two jobs (two, so that each has a log)."""
    made = []
    for number, body in enumerate((*tests, "def test_other(): pass")[:2]):
        folder = tmp_path / f"job{number}"
        folder.mkdir()
        (folder / "test_it.py").write_text(body)
        (folder / "pytest.ini").write_text("[pytest]\n")
        env = {
            **os.environ,
            "PYTHONPATH": str(SUPPORT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }
        options = ("-q", "-p", "no:cacheprovider", *args)
        made.append(Job(f"j{number}", Path(sys.executable), options, folder, env, limit))
    return jobs.run_all(made, tmp_path / "logs", 2)[0]


def test_every_kind_of_outcome(tmp_path: Path) -> None:
    outcome = _run(
        tmp_path,
        """
import pytest
@pytest.fixture
def broken(): raise RuntimeError
@pytest.fixture
def breaks_after():
    yield
    raise RuntimeError
def test_good(): pass
def test_bad(): assert 0
def test_error(broken): pass
def test_after(breaks_after): pass
@pytest.mark.skip(reason="needs CUDA")
def test_skip(): pass
@pytest.mark.xfail
def test_xfail(): assert 0
@pytest.mark.xfail
def test_xpass(): pass
""",
    )
    assert {node.split("::")[1]: word for node, word in outcome.tests.items()} == {
        "test_good": "passed",
        "test_bad": "failed",
        "test_error": "failed",
        "test_after": "failed",
        "test_skip": "skipped",
        "test_xfail": "xfailed",
        "test_xpass": "xpassed",
    }
    assert outcome.report.skips == {"test_it.py::test_skip": "needs CUDA"}
    assert outcome.ended_well
    assert "1 passed" in outcome.line()


def test_outcomes_of_workers(tmp_path: Path) -> None:
    body = "def test_a(): pass\ndef test_b(): assert 0"
    outcome = _run(tmp_path, body, args=("-p", "xdist", "-n", "1"))
    found = {node.split("::")[1]: word for node, word in outcome.tests.items()}
    assert found == {"test_a": "passed", "test_b": "failed"}
    assert outcome.status == 1


def test_a_process_that_dies(tmp_path: Path) -> None:
    body = """
import os
def test_a(): pass
def test_b(): os.kill(os.getpid(), 11)
def test_c(): pass
def test_d(): pass
"""
    outcome = _run(tmp_path, body)
    assert not outcome.ended_well
    assert outcome.tests == {"test_it.py::test_a": "passed"}
    assert outcome.breakdown == (
        "j0: pytest did not finish: killed by SIGSEGV, in test_it.py::test_b;"
        " 2 tests of it were not run",
    )


def test_why_a_test_failed(tmp_path: Path) -> None:
    outcome = _run(tmp_path, "def test_a(): raise ValueError('so\\nand so')\ndef test_b(): pass")
    assert outcome.failures == ("test_it.py::test_a: ValueError: so",)


def test_a_process_that_hangs(tmp_path: Path) -> None:
    outcome = _run(tmp_path, "import time\ndef test_a(): time.sleep(600)", limit=5)
    assert outcome.status is None
    assert not outcome.ended_well
    assert "timed out after 5 s" in outcome.breakdown[0]


@pytest.mark.parametrize("workers", [(), ("-p", "xdist", "-n", "2")])
def test_what_was_left_out_is_counted(tmp_path: Path, workers: tuple[str, ...]) -> None:
    body = "def test_a(): pass\ndef test_b(): pass\ndef test_c(): pass"
    outcome = _run(tmp_path, body, args=(*workers, "-k", "not test_a"))
    assert outcome.report.left_out == 1
    assert outcome.counts == {"passed": 2}


def test_a_file_that_cannot_be_collected(tmp_path: Path) -> None:
    outcome = _run(tmp_path, "import nonsense_that_is_not_there")
    assert outcome.report.uncollected == ("test_it.py",)
    assert not outcome.ended_well


def test_wrong_use_and_nothing_selected(tmp_path: Path) -> None:
    outcome = _run(tmp_path, args=("--no-such-option",))
    with pytest.raises(Fault, match="did not take the arguments"):
        jobs.check_status(outcome)
    (tmp_path / "more").mkdir()
    outcome = _run(tmp_path / "more", args=("-k", "nothing"))
    assert outcome.status == jobs.NO_TESTS
    assert outcome.ended_well
    jobs.check_status(outcome)


def test_another_vllm_than_the_one_under_test(tmp_path: Path) -> None:
    (tmp_path / "wrong" / "vllm").mkdir(parents=True)
    (tmp_path / "wrong" / "vllm" / "__init__.py").touch()
    (tmp_path / "test_it.py").write_text("def test_a(): pass")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(SUPPORT), str(tmp_path / "wrong")))}
    args = ("-q", "-p", "no:cacheprovider")
    right = tmp_path / "wrong" / "vllm"
    job = Job("j", Path(sys.executable), args, tmp_path, env, 60, tmp_path / "right")
    outcomes = jobs.run_all(
        [job, Job("k", job.python, args, tmp_path, env, 60, right)], tmp_path / "logs", 1
    )
    assert [outcome.status for outcome in outcomes] == [3, 0]
    assert not outcomes[0].ended_well
    assert "vllm comes from" in outcomes[0].log.read_text()
