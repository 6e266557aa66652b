# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""N-gram speculation whose lookup runs on the device."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from vllm.config import VllmConfig
from vllm.triton_utils import HAS_TRITON
from vllm.utils.platform_utils import num_compute_units
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.spec_decode.ngram_gpu_kernels import max_lookup_len, ngram_lookup
from vllm.v1.spec_decode.ngram_gpu_reference import ngram_lookup_reference
from vllm.v1.spec_decode.token_buffer import DeviceTokenBuffer

# The tensors that `propose` returns are reused after this many calls. Copies
# to the host run on streams of their own and may be late: with one step in
# flight while the next is prepared, the results of two steps can be on their
# way when a third is proposed.
NUM_OUTPUT_SETS = 3


def default_use_triton(device: torch.device) -> bool:
    """Whether the kernels run on `device`, rather than their PyTorch versions."""
    return HAS_TRITON and device.type != "cpu"


class NgramDrafts(NamedTuple):
    """What `propose` returns; persistent int32 tensors on the device.

    Attributes:
        draft_token_ids: [num_reqs, k]. The drafts of a row come first; the
            columns after them repeat the row's last token, so that every
            column is an id that the model can embed.
        num_valid_drafts: [num_reqs]. How many columns of a row are drafts.
        next_token_ids: [num_reqs]. The last token of a row's history.
        num_sampled: [num_reqs]. How many tokens the row got in this step
            (accepted drafts and the bonus token), 0 for discarded rows.
    """

    draft_token_ids: torch.Tensor
    num_valid_drafts: torch.Tensor
    next_token_ids: torch.Tensor
    num_sampled: torch.Tensor


class NgramGPUProposer:
    """Proposes what followed the n-gram that ends a request's history.

    The rule is that of `NgramProposer`: the longest n-gram with
    `prompt_lookup_min <= n <= prompt_lookup_max` that ends the history and
    occurs earlier in it, its first occurrence, the `k` tokens after it, cut
    by the end of the history and by the model's length limit.

    Everything happens on the device: `propose` launches two kernels (scatter
    the step's token ids into the token buffer, then look up), neither waits
    for the device nor allocates on it, and gives the same drafts on every
    tensor-parallel rank.
    """

    def __init__(
        self,
        vllm_config: VllmConfig,
        device: torch.device,
        use_triton: bool | None = None,
    ) -> None:
        """
        Args:
            vllm_config: The engine's configuration, with this method in it.
            device: Where the model runs.
            use_triton: Whether to launch the Triton kernels, rather than their
                PyTorch versions, see `default_use_triton`.
        """
        spec_config = vllm_config.speculative_config
        assert spec_config is not None
        assert spec_config.prompt_lookup_min is not None
        assert spec_config.prompt_lookup_max is not None
        self.model_config = vllm_config.model_config
        self.min_n = spec_config.prompt_lookup_min
        self.max_n = spec_config.prompt_lookup_max
        self.k = spec_config.num_speculative_tokens
        self.vocab_size = vllm_config.model_config.get_vocab_size()
        self.max_num_reqs = vllm_config.scheduler_config.max_num_seqs
        self.device = device
        self.use_triton = (
            default_use_triton(device) if use_triton is None else use_triton
        )
        self.token_buffer: DeviceTokenBuffer | None = None
        if self.max_model_len > max_lookup_len(self.max_n):
            raise ValueError(
                f"Speculative method 'ngram_gpu' reaches {max_lookup_len(self.max_n)} "
                f"tokens with prompt_lookup_max={self.max_n}, less than "
                f"max_model_len={self.max_model_len}. Lower either of them."
            )

        shapes = ((self.max_num_reqs, self.k),) + ((self.max_num_reqs,),) * 3
        self._output_sets = [
            NgramDrafts(
                *(
                    torch.zeros(shape, dtype=torch.int32, device=device)
                    for shape in shapes
                )
            )
            for _ in range(NUM_OUTPUT_SETS)
        ]
        self._step = 0
        # Where the programs of a row meet; zero between launches.
        self._state = torch.zeros(
            (2, self.max_num_reqs), dtype=torch.int32, device=device
        )
        self._num_compute_units = 1
        if device.type != "cpu":
            self._num_compute_units = num_compute_units(device.index or 0)

    @property
    def max_model_len(self) -> int:
        # Not cached: fitting the context to the memory may lower it after the
        # proposer was made.
        return self.model_config.max_model_len

    def load_model(self, *args, **kwargs) -> None:
        # No model to load.
        pass

    def initialize_kv_cache(
        self, kv_cache_config: KVCacheConfig, kernel_block_sizes: Sequence[int]
    ) -> None:
        """Allocates the token buffer beside the KV cache.

        Args:
            kv_cache_config: The worker's KV cache.
            kernel_block_sizes: Block size of each group's block table.
        """
        self.token_buffer = DeviceTokenBuffer(
            kv_cache_config, kernel_block_sizes, self.device, self.use_triton
        )

    def propose(
        self,
        input_ids: torch.Tensor,
        slot_mapping: torch.Tensor,
        block_table: torch.Tensor,
        seq_lens: torch.Tensor,
        sampled_token_ids: torch.Tensor,
        discard_mask: torch.Tensor,
        cu_num_draft_tokens: torch.Tensor | None = None,
        max_seq_len: int | None = None,
    ) -> NgramDrafts:
        """Takes in one step and proposes drafts for the next one.

        All tensors are on the device; `slot_mapping` and `block_table` are
        those of cache group `token_buffer.kv_cache_gid`.

        Args:
            input_ids: [num_tokens] int32. The ids that the step computed.
            slot_mapping: [num_tokens] int64. Their slots, -1 for padding.
            block_table: [>= num_reqs, max_blocks] int32, rows contiguous.
            seq_lens: [>= num_reqs] int32. Tokens of each row that have a slot
                after the step, the step's draft tokens included.
            sampled_token_ids: [num_reqs, 1..k + 1] int32 or int64. The tokens
                sampled for each row, -1 after the last accepted one.
            discard_mask: [>= num_reqs] bool. Rows whose sampled token does not
                count (their prompt is not done). They get no drafts.
            cu_num_draft_tokens: [num_reqs] int32. Running sum of the rows'
                draft tokens verified in this step; None where there were none.
            max_seq_len: Upper bound of `seq_lens` that the host knows without
                waiting; by default the model's limit.

        Returns:
            The drafts and what the next step needs. The tensors are views of
            persistent ones, overwritten by the call after the next
            `NUM_OUTPUT_SETS - 1`.
        """
        buffer = self.token_buffer
        assert buffer is not None, "initialize_kv_cache was not called"
        buffer.scatter(input_ids, slot_mapping)

        num_reqs = sampled_token_ids.shape[0]
        out = self._output_sets[self._step]
        self._step = (self._step + 1) % NUM_OUTPUT_SETS
        out = NgramDrafts(*(t[:num_reqs] for t in out))
        self._lookup(
            block_table[:num_reqs],
            seq_lens[:num_reqs],
            cu_num_draft_tokens,
            sampled_token_ids,
            discard_mask[:num_reqs],
            out,
            max_seq_len,
        )
        return out

    def _lookup(
        self,
        block_table: torch.Tensor,
        seq_lens: torch.Tensor,
        cu_num_draft_tokens: torch.Tensor | None,
        sampled_token_ids: torch.Tensor,
        discard_mask: torch.Tensor,
        out: NgramDrafts,
        max_seq_len: int | None,
    ) -> None:
        assert self.token_buffer is not None
        max_model_len = self.max_model_len
        if max_seq_len is None or max_seq_len > max_model_len:
            max_seq_len = max_model_len
        inputs = (
            self.token_buffer.tokens,
            block_table,
            seq_lens,
            cu_num_draft_tokens,
            sampled_token_ids,
            discard_mask,
        )
        options = dict(
            block_size=self.token_buffer.block_size,
            max_seq_len=max_seq_len,
            min_n=self.min_n,
            max_n=self.max_n,
            max_model_len=max_model_len,
            vocab_size=self.vocab_size,
        )
        if self.use_triton:
            ngram_lookup(
                *inputs,
                *out,
                self._state,
                num_compute_units=self._num_compute_units,
                **options,
            )
        else:
            ngram_lookup_reference(*inputs, *out, **options)

    def warm_up(self) -> None:
        """Compiles the kernels, so that no step has to.

        The launches differ in whether the step verified drafts. They run over
        rows without tokens and change no state.
        """
        if not self.use_triton:
            return
        assert self.token_buffer is not None

        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=self.device)

        for cu_num_draft_tokens in (None, zeros(1)):
            self.propose(
                input_ids=zeros(1),
                slot_mapping=zeros(1, dtype=torch.int64) - 1,
                block_table=zeros(1, 1),
                seq_lens=zeros(1),
                sampled_token_ids=zeros(1, 1) - 1,
                discard_mask=zeros(1, dtype=torch.bool),
                cu_num_draft_tokens=cu_num_draft_tokens,
                max_seq_len=1,
            )
