"""The parts of a test run, and the pytest processes of each.

Four parts: the tooling's own tests; upstream's tests, gated on the pristine
pin (ci/testing/gate.py); the series' tests in vLLM's layout; and the engine tests, in
which the installed wheel generates tokens. The parts run as several pytest
processes at a time; a test counts as its process reported it, by node id.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ci.core.errors import Fault
from ci.core.project import project
from ci.core.testpaths import TestPaths
from ci.env import bootstrap
from ci.env import venvs as environments
from ci.env.venvs import Environment, Recipe
from ci.testing.environment import TestEnvironment
from ci.testing.gate import Group, Selection, load_baseline
from ci.testing.pytest_runs import Job
from ci.testing.selection import series_tests

CHECKS = (
    "hypothesis",
    "mypy==2.4.1",
    "nox>=2025.5.1",
    "pytest>=8,<10",
    "pytest-xdist>=3.6",
    "ruff==0.14.0",
    "setuptools>=77.0.3,<81",
    "types-requests",
    "types-tqdm",
    "wheel",
)
"""What the tooling's own tests and checks need beside the tooling's libraries."""


class Part(enum.Enum):
    """What can be run by itself with `--part`."""

    TOOLING = "tooling"
    UPSTREAM = "upstream"
    OVERLAY = "overlay"
    ENGINE = "engine"


@dataclass(frozen=True)
class Wanted:
    """What the user asked for.

    Attributes:
        rest: args for pytest; with any, no test can be missed.
        thorough: also what is marked slow, and more examples of generated cases.
    """

    parts: tuple[Part, ...]
    rest: tuple[str, ...]
    thorough: bool
    gpu: bool
    at_once: int

    @property
    def partial(self) -> bool:
        return bool(self.rest)


def plan(
    paths: TestPaths, env: TestEnvironment | None, selection: Selection, wanted: Wanted
) -> list[Job]:
    """The pytest processes of the wanted parts, the longest first, so that the
    last ones end at about the same time.

    Args:
        env: None if only the tooling's part is wanted.
    """
    planned: list[Job] = []
    if env is not None and Part.ENGINE in wanted.parts:
        planned += _engine_jobs(env, wanted)
    if env is not None and Part.UPSTREAM in wanted.parts:
        folder = env.tree_of_tests(env.source.tree, "series")
        tests = load_baseline(paths.upstream, env.source.pin.base_tree).tests
        for group in selection.group:
            if wanted.thorough or not group.slow:
                job = upstream_job(env, group, folder, [env.support], _site(env), wanted.rest)
                known = {test: word for test, word in tests.items() if group.holds(test)}
                planned.append(replace(job, baseline=known))
    if env is not None and Part.OVERLAY in wanted.parts:
        planned.append(_overlay_job(env, wanted))
    if Part.TOOLING in wanted.parts:
        planned.append(tooling_job(paths, wanted.rest, thorough=wanted.thorough))
    return planned


def checks_environment(paths: TestPaths) -> Environment:
    """What the tooling's tests and checks run in."""
    return environments.ensure(paths.envs, Recipe("checks", (*bootstrap.requirements(), *CHECKS)))


def tooling_job(paths: TestPaths, rest: Sequence[str] = (), *, thorough: bool = False) -> Job:
    """The tooling's own tests, in an environment of their own."""
    variables = {**os.environ, "PYTHONPATH": str(paths.support), "PYTHONDONTWRITEBYTECODE": "1"}
    if thorough:
        variables["CI"] = "1"  # the property tests look at more examples
    # Nobody but pytest itself knows whether the user's arguments go with workers.
    workers = () if rest else ("-n", "2")
    args = ("-q", *workers, "tests/tooling", *rest)
    return Job("tooling", checks_environment(paths).python, args, paths.root, variables)


def _site(env: TestEnvironment) -> Path:
    return env.environment.site_packages / "vllm"


def _threads(wanted_at_once: int) -> str:
    return str(max(1, (os.cpu_count() or 1) // wanted_at_once))


_PYTEST = ("-q", "-p", "no:cacheprovider", "-W", "ignore", "--show-capture=no", "--timeout=600")


def upstream_job(
    env: TestEnvironment,
    group: Group,
    folder: Path,
    path: list[Path],
    vllm: Path,
    rest: Sequence[str] = (),
) -> Job:
    """One group of upstream's tests, run from a copy of a tree's tests."""
    variables = {
        **env.variables(path),
        "HF_HOME": str(env.models.absolute()),
        "OMP_NUM_THREADS": "1",
        **group.variables,
    }
    args = (*_PYTEST, "-p", "upstream.seams", *group.options, *group.files, *rest)
    name = f"upstream-{group.name}"
    return Job(name, env.environment.python, args, folder, variables, vllm=vllm)


def _overlay_job(env: TestEnvironment, wanted: Wanted) -> Job:
    folder = env.tree_of_tests(env.source.tree, "series")
    files = series_tests(env.source)
    if not files:
        raise Fault("the series has no tests of its own", todo="leave --part overlay out")
    variables = {
        **env.variables([env.support]),
        "HF_HOME": str(env.models.absolute()),
        "OMP_NUM_THREADS": _threads(wanted.at_once),
    }
    seams = () if wanted.gpu else ("-p", "upstream.seams")
    args = (*_PYTEST, *seams, *files, *wanted.rest)
    return Job("overlay", env.environment.python, args, folder, variables, vllm=_site(env))


def _engine_jobs(env: TestEnvironment, wanted: Wanted) -> list[Job]:
    """A process per file: an ended engine's memory comes back with its process alone."""
    root = env.paths.root
    variables = {
        **env.variables([env.support]),
        **env.engine_variables(),
        "OMP_NUM_THREADS": _threads(wanted.at_once),
        project().variable("FIGURES"): str((env.paths.runs / "figures").absolute()),
    }
    selection = () if wanted.thorough else ("-m", "not slow")
    planned = []
    # The matrix, which takes longest, first.
    files = sorted(env.paths.engine.glob("test_*.py"), key=lambda p: (p.stem != "test_matrix", p))
    for path in files:
        name = f"engine-{path.stem.removeprefix('test_')}"
        file = path.relative_to(root).as_posix()
        args = ("-q", *selection, "--timeout=900", file, *wanted.rest)
        planned.append(Job(name, env.environment.python, args, root, variables, 3600.0, _site(env)))
    return planned
