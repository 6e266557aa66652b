# SPDX-License-Identifier: Apache-2.0
"""The platform class that vLLM loads."""

from __future__ import annotations

import torch
from vllm.platforms.cpu import CpuPlatform

from cpurig import copies, guards

guards.require_environment()
guards.let_pin_memory_pass()
guards.let_interpreter_take_bools()
guards.skip_interpreted_overflow_checks()
guards.patch_language_once_a_launch()
copies.replace_stream_types()
copies.hook_tensor_copies()
copies.hook_host_reads()
copies.hook_launches()


class RigPlatform(CpuPlatform):
    """CpuPlatform that keeps async scheduling and runs the GPU model runner."""

    @classmethod
    def check_and_update_config(cls, vllm_config) -> None:
        scheduler = vllm_config.scheduler_config
        asked = scheduler.async_scheduling
        super().check_and_update_config(vllm_config)
        scheduler.async_scheduling = asked
        parallel = vllm_config.parallel_config
        if parallel.worker_cls == "vllm.v1.worker.cpu_worker.CPUWorker":
            parallel.worker_cls = "cpurig.worker.RigWorker"

    @classmethod
    def num_compute_units(cls, device_id: int = 0) -> int:
        return 1

    @classmethod
    def get_current_memory_usage(cls, device: torch.device | None = None) -> float:
        return 0.0
