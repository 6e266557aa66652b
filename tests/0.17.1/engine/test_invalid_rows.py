# SPDX-License-Identifier: Apache-2.0
"""Steps in which a row's sampled tokens are all invalid (NaNs in the logits do that)."""

from __future__ import annotations

import random
from typing import Any

import pytest
from engines import GPU_ASYNC, GPU_SYNC, NGRAM, engine
from episodes import HIGH, LOW, continuation, with_table_model
from line import GreedyRule
from scenarios import greedy
from vllm.v1.sample import rejection_sampler

PLACEHOLDER = -1


class FaultyRule(GreedyRule):
    """Leaves some rows that verify drafts without a valid token."""

    def __init__(self, chance: float, invalid_id: int) -> None:
        self.pick, self.chance, self.invalid_id = random.Random(0), chance, invalid_id
        self.spoiled = 0

    def __getitem__(self, _grid: Any) -> Any:
        return self.spoil

    def spoil(self, output: Any, cumulative: Any, *rest: Any) -> None:
        self.launch(output, cumulative, *rest)
        start = 0
        for row, end in enumerate(cumulative.tolist()):
            if end > start and self.pick.random() < self.chance:
                output[row] = PLACEHOLDER
                output[row, 0] = self.invalid_id
                self.spoiled += 1
            start = end


def prompts() -> list[dict[str, list[int]]]:
    """Half of them repeat themselves from the start, so that drafts are there at once."""
    pick = random.Random(1)
    made = [pick.choices(range(LOW, HIGH), k=pick.randint(3, 30)) for _ in range(12)]
    return [{"prompt_token_ids": (p * 4)[:40] if i % 2 else p} for i, p in enumerate(made)]


@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("mode", [NGRAM, GPU_SYNC, GPU_ASYNC])
def test_row_without_a_token_is_repeated(mode, outside, monkeypatch):
    with engine(mode) as started:
        with_table_model(started, monkeypatch)
        vocabulary = started.runner.model_config.get_vocab_size()
        rule = FaultyRule(0.3, vocabulary if outside else PLACEHOLDER)
        monkeypatch.setattr(rejection_sampler, "rejection_greedy_sample_kernel", rule)
        run = started.run(prompts(), greedy(max_tokens=60))

    assert rule.spoiled > 20
    assert run.tokens == [continuation(p["prompt_token_ids"], 60) for p in prompts()]
