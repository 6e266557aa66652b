"""Running pytest: several processes at a time, each with a log and its outcomes as data."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import msgspec

from ci.core.errors import Fault
from ci.core.progress import say
from ci.core.project import project
from ci.testing.gate import FAILED

_BEAT = 30.0
"""Seconds between two lines of progress."""

NO_TESTS = 5
"""pytest's status when nothing was selected."""


@dataclass(frozen=True)
class Job:
    """One pytest process.

    Attributes:
        name: for a person, and the log's file name.
        python: the interpreter.
        args: pytest's arguments.
        cwd: where it runs.
        env: all of its environment.
        limit: seconds after which it is ended.
        vllm: the folder that `vllm` has to be imported from; None if the job
            does not use it.
        baseline: how its tests ended on the pristine pin; None if every one
            has to pass.
    """

    name: str
    python: Path
    args: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str]
    limit: float = 1800.0
    vllm: Path | None = None
    baseline: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Report:
    """What the process says of its tests (tests/support/upstream/outcomes.py).

    Attributes:
        tests: node id -> passed, failed, skipped, xfailed or xpassed.
        reasons: node id -> why it was skipped or failed, where that is known.
        running: tests that began and did not end.
        uncollected: files that could not be collected.
        selected: how many tests were to be run.
        left_out: how many were collected and left out.
        complete: whether pytest came to its own end.
    """

    tests: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    running: tuple[str, ...] = ()
    uncollected: tuple[str, ...] = ()
    selected: int = 0
    left_out: int = 0
    complete: bool = False

    @property
    def skips(self) -> dict[str, str]:
        """Node id -> why it was skipped."""
        return {n: why for n, why in self.reasons.items() if self.tests.get(n) == "skipped"}


@dataclass(frozen=True)
class _Event:
    """One line of what the process writes; each has one of the first six."""

    selected: int = 0
    left_out: int = 0
    uncollected: str = ""
    begun: str = ""
    ended: str = ""
    complete: bool = False
    word: str = ""
    reason: str = ""


def read_report(path: Path) -> Report:
    """What a process has written so far; the last line may be half there."""
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
        events = [msgspec.json.decode(line, type=_Event) for line in lines]
    except (OSError, msgspec.MsgspecError):
        return Report()
    ended = {event.ended: event for event in events if event.ended}
    return Report(
        tests={name: event.word for name, event in ended.items()},
        reasons={name: event.reason for name, event in ended.items() if event.reason},
        running=tuple(e.begun for e in events if e.begun and e.begun not in ended),
        uncollected=tuple(event.uncollected for event in events if event.uncollected),
        selected=max((event.selected for event in events), default=0),
        left_out=max((event.left_out for event in events), default=0),
        complete=any(event.complete for event in events),
    )


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Attributes:
        status: pytest's exit status; None if it was ended at its limit.
    """

    job: Job
    status: int | None
    seconds: float
    log: Path
    report: Report

    @property
    def tests(self) -> Mapping[str, str]:
        return self.report.tests

    @property
    def counts(self) -> Counter[str]:
        return Counter(self.tests.values())

    @property
    def tally(self) -> list[str]:
        """How many tests ended how."""
        return [f"{count} {word}" for word, count in sorted(self.counts.items())]

    @property
    def failures(self) -> tuple[str, ...]:
        """The tests that failed, one line each."""
        why = self.report.reasons
        return tuple(f"{t}: {why.get(t, word)}" for t, word in self.tests.items() if word in FAILED)

    @property
    def ended_well(self) -> bool:
        """Whether the process itself did what it should, whatever its tests said."""
        report = self.report
        return report.complete and self.status in (0, 1, NO_TESTS) and not report.uncollected

    @property
    def breakdown(self) -> tuple[str, ...]:
        """What went wrong beside failing tests, one line each."""
        if self.ended_well:
            return ()
        report = self.report
        broken = tuple(f"{file}: could not be collected" for file in report.uncollected)
        where = f", in {' and '.join(report.running)}" if report.running else ""
        left = report.selected - len(report.tests) - len(report.running)
        lost = f"; {left} tests of it were not run" if left > 0 else ""
        return broken or (f"{self.job.name}: pytest did not finish: {self.ending}{where}{lost}",)

    @property
    def ending(self) -> str:
        """How the process itself ended."""
        if self.status is None:
            return f"timed out after {self.job.limit:.0f} s"
        if self.status >= 0:
            return f"exit status {self.status}"
        memory = " (out of memory?)" if self.status == -signal.SIGKILL else ""
        return f"killed by {signal.Signals(-self.status).name}{memory}"

    def line(self) -> str:
        """One line for a person."""
        how = "" if self.ended_well else f"; {self.ending}, see {self.log}"
        return f"{self.job.name}: {', '.join(self.tally) or 'no test'} in {self.seconds:.0f} s{how}"


class _Process:
    """A job at work. It leads a process group of its own."""

    def __init__(self, job: Job, folder: Path, live: bool) -> None:
        self.job = job
        self.log = folder / f"{job.name}.log"
        self._report = folder / f"{job.name}.jsonl"
        self._report.unlink(missing_ok=True)
        self._start = time.monotonic()
        args = [str(job.python), "-m", "pytest", "-p", "upstream.outcomes"]
        args += ["--outcomes", str(self._report.absolute()), *job.args]
        env = dict(job.env)
        if job.vllm is not None:
            env[project().variable("EXPECT_VLLM")] = str(job.vllm.absolute())
        with self.log.open("wb") as log:
            self._popen = subprocess.Popen(
                args,
                cwd=job.cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=None if live else log,
                stderr=None if live else subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def report(self) -> Report:
        """What it said last."""
        return read_report(self._report)

    def poll(self) -> Outcome | None:
        """The outcome, once it has ended or has to be."""
        status = self._popen.poll()
        if status is None:
            if self.seconds <= self.job.limit:
                return None
            self.end()
        return Outcome(self.job, status, self.seconds, self.log, self.report())

    def end(self) -> None:
        """End it with all that it started."""
        if self._popen.poll() is None:
            os.killpg(self._popen.pid, signal.SIGTERM)
            try:
                self._popen.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self._popen.pid, signal.SIGKILL)
                self._popen.wait()


def run_all(
    jobs: Sequence[Job], folder: Path, at_once: int, *, quiet: bool = False
) -> list[Outcome]:
    """Run jobs, `at_once` at a time; a single one has the terminal to itself.

    Args:
        quiet: say nothing, and give a single one a log too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    waiting = list(jobs)
    running: list[_Process] = []
    done: dict[str, Outcome] = {}
    beat = time.monotonic()
    # Asked to end, end the jobs too, which are in groups of their own.
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                running.append(_Process(waiting.pop(0), folder, len(jobs) == 1 and not quiet))
            time.sleep(0.2)
            for process in list(running):
                if (outcome := process.poll()) is not None:
                    running.remove(process)
                    done[process.job.name] = outcome
                    if not quiet:
                        say(outcome.line())
            if len(jobs) > 1 and running and time.monotonic() - beat > _BEAT:
                beat = time.monotonic()
                say(
                    "… " + "; ".join(f"{p.job.name} {len(p.report().tests)} tests" for p in running)
                )
    finally:
        for process in running:
            process.end()
        signal.signal(signal.SIGTERM, before)
    return [done[job.name] for job in jobs]


def _stop(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def show_failures(outcome: Outcome, names: Sequence[str], lines: int = 60) -> None:
    """Print the end of a job's log, where pytest tells what failed."""
    if not outcome.log.is_file() or not outcome.log.stat().st_size:
        return
    count = f"{len(names)} failure{'s' * (len(names) > 1)}"
    say(f"---- {outcome.job.name}: {count}; the end of {outcome.log}:")
    for line in outcome.log.read_text("utf-8", "replace").splitlines()[-lines:]:
        say(f"    {line}")


def check_status(outcome: Outcome) -> None:
    """Stop at wrong use of pytest, which would otherwise look like a run without tests.

    Raises:
        Fault: pytest did not understand its arguments.
    """
    if outcome.status == 4:
        shown = outcome.log.exists() and outcome.log.stat().st_size
        raise Fault(
            f"pytest did not take the arguments of {outcome.job.name}",
            todo=f"see {outcome.log}" if shown else "see its output above",
        )
