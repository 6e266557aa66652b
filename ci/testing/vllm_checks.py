"""vLLM's own checks, run on what the series changes.

vLLM's checks are the ones that its pre-commit configuration names, with the
versions that it names, run on the changed files in a copy of the composed
tree. The copy matters: some of them mend what they find.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ci.core.errors import Fault
from ci.core.progress import say
from ci.env import venvs as environments
from ci.env.venvs import Environment, Recipe
from ci.git.extract import export_tree
from ci.git.repo import Git
from ci.git.trees import changes
from ci.wheel.composed import ComposedSeries

_SCRIPTS = (
    "check_spdx_header",
    "check_forbidden_imports",
    "check_init_lazy_imports",
    "check_boolean_context_manager",
    "validate_config",
)
"""vLLM's own checks under tools/pre_commit that take Python files and need no network."""

_LAZY_ROOT = "vllm/__init__.py"

_UNCHECKED = {
    ".sh": "shellcheck",
    ".png": "png-lint",
    ".cu": "clang-format",
    ".cpp": "clang-format",
    ".h": "clang-format",
}
"""Kinds of files whose check of vLLM's needs what is not on the package index."""


@dataclass(frozen=True)
class Check:
    """One program to run.

    Attributes:
        name: for a person.
        args: the command.
        cwd: where it runs.
    """

    name: str
    args: tuple[str, ...]
    cwd: Path


@dataclass(frozen=True)
class Versions:
    """What vLLM's pre-commit configuration names."""

    ruff: str
    typos: str
    mypy: tuple[str, ...]


def check_tree(build: Path, git: Git, tree: str, paths: Sequence[str]) -> list[str]:
    """vLLM's checks on some files of a tree; the names of those that failed."""
    for path in paths:
        kind = _UNCHECKED.get(Path(path).suffix)
        if kind:
            say(f"not checked: {path} (vLLM has {kind} look at it)")
    versions = read_versions(git, tree)
    folder = build / "lint" / "tree"
    if folder.exists():
        shutil.rmtree(folder)  # an older copy may have been mended
    export_tree(git, tree, folder)
    return run_checks(vllm_checks(_environment(build / "envs", versions), folder, paths))


def changed_files(source: ComposedSeries) -> tuple[str, ...]:
    """What the series adds or changes in vLLM's tree."""
    found = changes(source.git, source.pin.base_tree, source.tree)
    return tuple(one.path.decode("utf-8", "surrogateescape") for one in found if one.new)


def read_versions(git: Git, tree: str) -> Versions:
    """The versions in a tree's .pre-commit-config.yaml.

    Raises:
        Fault: it does not name them where it used to.
    """
    blob = git.resolve(f"{tree}:.pre-commit-config.yaml")
    text = git.blob(blob).decode("utf-8") if blob else ""
    # A tag, or since 0.3x the commit with its tag behind it.
    rev = r"\s+rev: (?:[0-9a-f]{40}\s+# frozen: )?v(\S+)"
    ruff = re.search(rf"repo: \S*/ruff-pre-commit{rev}", text)
    typos = re.search(rf"repo: \S*/typos{rev}", text)
    lists = re.findall(r"additional_dependencies: \[((?:\"[^\"]*\"|[^\]\"])+)\]", text)
    words = [[word.strip(" \"'") for word in found.split(",")] for found in lists]
    mypy = next((found for found in words if re.match(r"mypy(\[|==)", found[0])), None)
    if not (ruff and typos and mypy):
        raise Fault(
            "vLLM's .pre-commit-config.yaml does not name ruff, typos and mypy as it used to",
            todo="see read_versions in ci/testing/vllm_checks.py",
        )
    return Versions(ruff[1], typos[1], tuple(mypy))


def _environment(envs: Path, versions: Versions) -> Environment:
    requirements = (f"ruff=={versions.ruff}", f"typos=={versions.typos}", *versions.mypy)
    return environments.ensure(envs, Recipe("lint", requirements))


def vllm_checks(environment: Environment, tree: Path, paths: Sequence[str]) -> list[Check]:
    """What vLLM's pre-commit would run on these files."""
    folder = environment.python.parent
    python_files = tuple(path for path in paths if path.endswith((".py", ".pyi")))
    checks = [Check("vLLM: typos", (str(folder / "typos"), "--force-exclude", *paths), tree)]
    checks += [
        Check(f"vLLM: ruff {verb[0]}", (str(folder / "ruff"), *verb, *python_files), tree)
        for verb in (("check", "-q"), ("format", "-q", "--check", "--diff"))
        if python_files
    ]
    checks += _script_checks(str(environment.python), tree, python_files)
    spaced = [path for path in paths if " " in path]
    if spaced:
        raise Fault(f"{spaced[0]} has a space in its name", todo="vLLM's pre-commit refuses that")
    return checks


def _script_checks(python: str, tree: Path, paths: tuple[str, ...]) -> Iterator[Check]:
    if not paths:
        return
    for script in _SCRIPTS:
        some = (_LAZY_ROOT,) if script == "check_init_lazy_imports" else paths
        yield Check(f"vLLM: {script}", (python, f"tools/pre_commit/{script}.py", *some), tree)
    docs = "tools/pre_commit/generate_attention_backend_docs.py"
    if (tree / docs).exists():
        yield Check("vLLM: attention backend docs", (python, docs, "--check", *paths), tree)
    words = _mypy_words(tree / ".pre-commit-config.yaml")
    yield Check("vLLM: mypy", (python, "tools/pre_commit/mypy.py", *words, *paths), tree)


def _mypy_words(config: Path) -> tuple[str, ...]:
    """What vLLM's CI gives its mypy script: the oldest Python, and in older releases
    a 1 (follow imports) before it; without that, it reports errors that the pin has."""
    text = config.read_text("utf-8") if config.exists() else ""
    found = re.search(r'tools/pre_commit/mypy\.py (1 )?"(3\.\d+)"', text)
    return (*(found[1] or "").split(), found[2]) if found else ("1", "3.10")


def run_checks(checks: Sequence[Check]) -> list[str]:
    """Run them all; the names of those that failed."""
    failed = []
    for check in checks:
        env = environments.clean_variables()
        # vLLM's scripts read sources in the locale's encoding; theirs is UTF-8.
        env["PYTHONUTF8"] = "1"
        env["PATH"] = f"{Path(check.args[0]).parent}:{env.get('PATH', '')}"
        done = subprocess.run(
            check.args,
            cwd=check.cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        say(f"{check.name}: {'ok' if done.returncode == 0 else 'FAILED'}")
        if done.returncode:
            failed.append(check.name)
            for line in done.stdout.decode("utf-8", "replace").splitlines():
                say(f"    {line}")
    return failed
