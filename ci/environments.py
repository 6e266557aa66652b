"""Virtual environments under build/envs, made again only when what they hold changes.

One environment, `vllm`, serves building and testing: what the CPU build needs
at run time (vLLM's own requirements), what vLLM's build asks for, and what the
tests need. torch alone is several gigabytes, so one is enough. The wheel under
test is installed into it without dependencies, after they have been checked.

uv makes it where uv is there, with hard links out of its cache; else venv and
pip do. Both read the user's index settings, so PyTorch's CPU index serves
`torch==2.10.0` as `2.10.0+cpu` to whoever has it configured.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ci.errors import Fault
from ci.layout import Layout
from ci.progress import step


@dataclass(frozen=True)
class Environment:
    """A virtual environment that is ready for use."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        found = sorted(self.folder.glob("lib/python3.*/site-packages"))
        assert found, self.folder
        return found[0]


@dataclass(frozen=True)
class Recipe:
    """What goes into an environment.

    Attributes:
        name: its folder under build/envs.
        requirements: PEP 508 lines.
        constraints: a file that fixes the versions, also of what the
            requirements bring along; None where they may float.
    """

    name: str
    requirements: tuple[str, ...]
    constraints: Path | None = None

    def key(self) -> str:
        """Changes exactly when the environment has to be made again."""
        digest = hashlib.sha256()
        parts = [sys.version, sys.base_prefix, *sorted(set(self.requirements))]
        if self.constraints is not None:
            parts.append(self.constraints.read_text("utf-8"))
        digest.update("\0".join(parts).encode())
        return digest.hexdigest()


def ensure(layout: Layout, recipe: Recipe) -> Environment:
    """The environment of `recipe`, made if it is missing, stale or half made.

    Raises:
        Fault: a package cannot be had or installed.
    """
    folder = layout.build / "envs" / recipe.name
    stamp = folder / "recipe.key"
    key = recipe.key()
    if stamp.is_file() and stamp.read_text("ascii") == key:
        return Environment(folder)
    if folder.exists():
        shutil.rmtree(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    environment = Environment(folder)
    with step(f"environment {recipe.name}: {len(recipe.requirements)} requirements"):
        _create(folder)
        _install(environment, _as_arguments(folder, recipe))
    stamp.write_text(key, "ascii")
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
    words = [str(word) for word in command]
    if log is None:
        status = subprocess.run(words, env=env, cwd=cwd, check=False).returncode
        lines: list[str] = []
    else:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as out:
            status = subprocess.run(
                words,
                env=env,
                cwd=cwd,
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            ).returncode
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


def _create(folder: Path) -> None:
    program = uv()
    if program is None:
        run([_base_python(), "-m", "venv", folder], what=f"making {folder.name}")
    else:
        run(
            [
                program,
                "venv",
                "-q",
                "--no-project",
                "--no-config",
                "--python",
                _base_python(),
                folder,
            ],
            what=f"making {folder.name}",
        )


def _base_python() -> str:
    """The interpreter below any virtual environment that runs this."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    beneath = Path(sys.base_prefix) / "bin" / name
    return str(beneath) if beneath.exists() else sys.executable


def _install(environment: Environment, words: Iterable[str]) -> None:
    program = uv()
    if program is None:
        command = [str(environment.python), "-m", "pip", "install", "--no-input"]
    else:
        command = [program, "pip", "install", "--python", str(environment.python)]
    run(
        [*command, *words],
        what=f"installing into {environment.folder.name}",
        env=clean_variables(),
    )


def _as_arguments(folder: Path, recipe: Recipe) -> list[str]:
    listed = folder / "requirements.txt"
    listed.write_text("\n".join(recipe.requirements) + "\n", "utf-8")
    words = ["-r", str(listed)]
    if recipe.constraints is not None:
        words += ["-c", str(recipe.constraints)]
    return words
