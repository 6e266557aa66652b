# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Measure how long it takes to write a step's sampled tokens to the host state.

The writer (`vllm/v1/worker/token_writer.py`) is measured against the loop over
rows that it replaced, in the same run, in turn. With --runner, the whole of
`GPUModelRunner._bookkeeping_sync` is measured; to compare two versions of vLLM,
run this file with each of them on the path.
"""

import contextlib
import gc
import json
import statistics
import time
from types import SimpleNamespace
from unittest import mock

import numpy as np
import torch

from vllm.config import (
    CacheConfig,
    DeviceConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
    set_current_vllm_config,
)
from vllm.platforms import current_platform
from vllm.sampling_params import SamplingParams
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.outputs import SamplerOutput
from vllm.v1.worker.cpu_model_runner import _torch_cuda_wrapper
from vllm.v1.worker.gpu_input_batch import CachedRequestState
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

VOCAB_SIZE = 50000


def make_arrays(num_rows: int, max_model_len: int, by_torch: bool) -> SimpleNamespace:
    """The arrays of an InputBatch that take the sampled tokens.

    Before the writer, PyTorch made them, and now NumPy does.
    """
    shape = (num_rows, max_model_len)
    if by_torch:
        token_ids = torch.zeros(shape, dtype=torch.int32).numpy()
        is_token_ids = torch.zeros(shape, dtype=torch.bool).numpy()
    else:
        token_ids = np.zeros(shape, dtype=np.int32)
        is_token_ids = np.zeros(shape, dtype=bool)
    return SimpleNamespace(
        token_ids_cpu=token_ids,
        is_token_ids=is_token_ids,
        num_tokens_no_spec=np.zeros(num_rows, dtype=np.int32),
        max_model_len=max_model_len,
        req_ids=[str(i) for i in range(num_rows)],
    )


def append_in_loop(batch: SimpleNamespace, token_ids: list[list[int]]) -> None:
    """The loop over rows as it was before the writer."""
    for req_idx in range(len(token_ids)):
        sampled_ids = token_ids[req_idx]

        num_sampled_ids: int = len(sampled_ids) if sampled_ids else 0

        if not sampled_ids:
            continue

        start_idx = batch.num_tokens_no_spec[req_idx]
        end_idx = start_idx + num_sampled_ids
        assert end_idx <= batch.max_model_len, (
            "Sampled token IDs exceed the max model length. "
            f"Total number of tokens: {end_idx} > max_model_len: "
            f"{batch.max_model_len}"
        )

        batch.token_ids_cpu[req_idx, start_idx:end_idx] = sampled_ids
        batch.is_token_ids[req_idx, start_idx:end_idx] = True
        batch.num_tokens_no_spec[req_idx] = end_idx


def make_sampled(
    rng: np.random.Generator, num_rows: int, fraction: float, max_tokens: int
) -> tuple[np.ndarray, np.ndarray, list[list[int]]]:
    """One step's tokens: padded, with the rows to drop, and as lists."""
    sampled = rng.integers(0, VOCAB_SIZE, (num_rows, max_tokens), dtype=np.int32)
    num_sampled = rng.integers(1, max_tokens, num_rows, endpoint=True)
    sampled[np.arange(max_tokens) >= num_sampled[:, None]] = -1
    discard = np.ones(num_rows, dtype=bool)
    num_changed = max(1, round(num_rows * fraction))
    discard[rng.permutation(num_rows)[:num_changed]] = False
    lists = [
        [] if dropped else row[:n]
        for row, n, dropped in zip(sampled.tolist(), num_sampled, discard)
    ]
    return sampled, discard, lists


def measure_arrays(
    num_rows: int, fraction: float, max_tokens: int, args
) -> dict[str, float]:
    """Median time in microseconds of the loop and of the writer.

    They run in turn, a block of steps each, on arrays of their own. What
    happens between two steps is --between: "nothing", "inputs" are made anew
    (as in the runner), or memory is swept until the caches hold nothing else
    ("sweep").
    """
    from vllm.v1.worker.token_writer import TokenWriter

    writer = TokenWriter(num_rows, args.max_model_len)
    rng = np.random.default_rng(0)
    lengths = rng.integers(args.max_model_len // 4, args.max_model_len // 2, num_rows)
    vocab_size = VOCAB_SIZE if max_tokens > 1 else None
    batches = [make_arrays(num_rows, args.max_model_len, old) for old in (True, False)]
    memory = np.zeros(64 << 20 if args.between == "sweep" else 0, dtype=np.int8)

    def run_loop(sampled, discard, lists) -> None:
        append_in_loop(batches[0], lists)

    def run_writer(sampled, discard, lists) -> None:
        writer.append(batches[1], sampled, discard, vocab_size)

    times: tuple[list[int], list[int]] = ([], [])
    for _ in range(args.num_blocks):
        # Tokens that no branch predictor has seen before.
        steps = [make_sampled(rng, num_rows, fraction, max_tokens) for _ in range(64)]
        for run, batch, taken in zip((run_loop, run_writer), batches, times):
            batch.num_tokens_no_spec[:] = lengths
            for i, (sampled, discard, lists) in enumerate(steps):
                if args.between != "nothing":
                    sampled = sampled.copy()
                    lists = [token_ids.copy() for token_ids in lists]
                    memory += 1
                start = time.perf_counter_ns()
                run(sampled, discard, lists)
                end = time.perf_counter_ns()
                # The first steps of a block warm up.
                if i >= 16:
                    taken.append(end - start)

    for name in ("token_ids_cpu", "is_token_ids", "num_tokens_no_spec"):
        np.testing.assert_array_equal(*(getattr(batch, name) for batch in batches))
    loop_us, new_us = (statistics.median(taken) / 1e3 for taken in times)
    return {
        "rows": num_rows,
        "fraction": fraction,
        "max_tokens": max_tokens,
        "loop_us": loop_us,
        "new_us": new_us,
    }


def benchmark_arrays(args) -> list[dict[str, float]]:
    results = []
    for max_tokens in args.max_tokens:
        for num_rows in args.num_rows:
            for fraction in args.fraction:
                results.append(measure_arrays(num_rows, fraction, max_tokens, args))
    print(
        "| rows | rows changed | tokens per row | loop (us) | writer (us) | times |\n"
        "|---:|---:|---:|---:|---:|---:|"
    )
    for r in results:
        print(
            f"| {r['rows']} | {r['fraction']:.0%} | 1-{r['max_tokens']} "
            f"| {r['loop_us']:.2f} | {r['new_us']:.2f} "
            f"| {r['loop_us'] / r['new_us']:.1f} |"
        )
    return results


def make_runner(mode: str, num_rows: int, args) -> GPUModelRunner:
    """A real model runner, without a model: bookkeeping needs none."""
    on_cpu = current_platform.device_type == "cpu"
    model_config = ModelConfig(
        model=args.model,
        runner="generate",
        dtype="float32" if on_cpu else "auto",
        max_model_len=args.runner_max_model_len,
    )
    speculative_config = None
    if mode == "ngram":
        speculative_config = SpeculativeConfig(
            target_model_config=model_config,
            target_parallel_config=ParallelConfig(),
            method="ngram",
            num_speculative_tokens=args.num_spec_tokens,
            prompt_lookup_max=4,
            prompt_lookup_min=2,
        )
    vllm_config = VllmConfig(
        model_config=model_config,
        cache_config=CacheConfig(block_size=16),
        speculative_config=speculative_config,
        device_config=DeviceConfig(device=current_platform.device_type),
        parallel_config=ParallelConfig(),
        scheduler_config=SchedulerConfig(
            max_model_len=args.runner_max_model_len,
            max_num_seqs=num_rows,
            max_num_batched_tokens=max(8192, args.runner_max_model_len),
            is_encoder_decoder=model_config.is_encoder_decoder,
        ),
    )
    vllm_config.scheduler_config.async_scheduling = mode == "async"
    pp_group = mock.MagicMock(world_size=1, is_last_rank=True, is_first_rank=True)
    with (
        set_current_vllm_config(vllm_config),
        mock.patch(
            "vllm.v1.worker.gpu_model_runner.get_pp_group", return_value=pp_group
        ),
        mock.patch.object(GPUModelRunner, "_init_device_properties"),
        # A CPU has no streams and no events.
        _torch_cuda_wrapper() if on_cpu else contextlib.nullcontext(),
    ):
        return GPUModelRunner(vllm_config, torch.device(current_platform.device_type))


def fill_runner(runner: GPUModelRunner, num_rows: int, length: int) -> None:
    for i in range(num_rows):
        request = CachedRequestState(
            req_id=f"cmpl-{i:032x}-0",
            prompt_token_ids=[1] * (length - 16),
            mm_features=[],
            sampling_params=SamplingParams(temperature=0),
            generator=None,
            block_ids=([0],),
            num_computed_tokens=0,
            output_token_ids=[2] * 16,
        )
        runner.requests[request.req_id] = request
        runner.input_batch.add_request(request)
    runner.input_batch.refresh_metadata()


def measure_runner(mode: str, num_rows: int, args) -> dict[str, float | str]:
    """Median time in microseconds of `_bookkeeping_sync`, all rows sampling."""
    runner = make_runner(mode, num_rows, args)
    length = args.runner_max_model_len // 4
    fill_runner(runner, num_rows, length)
    width = 1 + args.num_spec_tokens if mode == "ngram" else 1
    rng = np.random.default_rng(0)
    outputs = [
        SamplerOutput(
            torch.from_numpy(make_sampled(rng, num_rows, 1.0, width)[0]).to(
                runner.device
            ),
            None,
        )
        for _ in range(32)
    ]
    scheduler_output = SimpleNamespace(num_scheduled_tokens={})
    hidden_states = torch.empty(0)
    taken = []
    for i in range(args.num_iteration + 64):
        if i % 64 == 0:
            runner.input_batch.num_tokens_no_spec[:num_rows] = length
            for request in runner.requests.values():
                del request.output_token_ids[16:]
        runner.input_batch.prev_sampled_token_ids = None
        sampler_output = outputs[i % len(outputs)]
        start = time.perf_counter_ns()
        result = runner._bookkeeping_sync(
            scheduler_output, sampler_output, None, hidden_states, 0, None
        )
        taken.append(time.perf_counter_ns() - start)
        del result
    return {
        "mode": mode,
        "rows": num_rows,
        "us": statistics.median(taken[64:]) / 1e3,
    }


def benchmark_runner(args) -> list[dict[str, float | str]]:
    print("| mode | rows | _bookkeeping_sync (us) |\n|---|---:|---:|")
    results = []
    for mode in args.mode:
        for num_rows in args.num_rows:
            result = measure_runner(mode, num_rows, args)
            print(f"| {mode} | {num_rows} | {result['us']:.2f} |", flush=True)
            results.append(result)
    return results


def invoke_main() -> None:
    parser = FlexibleArgumentParser(
        description="Benchmark writing sampled tokens to the host state"
    )
    parser.add_argument(
        "--num-rows", type=int, nargs="+", default=[1, 2, 4, 16, 64, 256, 1024]
    )
    parser.add_argument(
        "--fraction",
        type=float,
        nargs="+",
        default=[0.01, 0.1, 0.5, 1.0],
        help="Fraction of the rows that got tokens",
    )
    parser.add_argument(
        "--max-tokens",
        type=int,
        nargs="+",
        default=[1, 4, 8],
        help="A row gets 1 to this many tokens",
    )
    parser.add_argument("--max-model-len", type=int, default=32768)
    parser.add_argument(
        "--num-blocks", type=int, default=8, help="Blocks of 64 steps for each"
    )
    parser.add_argument(
        "--between",
        choices=["nothing", "inputs", "sweep"],
        default="inputs",
        help="What happens between two steps",
    )
    parser.add_argument(
        "--runner", action="store_true", help="Measure the runner's whole method"
    )
    parser.add_argument("--model", default="facebook/opt-125m")
    parser.add_argument(
        "--mode",
        nargs="+",
        choices=["sync", "ngram", "async"],
        default=["sync", "ngram", "async"],
    )
    parser.add_argument("--num-spec-tokens", type=int, default=3)
    parser.add_argument("--runner-max-model-len", type=int, default=2048)
    parser.add_argument("--num-iteration", type=int, default=640)
    parser.add_argument("--json", help="Also write the results to this file")
    args = parser.parse_args()

    gc.disable()
    results = benchmark_runner(args) if args.runner else benchmark_arrays(args)
    if args.json:
        with open(args.json, "w") as f:
            json.dump(results, f, indent=1)


"""
# Example command lines:
# python3 benchmarks/benchmark_bookkeeping.py
# python3 benchmarks/benchmark_bookkeeping.py --num-rows 256 --fraction 1.0
# python3 benchmarks/benchmark_bookkeeping.py --runner --num-rows 1 64 256
"""
if __name__ == "__main__":
    invoke_main()  # pragma: no cover
