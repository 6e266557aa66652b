# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Rows of the input batch are whole after a move, and no more is copied than that."""

import numpy as np
import pytest
import torch

from vllm.sampling_params import SamplingParams
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

pytestmark = pytest.mark.skip_global_cleanup

MAX_NUM_REQS = 6
MAX_MODEL_LEN = 64
BLOCK_SIZE = 4
VOCAB_SIZE = 32


def make_batch() -> InputBatch:
    return InputBatch(
        max_num_reqs=MAX_NUM_REQS,
        max_model_len=MAX_MODEL_LEN,
        max_num_batched_tokens=MAX_MODEL_LEN,
        device=torch.device("cpu"),
        pin_memory=False,
        vocab_size=VOCAB_SIZE,
        block_sizes=[BLOCK_SIZE],
        kernel_block_sizes=[BLOCK_SIZE],
    )


def make_request(
    req_id: str, num_prompt: int = 5, num_output: int = 2, temperature: float = 1.0
) -> CachedRequestState:
    rng = np.random.default_rng(list(req_id.encode()))
    num_blocks = -(-(num_prompt + num_output) // BLOCK_SIZE)
    return CachedRequestState(
        req_id=req_id,
        prompt_token_ids=rng.integers(0, VOCAB_SIZE, num_prompt).tolist(),
        mm_features=[],
        sampling_params=SamplingParams(temperature=temperature),
        generator=None,
        block_ids=(rng.integers(1, 99, num_blocks).tolist(),),
        num_computed_tokens=num_prompt + num_output - 1,
        output_token_ids=rng.integers(0, VOCAB_SIZE, num_output).tolist(),
    )


def add(batch: InputBatch, *requests: CachedRequestState) -> None:
    for request in requests:
        batch.add_request(request)


def remove(batch: InputBatch, *req_ids: str) -> None:
    for req_id in req_ids:
        batch.remove_request(req_id)
    batch.condense()
    batch.refresh_metadata()


@pytest.mark.parametrize("move", ["condense", "swap"])
def test_unfinished_prompt_moves_as_a_whole(move: str):
    """Pipeline ranks before the last one set num_tokens_no_spec to the number
    of computed tokens, and read the rest of the prompt in later steps."""
    batch = make_batch()
    long = make_request("long", num_prompt=40, num_output=0)
    add(batch, make_request("a"), long)
    batch.num_tokens_no_spec[1] = batch.num_computed_tokens_cpu[1] = 16
    if move == "swap":
        batch.swap_states(0, 1)
    else:
        remove(batch, "a")
    assert batch.token_ids_cpu[0, :40].tolist() == long.prompt_token_ids
    assert batch.is_token_ids[0, :40].all()


def test_swap_copies_used_part_only():
    """Rows are as long as max_model_len, most of it is not in use."""
    batch = make_batch()
    add(batch, make_request("a", 9, 0), make_request("b", 3, 1))
    batch.spec_token_ids[1].extend([5, 6, 7, 8, 9, 10])
    batch.token_ids_cpu[1, 4:10] = batch.spec_token_ids[1]
    # Values that a copy of more than the 10 tokens and 3 blocks would move.
    unused = ((0, 100), (1, 200))
    blocks = batch.block_table[0].block_table.np
    for row, value in unused:
        batch.token_ids_cpu[row, 10:] = value
        batch.is_token_ids[row, 10:] = row
        blocks[row, 3:] = value

    batch.swap_states(0, 1)

    for row, value in unused:
        assert (batch.token_ids_cpu[row, 10:] == value).all()
        assert (batch.is_token_ids[row, 10:] == row).all()
        assert (blocks[row, 3:] == value).all()
    assert batch.token_ids_cpu[0, 4:10].tolist() == [5, 6, 7, 8, 9, 10]
    assert batch.spec_token_ids[0] == [5, 6, 7, 8, 9, 10]


def assert_rows_hold(batch: InputBatch, requests: dict[str, CachedRequestState]):
    """Each row holds what was added with its request, and nothing else."""
    assert batch.req_id_to_index.keys() == requests.keys()
    blocks = batch.block_table[0]
    for req_id, row in batch.req_id_to_index.items():
        request = requests[req_id]
        params = request.sampling_params
        num_tokens = request.num_tokens
        assert batch.req_ids[row] == req_id
        assert batch.req_output_token_ids[row] is request.output_token_ids
        assert batch.num_tokens_no_spec[row] == num_tokens
        assert batch.num_prompt_tokens[row] == request.num_prompt_tokens
        assert batch.num_computed_tokens_cpu[row] == request.num_computed_tokens
        assert batch.token_ids_cpu[row, :num_tokens].tolist() == [
            request.get_token_id(i) for i in range(num_tokens)
        ]
        assert batch.is_token_ids[row, :num_tokens].all()
        num_blocks = blocks.num_blocks_per_row[row]
        assert blocks.block_table.np[row, :num_blocks].tolist() == request.block_ids[0]
        assert batch.temperature_cpu[row] == params.temperature
        assert batch.generators.get(row) is request.generator
    assert all(row < batch.num_reqs for row in batch.generators)


@pytest.mark.parametrize("seed", range(20))
def test_random_moves(seed: int):
    rng = np.random.default_rng(seed)
    batch = make_batch()
    requests: dict[str, CachedRequestState] = {}
    for step in range(60):
        leaving = [req_id for req_id in requests if rng.random() < 0.3]
        for req_id in leaving:
            batch.remove_request(req_id)
            del requests[req_id]
        while len(requests) < MAX_NUM_REQS and rng.random() < 0.6:
            req_id = f"{seed}-{step}-{len(requests)}"
            request = make_request(
                req_id,
                num_prompt=int(rng.integers(1, 40)),
                num_output=int(rng.integers(0, 20)),
                temperature=float(rng.integers(0, 2)),
            )
            if rng.random() < 0.3:
                request.generator = torch.Generator()
            requests[req_id] = request
            batch.add_request(request)
        batch.condense()
        for _ in range(int(rng.integers(0, 3))):
            if len(requests) > 1:
                i, j = rng.choice(len(requests), 2, replace=False).tolist()
                batch.swap_states(i, j)
        batch.refresh_metadata()
        assert_rows_hold(batch, requests)
