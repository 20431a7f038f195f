"""Charts as lines in a coordinate system: templates write them as SVG, each with a table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from pg_scheduler.inspect.texts import length

WIDTH: Final = 640
HEIGHT: Final = 220
LEFT: Final = 64
RIGHT: Final = 8
TOP: Final = 12
BOTTOM: Final = 24

LEAST_LOG_S: Final = 0.001
"""The start of a logarithmic axis, in seconds."""

X_TICKS: Final = 6


class Tick(NamedTuple):
    """A mark of an axis: its label and its place in pixels."""

    label: str
    at: float


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened at an instant: the first start of a release."""

    at: datetime
    label: str


class Line(NamedTuple):
    """The line of a series: points that are joined, and those of its end, which are not complete."""

    label: str
    kind: str
    points: str
    open_end: str


@dataclass(frozen=True, slots=True)
class Series:
    """The values of a chart at its times.

    Attributes:
        label: The name of the values.
        values: One for each time; None where there is none.
        is_dashed: Whether the whole line is dashed.
    """

    label: str
    values: Sequence[float | None]
    is_dashed: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of one or more series.

    Attributes:
        title: Its heading.
        unit: The unit of the values; ``"s"`` for durations.
        times: The times, in ascending order. The last interval is not complete.
        series: The series.
        is_log: Whether the axis of the values is logarithmic.
        marks: The events in the period.
    """

    title: str
    unit: str
    times: Sequence[datetime]
    series: Sequence[Series]
    is_log: bool = False
    marks: Sequence[Mark] = ()

    @property
    def width(self) -> int:
        """The width of the drawing in units of its view box."""
        return WIDTH

    @property
    def height(self) -> int:
        """The height of the drawing in units of its view box."""
        return HEIGHT

    @property
    def summary(self) -> str:
        """The last complete values, as a sentence for those who do not see the lines."""
        if len(self.times) < 2:
            return f"{self.title}: no data"
        said = [f"{each.label} {self.text_of(each.values[-2])}" for each in self.series]
        return f"{self.title}, at {self.times[-2]:%H:%M} UTC: {', '.join(said)}"

    def text_of(self, value: float | None) -> str:
        """Return a value with its unit."""
        if value is None:
            return "-"
        return length(value) if self.unit == "s" else f"{value:,.4g}"

    @property
    def lines(self) -> list[Line]:
        """The lines of the series."""
        return [self._line(each, f"series{place}") for place, each in enumerate(self.series)]

    @property
    def y_ticks(self) -> list[Tick]:
        """The marks of the axis of values."""
        return [Tick(self.text_of(value), round(self._y(value), 1)) for value in self._marks()]

    @property
    def x_ticks(self) -> list[Tick]:
        """The marks of the axis of time."""
        if len(self.times) < 2:
            return []
        step = max(len(self.times) // X_TICKS, 1)
        is_long = (self.times[-1] - self.times[0]).days >= 2
        form = "%m-%d" if is_long else "%H:%M"
        places = range(0, len(self.times), step)
        return [Tick(f"{self.times[place]:{form}}", round(self._x(place), 1)) for place in places]

    @property
    def mark_ticks(self) -> list[Tick]:
        """The marks at their places, those within the times."""
        if len(self.times) < 2:
            return []
        width = self.times[1] - self.times[0]
        places = [(mark.label, (mark.at - self.times[0]) / width) for mark in self.marks]
        most = len(self.times) - 1
        return [
            Tick(label, round(self._x(min(place, most)), 1))
            for label, place in places
            if 0 <= place <= most + 1
        ]

    def rows(self) -> Iterator[tuple[datetime, list[str]]]:
        """Yield the values as rows of a table, the newest first."""
        for place in reversed(range(len(self.times))):
            yield self.times[place], [self.text_of(each.values[place]) for each in self.series]

    def _line(self, series: Series, kind: str) -> Line:
        places = [
            (place, f"{self._x(place):.1f},{self._y(value):.1f}")
            for place, value in enumerate(series.values)
            if value is not None
        ]
        last = len(self.times) - 1
        if series.is_dashed:
            return Line(series.label, kind, "", " ".join(text for _, text in places))
        complete = [text for place, text in places if place < last]
        end = [text for place, text in places if place >= last - 1]
        return Line(series.label, kind, " ".join(complete), " ".join(end) if len(end) == 2 else "")

    def _x(self, place: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * place / max(len(self.times) - 1, 1)

    def _y(self, value: float) -> float:
        marks = self._marks()
        low, high = marks[0], marks[-1]
        if self.is_log:
            value = min(max(value, low), high)
            share = math.log(value / low) / math.log(high / low)
        else:
            share = value / high
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)

    def _marks(self) -> list[float]:
        """Return the values at which the axis has marks; the first and the last are its ends."""
        most = max((value for each in self.series for value in each.values if value is not None), default=0)
        if self.is_log:
            decades = max(math.ceil(math.log10(max(most, 10 * LEAST_LOG_S) / LEAST_LOG_S) - 1e-9), 1)
            stride = max(math.ceil(decades / 6), 1)
            return [LEAST_LOG_S * 10.0**power for power in range(0, decades + stride, stride)]
        step = _nice(max(most, 1) / 4)
        return [step * number for number in range(math.ceil(max(most, 1) / step - 1e-9) + 1)]


def _nice(number: float) -> float:
    """Return the next number of 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(number))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= number * (1 - 1e-9))
