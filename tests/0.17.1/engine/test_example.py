# SPDX-License-Identifier: Apache-2.0
"""vLLM's own offline example runs with --method ngram_gpu."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from cpurig.models.ours import TINY_LLAMA

ROOT = Path(__file__).resolve().parents[3]
TREE = Path(os.environ.get("NGRAM_VLLM_TREE", ROOT / "build" / "0.17.1" / "vllm"))
EXAMPLE = TREE / "examples" / "offline_inference" / "spec_decode.py"


def test_offline_example(monkeypatch, capfd):
    arguments = [
        *("--method", "ngram_gpu", "--num-spec-tokens", "3"),
        *("--prompt-lookup-max", "4", "--prompt-lookup-min", "2"),
        *("--model-dir", TINY_LLAMA, "--enforce-eager", "--max-model-len", "256"),
        *("--dataset-name", "random", "--random-input-len", "24", "--num-prompts", "3"),
        *("--output-len", "32", "--max-num-seqs", "4"),
    ]
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *arguments])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = dict(
        line.split(": ", 1) for line in capfd.readouterr().out.splitlines() if ": " in line
    )
    assert int(printed["total_num_output_tokens"]) > 0
    assert 0 < int(printed["num_draft_tokens"]) <= 3 * int(printed["num_drafts"])
    assert float(printed["mean acceptance length"]) >= 1
    assert "acceptance at token 2" in printed
