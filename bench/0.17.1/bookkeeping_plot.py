# SPDX-License-Identifier: Apache-2.0
"""The picture of the bookkeeping's figures.

    python plot.py DIR

Reads DIR/bookkeeping.json, writes DIR/bookkeeping.svg. Needs matplotlib, which the
environment that is measured does not have. The same figures give the same file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib
from bookkeeping import MODES, Row, times, tokens
from matplotlib.axes import Axes
from matplotlib.figure import Figure

MOST_TOKENS = (1, 4, 8)


def sync_times(axes: Axes, rows: list[Row]) -> None:
    for index, mode in enumerate(MODES):
        mine = [r for r in rows if r["mode"] == mode]
        x = [r["rows"] for r in mine]
        axes.plot(x, [r["patched"] for r in mine], color=f"C{index}", label=mode)
        old = [r["pristine"] for r in mine]
        axes.plot(x, old, color=f"C{index}", linestyle="--", label=f"{mode}, 0.17.1")
    axes.set_title("_bookkeeping_sync (us)")


def array_factors(axes: Axes, rows: list[Row]) -> None:
    for index, most in enumerate(MOST_TOKENS):
        for fraction, style in ((1.0, "-"), (0.1, "--")):
            mine = [r for r in rows if r["max_tokens"] == most and r["fraction"] == fraction]
            label = f"{tokens(most)}, {fraction:.0%} of rows"
            x = [r["rows"] for r in mine]
            factors = [times(r) for r in mine]
            axes.plot(x, factors, color=f"C{index}", linestyle=style, label=label)
    axes.set_title("array updates: times faster than the loop")


def main() -> None:
    folder = Path(sys.argv[1])
    results = json.loads((folder / "bookkeeping.json").read_text())
    # Ids would be random, and a date would differ, from run to run.
    matplotlib.rcParams["svg.hashsalt"] = "bookkeeping"
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    sync_times(left, results["runner"])
    array_factors(right, results["arrays"]["nothing"])
    for axes in (left, right):
        axes.set(xscale="log", yscale="log", xlabel="rows")
        axes.grid(visible=True, color="#ccc")
        axes.legend(fontsize="small")
    figure.savefig(folder / "bookkeeping.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
