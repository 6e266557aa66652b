# /// script
# requires-python = ">=3.10"
# dependencies = ["nox>=2025.5.1"]
# ///
"""Sessions only: each hands over to `python -m ci VERB`, where the work is done.

Start with `nox -s apply build`, then `nox -s test`. What follows `--` goes to
the verb; `nox -s VERB -- --help` lists its options, `-- --line NAME` names the line.
"""

from __future__ import annotations

import sys

import nox

nox.needs_version = ">=2025.5.1"
nox.options.default_venv_backend = "none"
nox.options.sessions = ["apply", "build"]


def _ci(session: nox.Session, verb: str) -> None:
    """Run one verb; it goes on in the tooling's own environment (ci/env/bootstrap.py)."""
    session.run(sys.executable, "-m", "ci", verb, *session.posargs)


@nox.session
def apply(session: nox.Session) -> None:
    """Compose the series on the pinned vLLM and check it out at build/LINE/vllm."""
    _ci(session, "apply")


@nox.session
def build(session: nox.Session) -> None:
    """Build the wheel: CUDA where a GPU is visible, else CPU (-- cuda, cpu or all)."""
    _ci(session, "build")


@nox.session
def test(session: nox.Session) -> None:
    """Install a line's wheel, verify it and run the tests; -- takes pytest's options."""
    _ci(session, "test")


@nox.session
def lint(session: nox.Session) -> None:
    """Check the tooling, the series, and with vLLM's own checks what it changes."""
    _ci(session, "lint")


@nox.session
def baseline(session: nox.Session) -> None:
    """Record how upstream's tests end on the pristine pin, for test to compare with."""
    _ci(session, "baseline")


@nox.session
def bench(session: nox.Session) -> None:
    """Run a benchmark of the line against its pinned vLLM (-- NAME; bench/LINE has them)."""
    _ci(session, "bench")


@nox.session
def verify(session: nox.Session) -> None:
    """Say which series a wheel or an installed vLLM is, and check every file of it."""
    _ci(session, "verify")


@nox.session
def bundle(session: nox.Session) -> None:
    """Pack the device checks for a bare machine with a GPU (-- --record FILE)."""
    _ci(session, "bundle")


@nox.session
def refresh(session: nox.Session) -> None:
    """Take edits of the work tree back into the series."""
    _ci(session, "refresh")


@nox.session
def roll(session: nox.Session) -> None:
    """Try the series on another vLLM (-- 0.18.1), and move it there (-- 0.18.1 --accept)."""
    _ci(session, "roll")


@nox.session
def port(session: nox.Session) -> None:
    """Carry a topic of one line to another (-- TOPIC --to LINE)."""
    _ci(session, "port")


@nox.session
def status(session: nox.Session) -> None:
    """Say where pin, topics, rolls, tests, wheels and work tree stand (-- --json, --html)."""
    _ci(session, "status")


@nox.session
def upstream(session: nox.Session) -> None:
    """Make a topic ready to be sent: signed-off branch, mail files, text (-- TOPIC)."""
    _ci(session, "upstream")


@nox.session
def prefixes(session: nox.Session) -> None:
    """Try every prefix, topic and declared need: does it import and pass its tests?"""
    _ci(session, "prefixes")


if __name__ == "__main__":
    nox.main()
