# SPDX-License-Identifier: Apache-2.0
"""What this line's engines have of their own."""

from __future__ import annotations

from typing import Any

MODES = ("none", "ngram_gpu sync", "ngram_gpu async")
"""What is compared; the first is without speculation."""

# The test platform has no memory to look at.
ARGUMENTS: dict[str, Any] = {"kv_cache_memory_bytes": 64 << 20}
"""What its engines are made with beside what those of every line are."""

EPISODES = 1
"""Random episodes of each kind in a default run."""


def use_model(runner: Any, model: Any) -> None:
    """Put a model in the place of a running engine's."""
    runner.model = runner.model_state.model = model


def use_plain_rejection(patch: Any) -> None:
    """The kernel runs, interpreted."""


def check_histories(engine: Any) -> None:
    """The runner's row of each request holds its tokens."""
    states, scheduler = engine.runner.req_states, engine.scheduler
    for name, row in states.req_id_to_index.items():
        request = scheduler.requests.get(name)
        # Until its first step has run, a request's tokens are staged.
        if request is not None and request.num_computed_tokens > 0:
            known = list(request.all_token_ids)
            assert states.all_token_ids.gpu[row, : len(known)].tolist() == known, name
