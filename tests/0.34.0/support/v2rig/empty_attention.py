# SPDX-License-Identifier: Apache-2.0
"""An attention backend with the metadata of vLLM's, and nothing to compute."""

from __future__ import annotations

from typing import Any

from vllm.v1.attention.backend import AttentionCGSupport, AttentionMetadataBuilder, MultipleOf
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
    CPUAttentionMetadata,
    CPUAttentionMetadataBuilder,
)


class EmptyAttentionBackend(CPUAttentionBackend):
    """The metadata of vLLM's, and nothing to compute."""

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        return [MultipleOf(1)]

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return []

    @staticmethod
    def get_impl_cls() -> type:
        return CPUAttentionBackendImpl

    @staticmethod
    def get_builder_cls() -> type:
        return MetadataBuilder


class MetadataBuilder(CPUAttentionMetadataBuilder):
    """Without the metadata of the compiled scheduler."""

    def __init__(self, kv_cache_spec: Any, layer_names: Any, vllm_config: Any, device: Any) -> None:
        AttentionMetadataBuilder.__init__(self, kv_cache_spec, layer_names, vllm_config, device)
        self.block_size = kv_cache_spec.block_size

    @classmethod
    def get_cudagraph_support(cls, vllm_config: Any, kv_cache_spec: Any) -> AttentionCGSupport:
        return AttentionCGSupport.ALWAYS

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
    ) -> CPUAttentionMetadata:
        m = common_attn_metadata
        return CPUAttentionMetadata(
            num_actual_tokens=m.num_actual_tokens,
            max_query_len=m.max_query_len,
            query_start_loc=m.query_start_loc,
            max_seq_len=m.max_seq_len,
            seq_lens=m.seq_lens,
            block_table=m.block_table_tensor,
            slot_mapping=m.slot_mapping,
            scheduler_metadata=None,
        )
