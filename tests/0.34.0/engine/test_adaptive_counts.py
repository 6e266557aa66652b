# SPDX-License-Identifier: Apache-2.0
"""With adaptive verification, only the drafts that were verified are counted.

The manager runs without CUDA graphs here, and its costs are given instead of
measured: verifying is so dear that most drafts are trimmed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from engines import GPU_ASYNC, NONE, Engine, engine
from scenarios import greedy, loop, noise

METHODS: dict[str, dict[str, Any]] = {
    "suffix": {"suffix_decoding_max_cached_requests": 0},
    "ngram_gpu": {"prompt_lookup_min": 2, "prompt_lookup_max": 4},
}
# Text that repeats and text that does not, so that some drafts are worth it.
PROMPTS = [loop(1, 4, 40), noise(2, 60), loop(5, 7, 30), noise(3, 33)]


def _dear(tokens: int) -> float:
    return 1.0 + 0.05 * tokens


def _hopeless(tokens: int) -> float:
    return 1.0 + 1e6 * tokens


@pytest.fixture
def without_graphs(monkeypatch) -> Iterator[Callable[[Callable[[int], float]], None]]:
    """Let the manager run where there are no graphs, at the costs that are given."""
    from vllm.config import VllmConfig
    from vllm.v1.worker.gpu import model_runner

    plain = model_runner.GPUModelRunner.initialize_kv_cache

    def at(cost: Callable[[int], float]) -> None:
        def initialize_kv_cache(self: Any, *args: Any, **kwargs: Any) -> None:
            plain(self, *args, **kwargs)
            manager = self.adaptive_verification
            manager._confidence_probs.fill_(1.0)
            curve = [(n, cost(n)) for n in range(1, 2049)]
            manager.set_cost_curves([(1, 0.0), (2, 0.0)], curve)

        monkeypatch.setattr(model_runner.GPUModelRunner, "initialize_kv_cache", initialize_kv_cache)

    monkeypatch.setattr(VllmConfig, "_validate_adaptive_verification", lambda self: None)
    monkeypatch.setattr(
        model_runner, "resolve_adaptive_cudagraph_mode", lambda mode, **kwargs: mode
    )
    yield at


def _count_verified(started: Engine, verified: list[int]) -> None:
    """Add up the logits rows beyond one a request: the drafts of that step."""
    plain = started.runner.sample

    def sample(hidden_states: Any, input_batch: Any, grammar: Any) -> Any:
        rows = input_batch.logits_indices.shape[0] - input_batch.num_reqs
        verified.append(int(rows))
        return plain(hidden_states, input_batch, grammar)

    started.runner.sample = sample


@pytest.fixture(scope="module")
def texts() -> list[list[int]]:
    with engine(NONE) as plain:
        return plain.run(PROMPTS, greedy(max_tokens=48)).tokens


@pytest.mark.parametrize(
    "method, cost, asynchronous",
    [
        ("suffix", _dear, False),
        ("suffix", _hopeless, True),
        ("ngram_gpu", _dear, True),
        ("ngram_gpu", _hopeless, False),
    ],
)
def test_trimmed_drafts_are_not_counted(texts, without_graphs, method, cost, asynchronous, figures):
    without_graphs(cost)
    verified: list[int] = []
    options = {
        "num_speculative_tokens": 3,
        "enable_adaptive_verification": True,
        **METHODS[method],
    }
    mode = GPU_ASYNC if (method, asynchronous) == ("ngram_gpu", True) else f"{method} sync"
    with engine(mode, speculation=options, async_scheduling=asynchronous) as started:
        assert started.runner.adaptive_verification is not None
        _count_verified(started, verified)
        run = started.run(PROMPTS, greedy(max_tokens=48))

    assert run.tokens == texts
    counts = run.counts
    figures.add(
        "Draft counts, adaptive verification",
        method=method,
        mode="async" if asynchronous else "sync",
        cost=cost.__name__.strip("_"),
        scheduled=3 * (run.row_steps - len(PROMPTS)),
        verified=sum(verified),
        **{"draft tokens": counts.draft_tokens},
        accepted=counts.accepted,
    )
    assert counts.draft_tokens <= sum(verified) < 3 * (run.row_steps - len(PROMPTS))
    assert counts.accepted <= counts.draft_tokens
    if cost is _hopeless:
        assert counts.draft_tokens == 0
    else:
        assert counts.accepted > 5
