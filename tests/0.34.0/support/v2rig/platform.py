# SPDX-License-Identifier: Apache-2.0
"""The platform class that vLLM loads."""

from __future__ import annotations

import torch
from cpurig import guards

from v2rig.bare import BarePlatform

guards.require_environment()
guards.skip_interpreted_overflow_checks()
guards.patch_language_once_a_launch()
# The stub of the one compiled operator that CPUWorker calls itself.
_lib = torch.library.Library("_C", "FRAGMENT")
_lib.define("init_cpu_memory_env(int[] nodes) -> ()")
_lib.impl("init_cpu_memory_env", lambda nodes: None, "CompositeExplicitAutograd")


CPU_WORKER = "vllm.v1.worker.cpu_worker.CPUWorker"


class RigPlatform(BarePlatform):
    """The platform whose attention is computed and whose streams keep order."""

    @classmethod
    def check_and_update_config(cls, vllm_config) -> None:
        super().check_and_update_config(vllm_config)
        if vllm_config.parallel_config.worker_cls == CPU_WORKER:
            vllm_config.parallel_config.worker_cls = "v2rig.worker.RigWorker"

    @classmethod
    def get_attn_backend_cls(cls, *args, **kwargs) -> str:
        return "v2rig.attention.TorchAttentionBackend"
