# SPDX-License-Identifier: Apache-2.0
"""The picture of a step's figures.

    python step_plot.py DIR

Reads DIR/step.json, writes DIR/step.svg. Needs matplotlib, which the environment that is
measured does not have. The same figures give the same file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure


def times(axes: Axes, rows: list[dict[str, Any]], title: str) -> None:
    for index, mode in enumerate(dict.fromkeys(row["mode"] for row in rows)):
        mine = [row for row in rows if row["mode"] == mode]
        x = [row["rows"] for row in mine]
        axes.plot(x, [row["patched"] for row in mine], color=f"C{index}", label=mode)
        pinned = [row["pristine"] for row in mine]
        axes.plot(x, pinned, color=f"C{index}", linestyle="--", label=f"{mode}, 0.34.0")
    axes.set(xscale="log", yscale="log", xlabel="rows", title=title)
    axes.grid(visible=True, color="#ccc")
    axes.legend(fontsize="small")


def main() -> None:
    folder = Path(sys.argv[1])
    results = json.loads((folder / "step.json").read_text())
    # Ids would be random, and a date would differ, from run to run.
    matplotlib.rcParams["svg.hashsalt"] = "step"
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    times(left, results["scheduler"], "the scheduler's part of a step (us)")
    times(right, results["engine"], "the engine core's step (us)")
    figure.savefig(folder / "step.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
