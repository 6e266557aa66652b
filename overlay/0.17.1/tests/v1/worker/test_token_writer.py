# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The token writer against a plain loop over the rows."""

import mmap
import sys
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from vllm.sampling_params import SamplingParams
from vllm.v1.worker import token_writer
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch
from vllm.v1.worker.token_writer import (
    SampledTokensBuffer,
    TokenWriter,
    append_rows,
    append_rows_numpy,
    get_append_rows,
)

pytestmark = pytest.mark.skip_global_cleanup

VOCAB_SIZE = 100
MAX_MODEL_LEN = 48
STATE = ("token_ids_cpu", "is_token_ids", "num_tokens_no_spec")


@dataclass
class Batch:
    """The part of an InputBatch that the writer touches."""

    token_ids_cpu: np.ndarray
    is_token_ids: np.ndarray
    num_tokens_no_spec: np.ndarray
    req_ids: list[str] = field(default_factory=list)

    def copy(self) -> "Batch":
        state = {name: getattr(self, name).copy() for name in STATE}
        return Batch(**state, req_ids=self.req_ids)


def make_batch(
    rng: np.random.Generator, max_num_reqs: int, max_new_tokens: int
) -> Batch:
    """Rows of random content and length, some just short enough."""
    longest = MAX_MODEL_LEN - max_new_tokens
    lengths = rng.integers(1, longest, max_num_reqs, endpoint=True, dtype=np.int32)
    lengths[rng.random(max_num_reqs) < 0.2] = longest
    shape = (max_num_reqs, MAX_MODEL_LEN)
    return Batch(
        token_ids_cpu=rng.integers(-1, VOCAB_SIZE, shape, dtype=np.int32),
        is_token_ids=rng.random(shape) < 0.5,
        num_tokens_no_spec=lengths,
        req_ids=[f"req-{i}" for i in range(max_num_reqs)],
    )


def make_sampled(rng: np.random.Generator, num_rows: int, width: int) -> np.ndarray:
    """What a rejection sampler may hand back: tokens, then placeholders, with
    ids outside of the vocabulary in a few places."""
    sampled = rng.integers(0, VOCAB_SIZE, (num_rows, width), dtype=np.int32)
    num_sampled = rng.integers(0, width, (num_rows, 1), endpoint=True)
    sampled[np.arange(width) >= num_sampled] = -1
    outside = rng.random(sampled.shape) < 0.05
    sampled[outside] = VOCAB_SIZE + rng.integers(0, 3, np.count_nonzero(outside))
    return sampled


def reference_append(
    batch: Batch, sampled: np.ndarray, discard: np.ndarray, vocab_size: int | None
) -> list[list[int]]:
    """Row by row, token by token."""
    new_tokens: list[list[int]] = []
    for i, row in enumerate(sampled.tolist()):
        tokens = row
        if vocab_size is not None:
            tokens = [t for t in row if t != -1 and t < vocab_size]
        if discard[i]:
            tokens = []
        new_tokens.append(tokens)
        for token in tokens:
            position = batch.num_tokens_no_spec[i]
            batch.token_ids_cpu[i, position] = token
            batch.is_token_ids[i, position] = True
            batch.num_tokens_no_spec[i] += 1
    return new_tokens


def assert_same(actual: Batch, expected: Batch) -> None:
    for name in STATE:
        np.testing.assert_array_equal(
            getattr(actual, name), getattr(expected, name), err_msg=name
        )


@pytest.fixture(params=["default", "plain", "numpy"])
def make_writer(request, monkeypatch):
    """Makes writers with each implementation of the call."""
    functions = {"plain": append_rows, "numpy": append_rows_numpy}
    if function := functions.get(request.param):
        monkeypatch.setattr(token_writer, "get_append_rows", lambda: function)
    return TokenWriter


@pytest.mark.parametrize("num_rows", [0, 1, 2, 3, 5, 17, 64, 256, 1024])
@pytest.mark.parametrize("fraction", [0.0, 0.01, 0.1, 0.5, 1.0])
def test_append_equals_loop(make_writer, num_rows: int, fraction: float):
    rng = np.random.default_rng(num_rows * 100 + int(fraction * 10))
    max_num_reqs = max(num_rows, 1) + 2
    writer = make_writer(max_num_reqs, MAX_MODEL_LEN)
    for width in (1, 2, 4, 8, 9):
        for vocab_size in (None, VOCAB_SIZE):
            batch = make_batch(rng, max_num_reqs, width)
            expected = batch.copy()
            sampled = make_sampled(rng, num_rows, width)
            discard = rng.random(max_num_reqs) >= fraction
            discard_before = discard.copy()

            new_tokens = reference_append(expected, sampled, discard, vocab_size)
            num_new = writer.append(batch, sampled, discard, vocab_size)

            assert_same(batch, expected)
            assert num_new.tolist() == [len(tokens) for tokens in new_tokens]
            # The tokens are left at the front of their row.
            assert [r[:n] for r, n in zip(sampled.tolist(), num_new)] == new_tokens
            np.testing.assert_array_equal(discard, discard_before)


@pytest.mark.parametrize("num_rows", [0, 1, 7, 256])
def test_append_placeholders(make_writer, num_rows: int):
    rng = np.random.default_rng(num_rows)
    max_num_reqs = num_rows + 3
    writer = make_writer(max_num_reqs, MAX_MODEL_LEN)
    for _ in range(3):
        batch = make_batch(rng, max_num_reqs, 1)
        expected = batch.copy()
        discard = rng.random(max_num_reqs) < 0.3

        placeholders = np.full((num_rows, 1), -1, dtype=np.int32)
        reference_append(expected, placeholders, discard, None)
        writer.append_placeholders(batch, num_rows, discard)

        assert_same(batch, expected)


@pytest.mark.parametrize("bad_row", [0, 3, 5])
@pytest.mark.parametrize("width", [1, 3])
def test_row_too_long(make_writer, bad_row: int, width: int):
    """No row is written if one of them would pass max_model_len."""
    rng = np.random.default_rng(bad_row)
    writer = make_writer(8, MAX_MODEL_LEN)
    batch = make_batch(rng, 8, width)
    batch.num_tokens_no_spec[bad_row] = MAX_MODEL_LEN - width + 1
    before = batch.copy()
    sampled = rng.integers(0, VOCAB_SIZE, (6, width), dtype=np.int32)
    discard = np.zeros(8, dtype=bool)

    message = (
        "Sampled token IDs exceed the max model length. Total number of tokens: "
        rf"{MAX_MODEL_LEN + 1} > max_model_len: {MAX_MODEL_LEN} "
        rf"\(request req-{bad_row}\)"
    )
    with pytest.raises(AssertionError, match=message):
        writer.append(batch, sampled.copy(), discard, VOCAB_SIZE)
    assert_same(batch, before)
    if width == 1:
        with pytest.raises(AssertionError, match=f"req-{bad_row}"):
            writer.append_placeholders(batch, 6, discard)
        assert_same(batch, before)

    # No error if the row's tokens are dropped, or if it has none.
    discard[bad_row] = True
    writer.append(batch.copy(), sampled.copy(), discard, VOCAB_SIZE)
    discard[bad_row] = False
    sampled[bad_row] = -1
    writer.append(batch, sampled, discard, VOCAB_SIZE)
    assert batch.num_tokens_no_spec[bad_row] == MAX_MODEL_LEN - width + 1


def test_row_filled_to_the_end(make_writer):
    """The last token of a row does not reach the next row."""
    writer = make_writer(3, MAX_MODEL_LEN)
    batch = make_batch(np.random.default_rng(0), 3, 2)
    batch.num_tokens_no_spec[:] = MAX_MODEL_LEN - 2
    expected = batch.copy()
    sampled = np.array([[7, 8], [9, -1]], dtype=np.int32)
    discard = np.zeros(3, dtype=bool)

    reference_append(expected, sampled, discard, VOCAB_SIZE)
    writer.append(batch, sampled, discard, VOCAB_SIZE)

    assert_same(batch, expected)
    assert batch.num_tokens_no_spec.tolist() == [MAX_MODEL_LEN, MAX_MODEL_LEN - 1, 46]


@pytest.mark.parametrize("width", [1, 2, 5, 8, 9])
def test_no_write_outside_of_the_arrays(make_writer, width: int):
    """Nor by columns without a token."""
    writer = make_writer(2, MAX_MODEL_LEN)
    batch = make_batch(np.random.default_rng(0), 4, width)
    expected = batch.copy()
    inner = Batch(*(getattr(batch, name)[1:3] for name in STATE))
    inner.num_tokens_no_spec[:] = MAX_MODEL_LEN - width, 0
    sampled = np.full((2, width), 7, dtype=np.int32)
    sampled[1, 1:] = -1

    writer.append(inner, sampled, np.zeros(2, dtype=bool), VOCAB_SIZE)

    expected.token_ids_cpu[1, MAX_MODEL_LEN - width :] = 7
    expected.is_token_ids[1, MAX_MODEL_LEN - width :] = True
    expected.token_ids_cpu[2, 0] = 7
    expected.is_token_ids[2, 0] = True
    expected.num_tokens_no_spec[1:3] = MAX_MODEL_LEN, 1
    assert_same(batch, expected)


@pytest.mark.parametrize("num_rows", [1, 8])
def test_limit_is_the_row_if_shorter(make_writer, num_rows: int):
    writer = make_writer(num_rows, MAX_MODEL_LEN + 10)
    batch = make_batch(np.random.default_rng(0), num_rows, 1)
    batch.num_tokens_no_spec[num_rows - 1] = MAX_MODEL_LEN
    before = batch.copy()
    discard = np.zeros(num_rows, dtype=bool)
    sampled = np.ones((num_rows, 2), dtype=np.int32)
    with pytest.raises(AssertionError, match=f"req-{num_rows - 1}"):
        writer.append_placeholders(batch, num_rows, discard)
    with pytest.raises(AssertionError, match=f"req-{num_rows - 1}"):
        writer.append(batch, sampled, discard, VOCAB_SIZE)
    assert_same(batch, before)


def test_more_rows_than_the_batch(make_writer):
    writer = make_writer(2, MAX_MODEL_LEN)
    batch = make_batch(np.random.default_rng(0), 2, 1)
    with pytest.raises(ValueError, match="3 sampled rows, 2 in batch"):
        writer.append(batch, np.zeros((3, 1), dtype=np.int32), np.zeros(3, dtype=bool))


def make_input_batch(max_model_len: int) -> InputBatch:
    return InputBatch(
        max_num_reqs=4,
        max_model_len=max_model_len,
        max_num_batched_tokens=64,
        device=torch.device("cpu"),
        pin_memory=False,
        vocab_size=VOCAB_SIZE,
        block_sizes=[16],
        kernel_block_sizes=[16],
    )


def test_real_input_batch():
    """Types and layouts of the arrays are those of InputBatch."""
    input_batch = make_input_batch(MAX_MODEL_LEN)
    for i in range(3):
        input_batch.add_request(
            CachedRequestState(
                req_id=f"req-{i}",
                prompt_token_ids=[1, 2, 3],
                mm_features=[],
                sampling_params=SamplingParams(),
                generator=None,
                block_ids=([i],),
                num_computed_tokens=0,
                output_token_ids=[],
            )
        )
    sampled = torch.tensor([[4, 5], [6, -1], [7, 8]], dtype=torch.int32)
    discard = np.array([False, False, True, False])
    writer = TokenWriter(4, MAX_MODEL_LEN)

    num_new = writer.append(input_batch, sampled.numpy(), discard, VOCAB_SIZE)

    assert num_new.tolist() == [2, 1, 0]
    assert input_batch.num_tokens_no_spec.tolist() == [5, 4, 3, 0]
    assert input_batch.token_ids_cpu[:4, :6].tolist() == [
        [1, 2, 3, 4, 5, 0],
        [1, 2, 3, 6, 0, 0],
        [1, 2, 3, 0, 0, 0],
        [0, 0, 0, 0, 0, 0],
    ]
    assert input_batch.is_token_ids.sum(axis=1).tolist() == [5, 4, 3, 0]
    # The device is sent what the tensors hold.
    ids, flags = input_batch.token_ids_cpu_tensor, input_batch.is_token_ids_tensor
    np.testing.assert_array_equal(ids.numpy(), input_batch.token_ids_cpu)
    np.testing.assert_array_equal(flags.numpy(), input_batch.is_token_ids)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_input_batch_is_zeroed_lazily():
    """Creating the batch touches none of the rows' pages."""

    def resident_bytes() -> int:
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * mmap.PAGESIZE

    before = resident_bytes()
    input_batch = make_input_batch(max_model_len=1 << 22)
    grown = resident_bytes() - before

    arrays = (input_batch.token_ids_cpu, input_batch.is_token_ids)
    assert not any(array[:, ::4096].any() for array in arrays)
    assert grown < sum(array.nbytes for array in arrays) / 4


def test_compiled_when_created():
    """Nothing is left to compile for the first request, and nothing is cached
    on disk (the folder of an installed package may be read-only)."""
    pytest.importorskip("numba")
    writer = TokenWriter(2, MAX_MODEL_LEN)
    compiled = writer._append_rows
    assert len(compiled.nopython_signatures) == 1
    assert compiled.stats.cache_path is None

    batch = make_batch(np.random.default_rng(0), 2, 2)
    sampled = np.zeros((2, 2), dtype=np.int32)
    writer.append(batch, sampled, np.zeros(2, dtype=bool), VOCAB_SIZE)
    writer.append_placeholders(batch, 1, np.ones(2, dtype=bool))
    assert len(compiled.nopython_signatures) == 1
    # One per process.
    assert TokenWriter(3, MAX_MODEL_LEN)._append_rows is compiled


def test_without_numba(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    get_append_rows.cache_clear()
    try:
        assert get_append_rows() is append_rows_numpy
    finally:
        get_append_rows.cache_clear()


def test_without_jit(monkeypatch):
    """NUMBA_DISABLE_JIT turns the compiler off, it does not uninstall it."""
    numba = pytest.importorskip("numba")
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    get_append_rows.cache_clear()
    try:
        assert get_append_rows() is append_rows_numpy
    finally:
        get_append_rows.cache_clear()


def test_sampled_tokens_buffer():
    """Contiguous at each width, one memory, and views that follow the shape."""
    buffer = SampledTokensBuffer(4, 3, pin_memory=False)
    for shape in ((4, 3), (4, 3), (2, 3), (4, 1), (0, 1), (3, 2)):
        tensor, array = buffer.get(torch.Size(shape))
        assert tensor.shape == array.shape == shape
        assert tensor.is_contiguous() and tensor.dtype == torch.int32
        tensor.copy_(torch.arange(tensor.numel()).view(shape))
        assert array.ravel().tolist() == list(range(tensor.numel()))
    with pytest.raises(IndexError):
        buffer.get(torch.Size((4, 4)))
