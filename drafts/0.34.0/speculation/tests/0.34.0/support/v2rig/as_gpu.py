# SPDX-License-Identifier: Apache-2.0
"""Runs vLLM's own GPU unit tests on the rig: ``pytest -p v2rig.as_gpu``.

For tests of kernels and of single objects, which skip themselves where there is
no GPU. Their kernels are interpreted and their streams are the rig's.
"""

from __future__ import annotations

from vllm.platforms import current_platform
from vllm.v1.worker.gpu import model_runner  # noqa: F401 (imported as for a CPU)

from v2rig import local_models, worker  # noqa: F401 (put the stand-ins in place)

platform = type(current_platform)
platform.is_cuda = platform.is_cuda_alike = lambda _self: True  # type: ignore[method-assign,assignment]
