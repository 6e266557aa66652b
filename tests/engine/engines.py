# SPDX-License-Identifier: Apache-2.0
"""Engines in one process, in the modes that the tests compare."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from cpurig.models.ours import TINY_LLAMA
from cpurig.streams import TIMELINE, OrderFault
from line import ARGUMENTS

NONE, NGRAM, GPU_SYNC, GPU_ASYNC = (
    "none",
    "ngram sync",
    "ngram_gpu sync",
    "ngram_gpu async",
)
SPECULATION = {
    "num_speculative_tokens": 3,
    "prompt_lookup_min": 2,
    "prompt_lookup_max": 4,
}


def mode_arguments(mode: str, speculation: dict[str, int]) -> dict[str, Any]:
    """The arguments by which the modes differ."""
    if mode == NONE:
        return {"async_scheduling": False}
    method, schedule = mode.split()
    return {
        # The default must be async: leave it to vLLM.
        "async_scheduling": None if schedule == "async" else False,
        "speculative_config": {"method": method, **speculation},
    }


def engine_arguments(
    mode: str, speculation: dict[str, int] | None = None, **arguments: Any
) -> dict[str, Any]:
    """What every engine of a line's tests is made with; `arguments` win."""
    return {
        "model": TINY_LLAMA,
        # Half precision rounds differently for one token and for four.
        "dtype": "float32",
        "max_model_len": 512,
        "max_num_seqs": 16,
        "enforce_eager": True,
        "seed": 0,
        "block_size": 32,
        "disable_log_stats": False,
        **ARGUMENTS,
        **mode_arguments(mode, speculation or SPECULATION),
        **arguments,
    }


@dataclass
class Counts:
    """What speculation did."""

    drafts: int = 0
    draft_tokens: int = 0
    accepted: int = 0
    per_position: tuple[int, ...] = ()

    def since(self, before: Counts) -> Counts:
        zeros = before.per_position or (0,) * len(self.per_position)
        return Counts(
            self.drafts - before.drafts,
            self.draft_tokens - before.draft_tokens,
            self.accepted - before.accepted,
            tuple(a - b for a, b in zip(self.per_position, zeros, strict=True)),
        )


@dataclass
class Run:
    """One scenario in one mode."""

    outputs: list[Any]
    counts: Counts
    steps: int
    row_steps: int
    preemptions: int = 0
    tokens: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = [list(c.token_ids) for o in self.outputs for c in o.outputs]

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.tokens))


class Engine:
    """An LLM whose steps and speculation can be looked at."""

    def __init__(self, mode: str, speculation: dict[str, int] | None = None, **arguments: Any):
        from vllm import LLM

        self.mode = mode
        self.llm = LLM(**engine_arguments(mode, speculation, **arguments))
        scheduled_async = self.llm.llm_engine.vllm_config.scheduler_config.async_scheduling
        assert scheduled_async == arguments.get("async_scheduling", mode == GPU_ASYNC)
        self.steps = self.row_steps = 0
        self._count_steps()

    @property
    def runner(self) -> Any:
        executor = self.llm.llm_engine.model_executor
        return executor.driver_worker.worker.model_runner

    @property
    def scheduler(self) -> Any:
        return self.llm.llm_engine.engine_core.engine_core.scheduler

    def _count_steps(self) -> None:
        plain = self.runner.execute_model

        def execute_model(scheduler_output, *args, **kwargs):
            rows = len(scheduler_output.num_scheduled_tokens)
            self.steps += rows > 0
            self.row_steps += rows
            return plain(scheduler_output, *args, **kwargs)

        self.runner.execute_model = execute_model

    def metric(self, name: str) -> Any:
        for metric in self.llm.get_metrics():
            if metric.name == f"vllm:{name}":
                return getattr(metric, "values", None) or metric.value
        return 0

    def counts(self) -> Counts:
        if self.mode == NONE:
            return Counts()
        return Counts(
            int(self.metric("spec_decode_num_drafts")),
            int(self.metric("spec_decode_num_draft_tokens")),
            int(self.metric("spec_decode_num_accepted_tokens")),
            tuple(self.metric("spec_decode_num_accepted_tokens_per_pos") or ()),
        )

    def run(self, prompts: Sequence[Any], params: Any, **options: Any) -> Run:
        """Generate and say what it took; raises if the order of copies was wrong."""
        counts, steps, rows = self.counts(), self.steps, self.row_steps
        preempted = int(self.metric("num_preemptions"))
        outputs = self.llm.generate(list(prompts), params, use_tqdm=False, **options)
        TIMELINE.everything()
        if TIMELINE.faults:
            raise OrderFault("; ".join(TIMELINE.faults))
        return Run(
            outputs,
            self.counts().since(counts),
            self.steps - steps,
            self.row_steps - rows,
            int(self.metric("num_preemptions")) - preempted,
        )

    def close(self) -> None:
        from vllm.distributed import cleanup_dist_env_and_memory

        self.llm.llm_engine.engine_core.shutdown()
        # The configuration, and by it the layers, outlive the engine: an
        # engine's memory is its KV cache, and a process runs two dozen of them.
        compilation = self.llm.llm_engine.vllm_config.compilation_config
        for layer in compilation.static_forward_context.values():
            layer.kv_cache = []
        compilation.static_forward_context.clear()
        del self.llm
        gc.collect()
        cleanup_dist_env_and_memory()


@contextlib.contextmanager
def engine(mode: str, **arguments: Any) -> Iterator[Engine]:
    started = Engine(mode, **arguments)
    try:
        yield started
    finally:
        started.close()
