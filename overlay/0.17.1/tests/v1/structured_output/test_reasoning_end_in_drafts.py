# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""With speculative decoding, reasoning may end inside a draft. The grammar has to
hold right after its end, as it does without speculation."""

import pytest
import torch

from tests.v1.core.utils import EOS_TOKEN_ID, create_scheduler
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output.backend_types import StructuredOutputGrammar

THINK = 3
END = 9
ANSWER = [20, 21, 22, 23, 24]
NOT_ANSWER = 19
NUM_DRAFTS = 4
ANYTHING = -1
REQ_ID = "0"


class OneAnswer(StructuredOutputGrammar):
    """Allows ANSWER and nothing else."""

    def __init__(self) -> None:
        self.num_accepted = 0

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        for token in tokens:
            if self.is_terminated() or token != ANSWER[self.num_accepted]:
                return False
            self.num_accepted += 1
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        assert all(token >= 0 for token in tokens)
        rest = ANSWER[self.num_accepted :]
        same = [a == b for a, b in zip(tokens, rest)] + [False]
        return tokens[: same.index(False)]

    def rollback(self, num_tokens: int) -> None:
        self.num_accepted -= num_tokens
        assert self.num_accepted >= 0

    def fill_bitmask(self, bitmask: torch.Tensor, batch_index: int) -> None:
        # One word of 32 tokens is enough for this test's vocabulary.
        bitmask[batch_index] = 1 << ANSWER[self.num_accepted]

    def is_terminated(self) -> bool:
        return self.num_accepted == len(ANSWER)

    def reset(self) -> None:
        self.num_accepted = 0


class EndInDelta:
    """A parser that looks for the end among the new tokens, as most do."""

    def is_reasoning_end(self, input_ids) -> bool:
        return END in input_ids

    def is_reasoning_end_streaming(self, input_ids, delta_ids) -> bool:
        return END in delta_ids


class EndIsLast(EndInDelta):
    """A parser that looks at the whole history, whose end must be the last token."""

    def is_reasoning_end_streaming(self, input_ids, delta_ids) -> bool:
        return input_ids[-1] == END


class Uncopyable:
    def __deepcopy__(self, memo):
        raise AssertionError("The tokenizer must be shared.")


class EndAfterMark(EndInDelta):
    """A stateful parser: reasoning ends with the token after END. Its state is an
    object of its own, and it has a tokenizer like every parser."""

    def __init__(self) -> None:
        self.model_tokenizer = self.vocab = Uncopyable()
        self.marks = [False]

    def is_reasoning_end_streaming(self, input_ids, delta_ids) -> bool:
        self.marks.append(END in delta_ids)
        return self.marks.pop(0)


@pytest.fixture(params=[EndInDelta, EndIsLast])
def scheduler(request, monkeypatch) -> Scheduler:
    made = create_scheduler(
        num_speculative_tokens=NUM_DRAFTS, skip_tokenizer_init=True, max_model_len=128
    )
    manager = made.structured_output_manager
    manager.reasoner = request.param()
    monkeypatch.setattr(manager, "grammar_init", lambda request: None)
    manager._grammar_bitmask = torch.zeros(1 + NUM_DRAFTS, 1, dtype=torch.int32)
    return made


def add_request(scheduler: Scheduler) -> Request:
    params = SamplingParams(
        max_tokens=32, structured_outputs=StructuredOutputsParams(regex="x")
    )
    params.update_from_generation_config({}, EOS_TOKEN_ID)
    request = Request(
        request_id=REQ_ID,
        prompt_token_ids=[THINK] * 5,
        mm_features=None,
        sampling_params=params,
        pooling_params=None,
    )
    assert request.structured_output_request is not None
    request.structured_output_request.grammar = OneAnswer()
    request.status = RequestStatus.WAITING
    scheduler.add_request(request)
    return request


def masks(scheduler: Scheduler, output: SchedulerOutput) -> list[int]:
    """Per position the only token that is allowed, or ANYTHING."""
    grammar_output = scheduler.get_grammar_bitmask(output)
    assert grammar_output is not None
    words = grammar_output.grammar_bitmask[:, 0].tolist()
    return [word if word == -1 else word.bit_length() - 1 for word in words]


def finish_step(scheduler: Scheduler, output: SchedulerOutput, sampled: list[int]):
    scheduler.update_from_output(
        output,
        ModelRunnerOutput(
            req_ids=[REQ_ID],
            req_id_to_index={REQ_ID: 0},
            sampled_token_ids=[sampled],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        ),
    )


def step_with_drafts(scheduler: Scheduler, drafts: list[int]) -> SchedulerOutput:
    """Prefill, sample a thought, then schedule the drafts."""
    output = scheduler.schedule()
    assert masks(scheduler, output) == [ANYTHING]
    finish_step(scheduler, output, [THINK])
    scheduler.update_draft_token_ids(DraftTokenIds([REQ_ID], [drafts]))
    return scheduler.schedule()


@pytest.mark.parametrize("place", range(NUM_DRAFTS))
def test_masks_and_grammar_after_the_end(scheduler: Scheduler, place: int):
    request = add_request(scheduler)
    drafts = ([THINK] * place + [END] + ANSWER)[:NUM_DRAFTS]
    output = step_with_drafts(scheduler, drafts)
    num_after = NUM_DRAFTS - place
    assert masks(scheduler, output) == [ANYTHING] * (place + 1) + ANSWER[:num_after]
    # Filling the masks must leave the grammar as it was.
    grammar = request.structured_output_request.grammar
    assert grammar.num_accepted == 0

    # All drafts are right, and so is the token after them.
    finish_step(scheduler, output, [*drafts, ANSWER[num_after - 1]])
    assert request.structured_output_request.reasoning_ended
    assert grammar.num_accepted == num_after

    # From here on it is plain structured output.
    output = scheduler.schedule()
    assert masks(scheduler, output) == [ANSWER[num_after]]


def test_drafts_that_break_the_grammar(scheduler: Scheduler):
    request = add_request(scheduler)
    output = step_with_drafts(scheduler, [END, ANSWER[0], NOT_ANSWER, THINK])
    # Behind the draft that can't be right the masks don't matter.
    assert masks(scheduler, output)[:3] == [ANYTHING, *ANSWER[:2]]
    finish_step(scheduler, output, [END, *ANSWER[:2]])
    assert request.structured_output_request.grammar.num_accepted == 2


def test_rejected_end(scheduler: Scheduler):
    """Reasoning that ends in a draft which is not accepted has not ended."""
    request = add_request(scheduler)
    output = step_with_drafts(scheduler, [THINK, END, *ANSWER[:2]])
    assert masks(scheduler, output) == [ANYTHING] * 2 + ANSWER[:3]
    finish_step(scheduler, output, [THINK, THINK])
    assert not request.structured_output_request.reasoning_ended
    assert request.structured_output_request.grammar.num_accepted == 0
    output = scheduler.schedule()
    assert masks(scheduler, output) == [ANYTHING]


def test_end_as_the_last_token_of_a_step(scheduler: Scheduler):
    request = add_request(scheduler)
    output = step_with_drafts(scheduler, [THINK] * NUM_DRAFTS)
    assert masks(scheduler, output) == [ANYTHING] * (NUM_DRAFTS + 1)
    finish_step(scheduler, output, [THINK, THINK, END])
    assert request.structured_output_request.grammar.num_accepted == 0
    output = scheduler.schedule()
    assert masks(scheduler, output) == ANSWER[:1]


@pytest.mark.parametrize(
    "drafts, expected",
    [
        ([THINK, END, THINK, ANSWER[0]], [ANYTHING] * 3 + ANSWER[:2]),
        # The copy is left in another state than the parser.
        ([THINK, THINK, THINK, END], [ANYTHING] * 5),
    ],
)
def test_drafts_leave_the_state_of_a_parser_alone(
    scheduler: Scheduler, drafts: list[int], expected: list[int]
):
    parser = EndAfterMark()
    scheduler.structured_output_manager.reasoner = parser
    add_request(scheduler)
    output = step_with_drafts(scheduler, drafts)
    assert masks(scheduler, output) == expected
    assert parser.marks == [False]


def test_history_is_seen_as_it_was(scheduler: Scheduler, monkeypatch):
    """Each token comes with all tokens before it and none after it."""
    request = add_request(scheduler)
    seen = []

    def is_reasoning_end_streaming(input_ids, delta_ids):
        assert input_ids[-1:] == list(delta_ids)
        seen.append(list(input_ids))
        return False

    reasoner = scheduler.structured_output_manager.reasoner
    monkeypatch.setattr(
        reasoner, "is_reasoning_end_streaming", is_reasoning_end_streaming
    )
    output = step_with_drafts(scheduler, [11, 12])
    known = list(request.all_token_ids)
    seen.clear()
    masks(scheduler, output)
    assert seen == [known + [11], known + [11, 12]]
    seen.clear()
    finish_step(scheduler, output, [11, 13])
    assert seen == [known + [11], known + [11, 13]]
