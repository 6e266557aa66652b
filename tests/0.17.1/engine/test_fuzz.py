# SPDX-License-Identifier: Apache-2.0
"""Random episodes (tests/engine/fuzz.py)."""

from __future__ import annotations

from fuzz import (
    table_engine,
    test_episode,
)

__all__ = [
    "table_engine",
    "test_episode",
]
