# SPDX-License-Identifier: Apache-2.0
"""Grammars behind reasoning, and in drafts (tests/engine/reasoning.py)."""

from __future__ import annotations

from reasoning import (
    runs,
    test_reasoning_ended_at_every_place_of_a_step,
    test_the_answer_obeys_its_grammar,
    test_tokens_are_those_without_speculation,
)

__all__ = [
    "runs",
    "test_reasoning_ended_at_every_place_of_a_step",
    "test_the_answer_obeys_its_grammar",
    "test_tokens_are_those_without_speculation",
]
