# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Speculative decoding: steps in which none of a row's sampled tokens is valid."""

import pytest

from tests.v1.core.utils import create_requests, create_scheduler
from vllm.logger import _print_warning_once
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler, logger
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import RequestStatus

pytestmark = pytest.mark.skip_global_cleanup

NUM_PROMPT_TOKENS = 20
NUM_DRAFTS = 3


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
    if not scheduler.scheduler_config.async_scheduling:
        drafts = DraftTokenIds([req_id], [[7] * NUM_DRAFTS])
        scheduler.update_draft_token_ids(drafts)


@pytest.mark.parametrize("use_async", [False, True])
def test_step_is_repeated(use_async: bool):
    scheduler = create_scheduler(async_scheduling=use_async, max_model_len=256)
    scheduler.num_spec_tokens = NUM_DRAFTS
    scheduler._spec_token_placeholders = [-1] * NUM_DRAFTS
    (request,) = create_requests(1, NUM_PROMPT_TOKENS, max_tokens=9, ignore_eos=True)
    scheduler.add_request(request)
    finish(scheduler, scheduler.schedule(), [1])

    for token_ids in ([], [], [2, 3], []):
        num_tokens = request.num_tokens
        output = scheduler.schedule()
        assert output.num_scheduled_tokens == {request.request_id: 1 + NUM_DRAFTS}
        finish(scheduler, output, token_ids)
        assert request.num_tokens == num_tokens + len(token_ids)
        assert request.num_computed_tokens == request.num_tokens - 1
        assert request.num_output_placeholders == 0
    assert list(request.output_token_ids) == [1, 2, 3]


def test_said_once_for_all_requests(monkeypatch):
    lines = []
    monkeypatch.setattr(logger, "warning", lambda msg, *args, **kw: lines.append(msg))
    _print_warning_once.cache_clear()
    scheduler = create_scheduler(max_model_len=256)
    scheduler.num_spec_tokens = NUM_DRAFTS
    for request in create_requests(2, NUM_PROMPT_TOKENS, max_tokens=9):
        scheduler.add_request(request)
        finish(scheduler, scheduler.schedule(), [1])
        finish(scheduler, scheduler.schedule(), [])
        scheduler.finish_requests(request.request_id, RequestStatus.FINISHED_ABORTED)
    assert len(lines) == 1 and "no valid token" in lines[0]
