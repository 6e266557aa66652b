"""`nox -s bench -- NAME`: a benchmark of bench/LINE, in the test environment.

The environment is the tests': the wheel that this series builds, installed and
verified, with the pinned vLLM laid out beside it. Arguments that this verb does not
know go to the benchmark's script. What NAME_plot.py draws lies beside the results.
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
_BENCHMARKS = ("bookkeeping", "proposer", "serve", "step")
# Without a GPU the serving benchmark is a test of itself.
_SMALL = ["--prompts", "2", "4", "--tokens", "48", "--length", "1024", "--repeat", "1"]


def options(parser: argparse.ArgumentParser) -> None:
    """The verb's options; all other arguments reach the benchmark's script."""
    parser.add_argument("name", choices=_BENCHMARKS, help="what to measure")
    parser.add_argument("--out", type=Path, help="folder of the results (build/LINE/bench/NAME)")


def _arguments(env: TestEnvironment, name: str, out: Path, series: Path) -> list[str]:
    """What the script has to be told; the user's own arguments come last and win."""
    trees = ["--pristine", str(env.pristine), "--patched", str(env.environment.site_packages)]
    if name == "bookkeeping":
        script = series / "benchmarks" / "benchmark_bookkeeping.py"
        return [*trees, "--script", str(script), "--out", str(out)]
    if name == "step":
        return [*trees, "--out", str(out)]
    if name == "proposer":
        return ["--out", str(out), "--vllm-tree", str(series)]
    small = [] if env.gpu else _SMALL
    return ["--model", str(env.real_model), "--json", str(out / "serve.json"), *small]


def _script(layout: Layout, name: str) -> Path:
    """The benchmark's script.

    Raises:
        Fault: the line has no such benchmark.
    """
    script = layout.bench / f"{name}.py"
    if not script.is_file():
        there = [other for other in _BENCHMARKS if (layout.bench / f"{other}.py").is_file()]
        raise Fault(
            f"the line {layout.line} has no benchmark {name}",
            todo=f"choose one of {', '.join(there) or 'another line'}, or another --line",
        )
    return script


def run(layout: Layout, args: argparse.Namespace) -> int:
    """The verb: the script's exit status.

    Raises:
        Fault: the line has no such benchmark, or it ended badly.
    """
    script = _script(layout, args.name)
    out = (args.out or layout.build / "bench" / args.name).absolute()
    with alone(layout.shared, "bench"):
        source = composed_series(layout, layout.store)
        env = make_environment(layout.tests, source, gpu_visible())
        series = env.tree_of_tests(source.tree, "series")
        out.mkdir(parents=True, exist_ok=True)
        arguments = [*_arguments(env, args.name, out, layout.overlay), *args.rest]
        variables = {**env.variables([env.support]), **env.engine_variables()}
        command = [str(env.environment.python), str(script), *arguments]
        status = subprocess.run(command, cwd=series, env=variables, check=False).returncode
    if status:
        raise Fault(
            f"{script.relative_to(layout.root)} failed with status {status}",
            todo="its own arguments are above",
        )
    _plot(layout, script.with_name(f"{args.name}_plot.py"), out)
    say(f"results in {out}")
    return 0


def _plot(layout: Layout, script: Path, out: Path) -> None:
    """Draw the figures, outside of the environment that was measured."""
    if not script.is_file():
        return
    python = environments.ensure(layout.shared / "envs", Recipe("plots", _PLOTS)).python
    environments.run([python, script, out], what="drawing the figures", log=out / "plot.log")
