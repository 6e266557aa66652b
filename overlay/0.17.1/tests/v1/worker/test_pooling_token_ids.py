# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Poolers that need the prompt's token ids, in rows of the batch that move."""

import pytest
import torch

from vllm.pooling_params import PoolingParams
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

pytestmark = pytest.mark.skip_global_cleanup


def add(batch: InputBatch, req_id: str, requires_token_ids: bool) -> None:
    batch.add_request(
        CachedRequestState(
            req_id=req_id,
            prompt_token_ids=[1, 2, 3, 4, 5],
            mm_features=[],
            sampling_params=None,
            pooling_params=PoolingParams(
                task="embed", requires_token_ids=requires_token_ids
            ),
            generator=None,
            block_ids=([1, 2],),
            num_computed_tokens=4,
            output_token_ids=[],
        )
    )


def remove(batch: InputBatch, req_id: str) -> None:
    batch.remove_request(req_id)
    batch.condense()
    batch.refresh_metadata()


@pytest.mark.parametrize("move", ["condense", "swap"])
def test_flag_moves_with_its_request(move: str):
    """A pooler that needs the prompt's token ids gets them after a move."""
    batch = InputBatch(
        max_num_reqs=2,
        max_model_len=64,
        max_num_batched_tokens=64,
        device=torch.device("cpu"),
        pin_memory=False,
        vocab_size=32,
        block_sizes=[4],
        kernel_block_sizes=[4],
        is_pooling_model=True,
    )
    add(batch, "a", requires_token_ids=False)
    add(batch, "b", requires_token_ids=True)
    if move == "swap":
        batch.swap_states(0, 1)
    remove(batch, "a")
    assert batch.req_id_to_index == {"b": 0}
    assert batch.logits_processing_needs_token_ids[0]
    assert batch.get_pooling_metadata().prompt_token_ids is not None

    add(batch, "c", requires_token_ids=False)
    remove(batch, "b")
    assert batch.get_pooling_metadata().prompt_token_ids is None
