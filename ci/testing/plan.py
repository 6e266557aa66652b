"""The parts of a test run, and the pytest processes of each.

Four parts: the tooling's own tests; upstream's tests, gated on the pristine
pin (ci/testing/gate.py); the series' tests in vLLM's layout; and the engine tests, in
which the installed wheel generates tokens. The parts run as several pytest
processes at a time; a test counts as its process reported it, by node id.
"""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ci.core.errors import Fault
from ci.core.project import project
from ci.core.testpaths import TestPaths
from ci.env import bootstrap
from ci.env import venvs as environments
from ci.env.venvs import Environment, Recipe
from ci.testing.environment import TestEnvironment
from ci.testing.gate import load_baseline
from ci.testing.groups import Group, Selection, load_selection, narrow
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


_TOOLING = "tests/tooling"
_ENGINE_LIMIT = 3600.0
"""Seconds that one group of the engine's tests may take."""


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
        paths: the files, folders and tests that are wanted; none for all.
        rest: args for pytest.
        thorough: also what is marked slow, and more examples of generated cases.
    """

    parts: tuple[Part, ...]
    paths: tuple[str, ...]
    rest: tuple[str, ...]
    thorough: bool
    gpu: bool
    at_once: int

    @property
    def partial(self) -> bool:
        """Whether pytest was told which tests to run, so that none can be missed."""
        return bool(self.paths or self.rest)

    @property
    def marks(self) -> tuple[str, ...]:
        """pytest's arguments that leave out what takes long, but not what is named itself."""
        named = any("::" in path for path in self.paths)
        return () if self.thorough or named else ("-m", "not slow")

    @property
    def expression(self) -> str:
        """pytest's -k EXPR, empty if there is none."""
        pairs = zip(("", *self.rest), self.rest, strict=False)
        found = [
            word if before == "-k" else word[2:]
            for before, word in pairs
            if before == "-k" or (word.startswith("-k") and word != "-k")
        ]
        return found[-1] if found else ""

    def tests_of(self, names: Sequence[str]) -> tuple[str, ...]:
        """What is wanted of the files that a process would run."""
        return narrow(names, self.paths)


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
        planned += _upstream_jobs(env, selection, wanted)
    if env is not None and Part.OVERLAY in wanted.parts:
        planned += _overlay_jobs(env, selection, wanted)
    if Part.TOOLING in wanted.parts:
        planned += _tooling_jobs(paths, wanted)
    if not planned:
        raise Fault("no such test in any part that is to be run", todo="widen the selection")
    return planned


def parts_of(where: TestPaths, paths: Sequence[str]) -> tuple[Part, ...]:
    """The parts that may hold one of the paths, all if there are none."""
    ours = {_TOOLING: Part.TOOLING, _engine(where): Part.ENGINE}
    found: set[Part] = set() if paths else set(Part)
    for path in paths:
        own = {part for folder, part in ours.items() if narrow([folder], [path])}
        found |= own
        if not own or path == "tests":
            found |= {Part.UPSTREAM, Part.OVERLAY}
    return tuple(part for part in Part if part in found)


def _engine(where: TestPaths) -> str:
    return where.engine.relative_to(where.root).as_posix()


def checks_environment(paths: TestPaths) -> Environment:
    """What the tooling's tests and checks run in."""
    return environments.ensure(
        paths.tooling_envs, Recipe("checks", (*bootstrap.requirements(), *CHECKS))
    )


def _tooling_jobs(paths: TestPaths, wanted: Wanted) -> Iterator[Job]:
    """The tooling's own tests, in an environment of their own."""
    variables = {**os.environ, "PYTHONPATH": str(paths.support), "PYTHONDONTWRITEBYTECODE": "1"}
    variables["SERIES_THOROUGH"] = "1" if wanted.thorough else ""  # more examples
    # Nobody but pytest itself knows whether the user's arguments go with workers.
    workers = () if wanted.partial else ("-n", "2")
    if tests := wanted.tests_of([_TOOLING]):
        args = ("-q", *workers, *wanted.marks, *tests, *wanted.rest)
        yield Job("tooling", checks_environment(paths).python, args, paths.root, variables)


def _site(env: TestEnvironment) -> Path:
    return env.environment.site_packages / "vllm"


def _threads(wanted_at_once: int) -> str:
    return str(max(1, (os.cpu_count() or 1) // wanted_at_once))


_PYTEST = ("-q", "-p", "no:cacheprovider", "-W", "ignore", "--show-capture=no", "--timeout=600")


def _upstream_jobs(env: TestEnvironment, selection: Selection, wanted: Wanted) -> Iterator[Job]:
    folder = env.tree_of_tests(env.source.tree, "series")
    baseline = load_baseline(env.paths.upstream, env.source.pin.base_tree).tests
    for group in selection.group:
        tests = wanted.tests_of(group.files)
        known = {test: word for test, word in baseline.items() if group.holds(test)}
        if not tests or (group.slow and not (wanted.thorough or wanted.paths)):
            continue
        sources = [folder / name.partition("::")[0] for name in tests]
        if may_select(wanted.expression, known, sources):
            part = replace(group, files=tests)
            options = (*selection.options, *wanted.rest)
            job = upstream_job(env, part, folder, [env.support], _site(env), options)
            yield replace(job, baseline=known)


def may_select(expression: str, known: Collection[str], sources: Sequence[Path]) -> bool:
    """Whether `-k EXPRESSION` may select one of the known tests or one in the sources.

    Where it has no `not`, a word of it stands in the name of what it selects, or
    as a mark in the source.
    """
    words = set(re.findall(r"[^\s()]+", expression.lower()))
    if not words or "not" in words:
        return True
    text = "\n".join([*known, *(path.read_text("utf-8") for path in sources)]).lower()
    return any(word in text for word in words - {"and", "or"})


def upstream_job(
    env: TestEnvironment,
    group: Group,
    folder: Path,
    path: list[Path],
    vllm: Path,
    options: Sequence[str] = (),
) -> Job:
    """One group of upstream's tests, run from a copy of a tree's tests."""
    variables = {
        **env.variables(path),
        "HF_HOME": str(env.models.absolute()),
        "OMP_NUM_THREADS": "1",
        **group.variables,
    }
    args = (*_PYTEST, *group.options, *group.files, *options)
    name = f"upstream-{group.name}"
    return Job(name, env.environment.python, args, folder, variables, vllm=vllm)


def _overlay_jobs(env: TestEnvironment, selection: Selection, wanted: Wanted) -> Iterator[Job]:
    folder = env.tree_of_tests(env.source.tree, "series")
    files = series_tests(env.source)
    if not files:
        raise Fault("the series has no tests of its own", todo="leave --part overlay out")
    variables = {
        **env.variables([env.support]),
        "HF_HOME": str(env.models.absolute()),
        "OMP_NUM_THREADS": _threads(wanted.at_once),
    }
    for group in selection.groups_of_own(wanted.tests_of(files)):
        rig = () if wanted.gpu else (*selection.options, *group.options)
        args = (*_PYTEST, *rig, *group.files, *wanted.rest)
        yield Job(group.name, env.environment.python, args, folder, variables, vllm=_site(env))


def _engine_jobs(env: TestEnvironment, wanted: Wanted) -> Iterator[Job]:
    """A process for each group; one for all if pytest has to search them for a few."""
    groups = engine_groups(env.paths)
    if any(word.startswith(("-k", "-m")) for word in wanted.rest):
        groups = {"chosen": tuple(file for files in groups.values() for file in files)}
    root = env.paths.root
    variables = {
        **env.variables([env.support]),
        **env.engine_variables(),
        "OMP_NUM_THREADS": _threads(wanted.at_once),
        project().variable("FIGURES"): str((env.paths.runs / "figures").absolute()),
    }
    # Node ids as a user writes paths, from the checkout's root.
    settings = ("-c", f"{_engine(env.paths)}/pytest.ini", "--rootdir", ".")
    for name, files in groups.items():
        if tests := wanted.tests_of(files):
            args = ("-q", *settings, "--timeout=900", *wanted.marks, *tests, *wanted.rest)
            job = Job(f"engine-{name}", env.environment.python, args, root, variables)
            yield replace(job, limit=_ENGINE_LIMIT, vllm=_site(env))


def engine_groups(paths: TestPaths) -> dict[str, tuple[str, ...]]:
    """The engine's test files, by the process that they share.

    A file that no group names is in one more, so that none is forgotten.
    """
    own = load_selection(paths.engine).group
    named = {g.name: tuple(f"{_engine(paths)}/{file}" for file in g.files) for g in own}
    files = [path.relative_to(paths.root).as_posix() for path in paths.engine.glob("test_*.py")]
    left = sorted(set(files).difference(*named.values()))
    return named | ({"others": tuple(left)} if left else {})
