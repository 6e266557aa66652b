# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Tokens of which none may stop a request are appended at once."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm.sampling_params import RepetitionDetectionParams, SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.sched.utils import check_stop, may_stop
from vllm.v1.request import Request

from .utils import EOS_TOKEN_ID, create_requests, create_scheduler

pytestmark = pytest.mark.cpu_test

BLOCK_SIZE = 4
MAX_MODEL_LEN = 32
PROMPT_LENGTH = 8
STOP_TOKEN_ID = 3
TOKENS = st.lists(
    st.sampled_from([*range(1, 12), EOS_TOKEN_ID]), min_size=1, max_size=5
)


def sampling_params(**given: object) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 100, **given})


PARAMS = st.builds(
    sampling_params,
    max_tokens=st.integers(1, 30),
    min_tokens=st.sampled_from([0, 0, 1]),
    ignore_eos=st.booleans(),
    stop_token_ids=st.sampled_from([[], [STOP_TOKEN_ID], [STOP_TOKEN_ID, 5]]),
    repetition_detection=st.none()
    | st.just(RepetitionDetectionParams(max_pattern_size=2, min_count=3)),
)


def new_request(params: SamplingParams) -> Request:
    (request,) = create_requests(
        1,
        num_tokens=PROMPT_LENGTH,
        block_size=BLOCK_SIZE,
        sampling_params=params.clone(),
    )
    request.num_computed_tokens = PROMPT_LENGTH
    return request


@pytest.fixture(scope="module")
def scheduler() -> Scheduler:
    return create_scheduler(
        max_num_batched_tokens=MAX_MODEL_LEN, max_model_len=MAX_MODEL_LEN
    )


def append_one_by_one(
    request: Request, tokens: Sequence[int]
) -> tuple[list[int], bool]:
    for num_new, token in enumerate(tokens, 1):
        request.append_output_token_ids(token)
        if check_stop(request, MAX_MODEL_LEN):
            request.num_computed_tokens -= len(tokens) - num_new
            return list(tokens[:num_new]), True
    return list(tokens), False


def state(request: Request) -> tuple[object, ...]:
    return (
        request.status,
        request.stop_reason,
        request.num_computed_tokens,
        list(request.all_token_ids),
        list(request.output_token_ids),
        list(request.block_hashes),
    )


@given(params=PARAMS, steps=st.lists(TOKENS, min_size=1, max_size=12))
def test_steps_equal_tokens_appended_one_by_one(
    scheduler: Scheduler, params: SamplingParams, steps: list[list[int]]
) -> None:
    request, plain = new_request(params), new_request(params)
    for tokens in steps:
        request.num_computed_tokens += len(tokens)
        plain.num_computed_tokens += len(tokens)
        expected = append_one_by_one(plain, tokens)
        assert scheduler._update_request_with_output(request, tokens[:]) == expected
        assert state(request) == state(plain)
        if expected[1]:
            break


@pytest.mark.parametrize(
    ("params", "tokens", "expected"),
    [
        (sampling_params(), [7, 8], False),
        (sampling_params(), [7, EOS_TOKEN_ID], True),
        (sampling_params(ignore_eos=True), [7, EOS_TOKEN_ID], False),
        (sampling_params(stop_token_ids=[STOP_TOKEN_ID]), [7, 8], False),
        (sampling_params(stop_token_ids=[STOP_TOKEN_ID]), [7, STOP_TOKEN_ID], True),
        (sampling_params(max_tokens=3), [7, 8], False),
        (sampling_params(max_tokens=2), [7, 8], True),
        (sampling_params(), [7] * (MAX_MODEL_LEN - PROMPT_LENGTH - 1), False),
        (sampling_params(), [7] * (MAX_MODEL_LEN - PROMPT_LENGTH), True),
    ],
)
def test_only_what_may_stop_is_looked_at_token_by_token(
    params: SamplingParams, tokens: list[int], expected: bool
) -> None:
    assert may_stop(new_request(params), tokens, MAX_MODEL_LEN) is expected
