# SPDX-License-Identifier: Apache-2.0
"""What a decode step costs the host: the pinned vLLM against the series, in turn.

    python step.py --pristine DIR --patched DIR --out DIR

Each DIR holds a runnable `vllm/`. Two things are measured, for each number of rows, with
and without drafts, sync and async:

- the scheduler's part of a step, with both trees' schedulers in one process, and the time
  of each of its functions (step_scheduler.py);
- the whole step of the engine core with its model runner (step_engine.py), in a process
  for each tree, as the model runner can't be imported twice in one: with an empty model,
  and for up to 64 rows with the tests' tiny one, whose kernels are interpreted.

The two trees get the same requests and the same sampled tokens and take turns, eight steps
each, and what their steps return is compared, so that a faster step that does something
else is an error and not a figure. Figures are medians of CPU time. Writes step.json and
step.md to --out.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from step_engine import PARTS, install_platform
from step_scheduler import STEPS_A_BLOCK, Case, measure_case, measure_functions
from step_trees import load_core

HERE = Path(__file__).resolve().parent
ROWS = (1, 16, 64, 256, 1024)
DRAFTS = (0, 4)
MODES = ("sync", "async")
ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "TRITON_INTERPRET": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    # A platform plugin of the tests would put hooks into what is measured.
    "VLLM_PLUGINS": "",
}
# Of the simulated device, for a step.
DEVICE_MS = (10.0, 20.0)
# The most rows for which the tiny model runs, interpreted.
MODEL_ROWS = 64


def percent(row: dict[str, Any]) -> float:
    return float(100 * row["patched"] / row["pristine"])


def say(what: str, row: dict[str, Any]) -> None:
    print(
        f"{what:10} {row['mode']:12} {row['rows']:5} rows: {row['pristine']:9.1f} -> "
        f"{row['patched']:9.1f} us, {percent(row):.0f} %",
        flush=True,
    )


class Tree:
    """The process that runs one tree's engine core."""

    def __init__(self, tree: Path, case: Case, log: Path) -> None:
        paths = [str(tree), os.environ.get("PYTHONPATH", "")]
        env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
        self.log = log
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "step_engine.py"), json.dumps(asdict(case))],
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
    result: dict[str, Any] = {"mode": case.mode, **asdict(case), "rows": rows}
    for name in engines:
        result[name] = statistics.median(us[name])
        result[f"{name}_parts"] = {
            part: statistics.median(p[part] for p in parts[name]) for part in PARTS
        }
    return result


def measure_engine(
    trees: dict[str, Path], case: Case, rows: list[int], steps: int, out: Path
) -> list[dict[str, Any]]:
    engines = {name: Tree(path, case, out / f"{name}.log") for name, path in trees.items()}
    results = []
    try:
        for engine in engines.values():
            assert engine.answer() == "ready"
        for count in rows:
            results.append(measure_rows(engines, case, count, steps))
            say("model" if case.model else "engine", results[-1])
    finally:
        for engine in engines.values():
            engine.end()
    return results


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


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---:|" * len(columns)]
    for row in rows:
        cells = [f"{cell:.1f}" if isinstance(cell, float) else str(cell) for cell in row]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def measure(args: argparse.Namespace) -> dict[str, Any]:
    trees = {"pristine": args.pristine, "patched": args.patched}
    install_platform()
    # The first one loaded brings along what the schedulers share: the series', whose types
    # have all fields of the pin's.
    cores = {name: load_core(trees[name]) for name in ("patched", "pristine")}
    asked = [(k, mode == "async") for mode in args.modes for k in args.drafts]
    steps, engine, model, functions = [], [], [], []
    for drafts, asynchronous in asked:
        for rows in args.rows:
            steps.append(measure_case(cores, Case(rows, drafts, asynchronous), args.steps))
            say("scheduler", steps[-1])
        for rows in args.rows:
            case = Case(rows, drafts, asynchronous)
            functions.append(measure_functions(cores, case, max(1, args.steps // 4)))
        if not args.scheduler_only:
            case = Case(max(args.rows), drafts, asynchronous)
            engine += measure_engine(trees, case, args.rows, args.steps, args.out)
            few = [rows for rows in args.rows if rows <= MODEL_ROWS]
            case = Case(max(few, default=0), drafts, asynchronous, model=True)
            model += measure_engine(trees, case, few, STEPS_A_BLOCK, args.out) if few else []
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, load average {os.getloadavg()[0]:.1f}",
        "scheduler": steps,
        "functions": functions,
        "model": model,
        "engine": [row | {"gains": gains(row | before_launch(row))} for row in engine],
    }


def before_launch(row: dict[str, Any]) -> dict[str, float]:
    """What the device waits for: all up to the sampler's launch."""
    return {
        f"{tree}_schedule": sum(
            row[f"{tree}_parts"][p] for p in ("schedule", "execute_model", "sample_tokens")
        )
        for tree in ("pristine", "patched")
    }


def share(row: dict[str, Any]) -> list[Any]:
    return [row["mode"], row["rows"], row["pristine"], row["patched"], f"{percent(row):.0f} %"]


def report(results: dict[str, Any]) -> str:
    lines = [f"Measured on {results['machine']}. Medians of CPU time, us.", ""]
    columns = ["mode", "rows", "pinned", "series", "of the pinned"]
    lines += ["### The scheduler's part of a step", ""]
    lines += table(columns, [share(row) for row in results["scheduler"]])
    lines += ["### By function, us a step (what it calls included)", ""]
    lines += table(
        ["mode", "rows", "function", "calls", "pinned", "calls", "series"],
        [
            [f["mode"], f["rows"], f"`{name}`", *function_cells(f, name)]
            for f in results["functions"]
            for name in {**f["pristine"], **f["patched"]}
        ],
    )
    if not results["engine"]:
        return "\n".join(lines)
    for kind, heading in (
        ("engine", "The engine core's step"),
        ("model", "The same with the tiny model, its kernels interpreted"),
    ):
        lines += [f"### {heading}", ""]
        lines += table(
            [*columns, *PARTS],
            [
                share(row)
                + [f"{row['pristine_parts'][p]:.0f} → {row['patched_parts'][p]:.0f}" for p in PARTS]
                for row in results[kind]
            ],
        )
    lines += ["### Simulated: a device of fixed speed beside this host", ""]
    lines += table(
        ["mode", "rows", "device ms", "host's share in sequence", "steps/s, pinned", "series"]
        + ["gain"],
        [
            [row["mode"], row["rows"], g["device_ms"], f"{g['share']:.0f} %"]
            + [g["pristine"], g["patched"], f"{g['gain']:.1f} %"]
            for row in results["engine"]
            for g in row["gains"]
        ],
    )
    return "\n".join(lines)


def function_cells(row: dict[str, Any], name: str) -> list[Any]:
    nothing = {"calls": 0, "us": 0.0}
    found = [row[tree].get(name, nothing) for tree in ("pristine", "patched")]
    return [cell for one in found for cell in (round(one["calls"]), one["us"])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pristine", type=Path, required=True)
    parser.add_argument("--patched", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--drafts", type=int, nargs="+", default=DRAFTS)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--steps", type=int, default=96)
    parser.add_argument("--scheduler-only", action="store_true")
    args = parser.parse_args()
    args.pristine, args.patched = args.pristine.resolve(), args.patched.resolve()
    for tree in (args.pristine, args.patched):
        if not (tree / "vllm" / "v1").is_dir():
            parser.error(f"no vLLM tree at {tree}")
    if args.steps < STEPS_A_BLOCK:
        parser.error(f"--steps has to be {STEPS_A_BLOCK} at least")
    os.environ.update(ENVIRONMENT)
    sys.path.insert(0, str(args.patched))
    args.out.mkdir(parents=True, exist_ok=True)
    results = measure(args)
    (args.out / "step.json").write_text(json.dumps(results, indent=1))
    (args.out / "step.md").write_text(report(results) + "\n")


if __name__ == "__main__":
    main()
