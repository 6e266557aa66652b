# SPDX-License-Identifier: Apache-2.0
"""What is counted as drafted and accepted is what was proposed, not the filler.

The expected counts come from the texts alone: greedy requests know their future, so
every round of every request can be gone through on the host.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from engines import GPU_ASYNC, NONE, Counts, engine
from scenarios import greedy, loop, mixed, noise

K, SHORTEST, LONGEST = 3, 2, 4
NUM_TOKENS = 40
PROMPTS = [loop(1, 4, 40), noise(2, 60), *mixed(3, 8)]
NGRAM = {"num_speculative_tokens": K, "prompt_lookup_min": SHORTEST, "prompt_lookup_max": LONGEST}
SUFFIX = {
    "num_speculative_tokens": K,
    "suffix_decoding_max_tree_depth": 8,
    # No memory of other requests: their order would decide what is drafted.
    "suffix_decoding_max_cached_requests": 0,
}


def ngram_drafts(history: list[int]) -> list[int]:
    """What follows the last place of the longest n-gram that ends the history."""
    end = len(history)
    for n in range(LONGEST, SHORTEST - 1, -1):
        for start in range(end - n - 1, -1, -1):
            if history[start : start + n] == history[end - n :]:
                return history[start + n : start + n + K]
    return []


def suffix_drafts(history: list[int]) -> list[int]:
    """What follows the last place of the longest suffix that occurs earlier."""
    best_length = best_place = 0
    for place in range(1, len(history)):
        length = 0
        while length < min(8, place) and history[place - 1 - length] == history[-1 - length]:
            length += 1
        if length and length >= best_length:
            best_length, best_place = length, place
    return history[best_place : best_place + K] if best_length else []


def expected_counts(prompt: list[int], text: list[int], find: Callable) -> Counts:
    """Go through the rounds of one request. `text` is longer than what is asked for
    by the drafts of the last round."""
    drafts = draft_tokens = accepted = 0
    per_position = [0] * K
    known = 1
    while known < NUM_TOKENS:
        history = prompt + text[:known]
        proposed = find(history)
        filled = proposed + [history[-1]] * (K - len(proposed))
        right = 0
        while right < K and filled[right] == text[known + right]:
            right += 1
        drafts += bool(proposed)
        draft_tokens += len(proposed)
        # Filler that is right makes the round longer, but is no accepted draft.
        accepted += min(right, len(proposed))
        for position in range(min(right, len(proposed))):
            per_position[position] += 1
        known += 1 + right
    return Counts(drafts, draft_tokens, accepted, tuple(per_position))


def total(counts: list[Counts]) -> Counts:
    return Counts(
        sum(c.drafts for c in counts),
        sum(c.draft_tokens for c in counts),
        sum(c.accepted for c in counts),
        tuple(map(sum, zip(*(c.per_position for c in counts), strict=True))),
    )


@pytest.fixture(scope="module")
def texts() -> list[list[int]]:
    """Every request's text without speculation, with the drafts of a last round."""
    with engine(NONE) as plain:
        return plain.run(PROMPTS, greedy(max_tokens=NUM_TOKENS + K)).tokens


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(
    "method, options, find",
    [("ngram_gpu", NGRAM, ngram_drafts), ("suffix", SUFFIX, suffix_drafts)],
    ids=["ngram_gpu", "suffix"],
)
def test_only_proposed_drafts_are_counted(texts, method, options, find, asynchronous, figures):
    mode = GPU_ASYNC if (method, asynchronous) == ("ngram_gpu", True) else f"{method} sync"
    with engine(mode, speculation=options, async_scheduling=asynchronous) as started:
        run = started.run(PROMPTS, greedy(max_tokens=NUM_TOKENS))

    assert run.tokens == [text[:NUM_TOKENS] for text in texts]
    expected = total(
        [
            expected_counts(prompt["prompt_token_ids"], text, find)
            for prompt, text in zip(PROMPTS, texts, strict=True)
        ]
    )
    figures.add(
        "Draft counts",
        mode=f"{method} {'async' if asynchronous else 'sync'}",
        rounds=run.row_steps - len(PROMPTS),
        drafts=run.counts.drafts,
        **{"draft tokens": run.counts.draft_tokens},
        accepted=run.counts.accepted,
    )
    assert expected.accepted > 20
    assert run.counts == expected
