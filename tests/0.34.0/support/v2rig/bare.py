# SPDX-License-Identifier: Apache-2.0
"""A platform without compiled operators, whose attention computes nothing.

The test platform builds on it; the benchmark of a step's host time uses it as it is.
"""

from __future__ import annotations

import os
from typing import Any

from vllm.platforms.cpu import CpuPlatform


class BarePlatform(CpuPlatform):
    """CpuPlatform without compiled operators, with async scheduling."""

    @classmethod
    def import_kernels(cls) -> None:
        return None

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        asked = vllm_config.scheduler_config.async_scheduling
        backend = vllm_config.parallel_config.distributed_executor_backend
        preload = os.environ.get("LD_PRELOAD")
        super().check_and_update_config(vllm_config)
        vllm_config.scheduler_config.async_scheduling = asked
        vllm_config.parallel_config.distributed_executor_backend = backend
        vllm_config.compilation_config.custom_ops = ["none"]
        if preload is None:
            os.environ.pop("LD_PRELOAD", None)
        else:
            os.environ["LD_PRELOAD"] = preload

    @classmethod
    def get_attn_backend_cls(cls, *args: Any, **kwargs: Any) -> str:
        return "v2rig.empty_attention.EmptyAttentionBackend"

    @classmethod
    def num_compute_units(cls, device_id: int = 0) -> int:
        return 1
