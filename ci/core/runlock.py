"""One run at a time in a checkout, and which one that is.

The lock is the operating system's, on an open file: it goes with the process
that holds it, however that ends, so there is no stale lock to clean up.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from ci.core.errors import Fault
from ci.core.progress import say

WAIT = 60.0
"""Seconds that a second run waits for the first."""


def _holder(build: Path) -> str:
    try:
        who = json.loads((build / "run.json").read_bytes())
        return f"`{who['verb']}` (process {who['pid']}, since {who['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another run"


@contextmanager
def alone(build: Path, verb: str, wait: float = WAIT) -> Iterator[None]:
    """Hold the lock of the checkout whose build folder is `build`.

    Raises:
        Fault: another run holds it for longer than `wait` seconds; names it.
    """
    build.mkdir(parents=True, exist_ok=True)
    lock = FileLock(build / "run.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if wait > 0:
            say(f"waiting for {_holder(build)} to end")
        try:
            lock.acquire(timeout=wait, poll_interval=0.1)
        except Timeout:
            raise Fault(
                f"{_holder(build)} is still running in this checkout", todo="wait until it ends"
            ) from None
    try:
        who = {"verb": verb, "pid": os.getpid(), "since": time.strftime("%H:%M:%S")}
        (build / "run.json").write_text(json.dumps(who), encoding="utf-8")
        yield
    finally:
        lock.release()
