# SPDX-License-Identifier: Apache-2.0
"""The Triton kernels themselves, interpreted, in the engine's own steps.

On a CPU the proposer chooses its PyTorch reference, so the other tests run that.
Here the engine hands its real tensors to the kernels.
"""

from __future__ import annotations

import pytest
from engines import GPU_ASYNC, GPU_SYNC, NONE, Run, engine
from scenarios import greedy, loop, noise

PROMPTS = [
    *(loop(70 + i, 2 + i % 4, 30 + 9 * i) for i in range(5)),
    noise(80, 40),
    noise(81, 3),
    loop(90, 300, 640),  # longer than one program's tile
]


def _run(mode: str, *, kernels: bool) -> Run:
    options = {
        "max_model_len": 1024,
        "max_num_batched_tokens": 160,  # prompts arrive in chunks
        "num_gpu_blocks_override": 64,
    }
    with engine(mode, **options) as started:
        if kernels:
            drafter = started.runner.drafter
            drafter.use_triton = drafter.token_buffer.use_triton = True
            drafter.warm_up()
        return started.run(PROMPTS, greedy(max_tokens=24))


@pytest.fixture(scope="module")
def plain() -> Run:
    return _run(NONE, kernels=False)


@pytest.mark.parametrize("mode", [GPU_SYNC, GPU_ASYNC])
def test_kernels_draft_in_the_engine_as_the_reference_does(plain, mode):
    reference, run = _run(mode, kernels=False), _run(mode, kernels=True)
    assert run.tokens == plain.tokens
    assert run.counts == reference.counts
    assert run.steps == reference.steps
    assert run.counts.accepted > 20
