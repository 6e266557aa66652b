# SPDX-License-Identifier: Apache-2.0
"""Sampled runs: the same draws where the schedule is the same, else the same odds."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from engines import GPU_ASYNC, GPU_SYNC, NONE, Engine, engine
from scenarios import tokens

FEW = [40, 41, 42, 43]
# Every token that may be sampled occurs in the prompt, with another one behind it:
# with n = 1 and k = 1 each row has exactly one draft in every step.
PROMPT = tokens([40, 41, 43, 42, 42, 40, 43, 41, 40])
ALWAYS_ONE = {"num_speculative_tokens": 1, "prompt_lookup_min": 1, "prompt_lookup_max": 1}
SOMETIMES = {"num_speculative_tokens": 3, "prompt_lookup_min": 2, "prompt_lookup_max": 3}
# 0.999 quantile of the chi-square distribution with 63 degrees of freedom.
CHI_SQUARE_63 = 103.44


def sampled(seed: int | None, **options: Any) -> Any:
    from vllm import SamplingParams

    return SamplingParams(
        temperature=1.4,
        seed=seed,
        ignore_eos=True,
        allowed_token_ids=FEW,
        **{"max_tokens": 24, **options},
    )


def test_seeded_tokens_are_equal_where_every_step_has_the_same_drafts():
    """Isolated: a seeded request draws per verified draft, so the number of drafts
    in a step, which the schedule decides, is all that tells the modes apart."""
    seen = {}
    for mode in (GPU_SYNC, GPU_ASYNC):
        with engine(mode, speculation=ALWAYS_ONE) as started:
            params = [sampled(seed) for seed in range(6)]
            run = started.run([PROMPT] * len(params), params)
            seen[mode] = run.tokens
            # Each row of each step but the first one verified one real draft.
            assert run.counts.draft_tokens == run.counts.drafts
            assert run.counts.accepted > 0
            # A seed means what it says within one mode.
            assert started.run([PROMPT] * len(params), params).tokens == run.tokens
    assert seen[GPU_SYNC] == seen[GPU_ASYNC]
    assert len(set(map(tuple, seen[GPU_SYNC]))) > 1


def _triples(started: Engine, first_seed: int, count: int) -> Counter:
    """How often three tokens follow the prompt."""
    params = [sampled(first_seed + i, max_tokens=3) for i in range(count)]
    return Counter(map(tuple, started.run([PROMPT] * count, params).tokens))


def _chi_square(one: Counter, other: Counter) -> float:
    """Of two samples of the same size, over the cells seen in either."""
    return sum((one[c] - other[c]) ** 2 / (one[c] + other[c]) for c in one | other)


@pytest.fixture(scope="module")
def without() -> Counter:
    with engine(NONE) as started:
        return _triples(started, 10_000, 640)


def test_odds_are_those_without_speculation(without, figures):
    with engine(GPU_ASYNC, speculation=SOMETIMES) as started:
        before = started.counts()
        with_drafts = _triples(started, 50_000, 640)
        counts = started.counts().since(before)
    distance = _chi_square(without, with_drafts)
    figures.add(
        "Sampling, three tokens out of four, 640 requests",
        cells=len(without | with_drafts),
        chi_square=round(distance, 1),
        limit=CHI_SQUARE_63,
        drafted=counts.draft_tokens,
        accepted=counts.accepted,
    )
    assert counts.accepted > 100
    assert distance < CHI_SQUARE_63


def test_the_measure_tells_different_odds_apart(without):
    """Against itself with one token renamed, the distance must be far off."""
    shifted = Counter({tuple(40 + (t - 39) % 4 for t in c): n for c, n in without.items()})
    assert _chi_square(without, shifted) > 2 * CHI_SQUARE_63
