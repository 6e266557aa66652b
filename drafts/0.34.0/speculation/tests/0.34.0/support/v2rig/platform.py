# SPDX-License-Identifier: Apache-2.0
"""The platform class that vLLM loads."""

from __future__ import annotations

import dataclasses
import os

import torch
from vllm.platforms.cpu import CpuPlatform

if os.environ.get("TRITON_INTERPRET") != "1" or os.environ.get("CUDA_VISIBLE_DEVICES") != "":
    raise RuntimeError("v2rig needs TRITON_INTERPRET=1 and CUDA_VISIBLE_DEVICES set and empty")


def _skip_interpreted_overflow_checks() -> None:
    from triton.runtime import interpreter

    b = interpreter.interpreter_builder
    b.options = dataclasses.replace(b.options, sanitize_overflow=False)


_skip_interpreted_overflow_checks()
# The stub of the one compiled operator that CPUWorker calls itself.
_lib = torch.library.Library("_C", "FRAGMENT")
_lib.define("init_cpu_memory_env(int[] nodes) -> ()")
_lib.impl("init_cpu_memory_env", lambda nodes: None, "CompositeExplicitAutograd")


CPU_WORKER = "vllm.v1.worker.cpu_worker.CPUWorker"


class RigPlatform(CpuPlatform):
    """CpuPlatform without compiled operators, with async scheduling."""

    @classmethod
    def import_kernels(cls) -> None:
        return None

    @classmethod
    def check_and_update_config(cls, vllm_config) -> None:
        asked = vllm_config.scheduler_config.async_scheduling
        backend = vllm_config.parallel_config.distributed_executor_backend
        preload = os.environ.get("LD_PRELOAD")
        super().check_and_update_config(vllm_config)
        vllm_config.scheduler_config.async_scheduling = asked
        vllm_config.parallel_config.distributed_executor_backend = backend
        vllm_config.compilation_config.custom_ops = ["none"]
        if vllm_config.parallel_config.worker_cls == CPU_WORKER:
            vllm_config.parallel_config.worker_cls = "v2rig.worker.RigWorker"
        if preload is None:
            os.environ.pop("LD_PRELOAD", None)
        else:
            os.environ["LD_PRELOAD"] = preload

    @classmethod
    def get_attn_backend_cls(cls, selected_backend, attn_selector_config, num_heads=None) -> str:
        return "v2rig.attention.TorchAttentionBackend"

    @classmethod
    def num_compute_units(cls, device_id: int = 0) -> int:
        return 1
