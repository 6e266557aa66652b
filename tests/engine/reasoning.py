# SPDX-License-Identifier: Apache-2.0
"""Reasoning that ends inside a draft: the grammar holds from right behind its end.

And grammars hold for every draft, however the steps of async scheduling overlap.
"""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
import torch
from cpurig.models.vocab import llama_tokenizer
from engines import GPU_ASYNC, NONE, engine
from episodes import TableModel, with_outputs_at_once, with_table_model
from line import MODES, use_model
from vllm.reasoning import ReasoningParserManager
from vllm.reasoning.basic_parsers import BaseThinkingReasoningParser

TOKENIZER = llama_tokenizer()
START, END = TOKENIZER.convert_tokens_to_ids(["<|user|>", "<|system|>"])
THOUGHT = list(range(300, 309))
LETTERS = TOKENIZER.convert_tokens_to_ids(list("abcdabcd"))
STORY = [*THOUGHT, END, *LETTERS]
ANSWERS = ["(ab|cd){2,6}", "(ba|dc){2,4}", "a(b|x)c*d{3}"]
DRAFTS = {"num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}


class TokenParser(BaseThinkingReasoningParser):
    """The kind that looks for the end token in what is new."""

    start_token, end_token = "<|user|>", "<|system|>"


class HistoryParser(TokenParser):
    """The kind that looks at all tokens each time."""

    def is_reasoning_end_streaming(self, input_ids, delta_ids) -> bool:
        return self.is_reasoning_end(list(input_ids))


ReasoningParserManager.register_module("token", module=TokenParser)
ReasoningParserManager.register_module("history", module=HistoryParser)
# Each step's output is there before the next step is scheduled.
AT_ONCE = "ngram_gpu async, at once"
RUNS = [
    *(("token", mode) for mode in (*MODES, AT_ONCE)),
    *(("history", mode) for mode in (NONE, GPU_ASYNC)),
]
SPECULATIVE = [(parser, mode) for parser, mode in RUNS if mode != NONE]


class StoryModel(TableModel):
    """Tells STORY over and over; where a grammar forbids a word, the lowest id is next."""

    def forward(self, input_ids, positions, **_rest) -> torch.Tensor:
        assert bool(((input_ids >= 0) & (input_ids < self.vocabulary)).all())
        following = torch.full((self.vocabulary,), THOUGHT[0])
        for now, then in zip(THOUGHT, [*THOUGHT[1:], END], strict=True):
            following[now] = then
        for letter, then in zip("abcd", "bcda", strict=True):
            ids = TOKENIZER.convert_tokens_to_ids([letter, then])
            following[ids[0]] = ids[1]
        following[END] = LETTERS[0]
        return following[input_ids.long()].unsqueeze(1)


def work(seed: int = 3, count: int = 27) -> tuple[list[Any], list[Any]]:
    """Prompts from which drafts cross the end, at every place of the draft.

    Some words are others in the prompt: drafts that end reasoning where the model
    does not, that do not where it does, and that break the grammar behind it.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    pick = random.Random(seed)
    prompts, params = [], []
    for i in range(count):
        told = list(STORY)
        for place in range(len(told)):
            if i >= len(THOUGHT) and pick.random() < 0.15:
                told[place] = pick.choice([END, *LETTERS, *THOUGHT])
        begun = THOUGHT[: 1 + i % len(THOUGHT)]
        prompts.append({"prompt_token_ids": [*told, START, *begun]})
        grammar = StructuredOutputsParams(regex=ANSWERS[i % len(ANSWERS)])
        # Every fifth one is free, so that rows with and without a grammar mix.
        kind = {} if i % 5 == 4 else {"structured_outputs": grammar}
        params.append(SamplingParams(temperature=0, max_tokens=40, ignore_eos=not kind, **kind))
    return prompts, params


def told(mode: str, parser: str, patch: pytest.MonkeyPatch) -> tuple[list[list[int]], set[int]]:
    """Everyone's tokens, and how far before the end of their step reasoning ended."""
    prompts, params = work()
    options = {"structured_outputs_config": {"backend": "xgrammar", "reasoning_parser": parser}}
    behind = set()
    if mode == AT_ONCE:
        mode = GPU_ASYNC
        with_outputs_at_once(patch, chance=1.0)
    with engine(mode, speculation=DRAFTS, num_gpu_blocks_override=200, **options) as started:
        with_table_model(started, patch)
        use_model(started.runner, StoryModel(started.runner.model.vocabulary))
        scheduler = started.scheduler
        plain = scheduler._update_request_with_output

        def update(request, token_ids, **options):
            if request.use_structured_output and END in token_ids:
                behind.add(len(token_ids) - 1 - token_ids.index(END))
            return plain(request, token_ids, **options)

        patch.setattr(scheduler, "_update_request_with_output", update)
        return started.run(prompts, params).tokens, behind


@pytest.fixture(scope="module")
def runs():
    made = {}
    for parser, mode in RUNS:
        with pytest.MonkeyPatch.context() as patch:
            made[parser, mode] = told(mode, parser, patch)
    return made


def test_the_answer_obeys_its_grammar(runs):
    for tokens, _ in runs.values():
        for row, params in zip(tokens, work()[1], strict=True):
            if params.structured_outputs:
                assert END in row
                answer = TOKENIZER.decode(row[row.index(END) + 1 :], skip_special_tokens=True)
                assert re.fullmatch(params.structured_outputs.regex, answer), answer


@pytest.mark.parametrize("parser, mode", SPECULATIVE)
def test_tokens_are_those_without_speculation(runs, parser, mode):
    assert runs[parser, mode][0] == runs[parser, NONE][0]


@pytest.mark.parametrize("parser, mode", SPECULATIVE)
def test_reasoning_ended_at_every_place_of_a_step(runs, parser, mode):
    """It would prove nothing if no draft went past the end."""
    assert runs[parser, NONE][1] == {0}
    assert runs[parser, mode][1] == {0, 1, 2, 3, 4}
