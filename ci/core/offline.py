"""Whether the user wants no network at all."""

from __future__ import annotations

import os
from collections.abc import Mapping


def offline(env: Mapping[str, str] = os.environ) -> bool:
    """Whether uv, and with it this tool, is told to use no network."""
    return is_true(env.get("UV_OFFLINE"))


def is_true(value: str | None) -> bool:
    """Whether a setting of pip's or uv's is switched on."""
    return (value or "").strip().lower() in ("1", "true", "yes", "on", "t", "y")
