# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What the model runner keeps per request and step, against plain loops."""

from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.worker.gpu.async_utils import AsyncOutput
from vllm.v1.worker.gpu.model_runner import GPUModelRunner, sort_batch_req_ids

MAX_NUM_REQS = 8
REQ_IDS = [f"request-{i}" for i in range(MAX_NUM_REQS)]


@given(
    num_tokens=st.dictionaries(
        st.sampled_from(REQ_IDS), st.sampled_from([1, 4, 4, 9]), min_size=1
    ),
    drafts=st.dictionaries(
        st.sampled_from(REQ_IDS), st.sampled_from([[], [-1], [-1] * 3])
    ),
    decode_query_len=st.sampled_from([1, 4]),
)
def test_batch_order_is_that_of_the_sort(
    num_tokens: dict[str, int], drafts: dict[str, list[int]], decode_query_len: int
) -> None:
    drafts = {r: drafts[r] for r in drafts if r in num_tokens}
    assert sort_batch_req_ids(num_tokens, drafts, decode_query_len) == sorted(
        num_tokens,
        key=lambda r: (
            not drafts.get(r),
            num_tokens[r] != decode_query_len,
            num_tokens[r],
        ),
    )


@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, MAX_NUM_REQS - 1),
            st.integers(0, 1000),
            st.none() | st.just(([5],)) | st.just(([],)),
        ),
        unique_by=lambda row: row[0],
    )
)
def test_cached_requests_update_their_rows(rows: list[tuple[int, int, Any]]) -> None:
    appended: list[tuple[int, Any, bool]] = []
    runner: Any = GPUModelRunner.__new__(GPUModelRunner)
    runner.req_states = SimpleNamespace(
        # Rows are given out in any order.
        req_id_to_index={req_id: 7 - i for i, req_id in enumerate(REQ_IDS)},
        num_computed_tokens_np=np.full(MAX_NUM_REQS, 3, dtype=np.int32),
        num_computed_prefill_tokens=np.zeros(MAX_NUM_REQS, dtype=np.int32),
        prefill_len=SimpleNamespace(np=np.full(MAX_NUM_REQS, 500, dtype=np.int32)),
    )
    runner.block_tables = SimpleNamespace(
        append_block_ids=lambda i, ids, overwrite: appended.append((i, ids, overwrite))
    )
    runner.update_requests(
        SimpleNamespace(
            scheduled_cached_reqs=SimpleNamespace(
                req_ids=[REQ_IDS[i] for i, _, _ in rows],
                num_computed_tokens=[n for _, n, _ in rows],
                new_block_ids=[ids for _, _, ids in rows],
            ),
            new_block_ids_to_zero=None,
            kv_cache_block_copies=None,
        )
    )
    expected = np.full(MAX_NUM_REQS, 3)
    for i, num_computed_tokens, _ in rows:
        expected[7 - i] = num_computed_tokens
    states = runner.req_states
    assert states.num_computed_tokens_np.tolist() == expected.tolist()
    assert (
        states.num_computed_prefill_tokens.tolist()
        == np.minimum(expected, 500).tolist()
    )
    assert appended == [(7 - i, ids, False) for i, _, ids in rows if ids is not None]


@given(
    rows=st.integers(1, 3).flatmap(
        lambda width: st.lists(
            st.tuples(
                st.lists(st.integers(0, 9), min_size=width, max_size=width),
                st.integers(0, width) | st.just(width),
            ),
            min_size=1,
            max_size=MAX_NUM_REQS,
        )
    )
)
def test_output_ends_where_a_row_does(rows: list[tuple[list[int], int]]) -> None:
    output: Any = AsyncOutput.__new__(AsyncOutput)
    output.copy_event = SimpleNamespace(synchronize=lambda: None)
    output.sampled_token_ids = np.array([token_ids for token_ids, _ in rows])
    output.num_sampled_tokens_np = np.array([n for _, n in rows], dtype=np.int32)
    output.model_runner_output = ModelRunnerOutput(
        req_ids=[str(i) for i in range(len(rows))]
    )
    output.sampling_mask_tensors = output.num_nans = output.logprobs_tensors = None
    output.prompt_logprobs_dict = output.prompt_token_id_logprobs_dict = {}
    output.num_verified_drafts_np = None
    output.pending_aux_output = output._has_fault = None
    assert output.get_output().sampled_token_ids == [
        token_ids[:n] for token_ids, n in rows
    ]
