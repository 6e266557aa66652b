# SPDX-License-Identifier: Apache-2.0
"""The schedulers of two vLLM trees in one process.

The modules of `vllm.v1.core`, `vllm.v1.request` and the registry of KV cache kinds are
loaded once from each tree. Everything else is shared, and comes from the tree that is
loaded first: that has to be the series, whose types have all fields of the pin's.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

CORE = "vllm.v1.core"
ATTRIBUTES = ("core", "kv_cache_spec_registry", "request")
REGISTRY = "vllm.v1.kv_cache_spec_registry"
REQUEST = "vllm.v1.request"


@dataclass(frozen=True)
class Core:
    """The scheduler's modules of one tree."""

    modules: dict[str, ModuleType]

    def find(self, name: str) -> Any:
        """The class or function of this name, wherever in the modules it is defined."""
        for module in self.modules.values():
            found = module.__dict__.get(name)
            if getattr(found, "__module__", None) == module.__name__:
                return found
        raise LookupError(f"no {name} in {', '.join(self.modules)}")


def _is_core(name: str) -> bool:
    return name in (CORE, REGISTRY, REQUEST) or name.startswith(f"{CORE}.")


def _take_core_modules() -> dict[str, ModuleType]:
    return {name: sys.modules.pop(name) for name in list(sys.modules) if _is_core(name)}


def load_core(tree: Path) -> Core:
    """Import the scheduler's modules of a tree beside those that are loaded."""
    package = importlib.import_module("vllm.v1")
    before, path = _take_core_modules(), package.__path__
    attributes = {name: getattr(package, name, None) for name in ATTRIBUTES}
    package.__path__ = [str(tree / "vllm" / "v1")]
    try:
        for name in ("request", "core.kv_cache_utils", "core.sched.async_scheduler"):
            importlib.import_module(f"vllm.v1.{name}")
    finally:
        mine = _take_core_modules()
        sys.modules.update(before)
        package.__path__ = path
        for name, module in attributes.items():
            setattr(package, name, module)
    wrong = [n for n, m in mine.items() if not str(m.__file__).startswith(f"{tree}/")]
    if wrong:
        raise SystemExit(f"not loaded from {tree}: {', '.join(wrong)}")
    return Core(mine)


@contextmanager
def current(core: Core) -> Iterator[None]:
    """Let imports inside of functions find this core's modules."""
    before = _take_core_modules()
    sys.modules.update(core.modules)
    try:
        yield
    finally:
        _take_core_modules()
        sys.modules.update(before)
