# SPDX-License-Identifier: Apache-2.0
"""The engine core of one tree, whose steps are measured: a process that step.py starts.

A step is `EngineCore.step_fn`: schedule, execute the model, sample, get the output and
update from it. Of that, everything on the host is the tree's own code. Left out are the
Triton kernels (launched, but empty), the model's forward pass and the sampler, whose
tokens are made beforehand; with `Case.model` they run, interpreted. Times are CPU time of
the process, with one thread of torch.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from step_scheduler import BLOCK_SIZE, MODEL, PROMPT_TOKENS, Case

MAX_MODEL_LEN = 2048
# The parts of a step, in their order.
PARTS = ("schedule", "execute_model", "sample_tokens", "get_output", "update_from_output")


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


def install_platform(kernels: bool = False) -> None:
    """Let vLLM run its GPU model runner here, without compiled operators.

    Args:
        kernels: whether attention and Triton's kernels compute; else they are empty.
    """
    import torch
    import vllm.platforms
    from triton.runtime import interpreter

    library = torch.library.Library("_C", "FRAGMENT")
    library.define("init_cpu_memory_env(int[] nodes) -> ()")
    library.impl("init_cpu_memory_env", lambda nodes: None, "CompositeExplicitAutograd")
    install_platform.library = library  # type: ignore[attr-defined]
    from v2rig.bare import BarePlatform

    class Platform(BarePlatform):
        @classmethod
        def get_attn_backend_cls(cls, *args: Any, **options: Any) -> str:
            if kernels:
                return "v2rig.attention.TorchAttentionBackend"
            return BarePlatform.get_attn_backend_cls(*args, **options)

    if not kernels:
        interpreter.InterpretedFunction.run = lambda *args, **options: None
    vllm.platforms._current_platform = Platform()


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
        max_num_seqs=case.rows,
        max_num_batched_tokens=max(8192, 8 * case.rows),
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

    def __init__(self, seed: int, drafts: int) -> None:
        import numpy as np

        self.drafts = drafts
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
        counts = {}
        if "counts" in SamplerOutput.__dataclass_fields__ and self.drafts:
            # The series counts what was drafted, beside what was sampled.
            counts["counts"] = torch.stack([num_sampled, torch.from_numpy(drafts)])
        output = SamplerOutput(
            sampled_token_ids=torch.from_numpy(tokens),
            logprobs_tensors=None,
            num_nans=None,
            num_sampled=num_sampled,
            num_rejected=num_rejected,
            **counts,
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

        if not case.model:
            self._empty_model(runner)
        scheduler = self.engine.scheduler
        for owner, part in (
            (scheduler, "schedule"),
            (scheduler, "update_from_output"),
            (runner, "execute_model"),
            (runner, "sample_tokens"),
            (AsyncOutput, "get_output"),
        ):
            setattr(owner, part, self.clock.timed(part, getattr(owner, part)))

    def _empty_model(self, runner: Any) -> None:
        """Leave the forward pass and the sampler out."""
        import torch

        def sample_unmeasured(*args: Any) -> Any:
            start = time.thread_time_ns()
            output = self.sampler(*args)
            self.sampler_ns += time.thread_time_ns() - start
            return output

        runner.sample = sample_unmeasured
        hidden = torch.zeros(runner.max_num_tokens, 1)
        runner.model.forward = lambda input_ids, **kwargs: hidden[: len(input_ids)]

    def run_rows(self, rows: int) -> None:
        """Replace the requests by this many, and run their prefill."""
        gc.enable()
        gc.unfreeze()
        self._end_requests()
        self.sampler = Sampler(rows, self.case.drafts)
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
    install_platform(case.model)
    child = Child(case)
    print(json.dumps("ready"), file=out, flush=True)
    for line in sys.stdin:
        command, count = line.split()
        answer = {"rows": child.run_rows, "steps": child.steps}[command](int(count))
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    child_main(Case(**json.loads(sys.argv[1])))
