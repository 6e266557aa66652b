# SPDX-License-Identifier: Apache-2.0
"""Small measurements with the vLLM that can be imported; JSON on stdout.

python bookkeeping_probe.py start        cost of a worker's start: time, memory
python bookkeeping_probe.py swap         InputBatch.swap_states
python bookkeeping_probe.py first-rank   _update_states of a pipeline's first rank
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from types import SimpleNamespace
from typing import Any
from unittest import mock


def _resident_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def start() -> dict[str, float]:
    """What making the first TokenWriter of a process takes."""
    import vllm.v1.worker.gpu_model_runner  # noqa: F401
    from vllm.v1.worker import token_writer

    had_numba = "numba" in sys.modules
    before = _resident_mib()
    begin = time.perf_counter()
    import numba  # noqa: F401

    imported = time.perf_counter()
    memory_numba = _resident_mib() - before
    token_writer.get_append_rows()
    compiled = time.perf_counter()
    memory = _resident_mib() - before
    token_writer.TokenWriter(1024, 32768)
    made = time.perf_counter()
    buffer = token_writer.SampledTokensBuffer(1024, 4, pin_memory=False)
    return {
        "numba imported before": float(had_numba),
        "import numba (s)": imported - begin,
        "compile (s)": compiled - imported,
        "second writer (us)": (made - compiled) * 1e6,
        "memory of numba (MiB)": memory_numba,
        "memory with the compiled call (MiB)": memory,
        "host buffer, 1024 rows of 4 (KiB)": buffer.get((1024, 4))[1].nbytes / 1024,
    }


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
    probes = {"start": start, "swap": swap, "first-rank": first_rank}
    found = probes[sys.argv[1]]()
    print("\n" + json.dumps(found))
