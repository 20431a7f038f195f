"""A period of statistics, and its charts with flags where releases first started; the page of one chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, NamedTuple

from pg_scheduler.base.figures import OUTCOMES, Histogram, JobFigures
from pg_scheduler.base.threads import run_in_thread
from pg_scheduler.dashboard.charts import QUANTILES, Chart, Mark, Series
from pg_scheduler.dashboard.context import NotFoundError, PageRequest, View
from pg_scheduler.inspect import Inspector
from pg_scheduler.inspect.statistics import MAX_STATISTICS_AGE, Statistics


class Range(NamedTuple):
    """The length of the period of the charts, and the width of their slots."""

    length: timedelta
    width: timedelta


RANGES: Final[Mapping[str, Range]] = {
    "1h": Range(timedelta(hours=1), timedelta(minutes=1)),
    "6h": Range(timedelta(hours=6), timedelta(minutes=5)),
    "1d": Range(timedelta(days=1), timedelta(minutes=30)),
    "7d": Range(timedelta(days=7), timedelta(hours=2)),
    "30d": Range(timedelta(days=30), timedelta(hours=8)),
    "90d": Range(timedelta(days=90), timedelta(days=1)),
}
"""The ranges to choose from, by the parameter ``range``."""

HISTORY_AGE_S: Final = 10.0
"""Seconds for which statistics are kept: workers add to them as often."""

NOTHING: Final = JobFigures()

MAX_RELEASES: Final = 20

MAX_NAMES: Final = 20


@dataclass(frozen=True, slots=True)
class Period:
    """The statistics of a period, and of the one before it."""

    range: str
    width: timedelta
    times: Sequence[datetime]
    figures: Sequence[JobFigures]
    total: JobFigures
    before: JobFigures | None
    """The figures of the period before it; None if they are not kept that long."""
    releases: Sequence[Mark]
    """When releases first started within it, the newest first."""
    is_complete: bool
    uncounted: str | None
    """Which live workers count nothing."""
    until: datetime

    @property
    def minutes(self) -> float:
        """Its length."""
        return RANGES[self.range].length / timedelta(minutes=1)

    def charts(self, oldest_due_at: datetime | None = None) -> list[Chart]:
        """Return the charts of outcomes, lateness and duration.

        Args:
            oldest_due_at: When the oldest waiting job was due, which no histogram contains; None for none.
        """
        # In a period of up to a day, rates are per minute, in a longer one per hour.
        is_short = self.minutes <= 60 * 24
        word, unit, unit_s = ("minute", "/min", 60.0) if is_short else ("hour", "/h", 3600.0)
        lateness = _quantiles([figure.lateness for figure in self.figures])
        durations = _quantiles([figure.durations for figure in self.figures])
        chart = partial(Chart, times=self.times, marks=self.releases)
        return [
            chart("outcomes", f"Outcomes per {word}", unit, series=self._outcomes(unit_s)),
            chart(
                "lateness",
                "Lateness of starts",
                "s",
                series=[*lateness, *self._oldest(oldest_due_at)],
                is_log=True,
            ),
            chart("duration", "Duration of attempts", "s", series=durations, is_log=True),
        ]

    def _outcomes(self, unit_s: float) -> list[Series]:
        """Return the rates of each outcome of attempts that occurred.

        ``unit_s`` is the time of the rates in seconds: a minute or an hour.
        """
        units_in_slot = self.width.total_seconds() / unit_s
        # ``ended`` has the numbers of attempts in the order of OUTCOMES.
        rates = {
            outcome: [figure.ended[place] / units_in_slot for figure in self.figures]
            for place, outcome in enumerate(OUTCOMES)
        }
        return [Series(outcome, values) for outcome, values in rates.items() if any(values)]

    def _oldest(self, due_at: datetime | None) -> list[Series]:
        """Return the age of the oldest waiting job at the end of each slot; nothing without such a job.

        Slots that ended before it was due have no value.
        """
        if due_at is None:
            return []
        ends = [min(at + self.width, self.until) for at in self.times]
        ages_s = [max((end - due_at).total_seconds(), 0.0) for end in ends]
        # An age of 0 means that the slot ended before the job was due.
        return [Series("oldest waiting", [age_s or None for age_s in ages_s])]


async def read_releases(inspector: Inspector, since: datetime | None) -> list[Mark]:
    """Return when releases first started, the newest first, at most 20."""
    page = await inspector.audit(action="start_release", since=since, limit=MAX_RELEASES)
    return [Mark(record.at, record.subject or "") for record in page.items]


async def known_releases(request: PageRequest) -> list[Mark]:
    """Return when releases first started, the newest first, at most 20; requests share the read."""
    return await request.read_shared(_read_known_releases, age_s=HISTORY_AGE_S, is_age_shown=False)


async def _read_known_releases(request: PageRequest) -> list[Mark]:
    """Read when releases first started; requests share the result."""
    return await read_releases(request.inspector, None)


async def read_period(request: PageRequest, names: Sequence[str] | None = None) -> Period:
    """Read the period that the parameter ``range`` names; all requests share it for some seconds.

    Args:
        request: The request.
        names: The job names whose statistics are read, which the request must see; None for all that it sees.

    Raises:
        RejectedError: There is no such period.
    """
    range_name = request.choice("range", RANGES, "1h")
    # As an argument of the shared read, the names are a part of its key.
    read_names = request.access.visible_names if names is None else tuple(names)
    return await request.read_shared(_read_period, range_name, read_names, age_s=HISTORY_AGE_S)


async def _read_period(request: PageRequest, range_name: str, names: tuple[str, ...] | None) -> Period:
    """Read the period with the statistics of jobs with these names, or patterns of names; None for all."""
    length, width = RANGES[range_name]
    # The period before is read too, as far as its statistics are kept.
    statistics = await request.inspector.statistics_by_time(
        min(2 * length, MAX_STATISTICS_AGE), width=width, names=names
    )
    releases = await read_releases(request.inspector, statistics.until - length)
    # Adding many histograms takes time, so other requests continue meanwhile.
    return await run_in_thread(_period, range_name, statistics, releases)


def _period(range_name: str, statistics: Statistics, releases: Sequence[Mark]) -> Period:
    """Return the period from statistics of twice its length, or less if they are not kept that long.

    Statistics before its first slot are those of the period before it. Its slots begin at multiples of their
    width since 1970, such as full minutes, so that they are the same for each request.
    """
    length, width = RANGES[range_name]
    width_s = int(width.total_seconds())
    first_slot = int((statistics.until - length).timestamp()) // width_s
    last_slot = int(statistics.until.timestamp()) // width_s
    times = [datetime.fromtimestamp(slot * width_s, UTC) for slot in range(first_slot, last_slot + 1)]
    figures_by_time = statistics.by_time(width)
    earlier_statistics = replace(statistics, rows=tuple(row for row in statistics.rows if row.at < times[0]))
    figures = [figures_by_time.get(at, NOTHING) for at in times]
    # For a longer period, the statistics of the one before it are kept in part only, so they are not
    # compared.
    is_earlier_period_kept = 2 * length <= MAX_STATISTICS_AGE
    return Period(
        range=range_name,
        width=width,
        times=times,
        figures=figures,
        total=JobFigures.added(*figures),
        before=earlier_statistics.total() if is_earlier_period_kept else None,
        releases=releases,
        is_complete=statistics.is_complete,
        uncounted=statistics.uncounted,
        until=statistics.until,
    )


def _quantiles(histograms: Sequence[Histogram]) -> list[Series]:
    """Return a series for each quantile, which has its value in the histogram of each slot."""
    return [
        Series(label, [histogram.quantile(share) for histogram in histograms])
        for label, share in QUANTILES.items()
    ]


async def build(request: PageRequest) -> View:
    """Read the statistics of the chart that ``id`` names, of all jobs or of those that ``name`` names."""
    name, chart_id = request.parameters.get("name") or None, request.required("id")
    if name is not None and not request.access.sees_name(name):
        raise NotFoundError.of("task", name)
    names = None if name is None else (await request.task_names()).all_of(name)[:MAX_NAMES]
    period = await read_period(request, names)
    chart = next((chart for chart in period.charts() if chart.id == chart_id), None)
    if chart is None:
        raise NotFoundError(f"there is no chart {chart_id[:50]!r}")
    return View(chart=chart, range=period.range, name=name, is_complete=period.is_complete)
