"""`nox -s bench -- NAME`: a benchmark of bench/, in the test environment.

The environment is the tests': the wheel that this series builds, installed and
verified, with the pinned vLLM laid out beside it. Words that this verb does not
know go to the benchmark's script.
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

from ci import environments
from ci.current import current
from ci.environments import Recipe
from ci.errors import Fault
from ci.layout import Layout
from ci.progress import say
from ci.runlock import alone
from ci.testbed import Bed
from ci.testrun import make_bed
from ci.variant import Variant, gpu_visible

_PLOTS = ("matplotlib>=3.9",)
_BENCHMARKS = ("bookkeeping", "proposer", "serve")
# Without a GPU the serving benchmark is a test of itself.
_SMALL = ["--prompts", "2", "4", "--tokens", "48", "--length", "1024", "--repeat", "1"]


def options(parser: argparse.ArgumentParser) -> None:
    """The verb's options; all other words reach the benchmark's script."""
    parser.add_argument("name", choices=_BENCHMARKS, help="what to measure")
    parser.add_argument("--out", type=Path, help="folder of the results (build/bench/NAME)")


def _words(bed: Bed, name: str, out: Path, series: Path) -> list[str]:
    """What the script has to be told; the user's own words stand behind and win."""
    if name == "bookkeeping":
        trees = ["--pristine", str(bed.pristine), "--patched", str(bed.environment.site_packages)]
        script = series / "benchmarks" / "benchmark_bookkeeping.py"
        return [*trees, "--script", str(script), "--out", str(out)]
    if name == "proposer":
        return ["--out", str(out), "--vllm-tree", str(series)]
    small = [] if bed.variant is Variant.CUDA else _SMALL
    return ["--model", str(bed.real_model), "--json", str(out / "serve.json"), *small]


def run(layout: Layout, args: argparse.Namespace) -> int:
    """The verb: the script's exit status.

    Raises:
        Fault: the benchmark ended badly.
    """
    out = (args.out or layout.build / "bench" / args.name).absolute()
    with alone(layout, "bench"):
        source = current(layout)
        bed = make_bed(layout, source, Variant.CUDA if gpu_visible() else Variant.CPU)
        series = bed.tree_of_tests(source.tree, "series")
        out.mkdir(parents=True, exist_ok=True)
        script = layout.root / "bench" / f"{args.name}.py"
        words = [*_words(bed, args.name, out, layout.overlay), *args.rest]
        env = {**bed.variables([bed.support]), **bed.engine_variables()}
        command = [str(bed.environment.python), str(script), *words]
        status = subprocess.run(command, cwd=series, env=env, check=False).returncode
    if status:
        raise Fault(
            f"bench/{args.name}.py ended with status {status}", todo="its own words are above"
        )
    if args.name == "bookkeeping":
        _plot(layout, out)
    say(f"results in {out}")
    return 0


def _plot(layout: Layout, out: Path) -> None:
    """Draw the figures, outside of the environment that was measured."""
    python = environments.ensure(layout, Recipe("plots", _PLOTS)).python
    words = [python, layout.root / "bench" / "plot.py", out]
    environments.run(words, what="drawing the figures", log=out / "plot.log")
