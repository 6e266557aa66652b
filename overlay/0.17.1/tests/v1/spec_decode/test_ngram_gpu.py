# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The n-gram lookup on the device against the n-gram proposer on the CPU.

On a machine without a GPU the kernel runs in Triton's interpreter
(TRITON_INTERPRET=1). There programs run one after the other, so what concerns
their concurrency is tested on a GPU only.
"""

import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.v1.spec_decode.ngram_gpu_utils import (
    Step,
    check_result,
    cpu_drafts,
    random_step,
    run_lookup,
)
from tests.v1.spec_decode.token_buffer_utils import SimulatedEngine, StepTensors
from vllm.triton_utils import HAS_TRITON
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
)
from vllm.v1.spec_decode import ngram_gpu_kernels
from vllm.v1.spec_decode.ngram_gpu import NgramGPUProposer

pytestmark = pytest.mark.skip_global_cleanup

HAS_GPU = torch.cuda.is_available()
INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"
DEVICE = "cuda" if HAS_GPU else "cpu"

needs_kernel = pytest.mark.skipif(
    not HAS_TRITON or not (HAS_GPU or INTERPRETED),
    reason="needs a GPU, or TRITON_INTERPRET=1",
)
needs_gpu = pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")

# Implementations of the contract: whether to use the kernel.
implementations = pytest.mark.parametrize(
    "use_triton",
    [False, pytest.param(True, marks=needs_kernel)],
    ids=["reference", "kernel"],
)


@pytest.fixture(params=[1, 3])
def small_tiles(monkeypatch, request):
    """Makes short histories take several iterations of one or more programs."""
    monkeypatch.setattr(ngram_gpu_kernels, "TILE", 32)
    monkeypatch.setattr(ngram_gpu_kernels, "CHUNK", 16)
    monkeypatch.setattr(ngram_gpu_kernels, "MIN_SPLITS", request.param)
    monkeypatch.setattr(ngram_gpu_kernels, "PROGRAMS_PER_UNIT", 1)


def one_row(
    history: list[int],
    num_new: int = 1,
    k: int = 4,
    min_n: int = 1,
    max_n: int = 3,
    max_model_len: int = 64,
    vocab_size: int = 100,
    num_rejected: int = 0,
) -> Step:
    """A step of one request in blocks of 4 tokens, in slots 8, 9, ..."""
    base = len(history) - num_new
    has_slot = base + num_new - 1 + num_rejected
    num_blocks = max(max_model_len, has_slot) // 4 + 1
    tokens = torch.full((8 + 4 * num_blocks,), 99, dtype=torch.int32)
    tokens[8 : 8 + base] = torch.tensor(history[:base])
    sampled = torch.full((1, k + 1), -1, dtype=torch.int32)
    sampled[0, :num_new] = torch.tensor(history[base:])
    return Step(
        tokens=tokens.to(DEVICE),
        block_table=torch.arange(2, 2 + num_blocks, dtype=torch.int32, device=DEVICE)[
            None
        ],
        seq_lens=torch.tensor([has_slot], dtype=torch.int32, device=DEVICE),
        cu_num_draft_tokens=torch.tensor(
            [has_slot - base], dtype=torch.int32, device=DEVICE
        ),
        sampled_token_ids=sampled.to(DEVICE),
        discard_mask=torch.zeros(1, dtype=torch.bool, device=DEVICE),
        options=dict(
            block_size=4,
            max_seq_len=has_slot,
            min_n=min_n,
            max_n=max_n,
            max_model_len=max_model_len,
            vocab_size=vocab_size,
        ),
        k=k,
        histories=[np.array(history, dtype=np.int32)],
        num_new=[num_new],
    )


def drafts_of(step: Step, use_triton: bool) -> list[int]:
    result = run_lookup(step, use_triton)
    check_result(step, result)
    return result.draft_token_ids[0, : result.num_valid_drafts[0]].tolist()


def test_reference_100k_random_histories():
    rng = np.random.default_rng(29184)
    num_drafts = 0
    for _ in range(50):
        step = random_step(rng, num_rows=2000)
        num_drafts += check_result(step, run_lookup(step, use_triton=False))
    # The histories must give the lookup something to find.
    assert num_drafts > 100_000


def test_reference_long_histories():
    rng = np.random.default_rng(0)
    for _ in range(4):
        step = random_step(rng, num_rows=8, max_model_len=20_000)
        check_result(step, run_lookup(step, use_triton=False))


@needs_kernel
@pytest.mark.parametrize("seed", range(6))
def test_kernel_random_histories(seed, small_tiles):
    rng = np.random.default_rng(seed)
    for _ in range(3):
        step = random_step(rng, num_rows=8, device=DEVICE)
        check_result(step, run_lookup(step, use_triton=True))


@needs_kernel
@pytest.mark.parametrize("block_size", [1, 3, 16, 48, 64, 256, 528])
def test_kernel_long_histories(block_size):
    """The tiles and splits that serving uses."""
    rng = np.random.default_rng(block_size)
    step = random_step(
        rng, num_rows=2, max_model_len=2600, block_size=block_size, device=DEVICE
    )
    check_result(step, run_lookup(step, use_triton=True))


@needs_gpu
def test_kernel_many_random_histories():
    rng = np.random.default_rng(7)
    for max_model_len in [None] * 150 + [3000] * 100 + [100_000] * 10:
        rows = 256 if max_model_len != 100_000 else 16
        step = random_step(rng, rows, max_model_len, device=DEVICE)
        check_result(step, run_lookup(step, use_triton=True))


@implementations
def test_longest_then_earliest(use_triton):
    # 3-gram [2 3 4] at 4; 2-gram [3 4] already at 1.
    history = [3, 4, 9, 2, 3, 4, 1, 2, 3, 4, 7, 2, 3, 4]
    assert drafts_of(one_row(history, max_n=3, k=2), use_triton) == [1, 2]
    assert drafts_of(one_row(history, max_n=2, k=2), use_triton) == [9, 2]
    # Nothing after the occurrence but the end of the history.
    assert drafts_of(one_row([5, 5], k=4), use_triton) == [5]
    assert drafts_of(one_row([5], k=4), use_triton) == []
    assert drafts_of(one_row([1, 2, 3], k=4), use_triton) == []


@implementations
@pytest.mark.parametrize("num_new", [1, 2, 3, 4, 5])
def test_occurrence_among_new_tokens(use_triton, num_new):
    """The tokens just sampled have no slot, but are part of the history."""
    history = [8, 9, 1, 2, 1, 2, 1]
    step = one_row(history, num_new=num_new, min_n=2, max_n=2)
    assert drafts_of(step, use_triton) == [2, 1]
    step = one_row(history, num_new=num_new, min_n=2, max_n=2, num_rejected=2)
    assert drafts_of(step, use_triton) == [2, 1]


@implementations
@pytest.mark.parametrize(
    "length, expected", [(8, 2), (9, 1), (10, 0), (11, 0), (3, 2), (2, 1)]
)
def test_drafts_end_at_the_length_limit(use_triton, length, expected):
    """max_model_len 10, k 4: drafts never go beyond the limit."""
    step = one_row([1] * length, max_n=1, max_model_len=10, k=4)
    assert len(drafts_of(step, use_triton)) == expected


@implementations
def test_row_at_the_limit_leaves_others_alone(use_triton):
    """One row near the limit must not stop the batch from drafting."""
    rng = np.random.default_rng(3)
    step = random_step(rng, num_rows=64, max_model_len=40, device=DEVICE)
    at_limit = [len(h) >= 40 for h in step.histories]
    assert any(at_limit) and not all(at_limit)
    assert check_result(step, run_lookup(step, use_triton)) > 0


@implementations
def test_discarded_rows_get_no_drafts(use_triton):
    step = one_row([1, 2, 1, 2, 1])
    step.discard_mask[0] = True
    assert drafts_of(step, use_triton) == []


@implementations
def test_rows_without_tokens(use_triton):
    """Rows that pad a batch: no length, nothing sampled, block id -1."""
    step = one_row([1, 2, 1, 2, 1])
    step.seq_lens[:] = 0
    assert step.cu_num_draft_tokens is not None
    step.cu_num_draft_tokens[:] = 0
    step.sampled_token_ids[:] = -1
    step.block_table[:] = -1
    step.histories, step.num_new = [], []
    result = run_lookup(step, use_triton)
    assert result.num_valid_drafts.tolist() == [0]
    assert result.num_sampled.tolist() == [0]
    assert result.next_token_ids.tolist() == [0]
    assert result.draft_token_ids.tolist() == [[0] * step.k]


@implementations
def test_columns_without_draft_are_valid_ids(use_triton):
    """Counts tell drafts from fillers; a -1 is never handed out."""
    step = one_row([4, 9, 4], k=3)
    result = run_lookup(step, use_triton)
    assert result.num_valid_drafts.tolist() == [2]
    assert result.draft_token_ids.tolist() == [[9, 4, 4]]


@implementations
@pytest.mark.parametrize("garbage", [-1, -(2**31), 2**31 - 1, 100])
def test_drafts_stay_in_the_vocabulary(use_triton, garbage):
    """A buffer whose memory was lost gives drafts that the model can embed."""
    step = one_row([1, 2, 3, 1])
    step.tokens[8 + 1] = garbage
    result = run_lookup(step, use_triton)
    assert result.num_valid_drafts.tolist() == [3]
    assert result.draft_token_ids.min() >= 0
    assert result.draft_token_ids.max() < 100


@implementations
def test_same_result_every_time(use_triton, small_tiles):
    """All tensor-parallel ranks must propose the same drafts."""
    step = random_step(np.random.default_rng(5), 8, device=DEVICE)
    results = [run_lookup(step, use_triton) for _ in range(3 if INTERPRETED else 50)]
    for other in results[1:]:
        for a, b in zip(vars(results[0]).values(), vars(other).values()):
            assert torch.equal(a, b)


@needs_kernel
@pytest.mark.parametrize("longest_first", [False, True])
def test_kernel_longer_match_in_a_later_tile(longest_first, small_tiles):
    """What a program has found decides what it still looks for."""
    suffix = [91, 92, 93, 94, 95, 96]
    lengths = [1, 2, 3, 4, 6, 5]
    history: list[int] = []
    for n in reversed(lengths) if longest_first else lengths:
        history += list(range(40)) + suffix[-n:] + [50 + n]
    step = one_row(history + suffix, max_n=8, k=1, max_model_len=600)
    assert drafts_of(step, use_triton=True) == [56]


@needs_kernel
def test_splits_do_not_change_the_result(monkeypatch):
    """Nor does it matter how the work is divided."""
    monkeypatch.setattr(ngram_gpu_kernels, "PROGRAMS_PER_UNIT", 1)
    step = random_step(np.random.default_rng(6), 6, 300, device=DEVICE)
    results = []
    for tile, splits in [(512, 1), (32, 1), (32, 2), (32, 7), (64, 100)]:
        monkeypatch.setattr(ngram_gpu_kernels, "TILE", tile)
        monkeypatch.setattr(ngram_gpu_kernels, "CHUNK", min(tile, 32))
        monkeypatch.setattr(ngram_gpu_kernels, "MIN_SPLITS", splits)
        results.append(run_lookup(step, use_triton=True))
        check_result(step, results[-1])


def make_proposer(
    block_size: int = 16,
    num_blocks: int = 64,
    k: int = 3,
    min_n: int = 1,
    max_n: int = 3,
    max_model_len: int = 128,
    max_num_seqs: int = 8,
    use_triton: bool | None = None,
) -> NgramGPUProposer:
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(
            prompt_lookup_min=min_n, prompt_lookup_max=max_n, num_speculative_tokens=k
        ),
        model_config=SimpleNamespace(
            max_model_len=max_model_len, get_vocab_size=lambda: 100
        ),
        scheduler_config=SimpleNamespace(max_num_seqs=max_num_seqs),
    )
    proposer = NgramGPUProposer(config, torch.device(DEVICE), use_triton)
    spec = FullAttentionSpec(
        block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float16
    )
    proposer.initialize_kv_cache(
        KVCacheConfig(
            num_blocks=num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        ),
        [block_size],
    )
    return proposer


def propose_step(
    proposer: NgramGPUProposer,
    start: int,
    ids: list[int],
    sampled: list[int],
    num_drafts: int | None = None,
):
    """One request in block 1; `ids` are computed at positions start, ..."""
    block_size = proposer.token_buffer.block_size
    end = start + len(ids)
    assert end <= block_size
    return proposer.propose(
        input_ids=torch.tensor(ids, dtype=torch.int32, device=DEVICE),
        slot_mapping=torch.arange(start, end, device=DEVICE) + block_size,
        block_table=torch.ones((8, 8), dtype=torch.int32, device=DEVICE),
        seq_lens=torch.tensor([end], dtype=torch.int32, device=DEVICE),
        sampled_token_ids=torch.tensor([sampled], dtype=torch.int32, device=DEVICE),
        discard_mask=torch.zeros(8, dtype=torch.bool, device=DEVICE),
        cu_num_draft_tokens=None
        if num_drafts is None
        else torch.tensor([num_drafts], dtype=torch.int32, device=DEVICE),
        max_seq_len=end,
    )


@implementations
def test_proposer_follows_a_request(use_triton):
    proposer = make_proposer(use_triton=use_triton)
    # Prompt, without drafts.
    out = propose_step(proposer, 0, [5, 6, 7, 8, 5, 6], [7])
    assert out.draft_token_ids.tolist() == [[8, 5, 6]]
    assert out.num_valid_drafts.tolist() == [3]
    assert out.next_token_ids.tolist() == [7]
    assert out.num_sampled.tolist() == [1]
    # Drafts 8 5 6: 8 accepted, 9 sampled instead of 5.
    out = propose_step(proposer, 6, [7, 8, 5, 6], [8, 9, -1, -1], num_drafts=3)
    assert out.num_sampled.tolist() == [2]
    assert out.next_token_ids.tolist() == [9]
    assert out.num_valid_drafts.tolist() == [0]
    assert out.draft_token_ids.tolist() == [[9, 9, 9]]
    # The rejected drafts left no trace: position 8 is 9, not 5.
    out = propose_step(proposer, 8, [9, 9, 9, 9], [6, -1, -1, -1], num_drafts=3)
    assert out.draft_token_ids.tolist() == [[7, 8, 5]]


@implementations
def test_proposer_results_outlive_the_next_calls(use_triton):
    """Copies to the host may be two steps late."""
    proposer = make_proposer(use_triton=use_triton)
    out = propose_step(proposer, 0, [5, 6, 7, 8, 5, 6], [7])
    for _ in range(2):
        propose_step(proposer, 0, [1, 2, 3], [4])
    assert out.draft_token_ids.tolist() == [[8, 5, 6]]
    # Nor does it take new memory for each step.
    pointers = {
        propose_step(proposer, 0, [1, 2], [4]).draft_token_ids.data_ptr()
        for _ in range(10)
    }
    assert len(pointers) == 3


@implementations
def test_warm_up_leaves_no_trace(use_triton):
    proposer = make_proposer(use_triton=use_triton)
    proposer.warm_up()
    assert not proposer.token_buffer.tokens.any()
    out = propose_step(proposer, 0, [5, 6, 7, 8, 5, 6], [7])
    assert out.draft_token_ids.tolist() == [[8, 5, 6]]


@implementations
@pytest.mark.parametrize("use_connector", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_proposer_in_a_running_engine(use_triton, use_connector, seed):
    """Every draft equals the CPU proposer's, whatever happens to the rows."""
    engine = SimulatedEngine(
        seed, device=DEVICE, use_triton=use_triton, use_connector=use_connector
    )
    proposer = make_proposer(
        max_model_len=engine.max_model_len, k=engine.k, use_triton=use_triton
    )
    proposer.token_buffer = engine.buffer
    options = dict(min_n=1, max_n=3, max_model_len=engine.max_model_len)
    num_drafts = 0

    def propose(step: StepTensors) -> list[list[int]]:
        nonlocal num_drafts
        out = proposer.propose(*vars(step).values())
        drafts = out.draft_token_ids.tolist()
        sampled = step.sampled_token_ids.tolist()
        for row, request in enumerate(engine.running):
            drafts[row] = drafts[row][: out.num_valid_drafts[row]]
            if step.discard_mask[row]:
                assert drafts[row] == []
                continue
            new = [t for t in sampled[row] if t != -1]
            assert out.num_sampled[row] == len(new)
            history = np.array([*request.all_token_ids, *new], dtype=np.int32)
            assert drafts[row] == cpu_drafts(history, engine.k, options).tolist()
            num_drafts += len(drafts[row])
        return drafts

    num_steps = 60 if not use_triton or HAS_GPU else 20
    for _ in range(num_steps):
        engine.step(propose)
        engine.check_buffer()
    assert num_drafts > num_steps // 4


def test_history_too_long_for_the_key():
    with pytest.raises(ValueError, match="prompt_lookup_max=5.*max_model_len"):
        make_proposer(max_n=5, max_model_len=(1 << 28) + 1)
    # The longest contexts there are still fit.
    make_proposer(max_n=127, max_model_len=1 << 24)


# What only a GPU can show


def device_step(rng: np.random.Generator, proposer: NgramGPUProposer) -> dict:
    """Arguments of `propose` for 8 requests, of which 1-7 start with blocks that
    request 0 computes in the same step."""
    block_size = proposer.token_buffer.block_size
    num_rows, shared, own = 8, 4, 2
    table = np.zeros((num_rows, 8), dtype=np.int32)
    table[:, :shared] = np.arange(1, shared + 1)
    table[:, shared : shared + own] = (
        np.arange(num_rows * own).reshape(num_rows, own) + shared + 1
    )
    ids, slots = [], []
    for row in range(num_rows):
        first = 0 if row == 0 else shared * block_size
        pos = np.arange(first, (shared + own) * block_size)
        ids.append(rng.integers(0, 3, len(pos)))
        slots.append(table[row, pos // block_size] * block_size + pos % block_size)
    seq_len = (shared + own) * block_size

    def tensor(data, dtype=torch.int32):
        return torch.tensor(np.asarray(data), dtype=dtype, device="cuda")

    return dict(
        input_ids=tensor(np.concatenate(ids)),
        slot_mapping=tensor(np.concatenate(slots), torch.int64),
        block_table=tensor(table),
        seq_lens=tensor(np.full(num_rows, seq_len)),
        sampled_token_ids=tensor(rng.integers(0, 3, (num_rows, 1))),
        discard_mask=tensor(np.zeros(num_rows), torch.bool),
        cu_num_draft_tokens=tensor(np.zeros(num_rows)),
        max_seq_len=seq_len,
    )


def check_device_step(args: dict, out, proposer: NgramGPUProposer) -> None:
    """Computes what `out` should be from the inputs alone, on the CPU."""
    reference = make_proposer(k=proposer.k, max_n=proposer.max_n)
    reference.use_triton = False
    reference.device = torch.device("cpu")
    config = reference.token_buffer
    tokens = torch.zeros(config.num_slots, dtype=torch.int64)
    tokens[args["slot_mapping"].cpu()] = args["input_ids"].cpu().long()
    table = args["block_table"].cpu()
    pos = torch.arange(args["max_seq_len"])
    size = config.block_size
    options = dict(
        min_n=proposer.min_n,
        max_n=proposer.max_n,
        max_model_len=proposer.max_model_len,
    )
    for row, new in enumerate(args["sampled_token_ids"].tolist()):
        slots = table[row, pos // size].long() * size + pos % size
        history = np.array(tokens[slots].tolist() + new, dtype=np.int32)
        expected = cpu_drafts(history, proposer.k, options).tolist()
        count = int(out.num_valid_drafts[row])
        assert out.draft_token_ids[row, :count].tolist() == expected
        assert out.next_token_ids[row] == history[-1]


@needs_gpu
def test_gpu_row_reads_what_another_writes_in_the_same_step():
    """Blocks become prefix hits when they are scheduled, not when computed."""
    proposer = make_proposer()
    rng = np.random.default_rng(11)
    for _ in range(300):
        args = device_step(rng, proposer)
        check_device_step(args, proposer.propose(**args), proposer)


@needs_gpu
def test_gpu_capture_in_a_cuda_graph():
    proposer = make_proposer()
    proposer.warm_up()
    rng = np.random.default_rng(12)
    static = device_step(rng, proposer)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = proposer.propose(**static)
    for _ in range(50):
        args = device_step(rng, proposer)
        for name, value in args.items():
            if isinstance(value, torch.Tensor):
                static[name].copy_(value)
        graph.replay()
        check_device_step(args, out, proposer)


@needs_gpu
def test_gpu_no_wait_no_allocation_no_compilation():
    proposer = make_proposer()
    proposer.warm_up()
    rng = np.random.default_rng(13)
    steps = [device_step(rng, proposer) for _ in range(4)]
    for i, step in enumerate(steps):  # batches of all kinds
        step["input_ids"] = step["input_ids"][: 100 + i]
        step["slot_mapping"] = step["slot_mapping"][: 100 + i]
        step["sampled_token_ids"] = step["sampled_token_ids"][: 8 - i]
    steps[0]["cu_num_draft_tokens"] = None
    torch.cuda.synchronize()

    def compiled() -> int:
        caches = ngram_gpu_kernels._ngram_lookup_kernel.device_caches.values()
        return sum(len(cache[0]) for cache in caches)

    before, allocated = compiled(), torch.cuda.memory_stats()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in steps:
            proposer.propose(**step)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    after = torch.cuda.memory_stats()
    key = "allocation.all.allocated"
    assert after[key] == allocated[key]
    assert compiled() == before


@needs_gpu
def test_gpu_one_row_of_a_million_tokens():
    rng = np.random.default_rng(14)
    for _ in range(5):
        step = random_step(rng, 2, max_model_len=1 << 20, block_size=16, device=DEVICE)
        check_result(step, run_lookup(step, use_triton=True))
