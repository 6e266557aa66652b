# SPDX-License-Identifier: Apache-2.0
"""The scenarios in every mode (tests/engine/matrix.py), and against the host's proposer."""

from __future__ import annotations

from engines import GPU_SYNC, NGRAM
from matrix import (
    results,
    scenarios_of,
    test_async_counts_are_honest,
    test_speculation_took_place,
    test_tokens_are_those_without_speculation,
)

__all__ = [
    "results",
    "test_async_counts_are_honest",
    "test_speculation_took_place",
    "test_tokens_are_those_without_speculation",
]


def test_sync_counts_are_those_of_the_host_proposer(results):
    """The same drafts on the same histories: the counts are equal, not just close."""
    for scenario in scenarios_of(results):
        host, device = results[scenario.name, NGRAM], results[scenario.name, GPU_SYNC]
        if host.preemptions or "max_model_len" in scenario.name:
            # The host proposer stops the whole batch once one row is near the
            # limit; the device cuts row by row and drafts at least as much.
            assert device.counts.draft_tokens >= host.counts.draft_tokens
        else:
            assert device.counts == host.counts, scenario.name
