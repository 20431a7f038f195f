"""Charts in percent of their plot, so that text has one size at every width; ``charts.html`` writes them.

Numbers are stacked bars, durations are lines on a logarithmic scale. A slot is an interval of time; the last
one is not complete.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final, NamedTuple

from pg_scheduler.facts.outcomes import DECIDED_ATTEMPTS, FAILED_ATTEMPTS, FAILED_JOBS
from pg_scheduler.inspect.texts import estimated, length, rounded

LOG_TICKS: Final = (
    *(0.001, 0.01, 0.1, 1.0, 10.0),
    *(60.0, 600.0, 3600.0, 36_000.0, 864_000.0, 8_640_000.0, 86_400_000.0),
)
"""The labels of a logarithmic axis of seconds: a second, a minute, an hour, ten days and so on."""

MAX_LOG_TICKS: Final = 6
"""Distances between labels of a logarithmic axis."""

MAX_TICKS: Final = 7
MANY: Final = 10_000
"""Numbers from which on digits after the point are left out, and the axis has thousands."""

STEPS: Final = tuple(
    timedelta(minutes=number)
    for number in (5, 10, 15, 30, 60, 120, 240, 480, 1440, 2880, 7200, 14_400, 21_600)
)
"""The intervals between two labels of the axis of time."""

OUTLIER: Final = 2
"""From this multiple of the share of failed attempts in the whole period on, a row of the table is red."""

FLAG_WIDTH: Final = 22.0
"""The width of the flag of a release, in percent of the plot. Flags that would overlap become one flag."""

UNITS: Final[Mapping[str, timedelta]] = {"/min": timedelta(minutes=1), "/h": timedelta(hours=1)}
"""The time of the unit of a rate."""

QUANTILES: Final[Mapping[str, float]] = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
"""By the label of a quantile, the share of the values that do not exceed it."""

TONES: Final[Mapping[str, str]] = {
    "completed": "calm",
    "retried": "warn",
    "failed": "bad",
    "lost": "lost",
    "expired": "expired",
    "oldest waiting": "old",
} | {quantile: quantile for quantile in QUANTILES}
"""The colours of series by their labels: the end of a class of the stylesheet."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened at an instant: the first start of a release."""

    at: datetime
    label: str


@dataclass(frozen=True, slots=True)
class Series:
    """The values of a chart at its times.

    Attributes:
        label: The name of the values.
        values: A value for each time; None for a time without a value.
    """

    label: str
    values: Sequence[float | None]

    @property
    def name(self) -> str:
        """Its label as the legend shows it."""
        return self.label if self.label in QUANTILES else self.label.capitalize()

    @property
    def tone(self) -> str:
        """Its colour: the end of a class of the stylesheet."""
        return TONES.get(self.label, "wait")


class AxisLabel(NamedTuple):
    """A label of an axis, and its place in percent from the left or from the top."""

    label: str
    at: float


class Flag(NamedTuple):
    """The flag of one or more releases at a slot."""

    slot: int
    """The slot in which the first one started."""
    labels: Sequence[str]
    is_left: bool
    """Whether the flag is to the left of its slot, since there is no room to the right."""


class Bar(NamedTuple):
    """A part of a stacked bar: its colour, its place from the top of the plot, and its height in percent."""

    tone: str
    top: float
    height: float


class Line(NamedTuple):
    """A series as two paths: ``path`` to its last complete slot, ``open_path`` from there to the open slot.

    They are paths in a box as wide as the number of slots and 100 high.
    """

    tone: str
    path: str
    open_path: str
    dots: str = ""
    """Values between two slots without one, as lines without length, which are drawn as dots."""


class Row(NamedTuple):
    """A row of the table of a chart."""

    at: datetime
    label: str
    """Its time, as the readout shows it."""
    values: Sequence[str]
    failed_share: float | None
    """The share of failed attempts; None without attempts, or if the chart does not count them."""
    is_outlier: bool
    """Whether this share is much higher than that of the whole period."""
    is_open: bool
    """Whether its interval is not complete."""
    releases: Sequence[str]
    """The releases that first started in it."""


class Slot(NamedTuple):
    """An interval of time with its values."""

    at: datetime
    until: datetime
    """Its end, which is in the future if it is not complete."""
    label: str
    """Its time, as the readout shows it."""
    bars: Sequence[Bar]
    values: Sequence[tuple[str, str]]
    """Labels and values, as the readout shows them."""
    tick: str
    """Its label on the axis of time; empty for none."""
    is_minor: bool
    """Whether there is no room for the label on a phone."""
    is_open: bool
    is_right: bool
    """Whether it is in the right half, so that its readout is to its left."""
    has_failures: bool
    has_release: bool
    """Whether a release first started in it."""
    flag: Flag | None

    @property
    def term(self) -> str:
        """The term of a search for the jobs that ended in it."""
        return finished(self.at, self.until)


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of one or more series.

    Attributes:
        id: Identifies it within its page, and in the address of its table.
        title: Its heading.
        unit: The unit of the values; ``"s"`` for durations.
        times: The starts of the slots, in ascending order and equally far apart.
        series: The series.
        is_log: Whether the axis of the values is logarithmic and the series are lines; else they are stacked.
        marks: The events in the period.
    """

    id: str
    title: str
    unit: str
    times: Sequence[datetime]
    series: Sequence[Series]
    is_log: bool = False
    marks: Sequence[Mark] = ()

    @property
    def has_values(self) -> bool:
        """Whether any value is above 0."""
        return any(value for series in self.series for value in series.values)

    @property
    def summary(self) -> str:
        """The last complete values, as a sentence for those who do not see the plot."""
        # The last slot is not complete, so the last complete one has the index -2.
        if len(self.times) < 2 or not self.series:
            return f"{self.title}: no data"
        values = [f"{series.label} {self._value_of(series, series.values[-2])}" for series in self.series]
        return f"{self.title}, at {self.times[-2]:%Y-%m-%d %H:%M} UTC: {', '.join(values)}"

    @property
    def legend(self) -> list[tuple[Series, str]]:
        """Each series with its value in the last complete slot, or ``-`` if there is none.

        The age of the oldest waiting job is its present age instead, which is in the last, incomplete slot.
        """
        if len(self.times) < 2:
            return [(series, "-") for series in self.series]
        entries = []
        for series in self.series:
            is_age_of_oldest = series.tone == "old"
            shown_value = series.values[-1] if is_age_of_oldest else series.values[-2]
            entries.append((series, self._rate_of(series, shown_value)))
        return entries

    @property
    def legend_label(self) -> str:
        """The time of the slot whose values the legend has: the last complete one."""
        return self._label(self.times[-2]) if len(self.times) > 1 else "-"

    @property
    def width(self) -> timedelta:
        """The length of a slot.

        It is the distance of two slots. With fewer slots it is unknown, so it is a minute, which is not
        shown.
        """
        return self.times[1] - self.times[0] if len(self.times) > 1 else timedelta(minutes=1)

    @property
    def slots(self) -> list[Slot]:
        """The slots, the oldest first."""
        slot_count = len(self.times)
        step_s = self._tick_step()
        scale = self._scale()
        slots_of_releases = {place for place, _ in self._releases()}
        flags = {flag.slot: flag for flag in self.flags}
        slots = []
        for place, at in enumerate(self.times):
            seconds = int(at.timestamp())
            is_open = place == slot_count - 1
            label = self._label(at)
            # A label near the end would overlap the word "now" there, on a phone in the last 15 %.
            has_tick = seconds % step_s == 0 and place < slot_count * 0.85
            failed_counts = [series.values[place] for series in self.series if series.label in FAILED_JOBS]
            slot = Slot(
                at=at,
                until=at + self.width,
                label=f"{label}, so far" if is_open else label,
                bars=() if self.is_log else self._bars(place, scale),
                values=[
                    (series.name, self._number_of(series, series.values[place])) for series in self.series
                ],
                tick=self._tick(at) if has_tick else "",
                # On a phone, only every other label has room.
                is_minor=seconds // step_s % 2 == 1,
                is_open=is_open,
                is_right=place >= slot_count / 2,
                has_failures=any(failed_counts),
                has_release=place in slots_of_releases,
                flag=flags.get(place),
            )
            slots.append(slot)
        return slots

    @property
    def lines(self) -> list[Line]:
        """The lines of the series; none if they are stacked."""
        scale = self._scale()
        return [self._line(series, scale) for series in self.series] if self.is_log else []

    @property
    def y_ticks(self) -> list[AxisLabel]:
        """The labels of the axis of values, each with its place in percent from the top."""
        scale = self._scale()
        labels = []
        for value in scale:
            # A large number of jobs is shortened, such as 45 k. The text of a duration is short anyway.
            is_exact = self.is_log or value < MANY
            text = self.text_of(value) if is_exact else rounded(round(value))
            labels.append(AxisLabel(text, round(self._y(value, scale), 2)))
        return labels

    @property
    def flags(self) -> list[Flag]:
        """The flags of the releases. A release whose flag would overlap the previous one shares that flag."""
        flags: list[Flag] = []
        # Places and widths are in percent of the plot.
        end_of_last_flag = -math.inf
        slot_width = 100 / max(len(self.times), 1)
        for slot, label in self._releases():
            pole = slot * slot_width
            is_left = pole + FLAG_WIDTH > 100
            start = pole - FLAG_WIDTH if is_left else pole
            if start < end_of_last_flag:
                flags[-1] = flags[-1]._replace(labels=[*flags[-1].labels, label])
            else:
                flags.append(Flag(slot, [label], is_left))
                end_of_last_flag = start + FLAG_WIDTH
        return flags

    def text_of(self, value: float | None) -> str:
        """Return a value as a text: ``-`` for None, a duration with its unit, another number without one."""
        if value is None:
            return "-"
        if self.unit == "s":
            return length(value)
        return f"{value:,.4g}" if value < MANY else f"{value:,.0f}"

    def _value_of(self, series: Series, value: float | None) -> str:
        """Return a value of a series as a text; a quantile is marked as an estimate."""
        if value is None or series.label not in QUANTILES:
            return self.text_of(value)
        return estimated(value)

    def _number_of(self, series: Series, value: float | None) -> str:
        """Return a value of a slot as a text; a rate as the number of events in the slot, then the rate.

        For example, 2 per minute in a slot of five minutes are ``10, 2/min``. The rate is left out if the
        number is 0, or if the slot is as long as the unit of the rate, so that both are the same.
        """
        rate_unit = UNITS.get(self.unit)
        if value is None or rate_unit is None or self.width == rate_unit:
            return self._value_of(series, value)
        event_count = round(value * (self.width / rate_unit))
        return f"{event_count:,}, {self._rate_of(series, value)}" if event_count else "0"

    def _rate_of(self, series: Series, value: float | None) -> str:
        """Return a value with its unit, for the legend, which has no axis that states the unit."""
        if value is None or self.unit == "s":
            return self._value_of(series, value)
        return f"{value:,.0f}{self.unit}" if value >= 10 else f"{value:.2g}{self.unit}"

    def points(self, place: int) -> Sequence[float | None]:
        """Return the values of a series up to the last complete slot; none if each is 0 or unknown.

        ``place`` is the index of the series in ``series``.
        """
        values = self.series[place].values[:-1]
        return values if any(values) else []

    @property
    def has_failures(self) -> bool:
        """Whether it has failed attempts, so that its table has their share."""
        return any(self._sum_of(FAILED_ATTEMPTS, place) for place in range(len(self.times)))

    @property
    def failed_share(self) -> float | None:
        """The share of failed attempts in the whole period; None without any."""
        places = range(len(self.times))
        decided = sum(self._sum_of(DECIDED_ATTEMPTS, place) for place in places)
        return sum(self._sum_of(FAILED_ATTEMPTS, place) for place in places) / decided if decided else None

    def rows(self) -> Iterator[Row]:
        """Yield the values as rows of a table, the newest first."""
        mean_share = self.failed_share
        for place in reversed(range(len(self.times))):
            decided = self._sum_of(DECIDED_ATTEMPTS, place)
            share = self._sum_of(FAILED_ATTEMPTS, place) / decided if decided else None
            yield Row(
                at=self.times[place],
                label=self._label(self.times[place]),
                values=[self._number_of(series, series.values[place]) for series in self.series],
                failed_share=share,
                is_outlier=bool(share and mean_share and share >= OUTLIER * mean_share),
                is_open=place == len(self.times) - 1,
                releases=[name for slot, name in self._releases() if slot == place],
            )

    def _sum_of(self, labels: Iterable[str], place: int) -> float:
        """Return the sum of the series with these labels in a slot."""
        return sum(series.values[place] or 0 for series in self.series if series.label in labels)

    def _releases(self) -> list[tuple[int, str]]:
        """Return pairs of the index of a slot, and the name of a release that first started in it."""
        if len(self.times) < 2:
            return []
        releases = sorted(
            (math.floor((mark.at - self.times[0]) / self.width), mark.label) for mark in self.marks
        )
        # Releases outside of the period of the chart are left out.
        return [(slot, label) for slot, label in releases if 0 <= slot < len(self.times)]

    def _tick_step(self) -> int:
        """Return the seconds between two labels of the axis of time."""
        span = self.width * len(self.times)
        step = next((step for step in STEPS if span / step <= MAX_TICKS), STEPS[-1])
        return int(step.total_seconds())

    def _tick(self, at: datetime) -> str:
        """Return the label of an instant on the axis of time: its day in a long chart, else its time."""
        period = self.width * len(self.times)
        return f"{at:%m-%d}" if period > timedelta(days=2) else f"{at:%H:%M}"

    def _label(self, at: datetime) -> str:
        """Return the time of a slot as the readout and the legend show it."""
        if self.width >= timedelta(days=1):
            return f"{at:%Y-%m-%d}"
        period = self.width * len(self.times)
        return f"{at:%m-%d %H:%M}" if period > timedelta(days=2) else f"{at:%H:%M}"

    def _bars(self, place: int, scale: Sequence[float]) -> list[Bar]:
        """Return the parts of the stacked bar of a slot, the lowest first.

        ``place`` is the index of the slot.
        """
        bars: list[Bar] = []
        sum_below = 0.0
        for series in self.series:
            value = series.values[place]
            if value:
                top, bottom = self._y(sum_below + value, scale), self._y(sum_below, scale)
                bars.append(Bar(series.tone, round(top, 1), round(bottom - top, 1)))
                sum_below += value
        return bars

    def _line(self, series: Series, scale: Sequence[float]) -> Line:
        """Return the line of a series, whose points are in the middle of their slots."""
        points = [
            None if value is None else (place + 0.5, self._y(value, scale))
            for place, value in enumerate(series.values)
        ]
        # The last point is that of the open slot, which has a path of its own.
        runs = list(_runs(points[:-1]))
        single_points = [run[0] for run in runs if len(run) == 1]
        return Line(
            tone=series.tone,
            path="".join(_joined(run) for run in runs if len(run) > 1),
            open_path=path_of(points[-2:]) if len(points) > 1 else "",
            dots="".join(f"M{_short(x)} {_short(y)}h0" for x, y in single_points),
        )

    def _y(self, value: float, scale: Sequence[float]) -> float:
        """Return the place of a value in percent from the top of the plot, whose axis has this scale."""
        low, high = scale[0], scale[-1]
        if self.is_log:
            # A value beyond an end of the axis is drawn at this end; 0 has no logarithm.
            value_on_axis = min(max(value, low), high)
            share = math.log(value_on_axis / low) / math.log(high / low)
        else:
            share = min(value / high, 1)
        return 100 * (1 - share)

    def _scale(self) -> list[float]:
        """Return the values at which the axis has labels; the first and the last are its ends."""
        if self.is_log:
            maximum = max(
                (value for series in self.series for value in series.values if value is not None), default=0
            )
            # The axis ends at the first label that is not below the maximum. The maximum may be larger than a
            # label by a rounding error only, which must not add one more label.
            last_tick = next((tick for tick in LOG_TICKS[1:] if tick >= maximum * (1 - 1e-9)), LOG_TICKS[-1])
            ticks = [tick for tick in LOG_TICKS if tick <= last_tick]
            stride = max(math.ceil((len(ticks) - 1) / MAX_LOG_TICKS), 1)
            # If there are too many labels, only each second or third one is kept, counted from the end. The
            # first one is kept as well, because both ends of the axis have labels.
            return sorted({ticks[0], *ticks[::-stride]})
        # The values of all series in one slot are stacked, so the highest sum decides about the axis.
        values_by_slot = zip(*(series.values for series in self.series), strict=True)
        sums = [sum(value or 0 for value in values) for values in values_by_slot]
        maximum = max(sums, default=0)
        # At most four steps lead to the maximum.
        step = _nice(max(maximum, 1) / 4)
        if all(float(value).is_integer() for value in sums):
            step = max(step, 1)  # there is no half of a job
        # The rounding error of a multiple of the step must not add a step.
        return [step * number for number in range(math.ceil(max(maximum, 1) / step - 1e-9) + 1)]


def small_line(values: Sequence[float | None]) -> str:
    """Return a small line with the area below it, as a path. None makes a gap.

    Its box is as wide as the number of values minus 1, and 30 high. The area ends at 32, below the box, so
    that its lower edge is not visible.
    """
    maximum = max((value for value in values if value), default=0)

    def y_of(value: float) -> float:
        """Return the distance of a value from the top: 3 for the highest one, and 28 for 0."""
        return 28 - 25 * value / maximum if maximum else 28.0

    points = [None if value is None else (float(place), y_of(value)) for place, value in enumerate(values)]
    end = float(len(values) - 1)
    areas: list[str] = []
    for run in _runs(points):
        left, y = run[0]
        line = run
        # A single value between two gaps would be a line without length, so it gets the width of one value.
        if len(run) == 1:
            left, right = max(left - 0.5, 0.0), min(left + 0.5, end)
            line = [(left, y), (right, y)]
        # "V" and "H" lead down to the lower edge and back to the left end, and "z" closes the area.
        areas.append(f"{_joined(line)}V32H{_short(left)}z")
    return "".join(areas)


class SmallBars(NamedTuple):
    """Small bars without axes: vertical lines as a path, and their upper, failed parts as another path.

    The box is as wide as the number of bars, and 22 high.
    """

    passed: str
    failed: str


def small_bars(counts: Sequence[float], failed: Sequence[float] = ()) -> SmallBars:
    """Return small bars, of which the highest is as high as the box.

    Args:
        counts: The heights of the bars.
        failed: The heights of their upper parts, which have the colour of failures; empty for no such parts.
    """
    maximum = max(counts, default=0)
    passed_paths: list[str] = []
    failed_paths: list[str] = []
    for place, count in enumerate(counts):
        if not count:
            continue
        failed_count = min(failed[place], count) if failed else 0
        # Heights are measured from the top, so the foot of a bar is at 22. Even the lowest bar is 1.5 high,
        # so that it can be seen.
        top = min(22 - 22 * count / maximum, 20.5)
        middle = 22 - 22 * (count - failed_count) / maximum if failed_count else top
        # The failed part is drawn from the middle to the top. A part of no height is left out.
        for paths, start, end in ((passed_paths, 22.0, middle), (failed_paths, middle, top)):
            if start > end:
                paths.append(f"M{place}.5 {_short(start)}V{_short(end)}")
    return SmallBars("".join(passed_paths), "".join(failed_paths))


def finished(start: datetime, end: datetime) -> str:
    """Return the term of a search for the jobs that ended from ``start`` on and before ``end``.

    Both are full minutes.
    """
    # In a search, a minute or a range includes the whole last minute, so it is the one before the end.
    first_minute, last_minute = (
        f"{instant.astimezone(UTC):%Y-%m-%dT%H:%MZ}" for instant in (start, end - timedelta(minutes=1))
    )
    if first_minute == last_minute:
        return f"finished:{first_minute}"
    return f"finished:{first_minute}..{last_minute}"


def path_of(points: Iterable[tuple[float, float] | None]) -> str:
    """Return points as an SVG path. None makes a gap; a point between gaps is a line as wide as a slot."""
    paths = []
    for run in _runs(points):
        if len(run) > 1:
            paths.append(_joined(run))
        else:
            ((x, y),) = run
            paths.append(f"M{_short(x - 0.5)} {_short(y)}h1")
    return "".join(paths)


def _runs(points: Iterable[tuple[float, float] | None]) -> Iterator[list[tuple[float, float]]]:
    """Yield each run of points that follow one another without a gap."""
    run: list[tuple[float, float]] = []
    for point in (*points, None):  # the last None ends the last run
        if point is not None:
            run.append(point)
        elif run:
            yield run
            run = []


def _joined(points: Sequence[tuple[float, float]]) -> str:
    """Return points as an SVG path: the first point, then the distance of each point from the previous one.

    Distances are shorter to write than points.
    """
    # The points are rounded before the distances are computed, so that rounding errors do not add up.
    places = [(round(x, 1), round(y, 1)) for x, y in points]
    first_x, first_y = places[0]
    distances = [
        f"{_short(x - previous_x)} {_short(y - previous_y)}"
        for (previous_x, previous_y), (x, y) in pairwise(places)
    ]
    path = f"M{_short(first_x)} {_short(first_y)}l{' '.join(distances)}"
    # SVG needs no blank before a minus sign.
    return path.replace(" -", "-")


def _short(number: float) -> str:
    """Return a number with at most one decimal, without a zero before the point: ``.5``, ``-.5``."""
    text = f"{number:.1f}".removesuffix(".0").replace("-0.", "-.")
    if text == "-0":
        return "0"
    return text.removeprefix("0") if text.startswith("0.") else text


def _nice(number: float) -> float:
    """Return a number that is not below this one: the smallest that is 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(number))
    # The number may be above a result by a rounding error only, which must not lead to the next factor.
    limit = number * (1 - 1e-9)
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= limit)
