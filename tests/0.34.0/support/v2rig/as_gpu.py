# SPDX-License-Identifier: Apache-2.0
"""Runs vLLM's own GPU unit tests on the rig: ``pytest -p v2rig.as_gpu``.

For tests of kernels and of single objects, which skip themselves where there is
no GPU. Their kernels are interpreted and their streams are the rig's.
"""

from __future__ import annotations

import pytest
import torch
from vllm.platforms import current_platform
from vllm.v1.worker.gpu import model_runner  # noqa: F401 (imported as for a CPU)

from v2rig import local_models, worker  # noqa: F401 (put the stand-ins in place)

platform = type(current_platform)
platform.is_cuda = platform.is_cuda_alike = lambda _self: True  # type: ignore[method-assign,assignment]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Modules that name their device get the one that there is."""
    for module in {getattr(item, "module", None) for item in items}:
        if getattr(module, "DEVICE", None) == torch.device("cuda"):
            module.DEVICE = torch.device("cpu")
