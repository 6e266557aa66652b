# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The n-gram lookup of `NgramGPUProposer` as one Triton kernel.

Let m(p) be the length of the longest n-gram, up to max_n, that ends at position
p of a history of L tokens and also ends the history. The draft after an
occurrence that ends at p starts at p + 1 whatever its n is, so the proposal is
given by the maximum of (m(p), -p) over p <= L - 2 with m(p) >= min_n: the
longest n-gram, then its earliest occurrence, for all n in one pass. Both fit
into one int32 key.

A history has two parts: the tokens that have a KV slot (found through the
block table), then those just sampled, which have none yet.
"""

import torch

from vllm.triton_utils import tl, triton

# Positions that a program looks at per iteration. With one warp a reduction
# over the tile needs no barrier, and a thread holds 16 of the positions.
TILE = 512
NUM_WARPS = 1
# Positions that are compared in full at once, where a tile has a candidate. Few,
# to keep the registers for the loop over the tiles.
CHUNK = 64
# Programs that one launch aims at per compute unit.
PROGRAMS_PER_UNIT = 16
# A batch of many short rows and a few long ones still gets the long ones split.
MIN_SPLITS = 4


def max_lookup_len(max_n: int) -> int:
    """Returns the longest history whose positions fit into a key with `max_n`."""
    return 1 << _position_bits(max_n)


def _position_bits(max_n: int) -> int:
    return 31 - max_n.bit_length()


def _run_len(block_size: int) -> int:
    """Returns how many slots are known to be contiguous and aligned.

    That is the largest power of two that divides the block size (hybrid models
    have block sizes like 528), at most four tokens for each thread of a warp.
    """
    return min(block_size & -block_size, 128)


@triton.jit
def _load_tokens(history, pos, mask, BLOCK_SIZE: tl.constexpr):
    """Token ids at positions of a history, from either of its two parts.

    `history` is (tokens_ptr, table_row_ptr, sampled_row_ptr, base_len): the token
    buffer, the row's block table, its new tokens, and how many others there are.
    """
    tokens_ptr, table_row_ptr, sampled_row_ptr, base_len = history
    has_slot = pos < base_len
    in_kv = mask & has_slot
    block = tl.load(table_row_ptr + pos // BLOCK_SIZE, mask=in_kv, other=0)
    slot = block * BLOCK_SIZE + pos % BLOCK_SIZE
    old = tl.load(tokens_ptr + slot, mask=in_kv, other=-1)
    new = tl.load(sampled_row_ptr + (pos - base_len), mask=mask & ~has_slot, other=-1)
    return tl.where(has_slot, old, new.to(tl.int32))


@triton.jit
def _best_key(
    history,
    pos,
    alive,
    length,
    MIN_N: tl.constexpr,
    MAX_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    POSITION_BITS: tl.constexpr,
):
    """Best key of the n-grams that end at `pos`, 0 if none is long enough.

    pos: [N] int32 positions before the last, of which `alive` ones count.
    """
    matched = tl.zeros_like(pos)
    t = 0
    while (t < MAX_N) & (tl.max(alive.to(tl.int32), 0) > 0):
        alive = alive & (pos >= t)
        suffix = _load_tokens(history, length - 1 - t, length > t, BLOCK_SIZE)
        token = _load_tokens(history, pos - t, alive, BLOCK_SIZE)
        alive = alive & (token == suffix)
        matched += alive.to(tl.int32)
        t += 1
    key = (matched << POSITION_BITS) | (((1 << POSITION_BITS) - 1) - pos)
    return tl.max(tl.where(matched >= MIN_N, key, 0), 0)


@triton.jit
def _run_slots(table_row_ptr, run_pos, mask, BLOCK_SIZE: tl.constexpr):
    """First slots of the runs that start at positions `run_pos`, 0 if masked."""
    block = tl.load(table_row_ptr + run_pos // BLOCK_SIZE, mask=mask, other=0)
    return tl.where(mask, block * BLOCK_SIZE + run_pos % BLOCK_SIZE, 0)


@triton.jit
def _has_candidate(
    history,
    tile,
    suffix_0,
    suffix_need,
    need,
    BLOCK_SIZE: tl.constexpr,
    RUN: tl.constexpr,
    TILE: tl.constexpr,
):
    """Whether an n-gram longer than `need` may end in the tile.

    Compares two tokens for each position: the n-gram's last and the one `need`
    places before it. Positions before the start of the history are read from the
    buffer's first slots, those past its end from the rest of their run. False
    candidates that result are rejected when all tokens are compared.
    """
    tokens_ptr, table_row_ptr, _, base_len = history
    offs = tl.arange(0, RUN)
    # One block id for a run of slots, then wide loads inside of it. A run may
    # go past the end of the history, but never past its block.
    run_pos = (tile * (TILE // RUN) + tl.arange(0, TILE // RUN)) * RUN
    in_range = run_pos < base_len
    slot = _run_slots(table_row_ptr, run_pos, in_range, BLOCK_SIZE)
    token = tl.load(
        tokens_ptr + (slot[:, None] + offs[None, :]), mask=in_range[:, None], other=-1
    )
    alive = token == suffix_0
    # `need` positions earlier: the end of one run, then the start of the next.
    shift = need % RUN
    run_pos -= need - shift
    high = _run_slots(table_row_ptr, run_pos, in_range & (run_pos >= 0), BLOCK_SIZE)
    run_pos -= RUN
    low = _run_slots(table_row_ptr, run_pos, in_range & (run_pos >= 0), BLOCK_SIZE)
    slot = tl.where((offs >= shift)[None, :], high[:, None], (low + RUN)[:, None])
    token = tl.load(tokens_ptr + (slot + (offs - shift)[None, :]), mask=alive, other=-1)
    return tl.max((alive & (token == suffix_need)).to(tl.int32)) > 0


@triton.jit
def _scan(
    history,
    length,
    first_tile,
    num_tiles,
    step,
    MIN_N: tl.constexpr,
    MAX_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    RUN: tl.constexpr,
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
    POSITION_BITS: tl.constexpr,
):
    """Best key of the n-grams that end in every `step`-th tile."""
    best = 0
    # Tiles come in ascending order: only a longer n-gram is better than the best
    # so far, and none is once that has max_n tokens.
    need = MIN_N - 1
    suffix_0 = _load_tokens(history, length - 1, True, BLOCK_SIZE)
    suffix_need = _load_tokens(history, length - 1 - need, True, BLOCK_SIZE)
    tile = first_tile
    while (tile < num_tiles) & (best < (MAX_N << POSITION_BITS)):
        if _has_candidate(
            history, tile, suffix_0, suffix_need, need, BLOCK_SIZE, RUN, TILE
        ):
            for chunk in range(TILE // CHUNK):
                pos = tile * TILE + chunk * CHUNK + tl.arange(0, CHUNK)
                key = _best_key(
                    history,
                    pos,
                    pos < history[3],
                    length,
                    MIN_N,
                    MAX_N,
                    BLOCK_SIZE,
                    POSITION_BITS,
                )
                best = tl.maximum(best, key)
            need = tl.maximum(best >> POSITION_BITS, MIN_N - 1)
            suffix_need = _load_tokens(
                history, length - 1 - need, length > need, BLOCK_SIZE
            )
        tile += step
    return best


# Strides and widths change from step to step: a launch must never compile.
@triton.jit(
    do_not_specialize=[
        "block_table_stride",
        "sampled_stride",
        "num_sampled_cols",
        "max_model_len",
        "vocab_size",
    ]
)
def _ngram_lookup_kernel(
    tokens_ptr,  # [num_slots]
    block_table_ptr,  # [num_rows, block_table_stride]
    block_table_stride,
    seq_lens_ptr,  # [num_rows]
    cu_num_draft_tokens_ptr,  # [num_rows] or None
    sampled_ptr,  # [num_rows, num_sampled_cols]
    sampled_stride,
    num_sampled_cols,
    discard_ptr,  # [num_rows]
    draft_ptr,  # [num_rows, K] (output)
    num_valid_ptr,  # [num_rows] (output)
    next_token_ptr,  # [num_rows] (output)
    num_sampled_ptr,  # [num_rows] (output)
    key_ptr,  # [num_rows], zero before and after
    ticket_ptr,  # [num_rows], zero before and after
    max_model_len,
    vocab_size,
    MIN_N: tl.constexpr,
    MAX_N: tl.constexpr,
    K: tl.constexpr,
    COLS: tl.constexpr,  # power of two > K
    BLOCK_SIZE: tl.constexpr,
    RUN: tl.constexpr,  # power of two that divides BLOCK_SIZE
    TILE: tl.constexpr,  # multiple of RUN and CHUNK
    CHUNK: tl.constexpr,
    POSITION_BITS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    num_splits = tl.num_programs(1)

    table_row_ptr = block_table_ptr + row * block_table_stride
    sampled_row_ptr = sampled_ptr + row * sampled_stride
    base_len = tl.load(seq_lens_ptr + row)
    if cu_num_draft_tokens_ptr is not None:
        base_len -= tl.load(cu_num_draft_tokens_ptr + row)
        base_len += tl.load(cu_num_draft_tokens_ptr + row - 1, mask=row > 0, other=0)
    history = (tokens_ptr, table_row_ptr, sampled_row_ptr, base_len)

    # New tokens: those before the first column without one.
    cols = tl.arange(0, COLS)
    sampled = tl.load(sampled_row_ptr + cols, mask=cols < num_sampled_cols, other=-1)
    keep = tl.load(discard_ptr + row) == 0
    is_token = (sampled >= 0) & (sampled < vocab_size) & keep
    num_new = tl.min(tl.where(is_token, COLS, cols), 0)
    length = base_len + num_new

    active = (num_new > 0) & (length > MIN_N) & (length < max_model_len)
    num_tiles = tl.where(active, tl.cdiv(base_len, TILE), 0)
    num_programs = tl.minimum(tl.maximum(num_tiles, 1), num_splits)
    if split >= num_programs:
        return

    # Positions that have a KV slot.
    best = 0
    if active:
        best = _scan(
            history,
            length,
            split,
            num_tiles,
            num_splits,
            MIN_N,
            MAX_N,
            BLOCK_SIZE,
            RUN,
            TILE,
            CHUNK,
            POSITION_BITS,
        )

    # The row's programs meet in its key; the last one finishes the row. Only
    # atomics carry data from program to program.
    last = num_programs == 1
    if num_programs > 1:
        if best > 0:
            tl.atomic_max(key_ptr + row, best, sem="relaxed")
        ticket = tl.atomic_add(ticket_ptr + row, 1, sem="acq_rel")
        last = ticket == num_programs - 1
    if last:
        if num_programs > 1:
            best = tl.atomic_xchg(key_ptr + row, 0, sem="relaxed")
            tl.atomic_xchg(ticket_ptr + row, 0, sem="relaxed")

        # Positions of the new tokens but the last.
        key = _best_key(
            history,
            base_len + cols,
            active & (cols < num_new - 1),
            length,
            MIN_N,
            MAX_N,
            BLOCK_SIZE,
            POSITION_BITS,
        )
        best = tl.maximum(best, key)

        MAX_POS: tl.constexpr = (1 << POSITION_BITS) - 1
        start = MAX_POS - (best & MAX_POS) + 1
        num_valid = tl.minimum(tl.minimum(K, max_model_len - length), length - start)
        num_valid = tl.where(best > 0, num_valid, 0)
        next_token = _load_tokens(history, length - 1, length > 0, BLOCK_SIZE)
        draft = _load_tokens(history, start + cols, cols < num_valid, BLOCK_SIZE)
        draft = tl.where(cols < num_valid, draft, next_token)
        # The buffer holds whatever memory held where the engine lost it (sleep
        # mode): the model must be able to embed every draft.
        draft = tl.minimum(tl.maximum(draft, 0), vocab_size - 1)
        next_token = tl.minimum(tl.maximum(next_token, 0), vocab_size - 1)
        tl.store(draft_ptr + row * K + cols, draft, mask=cols < K)
        tl.store(num_valid_ptr + row, num_valid)
        tl.store(next_token_ptr + row, next_token)
        tl.store(num_sampled_ptr + row, num_new)


def lookup_constants(min_n: int, max_n: int, k: int, block_size: int) -> dict[str, int]:
    """Returns the values that the lookup kernel is compiled for."""
    return dict(
        MIN_N=min_n,
        MAX_N=max_n,
        K=k,
        COLS=triton.next_power_of_2(k + 1),
        BLOCK_SIZE=block_size,
        RUN=min(_run_len(block_size), TILE),
        TILE=TILE,
        CHUNK=CHUNK,
        POSITION_BITS=_position_bits(max_n),
    )


def ngram_lookup(
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
    state: torch.Tensor,
    *,
    block_size: int,
    max_seq_len: int,
    min_n: int,
    max_n: int,
    max_model_len: int,
    vocab_size: int,
    num_compute_units: int,
) -> None:
    """Looks up the drafts of all rows in one launch.

    The launch depends on shapes and on the integers given here, never on what
    the tensors hold, so it can be captured in a CUDA graph.

    Args:
        tokens: [num_slots] int32.
        block_table: [num_rows, max_blocks] int32, last dimension contiguous.
        seq_lens: [num_rows] int32, draft tokens of the step included.
        cu_num_draft_tokens: [num_rows] int32 inclusive sum, or None.
        sampled_token_ids: [num_rows, 1..k + 1] int32 or int64, last dimension
            contiguous, -1 where there is no token.
        discard_mask: [num_rows] bool, rows that did not sample.
        draft_token_ids: [num_rows, k] int32, contiguous (output).
        num_valid_drafts: [num_rows] int32 (output).
        next_token_ids: [num_rows] int32 (output).
        num_sampled: [num_rows] int32 (output).
        state: [2, >= num_rows] int32, zero; the launch leaves it at zero.
        block_size: Tokens per block of `block_table`.
        max_seq_len: Upper bound of `seq_lens`.
        min_n, max_n: Lengths of the n-grams, inclusive.
        max_model_len: Longest history that the model can have.
        vocab_size: Ids below it are tokens.
        num_compute_units: Multiprocessors of the device.
    """
    num_rows, num_cols = sampled_token_ids.shape
    k = draft_token_ids.shape[1]
    if num_rows == 0:
        return
    assert num_cols <= k + 1
    assert block_table.stride(1) == 1 and sampled_token_ids.stride(1) == 1
    num_tiles = triton.cdiv(max_seq_len, TILE)
    splits = triton.cdiv(num_compute_units * PROGRAMS_PER_UNIT, num_rows)
    splits = max(1, min(max(splits, MIN_SPLITS), num_tiles))
    _ngram_lookup_kernel[(num_rows, splits)](
        tokens,
        block_table,
        block_table.stride(0),
        seq_lens,
        cu_num_draft_tokens,
        sampled_token_ids,
        sampled_token_ids.stride(0),
        num_cols,
        discard_mask,
        draft_token_ids,
        num_valid_drafts,
        next_token_ids,
        num_sampled,
        state[0],
        state[1],
        max_model_len,
        vocab_size,
        **lookup_constants(min_n, max_n, k, block_size),
        num_warps=NUM_WARPS,
    )
