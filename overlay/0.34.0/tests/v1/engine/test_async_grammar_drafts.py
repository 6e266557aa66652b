# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Grammar masks of drafts under async scheduling, where drafts are placeholders in
the scheduler until the worker is asked for them."""

import queue
from collections import deque
from concurrent.futures import Future

import torch

from tests.v1.core.utils import EOS_TOKEN_ID, create_scheduler
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.engine.core import EngineCore
from vllm.v1.outputs import (
    EMPTY_MODEL_RUNNER_OUTPUT,
    DraftTokenIds,
    ModelRunnerOutput,
)
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output.backend_types import StructuredOutputGrammar

NUM_DRAFTS = 3
PROMPT_LEN = 10
# Room for the prompt and two of the three drafts of the step after it.
MAX_MODEL_LEN = PROMPT_LEN + 4
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
    """Proposes and samples the next numbers; step 2 rejects its drafts."""

    def __init__(self) -> None:
        self.last = 0
        self.num_steps = 0
        self.masks: list[list[int]] = []

    def execute_model(self, output: SchedulerOutput, non_block: bool) -> Future:
        future: Future = Future()
        if not output.num_scheduled_tokens:
            future.set_result(EMPTY_MODEL_RUNNER_OUTPUT)
            return future
        self.num_steps += 1
        drafts = output.scheduled_spec_decode_tokens.get(REQ_ID, ())
        self.num_drafts = len(drafts)
        self.num_sampled = 1 if self.num_steps == 2 else 1 + len(drafts)
        return future

    def sample_tokens(self, grammar_output: GrammarOutput, non_block: bool) -> Future:
        masks = grammar_output.grammar_bitmask[: self.num_drafts + 1, 0]
        self.masks.append(masks.tolist())
        sampled = [self.last + i for i in range(1, self.num_sampled + 1)]
        self.last += self.num_sampled
        future: Future = Future()
        future.set_result(
            ModelRunnerOutput(
                req_ids=[REQ_ID],
                sampled_token_ids=[sampled],
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=[],
            )
        )
        return future

    def take_draft_token_ids(self) -> DraftTokenIds:
        drafts = [self.last + i for i in range(1, NUM_DRAFTS + 1)]
        return DraftTokenIds([REQ_ID], [drafts])


def make_engine_core(worker: CountingWorker, monkeypatch) -> EngineCore:
    scheduler = create_scheduler(
        async_scheduling=True,
        skip_tokenizer_init=True,
        max_model_len=MAX_MODEL_LEN,
        num_speculative_tokens=NUM_DRAFTS,
        speculative_method="ngram_gpu",
    )
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
    core.is_mm_encoder_only = core.is_pooling_model = False
    core.log_stats = False
    core._weight_version = None
    core.check_for_draft_tokens = core.async_scheduling = True
    return core


def add_request(core: EngineCore) -> Request:
    params = SamplingParams(
        max_tokens=64, structured_outputs=StructuredOutputsParams(regex="x")
    )
    params.update_from_generation_config({}, EOS_TOKEN_ID)
    request = Request(
        request_id=REQ_ID,
        prompt_token_ids=[0] * PROMPT_LEN,
        mm_features=None,
        sampling_params=params,
        pooling_params=None,
    )
    assert request.structured_output_request is not None
    request.structured_output_request.grammar = Counting()
    request.status = RequestStatus.WAITING
    core.scheduler.add_request(request)
    return request


def test_drafts_of_a_row_that_was_left_out_are_masked(monkeypatch):
    """Near max_model_len a request waits until its drafts are verified. When it is
    scheduled again no output of it is pending, but its drafts are placeholders."""
    worker = CountingWorker()
    core = make_engine_core(worker, monkeypatch)
    add_request(core)
    while core.scheduler.has_requests():
        core.step_with_batch_queue()

    # Tokens 1 | 2, drafts 3 and 4 rejected | 3 and 4, one of them a draft.
    assert worker.masks == [[1 << 1], [1 << 2, 1 << 3, 1 << 4], [1 << 3, 1 << 4]]
