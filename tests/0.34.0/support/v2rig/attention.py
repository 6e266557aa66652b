# SPDX-License-Identifier: Apache-2.0
"""Paged attention in plain torch: one SDPA per request over gathered blocks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl

from v2rig.empty_attention import EmptyAttentionBackend


class TorchAttentionBackend(EmptyAttentionBackend):
    @staticmethod
    def get_name() -> str:
        return "CPU_ATTN"

    @staticmethod
    def get_impl_cls():
        return TorchAttentionImpl


class TorchAttentionImpl(CPUAttentionBackendImpl):
    def _caches(self, kv_cache):
        blocks, heads, size, _ = kv_cache.size()
        return kv_cache.view(blocks, heads, size * 2, -1).chunk(2, dim=2)

    def do_kv_cache_update(self, layer, key, value, kv_cache, slot_mapping):
        keys, values = self._caches(kv_cache)
        size = keys.shape[2]
        n = slot_mapping.shape[0]
        good = slot_mapping >= 0
        slots = slot_mapping[good].long()
        block, offset = slots // size, slots % size
        keys[block, :, offset] = key[:n][good]
        values[block, :, offset] = value[:n][good]

    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output,
                output_scale=None, output_block_scale=None):
        if attn_metadata is None:
            return output
        m = attn_metadata
        keys, values = self._caches(kv_cache)
        size = keys.shape[2]
        starts = m.query_start_loc.tolist()
        lens = m.seq_lens.tolist()
        for i, n in enumerate(lens):
            a, b = starts[i], starts[i + 1]
            if b <= a or n <= 0:
                continue
            b = min(b, m.num_actual_tokens)
            blocks = m.block_table[i, : (n + size - 1) // size].long()
            # [blocks, heads, size, dim] -> [heads, tokens, dim]
            k = keys[blocks].transpose(0, 1).flatten(1, 2)[:, :n]
            v = values[blocks].transpose(0, 1).flatten(1, 2)[:, :n]
            q = query[a:b].transpose(0, 1)
            pos = torch.arange(n - (b - a), n)[:, None]
            at = torch.arange(n)[None, :]
            mask = at <= pos
            if self.sliding_window > 0:
                mask &= at > pos - self.sliding_window
            out = F.scaled_dot_product_attention(
                q[None], k[None], v[None], attn_mask=mask, scale=self.scale, enable_gqa=True
            )[0]
            output[a:b].copy_(out.transpose(0, 1))
        return output
