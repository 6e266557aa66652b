# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Masks of allowed tokens follow their requests when rows of the batch move."""

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


def add(
    batch: InputBatch, req_id: str, allowed_token_ids: list[int] | None = None
) -> None:
    batch.add_request(
        CachedRequestState(
            req_id=req_id,
            prompt_token_ids=[1, 2, 3],
            mm_features=[],
            sampling_params=SamplingParams(allowed_token_ids=allowed_token_ids),
            generator=None,
            block_ids=([1],),
            num_computed_tokens=3,
            output_token_ids=[4],
        )
    )


def disallowed(batch: InputBatch, req_id: str) -> list[int]:
    """Token ids that the mask forbids for the request."""
    mask = batch.allowed_token_ids_mask_cpu_tensor
    if mask is None:
        return []
    return mask[batch.req_id_to_index[req_id]].nonzero().flatten().tolist()


def all_but(*token_ids: int) -> list[int]:
    return [t for t in range(VOCAB_SIZE) if t not in token_ids]


def test_swap_keeps_each_mask():
    batch = make_batch()
    add(batch, "a", [1, 2])
    add(batch, "b", [7])
    add(batch, "c")
    batch.swap_states(0, 1)
    assert disallowed(batch, "a") == all_but(1, 2)
    assert disallowed(batch, "b") == all_but(7)
    batch.swap_states(2, 1)
    assert disallowed(batch, "a") == all_but(1, 2)
    assert disallowed(batch, "c") == []


def test_condense_clears_the_row_that_a_mask_has_left():
    """The next request in that row has no mask of its own."""
    batch = make_batch()
    add(batch, "a")
    add(batch, "b", [3])
    batch.remove_request("a")
    batch.condense()
    add(batch, "c")
    assert batch.req_id_to_index == {"b": 0, "c": 1}
    assert disallowed(batch, "b") == all_but(3)
    assert disallowed(batch, "c") == []


@pytest.mark.parametrize("seed", range(20))
def test_random_moves(seed: int):
    rng = np.random.default_rng(seed)
    batch = make_batch()
    allowed: dict[str, list[int] | None] = {}
    for step in range(60):
        for req_id in [req_id for req_id in allowed if rng.random() < 0.3]:
            batch.remove_request(req_id)
            del allowed[req_id]
        while len(allowed) < MAX_NUM_REQS and rng.random() < 0.6:
            req_id = f"{step}-{len(allowed)}"
            token_ids = rng.integers(0, VOCAB_SIZE, 3).tolist()
            allowed[req_id] = token_ids if rng.random() < 0.4 else None
            add(batch, req_id, allowed[req_id])
        batch.condense()
        for _ in range(int(rng.integers(0, 3))):
            if len(allowed) > 1:
                i, j = rng.choice(len(allowed), 2, replace=False).tolist()
                batch.swap_states(i, j)
        batch.refresh_metadata()
        for req_id, token_ids in allowed.items():
            expected = all_but(*token_ids) if token_ids else []
            assert disallowed(batch, req_id) == expected
