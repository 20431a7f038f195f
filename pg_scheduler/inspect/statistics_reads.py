"""Read what workers counted and measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Final

from pg_scheduler.inspect.doctor.counting import why_uncounted
from pg_scheduler.inspect.search.parser import names_term
from pg_scheduler.inspect.statistics import MIN_WIDTH, Statistics
from pg_scheduler.inspect.store.statistics import StatisticsPage
from pg_scheduler.inspect.store.store import InspectionStore
from pg_scheduler.jobs.naming import check_name
from pg_scheduler.jobs.validation import check_kind

MAX_STATISTICS_ROWS: Final = 20_000
"""Rows of each span that ``statistics()`` reads."""

MAX_SUMMED_ROWS: Final = 72_000
"""Rows of each span that ``statistics_by_time()`` adds up: those of 200 names in the minutes of six hours."""

MAX_STATISTICS_AGE: Final = timedelta(days=90)


class StatisticsReads:
    """The methods of an Inspector that read statistics."""

    _reads: InspectionStore

    async def statistics(
        self, since: timedelta = timedelta(hours=1), *, names: Sequence[str] | None = None
    ) -> Statistics:
        """Return what workers counted and measured lately, by job name and time.

        At most 20,000 rows are read of each span (a minute, ten minutes, an hour); the oldest are left out.
        `statistics_by_time()` adds up more of them. Workers with ``statistics=False`` count nothing, which
        ``uncounted`` states.

        Args:
            since: How far to look back, at most 90 days.
            names: Only these job names; None for all.

        Raises:
            TypeError: ``since`` is no timedelta.
            ValueError: ``since`` is not between 0 and 90 days.

        Example::

            for name, figures in (await inspector.statistics(timedelta(hours=6))).by_name().items():
                print(name, figures.started, figures.durations.quantile(0.95))
        """
        _check_period(since)
        chosen = None if names is None else [check_name(name) for name in names]
        page = await self._reads.statistics.read(since.total_seconds(), chosen, MAX_STATISTICS_ROWS)
        return await self._described(since, page)

    async def statistics_by_time(
        self,
        since: timedelta = timedelta(hours=1),
        *,
        width: timedelta = MIN_WIDTH,
        names: Iterable[str] | None = None,
    ) -> Statistics:
        """Return what workers counted and measured of all names together, by time.

        The database adds up at most 72,000 rows of each span (a minute, ten minutes, an hour): those of 200
        names in the minutes of six hours. The oldest are left out. The rows of the result have no name.

        Args:
            since: How far to look back, at most 90 days.
            width: The length of the intervals, which divide the Unix epoch; at least a minute.
            names: Only these job names, in which ``*`` stands for any text; None for all.

        Raises:
            TypeError: ``since`` or ``width`` is no timedelta.
            ValueError: ``since`` is not between 0 and 90 days, or ``width`` is shorter than a minute.

        Example::

            for row in (await inspector.statistics_by_time(timedelta(hours=6))).rows:
                print(row.at, row.figures.started, row.figures.durations.quantile(0.95))
        """
        _check_period(since)
        if check_kind("width", width, timedelta) < MIN_WIDTH:
            raise ValueError(f"width must be at least a minute, not {width}")
        patterns = None if names is None else [each.like for each in names_term(names).patterns]
        page = await self._reads.statistics.add_up(since.total_seconds(), width, patterns, MAX_SUMMED_ROWS)
        return await self._described(since, page)

    async def _described(self, since: timedelta, page: StatisticsPage) -> Statistics:
        uncounted = await why_uncounted(self._reads)
        return Statistics(page.now - since, page.now, tuple(page.rows), page.is_complete, uncounted)


def _check_period(since: object) -> None:
    if not timedelta() <= check_kind("since", since, timedelta) <= MAX_STATISTICS_AGE:
        raise ValueError(f"since must be between 0 and {MAX_STATISTICS_AGE.days} days, not {since}")
