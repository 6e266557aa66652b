# SPDX-License-Identifier: Apache-2.0
"""The installed wheel as a user gets it: its identity, and tokens on vLLM's own CPU platform."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata

GENERATE = """
import json
from vllm import LLM, SamplingParams
from vllm.platforms import current_platform
from cpurig.models.ours import TINY_LLAMA

llm = LLM(TINY_LLAMA, max_model_len=256, enforce_eager=True, seed=0)
prompts = ["a b c d e a b c", "The quick brown fox"]
params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
tokens = [list(o.outputs[0].token_ids) for o in llm.generate(prompts, params, use_tqdm=False)]
print("RESULT" + json.dumps({"platform": type(current_platform).__name__, "tokens": tokens}))
"""


def test_the_series_can_be_read_at_run_time():
    import vllm

    distribution = metadata.distribution("vllm")
    series = json.loads(distribution.read_text("ngram_series.json"))
    assert vllm.__version__ == distribution.version == series["version"]
    assert f"+ngram.{series['series']}" in vllm.__version__
    bill = json.loads(distribution.read_text("sboms/ngram-series.cdx.json"))
    assert bill["metadata"]["component"]["version"] == vllm.__version__


def test_tokens_on_vllms_own_cpu_platform():
    """With the test platform off, in a process of its own."""
    env = {**os.environ, "CPURIG": "0", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    done = subprocess.run(
        [sys.executable, "-c", GENERATE], env=env, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-4000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT"))
    result = json.loads(line.removeprefix("RESULT"))
    assert result["platform"] == "CpuPlatform"
    assert [len(row) for row in result["tokens"]] == [24, 24]
    assert all(len(set(row)) > 3 for row in result["tokens"])
