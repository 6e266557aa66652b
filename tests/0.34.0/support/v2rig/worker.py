# SPDX-License-Identifier: Apache-2.0
"""The CPU worker whose streams keep order."""

from __future__ import annotations

from typing import Any

import torch
from cpurig.copies import mark_device
from vllm.v1.worker import cpu_worker

from v2rig import order

order.install()


def _mark_tensors_of(owner: object) -> None:
    mark_device([v for v in vars(owner).values() if isinstance(v, torch.Tensor)])


class RigWorker(cpu_worker.CPUWorker):
    """CPUWorker, with the runner's device buffers marked as such."""

    def initialize_from_config(self, *args: Any, **kwargs: Any) -> Any:
        result = super().initialize_from_config(*args, **kwargs)
        runner = self.model_runner
        owners = (runner.structured_outputs_worker, runner.speculator, runner.adaptive_verification)
        for owner in owners:
            if owner is not None:
                _mark_tensors_of(owner)
        _mark_tensors_of(runner.req_states)
        return result

    def compile_or_warm_up_model(self) -> Any:
        result = super().compile_or_warm_up_model()
        order.forget_uploads()
        return result
