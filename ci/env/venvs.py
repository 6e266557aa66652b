"""Virtual environments under build/envs, made again only when what they hold changes.

One environment of each line, `vllm`, serves building and testing: what the tested
wheel needs at run time (vLLM's own requirements), what vLLM's build asks for, and what
the tests need. torch alone is several gigabytes, so one is enough. The wheel under
test is installed into it without dependencies, after they have been checked.

uv makes it where uv is there, with hard links out of its cache; else venv and
pip do. Both read the user's index settings, so PyTorch's CPU index serves
`torch==2.10.0` as `2.10.0+cpu` to whoever has it configured, and the package index
as the plain build, which runs without a GPU too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ci.core.cache import ensure_built, key_of
from ci.core.errors import Fault
from ci.core.progress import say


@dataclass(frozen=True)
class Environment:
    """A virtual environment that is ready for use."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def log(self) -> Path | None:
        """Where the output of what fills it goes; None to show it, where somebody watches."""
        return None if sys.stderr.isatty() else self.folder.with_name(f"{self.folder.name}.log")

    @property
    def site_packages(self) -> Path:
        found = sorted(self.folder.glob("lib/python3.*/site-packages"))
        assert found, self.folder
        return found[0]


@dataclass(frozen=True)
class Recipe:
    """What goes into an environment.

    Attributes:
        name: that of its folder.
        requirements: PEP 508 lines.
        constraints: a file that fixes the versions, also of what the
            requirements bring along; None where they may float.
    """

    name: str
    requirements: tuple[str, ...]
    constraints: Path | None = None

    @property
    def arguments(self) -> tuple[str, ...]:
        """What `pip install` is given."""
        return (*(("-c", str(self.constraints)) if self.constraints else ()), *self.requirements)

    def key(self) -> str:
        """Changes exactly when the environment has to be made again."""
        files = () if self.constraints is None else (self.constraints,)
        return key_of(sys.version, sys.base_prefix, *sorted(set(self.requirements)), files=files)


def ensure(envs: Path, recipe: Recipe) -> Environment:
    """The environment of `recipe` below `envs`, made if it is missing, stale or half made.

    Raises:
        Fault: a package cannot be fetched or installed.
    """
    environment = Environment(envs / recipe.name)

    def make(folder: Path) -> None:
        count = len(recipe.requirements)
        say(f"making the environment {recipe.name}: {count} requirement{'s' * (count != 1)}")
        _create(environment)
        if recipe.requirements:
            _install(environment, recipe.arguments)

    ensure_built(environment.folder, recipe.key(), make, in_place=True)
    return environment


def install_wheel(environment: Environment, wheel: Path) -> None:
    """Put `wheel` alone into the environment, in place of any older one.

    Raises:
        Fault: it does not install.
    """
    _install(environment, ("-q", "--no-deps", "--force-reinstall", str(wheel)))


def install_sources(environment: Environment, folder: Path) -> None:
    """Put the Python project in `folder` into the environment, with no network.

    Raises:
        Fault: it does not build.
    """
    _install(
        environment,
        ("-q", "--no-deps", "--force-reinstall", "--no-build-isolation", str(folder)),
    )


def install_for(
    folder: Path, requirements: Path, constraints: Path, python: str, manylinux: str
) -> None:
    """Put packages for another x86-64 machine's Python into a folder, without dependencies.

    Args:
        python: its version, as in 3.12.
        manylinux: the newest tag that its wheels may have, as in manylinux_2_28.

    Raises:
        Fault: a package has no such wheel, or cannot be had.
    """
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "pip", "install", "--no-input"]
    platform = ["--platform", f"{manylinux}_x86_64", "--platform", "manylinux2014_x86_64"]
    if (program := uv()) is not None:
        command = [program, "pip", "install"]
        platform = ["--python-platform", f"x86_64-{manylinux}"]
    listed = ["-r", str(requirements), "-c", str(constraints)]
    where = ["--target", str(folder), "--python-version", python, *platform]
    run(
        [*command, "-q", "--no-deps", "--only-binary", ":all:", *where, *listed],
        what=f"installing packages for Python {python}",
        env=clean_variables(),
        log=folder.with_name(f"{folder.name}.log"),
    )


def run(
    command: Sequence[str | Path],
    *,
    what: str,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    log: Path | None = None,
) -> None:
    """Run a program to its end; its output goes to `log`, or to the terminal.

    Raises:
        Fault: it exits with another status than 0; the last lines are shown.
    """
    args = [str(arg) for arg in command]
    lines: list[str] = []
    if log is None:
        status = subprocess.run(args, env=env, cwd=cwd, check=False).returncode
    else:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as out:
            done = subprocess.run(
                args, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        status = done.returncode
        lines = log.read_text("utf-8", "replace").splitlines()[-15:]
    if status:
        where = f"see {log}" if log else "see its output above"
        raise Fault(f"{what} failed with status {status}", todo=where, details=tuple(lines))


def clean_variables() -> dict[str, str]:
    """The user's environment (index settings are theirs) without another interpreter's modules."""
    dropped = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if name not in dropped}


def uv() -> str | None:
    """The uv program: the one beside this interpreter, or one on PATH."""
    try:
        from uv import find_uv_bin

        return str(find_uv_bin())
    except (ImportError, FileNotFoundError):
        return shutil.which("uv")


def _create(environment: Environment) -> None:
    python, folder = _base_python(), str(environment.folder)
    command = [python, "-m", "venv", folder]
    if (program := uv()) is not None:
        command = [program, "venv", "-q", "--no-project", "--no-config", "--python", python, folder]
    run(command, what=f"making {environment.folder.name}", log=environment.log)


def _base_python() -> str:
    """The interpreter below any virtual environment that runs this."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    beneath = Path(sys.base_prefix) / "bin" / name
    return str(beneath) if beneath.exists() else sys.executable


def _install(environment: Environment, args: Iterable[str]) -> None:
    program = uv()
    if program is None:
        command = [str(environment.python), "-m", "pip", "install", "--no-input"]
    else:
        command = [program, "pip", "install", "--python", str(environment.python)]
    run(
        [*command, *args],
        what=f"installing into {environment.folder.name}",
        env=clean_variables(),
        log=environment.log,
    )
