# SPDX-License-Identifier: Apache-2.0
"""What happens to a running engine: new weights, a wiped buffer, a reset cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from engines import GPU_ASYNC, GPU_SYNC, NONE, Engine, engine
from line import slots_of
from scenarios import greedy, mixed

WORK = mixed(31, 10), greedy()
SPECULATIVE = [GPU_SYNC, GPU_ASYNC]


def reload_weights(started: Engine, factor: float = 1.0) -> None:
    """Load the checkpoint again, the output matrix times a factor per row."""
    loader = started.runner

    def weights():
        from vllm.model_executor.model_loader import get_model_loader

        model = loader.get_model()
        read = get_model_loader(loader.load_config).get_all_weights
        for name, weight in read(loader.model_config, model):
            if name == "lm_head.weight" and factor != 1.0:
                rows = torch.linspace(1.0, factor, len(weight))
                weight = weight * rows[:, None].to(weight.dtype)
            yield name, weight

    started.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights()})


def check_buffer(started: Engine) -> int:
    """Compare the buffer with the histories; the number of tokens compared."""
    runner, scheduler, compared = started.runner, started.scheduler, 0
    for name, row in runner.input_batch.req_id_to_index.items():
        request = scheduler.requests.get(name)
        if request is not None:
            known = min(request.num_computed_tokens, request.num_tokens - 1)
            tokens = runner.drafter.token_buffer.tokens[slots_of(runner, row, known)]
            assert tokens.tolist() == list(request.all_token_ids[:known])
            compared += known
    return compared


def disturbed(started: Engine, disturb: Any) -> list[list[int]]:
    """The tokens of WORK when `disturb` is called amid it."""
    core, outputs = started.llm.llm_engine, {}
    prompts, params = WORK
    for i, prompt in enumerate(prompts):
        core.add_request(str(i), prompt, params)
    steps = 0
    while core.has_unfinished_requests():
        steps += 1
        if steps in (3, 9, 15):
            disturb(started)
        for output in core.step():
            outputs[int(output.request_id)] = list(output.outputs[0].token_ids)
        if started.mode != NONE and steps == 12:
            assert check_buffer(started) > 200
    assert steps > 15  # else it was disturbed less often than it says
    return [outputs[i] for i in range(len(prompts))]


@pytest.fixture(scope="module")
def right() -> dict[str, list[list[int]]]:
    with engine(NONE, num_gpu_blocks_override=120) as plain:
        made = {"old": plain.run(*WORK).tokens}
        reload_weights(plain, factor=2.0)
        assert plain.llm.reset_prefix_cache()
        made["new"] = plain.run(*WORK).tokens
    assert made["old"] != made["new"]
    return made


@pytest.fixture(scope="module", params=[NONE, *SPECULATIVE])
def started(request, right):  # one engine at a time
    with engine(request.param, num_gpu_blocks_override=120) as made:
        yield made


def test_new_weights_between_requests(started, right):
    assert started.run(*WORK).tokens == right["old"]
    reload_weights(started, factor=2.0)
    assert started.llm.reset_prefix_cache()
    assert started.run(*WORK).tokens == right["new"]
    reload_weights(started)
    assert started.llm.reset_prefix_cache()
    assert started.run(*WORK).tokens == right["old"]


def test_same_weights_while_requests_run(started, right):
    assert disturbed(started, reload_weights) == right["old"]


def test_cache_reset_while_requests_run(started, right):
    def reset(engine: Engine) -> None:
        assert engine.llm.reset_prefix_cache(reset_running_requests=True)

    assert disturbed(started, reset) == right["old"]


def test_sleep_leaves_anything_in_the_buffer(started, right):
    """Sleep mode needs a device. What it does to the buffer, which lies in the KV
    cache's memory pool, is done by hand: KV and token ids are lost, the prefix
    cache is reset."""

    def sleep_and_wake(engine: Engine) -> None:
        assert engine.llm.reset_prefix_cache(reset_running_requests=True)
        for cache in engine.runner.kv_caches:
            cache.fill_(0.5)
        if engine.mode != NONE:
            tokens = engine.runner.drafter.token_buffer.tokens
            generator = torch.Generator().manual_seed(0)
            # Anything, also what is no token id, and what would make drafts.
            tokens.random_(-(2**31), 2**31 - 1, generator=generator)
            tokens[::3] = 41

    assert disturbed(started, sleep_and_wake) == right["old"]


def test_streaming_input_is_refused_with_speculation(started):
    from vllm import SamplingParams

    def chunk():
        return started.llm.llm_engine.input_processor.process_inputs(
            "0",
            {"prompt_token_ids": [40, 41]},
            SamplingParams(max_tokens=3),
            supported_tasks=("generate",),
            resumable=True,
        )

    if started.mode == NONE:
        assert chunk().resumable
    else:
        with pytest.raises(ValueError, match="Streaming input is not supported"):
            chunk()


def test_sleep_mode_is_refused_on_this_platform():
    from cpurig.models.ours import TINY_LLAMA
    from vllm.engine.arg_utils import EngineArgs

    with pytest.raises(ValueError, match="[Ss]leep mode is not supported"):
        EngineArgs(model=TINY_LLAMA, enable_sleep_mode=True).create_engine_config()
