# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Appends the tokens sampled in a step to the rows of the input batch.

One call writes the token ids, the `is_token_ids` flags and the new lengths of
every row, straight from the padded array copied from the device. Numba compiles
the call when the writer is created; NumPy is used where numba is not installed
or its compiler is turned off (NUMBA_DISABLE_JIT).
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch

from vllm.logger import init_logger

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_input_batch import InputBatch

logger = init_logger(__name__)

# Marks a rejected column in the output of RejectionSampler, and takes the place
# of tokens that have not reached the host yet under async scheduling.
PLACEHOLDER_TOKEN_ID = -1

# Below this many cells the plain loop beats NumPy's fixed cost per call.
_MAX_CELLS_PLAIN_LOOP = 4


def append_rows(
    sampled: np.ndarray,
    discard: np.ndarray,
    vocab_size: int,
    max_model_len: int,
    token_ids: np.ndarray,
    is_token_ids: np.ndarray,
    num_tokens: np.ndarray,
    num_new_tokens: np.ndarray,
) -> int:
    """Append each row's sampled tokens after its last token.

    All rows are checked before the first one is written, so an error leaves
    the batch unchanged. Compiled by numba, see `get_append_rows`.

    Args:
        sampled: [num_rows, width] int32. Row i belongs to batch row i. Each
            row is compacted in place: its valid tokens move to the front, the
            remaining cells are undefined afterwards.
        discard: [>= num_rows] bool, true where the row's tokens are dropped.
        vocab_size: PLACEHOLDER_TOKEN_ID and ids >= vocab_size are skipped.
            If negative, every cell is a token.
        max_model_len: Maximum number of tokens per row.
        token_ids: [max_num_reqs, row_len] int32, updated.
        is_token_ids: [max_num_reqs, row_len] bool, updated.
        num_tokens: [max_num_reqs] int32, length of each row, updated.
        num_new_tokens: [>= num_rows] int32, out: tokens appended to each row.

    Returns:
        -1, or the first row that would exceed max_model_len, in which case
        only num_new_tokens was written.
    """
    num_rows, width = sampled.shape
    # A write must never reach the next row.
    max_len = min(max_model_len, token_ids.shape[1])
    for i in range(num_rows):
        num_new = 0
        if not discard[i]:
            if vocab_size < 0:
                num_new = width
            else:
                for j in range(width):
                    num_new += (sampled[i, j] != -1) & (sampled[i, j] < vocab_size)
        num_new_tokens[i] = num_new
        if num_new > 0 and num_tokens[i] + num_new > max_len:
            return i

    for i in range(num_rows):
        num_new = num_new_tokens[i]
        if num_new == 0:
            continue
        start = num_tokens[i]
        j = 0
        k = 0
        while k < num_new:
            token_id = sampled[i, j]
            # Invalid ids are overwritten by the next valid one.
            token_ids[i, start + k] = token_id
            is_token_ids[i, start + k] = True
            if j != k:
                sampled[i, k] = token_id
            j += 1
            k += (vocab_size < 0) | ((token_id != -1) & (token_id < vocab_size))
        num_tokens[i] = start + num_new
    return -1


def append_rows_numpy(
    sampled: np.ndarray,
    discard: np.ndarray,
    vocab_size: int,
    max_model_len: int,
    token_ids: np.ndarray,
    is_token_ids: np.ndarray,
    num_tokens: np.ndarray,
    num_new_tokens: np.ndarray,
) -> int:
    """`append_rows` without a compiler, same arguments and results."""
    if sampled.size <= _MAX_CELLS_PLAIN_LOOP:
        return append_rows(
            sampled,
            discard,
            vocab_size,
            max_model_len,
            token_ids,
            is_token_ids,
            num_tokens,
            num_new_tokens,
        )

    num_rows = sampled.shape[0]
    valid = np.broadcast_to(~discard[:num_rows, None], sampled.shape)
    if vocab_size >= 0:
        valid = valid & (sampled != PLACEHOLDER_TOKEN_ID) & (sampled < vocab_size)
    num_new = valid.sum(axis=1, dtype=np.int32)
    num_new_tokens[:num_rows] = num_new
    starts = num_tokens[:num_rows]
    max_len = min(max_model_len, token_ids.shape[1])
    too_long = (num_new > 0) & (starts + num_new > max_len)
    if too_long.any():
        return int(too_long.argmax())

    rows, cols = np.nonzero(valid)
    new_token_ids = sampled[rows, cols]
    # Index of each token among the tokens of its row.
    ranks = np.arange(rows.size) - (num_new.cumsum() - num_new)[rows]
    positions = starts[rows] + ranks
    token_ids[rows, positions] = new_token_ids
    is_token_ids[rows, positions] = True
    sampled[rows, ranks] = new_token_ids
    num_tokens[:num_rows] = starts + num_new
    return -1


@functools.cache
def get_append_rows() -> Callable[..., int]:
    """Return `append_rows`, compiled once per process if numba can compile."""
    try:
        import numba
        from numba import types
    except ImportError:
        logger.info_once("numba is not installed, using NumPy to write sampled tokens.")
        return append_rows_numpy
    if numba.config.DISABLE_JIT:
        logger.info_once(
            "NUMBA_DISABLE_JIT is set, using NumPy to write sampled tokens."
        )
        return append_rows_numpy

    # The explicit signature compiles the function here rather than on the first
    # request. It isn't cached on disk: the install folder may be read-only.
    signature = types.int64(
        types.int32[:, ::1],  # sampled
        types.boolean[::1],  # discard
        types.int32,  # vocab_size
        types.int64,  # max_model_len
        types.int32[:, ::1],  # token_ids
        types.boolean[:, ::1],  # is_token_ids
        types.int32[::1],  # num_tokens
        types.int32[::1],  # num_new_tokens
    )
    # Unsigned indices avoid numba's wraparound checks.
    local_types = {
        **dict.fromkeys(("i", "j", "k", "start"), types.uint64),
        "num_new": types.int32,
    }
    return numba.njit(signature, locals=local_types)(append_rows)


class SampledTokensBuffer:
    """Host memory for the sampled tokens of a step.

    Args:
        max_num_reqs: Maximum number of rows.
        max_width: Maximum number of tokens per row.
        pin_memory: Whether to pin the memory for copies from the device.
    """

    def __init__(self, max_num_reqs: int, max_width: int, pin_memory: bool) -> None:
        flat = torch.empty(
            max_num_reqs * max_width,
            dtype=torch.int32,
            device="cpu",
            pin_memory=pin_memory,
        )
        # All widths share the memory, and each view is contiguous.
        tensors = [
            flat[: max_num_reqs * width].view(max_num_reqs, width)
            for width in range(1, max_width + 1)
        ]
        self._full_views = [(tensor, tensor.numpy()) for tensor in tensors]
        self._last_views = list(self._full_views)

    def get(self, shape: torch.Size) -> tuple[torch.Tensor, np.ndarray]:
        """Return the buffer as a tensor of this shape and as its array.

        Args:
            shape: [num_rows, width] of the sampled token ids.
        """
        num_rows, width = shape
        views = self._last_views[width - 1]
        # Most steps have as many rows as the previous one, and creating a view
        # takes as long as the copy.
        if views[1].shape[0] != num_rows:
            tensor, array = self._full_views[width - 1]
            views = tensor[:num_rows], array[:num_rows]
            self._last_views[width - 1] = views
        return views


class TokenWriter:
    """Appends a step's tokens to the input batch, all rows in one call.

    The constructor compiles the call, so create the writer at startup.

    Args:
        max_num_reqs: Number of rows of the input batch.
        max_model_len: Maximum number of tokens per request.
    """

    def __init__(self, max_num_reqs: int, max_model_len: int) -> None:
        self.max_num_reqs = max_num_reqs
        self.max_model_len = max_model_len
        self._append_rows = get_append_rows()
        self._num_new_tokens = np.zeros(max_num_reqs, dtype=np.int32)
        self._placeholders = np.full(
            (max_num_reqs, 1), PLACEHOLDER_TOKEN_ID, dtype=np.int32
        )

    def append(
        self,
        input_batch: "InputBatch",
        sampled_token_ids: np.ndarray,
        discard_mask: np.ndarray,
        vocab_size: int | None = None,
    ) -> np.ndarray:
        """Append sampled tokens to the rows of the batch.

        NOTE: `sampled_token_ids` is compacted in place, so the columns no
        longer line up with the logprobs afterwards. Anything that needs the
        original columns (e.g. `RejectionSampler.parse_logprobs`) has to read
        them before this call.

        Args:
            input_batch: The batch to update.
            sampled_token_ids: [num_rows, width] int32 on the host, row i for
                batch row i. On return, each row starts with its valid tokens.
            discard_mask: [>= num_rows] bool, rows whose tokens are dropped.
            vocab_size: If set, placeholders and ids outside of the vocabulary
                are skipped (the output of the rejection sampler).

        Returns:
            [num_rows] int32, number of tokens appended to each row. Valid
            until the next call.

        Raises:
            AssertionError: A row would exceed max_model_len. The batch is
                left unchanged.
            ValueError: There are more sampled rows than batch rows.
        """
        num_rows = sampled_token_ids.shape[0]
        if num_rows > self.max_num_reqs:
            raise ValueError(f"{num_rows} sampled rows, {self.max_num_reqs} in batch.")
        num_new_tokens = self._num_new_tokens
        row = self._append_rows(
            sampled_token_ids,
            discard_mask,
            -1 if vocab_size is None else vocab_size,
            self.max_model_len,
            input_batch.token_ids_cpu,
            input_batch.is_token_ids,
            input_batch.num_tokens_no_spec,
            num_new_tokens,
        )
        if row >= 0:
            end_idx = input_batch.num_tokens_no_spec[row] + num_new_tokens[row]
            raise AssertionError(
                "Sampled token IDs exceed the max model length. "
                f"Total number of tokens: {end_idx} > max_model_len: "
                f"{self.max_model_len} (request {input_batch.req_ids[row]})"
            )
        return num_new_tokens[:num_rows]

    def append_placeholders(
        self, input_batch: "InputBatch", num_rows: int, discard_mask: np.ndarray
    ) -> None:
        """Append one placeholder to each of the first rows (async scheduling).

        Args:
            input_batch: The batch to update.
            num_rows: Number of rows that sampled in this step.
            discard_mask: [>= num_rows] bool, rows that are left alone.

        Raises:
            AssertionError: A row would exceed max_model_len. The batch is
                left unchanged.
        """
        self.append(input_batch, self._placeholders[:num_rows], discard_mask)
