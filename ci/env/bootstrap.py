"""The tooling's own environment: made on the first run, entered by every one.

`pip install nox` is all that a machine needs. Were the tooling's libraries in
noxfile.py's header, nox would have pip look at them anew in every run, which
takes longer than an `apply` with nothing to do may take.
"""

from __future__ import annotations

import fcntl
import os
import re
import sys
from importlib import metadata
from pathlib import Path

from ci import CHECKOUT
from ci.env.venvs import Recipe, ensure

_LISTED = Path(__file__).with_name("requirements.txt")


def requirements() -> tuple[str, ...]:
    """The lines of ci/env/requirements.txt."""
    lines = _LISTED.read_text("utf-8").splitlines()
    return tuple(line for line in lines if line and not line.startswith("#"))


def _is_missing(requirement: str) -> bool:
    """Whether this interpreter lacks it; versions are left to the installer."""
    if "python_version" in requirement and sys.version_info >= (3, 11):
        return False
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match is not None
    try:
        metadata.version(match[0])
    except metadata.PackageNotFoundError:
        return True
    return False


def enter() -> int:
    """Go on in the tooling's environment, unless this interpreter will do.

    Returns:
        0, if it does.

    Raises:
        Fault: the environment cannot be made (no network on the first run).
    """
    if not any(_is_missing(requirement) for requirement in requirements()):
        return 0
    build = CHECKOUT / "build"
    build.mkdir(exist_ok=True)
    with (build / "bootstrap.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        python = ensure(build / "envs", Recipe("tooling", requirements())).python
    os.execv(python, [str(python), "-m", "ci", *sys.argv[1:]])
    raise AssertionError("execv came back")
