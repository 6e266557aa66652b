# SPDX-License-Identifier: Apache-2.0
"""Two ranks or two engines: the tokens of one without speculation.

The workers are processes of their own, as they are for every user; the test
platform is loaded in each.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from engines import GPU_ASYNC, NONE, engine, engine_arguments
from scenarios import greedy, mixed

ARGUMENTS = engine_arguments(GPU_ASYNC, num_gpu_blocks_override=200)


def work() -> tuple[list[Any], Any]:
    return mixed(3, 8), greedy()


@pytest.fixture(scope="module")
def right() -> list[list[int]]:
    with engine(NONE, num_gpu_blocks_override=200) as started:
        return started.run(*work()).tokens


def keep_drafts(worker: Any) -> None:
    """On a worker: remember what is proposed, from now on."""
    runner = worker.model_runner
    plain, runner.kept = runner.propose_draft_token_ids, []

    def propose(*args, **kwargs):
        drafts = plain(*args, **kwargs)
        runner.kept.append(drafts.tolist())
        return drafts

    runner.propose_draft_token_ids = propose


def kept(worker: Any) -> tuple[int, list[Any], list[int]]:
    """On a worker: its rank, its drafts and its token buffer."""
    runner = worker.model_runner
    return worker.rank, runner.kept, runner.drafter.token_buffer.tokens.tolist()


def test_tensor_parallel_ranks_draft_the_same(right, monkeypatch):
    from vllm import LLM

    # Functions of this file are sent to the workers.
    monkeypatch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")
    llm = LLM(
        **ARGUMENTS,
        tensor_parallel_size=2,
        distributed_executor_backend="mp",
    )
    try:
        assert llm.llm_engine.vllm_config.scheduler_config.async_scheduling
        llm.collective_rpc(keep_drafts)
        prompts, params = work()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        assert [list(o.outputs[0].token_ids) for o in outputs] == right
        (one, *first), (other, *second) = llm.collective_rpc(kept)
        assert {one, other} == {0, 1}
        assert first == second
        drafts, buffer = first
        assert len(drafts) > 20 and sum(map(bool, buffer)) > 300
        accepted = "vllm:spec_decode_num_accepted_tokens"
        assert next(m.value for m in llm.get_metrics() if m.name == accepted) > 50
    finally:
        llm.llm_engine.engine_core.shutdown()


def test_data_parallel_engines_give_the_same_tokens(right, monkeypatch):
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")

    async def generate() -> list[list[int]]:
        # Each engine's worker in the engine's process: that is enough here.
        options = {"data_parallel_size": 2, "distributed_executor_backend": "uni"}
        llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**ARGUMENTS, **options))
        try:
            prompts, params = work()

            async def one(name: str, prompt: Any) -> list[int]:
                async for output in llm.generate(prompt, params, name):
                    tokens = list(output.outputs[0].token_ids)
                return tokens

            assert len(llm.engine_core.core_engines) == 2
            return await asyncio.gather(*(one(str(i), p) for i, p in enumerate(prompts)))
        finally:
            llm.shutdown()

    assert asyncio.run(generate()) == right
