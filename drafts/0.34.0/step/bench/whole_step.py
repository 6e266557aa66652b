# SPDX-License-Identifier: Apache-2.0
"""What a decode step costs the engine core, pristine and series in turn.

    python whole_step.py --pristine TREE --patched TREE --out DIR

Each tree runs in a process of its own, as the model runner can be imported only once
in one. The two take turns, eight steps each, and only one of them runs at a time. They
get the same requests, and what their steps return is compared.

A step is `EngineCore.step_fn`: schedule, execute the model, sample, get the output and
update from it. Of that, everything on the host is the tree's own code. Left out are the
Triton kernels (launched, but empty), the model's forward pass and the sampler, whose
tokens are made beforehand. Times are CPU time of the process, with one thread of torch.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from step import gains, table

ROWS = (1, 16, 64, 256, 1024)
DRAFTS = (0, 4)
MODEL = "ngram-tests/tiny-llama"
BLOCK_SIZE = 16
MAX_MODEL_LEN = 2048
STEPS_A_BLOCK = 8
PROMPT_TOKENS = (20, 200)
# The parts of a step, in their order.
PARTS = ("schedule", "execute_model", "sample_tokens", "get_output", "update_from_output")


@dataclass(frozen=True)
class Case:
    """How an engine is made. It runs all numbers of rows, one after the other."""

    max_rows: int
    drafts: int
    asynchronous: bool

    @property
    def mode(self) -> str:
        return ("async" if self.asynchronous else "sync") + (
            f", k={self.drafts}" if self.drafts else ""
        )


class Clock:
    """CPU time of the parts of a step, summed until it is read."""

    def __init__(self) -> None:
        self.ns = dict.fromkeys(PARTS, 0)

    def timed(self, part: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.thread_time_ns()
            try:
                return method(*args, **kwargs)
            finally:
                self.ns[part] += time.thread_time_ns() - start

        return call

    def read(self) -> dict[str, float]:
        read = {part: ns / 1000 for part, ns in self.ns.items()}
        self.ns = dict.fromkeys(PARTS, 0)
        return read


def install_platform() -> None:
    """Let vLLM run its GPU model runner here: no compiled operators, no kernels."""
    import vllm.platforms
    from triton.runtime import interpreter

    import torch

    library = torch.library.Library("_C", "FRAGMENT")
    library.define("init_cpu_memory_env(int[] nodes) -> ()")
    library.impl("init_cpu_memory_env", lambda nodes: None, "CompositeExplicitAutograd")
    install_platform.library = library  # type: ignore[attr-defined]
    interpreter.InterpretedFunction.run = lambda *args, **kwargs: None

    from platform_stub import BenchPlatform

    vllm.platforms._current_platform = BenchPlatform()


def make_engine(case: Case) -> Any:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.executor.abstract import Executor

    config = EngineArgs(
        model=MODEL,
        dtype="float32",
        seed=0,
        max_model_len=MAX_MODEL_LEN,
        block_size=BLOCK_SIZE,
        enforce_eager=True,
        enable_prefix_caching=True,
        kv_cache_memory_bytes=2 << 30,
        max_num_seqs=case.max_rows,
        max_num_batched_tokens=max(8192, 8 * case.max_rows),
        async_scheduling=case.asynchronous,
        speculative_config={
            "method": "ngram",
            "num_speculative_tokens": case.drafts,
            "prompt_lookup_max": 4,
        }
        if case.drafts
        else None,
    ).create_engine_config()
    return EngineCore(config, Executor.get_class(config), log_stats=False)


class Sampler:
    """Stands for `GPUModelRunner.sample`: any number of drafts is accepted."""

    def __init__(self, seed: int) -> None:
        import numpy as np

        self.random = np.random.default_rng(seed)

    def __call__(self, hidden_states: Any, input_batch: Any, grammar_output: Any) -> Any:
        import numpy as np
        import torch
        from vllm.v1.worker.gpu.sample.output import SamplerOutput

        rows = input_batch.num_reqs
        drafts = input_batch.num_draft_tokens_per_req
        drafts = np.zeros(rows, np.int32) if drafts is None else drafts
        accepted = self.random.integers(0, drafts + 1)
        ends_inside_prompt = (
            input_batch.num_computed_tokens_np + input_batch.num_scheduled_tokens
            < input_batch.prefill_len_np
        )
        tokens = self.random.integers(0, 1000, (rows, int(drafts.max(initial=0)) + 1))
        num_sampled = torch.from_numpy(
            np.where(ends_inside_prompt, 0, accepted + 1).astype(np.int32)
        )
        num_rejected = torch.from_numpy((drafts - accepted).astype(np.int32))
        output = SamplerOutput(
            sampled_token_ids=torch.from_numpy(tokens),
            logprobs_tensors=None,
            num_nans=None,
            num_sampled=num_sampled,
            num_rejected=num_rejected,
        )
        return output, num_sampled, num_rejected


class Child:
    """One tree's engine core with its requests."""

    def __init__(self, case: Case) -> None:
        import torch
        from vllm.v1.worker.gpu.async_utils import AsyncOutput

        torch.set_num_threads(1)
        self.engine = make_engine(case)
        self.case, self.clock = case, Clock()
        runner = self.engine.model_executor.driver_worker.worker.model_runner
        # What the sampler's stand-in takes is no part of a step.
        self.sampler_ns = 0

        def sample_unmeasured(*args: Any) -> Any:
            start = time.thread_time_ns()
            output = self.sampler(*args)
            self.sampler_ns += time.thread_time_ns() - start
            return output

        runner.sample = sample_unmeasured
        hidden = torch.zeros(runner.max_num_tokens, 1)
        runner.model.forward = lambda input_ids, **kwargs: hidden[: len(input_ids)]
        scheduler = self.engine.scheduler
        for owner, part in (
            (scheduler, "schedule"),
            (scheduler, "update_from_output"),
            (runner, "execute_model"),
            (runner, "sample_tokens"),
            (AsyncOutput, "get_output"),
        ):
            setattr(owner, part, self.clock.timed(part, getattr(owner, part)))

    def run_rows(self, rows: int) -> None:
        """Replace the requests by this many, and run their prefill."""
        gc.enable()
        gc.unfreeze()
        self._end_requests()
        self.sampler = Sampler(rows)
        self._add_requests(rows)
        running = self.engine.scheduler.running
        while len(running) < rows or any(r.num_output_tokens < 2 for r in running):
            self.engine.step_fn()
            running = self.engine.scheduler.running
        gc.collect()
        gc.freeze()
        gc.disable()

    def _end_requests(self) -> None:
        self.engine.abort_requests([r.request_id for r in self.engine.scheduler.running])
        while self.engine.scheduler.has_requests() or self.engine.batch_queue:
            self.engine.step_fn()

    def _add_requests(self, rows: int) -> None:
        import random

        from vllm.sampling_params import SamplingParams
        from vllm.v1.engine import EngineCoreRequest

        rng = random.Random(rows)
        for i in range(rows):
            request = EngineCoreRequest(
                request_id=f"{rows}-{i}",
                prompt_token_ids=[rng.randrange(1000) for _ in range(rng.randint(*PROMPT_TOKENS))],
                mm_features=None,
                sampling_params=SamplingParams(
                    max_tokens=MAX_MODEL_LEN, temperature=0, ignore_eos=True
                ),
                pooling_params=None,
                arrival_time=float(i),
                lora_request=None,
                cache_salt=None,
                data_parallel_rank=None,
            )
            self.engine.add_request(*self.engine.preprocess_add_request(request))

    def steps(self, count: int) -> dict[str, Any]:
        seen = hashlib.sha256()
        us, parts = [], []
        for _ in range(count):
            self.clock.read()
            self.sampler_ns = 0
            start = time.process_time_ns()
            outputs, _ = self.engine.step_fn()
            us.append((time.process_time_ns() - start - self.sampler_ns) / 1000)
            read = self.clock.read()
            read["sample_tokens"] -= self.sampler_ns / 1000
            parts.append(read)
            for core_outputs in (outputs or {}).values():
                for o in core_outputs.outputs:
                    seen.update(repr((o.request_id, o.new_token_ids, o.finish_reason)).encode())
        return {"us": us, "parts": parts, "seen": seen.hexdigest()}


def child_main(case: Case) -> None:
    """Answer each command of the parent, `rows N` or `steps N`, with a line of JSON."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    install_platform()
    child = Child(case)
    print(json.dumps("ready"), file=out, flush=True)
    for line in sys.stdin:
        command, count = line.split()
        answer = {"rows": child.run_rows, "steps": child.steps}[command](int(count))
        print(json.dumps(answer), file=out, flush=True)


class Tree:
    """The process that runs one tree's engine core."""

    def __init__(self, tree: Path, case: Case, log: Path) -> None:
        env = os.environ | {
            "PYTHONPATH": f"{tree}:{Path(__file__).parent}",
            "TRITON_INTERPRET": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "PYTHONHASHSEED": "0",
        }
        self.log = log
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--child", json.dumps(asdict(case))],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
            text=True,
        )

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"an engine ended: see {self.log}")
        return json.loads(line)

    def ask(self, command: str, count: int) -> Any:
        assert self.process.stdin is not None
        print(command, count, file=self.process.stdin, flush=True)
        return self.answer()

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measure_rows(engines: dict[str, Tree], case: Case, rows: int, steps: int) -> dict[str, Any]:
    us: dict[str, list[float]] = {name: [] for name in engines}
    parts: dict[str, list[dict[str, float]]] = {name: [] for name in engines}
    for engine in engines.values():
        engine.ask("rows", rows)
    names = list(engines)
    for _ in range(steps // STEPS_A_BLOCK):
        # The second of two finds warmer caches.
        names.reverse()
        seen = set()
        for name in names:
            block = engines[name].ask("steps", STEPS_A_BLOCK)
            us[name] += block["us"]
            parts[name] += block["parts"]
            seen.add(block["seen"])
        if len(seen) != 1:
            raise SystemExit(f"the trees' outputs differ at {rows} rows, {case}")
    result: dict[str, Any] = {"mode": case.mode, "rows": rows, **asdict(case)}
    for name in engines:
        result[name] = statistics.median(us[name])
        result[f"{name}_parts"] = {
            part: statistics.median(p[part] for p in parts[name]) for part in PARTS
        }
    return result


def measure_case(
    trees: dict[str, Path], case: Case, rows: list[int], steps: int, out: Path
) -> list[dict[str, Any]]:
    engines = {name: Tree(path, case, out / f"{name}.log") for name, path in trees.items()}
    results = []
    try:
        for engine in engines.values():
            assert engine.answer() == "ready"
        for count in rows:
            results.append(measure_rows(engines, case, count, steps))
            print(report(results[-1:]).splitlines()[-1], flush=True)
    finally:
        for engine in engines.values():
            engine.end()
    return results


def report(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| mode | rows | 0.34.0 us | series us | of 0.34.0 | " + " | ".join(PARTS) + " |",
        "|---|" + "---:|" * (4 + len(PARTS)),
    ]
    for row in rows:
        parts = " | ".join(
            f"{row['pristine_parts'][p]:.0f} → {row['patched_parts'][p]:.0f}" for p in PARTS
        )
        share = 100 * row["patched"] / row["pristine"]
        lines.append(
            f"| {row['mode']} | {row['rows']} | {row['pristine']:.0f} | {row['patched']:.0f} "
            f"| {share:.0f} % | {parts} |"
        )
    return "\n".join(lines) + "\n"


def simulated(rows: list[dict[str, Any]]) -> str:
    """Throughput with a device of fixed speed, by `step.simulate`'s two timelines.

    What the device waits for is all up to the sampler's launch.
    """
    lines = []
    for row in rows:
        before_launch = {
            f"{tree}_schedule": sum(
                row[f"{tree}_parts"][p] for p in ("schedule", "execute_model", "sample_tokens")
            )
            for tree in ("pristine", "patched")
        }
        for gain in gains(row | before_launch):
            lines.append(
                [
                    row["mode"],
                    row["rows"],
                    gain["device_ms"],
                    f"{gain['share']:.0f} %",
                    gain["pristine"],
                    gain["patched"],
                    f"{gain['gain']:.1f} %",
                ]
            )
    columns = [
        "mode",
        "rows",
        "device ms",
        "host's share in sequence",
        "steps/s, 0.34.0",
        "series",
        "gain",
    ]
    return "\n".join(table(columns, lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pristine", type=Path)
    parser.add_argument("--patched", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--steps", type=int, default=96)
    parser.add_argument("--drafts", type=int, nargs="+", default=DRAFTS)
    parser.add_argument("--modes", nargs="+", choices=("sync", "async"), default=("sync", "async"))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child_main(Case(**json.loads(args.child)))
        return
    if not (args.pristine and args.patched and args.out):
        parser.error("--pristine, --patched and --out are needed")
    trees = {"pristine": args.pristine.resolve(), "patched": args.patched.resolve()}
    args.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for mode in args.modes:
        for drafts in args.drafts:
            case = Case(max(args.rows), drafts, mode == "async")
            rows += measure_case(trees, case, args.rows, args.steps, args.out)
    (args.out / "whole_step.json").write_text(json.dumps(rows, indent=1))
    (args.out / "whole_step.md").write_text(report(rows) + "\n" + simulated(rows))


if __name__ == "__main__":
    main()
