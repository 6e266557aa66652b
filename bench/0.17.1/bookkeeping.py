# SPDX-License-Identifier: Apache-2.0
"""Bookkeeping of sampled tokens: the pinned vLLM against the series.

    python bookkeeping.py --pristine DIR --patched DIR --out DIR

Each DIR holds a runnable `vllm/`. Everything is measured in this one run: the
array updates inside one process, block by block in turn, in several processes;
whole methods in processes of the two trees in turn (A B A B ...). Figures are
medians. Writes bookkeeping.json and bookkeeping.md to --out (plot.py draws them).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "TRITON_INTERPRET": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    # A platform plugin of the tests would put hooks into what is measured.
    "VLLM_PLUGINS": "",
}
ROWS = (1, 2, 4, 16, 64, 256, 1024)
# What happens between two steps of the array updates, see the benchmark.
BETWEEN = {
    "nothing": "Array updates, back to back (us)",
    "inputs": "Array updates, inputs made anew before each step as in the runner (us)",
    "sweep": "Array updates, CPU caches emptied before each step (us)",
}
MODES = ("sync", "ngram", "async")
# The parts of a step of the writer, see the probe.
PARTS = {
    "call": "call of a compiled function",
    "count": "count and check",
    "write": "write, rows side by side",
    "apart": "rows 32K tokens apart",
    "python": "Python around the call",
    "sum": "sum",
    "pages": "sum, 4 KiB pages",
}
Row = dict[str, Any]


def run(tree: Path, command: Sequence[str]) -> str:
    """Run Python with the vLLM of `tree`; its stdout."""
    paths = [str(tree), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, **ENVIRONMENT}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    with tempfile.TemporaryDirectory() as work:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=work,
            env=environment,
            text=True,
            capture_output=True,
            check=False,
        )
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed with {tree}:\n{done.stderr[-4000:]}")
    return done.stdout


def run_json(tree: Path, script: Path, *arguments: str) -> list[Row]:
    """Run the benchmark and read its --json file."""
    with tempfile.TemporaryDirectory() as work:
        path = Path(work) / "results.json"
        run(tree, [str(script), *arguments, "--json", str(path)])
        return json.loads(path.read_text())


def probe(tree: Path, what: str) -> Any:
    return json.loads(run(tree, [str(HERE / "bookkeeping_probe.py"), what]).splitlines()[-1])


def in_turn(trees: dict[str, Path], rounds: int, measure: Any, keys: Sequence[str]) -> list[Row]:
    """Measure both trees in turn; the median of the rounds, side by side."""
    taken: dict[tuple, dict[str, list[float]]] = {}
    for round_ in range(rounds):
        for name, tree in trees.items():
            print(f"  round {round_ + 1} of {rounds}: {name}", flush=True)
            for row in measure(tree):
                case = tuple(row[key] for key in keys)
                taken.setdefault(case, {}).setdefault(name, []).append(row["us"])
    rows = []
    for case, times in taken.items():
        row: Row = dict(zip(keys, case, strict=True))
        row |= {name: statistics.median(values) for name, values in times.items()}
        row["rounds"] = times
        rows.append(row)
    return rows


def measure_arrays(args: argparse.Namespace, between: str) -> list[Row]:
    """The benchmark's rows, each time the median of the rounds."""
    options = ["--num-rows", *map(str, ROWS), "--between", between]
    options += ["--num-blocks", "2" if between == "sweep" else str(args.blocks)]
    if between == "sweep":
        options += ["--fraction", "1.0"]
    rounds = []
    for round_ in range(1 if between == "sweep" else args.rounds):
        print(f"array updates, between two steps: {between}, round {round_ + 1}", flush=True)
        rounds.append(run_json(args.patched, args.script, *options))
    rows = []
    for same in zip(*rounds, strict=True):
        times = {key: statistics.median(r[key] for r in same) for key in ("loop_us", "new_us")}
        rows.append({**same[0], **times, "rounds": [[r["loop_us"], r["new_us"]] for r in same]})
    return rows


def measure_start(args: argparse.Namespace) -> dict[str, float]:
    """The median of the rounds, each in a process of its own."""
    rounds = [probe(args.patched, "start") for _ in range(args.rounds)]
    return {name: statistics.median(r[name] for r in rounds) for name in rounds[0]}


def measure(args: argparse.Namespace) -> dict[str, Any]:
    trees = {"pristine": args.pristine, "patched": args.patched}
    counts = ["--num-rows", *map(str, ROWS)]
    arrays = {between: measure_arrays(args, between) for between in BETWEEN}
    print("parts of the writer", flush=True)
    profile = probe(args.patched, "profile")
    print("_bookkeeping_sync", flush=True)
    runner = in_turn(
        trees,
        args.rounds,
        lambda tree: run_json(tree, args.script, "--runner", "--model", args.model, *counts),
        ("mode", "rows"),
    )
    print("swap_states", flush=True)
    swap = in_turn(trees, 2, lambda tree: probe(tree, "swap"), ("max_model_len", "length"))
    print("_update_states of a first rank", flush=True)
    first_rank = in_turn(trees, 2, lambda tree: probe(tree, "first-rank"), ("rows",))
    print("start", flush=True)
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, load average {os.getloadavg()[0]:.1f}",
        "arrays": arrays,
        "profile": profile,
        "runner": runner,
        "swap": swap,
        "first_rank": first_rank,
        "start": measure_start(args),
    }


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---:|" * len(columns)]
    for row in rows:
        cells = [f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in row]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def times(row: Row, old: str = "loop_us", new: str = "new_us") -> float:
    return row[old] / row[new]


def less(row: Row) -> float:
    """How much less time, in percent."""
    return 100 * (1 - row["patched"] / row["pristine"])


def verdicts(results: dict[str, Any]) -> list[list[str]]:
    """What was asked for, and what was measured."""
    arrays, runner = results["arrays"], results["runner"]
    everywhere = [*arrays["nothing"], *arrays["inputs"]]

    def whole(between: str, rows: int) -> list[Row]:
        return [r for r in arrays[between] if r["rows"] == rows and r["fraction"] == 1.0]

    def saved(rows: int) -> float:
        return min(less(r) for r in runner if r["rows"] == rows)

    def line(what: str, asked: float, measured: float, unit: str) -> list[str]:
        met = "yes" if measured >= asked else "no"
        return [what, f"{asked:g}{unit}", f"{measured:.1f}{unit}", met]

    lines = [line("arrays: slowest of all cases", 1, min(map(times, everywhere)), "x")]
    for rows in (256, 1024):
        for between, note in (("nothing", ""), ("inputs", ", inputs anew")):
            average = statistics.fmean(map(times, whole(between, rows)))
            lines.append(
                line(f"arrays: average at {rows} rows, all changed{note}", 40, average, "x")
            )
    for rows, asked in ((64, 60), (256, 80), (1, 0)):
        what = f"_bookkeeping_sync: least saved at {rows} rows"
        lines.append(line(what, asked, saved(rows), " %"))
    return lines


def tokens(most: int) -> str:
    return "1 token" if most == 1 else f"1-{most} tokens"


def report(results: dict[str, Any]) -> str:
    lines = [f"Measured on {results['machine']}.", "", "### Asked and measured", ""]
    lines += table(["figure", "asked", "measured", "met"], verdicts(results))
    lines += ["### The whole of `_bookkeeping_sync` (us)", ""]
    runner = [
        [r["mode"], r["rows"], r["pristine"], r["patched"], f"{less(r):.0f} %"]
        for r in results["runner"]
    ]
    lines += table(["mode", "rows", "0.17.1", "series", "less time"], runner)
    lines += ["### Where the writer's time goes, all rows changed (us)", ""]
    parts = [
        [r["rows"], tokens(r["max_tokens"]), *(r[part] for part in PARTS)]
        for r in results["profile"]
    ]
    lines += table(["rows", "a row", *PARTS.values()], parts)
    for between, title in BETWEEN.items():
        lines += [f"### {title}", ""]
        lines += table(
            ["tokens per row", "rows", "rows changed", "0.17.1 loop", "writer", "times"],
            [
                [
                    tokens(r["max_tokens"]),
                    r["rows"],
                    f"{r['fraction']:.0%}",
                    r["loop_us"],
                    r["new_us"],
                    f"{times(r):.1f}",
                ]
                for r in results["arrays"][between]
            ],
        )
    lines += ["### `swap_states` (us)", ""]
    swap = [[r["max_model_len"], r["length"], r["pristine"], r["patched"]] for r in results["swap"]]
    lines += table(["max_model_len", "tokens in use", "0.17.1", "series"], swap)
    lines += ["### `_update_states` of a pipeline's first rank, one token a request (us)", ""]
    first = [[r["rows"], r["pristine"], r["patched"]] for r in results["first_rank"]]
    lines += table(["rows", "0.17.1", "series"], first)
    lines += ["### Start of a worker", ""]
    lines += table(["cost", "value"], list(results["start"].items()))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pristine", type=Path, required=True)
    parser.add_argument("--patched", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--script", type=Path, help="benchmark_bookkeeping.py of the series")
    parser.add_argument("--model", default="facebook/opt-125m")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=4)
    args = parser.parse_args()
    name = Path("benchmarks", "benchmark_bookkeeping.py")
    candidates = [HERE.parent / "overlay" / name, args.patched / name]
    if args.script:
        candidates = [args.script]
    args.script = next((p.resolve() for p in candidates if p.is_file()), None)
    if args.script is None:
        parser.error(f"no benchmark at {', '.join(map(str, candidates))}: use --script")
    args.pristine, args.patched = args.pristine.resolve(), args.patched.resolve()

    args.out.mkdir(parents=True, exist_ok=True)
    results = measure(args)
    (args.out / "bookkeeping.json").write_text(json.dumps(results, indent=1))
    (args.out / "bookkeeping.md").write_text(report(results))
    print("\n".join(table(["figure", "asked", "measured", "met"], verdicts(results))))


if __name__ == "__main__":
    main()
