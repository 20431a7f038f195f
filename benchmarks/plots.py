"""Draw the plots as SVG with the standard library."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Final

from benchmarks.table import number

WIDTH, HEIGHT = 420, 360
"""So narrow that a phone shows the text nearly in its size; the legend follows below."""

LEFT, RIGHT, TOP, BOTTOM = 62, 26, 40, 45
LEGEND_HEIGHT: Final = 20
MAX_TICKS: Final = 8
COLOURS: Final = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#57606a", "#bf3989", "#0a7ea4")
DISTRIBUTION: Final = ", ms"
LOGARITHMIC: Final = (DISTRIBUTION, "claim size", "slots")
"""Ends of a title that require a logarithmic x axis."""


@dataclass(frozen=True)
class Line:
    """The points of one contestant."""

    label: str
    points: list[tuple[float, float]]


class Axis:
    """Maps values to positions."""

    def __init__(self, low: float, high: float, start: float, end: float, *, logarithmic: bool) -> None:
        self._log = logarithmic
        self._low, self._high = self._of(low), self._of(high)
        if self._high == self._low:
            self._high += 1
        self._start, self._end = start, end

    def __call__(self, value: float) -> float:
        """Return the coordinate of a value."""
        share = (self._of(value) - self._low) / (self._high - self._low)
        return round(self._start + share * (self._end - self._start), 1)

    def ticks(self) -> list[float]:
        """Return round values within the range."""
        if self._log:
            powers = range(math.floor(self._low), math.ceil(self._high) + 1)
            values = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
            if len(self._inside(values)) > MAX_TICKS:
                values = [10.0**power for power in powers]
        else:
            rough = (self._high - self._low) / 5
            power = 10.0 ** math.floor(math.log10(rough))
            step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough)
            values = [
                step * index for index in range(math.ceil(self._low / step), int(self._high / step) + 1)
            ]
        return self._inside(values)

    def _inside(self, values: list[float]) -> list[float]:
        return [value for value in values if self._low - 1e-9 <= self._of(value) <= self._high + 1e-9]

    def _of(self, value: float) -> float:
        return math.log10(max(value, 0.01)) if self._log else value


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """Draw every plot of a run and return the files."""
    plots: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in results["rows"]:
        for curve in row["curves"]:
            points = plots.setdefault(curve["plot"], {}).setdefault(curve["label"], [])
            points += zip(curve["x"], curve["y"], strict=True)
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for title, lines in plots.items():
        path = folder / (re.sub(r"\W+", "-", title.lower()).strip("-") + ".svg")
        whole = [Line(label, sorted(points)) for label, points in lines.items()]
        path.write_text(
            "\n".join(_svg(title, [_merged(title, line) for line in whole])) + "\n", encoding="utf-8"
        )
        files.append(path)
    return files


def _merged(title: str, line: Line) -> Line:
    """Merge the distributions of several rounds into the distribution of all samples."""
    if not title.endswith(DISTRIBUTION):
        return line
    count = len(line.points)
    step = max(1, count // 200)
    return Line(line.label, [(line.points[i][0], (i + 1) / count) for i in range(0, count, step)])


def _svg(title: str, lines: list[Line]) -> Iterator[str]:
    logarithmic = title.endswith(LOGARITHMIC)
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    across = Axis(min(xs), max(xs), LEFT, WIDTH - RIGHT, logarithmic=logarithmic)
    up = Axis(0, max(ys), HEIGHT - BOTTOM, TOP, logarithmic=False)
    height = HEIGHT + LEGEND_HEIGHT * len(lines)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img" '
        f'aria-label="{escape(title)}" font-family="sans-serif" font-size="12">'
    )
    yield f'<rect width="{WIDTH}" height="{height}" fill="white"/>'
    yield f'<text x="{LEFT}" y="22" font-size="15">{escape(title)}</text>'
    for value in up.ticks():
        yield (
            f'<path d="M{LEFT} {up(value)}H{WIDTH - RIGHT}" stroke="#d8dee4"/>'
            f'<text x="{LEFT - 6}" y="{up(value) + 4}" text-anchor="end">{number(value)}</text>'
        )
    for value in across.ticks():
        yield (
            f'<path d="M{across(value)} {HEIGHT - BOTTOM}v5" stroke="#57606a"/>'
            f'<text x="{across(value)}" y="{HEIGHT - BOTTOM + 19}" text-anchor="middle">'
            f"{number(value)}</text>"
        )
    for index, line in enumerate(lines):
        colour = COLOURS[index % len(COLOURS)]
        points = " ".join(f"{across(x)},{up(y)}" for x, y in line.points)
        yield f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
        y = HEIGHT + LEGEND_HEIGHT * index
        yield (
            f'<path d="M{LEFT} {y - 4}h18" stroke="{colour}" stroke-width="3"/>'
            f'<text x="{LEFT + 24}" y="{y}">{escape(line.label)}</text>'
        )
    yield "</svg>"
