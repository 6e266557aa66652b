# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Embedded prompts in rows of the input batch that are reused or moved."""

import numpy as np
import pytest
import torch

from vllm.sampling_params import SamplingParams
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

pytestmark = pytest.mark.skip_global_cleanup

MAX_NUM_REQS = 6
VOCAB_SIZE = 32


def make_batch() -> InputBatch:
    return InputBatch(
        max_num_reqs=MAX_NUM_REQS,
        max_model_len=64,
        max_num_batched_tokens=64,
        device=torch.device("cpu"),
        pin_memory=False,
        vocab_size=VOCAB_SIZE,
        block_sizes=[4],
        kernel_block_sizes=[4],
    )


def make_request(
    req_id: str,
    num_prompt_tokens: int = 5,
    prompt_embeds: torch.Tensor | None = None,
    **params,
) -> CachedRequestState:
    rng = np.random.default_rng(list(req_id.encode()))
    prompt_token_ids = rng.integers(0, VOCAB_SIZE, num_prompt_tokens).tolist()
    return CachedRequestState(
        req_id=req_id,
        prompt_token_ids=None if prompt_embeds is not None else prompt_token_ids,
        prompt_embeds=prompt_embeds,
        mm_features=[],
        sampling_params=SamplingParams(**params),
        generator=None,
        block_ids=([1, 2],),
        num_computed_tokens=num_prompt_tokens + 1,
        output_token_ids=rng.integers(0, VOCAB_SIZE, 2).tolist(),
    )


def remove(batch: InputBatch, req_id: str) -> None:
    batch.remove_request(req_id)
    batch.condense()
    batch.refresh_metadata()


def test_embeds_leave_with_their_request():
    batch = make_batch()
    embeds = torch.ones(5, 2)
    batch.add_request(make_request("a", prompt_embeds=embeds))
    batch.add_request(make_request("b"))
    assert batch.req_prompt_embeds == {0: embeds}
    # "b" moves to row 0.
    remove(batch, "a")
    assert batch.req_prompt_embeds == {}

    # The last request of the batch, whose row is not filled again.
    batch.add_request(make_request("c", prompt_embeds=embeds))
    remove(batch, "c")
    assert batch.req_prompt_embeds == {}

    # A row that the next request takes over.
    batch.add_request(make_request("d", prompt_embeds=embeds))
    batch.remove_request("d")
    batch.add_request(make_request("e"))
    assert batch.req_id_to_index["e"] == 1
    assert batch.req_prompt_embeds == {}


def test_penalties_see_no_ids_of_another_request():
    """An embedded prompt has no token ids, whatever the row held before."""
    batch = make_batch()
    batch.add_request(make_request("a", 6))
    batch.remove_request("a")
    batch.add_request(make_request("b", 4, torch.ones(4, 2)))
    other = make_request("c", 5, repetition_penalty=1.5)
    batch.add_request(other)
    batch.condense()
    batch.refresh_metadata()
    prompt_token_ids = batch.sampling_metadata.prompt_token_ids
    assert prompt_token_ids is not None
    assert prompt_token_ids.tolist() == [[VOCAB_SIZE] * 5, other.prompt_token_ids]


@pytest.mark.parametrize("seed", range(20))
def test_random_moves(seed: int):
    rng = np.random.default_rng(seed)
    batch = make_batch()
    requests: dict[str, CachedRequestState] = {}
    for step in range(60):
        for req_id in [req_id for req_id in requests if rng.random() < 0.3]:
            batch.remove_request(req_id)
            del requests[req_id]
        while len(requests) < MAX_NUM_REQS and rng.random() < 0.6:
            req_id = f"{step}-{len(requests)}"
            num_prompt_tokens = int(rng.integers(1, 40))
            embeds = torch.ones(num_prompt_tokens, 2) if rng.random() < 0.3 else None
            requests[req_id] = make_request(req_id, num_prompt_tokens, embeds)
            batch.add_request(requests[req_id])
        batch.condense()
        for _ in range(int(rng.integers(0, 3))):
            if len(requests) > 1:
                i, j = rng.choice(len(requests), 2, replace=False).tolist()
                batch.swap_states(i, j)
        batch.refresh_metadata()
        assert all(row < batch.num_reqs for row in batch.req_prompt_embeds)
        for req_id, row in batch.req_id_to_index.items():
            request = requests[req_id]
            has_ids = request.prompt_embeds is None
            assert batch.req_prompt_embeds.get(row) is request.prompt_embeds
            prompt = slice(request.num_prompt_tokens)
            assert (batch.is_token_ids[row, prompt] == has_ids).all()
