# SPDX-License-Identifier: Apache-2.0
"""Environment and reports of the engine tests (tests/engine/harness.py)."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    "episodes", "fuzz", "line", "matrix", "real_model", "reasoning", "sampling", "tight_budget"
)

from harness import figures, pytest_terminal_summary  # noqa: E402

__all__ = ["figures", "pytest_terminal_summary"]
