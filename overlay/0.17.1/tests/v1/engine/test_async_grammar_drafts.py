# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Grammar masks of drafts under async scheduling, where drafts are placeholders in
the scheduler until the worker is asked for them."""

import queue
from collections import deque
from concurrent.futures import Future

import pytest
import torch

from tests.v1.core.utils import EOS_TOKEN_ID, create_scheduler
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.engine.core import EngineCore
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output.backend_types import StructuredOutputGrammar

NUM_DRAFTS = 3
REQ_ID = "0"


class Counting(StructuredOutputGrammar):
    """Allows 1, then 2, then 3, ..."""

    def __init__(self) -> None:
        self.last = 0

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        if tokens != self.validate_tokens(tokens):
            return False
        self.last += len(tokens)
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        same = [t == self.last + i for i, t in enumerate(tokens, 1)] + [False]
        return tokens[: same.index(False)]

    def rollback(self, num_tokens: int) -> None:
        self.last -= num_tokens

    def fill_bitmask(self, bitmask: torch.Tensor, batch_index: int) -> None:
        # One word of 32 tokens is enough for this test's vocabulary.
        bitmask[batch_index] = 1 << self.last + 1

    def is_terminated(self) -> bool:
        return False

    def reset(self) -> None:
        self.last = 0


class CountingWorker:
    """Proposes and samples the next numbers."""

    def __init__(self, outputs_are_late: bool) -> None:
        self.outputs_are_late = outputs_are_late
        self.last = 0
        self.masks: list[list[int]] = []
        self.unfinished: list[tuple[Future, ModelRunnerOutput]] = []

    def execute_model(self, output: SchedulerOutput, non_block: bool) -> Future:
        self.finish()
        self.num_sampled = output.num_scheduled_tokens[REQ_ID] if self.last else 1
        return Future()

    def finish(self) -> None:
        for future, result in self.unfinished:
            future.set_result(result)
        self.unfinished = []

    def sample_tokens(self, grammar_output: GrammarOutput, non_block: bool) -> Future:
        self.masks.append(grammar_output.grammar_bitmask[:, 0].tolist())
        sampled = [self.last + i for i in range(1, self.num_sampled + 1)]
        self.last += self.num_sampled
        result = ModelRunnerOutput(
            req_ids=[REQ_ID],
            req_id_to_index={REQ_ID: 0},
            sampled_token_ids=[sampled],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        self.unfinished.append((Future(), result))
        future = self.unfinished[-1][0]
        if not self.outputs_are_late:
            self.finish()
        return future

    def take_draft_token_ids(self) -> DraftTokenIds:
        drafts = [self.last + i for i in range(1, NUM_DRAFTS + 1)]
        return DraftTokenIds([REQ_ID], [drafts])


def make_engine_core(worker: CountingWorker, monkeypatch) -> EngineCore:
    scheduler = create_scheduler(
        async_scheduling=True, skip_tokenizer_init=True, max_model_len=128
    )
    # Only the number of drafts matters here, not what makes them.
    scheduler.num_spec_tokens = NUM_DRAFTS
    scheduler._spec_token_placeholders = [-1] * NUM_DRAFTS
    manager = scheduler.structured_output_manager
    monkeypatch.setattr(manager, "grammar_init", lambda request: None)
    manager._grammar_bitmask = torch.zeros(1 + NUM_DRAFTS, 1, dtype=torch.int32)

    core = object.__new__(EngineCore)
    core.vllm_config = scheduler.vllm_config
    core.scheduler = scheduler
    core.model_executor = worker
    core.batch_queue_size = 2
    core.batch_queue = deque(maxlen=2)
    core.aborts_queue = queue.Queue()
    core.is_ec_producer = core.is_pooling_model = False
    core.use_spec_decode = core.async_scheduling = True
    return core


def add_request(core: EngineCore) -> Request:
    params = SamplingParams(
        max_tokens=64, structured_outputs=StructuredOutputsParams(regex="x")
    )
    params.update_from_generation_config({}, EOS_TOKEN_ID)
    request = Request(
        request_id=REQ_ID,
        prompt_token_ids=[0] * 5,
        mm_features=None,
        sampling_params=params,
        pooling_params=None,
    )
    assert request.structured_output_request is not None
    request.structured_output_request.grammar = Counting()
    request.status = RequestStatus.WAITING
    core.scheduler.add_request(request)
    return request


@pytest.mark.parametrize("outputs_are_late", [False, True])
def test_every_draft_is_masked(outputs_are_late: bool, monkeypatch):
    """Also where the last output is there before the next step is scheduled."""
    worker = CountingWorker(outputs_are_late)
    core = make_engine_core(worker, monkeypatch)
    request = add_request(core)
    while len(worker.masks) < 6:
        core.step_with_batch_queue()
        worker.finish()

    # One token after the prompt, then all drafts and the token after them.
    assert len(worker.masks[0]) == 1
    assert all(len(mask) == NUM_DRAFTS + 1 for mask in worker.masks[1:])
    allowed = [word for mask in worker.masks for word in mask]
    assert allowed == [1 << 1 + i for i in range(len(allowed))]
    assert request.structured_output_request.grammar.last >= 1 + 4 * (NUM_DRAFTS + 1)


@pytest.mark.parametrize("outputs_are_late", [False, True])
def test_masks_are_never_filled_from_placeholders(outputs_are_late: bool, monkeypatch):
    worker = CountingWorker(outputs_are_late)
    monkeypatch.setattr(worker, "take_draft_token_ids", lambda: None)
    core = make_engine_core(worker, monkeypatch)
    add_request(core)
    with pytest.raises(AssertionError, match="the worker has none to show"):
        while len(worker.masks) < 3:
            core.step_with_batch_queue()
            worker.finish()
    # The prompt's step, which has no drafts.
    assert len(worker.masks) == 1
