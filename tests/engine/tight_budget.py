# SPDX-License-Identifier: Apache-2.0
"""Draft padding where tokens or blocks are scarce: no mode takes more steps than none."""

from __future__ import annotations

import random
from typing import Any

import pytest
from engines import GPU_ASYNC, GPU_SYNC, NONE, Run, engine
from episodes import HIGH, LOW, continuation, with_table_model
from scenarios import greedy

MODES = (NONE, GPU_SYNC, GPU_ASYNC)


def prompts(count: int) -> list[dict[str, list[int]]]:
    pick = random.Random(count)
    return [
        {"prompt_token_ids": pick.choices(range(LOW, HIGH), k=pick.randint(4, 24))}
        for _ in range(count)
    ]


def runs(patch: Any, count: int, max_tokens: int, k: int, **arguments: Any) -> dict[str, Run]:
    speculation = {
        "num_speculative_tokens": k,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 4,
    }
    made = {}
    for mode in MODES:
        with engine(mode, speculation=speculation, **arguments) as started, patch.context() as m:
            with_table_model(started, m)
            made[mode] = started.run(prompts(count), greedy(max_tokens=max_tokens))
        right = [continuation(p["prompt_token_ids"], max_tokens) for p in prompts(count)]
        assert made[mode].tokens == right, mode
    return made


@pytest.mark.parametrize("k, budget", [(20, 16), (6, 20)])
def test_padding_leaves_a_token_to_every_row(k, budget, monkeypatch, figures):
    made = runs(monkeypatch, 12, 40, k, max_num_batched_tokens=budget, max_num_seqs=8)
    steps = {mode: run.steps for mode, run in made.items()}
    print(steps)
    assert steps[GPU_ASYNC] <= steps[NONE], steps


@pytest.mark.parametrize(
    "k, arguments",
    [
        # The smallest budget that vLLM takes: a token for each row.
        (20, {"max_num_batched_tokens": 8, "max_num_seqs": 8}),
        # The most drafts that the context has room for.
        (47, {"max_model_len": 48, "max_num_seqs": 8}),
    ],
    ids=["tokens", "context"],
)
def test_tokens_are_right_at_the_limits(k, arguments, monkeypatch):
    runs(monkeypatch, 12, 20, k, **arguments)


def test_padding_preempts_no_one(monkeypatch):
    few = {"max_model_len": 128, "num_gpu_blocks_override": 14, "block_size": 16}
    made = runs(monkeypatch, 64, 40, 6, **few)
    preemptions = {mode: run.preemptions for mode, run in made.items()}
    print(preemptions, {m: r.steps for m, r in made.items()})
    assert preemptions[GPU_ASYNC] <= preemptions[NONE], preemptions
