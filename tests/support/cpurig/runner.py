# SPDX-License-Identifier: Apache-2.0
"""GPUModelRunner on a CPU, with host and device buffers that are truly two."""

from __future__ import annotations

import numpy as np
import torch
from vllm.config import VllmConfig
from vllm.v1.utils import CpuGpuBuffer
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from cpurig.copies import mark_device


def _mark_tensors_of(owner: object, depth: int = 2) -> None:
    """Mark the tensors that an object keeps, and those of what it keeps."""
    for value in list(getattr(owner, "__dict__", {}).values()):
        mark_device(value)
        if depth > 1 and type(value).__module__.startswith("vllm.v1.spec_decode"):
            _mark_tensors_of(value, depth - 1)


class RigModelRunner(CPUModelRunner):
    """CPUModelRunner refuses speculation and folds each buffer pair into one.

    Both are undone here: GPUModelRunner is constructed directly, drafters are
    loaded by its own load_model, and copies between host and device are real.
    """

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        GPUModelRunner.__init__(self, vllm_config, device)
        self.use_cuda_graph = False
        self.cascade_attn_enabled = False
        for value in vars(self).values():
            if isinstance(value, CpuGpuBuffer):
                mark_device(value.gpu)

    def initialize_kv_cache(self, kv_cache_config) -> None:
        super().initialize_kv_cache(kv_cache_config)
        for table in self.input_batch.block_table.block_tables:
            mark_device([v.gpu for v in vars(table).values() if isinstance(v, CpuGpuBuffer)])
        _mark_tensors_of(getattr(self, "drafter", None))

    load_model = GPUModelRunner.load_model
    get_model = GPUModelRunner.get_model

    def _sample(self, logits, spec_decode_metadata):
        before = {
            row: self.input_batch.generators[row].get_state()
            for row in self._discarded_seeded_rows()
        }
        output = super()._sample(logits, spec_decode_metadata)
        for row, state in before.items():
            self.input_batch.generators[row].set_state(state)
        mark_device(output.sampled_token_ids)
        return output

    def _bookkeeping_sync(self, *args, **kwargs):
        # Rewinding by offset exists on CUDA only; _sample has rewound by state.
        generators = self.input_batch.generators
        hidden = {row: generators.pop(row) for row in self._discarded_seeded_rows()}
        try:
            return super()._bookkeeping_sync(*args, **kwargs)
        finally:
            generators.update(hidden)

    def propose_draft_token_ids(self, *args, **kwargs):
        drafts = super().propose_draft_token_ids(*args, **kwargs)
        mark_device(drafts)
        return drafts

    def _discarded_seeded_rows(self) -> list[int]:
        mask = self.discard_request_mask.np[: self.input_batch.num_reqs]
        rows = np.nonzero(mask)[0].tolist()
        return [row for row in rows if row in self.input_batch.generators]
