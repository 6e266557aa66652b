# SPDX-License-Identifier: Apache-2.0
"""Sampled runs (tests/engine/sampling.py)."""

from __future__ import annotations

from sampling import (
    test_odds_are_those_without_speculation,
    test_seeded_tokens_are_equal_where_every_step_has_the_same_drafts,
    test_the_measure_tells_different_odds_apart,
    without,
)

__all__ = [
    "test_odds_are_those_without_speculation",
    "test_seeded_tokens_are_equal_where_every_step_has_the_same_drafts",
    "test_the_measure_tells_different_odds_apart",
    "without",
]
