"""Read the statistics of jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple, TypeAlias, TypeVar

import asyncpg

from pg_scheduler.base.figures import BOUNDS, OUTCOMES, Histogram, JobFigures
from pg_scheduler.base.threads import run_in_thread
from pg_scheduler.database.statements import Repository

SPANS_S: Final = (60, 600, 3600)
"""The spans of rows, in seconds. The vacuum merges old rows of each span into rows of the next one."""

PAGE_SIZE: Final = 250
"""Rows that are read at a time. The event loop needs 40 us to decode the histograms of one row."""

SUM_SIZE: Final = 5000
"""Rows that the server adds up at a time. It needs 3 to 5 us for each, so a statement takes 15 to 25 ms."""

NAME_SUM_SIZE: Final = 1000
"""Rows that the server adds up by name at a time, so no answer has the histograms of more names."""

_BUCKETS: Final = len(BOUNDS) + 1

N = TypeVar("N", bound=float)


class StatisticsRow(NamedTuple):
    """The figures of the jobs of one name within a span of time.

    Attributes:
        at: The start of the span.
        span: Its duration.
        job_name: The name; empty if the figures are those of several names.
        figures: The figures.
    """

    at: datetime
    span: timedelta
    job_name: str
    figures: JobFigures


class StatisticsPage(NamedTuple):
    """Rows of statistics.

    Attributes:
        now: The time of the database.
        rows: The rows.
        is_complete: Whether no row was left out.
    """

    now: datetime
    rows: list[StatisticsRow]
    is_complete: bool


class Position(NamedTuple):
    """The last row that a page has examined; both values are None at the start."""

    bucket: datetime | None
    job_name: str | None


START: Final = Position(None, None)

ReadPage: TypeAlias = Callable[[int, Position, int], Awaitable[Sequence[asyncpg.Record]]]
"""Reads a page of a span in seconds, after a position, with this number of rows at most."""


class StatisticsByName(NamedTuple):
    """The statistics of a period by job name.

    Attributes:
        totals: The figures of each name, without the lateness.
        is_complete: Whether no row was left out.
    """

    totals: dict[str, JobFigures]
    is_complete: bool


class SumPages:
    """The pages of sums of a period: those of each span, the newest rows first.

    Attributes:
        is_complete: Whether no row was left out; known when all pages are read.
    """

    def __init__(self, limit: int) -> None:
        self.is_complete = True
        self._limit = limit
        """The maximum number of rows of each span that are added up."""

    async def read(self, page_size: int, read_page: ReadPage) -> AsyncIterator[Sequence[asyncpg.Record]]:
        """Yield the pages, each of which adds up this number of rows at most."""
        for span_s in SPANS_S:
            rows_left, position = self._limit, START
            while True:
                size = min(rows_left, page_size)
                page = await read_page(span_s, position, size)
                yield page
                # Each record of a page has what the whole page has examined, also if there are no sums.
                examined = page[0]["examined"]
                rows_left -= examined
                # A page that is not full is the last one of its span.
                if examined < size or not rows_left:
                    break
                position = Position(page[0]["last_bucket"], page[0]["last_name"])
            # A span that has used up the maximum may have further rows.
            self.is_complete = self.is_complete and rows_left > 0


class StatisticsReadRepository(Repository):
    """The statements that read statistics of jobs."""

    async def read(self, seconds: float, names: Sequence[str] | None, limit: int) -> StatisticsPage:
        """Return the newest statistics of a period, including the whole row in which the period begins.

        Args:
            seconds: The length of the period in seconds, which ends now.
            names: Only these job names; None for all.
            limit: The maximum number of rows of each span that are read.
        """
        # Each page of a span continues after the last row of the page before. A page without rows has one
        # record, with the time only.
        rows: list[StatisticsRow] = []
        records: Sequence[asyncpg.Record] = ()
        is_complete = True
        for span_s in SPANS_S:
            rows_left, position = limit, START
            while True:
                size = min(rows_left, PAGE_SIZE)
                records = await self._statements.fetch(
                    "read_statistics", span_s, seconds, names, *position, size, self._statements.now
                )
                bucket_rows = [row for row in records if row["bucket"] is not None]
                span = timedelta(seconds=span_s)
                rows += [
                    StatisticsRow(row["bucket"], span, row["job_name"], figures_of(row))
                    for row in bucket_rows
                ]
                rows_left -= len(bucket_rows)
                # A page that is not full is the last one of its span.
                if len(bucket_rows) < size or not rows_left:
                    break
                position = Position(bucket_rows[-1]["bucket"], bucket_rows[-1]["job_name"])
            # A span that has used up the maximum may have further rows.
            is_complete = is_complete and rows_left > 0
        return StatisticsPage(records[0]["now"], rows, is_complete)

    async def add_up(
        self, seconds: float, width: timedelta, patterns: Sequence[str] | None, limit: int
    ) -> StatisticsPage:
        """Return the newest statistics of all names together, by intervals. The rows have no name.

        Args:
            seconds: The length of the period in seconds. The row in which the period begins is added as a
                whole.
            width: The length of the intervals, which are counted from the Unix epoch on.
            patterns: Only names that match one of these patterns of LIKE; None for all.
            limit: The maximum number of rows of each span that are added up.
        """
        # Several pages may have a sum for one interval. They are added up below.
        figures_by_interval = defaultdict[datetime, list[JobFigures]](list)
        now = self._statements.now
        width_s = width.total_seconds()
        pages = SumPages(limit)

        async def read_page(span_s: int, position: Position, size: int) -> Sequence[asyncpg.Record]:
            """Return the sums of the next rows of a span."""
            return await self._statements.fetch(
                "sum_statistics", span_s, seconds, patterns, *position, size, now, width_s
            )

        page: Sequence[asyncpg.Record] = ()
        async for page in pages.read(SUM_SIZE, read_page):
            for row in page:
                # A page without sums has one record, without an interval.
                if row["start"] is not None:
                    figures_by_interval[row["start"]].append(figures_of(row))
        rows = [
            StatisticsRow(at, width, "", JobFigures.added(*figures))
            for at, figures in figures_by_interval.items()
        ]
        return StatisticsPage(page[0]["now"], rows, pages.is_complete)

    async def add_up_by_name(self, since: datetime, until: datetime | None, limit: int) -> StatisticsByName:
        """Return the statistics of a period by job name. A row counts if it ends within the period.

        Args:
            since: The start of the period.
            until: Its end; None for now.
            limit: The maximum number of rows of each span that are added up. Older ones are left out.
        """
        # Several pages may have a sum for one name. They are added up below.
        figures_by_name = defaultdict[str, list[JobFigures]](list)
        pages = SumPages(limit)

        async def read_page(span_s: int, position: Position, size: int) -> Sequence[asyncpg.Record]:
            """Return the sums of the next rows of a span."""
            return await self._statements.fetch(
                "sum_statistics_by_name", span_s, since, until, *position, size, self._statements.now
            )

        async for page in pages.read(NAME_SUM_SIZE, read_page):
            for row in page:
                # A page without sums has one record, without a name.
                if row["job_name"] is not None:
                    figures_by_name[row["job_name"]].append(_without_lateness(row))
        # Adding many histograms takes time, so it is done in a thread, while the event loop continues.
        return StatisticsByName(await run_in_thread(_totals, figures_by_name), pages.is_complete)

    async def starts_per_s(self, seconds: float) -> float | None:
        """Return how many attempts started per second in a recent period; None if no worker counted any.

        Args:
            seconds: The length of the period in seconds, which ends now.
        """
        (row,) = await self._statements.fetch("read_starts", seconds, self._statements.now)
        if not row["started"]:
            return None
        # The statistics may be younger than the period, so the seconds are those since the first of them.
        rate: float = row["started"] / max(row["seconds"], 1.0)
        return rate


def figures_of(row: asyncpg.Record) -> JobFigures:
    """Return the figures of a row: counts, and the histograms of durations and of lateness.

    The arrays of the row are longer if a later release wrote it, and may be shorter if an earlier release or
    a person did.
    """
    # The sums are the seconds of all durations, and the seconds of all lateness.
    _, total_lateness_s = _fitted(row["sums"], 2, 0.0)
    lateness = Histogram(_fitted(row["late_hist"], _BUCKETS, 0), total_lateness_s)
    return _without_lateness(row)._replace(lateness=lateness)


def _totals(parts: Mapping[str, Sequence[JobFigures]]) -> dict[str, JobFigures]:
    """Return the sum of the figures of each name."""
    return {name: JobFigures.added(*figures) for name, figures in parts.items()}


def _without_lateness(row: asyncpg.Record) -> JobFigures:
    """Return the counts of a row and the histogram of its durations."""
    # The counts are those of scheduled jobs, of started attempts, and of ended ones by outcome.
    scheduled, started, *ended = _fitted(row["counts"], 2 + len(OUTCOMES), 0)
    (total_duration_s,) = _fitted(row["sums"], 1, 0.0)
    durations = Histogram(_fitted(row["run_hist"], _BUCKETS, 0), total_duration_s)
    return JobFigures(scheduled, started, tuple(ended), durations)


def _fitted(values: Sequence[N | None], length: int, zero: N) -> tuple[N, ...]:
    """Return the first ``length`` values, with ``zero`` for each value that is missing or NULL."""
    numbers = [zero if value is None else value for value in values[:length]]
    return (*numbers, *[zero] * (length - len(numbers)))
