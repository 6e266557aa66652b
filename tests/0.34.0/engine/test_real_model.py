# SPDX-License-Identifier: Apache-2.0
"""A real small model in every mode (tests/engine/real_model.py)."""

from __future__ import annotations

from real_model import (
    runs,
    test_counts_agree,
    test_fewer_steps_per_token,
    test_same_text_in_every_mode,
)

__all__ = [
    "runs",
    "test_counts_agree",
    "test_fewer_steps_per_token",
    "test_same_text_in_every_mode",
]
