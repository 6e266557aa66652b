# SPDX-License-Identifier: Apache-2.0
"""What this line's engines have of their own."""

from __future__ import annotations

from typing import Any

MODES = ("none", "ngram sync", "ngram_gpu sync", "ngram_gpu async")
"""What is compared; the first is without speculation."""

ARGUMENTS: dict[str, Any] = {}
"""What its engines are made with beside what those of every line are."""
