# SPDX-License-Identifier: Apache-2.0
"""Line charts with logarithmic axes as SVG text: the same text for the same numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

COLOURS = ("#1f6fb4", "#d9730d", "#2c8a3d", "#b3312c")
WIDTH, HEIGHT = 500, 340
# The area of the lines, inside of a chart.
LEFT, RIGHT, TOP, BOTTOM = 56, 484, 34, 296


@dataclass(frozen=True)
class Line:
    """One line: its name in the legend, its colour's index, its points (x, y)."""

    name: str
    colour: int
    points: Sequence[tuple[float, float]]
    dashed: bool = False


@dataclass(frozen=True)
class Chart:
    """One chart; its x axis has a mark at each of `marks`."""

    title: str
    x_name: str
    marks: Sequence[int]
    lines: Sequence[Line]

    def svg(self, left: int) -> Iterator[str]:
        """The elements, moved to the right by `left`."""
        yield f'<g transform="translate({left},0)">'
        middle = f'x="{(LEFT + RIGHT) / 2}" text-anchor="middle"'
        yield f'<text y="20" {middle}>{escape(self.title)}</text>'
        decades = self._decades()
        for mark in self.marks:
            x = self._x(mark)
            yield f'<path class="grid" d="M{x:.1f},{TOP}V{BOTTOM}"/>'
            yield f'<text x="{x:.1f}" y="{BOTTOM + 16}" text-anchor="middle">{mark}</text>'
        for power in decades:
            y = self._y(10.0**power)
            yield f'<path class="grid" d="M{LEFT},{y:.1f}H{RIGHT}"/>'
            yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g}</text>'
        yield f'<text y="{BOTTOM + 34}" {middle}>{self.x_name}</text>'
        for index, line in enumerate(self.lines):
            path = "L".join(f"{self._x(x):.1f},{self._y(y):.1f}" for x, y in line.points)
            dash = ' stroke-dasharray="5 4"' if line.dashed else ""
            style = f'fill="none" stroke="{COLOURS[line.colour]}" stroke-width="1.6"{dash}'
            yield f'<path d="M{path}" {style}/>'
            y = TOP + 14 + 15 * index
            yield f'<path d="M{LEFT + 8},{y - 4}h24" {style}/>'
            yield f'<text x="{LEFT + 38}" y="{y}">{escape(line.name)}</text>'
        yield "</g>"

    def _decades(self) -> range:
        """Powers of ten from below the lowest point to above the highest."""
        values = [y for line in self.lines for _, y in line.points]
        return range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1)

    def _x(self, value: float) -> float:
        low, high = math.log(self.marks[0]), math.log(self.marks[-1])
        return LEFT + (RIGHT - LEFT) * (math.log(value) - low) / (high - low)

    def _y(self, value: float) -> float:
        decades = self._decades()
        share = (math.log10(value) - decades[0]) / max(decades[-1] - decades[0], 1)
        return BOTTOM - (BOTTOM - TOP) * share


def page(charts: Sequence[Chart]) -> str:
    """The charts beside each other."""
    width = WIDTH * len(charts)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" '
        'font-family="sans-serif" font-size="11">',
        "<style>.grid{stroke:#ccc;stroke-width:.7}</style>",
        f'<rect width="{width}" height="{HEIGHT}" fill="#fff"/>',
    ]
    for index, chart in enumerate(charts):
        lines += chart.svg(index * WIDTH)
    return "\n".join([*lines, "</svg>"]) + "\n"
