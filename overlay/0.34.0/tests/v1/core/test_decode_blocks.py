# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""A decode step that fills no block changes neither blocks nor hashes."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash
from vllm.v1.request import Request

from .step_utils import (
    BLOCK_SIZE,
    KINDS,
    RANDOM_STEPS,
    STEPS,
    NewRequest,
    Side,
    Step,
    assert_steps_equal,
)

pytestmark = pytest.mark.cpu_test


class PlainRequest(Request):
    def update_block_hashes(self) -> None:
        if self._block_hasher is not None:
            self.block_hashes.extend(self._block_hasher(self))


def test_decode_steps_take_the_shortcuts() -> None:
    init_none_hash(sha256)
    side = Side(KINDS["full"])
    manager = side.scheduler.kv_cache_manager
    decode = Step((), accepted=(0,), tokens=(9,), abort=None, reset=False)
    side.step(replace(decode, new_requests=(NewRequest(0, BLOCK_SIZE, 24),)))
    (request,) = side.scheduler.running

    num_tokens = request.num_computed_tokens
    for _ in range(2 * BLOCK_SIZE):
        num_tokens += 1
        num_missing_blocks = manager.coordinator.get_num_missing_blocks(
            request.request_id, num_tokens
        )
        assert num_missing_blocks == (num_tokens % BLOCK_SIZE == 1)
        side.step(decode)
        assert request.num_computed_tokens == num_tokens
    assert manager.coordinator.get_num_missing_blocks("no such request", 1) is None


def test_blocks_that_do_not_fill_are_not_cached_again() -> None:
    init_none_hash(sha256)
    side = Side(KINDS["full"])
    (attention,) = side.scheduler.kv_cache_manager.coordinator.single_type_managers
    cached_at = []

    def cache_blocks(
        request: Request, num_tokens: int, *args: Any, **kwargs: Any
    ) -> None:
        cached_at.append(num_tokens)
        type(attention).cache_blocks(attention, request, num_tokens, *args, **kwargs)

    attention.cache_blocks = cache_blocks
    decode = Step((), accepted=(0,), tokens=(9,), abort=None, reset=False)
    side.step(replace(decode, new_requests=(NewRequest(0, BLOCK_SIZE, 24),)))
    for _ in range(2 * BLOCK_SIZE):
        side.step(decode)
    assert cached_at == [BLOCK_SIZE, 2 * BLOCK_SIZE, 3 * BLOCK_SIZE]


@pytest.mark.parametrize("name", KINDS)
@RANDOM_STEPS
@given(steps=STEPS)
def test_steps_equal_plain_steps(name: str, steps: list[Step]) -> None:
    plain = Side(KINDS[name], request_cls=PlainRequest)
    coordinator = plain.scheduler.kv_cache_manager.coordinator
    coordinator.full_block_managers = None
    coordinator.by_length_managers = None
    assert_steps_equal(Side(KINDS[name]), plain, steps)
