# SPDX-License-Identifier: Apache-2.0
"""The engine's outputs are those of the pinned vLLM, to the last bit.

NGRAM_PRISTINE names a folder that holds a runnable `vllm/` of the pin, without
the series. It runs in a process of its own; the installed vLLM in another.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[2]
FIRST = "num_reqs = self.input_batch.num_reqs"
BEHIND = "# Compute prompt logprobs if needed."

Results = dict[str, Any]


def pristine() -> Path:
    folder = os.environ.get("NGRAM_PRISTINE")
    assert folder, "NGRAM_PRISTINE must name a folder with the pin's vllm/"
    assert (Path(folder) / "vllm" / "__init__.py").is_file(), folder
    return Path(folder).resolve()


def outputs_of(folder: Path | None, work: Path) -> Results:
    """Run all scenarios with the vLLM in `folder`, or with the installed one."""
    environment = dict(os.environ)
    if folder is not None:
        paths = [str(folder), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    out = work / "outputs.json"
    command = [sys.executable, str(HERE / "bookkeeping_outputs.py"), str(out)]
    done = subprocess.run(
        command,
        cwd=work,
        env=environment,
        text=True,
        capture_output=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> tuple[Results, Results]:
    """Outputs of the pin and of the series."""
    before = outputs_of(pristine(), tmp_path_factory.mktemp("pristine"))
    after = outputs_of(None, tmp_path_factory.mktemp("series"))
    assert Path(before.pop("vllm")).is_relative_to(pristine())
    assert not Path(after.pop("vllm")).is_relative_to(pristine())
    return before, after


def test_outputs_are_the_same(both):
    before, after = both
    assert before.keys() == after.keys()
    wrong = []
    for name, expected in before.items():
        actual = after[name]
        assert not expected["has_writer"] and actual["has_writer"]
        assert len(actual["outputs"]) == len(expected["outputs"])
        for i, (a, b) in enumerate(zip(actual["outputs"], expected["outputs"], strict=True)):
            if a != b:
                wrong.append(f"{name}, request {i}:\n  {a}\n  {b}")
        if actual["metrics"] != expected["metrics"]:
            wrong.append(f"{name}: {actual['metrics']} != {expected['metrics']}")
    assert not wrong, "\n".join(wrong)


def test_scenarios_did_what_they_are_for(both):
    """Equal outputs prove nothing about a path that was not taken."""
    for results in both:
        for mode in ("sync", "ngram", "async"):
            run = results[f"tiny {mode}"]
            assert run["async"] == (mode == "async")
            assert run["metrics"]["vllm:num_preemptions"] > 0
            finished = {o["outputs"][0]["finish_reason"] for o in run["outputs"]}
            assert finished == {"length", "stop"}
            assert any(o["outputs"][0]["logprobs"] for o in run["outputs"])
            assert any(o["prompt_logprobs"] for o in run["outputs"])
        accepted = "vllm:spec_decode_num_accepted_tokens"
        assert results["tiny ngram"]["metrics"][accepted] > 50
        if os.environ.get("NGRAM_REAL_MODEL"):
            assert results["real ngram"]["metrics"][accepted] > 0


def _function(source: str, name: str) -> list[str]:
    """Lines of a function's body, without the margin."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            lines = source.splitlines()[node.body[0].lineno - 1 : node.end_lineno]
            return textwrap.dedent("\n".join(lines)).splitlines()
    raise AssertionError(f"no function {name}")


def test_reference_loop_is_that_of_the_pin():
    """vLLM's own property test compares with a copy of the loop: it is exact."""
    overlay = Path(os.environ.get("NGRAM_OVERLAY", REPOSITORY / "overlay" / HERE.parent.name))
    test = overlay / "tests" / "v1" / "worker" / "test_bookkeeping.py"
    runner = pristine() / "vllm" / "v1" / "worker" / "gpu_model_runner.py"
    pin = _function(runner.read_text(), "_bookkeeping_sync")
    pin = pin[pin.index(FIRST) : pin.index(BEHIND)]
    copy = _function(test.read_text(), "reference_bookkeeping")
    start = copy.index(FIRST)
    assert len(pin) > 70
    assert copy[start : start + len(pin)] == pin
