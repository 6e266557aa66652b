# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Token ids beside the KV slots: contents, memory, and which group they follow."""

import os
from typing import Any

import numpy as np
import pytest
import torch

from tests.v1.spec_decode.token_buffer_utils import (
    SimulatedEngine,
    make_kv_cache_config,
)
from vllm.config import ModelConfig, VllmConfig
from vllm.triton_utils import HAS_TRITON
from vllm.v1.core.kv_cache_utils import get_kv_cache_configs, get_kv_cache_groups
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)
from vllm.v1.spec_decode.token_buffer import (
    BYTES_PER_SLOT,
    DeviceTokenBuffer,
    SeedRow,
    find_kv_cache_group,
    reserve_token_buffer_memory,
)

pytestmark = pytest.mark.skip_global_cleanup

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"
CAN_RUN_KERNEL = HAS_TRITON and (
    HAS_GPU or os.environ.get("TRITON_INTERPRET", "0") == "1"
)
implementations = pytest.mark.parametrize(
    "use_triton",
    [
        False,
        pytest.param(
            True,
            marks=pytest.mark.skipif(
                not CAN_RUN_KERNEL, reason="needs a GPU, or TRITON_INTERPRET=1"
            ),
        ),
    ],
    ids=["reference", "kernel"],
)

FULL = dict(block_size=16, num_kv_heads=2, head_size=64, dtype=torch.bfloat16)
ATTENTION = FullAttentionSpec(**FULL)
WINDOW = SlidingWindowSpec(**FULL, sliding_window=64)
CHUNKED = ChunkedLocalAttentionSpec(**FULL, attention_chunk_size=64)
MLA = MLAAttentionSpec(
    block_size=16, num_kv_heads=1, head_size=576, dtype=torch.bfloat16
)
MAMBA = MambaSpec(block_size=16, shapes=((1024,),), dtypes=(torch.float32,))


def make_buffer(use_triton: bool, num_blocks: int = 8, block_size: int = 4):
    return DeviceTokenBuffer(
        make_kv_cache_config(block_size, num_blocks),
        [block_size],
        torch.device(DEVICE),
        use_triton,
    )


def tensor(data, dtype=torch.int64):
    return torch.tensor(data, dtype=dtype, device=DEVICE)


# Contents


@implementations
def test_scatter_writes_its_slots_only(use_triton):
    """Writing 7 at slot 4 changes slot 4 and nothing else."""
    buffer = make_buffer(use_triton)
    buffer.scatter(tensor([7], torch.int32), tensor([4]))
    assert buffer.tokens.nonzero().flatten().tolist() == [4]
    assert buffer.tokens[4] == 7


@implementations
def test_scatter_skips_padding_and_foreign_slots(use_triton):
    buffer = make_buffer(use_triton)
    ids = tensor([1, 2, 3, 4, 5], torch.int32)
    buffer.scatter(ids, tensor([-1, 31, 32, -5, 1 << 40]))
    assert buffer.tokens.nonzero().flatten().tolist() == [31]
    assert buffer.tokens[31] == 2
    buffer.scatter(ids[:0], tensor([]))


@implementations
def test_scatter_larger_than_one_program(use_triton):
    buffer = make_buffer(use_triton, num_blocks=300)
    slots = torch.randperm(1200)[:1001]
    ids = torch.arange(1, 1002, dtype=torch.int32)
    buffer.scatter(ids.to(DEVICE), slots.to(DEVICE))
    expected = torch.zeros(1200, dtype=torch.int32)
    expected[slots] = ids
    assert torch.equal(buffer.tokens.cpu(), expected)


@implementations
def test_seed(use_triton):
    buffer = make_buffer(use_triton)
    buffer.seed([])
    buffer.seed(
        [
            SeedRow(np.array([5, 6, 7, 8, 9]), np.array([3, 1, 99])),
            SeedRow(np.array([], dtype=np.int32), np.array([99])),
            # Async scheduling does not know every token on the host.
            SeedRow(np.array([4, -1, 2], dtype=np.int32), np.array([6])),
        ]
    )
    expected = torch.zeros(32, dtype=torch.int32)
    expected[12:16] = torch.tensor([5, 6, 7, 8])
    expected[4] = 9
    expected[24], expected[26] = 4, 2
    assert torch.equal(buffer.tokens.cpu(), expected)


CASES: list[dict[str, Any]] = [
    dict(),
    dict(block_size=8, kernel_block_size=2, num_blocks=24),
    dict(block_size=6, kernel_block_size=6, num_blocks=30),
    dict(use_connector=True),
    dict(num_blocks=18, k=5),  # preemption all the time
]


@implementations
@pytest.mark.parametrize("case", range(len(CASES)))
@pytest.mark.parametrize("seed", range(6))
def test_buffer_equals_the_histories(use_triton, case, seed):
    """Whatever happens to requests, rows and blocks."""
    engine = SimulatedEngine(seed, device=DEVICE, use_triton=use_triton, **CASES[case])
    for _ in range(60 if not use_triton or HAS_GPU else 15):
        engine.step()
        engine.check_buffer()


def test_the_simulation_covers_what_it_should():
    events: dict[str, int] = {}
    for seed in range(6):
        for case in CASES:
            engine = SimulatedEngine(seed, events=events, **case)
            for _ in range(60):
                engine.step()
    wanted = ["add", "finish", "preempt", "resume", "prefix hit", "swap", "condense"]
    assert all(events.get(e, 0) >= 30 for e in wanted + ["seed"]), events


def test_rejected_drafts_are_overwritten():
    """After 20 steps with rejected drafts the buffer equals the history."""
    buffer = make_buffer(False, num_blocks=32)
    history = [1, 2, 3]
    buffer.scatter(tensor(history, torch.int32), torch.arange(3, device=DEVICE))
    for step in range(20):
        new = 10 + step
        start = len(history)
        history.append(new)
        ids = tensor([new, 99, 99], torch.int32)  # two drafts, both rejected
        buffer.scatter(ids, torch.arange(start, start + 3, device=DEVICE))
    assert buffer.tokens[: len(history)].tolist() == history


# Which group


def groups(*specs):
    return [KVCacheGroupSpec([f"layer{i}"], s) for i, s in enumerate(specs)]


@pytest.mark.parametrize(
    "specs, gid",
    [
        ((ATTENTION,), 0),
        ((MLA,), 0),
        ((WINDOW, ATTENTION), 1),
        ((WINDOW, WINDOW, ATTENTION, ATTENTION), 2),
        # Without the hybrid manager windows are kept like full attention.
        ((FullAttentionSpec(**FULL, sliding_window=64),), 0),
        ((UniformTypeKVCacheSpecs(16, {"a": ATTENTION, "b": MLA}),), 0),
    ],
)
def test_follows_the_first_full_attention_group(specs, gid):
    assert find_kv_cache_group(groups(*specs)) == gid


@pytest.mark.parametrize(
    "specs",
    [
        (),
        (WINDOW,),
        (CHUNKED,),
        (WINDOW, CHUNKED),
        (UniformTypeKVCacheSpecs(16, {"a": WINDOW}),),
    ],
)
def test_refuses_models_that_free_blocks(specs):
    with pytest.raises(ValueError, match="full-attention.*Use method 'ngram'"):
        find_kv_cache_group(groups(*specs))


@pytest.mark.parametrize("specs", [(MAMBA,), (ATTENTION, MAMBA), (MAMBA, ATTENTION)])
def test_refuses_models_with_mamba_layers(specs):
    with pytest.raises(ValueError, match="Mamba.*no speculative decoding"):
        find_kv_cache_group(groups(*specs))


def test_slots_of_a_hybrid_model():
    """The buffer goes by the group's own block size, split for the kernel."""
    big = FullAttentionSpec(**{**FULL, "block_size": 528})
    config = KVCacheConfig(10, [], groups(WINDOW, big))
    buffer = DeviceTokenBuffer(config, [16, 48], torch.device(DEVICE), False)
    assert buffer.kv_cache_gid == 1
    assert buffer.num_slots == 10 * 528
    assert buffer.block_size == 48
    assert buffer.nbytes == buffer.tokens.numel() * 4


# Memory


def make_config() -> VllmConfig:
    return VllmConfig(model_config=ModelConfig(max_model_len=64))


def reserve(config: VllmConfig, specs: dict, available: list[int]) -> list[int]:
    groups = get_kv_cache_groups(config, dict(specs))
    return reserve_token_buffer_memory(config, groups, available)


HYBRID = {"a": ATTENTION, "b": WINDOW, "c": WINDOW}
MIXED_SIZES = {"a": ATTENTION, "b": FullAttentionSpec(**{**FULL, "num_kv_heads": 4})}


@pytest.mark.parametrize("specs", [{"a": ATTENTION}, {"a": MLA}, HYBRID, MIXED_SIZES])
@pytest.mark.parametrize("blocks", [50, 1000, 12_345])
@pytest.mark.parametrize("rest", [-1, 0, 1, 77])
def test_buffer_and_cache_fit_into_the_memory(specs, blocks, rest):
    """Counted before the cache is sized: as many blocks as fit with it."""
    pages = sum(s.page_size_bytes for s in specs.values())
    if specs is HYBRID:
        pages //= 3  # one layer of each group shares the memory
    block_bytes = pages + 16 * BYTES_PER_SLOT
    available = blocks * block_bytes + rest
    remaining = reserve(make_config(), specs, [available])
    (config,) = get_kv_cache_configs(make_config(), [dict(specs)], remaining)
    assert config.num_blocks == (blocks if rest >= 0 else blocks - 1)
    buffer = DeviceTokenBuffer(config, [16] * 3, torch.device("cpu"), False)
    cache = sum(t.size for t in config.kv_cache_tensors)
    assert cache + buffer.nbytes <= available


def test_too_little_for_a_block_stays_as_it_is():
    """The engine's own error then says how much memory there is."""
    page = ATTENTION.page_size_bytes
    available = [-3, 0, 5, page - 1]
    for memory in available:
        assert reserve(make_config(), {"a": ATTENTION}, [memory]) == [memory]
    # A block fits, but not with its token ids; the other worker has room for both.
    memory = [page + 5, 2 * page + 128]
    assert reserve(make_config(), {"a": ATTENTION}, memory) == [page - 1, 2 * page]
