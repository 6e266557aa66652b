# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The n-gram lookup of `ngram_gpu_kernels.py` in plain PyTorch.

Serves platforms without Triton and is what the kernel is tested against.
"""

import torch

# Elements of the [rows, positions] arrays that are handled at once.
_CHUNK_ELEMENTS = 1 << 22


def ngram_lookup_reference(
    tokens: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor | None,
    sampled_token_ids: torch.Tensor,
    discard_mask: torch.Tensor,
    draft_token_ids: torch.Tensor,
    num_valid_drafts: torch.Tensor,
    next_token_ids: torch.Tensor,
    num_sampled: torch.Tensor,
    *,
    block_size: int,
    max_seq_len: int,
    min_n: int,
    max_n: int,
    max_model_len: int,
    vocab_size: int,
) -> None:
    """Same contract as `ngram_gpu_kernels.ngram_lookup`, without `state`."""
    num_rows = sampled_token_ids.shape[0]
    base_lens = seq_lens[:num_rows].long()
    if cu_num_draft_tokens is not None:
        cu = cu_num_draft_tokens[:num_rows].long()
        base_lens = base_lens - torch.diff(cu, prepend=cu.new_zeros(1))
    chunk = max(1, _CHUNK_ELEMENTS // max(max_seq_len, 1))
    for start in range(0, num_rows, chunk):
        rows = slice(start, min(start + chunk, num_rows))
        _lookup_rows(
            tokens,
            block_table[rows],
            base_lens[rows],
            sampled_token_ids[rows].long(),
            discard_mask[rows],
            draft_token_ids[rows],
            num_valid_drafts[rows],
            next_token_ids[rows],
            num_sampled[rows],
            block_size,
            max_seq_len,
            min_n,
            max_n,
            max_model_len,
            vocab_size,
        )


def _histories(
    tokens: torch.Tensor,
    block_table: torch.Tensor,
    base_lens: torch.Tensor,
    sampled: torch.Tensor,
    block_size: int,
    max_seq_len: int,
) -> torch.Tensor:
    """Returns [rows, max_seq_len + num_sampled_cols] int32 dense histories.

    The contents past a row's end are arbitrary.
    """
    num_rows, num_cols = sampled.shape
    num_blocks = min(-(-max_seq_len // block_size), block_table.shape[1])
    # Entries past a row's end may hold anything.
    last_block = (tokens.shape[0] - 1) // block_size
    blocks = block_table[:, :num_blocks].clamp(0, last_block)
    offsets = torch.arange(block_size, dtype=torch.int32, device=tokens.device)
    slots = blocks[:, :, None] * block_size + offsets
    history = tokens.index_select(0, slots.view(-1)).view(num_rows, -1)
    history = torch.nn.functional.pad(history[:, :max_seq_len], (0, num_cols))
    # The tokens just sampled have no slot yet.
    cols = base_lens[:, None] + torch.arange(num_cols, device=tokens.device)
    return history.scatter_(1, cols, sampled.to(torch.int32))


def _longest_match(
    history: torch.Tensor, lens: torch.Tensor, min_n: int, max_n: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Finds the earliest occurrence of the longest n-gram ending each row.

    Args:
        history: [rows, width] token ids.
        lens: [rows] int64, valid tokens of each row.

    Returns:
        found: [rows] bool.
        start: [rows] int64, position right after the occurrence.
    """
    width = history.shape[1]
    # A key is below (max_n + 1) * width.
    dtype = torch.int32 if (max_n + 1) * width < 2**31 else torch.int64
    pos = torch.arange(width, dtype=dtype, device=history.device)
    # Candidates are the positions at which an earlier occurrence can end.
    alive = pos < (lens - 1)[:, None]
    matched = torch.zeros_like(history)
    for t in range(max_n):
        if t >= width:
            break
        suffix = history.gather(1, (lens - 1 - t).clamp_(min=0)[:, None])
        alive[:, t:] &= history[:, : width - t] == suffix
        alive[:, :t] = False
        # Leaving early needs the host to look, which only costs on a device.
        if history.device.type == "cpu" and not alive.any():
            break
        matched += alive
    # Longest first, then earliest.
    key = matched.to(dtype) * width + (width - 1 - pos)
    best = key.amax(dim=1).long()
    found = best >= min_n * width
    return found, torch.where(found, width - best % width, 0)


def _lookup_rows(
    tokens: torch.Tensor,
    block_table: torch.Tensor,
    base_lens: torch.Tensor,
    sampled: torch.Tensor,
    discard_mask: torch.Tensor,
    draft_token_ids: torch.Tensor,
    num_valid_drafts: torch.Tensor,
    next_token_ids: torch.Tensor,
    num_sampled: torch.Tensor,
    block_size: int,
    max_seq_len: int,
    min_n: int,
    max_n: int,
    max_model_len: int,
    vocab_size: int,
) -> None:
    ok = (sampled >= 0) & (sampled < vocab_size) & ~discard_mask.bool()[:, None]
    new_tokens = ok.long().cumprod(dim=1).sum(dim=1)
    lens = base_lens + new_tokens
    history = _histories(
        tokens, block_table, base_lens, sampled, block_size, max_seq_len
    )
    found, start = _longest_match(history, lens, min_n, max_n)

    k = draft_token_ids.shape[1]
    limit = torch.minimum(lens - start, max_model_len - lens).clamp_(0, k)
    count = torch.where(found & (new_tokens > 0), limit, 0)

    last = history.gather(1, (lens - 1).clamp_(min=0)[:, None])
    last = torch.where((lens > 0)[:, None], last, 0).clamp_(0, vocab_size - 1)
    cols = torch.arange(k, device=tokens.device)
    at = (start[:, None] + cols).clamp_(max=history.shape[1] - 1)
    drafts = history.gather(1, at).clamp_(0, vocab_size - 1)

    draft_token_ids.copy_(torch.where(cols < count[:, None], drafts, last))
    num_valid_drafts.copy_(count)
    next_token_ids.copy_(last[:, 0])
    num_sampled.copy_(new_tokens)
