# SPDX-License-Identifier: Apache-2.0
"""What a decode step costs the scheduler's process, pristine and series in turn.

    python step.py --pristine TREE --patched TREE --out DIR

Both trees' schedulers live in one process: the modules of `vllm.v1.core` and
`vllm.v1.request` are loaded once from each tree, everything else is shared. They get
the same requests and the same sampled tokens, their steps alternate in short blocks,
and after every step what they scheduled, allocated and returned is compared, so that a
faster scheduler that does something else is an error and not a figure.

The model runner is not there: its output is made beforehand, outside of the measured
time. Times are CPU time of the thread, so other processes count only through caches.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import platform
import random
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

ROWS = (1, 16, 64, 256, 1024)
DRAFTS = (0, 4)
MODEL = "ngram-tests/tiny-llama"
BLOCK_SIZE = 16
MAX_MODEL_LEN = 4096
STEPS_A_BLOCK = 8
# Rows' prompts differ in length, so their blocks fill in different steps.
PROMPT_TOKENS = (20, 200)
# Methods of the table, by the class that has them.
METHODS = {
    "AsyncScheduler": (
        "schedule",
        "_make_cached_request_data",
        "_update_after_schedule",
        "update_from_output",
        "_update_request_with_output",
    ),
    "KVCacheManager": ("allocate_slots", "cache_blocks"),
    "Request": ("update_block_hashes",),
}
DEVICE_MS = (10.0, 20.0)
CORE = "vllm.v1.core"
ATTRIBUTES = ("core", "kv_cache_spec_registry", "request")
REGISTRY = "vllm.v1.kv_cache_spec_registry"
REQUEST = "vllm.v1.request"


@dataclass(frozen=True)
class Case:
    rows: int
    drafts: int
    asynchronous: bool

    @property
    def mode(self) -> str:
        return ("async" if self.asynchronous else "sync") + (
            f", k={self.drafts}" if self.drafts else ""
        )


@dataclass(frozen=True)
class Core:
    """The scheduler's modules of one tree."""

    modules: dict[str, ModuleType]

    def find(self, name: str) -> Any:
        """The class or function of this name, wherever in the modules it is defined."""
        for module in self.modules.values():
            found = module.__dict__.get(name)
            if getattr(found, "__module__", None) == module.__name__:
                return found
        raise LookupError(f"no {name} in {', '.join(self.modules)}")


def _is_core(name: str) -> bool:
    return name in (CORE, REGISTRY, REQUEST) or name.startswith(f"{CORE}.")


def _take_core_modules() -> dict[str, ModuleType]:
    return {name: sys.modules.pop(name) for name in list(sys.modules) if _is_core(name)}


def load_core(tree: Path) -> Core:
    """Import the scheduler's modules of a tree beside those that are loaded."""
    package = importlib.import_module("vllm.v1")
    before, path = _take_core_modules(), package.__path__
    attributes = {name: getattr(package, name, None) for name in ATTRIBUTES}
    package.__path__ = [str(tree / "vllm" / "v1")]
    try:
        for name in ("request", "core.kv_cache_utils", "core.sched.async_scheduler"):
            importlib.import_module(f"vllm.v1.{name}")
    finally:
        mine = _take_core_modules()
        sys.modules.update(before)
        package.__path__ = path
        for name, module in attributes.items():
            setattr(package, name, module)
    wrong = [n for n, m in mine.items() if not str(m.__file__).startswith(f"{tree}/")]
    if wrong:
        raise SystemExit(f"not loaded from {tree}: {', '.join(wrong)}")
    return Core(mine)


@contextmanager
def current(core: Core) -> Iterator[None]:
    """Let imports inside of functions find this core's modules."""
    before = _take_core_modules()
    sys.modules.update(core.modules)
    try:
        yield
    finally:
        _take_core_modules()
        sys.modules.update(before)


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
def timed_methods(core: Core) -> Iterator[dict[str, Timer]]:
    timers: dict[str, Timer] = {}
    undo: list[tuple[type, str, Any]] = []
    for class_name, names in METHODS.items():
        cls = core.find(class_name)
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
        with timed_methods(core) as timers:
            for _ in range(steps):
                engine.step()
        result[name] = {
            method: {"us": t.ns / steps / 1000, "calls": t.calls / steps}
            for method, t in timers.items()
        }
    result["timer_us"] = timer_cost_ns() / 1000
    return result


def simulate(host_us: float, schedule_us: float, device_ms: float, overlap: bool) -> float:
    """Steps a second of two timelines, the host's and the device's, by simulation.

    Without overlap the device waits for schedule and update. With it, schedule of the
    next step and update of the last run while the device works, and the device waits
    for a step only until the host has scheduled it.
    """
    device_us, steps = device_ms * 1000, 1000
    if not overlap:
        return 1e6 / (host_us + device_us)
    host = device = 0.0
    ends: deque[float] = deque()
    for _ in range(steps):
        host += schedule_us
        device = max(device, host) + device_us
        ends.append(device)
        if len(ends) > 1:
            host = max(host, ends.popleft()) + host_us - schedule_us
    return steps * 1e6 / device


def gains(row: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for device_ms in DEVICE_MS:
        rates = {
            tree: simulate(row[tree], row[f"{tree}_schedule"], device_ms, row["asynchronous"])
            for tree in ("pristine", "patched")
        }
        gain = 100 * (rates["patched"] / rates["pristine"] - 1)
        share = 100 * row["pristine"] / (row["pristine"] + device_ms * 1000)
        rows.append({"device_ms": device_ms, "share": share, "gain": gain, **rates})
    return rows


def measure(args: argparse.Namespace) -> dict[str, Any]:
    cores = {"pristine": load_core(args.pristine), "patched": load_core(args.patched)}
    cases = [
        Case(r, k, a)
        for a in (False, True)
        if ("sync", "async")[a] in args.modes
        for k in DRAFTS
        for r in args.rows
    ]
    steps = []
    for case in cases:
        row = measure_case(cores, case, args.steps)
        print(
            f"{case.mode:12} {case.rows:5} rows: {row['pristine']:9.1f} -> "
            f"{row['patched']:9.1f} us, {100 * row['patched'] / row['pristine']:.0f} %",
            flush=True,
        )
        steps.append(row | {"gains": gains(row)})
    functions = [
        measure_functions(cores, Case(r, k, True), args.steps // 4)
        for k in DRAFTS
        for r in args.rows
        if r >= 64
    ]
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, load average {os.getloadavg()[0]:.1f}",
        "steps": steps,
        "functions": functions,
    }


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---:|" * len(columns)]
    for row in rows:
        cells = [f"{cell:.1f}" if isinstance(cell, float) else str(cell) for cell in row]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def percent(row: dict[str, Any]) -> float:
    return float(100 * row["patched"] / row["pristine"])


def verdicts(steps: list[dict[str, Any]]) -> list[list[str]]:
    def worst(drafts: int, rows: int) -> float | None:
        found = [percent(r) for r in steps if (r["drafts"], r["rows"]) == (drafts, rows)]
        return max(found, default=None)

    lines = []
    for drafts, rows, asked in (
        (0, 256, 50),
        (0, 1024, 50),
        (4, 256, 60),
        (4, 1024, 60),
        (0, 1, 100),
        (4, 1, 100),
    ):
        measured = worst(drafts, rows)
        if measured is not None:
            what = f"{rows} rows, {f'k={drafts}' if drafts else 'no speculation'}"
            met = "yes" if measured <= asked else "no"
            lines.append([what, f"{asked} %", f"{measured:.1f} %", met])
    return lines


def report(results: dict[str, Any]) -> str:
    steps = results["steps"]
    lines = [f"Measured on {results['machine']}.", "", "### Asked and measured", ""]
    lines += table(
        ["step, of pristine's, sync or async", "at most", "measured", "met"], verdicts(steps)
    )
    lines += ["### The scheduler's share of a step (us)", ""]
    lines += table(
        ["mode", "rows", "0.34.0", "series", "of 0.34.0"],
        [[r["mode"], r["rows"], r["pristine"], r["patched"], f"{percent(r):.0f} %"] for r in steps],
    )
    lines += ["### By function (us a step, async; timers included)", ""]
    lines += table(
        ["rows", "k", "function", "calls", "0.34.0", "calls", "series"],
        [
            [
                f["rows"],
                f["drafts"],
                f"`{name}`",
                *(
                    cell
                    for tree in ("pristine", "patched")
                    for cell in (
                        round(f[tree].get(name, {}).get("calls", 0)),
                        f[tree].get(name, {}).get("us", 0.0),
                    )
                ),
            ]
            for f in results["functions"]
            for name in {**f["pristine"], **f["patched"]}
        ],
    )
    lines += ["### Simulated: a device of fixed speed beside this host", ""]
    lines += table(
        [
            "mode",
            "rows",
            "device ms",
            "host, 0.34.0, of a step in sequence",
            "steps/s, 0.34.0",
            "series",
            "gain",
        ],
        [
            [
                r["mode"],
                r["rows"],
                g["device_ms"],
                f"{g['share']:.0f} %",
                g["pristine"],
                g["patched"],
                f"{g['gain']:.1f} %",
            ]
            for r in steps
            for g in r["gains"]
        ],
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pristine", type=Path, required=True)
    parser.add_argument("--patched", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--steps", type=int, default=96)
    parser.add_argument("--modes", nargs="+", choices=("sync", "async"), default=("sync", "async"))
    args = parser.parse_args()
    args.pristine, args.patched = args.pristine.resolve(), args.patched.resolve()
    for tree in (args.pristine, args.patched):
        if not (tree / "vllm" / "v1").is_dir():
            parser.error(f"no vLLM tree at {tree}")
    args.out.mkdir(parents=True, exist_ok=True)
    results = measure(args)
    (args.out / "step.json").write_text(json.dumps(results, indent=1))
    (args.out / "step.md").write_text(report(results))
    print("\n".join(table(["step", "at most", "measured", "met"], verdicts(results["steps"]))))


if __name__ == "__main__":
    main()
