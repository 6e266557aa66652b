# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Rows of the input batch that move, and rows that are used again."""

import numpy as np
import pytest
import torch

from vllm.pooling_params import PoolingParams
from vllm.sampling_params import SamplingParams
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

pytestmark = pytest.mark.skip_global_cleanup

MAX_NUM_REQS = 6
MAX_MODEL_LEN = 64
BLOCK_SIZE = 4
VOCAB_SIZE = 32


def make_batch(is_pooling_model: bool = False) -> InputBatch:
    return InputBatch(
        max_num_reqs=MAX_NUM_REQS,
        max_model_len=MAX_MODEL_LEN,
        max_num_batched_tokens=MAX_MODEL_LEN,
        device=torch.device("cpu"),
        pin_memory=False,
        vocab_size=VOCAB_SIZE,
        block_sizes=[BLOCK_SIZE],
        kernel_block_sizes=[BLOCK_SIZE],
        is_pooling_model=is_pooling_model,
    )


def make_request(req_id: str, num_prompt: int = 5, num_output: int = 2, **kwargs):
    rng = np.random.default_rng(list(req_id.encode()))
    num_blocks = -(-(num_prompt + num_output) // BLOCK_SIZE)
    pooling_params = kwargs.pop("pooling_params", None)
    prompt_embeds = kwargs.pop("prompt_embeds", None)
    prompt = rng.integers(0, VOCAB_SIZE, num_prompt).tolist()
    request = CachedRequestState(
        req_id=req_id,
        prompt_token_ids=None if prompt_embeds is not None else prompt,
        prompt_embeds=prompt_embeds,
        mm_features=[],
        sampling_params=None if pooling_params else SamplingParams(**kwargs),
        pooling_params=pooling_params,
        generator=None,
        block_ids=(rng.integers(1, 99, num_blocks).tolist(),),
        num_computed_tokens=num_prompt + num_output - 1,
        output_token_ids=rng.integers(0, VOCAB_SIZE, num_output).tolist(),
    )
    return request


def add(batch: InputBatch, *requests: CachedRequestState) -> None:
    for request in requests:
        batch.add_request(request)


def remove(batch: InputBatch, *req_ids: str) -> None:
    for req_id in req_ids:
        batch.remove_request(req_id)
    batch.condense()
    batch.refresh_metadata()


def disallowed(batch: InputBatch, req_id: str) -> list[int]:
    """Token ids that the mask forbids for the request."""
    assert batch.allowed_token_ids_mask_cpu_tensor is not None
    row = batch.allowed_token_ids_mask_cpu_tensor[batch.req_id_to_index[req_id]]
    return row.nonzero().flatten().tolist()


def all_but(*token_ids: int) -> list[int]:
    return [t for t in range(VOCAB_SIZE) if t not in token_ids]


def test_swap_keeps_each_mask_of_allowed_tokens():
    batch = make_batch()
    add(
        batch,
        make_request("a", allowed_token_ids=[1, 2]),
        make_request("b", allowed_token_ids=[7]),
        make_request("c"),
    )
    batch.swap_states(0, 1)
    assert disallowed(batch, "a") == all_but(1, 2)
    assert disallowed(batch, "b") == all_but(7)
    batch.swap_states(2, 1)
    assert disallowed(batch, "a") == all_but(1, 2)
    assert disallowed(batch, "c") == []


def test_condense_leaves_no_mask_behind():
    """The row that a request with a mask moved away from is clean for the
    next request, which has no mask."""
    batch = make_batch()
    add(batch, make_request("a"), make_request("b", allowed_token_ids=[3]))
    remove(batch, "a")
    add(batch, make_request("c"))
    assert batch.req_id_to_index == {"b": 0, "c": 1}
    assert disallowed(batch, "b") == all_but(3)
    assert disallowed(batch, "c") == []


def test_prompt_embeds_go_with_their_request():
    batch = make_batch()
    embeds = torch.ones(5, 2)
    add(batch, make_request("a", prompt_embeds=embeds), make_request("b"))
    assert batch.req_prompt_embeds == {0: embeds}
    # "b" moves to row 0.
    remove(batch, "a")
    assert batch.req_prompt_embeds == {}

    # The last request of the batch, whose row is not filled again.
    add(batch, make_request("c", prompt_embeds=embeds))
    remove(batch, "c")
    assert batch.req_prompt_embeds == {}

    # A row that the next request takes over.
    add(batch, make_request("d", prompt_embeds=embeds))
    batch.remove_request("d")
    add(batch, make_request("e"))
    assert batch.req_id_to_index["e"] == 1
    assert batch.req_prompt_embeds == {}


def test_penalties_see_no_ids_of_another_request():
    """An embedded prompt has no token ids, whatever the row held before."""
    batch = make_batch()
    before = make_request("a", 6)
    add(batch, before)
    batch.remove_request("a")
    embeds = torch.ones(4, 2)
    add(batch, make_request("b", prompt_embeds=embeds, num_prompt=4))
    other = make_request("c", 5, repetition_penalty=1.5)
    add(batch, other)
    batch.condense()
    batch.refresh_metadata()
    prompt_token_ids = batch.sampling_metadata.prompt_token_ids
    assert prompt_token_ids is not None
    assert prompt_token_ids.tolist() == [[VOCAB_SIZE] * 5, other.prompt_token_ids]


@pytest.mark.parametrize("move", ["condense", "swap"])
def test_pooling_flag_moves_with_its_request(move: str):
    """A pooler that needs the prompt's token ids gets them after a move."""
    batch = make_batch(is_pooling_model=True)
    plain = PoolingParams(task="embed")
    needs_ids = PoolingParams(task="embed", requires_token_ids=True)
    add(
        batch,
        make_request("a", num_output=0, pooling_params=plain),
        make_request("b", num_output=0, pooling_params=needs_ids),
    )
    if move == "swap":
        batch.swap_states(0, 1)
    remove(batch, "a")
    assert batch.req_id_to_index == {"b": 0}
    assert batch.logits_processing_needs_token_ids[0]
    assert batch.get_pooling_metadata().prompt_token_ids is not None

    add(batch, make_request("c", num_output=0, pooling_params=plain))
    remove(batch, "b")
    assert batch.get_pooling_metadata().prompt_token_ids is None


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
        first_id = 0
        if request.prompt_embeds is not None:
            first_id = request.num_prompt_tokens
            assert not batch.is_token_ids[row, :first_id].any()
        assert batch.token_ids_cpu[row, first_id:num_tokens].tolist() == [
            request.get_token_id(i) for i in range(first_id, num_tokens)
        ]
        assert batch.is_token_ids[row, first_id:num_tokens].all()
        assert batch.req_prompt_embeds.get(row) is request.prompt_embeds
        num_blocks = blocks.num_blocks_per_row[row]
        assert blocks.block_table.np[row, :num_blocks].tolist() == request.block_ids[0]
        assert batch.temperature_cpu[row] == params.temperature
        assert batch.generators.get(row) is request.generator
        if batch.allowed_token_ids_mask_cpu_tensor is not None:
            allowed = params.allowed_token_ids
            assert disallowed(batch, req_id) == (all_but(*allowed) if allowed else [])
    num_reqs = batch.num_reqs
    assert all(row < num_reqs for row in batch.req_prompt_embeds)
    assert all(row < num_reqs for row in batch.generators)


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
            num_prompt = int(rng.integers(1, 40))
            embeds = torch.ones(num_prompt, 2) if rng.random() < 0.3 else None
            allowed = rng.integers(0, VOCAB_SIZE, 3).tolist()
            request = make_request(
                req_id,
                num_prompt,
                int(rng.integers(0, 20)),
                prompt_embeds=embeds,
                allowed_token_ids=allowed if rng.random() < 0.4 else None,
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
