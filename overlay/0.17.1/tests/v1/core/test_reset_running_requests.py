# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""reset_prefix_cache(reset_running_requests=True) under async scheduling: the output
that is in flight is dropped, and nothing else."""

import pytest

from tests.v1.core.utils import create_requests, create_scheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

NUM_PROMPT_TOKENS = 20
NUM_DRAFTS = 3


def start(num_drafts: int = 0, max_num_batched_tokens: int = 64):
    scheduler = create_scheduler(
        async_scheduling=True,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=256,
    )
    # Only the number of drafts matters here, not what makes them.
    scheduler.num_spec_tokens = num_drafts
    scheduler._spec_token_placeholders = [-1] * num_drafts
    (request,) = create_requests(
        num_requests=1, num_tokens=NUM_PROMPT_TOKENS, max_tokens=100, ignore_eos=True
    )
    scheduler.add_request(request)
    return scheduler, request


def finish(scheduler: Scheduler, output: SchedulerOutput, token_ids: list[int]):
    (req_id,) = output.num_scheduled_tokens
    scheduler.update_from_output(
        output,
        ModelRunnerOutput(
            req_ids=[req_id],
            req_id_to_index={req_id: 0},
            sampled_token_ids=[token_ids],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        ),
    )


def num_scheduled(output: SchedulerOutput) -> int:
    (num_tokens,) = output.num_scheduled_tokens.values()
    return num_tokens


def reset(scheduler: Scheduler, request: Request):
    assert scheduler.reset_prefix_cache(reset_running_requests=True)
    assert request.num_computed_tokens == request.num_output_placeholders == 0


@pytest.mark.parametrize("num_accepted", range(NUM_DRAFTS + 1))
def test_drafts_in_flight(num_accepted: int):
    scheduler, request = start(NUM_DRAFTS)
    finish(scheduler, scheduler.schedule(), [7])
    in_flight = scheduler.schedule()
    assert num_scheduled(in_flight) == 1 + NUM_DRAFTS

    reset(scheduler, request)
    resumed = scheduler.schedule()
    assert num_scheduled(resumed) == NUM_PROMPT_TOKENS + 1
    finish(scheduler, in_flight, [8] * (1 + num_accepted))
    assert list(request.output_token_ids) == [7]
    assert request.num_computed_tokens == NUM_PROMPT_TOKENS + 1

    with_drafts = scheduler.schedule()
    assert num_scheduled(with_drafts) == 1 + NUM_DRAFTS
    finish(scheduler, resumed, [8])
    finish(scheduler, with_drafts, [9])
    assert list(request.output_token_ids) == [7, 8, 9]
    assert request.num_computed_tokens == request.num_tokens - 1
    assert request.num_output_placeholders == 0


@pytest.mark.parametrize("num_drafts", [0, NUM_DRAFTS])
def test_nothing_in_flight(num_drafts: int):
    """No token must get lost where none is to be dropped."""
    scheduler, request = start(num_drafts)
    finish(scheduler, scheduler.schedule(), [7])
    reset(scheduler, request)
    finish(scheduler, scheduler.schedule(), [8])
    assert list(request.output_token_ids) == [7, 8]
    assert request.num_output_placeholders == 0


@pytest.mark.parametrize("num_drafts", [0, NUM_DRAFTS])
def test_prefill_chunk_in_flight(num_drafts: int):
    scheduler, request = start(num_drafts, max_num_batched_tokens=16)
    in_flight = scheduler.schedule()
    assert num_scheduled(in_flight) < NUM_PROMPT_TOKENS
    reset(scheduler, request)
    first = scheduler.schedule()
    finish(scheduler, in_flight, [])
    second = scheduler.schedule()
    finish(scheduler, first, [])
    finish(scheduler, second, [7])
    assert list(request.output_token_ids) == [7]
    assert request.num_output_placeholders == 0


@pytest.mark.parametrize("num_drafts", [0, NUM_DRAFTS])
def test_reset_twice(num_drafts: int):
    """The second reset finds nothing of the request in flight but what it dropped."""
    scheduler, request = start(num_drafts)
    finish(scheduler, scheduler.schedule(), [7])
    in_flight = scheduler.schedule()
    reset(scheduler, request)
    reset(scheduler, request)
    resumed = scheduler.schedule()
    finish(scheduler, in_flight, [8])
    assert list(request.output_token_ids) == [7]
    finish(scheduler, resumed, [8])
    assert list(request.output_token_ids) == [7, 8]
