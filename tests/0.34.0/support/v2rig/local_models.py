# SPDX-License-Identifier: Apache-2.0
"""vLLM's unit tests without the hub: ``pytest -p v2rig.local_models``."""

from __future__ import annotations

import functools
from typing import Any

from cpurig.models.ours import TINY_LLAMA
from vllm.config import ModelConfig

# Any small decoder will do for the tests that name these.
STAND_INS = {"facebook/opt-125m": TINY_LLAMA}


def _choose_local_models() -> None:
    plain = ModelConfig.__init__

    @functools.wraps(plain)
    def __init__(self: ModelConfig, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("model") in STAND_INS:
            kwargs["model"] = STAND_INS[kwargs["model"]]
        plain(self, *args, **kwargs)

    ModelConfig.__init__ = __init__  # type: ignore[method-assign]


_choose_local_models()
