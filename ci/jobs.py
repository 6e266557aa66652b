"""Running pytest: several processes at a time, each with a log and its outcomes as data."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO

from ci.errors import Fault
from ci.progress import say

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
        words: pytest's arguments.
        cwd: where it runs.
        env: all of its environment.
        limit: seconds after which it is ended.
        vllm: the folder that `vllm` has to be imported from; None if the job
            does not use it.
    """

    name: str
    python: Path
    words: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str]
    limit: float = 1800.0
    vllm: Path | None = None


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Attributes:
        status: pytest's exit status; None if it was ended at its limit.
        tests: node id -> passed, failed, skipped, xfailed or xpassed.
        skips: node id -> why it was skipped.
        uncollected: files that could not be collected.
        complete: whether pytest came to its own end.
    """

    job: Job
    status: int | None
    seconds: float
    log: Path
    tests: Mapping[str, str]
    skips: Mapping[str, str]
    uncollected: tuple[str, ...]
    complete: bool

    @property
    def counts(self) -> Counter[str]:
        return Counter(self.tests.values())

    @property
    def tally(self) -> list[str]:
        """How many tests ended how, in words."""
        return [f"{count} {word}" for word, count in sorted(self.counts.items())]

    @property
    def ended_well(self) -> bool:
        """Whether the process itself did what it should, whatever its tests said."""
        return self.complete and self.status in (0, 1, NO_TESTS) and not self.uncollected

    @property
    def ending(self) -> str:
        """How the process itself ended."""
        if self.status is None:
            return "its time was up"
        if self.status >= 0:
            return f"ended with status {self.status}"
        memory = " (out of memory?)" if self.status == -signal.SIGKILL else ""
        return f"ended by {signal.Signals(-self.status).name}{memory}"

    def line(self) -> str:
        """One line for a person."""
        how = "" if self.ended_well else f"; {self.ending}, see {self.log}"
        return f"{self.job.name}: {', '.join(self.tally) or 'no test'} in {self.seconds:.0f} s{how}"


@dataclass
class _Running:
    job: Job
    process: subprocess.Popen[bytes]
    log: Path
    stream: IO[bytes] | None
    report: Path
    start: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.start


def run_all(
    jobs: Sequence[Job], folder: Path, at_once: int, *, quiet: bool = False
) -> list[Outcome]:
    """Run jobs, `at_once` at a time; a single one has the terminal to itself.

    Args:
        quiet: say nothing, and give a single one a log too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    waiting = list(jobs)
    running: list[_Running] = []
    done: dict[str, Outcome] = {}
    beat = time.monotonic()
    # Each job leads a process group of its own: asked to end, end them too.
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                running.append(_start(waiting.pop(0), folder, live=len(jobs) == 1 and not quiet))
            time.sleep(0.2)
            for one in [one for one in running if _has_ended(one)]:
                running.remove(one)
                done[one.job.name] = _finish(one)
                if not quiet:
                    say(done[one.job.name].line())
            if len(jobs) > 1 and running and time.monotonic() - beat > _BEAT:
                beat = time.monotonic()
                say("… " + "; ".join(_progress(one) for one in running))
    finally:
        for one in running:
            _end(one)
        signal.signal(signal.SIGTERM, before)
    return [done[job.name] for job in jobs]


def _stop(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _start(job: Job, folder: Path, live: bool) -> _Running:
    log = folder / f"{job.name}.log"
    report = folder / f"{job.name}.json"
    report.unlink(missing_ok=True)
    stream = None if live else log.open("wb")
    words = [str(job.python), "-m", "pytest", "-p", "upstream.outcomes"]
    words += ["--outcomes", str(report.absolute()), *job.words]
    env = dict(job.env)
    if job.vllm is not None:
        env["NGRAM_EXPECT_VLLM"] = str(job.vllm.absolute())
    process = subprocess.Popen(
        words,
        cwd=job.cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=stream,
        stderr=subprocess.STDOUT if stream else None,
        start_new_session=True,
    )
    return _Running(job, process, log, stream, report)


def _has_ended(one: _Running) -> bool:
    if one.process.poll() is not None:
        return True
    if one.seconds > one.job.limit:
        say(f"{one.job.name}: ended after {one.job.limit:.0f} s")
        _end(one)
        return True
    return False


def _end(one: _Running) -> None:
    """End a job with all that it started."""
    if one.process.poll() is None:
        os.killpg(one.process.pid, signal.SIGTERM)
        try:
            one.process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(one.process.pid, signal.SIGKILL)
            one.process.wait()


def _read(report: Path) -> dict[str, object]:
    try:
        table: dict[str, object] = json.loads(report.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return table


def _progress(one: _Running) -> str:
    tests = _read(one.report).get("tests", {})
    return f"{one.job.name} {len(tests) if isinstance(tests, dict) else 0} tests"


def _finish(one: _Running) -> Outcome:
    if one.stream is not None:
        one.stream.close()
    table = _read(one.report)
    tests, skips, uncollected = (
        table.get("tests"),
        table.get("skips"),
        table.get("uncollected"),
    )
    return Outcome(
        one.job,
        None if one.seconds > one.job.limit else one.process.returncode,
        one.seconds,
        one.log,
        dict(tests) if isinstance(tests, dict) else {},
        dict(skips) if isinstance(skips, dict) else {},
        tuple(uncollected) if isinstance(uncollected, list) else (),
        table.get("complete") is True,
    )


def show_failures(outcome: Outcome, names: Sequence[str], lines: int = 60) -> None:
    """Print the end of a job's log, where pytest tells what failed."""
    if not outcome.log.is_file() or not outcome.log.stat().st_size:
        return
    count = f"{len(names)} failure{'s' * (len(names) > 1)}"
    say(f"---- {outcome.job.name}: {count}; the end of {outcome.log}:")
    text = outcome.log.read_text("utf-8", "replace").splitlines()
    for line in text[-lines:]:
        say(f"    {line}")


def check_status(outcome: Outcome) -> None:
    """Stop at wrong use of pytest, which would otherwise look like a run without tests.

    Raises:
        Fault: pytest did not understand its arguments.
    """
    if outcome.status == 4:
        raise Fault(
            f"pytest did not take the arguments of {outcome.job.name}",
            todo=f"see {outcome.log}" if outcome.log.exists() else "see its words above",
        )
