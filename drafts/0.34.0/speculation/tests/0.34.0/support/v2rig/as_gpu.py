# SPDX-License-Identifier: Apache-2.0
"""Runs vLLM's own GPU unit tests on the rig: ``pytest -p v2rig.as_gpu``.

For tests of kernels and of single objects, which skip themselves where there is
no GPU. Their kernels are interpreted and their streams are the rig's.
"""

from __future__ import annotations

import functools
from typing import Any

from cpurig.models.ours import TINY_LLAMA
from vllm.config import ModelConfig
from vllm.platforms import current_platform
from vllm.v1.worker.gpu import model_runner  # noqa: F401 (imported as for a CPU)

from v2rig import worker  # noqa: F401 (puts the stand-ins in place)

# The hub is out of reach; any small decoder will do for these tests.
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
platform = type(current_platform)
platform.is_cuda = platform.is_cuda_alike = lambda _self: True  # type: ignore[method-assign,assignment]
