# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Random steps for the n-gram lookup on the device, and their oracle."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from unittest.mock import patch

import numpy as np
import torch

from vllm.v1.spec_decode.ngram_gpu_kernels import ngram_lookup
from vllm.v1.spec_decode.ngram_gpu_reference import ngram_lookup_reference
from vllm.v1.spec_decode.ngram_proposer import (
    _find_longest_matched_ngram_and_propose_tokens,
)

# Stands where nothing may read: far outside of any buffer.
POISON_BLOCK = 1 << 30


@dataclass
class Step:
    """One step of a batch, as the runner would pass it to the lookup."""

    tokens: torch.Tensor
    block_table: torch.Tensor
    seq_lens: torch.Tensor
    cu_num_draft_tokens: torch.Tensor | None
    sampled_token_ids: torch.Tensor
    discard_mask: torch.Tensor
    options: dict
    k: int
    # History of each row, new tokens included, and the number of new tokens.
    histories: list[np.ndarray] = field(default_factory=list)
    num_new: list[int] = field(default_factory=list)

    @property
    def num_rows(self) -> int:
        return self.sampled_token_ids.shape[0]


@dataclass
class Result:
    draft_token_ids: torch.Tensor
    num_valid_drafts: torch.Tensor
    next_token_ids: torch.Tensor
    num_sampled: torch.Tensor


def _random_histories(
    rng: np.random.Generator, num_rows: int, width: int, vocab_size: int
) -> np.ndarray:
    """[num_rows, width]; every row repeats itself in a way of its own."""
    alphabet = rng.integers(1, vocab_size + 1, (num_rows, 1))
    rows = (rng.random((num_rows, width)) * alphabet).astype(np.int32)
    for row in rows:
        kind = rng.integers(4)
        if kind == 0:  # a period, with or without noise
            period = int(rng.integers(1, width + 1))
            row[:] = np.resize(row[:period], width)
        elif kind == 1:  # a few copied stretches
            for _ in range(3):
                length = int(rng.integers(1, width // 2 + 2))
                src, dst = rng.integers(0, max(1, width - length), 2)
                row[dst : dst + length] = row[src : src + length].copy()
        if kind <= 1 and rng.random() < 0.5:
            row[rng.integers(0, width)] = rng.integers(0, vocab_size)
    return rows


def _random_lengths(
    rng: np.random.Generator,
    num_rows: int,
    num_new: np.ndarray,
    block_size: int,
    max_model_len: int,
) -> np.ndarray:
    """Tokens before the new ones: anything, block boundaries, the limit."""
    base = rng.integers(1, max_model_len + 1, num_rows)
    kind = rng.integers(0, 4, num_rows)
    boundary = rng.integers(0, max_model_len // block_size + 1, num_rows) * block_size
    base = np.where(kind == 1, boundary + rng.integers(-1, 2, num_rows), base)
    limit = max_model_len - num_new + rng.integers(-3, 3, num_rows)
    base = np.where(kind == 2, limit, base)
    return np.clip(base, 1, max_model_len)


def random_step(
    rng: np.random.Generator,
    num_rows: int,
    max_model_len: int | None = None,
    block_size: int | None = None,
    device: str = "cpu",
) -> Step:
    """Makes a step with shared prefix blocks, rejected drafts, discarded rows."""
    k = int(rng.integers(1, 17))
    min_n, max_n = (int(n) for n in np.sort(rng.integers(1, 17, 2)))
    if block_size is None:
        block_size = int(rng.choice([1, 2, 3, 4, 8, 12, 16, 24]))
    if max_model_len is None:
        max_model_len = int(rng.integers(k + 2, 140))
    vocab_size = int(rng.choice([1, 2, 3, 5, 40, 1000]))

    num_new = rng.integers(1, k + 2, num_rows)
    base = _random_lengths(rng, num_rows, num_new, block_size, max_model_len)
    # Drafts of the step that were rejected take slots, but are no history.
    rejected = np.minimum(rng.integers(0, k + 2 - num_new), max_model_len - base)
    # The accepted drafts have slots as well: all new tokens but the last do.
    has_slot = np.minimum(base + num_new - 1, max_model_len)
    num_drafts = has_slot - base + rejected
    slots_used = np.minimum(base + num_drafts, max_model_len)
    num_drafts = slots_used - base

    histories = _random_histories(rng, num_rows, max_model_len + k + 1, vocab_size)
    max_blocks = -(-max_model_len // block_size)
    block_ids = rng.permutation(num_rows * max_blocks + 1).astype(np.int32)
    table = block_ids[: num_rows * max_blocks].reshape(num_rows, max_blocks)
    # Some rows start with blocks of another row that are full there.
    for row in range(1, num_rows):
        if rng.random() < 0.3:
            other = int(rng.integers(0, row))
            full = int(min(base[row], base[other])) // block_size
            shared = int(rng.integers(0, full + 1))
            table[row, :shared] = table[other, :shared]
            span = shared * block_size
            histories[row, :span] = histories[other, :span]

    # What no history covers is left at random tokens of the same kind.
    num_slots = (num_rows * max_blocks + 1) * block_size
    tokens = rng.integers(0, vocab_size, num_slots).astype(np.int32)
    pos = np.arange(max_model_len)
    slots = table[:, pos // block_size] * block_size + pos % block_size
    written = pos[None] < base[:, None]
    tokens[slots[written]] = histories[:, :max_model_len][written]
    blocks_used = -(-slots_used // block_size)
    table[np.arange(max_blocks)[None] >= blocks_used[:, None]] = POISON_BLOCK

    sampled = np.full((num_rows, k + 1), -1, dtype=np.int32)
    cols = np.arange(k + 1)
    new = cols[None] < num_new[:, None]
    at = np.minimum(base[:, None] + cols, histories.shape[1] - 1)
    sampled[new] = np.take_along_axis(histories, at, axis=1)[new]
    # Tokens after a hole, and ids outside of the vocabulary, do not count.
    hole = ~new & (cols[None] > num_new[:, None]) & (rng.random(new.shape) < 0.05)
    sampled[hole] = 0
    first_hole = ~new & (cols[None] == num_new[:, None])
    sampled[first_hole & (rng.random(new.shape) < 0.1)] = vocab_size
    discard = rng.random(num_rows) < 0.1

    dtype = torch.int32 if rng.random() < 0.8 else torch.int64
    plain = rng.random() < 0.2  # a step that verified no drafts
    if plain:
        num_new[:], sampled, slots_used = 1, sampled[:, :1].copy(), base
    return Step(
        tokens=torch.from_numpy(tokens).to(device),
        block_table=torch.from_numpy(table).to(device),
        seq_lens=torch.from_numpy(slots_used.astype(np.int32)).to(device),
        cu_num_draft_tokens=None
        if plain
        else torch.from_numpy(np.cumsum(num_drafts).astype(np.int32)).to(device),
        sampled_token_ids=torch.from_numpy(sampled).to(device, dtype),
        discard_mask=torch.from_numpy(discard).to(device),
        options=dict(
            block_size=block_size,
            max_seq_len=int(slots_used.max()),
            min_n=min_n,
            max_n=max_n,
            max_model_len=max_model_len,
            vocab_size=vocab_size,
        ),
        k=k,
        histories=[histories[r, : base[r] + num_new[r]] for r in range(num_rows)],
        num_new=num_new.tolist(),
    )


@contextmanager
def bounds_checked(tensors: list[torch.Tensor]) -> Iterator[None]:
    """Fails where an interpreted kernel touches memory outside of `tensors`."""
    from triton.runtime.interpreter import InterpreterBuilder

    starts = np.array([t.data_ptr() for t in tensors], dtype=np.uint64)
    ends = starts + np.array([t.nbytes for t in tensors], dtype=np.uint64)

    def checked(name: str, mask_at: int):
        original = getattr(InterpreterBuilder, name)

        def access(self, *args):
            pointers = next(a for a in args if hasattr(a, "data"))
            mask = np.broadcast_to(args[mask_at].data, pointers.data.shape)
            used = pointers.data[mask.astype(bool)].astype(np.uint64).reshape(-1, 1)
            inside = ((used >= starts) & (used < ends)).any(axis=1)
            assert inside.all(), f"{name} outside of every tensor"
            return original(self, *args)

        return patch.object(InterpreterBuilder, name, access)

    with (
        checked("create_masked_load", 1),
        checked("create_masked_store", 2),
        checked("create_atomic_rmw", 3),
    ):
        yield


def run_lookup(step: Step, use_triton: bool, state: torch.Tensor | None = None):
    """Runs the kernel or the reference on `step`; outputs start poisoned."""
    device = step.tokens.device
    n = step.num_rows
    result = Result(
        *(
            torch.full(shape, -7, dtype=torch.int32, device=device)
            for shape in ((n, step.k), (n,), (n,), (n,))
        )
    )
    inputs = (
        step.tokens,
        step.block_table,
        step.seq_lens,
        step.cu_num_draft_tokens,
        step.sampled_token_ids,
        step.discard_mask,
        result.draft_token_ids,
        result.num_valid_drafts,
        result.next_token_ids,
        result.num_sampled,
    )
    if not use_triton:
        ngram_lookup_reference(*inputs, **step.options)
        return result
    if state is None:
        state = torch.zeros((2, n), dtype=torch.int32, device=device)
    units = 1
    if device.type == "cuda":
        units = torch.cuda.get_device_properties(device).multi_processor_count
    tensors = [t for t in (*inputs, state) if t is not None]
    with bounds_checked(tensors) if device.type == "cpu" else nullcontext():
        ngram_lookup(*inputs, state, num_compute_units=units, **step.options)
    assert not state.any(), "the launch must leave its state at zero"
    return result


def cpu_drafts(history: np.ndarray, k: int, options: dict) -> np.ndarray:
    """What `NgramProposer` proposes for a request with this history."""
    if len(history) >= options["max_model_len"]:
        return history[:0]
    return _find_longest_matched_ngram_and_propose_tokens(
        history, options["min_n"], options["max_n"], options["max_model_len"], k
    )


def check_result(step: Step, result: Result) -> int:
    """Compares `result` with the CPU proposer; returns the number of drafts."""
    drafts = result.draft_token_ids.tolist()
    valid = result.num_valid_drafts.tolist()
    next_tokens = result.next_token_ids.tolist()
    num_sampled = result.num_sampled.tolist()
    discarded = step.discard_mask.tolist()
    total = 0
    for row, history in enumerate(step.histories):
        num_new = step.num_new[row]
        if discarded[row]:
            history, num_new = history[: len(history) - num_new], 0
            expected = history[:0]
        else:
            expected = cpu_drafts(history, step.k, step.options)
        count = len(expected)
        expected = expected.tolist() + [history[-1]] * (step.k - count)
        got = (drafts[row], valid[row], next_tokens[row], num_sampled[row])
        assert got == (expected, count, history[-1], num_new), (
            f"{row=} {history=} {step.k=} {step.options=}"
        )
        total += count
    return total
