# SPDX-License-Identifier: Apache-2.0
"""A KV connector brings KV that no step computed: the token buffer is seeded."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import safetensors.torch
import torch
from engines import GPU_ASYNC, GPU_SYNC, NONE, Engine, engine
from line import slots_of
from scenarios import greedy, loop
from vllm.distributed.kv_transfer.kv_connector.v1.example_connector import ExampleConnector

PROMPTS = [loop(50 + i, 5 + 3 * i, 70 + 7 * i) for i in range(6)]
FEW_BLOCKS = 12


class FileConnector(ExampleConnector):
    """vLLM's example, which keeps KV in files, for the KV layout of CPUs.

    What is stored and what is loaded are the example's choice, the whole
    blocks of a prompt.
    """

    def update_state_after_alloc(self, request, blocks, num_external_tokens) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        if num_external_tokens > 0:
            # For a resumed request the example promises the blocks of its prompt,
            # but looks for a file of its prompt and output, which it never stores.
            self._requests_need_load[request.request_id] = SimpleNamespace(
                all_token_ids=request.prompt_token_ids, mm_features=request.mm_features
            )

    def _file(self, layer: str, request: Any) -> str:
        return self._generate_filename_debug(layer, request.token_ids, request.mm_hashes)

    def _place(self, cache: torch.Tensor, slots: torch.Tensor) -> tuple[Any, ...]:
        # [key and value, block, head, place in the block, head's dimension]
        return slice(None), slots // self._block_size, slice(None), slots % self._block_size

    def start_load_kv(self, forward_context, **_rest) -> None:
        for request in self._get_connector_metadata().requests:
            for name, layer in forward_context.no_compile_layers.items():
                if not request.is_store:
                    cache = layer.kv_cache[forward_context.virtual_engine]
                    kept = safetensors.torch.load_file(self._file(name, request))["kv_cache"]
                    cache[self._place(cache, request.slot_mapping)] = kept

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **_rest) -> None:
        for request in self._get_connector_metadata().requests:
            if request.is_store:
                kept = kv_layer[self._place(kv_layer, request.slot_mapping)].contiguous()
                safetensors.torch.save_file({"kv_cache": kept}, self._file(layer_name, request))


def connected(mode: str, folder: Path, **more: Any):
    from vllm.config import KVTransferConfig

    transfer = KVTransferConfig(
        kv_connector="FileConnector",
        kv_connector_module_path="test_connector",
        kv_role="kv_both",
        kv_connector_extra_config={"shared_storage_path": str(folder)},
    )
    options = {"num_gpu_blocks_override": 100, "kv_transfer_config": transfer, **more}
    # The example stores and loads whole prompts only.
    return engine(mode, enable_prefix_caching=False, **options)


def check_buffer_at_every_step(started: Engine) -> list[int]:
    """The buffer holds the history wherever there is KV; what was seeded, in tokens."""
    runner, scheduler = started.runner, started.scheduler
    buffer = runner.drafter.token_buffer
    seeded, plain, propose = [], buffer.seed, runner.propose_draft_token_ids

    def seed(rows):
        seeded.extend(len(row.token_ids) for row in rows)
        return plain(rows)

    def look(scheduler_output, *args, **kwargs):
        drafts = propose(scheduler_output, *args, **kwargs)
        for name, row in runner.input_batch.req_id_to_index.items():
            request = scheduler.requests.get(name)
            if request is not None and request.num_computed_tokens:
                # Async: what the host does not know yet cannot be compared.
                known = min(request.num_computed_tokens, request.num_tokens)
                slots = slots_of(runner, row, known)
                assert buffer.tokens[slots].tolist() == list(request.all_token_ids[:known])
        return drafts

    buffer.seed, runner.propose_draft_token_ids = seed, look
    return seeded


@pytest.fixture(scope="module")
def right() -> list[list[int]]:
    with engine(NONE, num_gpu_blocks_override=100) as started:
        return started.run(PROMPTS, greedy()).tokens


@pytest.mark.parametrize("mode", [GPU_ASYNC, GPU_SYNC])
def test_loaded_prompts_draft_like_computed_ones(mode, right, tmp_path):
    with connected(mode, tmp_path) as stores:
        seeded = check_buffer_at_every_step(stores)
        first = stores.run(PROMPTS, greedy())
    assert first.tokens == right and not seeded
    with connected(mode, tmp_path) as loads:
        seeded = check_buffer_at_every_step(loads)
        second = loads.run(PROMPTS, greedy())
    assert second.tokens == right
    assert len(seeded) == len(PROMPTS) and min(seeded) >= 64
    assert first.counts.accepted > 20
    # The same drafts: their n-grams lie in what was loaded.
    assert second.counts == first.counts


def test_loaded_again_after_preemption(right, tmp_path):
    with connected(GPU_ASYNC, tmp_path) as stores:
        stores.run(PROMPTS, greedy())
    with connected(GPU_ASYNC, tmp_path, num_gpu_blocks_override=FEW_BLOCKS) as loads:
        seeded = check_buffer_at_every_step(loads)
        run = loads.run(PROMPTS, greedy())
    assert run.tokens == right
    assert run.preemptions > 0 and len(seeded) > len(PROMPTS)
