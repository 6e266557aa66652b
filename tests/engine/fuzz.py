# SPDX-License-Identifier: Apache-2.0
"""Random arrivals, lengths, aborts, resets and limits: right tokens, right buffer, no crash."""

from __future__ import annotations

import os

import pytest
from engines import GPU_ASYNC, GPU_SYNC, Engine, engine
from episodes import Episode, with_outputs_at_once, with_table_model
from line import EPISODES

# Of each kind: in a default run (line.py), and with --thorough. More by hand:
# NGRAM_FUZZ_SEEDS=1000.
SEEDS = int(os.environ.get("NGRAM_FUZZ_SEEDS", "56"))
KINDS = {
    "roomy": {"max_model_len": 256},
    "few blocks": {
        "max_model_len": 160,
        "num_gpu_blocks_override": 12,
        "scheduling_policy": "priority",
    },
    "short, chunks of 48, k=5": {
        "max_model_len": 72,
        "max_num_batched_tokens": 48,
        "speculation": {
            "num_speculative_tokens": 5,
            "prompt_lookup_min": 1,
            "prompt_lookup_max": 3,
        },
    },
    "no prefix cache, 3 rows, k=1": {
        "max_model_len": 128,
        "max_num_seqs": 3,
        "enable_prefix_caching": False,
        "speculation": {
            "num_speculative_tokens": 1,
            "prompt_lookup_min": 2,
            "prompt_lookup_max": 2,
        },
    },
}


# Sync scheduling has fewer ways to go wrong: the kind that preempts.
RUNS = [(GPU_ASYNC, kind) for kind in KINDS] + [(GPU_SYNC, "few blocks")]


@pytest.fixture(scope="module", params=RUNS, ids=lambda run: ", ".join(run))
def table_engine(request):
    mode, kind = request.param
    with pytest.MonkeyPatch.context() as patch, engine(mode, **KINDS[kind]) as made:
        with_outputs_at_once(patch, chance=0.3)
        yield with_table_model(made, patch), kind


PARTS = [
    pytest.param(part, marks=pytest.mark.slow if part >= EPISODES else ())
    for part in range(SEEDS // len(KINDS))
]


@pytest.mark.parametrize("part", PARTS)
def test_episode(table_engine: tuple[Engine, str], part: int, figures):
    started, kind = table_engine
    before, steps = started.counts(), started.steps
    preempted = int(started.metric("num_preemptions"))
    seed = 1000 * (1 + list(KINDS).index(kind)) + part
    Episode(started, seed).run()
    counts = started.counts().since(before)
    assert counts.accepted <= counts.draft_tokens
    preempted = int(started.metric("num_preemptions")) - preempted
    if (kind, part) == ("few blocks", 2):
        # A busy one: without a preemption it would not be what it is for.
        assert preempted > 0
    figures.add(
        "Fuzz",
        mode=started.mode,
        engine=kind,
        seed=seed,
        steps=started.steps - steps,
        drafted=counts.draft_tokens,
        accepted=counts.accepted,
        preempted=preempted,
    )
