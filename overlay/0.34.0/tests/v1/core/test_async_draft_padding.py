# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Async scheduling: draft placeholders where tokens or KV blocks are scarce."""

import pytest

from tests.v1.core.utils import create_requests, create_scheduler
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.request import Request

pytestmark = pytest.mark.skip_global_cleanup

NUM_DRAFTS = 6


def make_scheduler(num_requests: int, num_tokens: int, **kwargs) -> AsyncScheduler:
    """A scheduler whose requests have computed their prompts."""
    scheduler = create_scheduler(async_scheduling=True, **kwargs)
    scheduler.num_spec_tokens = NUM_DRAFTS
    for request in create_requests(num_requests, num_tokens, max_tokens=50):
        scheduler.add_request(request)
    while any(is_prompt(request) for request in scheduler.requests.values()):
        scheduler.max_num_scheduled_tokens = num_requests * num_tokens
        scheduler.schedule()
    return scheduler


def is_prompt(request: Request) -> bool:
    return request.num_computed_tokens < request.num_prompt_tokens


@pytest.mark.parametrize(
    "budget, expected",
    [
        (28, [7, 7, 7, 7]),
        (20, [7, 7, 5, 1]),
        (5, [2, 1, 1, 1]),
        (4, [1, 1, 1, 1]),
        (3, [1, 1, 1]),
    ],
)
def test_every_request_gets_a_token(budget: int, expected: list[int]):
    scheduler = make_scheduler(4, 10)
    scheduler.max_num_scheduled_tokens = budget
    output = scheduler.schedule()
    assert list(output.num_scheduled_tokens.values()) == expected
    drafts = output.scheduled_spec_decode_tokens
    assert [1 + len(drafts.get(r, ())) for r in output.num_scheduled_tokens] == expected


def test_most_of_the_step_is_left_to_prompts():
    scheduler = make_scheduler(4, 10)
    (late,) = create_requests(1, 100, req_ids=["late"])
    scheduler.add_request(late)
    scheduler.max_num_scheduled_tokens = 32
    output = scheduler.schedule()
    # A quarter for placeholders, one token for each request, and the prompt.
    assert list(output.num_scheduled_tokens.values()) == [7, 3, 1, 1, 20]


def test_placeholders_preempt_nobody():
    # A block for each of the four prompts, and the one that is never used.
    scheduler = make_scheduler(4, 12, num_blocks=5, block_size=16)
    output = scheduler.schedule()
    assert not output.preempted_req_ids
    # Three slots are left in each block after the placeholder of the first step.
    assert list(output.num_scheduled_tokens.values()) == [1, 1, 1, 1]
