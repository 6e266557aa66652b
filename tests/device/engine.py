# SPDX-License-Identifier: Apache-2.0
"""The engine on the GPU without compiled vLLM operators: the same tokens in all modes.

Attention is vLLM's Triton backend, everything else PyTorch. Streams, copies and
asynchronous scheduling are the real ones. The tiny model travels with the
bundle; MODEL names a real one (a folder), which is too large for it.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from typing import Any

import torch
from findings import FAILED, PASSED, finding

MODES: dict[str, tuple[str | None, bool]] = {
    "none": (None, False),
    "ngram sync": ("ngram", False),
    "ngram_gpu sync": ("ngram_gpu", False),
    "ngram_gpu async": ("ngram_gpu", True),
}
TINY = "ngram-tests/tiny-llama"
PROMPTS = [[50 + i, *([100 + j for j in range(5 + 3 * i)] * 12)][: 64 + 9 * i] for i in range(16)]


def make_llm(model: str, method: str | None, use_async: bool) -> Any:
    from vllm import LLM

    speculation = {
        "method": method,
        "num_speculative_tokens": 3,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 4,
    }
    return LLM(
        model=model,
        # Half precision rounds differently for one token and for four.
        dtype="float32",
        max_model_len=1024,
        max_num_seqs=16,
        enforce_eager=True,
        gpu_memory_utilization=0.2,
        attention_config={"backend": "TRITON_ATTN"},
        compilation_config={"custom_ops": ["none"]},
        async_scheduling=use_async,
        speculative_config=speculation if method else None,
        disable_log_stats=False,
    )


def generate(llm: Any) -> tuple[list[list[int]], float]:
    """Greedy tokens of every prompt, and the seconds that they took."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=128, ignore_eos=True)
    prompts = [{"prompt_token_ids": ids} for ids in PROMPTS]
    torch.cuda.synchronize()
    start = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    return [list(output.outputs[0].token_ids) for output in outputs], seconds


def metrics(llm: Any) -> dict[str, int]:
    names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    found = {m.name: getattr(m, "value", 0) for m in llm.get_metrics()}
    return {name: int(found.get(f"vllm:spec_decode_{name}", 0)) for name in names}


def kernel_times(llm: Any) -> dict[str, float]:
    """Milliseconds on the GPU of the dearest kernels of one more run."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        generate(llm)
    events = sorted(profile.key_averages(), key=lambda e: e.device_time_total, reverse=True)
    ours = [event for event in events if "ngram" in event.key or "scatter" in event.key]
    return {event.key[:60]: event.device_time_total / 1e3 for event in (*events[:6], *ours)}


def compare(model: str, name: str) -> int:
    """Run every mode; the number of modes that differ."""
    right: list[list[int]] | None = None
    wrong = 0
    for mode, (method, use_async) in MODES.items():
        llm = make_llm(model, method, use_async)
        generate(llm)  # compiles what is compiled at the first use
        tokens, seconds = generate(llm)
        right = right or tokens
        same = tokens == right
        wrong += not same
        finding(
            f"{name}, {mode}: tokens",
            PASSED if same else FAILED,
            seconds,
            generated=sum(map(len, tokens)),
            **metrics(llm),
        )
        finding(f"{name}, {mode}: kernels, ms", PASSED, **kernel_times(llm))
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()
        torch.cuda.empty_cache()
    return wrong


def main() -> int:
    models = {TINY: "tiny", os.environ.get("MODEL", ""): "real"}
    return sum(compare(model, name) for model, name in models.items() if model) > 0


if __name__ == "__main__":
    sys.exit(main())
