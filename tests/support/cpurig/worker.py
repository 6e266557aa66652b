# SPDX-License-Identifier: Apache-2.0
"""The CPU worker with the rig's model runner in it."""

from __future__ import annotations

from unittest import mock

from vllm.v1.worker import cpu_worker

from cpurig import copies, guards
from cpurig.runner import RigModelRunner

copies.hook_buffer_uploads()


class RigWorker(cpu_worker.CPUWorker):
    """CPUWorker names its runner class at construction: name another one."""

    def init_device(self) -> None:
        guards.let_xgrammar_take_index_tensors()
        with mock.patch.object(cpu_worker, "CPUModelRunner", RigModelRunner):
            super().init_device()
