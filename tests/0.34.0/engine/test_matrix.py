# SPDX-License-Identifier: Apache-2.0
"""The scenarios in every mode (tests/engine/matrix.py)."""

from __future__ import annotations

from matrix import (
    results,
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
