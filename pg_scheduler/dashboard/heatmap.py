"""A heatmap: how many values of each size there were at each time, written as SVG with a table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from pg_scheduler.dashboard.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Tick
from pg_scheduler.inspect.texts import length
from pg_scheduler.measure.figures import Histogram

BANDS: Final = (0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0)
"""The upper bounds of the bands, in seconds; the last band has none."""

LEVELS: Final = 4
"""Shades; each stands for a range of numbers on a logarithmic scale."""


class Cell(NamedTuple):
    """A rectangle in pixels, and how dark it is, from 1 to 4."""

    x: float
    y: float
    width: float
    height: float
    level: int


@dataclass(frozen=True, slots=True)
class Heatmap:
    """Numbers of values by band and time."""

    title: str
    times: Sequence[datetime]
    counts: Sequence[Sequence[int]]
    """For each time, the number of values in each band, the smallest values first."""

    @property
    def width(self) -> int:
        """The width of the drawing in units of its view box."""
        return WIDTH

    @property
    def height(self) -> int:
        """The height of the drawing in units of its view box."""
        return HEIGHT

    @property
    def bands(self) -> list[str]:
        """The names of the bands, that of the smallest values first."""
        return [*(f"to {length(bound)}" for bound in BANDS), f"over {length(BANDS[-1])}"]

    @property
    def summary(self) -> str:
        """The latest values of all, as a sentence for those who do not see the cells."""
        for place in reversed(range(len(self.bands))):
            number = sum(row[place] for row in self.counts)
            if number:
                return f"{self.title}: the latest {number:,} starts were late by {self.bands[place]}"
        return f"{self.title}: no data"

    @property
    def cells(self) -> list[Cell]:
        """The cells of bands with values."""
        most = max((number for row in self.counts for number in row), default=0)
        wide, high = (WIDTH - LEFT - RIGHT) / max(len(self.times), 1), self._band_height
        return [
            Cell(
                round(LEFT + place * wide, 1),
                round(HEIGHT - BOTTOM - (band + 1) * high, 1),
                round(wide, 1),
                round(high, 1),
                _level(number, most),
            )
            for place, row in enumerate(self.counts)
            for band, number in enumerate(row)
            if number
        ]

    @property
    def y_ticks(self) -> list[Tick]:
        """The names of the bands at their places."""
        return [
            Tick(name, round(HEIGHT - BOTTOM - (band + 0.5) * self._band_height, 1))
            for band, name in enumerate(self.bands)
        ]

    def rows(self) -> Iterator[tuple[datetime, Sequence[int]]]:
        """Yield the numbers of each time that has any, the newest first."""
        for place in reversed(range(len(self.times))):
            if any(self.counts[place]):
                yield self.times[place], self.counts[place]

    @property
    def _band_height(self) -> float:
        return (HEIGHT - TOP - BOTTOM) / len(self.bands)


def heatmap_of(title: str, times: Sequence[datetime], histograms: Sequence[Histogram]) -> Heatmap:
    """Return the heatmap of one histogram for each time."""
    counts = []
    for each in histograms:
        below = [*each.at_most(BANDS), each.number]
        counts.append([number - (below[place - 1] if place else 0) for place, number in enumerate(below)])
    return Heatmap(title, times, counts)


def _level(number: int, most: int) -> int:
    return math.ceil(LEVELS * math.log1p(number) / math.log1p(most) - 1e-9)
