# SPDX-License-Identifier: Apache-2.0
"""Small measurements with the vLLM that can be imported; JSON on stdout.

python bookkeeping_probe.py start        cost of a worker's start: time, memory
python bookkeeping_probe.py profile      the parts of a step of the writer
python bookkeeping_probe.py swap         InputBatch.swap_states
python bookkeeping_probe.py first-rank   _update_states of a pipeline's first rank
"""

from __future__ import annotations

import json
import mmap
import resource
import statistics
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

ROW_LEN, VOCAB_SIZE = 32768, 50000


def _resident_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def start() -> dict[str, float]:
    """What making the first TokenWriter of a process takes."""
    import vllm.v1.worker.gpu_model_runner  # noqa: F401
    from vllm.v1.worker import token_writer

    had_numba = "numba" in sys.modules
    before = _resident_mib()
    begin = time.process_time()
    import numba  # noqa: F401

    imported = time.process_time()
    memory_numba = _resident_mib() - before
    token_writer.get_append_rows()
    compiled = time.process_time()
    memory = _resident_mib() - before
    token_writer.TokenWriter(1024, 32768)
    made = time.process_time()
    buffer = token_writer.SampledTokensBuffer(1024, 4, pin_memory=False)
    return {
        "numba imported before": float(had_numba),
        "import numba (s of CPU)": imported - begin,
        "compile (s of CPU)": compiled - imported,
        "second writer (us)": (made - compiled) * 1e6,
        "memory of numba (MiB)": memory_numba,
        "memory with the compiled call (MiB)": memory,
        "host buffer, 1024 rows of 4 (KiB)": buffer.get((1024, 4))[1].nbytes / 1024,
    }


def _arrays(num_rows: int, row_len: int, advice: int) -> SimpleNamespace:
    """What the writer updates, on pages of the size advised."""
    import numpy as np

    made = []
    for dtype in (np.int32, np.bool_):
        size = num_rows * row_len * np.dtype(dtype).itemsize
        # Shared memory, the default, has small pages only.
        memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(advice)
        made.append(np.frombuffer(memory, dtype).reshape(num_rows, row_len))
        made[-1][:] = 0
    lengths = np.zeros(num_rows, np.int32)
    return SimpleNamespace(token_ids_cpu=made[0], is_token_ids=made[1], num_tokens_no_spec=lengths)


def _steps(rng: Any, num_rows: int, max_tokens: int) -> list[Any]:
    import numpy as np

    steps = rng.integers(0, VOCAB_SIZE, (64, num_rows, max_tokens), dtype=np.int32)
    counts = rng.integers(1, max_tokens, (64, num_rows, 1), endpoint=True)
    steps[np.arange(max_tokens) >= counts] = -1
    return list(steps)


def _runs(num_rows: int, max_tokens: int) -> dict[str, tuple[Any, Any, Callable[[Any], Any]]]:
    """Runs of a step by name: the batch, its lengths at first, and the step."""
    import numpy as np
    from numba import njit
    from vllm.v1.worker.token_writer import TokenWriter, get_append_rows

    real = get_append_rows()

    @njit(real.nopython_signatures)
    def nothing(sampled, discard, vocab, max_len, ids, flags, lengths, num_new_tokens):
        return -1

    vocab = VOCAB_SIZE if max_tokens > 1 else None
    discard = np.zeros(num_rows, bool)
    num_new_tokens = np.zeros(num_rows, np.int32)
    writer = TokenWriter(num_rows, ROW_LEN)

    def call(function: Any, batch: Any) -> Callable[[Any], Any]:
        number = -1 if vocab is None else vocab
        arrays = (batch.token_ids_cpu, batch.is_token_ids, batch.num_tokens_no_spec)
        return lambda step: function(step, discard, number, ROW_LEN, *arrays, num_new_tokens)

    rng = np.random.default_rng(0)
    lengths = rng.integers(ROW_LEN // 4, ROW_LEN // 2, num_rows, dtype=np.int32)
    # The check fails in the last row, so that nothing is written.
    last_too_long = lengths.copy()
    last_too_long[-1] = ROW_LEN
    beside = _arrays(num_rows, 16, mmap.MADV_NOHUGEPAGE)
    large = _arrays(num_rows, ROW_LEN, mmap.MADV_HUGEPAGE)
    small = _arrays(num_rows, ROW_LEN, mmap.MADV_NOHUGEPAGE)
    return {
        "call": (small, lengths, call(nothing, small)),
        "count": (small, last_too_long, call(real, small)),
        "write": (beside, 0, call(real, beside)),
        "apart": (large, lengths, call(real, large)),
        "python": (large, lengths, lambda step: writer.append(large, step, discard, vocab)),
        "pages": (small, lengths, lambda step: writer.append(small, step, discard, vocab)),
    }


def profile() -> list[dict[str, float]]:
    """The parts of a step: each is what one run takes longer than the one before."""
    import numpy as np

    results = []
    rng = np.random.default_rng(1)
    for max_tokens in (1, 4, 8):
        for num_rows in (256, 1024):
            runs = _runs(num_rows, max_tokens)
            taken: dict[str, list[int]] = {name: [] for name in runs}
            for _ in range(8):
                for name, (batch, lengths, run) in runs.items():
                    batch.num_tokens_no_spec[:] = lengths
                    for i, step in enumerate(_steps(rng, num_rows, max_tokens)):
                        if name == "write":
                            batch.num_tokens_no_spec[:] = 0
                        begin = time.perf_counter_ns()
                        run(step)
                        end = time.perf_counter_ns()
                        if i >= 16:
                            taken[name].append(end - begin)
            us = {name: statistics.median(times) / 1e3 for name, times in taken.items()}
            parts = ("call", "count", "write", "apart", "python")
            before = (0.0, *(us[name] for name in parts))
            more = {name: us[name] - less for name, less in zip(parts, before, strict=False)}
            case = {"rows": num_rows, "max_tokens": max_tokens}
            sums = {"sum": us["python"], "pages": us["pages"]}
            results.append({**case, **more, **sums})
    return results


def _batch(max_model_len: int, length: int) -> Any:
    import torch
    from vllm.sampling_params import SamplingParams
    from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

    batch = InputBatch(
        max_num_reqs=8,
        max_model_len=max_model_len,
        max_num_batched_tokens=8192,
        device=torch.device("cpu"),
        pin_memory=False,
        vocab_size=128000,
        block_sizes=[16],
        kernel_block_sizes=[16],
    )
    for i in range(8):
        request = CachedRequestState(
            req_id=str(i),
            prompt_token_ids=[1] * length,
            mm_features=[],
            sampling_params=SamplingParams(),
            generator=None,
            block_ids=(list(range(length // 16 + 1)),),
            num_computed_tokens=0,
            output_token_ids=[],
        )
        batch.add_request(request)
    return batch


def swap() -> list[dict[str, float]]:
    """Two rows of the given length change places."""
    results = []
    for max_model_len, length in ((2048, 500), (32768, 2000), (131072, 2000), (131072, 60000)):
        batch = _batch(max_model_len, length)
        taken = []
        for i in range(400):
            begin = time.perf_counter_ns()
            batch.swap_states(i % 8, (i + 3) % 8)
            taken.append(time.perf_counter_ns() - begin)
            batch.batch_update_builder.moved.clear()
        results.append(
            {
                "max_model_len": max_model_len,
                "length": length,
                "us": statistics.median(taken[20:]) / 1e3,
            }
        )
    return results


class FirstRank:
    is_first_rank, is_last_rank, world_size = True, False, 2


def first_rank() -> list[dict[str, float]]:
    """The tokens come from the scheduler, one for each request."""
    import torch
    from vllm.sampling_params import SamplingParams
    from vllm.v1.core.sched.output import CachedRequestData, SchedulerOutput
    from vllm.v1.worker import gpu_model_runner
    from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

    results = []
    for num_rows in (1, 2, 4, 16, 64, 256, 1024):
        runner = gpu_model_runner.GPUModelRunner.__new__(gpu_model_runner.GPUModelRunner)
        runner.use_async_scheduling = runner.is_pooling_model = runner.uses_mrope = False
        runner.uses_xdrope_dim = 0
        runner.requests, runner.encoder_cache, runner.num_prompt_logprobs = {}, {}, {}
        runner.valid_sampled_token_count_event = None
        runner.kv_cache_config = SimpleNamespace(kv_cache_groups=[])
        runner.device = torch.device("cpu")
        runner.input_batch = InputBatch(
            max_num_reqs=num_rows,
            max_model_len=2048,
            max_num_batched_tokens=8192,
            device=runner.device,
            pin_memory=False,
            vocab_size=1000,
            block_sizes=[16],
            kernel_block_sizes=[16],
        )
        for i in range(num_rows):
            request = CachedRequestState(
                req_id=str(i),
                prompt_token_ids=[1] * 100,
                mm_features=[],
                sampling_params=SamplingParams(),
                generator=None,
                block_ids=(list(range(7)),),
                num_computed_tokens=0,
                output_token_ids=[],
            )
            runner.requests[request.req_id] = request
            runner.input_batch.add_request(request)
        cached = CachedRequestData.make_empty()
        cached.req_ids = list(runner.requests)
        cached.new_block_ids = [None] * num_rows
        cached.new_token_ids = [[5] for _ in range(num_rows)]
        cached.num_output_tokens = [0] * num_rows
        output = SchedulerOutput.make_empty()
        output.scheduled_cached_reqs = cached
        output.num_scheduled_tokens = dict.fromkeys(cached.req_ids, 1)
        taken = []
        with mock.patch.object(gpu_model_runner, "get_pp_group", FirstRank):
            for step in range(300):
                cached.num_computed_tokens = [100 + step] * num_rows
                begin = time.perf_counter_ns()
                runner._update_states(output)
                taken.append(time.perf_counter_ns() - begin)
        results.append({"rows": num_rows, "us": statistics.median(taken[20:]) / 1e3})
    return results


if __name__ == "__main__":
    probes = {"start": start, "profile": profile, "swap": swap, "first-rank": first_rank}
    found = probes[sys.argv[1]]()
    print("\n" + json.dumps(found))
