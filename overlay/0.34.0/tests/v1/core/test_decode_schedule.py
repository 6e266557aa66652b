# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What is scheduled is what a look at each request in full gives."""

import pytest
from hypothesis import given

from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import CachedRequestData, SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from .step_utils import KINDS, RANDOM_STEPS, STEPS, Side, Step, assert_steps_equal

pytestmark = pytest.mark.cpu_test


class PlainScheduler(Scheduler):
    """With the methods that look at each request in full."""

    def _make_cached_request_data(
        self,
        running_reqs: list[Request],
        num_scheduled_tokens: dict[str, int],
        spec_decode_tokens: dict[str, list[int]],
        req_to_new_blocks: dict[str, KVCacheBlocks],
    ) -> CachedRequestData:
        assert not self.use_pp
        return CachedRequestData(
            req_ids=[req.request_id for req in running_reqs],
            new_token_ids=[],
            new_block_ids=[
                req_to_new_blocks[req.request_id].get_block_ids(allow_none=True)
                for req in running_reqs
            ],
            num_computed_tokens=[req.num_computed_tokens for req in running_reqs],
            num_output_tokens=[
                req.num_output_tokens + req.num_output_placeholders
                for req in running_reqs
            ],
        )

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        for req_id, num_scheduled in scheduler_output.num_scheduled_tokens.items():
            request = self.requests[req_id]
            request.num_computed_tokens += num_scheduled
            request.num_in_flight_tokens += num_scheduled
            if self.defer_block_free:
                request.last_sched_seq = self.sched_step_seq
            request.is_prefill_chunk = request.num_computed_tokens < (
                request.num_tokens + request.num_output_placeholders
            )
            scheduler_output.has_structured_output_requests |= (
                request.use_structured_output and not request.is_prefill_chunk
            )
            if not request.is_prefill_chunk:
                self._inflight_prefills.discard(request)
        self.finished_req_ids: set[str] = set()
        self.reset_preempted_req_ids: set[str] = set()


class PlainAsyncScheduler(PlainScheduler, AsyncScheduler):
    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        PlainScheduler._update_after_schedule(self, scheduler_output)
        placeholders = [-1] * scheduler_output.num_spec_tokens_to_schedule
        drafts = scheduler_output.scheduled_spec_decode_tokens
        for req_id in scheduler_output.num_scheduled_tokens:
            request = self.requests[req_id]
            if request.is_prefill_chunk:
                continue
            num_drafts = len(drafts.get(req_id, ()))
            scheduler_output.pending_structured_output_tokens |= (
                request.use_structured_output
                and (request.num_output_placeholders > 0 or num_drafts > 0)
            )
            request.num_output_placeholders += (
                self.num_sampled_tokens_per_step + num_drafts
            )
            request.spec_token_ids = placeholders
            request.next_decode_eligible_step = self.current_step + self.decode_stagger


@pytest.mark.parametrize("name", KINDS)
@RANDOM_STEPS
@given(steps=STEPS)
def test_steps_equal_plain_steps(name: str, steps: list[Step]) -> None:
    plain = Side(KINDS[name], sync_cls=PlainScheduler, async_cls=PlainAsyncScheduler)
    assert_steps_equal(Side(KINDS[name]), plain, steps)
