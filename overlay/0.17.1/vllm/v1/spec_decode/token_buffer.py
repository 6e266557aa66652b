# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Token ids kept on the device, one beside each slot of the KV cache.

The slot that holds a token's key and value also gets the token's id, so the id
at position `p` of a request is found the way attention finds its KV:

    tokens[block_table[p // block_size] * block_size + p % block_size]

Rows have no state of their own here. Reordering, swapping, condensing,
preempting and resuming requests need no work, and a prefix that is found in
the cache brings its token ids along.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.triton_utils import tl, triton
from vllm.utils.math_utils import cdiv, round_up
from vllm.utils.mem_utils import format_mib
from vllm.utils.platform_utils import is_pin_memory_available
from vllm.v1.core.kv_cache_utils import get_kv_cache_config_from_groups
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    UniformTypeKVCacheSpecs,
)

logger = init_logger(__name__)

# One int32 token id per KV slot.
BYTES_PER_SLOT = 4
# One token per thread: ids and slots differ in width, and wide loads of both
# would only have to be brought together through shared memory.
SCATTER_BLOCK = 128


class SeedRow(NamedTuple):
    """Tokens of one request whose KV this worker did not compute itself.

    `token_ids` are the ids at positions 0, 1, ... (host, integer) and
    `block_ids` the blocks that hold them (host, kernel blocks, at least
    `ceil(len(token_ids) / block_size)` of them).
    """

    token_ids: np.ndarray
    block_ids: np.ndarray


def _keeps_every_token(spec: KVCacheSpec) -> bool:
    """Whether a request keeps the blocks of all its tokens under `spec`.

    Sliding windows and chunked local attention give blocks back while the
    request still runs; cross and encoder-only layers have no slot per token
    to begin with.
    """
    if isinstance(spec, UniformTypeKVCacheSpecs):
        return all(_keeps_every_token(s) for s in spec.kv_cache_specs.values())
    return isinstance(spec, FullAttentionSpec)


def find_kv_cache_group(kv_cache_groups: Sequence[KVCacheGroupSpec]) -> int:
    """Returns the id of the cache group whose slots the token ids ride on.

    Raises:
        ValueError: no group keeps a slot for every token of a request, or the
            model has layers that need drafts in every decode step.
    """
    if any(isinstance(group.kv_cache_spec, MambaSpec) for group in kv_cache_groups):
        # Their metadata builders assert the number of accepted tokens, which
        # the model runner has in steps with drafts only.
        raise ValueError(
            "Speculative method 'ngram_gpu' does not support models with Mamba or "
            "linear attention layers: they need drafts in every decode step, and "
            "n-grams do not give them. Use a draft model or layers trained for "
            "this model (MTP), or no speculative decoding."
        )
    for gid, group in enumerate(kv_cache_groups):
        if _keeps_every_token(group.kv_cache_spec):
            return gid
    kinds = sorted({type(g.kv_cache_spec).__name__ for g in kv_cache_groups})
    raise ValueError(
        "Speculative method 'ngram_gpu' keeps token ids beside the KV cache of "
        "a full-attention layer, which stays for as long as its request runs, "
        f"but this model has none (KV cache types: {', '.join(kinds) or 'none'}). "
        "Use method 'ngram' instead."
    )


def reserve_token_buffer_memory(
    vllm_config: VllmConfig,
    kv_cache_groups: list[KVCacheGroupSpec],
    available_memory: Sequence[int],
) -> list[int]:
    """Takes the token buffer's share out of the memory for the KV cache.

    Args:
        vllm_config: The engine's configuration.
        kv_cache_groups: The cache groups that the blocks will be shared by.
        available_memory: Bytes that each worker has for the KV cache.

    Returns:
        Bytes that remain for KV blocks on each worker. Together with the
        buffer for the blocks that fit in them they are never more than what
        the worker has.

    Raises:
        ValueError: no cache group can carry the token ids.
    """
    gid = find_kv_cache_group(kv_cache_groups)
    # How the memory is divided into blocks is decided there, so ask for one
    # division and take the size of a block from it.
    config = get_kv_cache_config_from_groups(
        vllm_config, kv_cache_groups, max(available_memory)
    )
    if config.num_blocks <= 0:
        # Not enough for one block: the caller says so, with what it has.
        return list(available_memory)
    kv_bytes = sum(t.size for t in config.kv_cache_tensors) // config.num_blocks
    token_bytes = kv_cache_groups[gid].kv_cache_spec.block_size * BYTES_PER_SLOT

    remaining = []
    for available in available_memory:
        num_blocks = available // (kv_bytes + token_bytes)
        if num_blocks > 0:
            # What is left over after the last whole block is of no use to anyone.
            remaining.append(num_blocks * kv_bytes)
        else:
            # Too little, but not nothing: the engine's error says how much.
            remaining.append(min(available, kv_bytes - 1))
    num_blocks = max(0, min(remaining) // kv_bytes)
    override = vllm_config.cache_config.num_gpu_blocks_override
    if override is not None:
        num_blocks = override
    logger.info_once(
        "Token buffer for n-gram lookup on the device: %s MiB, counted in the "
        "memory for the KV cache (%.3f %% of it)",
        format_mib(num_blocks * token_bytes),
        100 * token_bytes / (kv_bytes + token_bytes),
        scope="local",
    )
    return remaining


# The number of tokens changes from step to step: a launch must never compile.
@triton.jit(do_not_specialize=["num_tokens", "num_slots"])
def _scatter_kernel(
    tokens_ptr,  # [num_slots]
    token_ids_ptr,  # [num_tokens]
    slot_mapping_ptr,  # [num_tokens]
    num_tokens,
    num_slots,
    BLOCK: tl.constexpr,
):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < num_tokens
    slots = tl.load(slot_mapping_ptr + offs, mask=mask, other=-1)
    token_ids = tl.load(token_ids_ptr + offs, mask=mask, other=0)
    # Padding has slot -1. The upper bound costs nothing next to the load and
    # keeps a wrong mapping from writing into someone else's memory.
    mask = (slots >= 0) & (slots < num_slots)
    tl.store(tokens_ptr + slots, token_ids.to(tl.int32), mask=mask)


class DeviceTokenBuffer:
    """The token id of every KV slot of one cache group.

    Attributes:
        tokens: [num_slots] int32, on `device`. Allocated once, starts at zero;
            its address never changes.
        kv_cache_gid: id of the cache group whose block table and slot mapping
            address the buffer.
        block_size: tokens per entry of that group's block table (the kernel
            block size, which may divide the KV manager's block size).
        num_slots: number of slots of the group.
    """

    def __init__(
        self,
        kv_cache_config: KVCacheConfig,
        kernel_block_sizes: Sequence[int],
        device: torch.device,
        use_triton: bool,
    ) -> None:
        """
        Args:
            kv_cache_config: The worker's KV cache.
            kernel_block_sizes: Block size of each group's block table.
            device: Device of the KV cache.
            use_triton: Whether to scatter with the Triton kernel, rather than
                with its PyTorch version.

        Raises:
            ValueError: no cache group can carry the token ids.
        """
        self.kv_cache_gid = find_kv_cache_group(kv_cache_config.kv_cache_groups)
        spec = kv_cache_config.kv_cache_groups[self.kv_cache_gid].kv_cache_spec
        self.block_size = kernel_block_sizes[self.kv_cache_gid]
        self.num_slots = kv_cache_config.num_blocks * spec.block_size
        # The lookup computes slots in int32.
        assert self.num_slots < 2**31, f"{self.num_slots} KV slots"
        self.device = device
        self.use_triton = use_triton
        self.pin_memory = is_pin_memory_available()
        # The extra element takes the writes of padding where there is no
        # masked scatter without a host synchronization (see `_scatter_torch`).
        self._storage = torch.zeros(
            self.num_slots + 1, dtype=torch.int32, device=device
        )
        self.tokens = self._storage[: self.num_slots]

    @property
    def nbytes(self) -> int:
        return self.num_slots * BYTES_PER_SLOT

    def scatter(self, token_ids: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        """Writes the ids of one step's tokens into their slots.

        Launches one kernel; nothing is allocated and the host does not wait.

        Args:
            token_ids: [num_tokens] int32, on the device.
            slot_mapping: [num_tokens] int64, on the device, the group's slot
                of each token; -1 means that the token has none (padding).
        """
        num_tokens = token_ids.shape[0]
        assert slot_mapping.shape[0] == num_tokens
        if num_tokens == 0:
            return
        if not self.use_triton:
            self._scatter_torch(token_ids, slot_mapping)
            return
        _scatter_kernel[(cdiv(num_tokens, SCATTER_BLOCK),)](
            self.tokens,
            token_ids,
            slot_mapping,
            num_tokens,
            self.num_slots,
            BLOCK=SCATTER_BLOCK,
            num_warps=SCATTER_BLOCK // 32,
        )

    def _scatter_torch(
        self, token_ids: torch.Tensor, slot_mapping: torch.Tensor
    ) -> None:
        valid = (slot_mapping >= 0) & (slot_mapping < self.num_slots)
        slots = torch.where(valid, slot_mapping, self.num_slots).long()
        self._storage[slots] = token_ids.to(torch.int32)

    def seed(self, rows: Sequence[SeedRow]) -> None:
        """Writes tokens of requests whose KV came from somewhere else.

        A KV connector fills slots whose tokens never pass through this
        worker's input ids. Call this once per step with the rows that were
        added or resumed in it, before the step's lookup. Everything travels in
        one copy. Ids below zero (not known on the host yet) are left out.
        """
        slots, token_ids = [], []
        for row in rows:
            ids = np.asarray(row.token_ids)
            known = np.flatnonzero(ids >= 0)
            blocks = np.asarray(row.block_ids)[known // self.block_size]
            slots.append(
                blocks.astype(np.int64) * self.block_size + known % self.block_size
            )
            token_ids.append(ids[known])
        num_tokens = sum(len(s) for s in slots)
        if num_tokens == 0:
            return
        # Slots (int64) and ids (int32) in one staging tensor, padded so that both
        # start aligned, as the kernel was compiled for. It is a new one each
        # time, because the copy may be in flight when the next step seeds.
        num_slot_words = round_up(num_tokens, 2)
        staging = torch.empty(
            num_slot_words + cdiv(num_tokens, 2),
            dtype=torch.int64,
            pin_memory=self.pin_memory,
        )
        np.concatenate(slots, out=staging.numpy()[:num_tokens])
        np.concatenate(
            token_ids,
            out=staging.numpy()[num_slot_words:].view(np.int32)[:num_tokens],
            casting="unsafe",
        )
        staging = staging.to(self.device, non_blocking=True)
        self.scatter(
            staging[num_slot_words:].view(torch.int32)[:num_tokens],
            staging[:num_tokens],
        )
