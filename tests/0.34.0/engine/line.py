# SPDX-License-Identifier: Apache-2.0
"""What this line's engines have of their own."""

from __future__ import annotations

from typing import Any

MODES = ("none", "ngram_gpu sync", "ngram_gpu async")
"""What is compared; the first is without speculation."""

# The test platform has no memory to look at.
ARGUMENTS: dict[str, Any] = {"kv_cache_memory_bytes": 64 << 20}
"""What its engines are made with beside what those of every line are."""
