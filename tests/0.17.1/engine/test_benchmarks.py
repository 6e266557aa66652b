# SPDX-License-Identifier: Apache-2.0
"""The benchmarks that wait for a GPU run: small here, as tests of themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cpurig.models.ours import TINY_LLAMA

LINE = Path(__file__).resolve().parents[1]
BENCH = LINE.parents[1] / "bench" / LINE.name


def _run(name: str, *words: str, **environment: str) -> str:
    command = [sys.executable, str(BENCH / name), *words]
    ran = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=600
    )
    assert ran.returncode == 0, ran.stderr[-4000:] + ran.stdout[-2000:]
    return ran.stdout


@pytest.mark.parametrize("script", ["bookkeeping.py", "proposer.py", "serve.py"])
def test_what_a_benchmark_needs_is_in_the_environment(script):
    assert "--" in _run(script, "--help")


def test_serving(tmp_path):
    rows = tmp_path / "rows.json"
    table = _run(
        "serve.py",
        *("--model", TINY_LLAMA, "--prompts", "2", "--tokens", "24", "--length", "2048"),
        *("--repeat", "1", "--json", str(rows), "--enforce-eager", "--max-num-seqs", "4"),
        *("--block-size", "32", "--dtype", "float32"),
        VLLM_ENABLE_V1_MULTIPROCESSING="1",
    )
    made = json.loads(rows.read_text())
    assert [(row["method"], row["prompts"]) for row in made] == [("ngram", 2), ("ngram_gpu", 2)]
    assert all(row["tokens/s"] > 0 and row["drafted"] > 0 for row in made)
    assert all(0 < row["acceptance"] <= 1 for row in made)
    assert "| 2 | ngram_gpu |" in table


def test_proposer(tmp_path):
    _run("proposer.py", "--out", str(tmp_path), "--quick")
    made = json.loads((tmp_path / "proposer.json").read_text())
    assert made
    text = (tmp_path / "proposer.md").read_text()
    for heading in ("## Memory", "## Compiled kernels", "## Time"):
        assert heading in text
