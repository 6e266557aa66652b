"""Trying trees: do these patches compose, import, and pass their tests?

A `Trial` says what is composed and which of its patches are judged; a `Trier`
lays the trees out one after the other and runs Python on them. A result is
kept by the tree it was found on, so a change of the last patch tries that one
again and nothing else.
"""

from __future__ import annotations

import enum
import hashlib
import json
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec

from ci.core.errors import Fault
from ci.git.repo import Git
from ci.git.trees import changes
from ci.series import compose as composing
from ci.series.compose import BaseTree
from ci.series.model import Patch, Series, SeriesFiles
from ci.series.topics import closure, subset, topic_closure, topic_patches
from ci.testing import pytest_runs as jobs
from ci.testing.groups import Selection
from ci.testing.pytest_runs import Job
from ci.testing.selection import changed_functions, changed_tests

_LIMIT = 900.0
"""Seconds that one tree's tests may take."""
_PYTEST = ("-q", "-p", "no:cacheprovider")


class Kind(enum.Enum):
    """What a row is about."""

    PREFIX = "prefix"
    TOPIC = "topic"
    NEED = "need"


@dataclass(frozen=True)
class Trial:
    """One tree to try.

    Attributes:
        patches: what is composed on the pin.
        judged: the patches whose modules are imported and whose tests are run.
    """

    kind: Kind
    name: str
    patches: tuple[Patch, ...]
    judged: tuple[Patch, ...]


@dataclass(frozen=True)
class Outcome:
    """What came of a trial.

    Attributes:
        applies: empty, or why the patches do not compose.
        stuck: the patch that does not apply then.
        broken: modules that cannot be imported, with the error.
        aside: modules that cannot be imported on the bare pin either.
        tests: pytest's word -> how many.
        failed: node ids, or files that could not be collected.
        cut_short: pytest was ended from outside, so this is not kept.
    """

    applies: str = ""
    stuck: str = ""
    imported: int = 0
    broken: dict[str, str] = field(default_factory=dict)
    aside: int = 0
    tests: dict[str, int] = field(default_factory=dict)
    failed: tuple[str, ...] = ()
    seconds: float = 0.0
    cut_short: bool = False

    @property
    def stands(self) -> bool:
        return not (self.applies or self.broken or self.failed)


@dataclass(frozen=True)
class Runner:
    """How Python is run on a tree.

    Attributes:
        libraries: a folder with a `vllm` whose compiled libraries and generated
            files are laid beside a tree's sources; None if there are none.
        options: what pytest is given beside the files and the selection's own.
        selection: how the series' tests are shared among processes.
    """

    python: Path
    variables: Mapping[str, str]
    libraries: Path | None = None
    options: tuple[str, ...] = ()
    selection: Selection = field(default_factory=lambda: Selection(()))

    def key(self) -> str:
        words = (str(self.python), self.options, self.selection.options, self.selection.own)
        return hashlib.sha256(repr(words).encode()).hexdigest()[:16]


# -- what to try --------------------------------------------------------------


def trials(series: Series) -> list[Trial]:
    """Every prefix, every topic, every declared need, in this order."""
    found = [
        Trial(Kind.PREFIX, patch.file, series.patches[: n + 1], (patch,))
        for n, patch in enumerate(series.patches)
    ]
    for topic in series.topics:
        own = topic_patches(series, topic.name)
        if own:
            found.append(Trial(Kind.TOPIC, topic.name, topic_closure(series, topic.name), own))
    for patch in series.patches:
        found += [_without(series, patch, need) for need in patch.needs]
    return found


def _without(series: Series, patch: Patch, need: str) -> Trial:
    """A patch on its closure, less one that it says it needs and what needs that."""
    whole = closure(series, [patch.name])
    gone = {need}
    for other in whole:
        if other.name != patch.name and gone & set(other.needs):
            gone.add(other.name)
    left = tuple(one for one in whole if one.name not in gone)
    return Trial(Kind.NEED, f"{patch.name} needs {need}", left, (patch,))


# -- trying -------------------------------------------------------------------


class Trier:
    """Lays trees out one after the other and runs Python on them."""

    def __init__(
        self, folder: Path, store: Git, base: BaseTree, files: SeriesFiles, runner: Runner
    ) -> None:
        self.store, self.base, self.files, self.runner = store, base, files, runner
        self.folder = folder / "tree"
        self._index = folder / "tree.index"
        self._kept = folder / "results.json"
        self._known = self._read_kept()
        self._aside: dict[str, bool] = {}

    def run(self, trial: Trial) -> Outcome:
        """The trial's outcome, from an earlier run if its tree was tried before."""
        try:
            planned = self._plan(trial.patches)
        except Fault as fault:
            return self._refused(trial, fault)
        commits = composing.write(self.store, self.base, planned)
        trees = [self.base.tree, *(commit.tree for commit in commits)]
        tree = trees[-1]
        steps = {one.patch.name: trees[n : n + 2] for n, one in enumerate(planned)}
        judged = [steps[patch.name] for patch in trial.judged]
        modules = [module for step in judged for module in self._modules(*step)]
        tests = [
            test
            for step in judged
            for test in changed_tests(self.store, *step)
            if self._is_still_there(test, tree)
        ]
        # That a need is real is known at the first thing that breaks.
        early = trial.kind is Kind.NEED
        key = _key(tree, modules, tests, self.runner.key() + str(early))
        if key not in self._known:
            outcome = self._try(tree, modules, tests, early=early)
            if outcome.cut_short:
                return outcome
            self._known[key] = outcome
            self._write_kept()
        return self._known[key]

    def _plan(self, patches: Sequence[Patch]) -> list[composing.Planned]:
        return composing.plan(self.store, self.base, subset(self.files, patches))

    def _refused(self, trial: Trial, fault: Fault) -> Outcome:
        """Which patch does not apply."""
        stuck = ""
        for count, patch in enumerate(trial.patches, 1):
            try:
                self._plan(trial.patches[:count])
            except Fault:
                stuck = patch.file
                break
        return Outcome(applies=fault.what, stuck=stuck)

    def _modules(self, before: str, after: str) -> Iterator[str]:
        """What can be imported of the files that a patch adds or changes."""
        for change in changes(self.store, before, after):
            path = change.path.decode("utf-8", "surrogateescape")
            if change.new and path.startswith("vllm/") and path.endswith(".py"):
                yield path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def _is_still_there(self, test: str, tree: str) -> bool:
        """Whether no later patch of the trial takes the test function out again."""
        path, _, name = test.partition("::")
        blob = self.store.resolve(f"{tree}:{path}") if name else None
        return blob is None or name in changed_functions(b"", self.store.blob(blob))

    def _try(
        self, tree: str, modules: Sequence[str], tests: Sequence[str], *, early: bool
    ) -> Outcome:
        start = time.monotonic()
        self._lay_out(tree)
        broken = self._import(modules)
        aside = [name for name in broken if self._fails_on_the_pin(name, tree)]
        broken = {name: why for name, why in broken.items() if name not in aside}
        ran = self._test(tests) if tests and not (early and broken) else []
        return Outcome(
            imported=len(modules) - len(broken) - len(aside),
            broken=broken,
            aside=len(aside),
            tests=dict(sum((one.counts for one in ran), Counter())),
            failed=tuple(failure for one in ran for failure in _failures(one)),
            seconds=round(time.monotonic() - start, 1),
            cut_short=any(one.status is None or one.status < 0 for one in ran),
        )

    # -- one tree -------------------------------------------------------------

    def _lay_out(self, tree: str) -> None:
        """Make the folder hold `tree`, touching only what differs from the last one."""
        fresh = not self.folder.is_dir()
        self.folder.mkdir(parents=True, exist_ok=True)
        if fresh:
            self._index.unlink(missing_ok=True)
        view = Git(self.store.git_dir, work_tree=self.folder, index=self._index)
        view.run("read-tree", "--reset", "-u", tree)
        if fresh and self.runner.libraries is not None:
            _lay_libraries(self.runner.libraries, self.folder / "vllm")

    def _import(self, modules: Sequence[str]) -> dict[str, str]:
        """The modules that cannot be imported, each in turn in one process."""
        if not modules:
            return {}
        done = subprocess.run(
            [str(self.runner.python), "-c", _IMPORTER, *modules],
            cwd=self.folder,
            env=dict(self.runner.variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LIMIT,
            check=False,
        )
        last = done.stdout.decode("utf-8", "replace").strip().splitlines()[-1:]
        try:
            found: dict[str, str] = json.loads(last[0])
        except (IndexError, ValueError):
            said = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
            why = f"Python exited with status {done.returncode}: {' '.join(said)}"
            return dict.fromkeys(modules, why)
        return found

    def _fails_on_the_pin(self, module: str, tree: str) -> bool:
        """Whether upstream's own module cannot be imported on this machine."""
        if module not in self._aside:
            path = module.replace(".", "/").encode()
            there = {path + b".py", path + b"/__init__.py"} & set(self.base.entries)
            self._aside[module] = False
            if there:
                self._lay_out(self.base.tree)
                self._aside[module] = module in self._import([module])
                self._lay_out(tree)
        return self._aside[module]

    def _test(self, files: Sequence[str]) -> list[jobs.Outcome]:
        run = self.runner
        options = (*_PYTEST, *run.options, *run.selection.options)
        planned = [
            Job(
                group.name, run.python, (*options, *group.options, *group.files), self.folder,
                run.variables, _LIMIT, self.folder / "vllm",
            )
            for group in run.selection.groups_of_own(files)
        ]  # fmt: skip
        return jobs.run_all(planned, self.folder.parent, 1, quiet=True)

    # -- what was found before --------------------------------------------------

    def _read_kept(self) -> dict[str, Outcome]:
        try:
            return msgspec.json.decode(self._kept.read_bytes(), type=dict[str, Outcome])
        except (OSError, msgspec.MsgspecError):
            return {}

    def _write_kept(self) -> None:
        self._kept.parent.mkdir(parents=True, exist_ok=True)
        draft = self._kept.with_suffix(".draft")
        draft.write_text(json.dumps({k: asdict(o) for k, o in self._known.items()}, indent=1))
        draft.replace(self._kept)


_IMPORTER = """
import importlib, json, sys
failed = {}
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except BaseException as error:
        failed[name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
print()
print(json.dumps(failed))
"""


def _key(tree: str, modules: Sequence[str], tests: Sequence[str], runner: str) -> str:
    words = "\0".join([tree, *sorted(modules), "", *sorted(tests), runner])
    return hashlib.sha256(words.encode("utf-8", "surrogateescape")).hexdigest()


def _failures(ran: jobs.Outcome) -> tuple[str, ...]:
    """What failed; a run that did not end well is a failure."""
    broken = () if ran.tests and ran.report.complete else (f"{ran.ending}, see {ran.log}",)
    return (*ran.failures, *(ran.breakdown if ran.report.uncollected else ()), *broken)


def _lay_libraries(origin: Path, target: Path) -> None:
    """Link what an installed vllm has beyond its sources: libraries, generated files."""
    for path in sorted(origin.rglob("*")):
        place = target / path.relative_to(origin)
        if path.is_file() and "__pycache__" not in path.parts and not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(path.absolute())
