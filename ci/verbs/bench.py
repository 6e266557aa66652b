"""`nox -s bench -- NAME`: a benchmark of bench/, in the test environment.

The environment is the tests': the wheel that this series builds, installed and
verified, with the pinned vLLM laid out beside it. Arguments that this verb does not
know go to the benchmark's script.
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

from ci.core.errors import Fault
from ci.core.layout import Layout
from ci.core.progress import say
from ci.core.runlock import alone
from ci.env import venvs as environments
from ci.env.venvs import Recipe
from ci.pinned.variant import gpu_visible
from ci.testing.environment import TestEnvironment, make_environment
from ci.wheel.composed import composed_series

_PLOTS = ("matplotlib>=3.9",)
_BENCHMARKS = ("bookkeeping", "proposer", "serve")
# Without a GPU the serving benchmark is a test of itself.
_SMALL = ["--prompts", "2", "4", "--tokens", "48", "--length", "1024", "--repeat", "1"]


def options(parser: argparse.ArgumentParser) -> None:
    """The verb's options; all other arguments reach the benchmark's script."""
    parser.add_argument("name", choices=_BENCHMARKS, help="what to measure")
    parser.add_argument("--out", type=Path, help="folder of the results (build/bench/NAME)")


def _arguments(env: TestEnvironment, name: str, out: Path, series: Path) -> list[str]:
    """What the script has to be told; the user's own arguments come last and win."""
    if name == "bookkeeping":
        trees = ["--pristine", str(env.pristine), "--patched", str(env.environment.site_packages)]
        script = series / "benchmarks" / "benchmark_bookkeeping.py"
        return [*trees, "--script", str(script), "--out", str(out)]
    if name == "proposer":
        return ["--out", str(out), "--vllm-tree", str(series)]
    small = [] if env.gpu else _SMALL
    return ["--model", str(env.real_model), "--json", str(out / "serve.json"), *small]


def run(layout: Layout, args: argparse.Namespace) -> int:
    """The verb: the script's exit status.

    Raises:
        Fault: the benchmark ended badly.
    """
    out = (args.out or layout.build / "bench" / args.name).absolute()
    with alone(layout.shared, "bench"):
        source = composed_series(layout, layout.store)
        env = make_environment(layout.tests, source, gpu_visible())
        series = env.tree_of_tests(source.tree, "series")
        out.mkdir(parents=True, exist_ok=True)
        script = layout.root / "bench" / f"{args.name}.py"
        arguments = [*_arguments(env, args.name, out, layout.overlay), *args.rest]
        variables = {**env.variables([env.support]), **env.engine_variables()}
        command = [str(env.environment.python), str(script), *arguments]
        status = subprocess.run(command, cwd=series, env=variables, check=False).returncode
    if status:
        raise Fault(
            f"bench/{args.name}.py failed with status {status}", todo="its own arguments are above"
        )
    if args.name == "bookkeeping":
        _plot(layout, out)
    say(f"results in {out}")
    return 0


def _plot(layout: Layout, out: Path) -> None:
    """Draw the figures, outside of the environment that was measured."""
    python = environments.ensure(layout.shared / "envs", Recipe("plots", _PLOTS)).python
    arguments = [python, layout.root / "bench" / "plot.py", out]
    environments.run(arguments, what="drawing the figures", log=out / "plot.log")
