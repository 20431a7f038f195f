"""The charts of the overview, made of statistics, with marks where releases first started."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from pg_scheduler.dashboard.charts import Chart, Mark, Series
from pg_scheduler.dashboard.heatmap import Heatmap, heatmap_of
from pg_scheduler.inspect import Inspector
from pg_scheduler.inspect.statistics import Statistics
from pg_scheduler.measure.figures import OUTCOMES, Histogram, JobFigures

NOTHING: Final = JobFigures()
QUANTILES: Final = (0.5, 0.95, 0.99)

MAX_RELEASES: Final = 20

ALWAYS_SHOWN: Final = frozenset({"completed", "failed"})
"""Outcomes that the chart shows even if nothing ended so."""


async def read_releases(inspector: Inspector, since: datetime | None) -> list[Mark]:
    """Return when releases first started, the newest first, at most 20."""
    page = await inspector.audit(action="start_release", since=since, limit=MAX_RELEASES)
    return [Mark(record.at, record.subject or "") for record in page.items]


def charts_of(
    statistics: Statistics, width: timedelta, oldest_due_at: datetime | None, marks: Sequence[Mark] = ()
) -> tuple[list[Chart], Heatmap]:
    """Return the charts of a period: outcomes, lateness and duration; and the lateness as a heatmap.

    Args:
        statistics: The figures.
        width: The width of an interval.
        oldest_due_at: When the oldest waiting job was due, which no histogram contains; None for none.
        marks: The events in the period.
    """
    found = statistics.by_time(width)
    times = _times(statistics.since, statistics.until, width)
    figures = [found.get(at, NOTHING) for at in times]
    lateness = [each.lateness for each in figures]
    charts = [
        _throughput(times, figures, width, marks),
        Chart(
            "Lateness of starts",
            "s",
            times,
            [*_quantiles(lateness), *_oldest(times, width, oldest_due_at, statistics.until)],
            is_log=True,
            marks=marks,
        ),
        Chart(
            "Duration of attempts",
            "s",
            times,
            _quantiles([each.durations for each in figures]),
            is_log=True,
            marks=marks,
        ),
    ]
    return charts, heatmap_of("Starts by lateness", times, lateness)


def _quantiles(histograms: Sequence[Histogram]) -> list[Series]:
    return [Series(f"p{share * 100:g}", [each.quantile(share) for each in histograms]) for share in QUANTILES]


def _times(since: datetime, until: datetime, width: timedelta) -> list[datetime]:
    """Return the starts of the intervals of a period."""
    step = int(width.total_seconds())
    first, last = int(since.timestamp()) // step, int(until.timestamp()) // step
    return [datetime.fromtimestamp(number * step, UTC) for number in range(first, last + 1)]


def _throughput(
    times: Sequence[datetime], figures: Sequence[JobFigures], width: timedelta, marks: Sequence[Mark]
) -> Chart:
    minutes = width.total_seconds() / 60

    def rate(outcome: str) -> list[float | None]:
        place = OUTCOMES.index(outcome)
        return [each.ended[place] / minutes for each in figures]

    rates = {outcome: rate(outcome) for outcome in OUTCOMES}
    return Chart(
        "Outcomes per minute",
        "/min",
        times,
        [
            Series(outcome, values)
            for outcome, values in rates.items()
            if outcome in ALWAYS_SHOWN or any(values)
        ],
        marks=marks,
    )


def _oldest(
    times: Sequence[datetime], width: timedelta, due_at: datetime | None, now: datetime
) -> list[Series]:
    """Return the age that the oldest waiting job had at each time."""
    if due_at is None:
        return []
    ends = [min(at + width, now) for at in times]
    ages = [max((end - due_at).total_seconds(), 0.0) for end in ends]
    return [Series("oldest waiting job", [age or None for age in ages], is_dashed=True)]
