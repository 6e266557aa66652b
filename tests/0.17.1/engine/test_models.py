# SPDX-License-Identifier: Apache-2.0
"""Kinds of models: images in prompts, and Mamba layers, which are refused.

Placeholders of an image have token ids like any other position.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engines import GPU_ASYNC, GPU_SYNC, NGRAM, NONE, engine
from line import slots_of
from scenarios import greedy

LLAVA = "llava-hf/llava-1.5-7b-hf"
HYBRID = "ibm-granite/granite-4.0-tiny-preview"
SMALL_HYBRID = {
    "num_hidden_layers": 2,
    "layer_types": ["mamba", "attention"],
    "hidden_size": 64,
    "intermediate_size": 64,
    "shared_intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_local_experts": 2,
    "num_experts_per_tok": 1,
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_d_state": 16,
    "mamba_chunk_size": 16,
}
IMAGE_TOKENS = 576
TEXTS = ["a b c d e " * 4, "The quick brown fox jumps over the lazy dog. ", "1 1 1 1 2: 3: "]


def prompts() -> list[dict[str, Any]]:
    """A picture before, between and after words, one of them twice."""
    from PIL import Image

    pictures = [
        Image.fromarray(np.random.default_rng(i).integers(0, 255, (336, 336, 3), dtype=np.uint8))
        for i in range(2)
    ]
    places = ["<|user|><image>{}<|assistant|>", "{0}<image>{0}", "{}<image>"]
    return [
        {
            "prompt": places[i % 3].format(TEXTS[i % 3]),
            "multi_modal_data": {"image": pictures[i % 2]},
        }
        for i in range(4)
    ] + [{"prompt": TEXTS[0]}]


@pytest.fixture(scope="module")
def runs():
    """The language part is small and random; without a checkpoint on disk."""
    made = {}
    for mode in (NONE, NGRAM, GPU_SYNC, GPU_ASYNC):
        with engine(
            mode,
            model=LLAVA,
            load_format="dummy",
            max_model_len=1024,
            limit_mm_per_prompt={"image": 1},
            max_num_batched_tokens=700,  # a picture's tokens in two steps
            num_gpu_blocks_override=130,
        ) as started:
            seen = {"images": 0}
            if "gpu" in mode:
                watch_placeholders(started, seen)
            made[mode] = started.run(prompts(), greedy(max_tokens=30)), seen["images"]
    return made


def watch_placeholders(started: Any, seen: dict[str, int]) -> None:
    """Compare the buffer with each request's prompt, placeholders included."""
    runner, scheduler = started.runner, started.scheduler
    plain = runner.propose_draft_token_ids
    image = runner.model_config.hf_config.image_token_index

    def propose(*args, **kwargs):
        drafts = plain(*args, **kwargs)
        assert 0 <= drafts.min() <= drafts.max() < runner.model_config.get_vocab_size()
        for name, row in runner.input_batch.req_id_to_index.items():
            request = scheduler.requests.get(name)
            if request is not None:
                known = min(request.num_computed_tokens, request.num_tokens)
                tokens = runner.drafter.token_buffer.tokens[slots_of(runner, row, known)].tolist()
                assert tokens == list(request.all_token_ids[:known])
                seen["images"] = max(seen["images"], tokens.count(image))
        return drafts

    runner.propose_draft_token_ids = propose


def test_tokens_are_those_without_speculation(runs):
    right, _ = runs[NONE]
    assert len(set(map(tuple, right.tokens))) > 1
    for mode in (NGRAM, GPU_SYNC, GPU_ASYNC):
        run, _ = runs[mode]
        assert run.tokens == right.tokens, mode
        assert run.counts.accepted > 10


def test_placeholders_are_in_the_buffer(runs):
    for mode in (GPU_SYNC, GPU_ASYNC):
        assert runs[mode][1] == IMAGE_TOKENS


def test_sync_counts_are_those_of_the_host_proposer(runs):
    assert runs[GPU_SYNC][0].counts == runs[NGRAM][0].counts


def test_mamba_layers_are_refused_at_start(monkeypatch):
    """vLLM's metadata for them fails in the first step without a draft."""
    from vllm.model_executor.layers import utils

    plain = utils.dispatch_cpu_unquantized_gemm

    def matrices_only(layer, remove_weight):
        # The CPU's linear layers do not know a convolution's weights.
        if layer.weight.dim() == 2:
            plain(layer, remove_weight)

    monkeypatch.setattr(utils, "dispatch_cpu_unquantized_gemm", matrices_only)
    with pytest.raises(ValueError, match="does not support models with Mamba"):
        engine(
            GPU_ASYNC,
            model=HYBRID,
            load_format="dummy",
            hf_overrides=SMALL_HYBRID,
            block_size=None,
        ).__enter__()
