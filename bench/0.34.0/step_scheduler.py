# SPDX-License-Identifier: Apache-2.0
"""The scheduler's part of a step, of two trees in one process, in turn.

The model runner is not there: its output is made beforehand, outside of the measured
time. After every step what the schedulers scheduled, allocated and returned is compared.
Times are CPU time of the thread, so other processes count only through caches.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from step_trees import Core, current

MODEL = "ngram-tests/tiny-llama"
BLOCK_SIZE = 16
MAX_MODEL_LEN = 4096
STEPS_A_BLOCK = 8
# Rows' prompts differ in length, so their blocks fill in different steps.
PROMPT_TOKENS = (20, 200)
# Methods of the table, by the class that has them.
METHODS = {
    "Scheduler": (
        "schedule",
        "_make_cached_request_data",
        "_update_after_schedule",
        "update_from_output",
        "_update_request_with_output",
    ),
    "KVCacheManager": ("allocate_slots", "cache_blocks"),
    "Request": ("update_block_hashes",),
}


@dataclass(frozen=True)
class Case:
    """How many requests decode at a time, and how they are scheduled.

    Attributes:
        model: whether the model, its kernels and the sampler run; else they are empty.
    """

    rows: int
    drafts: int
    asynchronous: bool
    model: bool = False

    @property
    def mode(self) -> str:
        return ("async" if self.asynchronous else "sync") + (
            f", k={self.drafts}" if self.drafts else ""
        )


def make_scheduler(core: Core, case: Case) -> Any:
    import torch
    from vllm.config import (
        CacheConfig,
        ModelConfig,
        SchedulerConfig,
        SpeculativeConfig,
        VllmConfig,
    )
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    model = ModelConfig(model=MODEL, dtype="float32", seed=0, max_model_len=MAX_MODEL_LEN)
    tokens_a_row = MAX_MODEL_LEN // 2
    blocks = case.rows * tokens_a_row // BLOCK_SIZE + 16
    cache = CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=True)
    cache.num_gpu_blocks = blocks
    ngram = SpeculativeConfig(
        method="ngram", num_speculative_tokens=case.drafts or 1, prompt_lookup_max=4
    )
    config = VllmConfig(
        model_config=model,
        cache_config=cache,
        speculative_config=ngram if case.drafts else None,
        scheduler_config=SchedulerConfig(
            max_num_seqs=case.rows,
            max_num_batched_tokens=max(8192, 8 * case.rows),
            max_model_len=MAX_MODEL_LEN,
            async_scheduling=case.asynchronous,
            is_encoder_decoder=False,
            enable_chunked_prefill=True,
        ),
    )
    spec = FullAttentionSpec(
        block_size=BLOCK_SIZE, num_kv_heads=1, head_size=32, dtype=torch.float32
    )
    core.find("register_all_kvcache_specs")(config)
    name = "AsyncScheduler" if case.asynchronous else "Scheduler"
    return core.find(name)(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        ),
        block_size=BLOCK_SIZE,
        log_stats=True,
        structured_output_manager=StructuredOutputManager(config),
    )


@dataclass
class Engine:
    """One tree's scheduler with its requests, and what its steps took."""

    core: Core
    case: Case
    seed: int
    scheduler: Any = None
    in_flight: deque[Any] = field(default_factory=deque)
    step_ns: list[int] = field(default_factory=list)
    schedule_ns: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        from vllm.sampling_params import SamplingParams
        from vllm.utils.hashing import sha256

        self.random = random.Random(self.seed)
        with current(self.core):
            self.core.find("init_none_hash")(sha256)
            self.scheduler = make_scheduler(self.core, self.case)
            hasher = self.core.find("get_request_block_hasher")(BLOCK_SIZE, sha256)
            params = SamplingParams(max_tokens=MAX_MODEL_LEN, temperature=0, ignore_eos=True)
            for i in range(self.case.rows):
                prompt = [self.random.randrange(1000) for _ in range(self._prompt_length())]
                self.scheduler.add_request(
                    self.core.find("Request")(
                        request_id=f"request-{i}",
                        prompt_token_ids=prompt,
                        sampling_params=params,
                        pooling_params=None,
                        arrival_time=float(i),
                        block_hasher=hasher,
                    )
                )

    def _prompt_length(self) -> int:
        return self.random.randint(*PROMPT_TOKENS)

    def prefill(self) -> None:
        while len(self.scheduler.running) < self.case.rows or any(
            r.num_output_tokens < 2 for r in self.scheduler.running
        ):
            self.step()
        self.step_ns.clear()
        self.schedule_ns.clear()

    def step(self) -> tuple[Any, ...]:
        """One step; async scheduling has the step before still in flight."""
        start = time.thread_time_ns()
        scheduled = self.scheduler.schedule()
        schedule_ns = time.thread_time_ns() - start
        self.in_flight.append(scheduled)
        if len(self.in_flight) <= self.case.asynchronous:
            return _seen(scheduled, {})
        oldest = self.in_flight.popleft()
        output = self._model_output(oldest)
        drafts = self._drafts(oldest)
        start = time.thread_time_ns()
        outputs = self.scheduler.update_from_output(oldest, output)
        if drafts is not None:
            self.scheduler.update_draft_token_ids(drafts)
        update_ns = time.thread_time_ns() - start
        self.schedule_ns.append(schedule_ns)
        self.step_ns.append(schedule_ns + update_ns)
        return _seen(scheduled, outputs)

    def _model_output(self, scheduled: Any) -> Any:
        from vllm.v1.outputs import ModelRunnerOutput

        req_ids = list(scheduled.num_scheduled_tokens)
        sampled = []
        for req_id in req_ids:
            drafts = scheduled.scheduled_spec_decode_tokens.get(req_id, ())
            count = 1 + self.random.randint(0, len(drafts))
            request = self.scheduler.requests[req_id]
            if request.num_computed_tokens < request.num_prompt_tokens:
                count = 0
            sampled.append([self.random.randrange(1000) for _ in range(count)])
        return ModelRunnerOutput(req_ids=req_ids, sampled_token_ids=sampled)

    def _drafts(self, scheduled: Any) -> Any:
        from vllm.v1.outputs import DraftTokenIds

        if not self.case.drafts or self.case.asynchronous:
            return None
        req_ids = list(scheduled.num_scheduled_tokens)
        return DraftTokenIds(req_ids, [[7] * self.case.drafts for _ in req_ids])


def _seen(scheduled: Any, outputs: dict[int, Any]) -> tuple[Any, ...]:
    """What leaves the scheduler in a step, as plain values of either tree."""
    cached = scheduled.scheduled_cached_reqs
    emitted = [
        (o.request_id, o.new_token_ids, o.finish_reason)
        for e in outputs.values()
        for o in e.outputs
    ]
    return (
        scheduled.num_scheduled_tokens,
        scheduled.scheduled_spec_decode_tokens,
        cached.req_ids,
        cached.new_block_ids,
        cached.num_computed_tokens,
        cached.num_output_tokens,
        emitted,
    )


def in_turn(engines: dict[str, Engine], steps: int) -> None:
    """Run the engines' steps in alternating blocks and compare what they did.

    The order changes with each round, as the second of two finds warmer caches.
    """
    names = list(engines)
    for _ in range(steps // STEPS_A_BLOCK):
        seen = {name: [engines[name].step() for _ in range(STEPS_A_BLOCK)] for name in names}
        names.reverse()
        first, second = seen.values()
        if first != second:
            raise SystemExit(f"the trees' steps differ in {next(iter(engines.values())).case}")


def measure_case(cores: dict[str, Core], case: Case, steps: int) -> dict[str, Any]:
    engines = {name: Engine(core, case, seed=case.rows) for name, core in cores.items()}
    for engine in engines.values():
        engine.prefill()
    gc.collect()
    gc.disable()
    try:
        in_turn(engines, steps)
    finally:
        gc.enable()
    result: dict[str, Any] = {"mode": case.mode, **asdict(case)}
    for name, engine in engines.items():
        result[name] = statistics.median(engine.step_ns) / 1000
        result[f"{name}_schedule"] = statistics.median(engine.schedule_ns) / 1000
    return result


class Timer:
    """Counts the calls of a method and the time in it, its callees included."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.method, self.calls, self.ns = method, 0, 0

    def bound_method(self) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.thread_time_ns()
            try:
                return self.method(*args, **kwargs)
            finally:
                self.ns += time.thread_time_ns() - start
                self.calls += 1

        return timed


@contextmanager
def timed_methods(core: Core, asynchronous: bool) -> Iterator[dict[str, Timer]]:
    timers: dict[str, Timer] = {}
    undo: list[tuple[type, str, Any]] = []
    for class_name, names in METHODS.items():
        is_async = asynchronous and class_name == "Scheduler"
        cls = core.find("AsyncScheduler" if is_async else class_name)
        for name in names:
            method = getattr(cls, name, None)
            if method is None:
                continue
            undo.append((cls, name, cls.__dict__.get(name)))
            timers[name] = Timer(method)
            setattr(cls, name, timers[name].bound_method())
    try:
        yield timers
    finally:
        for cls, name, own in undo:
            delattr(cls, name) if own is None else setattr(cls, name, own)


def timer_cost_ns() -> float:
    """What a `Timer` adds to the time that it sees around a call, and outside of it."""
    timer = Timer(lambda: None)
    timed = timer.bound_method()
    start = time.thread_time_ns()
    for _ in range(10000):
        timed()
    return (time.thread_time_ns() - start) / timer.calls


def measure_functions(cores: dict[str, Core], case: Case, steps: int) -> dict[str, Any]:
    """Time per step of each method, less what the timers inside of it cost."""
    result: dict[str, Any] = {"mode": case.mode, **asdict(case)}
    for name, core in cores.items():
        engine = Engine(core, case, seed=case.rows)
        engine.prefill()
        with timed_methods(core, case.asynchronous) as timers:
            for _ in range(steps):
                engine.step()
        result[name] = {
            method: {"us": t.ns / steps / 1000, "calls": t.calls / steps}
            for method, t in timers.items()
        }
    result["timer_us"] = timer_cost_ns() / 1000
    return result
