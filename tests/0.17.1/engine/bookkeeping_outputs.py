# SPDX-License-Identifier: Apache-2.0
"""Everything that a user gets from the engine, as JSON: one run for one vLLM.

    python bookkeeping_outputs.py OUT

The vLLM that can be imported is used, so the caller chooses it by PYTHONPATH.
The scenarios pass through every way in which sampled tokens are written down:
sync, n-gram speculation and async scheduling, with partial prefills, rows
without tokens, preemption, requests that end at max_model_len, and everything
that reads a request's tokens back (penalties, stop tokens, logprobs, seeds).
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

MODELS = ("meta-llama/Llama-3.2-1B-Instruct", "ngram-tests/tiny-llama")
NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_min": 2,
    "prompt_lookup_max": 4,
}
MODES: dict[str, dict[str, Any]] = {
    "sync": {"async_scheduling": False},
    "ngram": {"async_scheduling": False, "speculative_config": NGRAM},
    "async": {"async_scheduling": True},
}


def tiny_model() -> str:
    """The first of the tiny models that HF_HOME holds."""
    hub = Path(os.environ["HF_HOME"]) / "hub"
    for model in MODELS:
        if (hub / f"models--{model.replace('/', '--')}").exists():
            return model
    raise FileNotFoundError(f"none of {MODELS} in {hub}")


def make_prompts(count: int, longest: int) -> list[dict[str, list[int]]]:
    """Prompts that repeat themselves and prompts that do not."""
    pick = random.Random(7)
    prompts = []
    for i in range(count):
        length = pick.randint(2, longest)
        words = pick.choices(range(10, 400), k=pick.randint(2, 9) if i % 2 else length)
        ids = (words * (length // len(words) + 1))[:length]
        prompts.append({"prompt_token_ids": ids})
    return prompts


def make_params(count: int, mode: str, longest: int = 23) -> list[Any]:
    """One kind of request after the other, so that each step mixes them."""
    from vllm import SamplingParams

    greedy = {"temperature": 0.0, "ignore_eos": True}
    kinds: list[dict[str, Any]] = [
        greedy,
        {**greedy, "logprobs": 3, "prompt_logprobs": 2},
        {"temperature": 0.9, "seed": 11, "ignore_eos": True, "logprobs": 1},
        {**greedy, "repetition_penalty": 1.3, "presence_penalty": 0.4},
        {"temperature": 0.7, "seed": 5, "frequency_penalty": 0.8, "ignore_eos": True},
        {**greedy, "stop_token_ids": list(range(3, 1000, 2)), "min_tokens": 4},
        # Not supported together with speculation.
        {**greedy, "logit_bias": None if mode == "ngram" else {20: 4.0}, "logprobs": 0},
        {**greedy, "bad_words": ["the", " a"]},
        {**greedy, "max_tokens": 1},
        {**greedy, "max_tokens": 500},
    ]
    made = []
    for i in range(count):
        options = {"max_tokens": longest - 5 * (i % 4), **kinds[i % len(kinds)]}
        made.append(SamplingParams(**options))
    return made


def described(output: Any) -> dict[str, Any]:
    """All that the user sees of a request. Floats as they are, to the last bit."""

    def plain(steps: Any) -> Any:
        return steps and [
            step and sorted((t, v.logprob, v.rank, v.decoded_token) for t, v in step.items())
            for step in steps
        ]

    return {
        "prompt_logprobs": plain(output.prompt_logprobs),
        "outputs": [
            {
                "token_ids": list(c.token_ids),
                "text": c.text,
                "finish_reason": c.finish_reason,
                "stop_reason": c.stop_reason,
                "cumulative_logprob": c.cumulative_logprob,
                "logprobs": plain(c.logprobs),
            }
            for c in output.outputs
        ],
    }


def metrics(llm: Any) -> dict[str, float]:
    names = ("num_preemptions", "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens")
    return {m.name: m.value for m in llm.get_metrics() if m.name.removeprefix("vllm:") in names}


def run(model: str, prompts: Any, params: Any, **options: Any) -> dict[str, Any]:
    """One engine, from start to end."""
    started = time.process_time()
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory

    llm = LLM(
        model,
        enforce_eager=True,
        seed=0,
        disable_log_stats=False,
        enable_prefix_caching=False,
        **options,
    )
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    result = {
        "async": llm.llm_engine.vllm_config.scheduler_config.async_scheduling,
        "has_writer": hasattr(runner, "token_writer"),
        "outputs": [described(o) for o in llm.generate(prompts, params, use_tqdm=False)],
        "metrics": metrics(llm),
    }
    llm.llm_engine.engine_core.shutdown()
    del llm, runner
    gc.collect()
    cleanup_dist_env_and_memory()
    taken = time.process_time() - started
    print(f"{model}: {taken:.0f} s of CPU", file=sys.stderr, flush=True)
    return result


def run_all() -> dict[str, Any]:
    import vllm

    results: dict[str, Any] = {"vllm": vllm.__file__}
    prompts = make_prompts(20, 70)
    for mode, options in MODES.items():
        results[f"tiny {mode}"] = run(
            tiny_model(),
            prompts,
            make_params(20, mode),
            dtype="float32",
            max_model_len=112,
            max_num_seqs=7,
            # Prompts in chunks, and too few blocks for all.
            max_num_batched_tokens=40,
            block_size=16,
            num_gpu_blocks_override=20,
            **options,
        )
    if real := os.environ.get("NGRAM_REAL_MODEL"):
        text = [
            "One, two, three, one, two, three, one, two,",
            "List the numbers from 1 to 12.",
            "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(",
            "Say hello.",
        ]
        for mode in ("sync", "ngram"):
            results[f"real {mode}"] = run(
                real,
                text,
                make_params(4, mode, longest=18),
                max_model_len=256,
                max_num_seqs=4,
                max_num_batched_tokens=16,
                **MODES[mode],
            )
    return results


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(run_all()))
