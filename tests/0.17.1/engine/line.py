# SPDX-License-Identifier: Apache-2.0
"""What this line's engines have of their own."""

from __future__ import annotations

from typing import Any

MODES = ("none", "ngram sync", "ngram_gpu sync", "ngram_gpu async")
"""What is compared; the first is without speculation."""

ARGUMENTS: dict[str, Any] = {}
"""What its engines are made with beside what those of every line are."""

EPISODES = 4
"""Random episodes of each kind in a default run."""


class GreedyRule:
    """rejection_greedy_sample_kernel, without the interpreter."""

    def __getitem__(self, _grid):
        return self.launch

    @staticmethod
    def launch(output, cumulative, drafts, argmax, bonus, is_greedy, _max_spec_len) -> None:
        assert is_greedy is None or bool(is_greedy.all())
        start = 0
        for row, end in enumerate(cumulative.tolist()):
            right = argmax[start:end].to(output.dtype)
            wrong = (drafts[start:end] != right).nonzero()
            if len(wrong):
                taken = int(wrong[0]) + 1
                output[row, :taken] = right[:taken]
            else:
                output[row, : end - start] = right
                output[row, end - start] = bonus[row, 0]
            start = end


def use_model(runner: Any, model: Any) -> None:
    """Put a model in the place of a running engine's."""
    runner.model = model


def use_plain_rejection(patch: Any) -> None:
    """Let drafts be verified without the interpreter."""
    from vllm.v1.sample import rejection_sampler

    patch.setattr(rejection_sampler, "rejection_greedy_sample_kernel", GreedyRule())


def slots_of(runner: Any, row: int, count: int) -> list[int]:
    """Where the token buffer keeps a row's first tokens."""
    buffer = runner.drafter.token_buffer
    table = runner.input_batch.block_table[buffer.kv_cache_gid].get_numpy_array()
    size = buffer.block_size
    return [int(table[row, p // size]) * size + p % size for p in range(count)]


def check_histories(engine: Any) -> None:
    """The token beside each KV slot is the history's token at that position."""
    runner, scheduler = engine.runner, engine.scheduler
    buffer = runner.drafter.token_buffer
    for name, row in runner.input_batch.req_id_to_index.items():
        request = scheduler.requests.get(name)
        if request is None or request.num_computed_tokens == 0:
            continue
        # The last token has no slot before the next step.
        known = min(request.num_computed_tokens, request.num_tokens - 1)
        slots = slots_of(runner, row, known)
        assert buffer.tokens[slots].tolist() == list(request.all_token_ids[:known]), name
