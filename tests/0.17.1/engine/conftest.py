# SPDX-License-Identifier: Apache-2.0
"""Environment and reports of the engine tests (tests/engine/harness.py)."""

from __future__ import annotations

from harness import figures, pytest_terminal_summary

__all__ = ["figures", "pytest_terminal_summary"]
