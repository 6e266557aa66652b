# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""`append_rows`, compiled by numba when this module is imported.

With speculation, how many tokens a row gets is hard to foresee. A loop over
them is mispredicted once per row, which takes longer than the writes. So rows
of up to NUM_LANES columns are read and written as one vector each, with a mask
of the lanes that count. Where a CPU cannot do that, LLVM makes branches of it.
"""

from collections.abc import Sequence

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic

from vllm.v1.worker.token_writer import PLACEHOLDER_TOKEN_ID, append_rows

NUM_LANES = 8

_INT8, _INT32, _INT64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_IDS = ir.VectorType(_INT32, NUM_LANES)
_FLAGS = ir.VectorType(_INT8, NUM_LANES)
_ID_BYTES = 4
_NUM_SET_BITS = np.array([bin(x).count("1") for x in range(1 << NUM_LANES)], np.int32)


def _constant(vector: ir.VectorType, values: Sequence[int]) -> ir.Constant:
    return ir.Constant(vector, [ir.Constant(vector.element, x) for x in values])


def _in_all_lanes(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    undefined = ir.Constant(_IDS, ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(_INT32, 0))
    return builder.shuffle_vector(first, undefined, _constant(_IDS, [0] * NUM_LANES))


def _first_lanes(builder: ir.IRBuilder, num_lanes: ir.Value) -> ir.Value:
    """The mask of the first lanes, so many of them."""
    count = _in_all_lanes(builder, builder.trunc(num_lanes, _INT32))
    return builder.icmp_unsigned("<", _constant(_IDS, range(NUM_LANES)), count)


def _call(
    builder: ir.IRBuilder, name: str, result: ir.Type, *args: ir.Value
) -> ir.Value:
    function_type = ir.FunctionType(result, [arg.type for arg in args])
    function = get_or_insert_function(builder.module, function_type, name)
    return builder.call(function, args)


def _load_ids(
    builder: ir.IRBuilder, address: ir.Value, mask: ir.Value, others: ir.Constant
) -> ir.Value:
    pointer = builder.inttoptr(address, _IDS.as_pointer())
    align = ir.Constant(_INT32, _ID_BYTES)
    name = f"llvm.masked.load.v{NUM_LANES}i32.p0"
    return _call(builder, name, _IDS, pointer, align, mask, others)


def _store(
    builder: ir.IRBuilder, address: ir.Value, value: ir.Value, mask: ir.Value
) -> None:
    width = value.type.element.width
    pointer = builder.inttoptr(address, value.type.as_pointer())
    align = ir.Constant(_INT32, width // 8)
    name = f"llvm.masked.store.v{NUM_LANES}i{width}.p0"
    _call(builder, name, ir.VoidType(), value, pointer, align, mask)


@intrinsic
def _token_bits(typing_context, address, width, vocab_size):
    """Bit j is set where cell j of the row holds a token.

    Args:
        address: Of the row's first cell (int32).
        width: Number of cells to look at, at most NUM_LANES.
        vocab_size: Placeholders and ids from here on are no tokens.
    """

    def generate(context, builder, signature, args):
        address, width, vocab_size = args
        placeholders = _constant(_IDS, [PLACEHOLDER_TOKEN_ID] * NUM_LANES)
        mask = _first_lanes(builder, width)
        ids = _load_ids(builder, address, mask, placeholders)
        bits = builder.and_(
            builder.icmp_signed("!=", ids, placeholders),
            builder.icmp_signed("<", ids, _in_all_lanes(builder, vocab_size)),
        )
        return builder.zext(builder.bitcast(bits, _INT8), _INT64)

    return types.uint64(types.uint64, types.uint64, types.int32), generate


@intrinsic
def _write_row(typing_context, ids, flags, tokens, num_tokens):
    """Copy tokens to a row, and set their flags.

    Args:
        ids: Address of the row's first new cell of token_ids.
        flags: Address of its first new cell of is_token_ids.
        tokens: Address of the first token (int32).
        num_tokens: Number of tokens, at most NUM_LANES.
    """

    def generate(context, builder, signature, args):
        ids, flags, tokens, num_tokens = args
        mask = _first_lanes(builder, num_tokens)
        zeros = _constant(_IDS, [0] * NUM_LANES)
        _store(builder, ids, _load_ids(builder, tokens, mask, zeros), mask)
        _store(builder, flags, _constant(_FLAGS, [1] * NUM_LANES), mask)
        return context.get_dummy_value()

    return types.void(*[types.uint64] * 4), generate


# The types and layouts of an InputBatch. With a signature numba compiles here,
# and not on the first request. There is no on-disk cache, since the folder of an
# installed package may not be writable.
_SIGNATURE = types.int64(
    types.int32[:, ::1],  # sampled
    types.boolean[::1],  # discard
    types.int32,  # vocab_size
    types.int64,  # max_model_len
    types.int32[:, ::1],  # token_ids
    types.boolean[:, ::1],  # is_token_ids
    types.int32[::1],  # num_tokens
    types.int32[::1],  # num_new_tokens
)
# Unsigned indices need no test for negative ones; a narrow counter lets a loop
# over the columns use wide registers.
_LOCALS = {
    **dict.fromkeys(("i", "j", "k", "start"), types.uint64),
    "num_new": types.int32,
}

_append_any_rows = njit(_SIGNATURE, locals=_LOCALS)(append_rows)


@njit(_SIGNATURE, locals={**_LOCALS, "bits": types.uint64})
def append_rows_compiled(
    sampled: np.ndarray,
    discard: np.ndarray,
    vocab_size: int,
    max_model_len: int,
    token_ids: np.ndarray,
    is_token_ids: np.ndarray,
    num_tokens: np.ndarray,
    num_new_tokens: np.ndarray,
) -> int:
    """See `append_rows`."""
    num_rows, width = sampled.shape
    if width == 1 or width > NUM_LANES or vocab_size < 0:
        return _append_any_rows(
            sampled,
            discard,
            vocab_size,
            max_model_len,
            token_ids,
            is_token_ids,
            num_tokens,
            num_new_tokens,
        )

    row_len = token_ids.shape[1]
    max_len = min(max_model_len, row_len)
    row_bytes = types.uint64(width * _ID_BYTES)
    tokens = types.uint64(sampled.ctypes.data)
    for i in range(num_rows):
        row_width = 0 if discard[i] else width
        bits = _token_bits(tokens + i * row_bytes, row_width, vocab_size)
        num_new = _NUM_SET_BITS[bits]
        num_new_tokens[i] = num_new
        if num_new > 0 and num_tokens[i] + num_new > max_len:
            return i
        if bits & (bits + 1):
            # Rare: the row's tokens do not stand in front.
            k = 0
            for j in range(width):
                token_id = sampled[i, j]
                sampled[i, k] = token_id
                k += (token_id != PLACEHOLDER_TOKEN_ID) & (token_id < vocab_size)

    ids = types.uint64(token_ids.ctypes.data)
    flags = types.uint64(is_token_ids.ctypes.data)
    for i in range(num_rows):
        num_new = num_new_tokens[i]
        if num_new > 0:
            start = i * row_len + num_tokens[i]
            _write_row(
                ids + start * _ID_BYTES, flags + start, tokens + i * row_bytes, num_new
            )
            num_tokens[i] += num_new
    return -1
