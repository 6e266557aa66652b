# SPDX-License-Identifier: Apache-2.0
"""The series' scheduler against the pristine one, step by step.

NGRAM_PRISTINE names a folder with the pristine vLLM, NGRAM_SERIES one with the series and
its tests. The series' own test holds the shortcuts against plain code that it brings
along. Here the same steps run on both trees' modules, in one process, so nothing is copied.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[3] / "bench"))
from step_trees import Core, current, load_core

NAMES = {"PATCHED": "NGRAM_SERIES", "PRISTINE": "NGRAM_PRISTINE"}
if missing := [name for name in NAMES.values() if name not in os.environ]:
    pytest.skip(f"{' and '.join(missing)} not given", allow_module_level=True)
TREES = {name: Path(os.environ[variable]).resolve() for name, variable in NAMES.items()}
HARNESS = "tests.v1.core.test_step_fast_paths"
EXAMPLES = int(os.environ.get("EXAMPLES", "20"))


def load_harness(core: Core) -> ModuleType:
    """The patched tree's test module, on a tree's scheduler."""
    if (path := str(TREES["PATCHED"])) not in sys.path:
        sys.path.insert(0, path)
    for name in [n for n in sys.modules if n.startswith("tests.v1.core")]:
        del sys.modules[name]
    with current(core):
        harness = importlib.import_module(HARNESS)
        harness.init_none_hash(harness.sha256)
    return harness


CORES = {name: load_core(tree) for name, tree in TREES.items()}
HARNESSES = {name: load_harness(core) for name, core in CORES.items()}
PATCHED = HARNESSES["PATCHED"]


def plain_values(value: Any) -> Any:
    """A state without the classes of the tree that it is from."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: plain_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_values(item) for item in value]
    return value


def test_the_trees_are_two() -> None:
    pristine, patched = (core.find("KVCacheCoordinator") for core in CORES.values())
    assert pristine is not patched
    assert not hasattr(pristine, "get_num_missing_blocks")
    assert hasattr(patched, "get_num_missing_blocks")


@pytest.mark.parametrize("kind", PATCHED.KINDS)
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(data=st.data())
def test_steps_equal_those_of_the_pristine(kind: str, data: st.DataObject) -> None:
    steps = data.draw(PATCHED.STEPS)
    seen: dict[str, list[Any]] = {}
    for name, harness in HARNESSES.items():
        with current(CORES[name]):
            side = harness.Side(harness.KINDS[kind], plain=False)
            seen[name] = [plain_values(side.step(step)) for step in steps]
    for pristine, patched in zip(seen["PRISTINE"], seen["PATCHED"], strict=True):
        assert patched == pristine
