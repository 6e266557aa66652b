# SPDX-License-Identifier: Apache-2.0
"""The series' scheduler against the pristine one, step by step.

The series is the installed vLLM. NGRAM_PRISTINE names a folder with the pristine one,
NGRAM_SERIES_TESTS one with the series' tests. The series' own test holds the shortcuts
against plain code that it brings along. Here the same steps run on both trees' modules, in
one process, so nothing is copied.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

LINE = Path(__file__).resolve().parents[1]
sys.path.append(str(LINE.parents[1] / "bench" / LINE.name))
from step_trees import Core, current, load_core

NEEDED = ("NGRAM_PRISTINE", "NGRAM_SERIES_TESTS")
if missing := [name for name in NEEDED if name not in os.environ]:
    pytest.skip(f"{' and '.join(missing)} not given", allow_module_level=True)
PRISTINE, TESTS = (Path(os.environ[name]).resolve() for name in NEEDED)
SPEC = importlib.util.find_spec("vllm")
assert SPEC is not None and SPEC.origin is not None
HARNESS = "tests.v1.core.step_utils"
EXAMPLES = int(os.environ.get("EXAMPLES", "20"))


def load_harness(core: Core) -> ModuleType:
    """The series' random steps, on a tree's scheduler."""
    for name in [n for n in sys.modules if n.startswith("tests.v1.core")]:
        del sys.modules[name]
    with current(core):
        harness = importlib.import_module(HARNESS)
        harness.init_none_hash(harness.sha256)
    return harness


importlib.import_module("v2rig.local_models")
sys.path.append(str(TESTS))
# The series first: its types, which both share, have all fields of the pristine ones.
CORES = {
    "PATCHED": load_core(Path(SPEC.origin).resolve().parents[1]),
    "PRISTINE": load_core(PRISTINE),
}
# The series gives placeholders of drafts less room on purpose; all else has to be equal.
CORES["PATCHED"].find("AsyncScheduler")._num_padding_tokens = lambda _self, _request: 0
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
    pristine, patched = (
        CORES[name].find("KVCacheCoordinator") for name in ("PRISTINE", "PATCHED")
    )
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
            side = harness.Side(harness.KINDS[kind])
            seen[name] = [plain_values(side.step(step)) for step in steps]
    for pristine, patched in zip(seen["PRISTINE"], seen["PATCHED"], strict=True):
        assert patched == pristine
