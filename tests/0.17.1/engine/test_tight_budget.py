# SPDX-License-Identifier: Apache-2.0
"""Draft padding where tokens or blocks are scarce (tests/engine/tight_budget.py)."""

from __future__ import annotations

from tight_budget import (
    test_padding_leaves_a_token_to_every_row,
    test_padding_preempts_no_one,
    test_tokens_are_right_at_the_limits,
)

__all__ = [
    "test_padding_leaves_a_token_to_every_row",
    "test_padding_preempts_no_one",
    "test_tokens_are_right_at_the_limits",
]
