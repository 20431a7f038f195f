"""The counts and measurements of workers, by job name and time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeVar

from pg_scheduler.base.figures import JobFigures
from pg_scheduler.inspect.base import InspectorBase
from pg_scheduler.inspect.search.parser import names_term
from pg_scheduler.inspect.store.statistics import StatisticsPage, StatisticsRow
from pg_scheduler.inspect.texts import hosts
from pg_scheduler.jobs.model import Worker
from pg_scheduler.jobs.naming import check_name
from pg_scheduler.jobs.validation import check_kind, check_list
from pg_scheduler.jobs.worker_report import ReportedSettings

MIN_WIDTH: Final = timedelta(minutes=1)
"""The minimum length of an interval, which is the length of the shortest rows."""

MAX_STATISTICS_ROWS: Final = 20_000
"""Rows of each span that ``statistics()`` reads."""

MAX_SUMMED_ROWS: Final = 72_000
"""Rows of each span that ``statistics_by_time()`` adds up, such as 200 names in each minute of six hours."""

MAX_STATISTICS_AGE: Final = timedelta(days=90)

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Statistics:
    """The statistics of a period, with figures that can be added.

    Attributes:
        since: The start of the period.
        until: The time of the database.
        rows: The figures of each job name and minute. Older rows cover ten minutes or an hour. The rows of
            `statistics_by_time()` have no name, and cover one of its intervals.
        is_complete: Whether no row was left out; if False, the oldest rows are missing.
        uncounted: Which live workers have ``statistics=False``, as a sentence; None if all of them count.
    """

    since: datetime
    until: datetime
    rows: tuple[StatisticsRow, ...]
    is_complete: bool
    uncounted: str | None = None

    @property
    def duration(self) -> timedelta:
        """The length of the period."""
        return self.until - self.since

    def by_name(self) -> dict[str, JobFigures]:
        """Return the figures of each job name, sorted by name."""
        return self._add_up(lambda row: row.job_name)

    def by_time(self, width: timedelta = MIN_WIDTH) -> dict[datetime, JobFigures]:
        """Return the figures of each interval in which anything happened, sorted by its start.

        A row that is longer than an interval is counted in the interval in which the row starts.

        Args:
            width: The length of the intervals, which are counted from the Unix epoch on.

        Raises:
            ValueError: ``width`` is shorter than a minute.

        Example::

            for start, figures in (await inspector.statistics()).by_time().items():
                print(start, figures.started, figures.lateness.quantile(0.95))
        """
        if width < MIN_WIDTH:
            raise ValueError(f"width must be at least a minute, not {width}")
        width_s = width.total_seconds()

        def interval_start(row: StatisticsRow) -> datetime:
            """Return the start of the interval in which a row starts."""
            start_s = row.at.timestamp() // width_s * width_s
            return datetime.fromtimestamp(start_s, row.at.tzinfo)

        return self._add_up(interval_start)

    def total(self) -> JobFigures:
        """Return the figures of all rows together."""
        return self._add_up(lambda _: None).get(None, JobFigures())

    def _add_up(self, key: Callable[[StatisticsRow], K]) -> dict[K, JobFigures]:
        """Add up the figures of rows with the same key, and return the sums by key, sorted by the key."""
        figures_by_key: dict[K, list[JobFigures]] = defaultdict(list)
        for row in self.rows:
            figures_by_key[key(row)].append(row.figures)
        # None has no order. As the only key of a total, it is compared with no other key.
        in_order = sorted(figures_by_key.items(), key=lambda item: (item[0] is not None, item[0]))
        return {row_key: JobFigures.added(*figures) for row_key, figures in in_order}


def why_uncounted(workers: Iterable[Worker]) -> str | None:
    """Return a sentence that names the live workers which count no attempts; None if all of them count."""
    not_counting = [
        worker
        for worker in workers
        if worker.is_alive and not ReportedSettings(worker.settings).counts_attempts
    ]
    if not not_counting:
        return None
    return f"statistics are off (statistics=False): {hosts(not_counting)}"


class StatisticsReads(InspectorBase):
    """The methods of `Inspector` that read statistics."""

    async def statistics(
        self, since: timedelta = timedelta(hours=1), *, names: Sequence[str] | None = None
    ) -> Statistics:
        """Return what workers counted and measured lately, by job name and time.

        At most 20,000 rows are read of each span (a minute, ten minutes, an hour). Older rows are left out.
        `statistics_by_time()` can add up more rows. Workers with ``statistics=False`` count nothing, and
        ``uncounted`` names them.

        Args:
            since: The length of the period, at most 90 days.
            names: Only these job names; None for all.

        Raises:
            TypeError: ``since`` is not a timedelta.
            ValueError: ``since`` is not between 0 and 90 days.

        Example::

            for name, figures in (await inspector.statistics(timedelta(hours=6))).by_name().items():
                print(name, figures.started, figures.durations.quantile(0.95))
        """
        _check_period(since)
        checked_names = None
        if names is not None:
            checked_names = [check_name(name) for name in check_list("names", names, "list of names")]
        page = await self._reads.statistics.read(since.total_seconds(), checked_names, MAX_STATISTICS_ROWS)
        return await self._described(since, page)

    async def statistics_by_time(
        self,
        since: timedelta = timedelta(hours=1),
        *,
        width: timedelta = MIN_WIDTH,
        names: Iterable[str] | None = None,
    ) -> Statistics:
        """Return what workers counted and measured of all names together, by time.

        The database adds up at most 72,000 rows of each span (a minute, ten minutes, an hour). That is enough
        for 200 names in each minute of six hours. Older rows are left out. The rows of the result have no
        name.

        Args:
            since: The length of the period, at most 90 days.
            width: The length of the intervals, which are counted from the Unix epoch on; at least a minute.
            names: Only these job names, in which ``*`` stands for any text; None for all.

        Raises:
            TypeError: ``since`` or ``width`` is not a timedelta.
            ValueError: ``since`` is not between 0 and 90 days, or ``width`` is shorter than a minute.

        Example::

            for row in (await inspector.statistics_by_time(timedelta(hours=6))).rows:
                print(row.at, row.figures.started, row.figures.durations.quantile(0.95))
        """
        _check_period(since)
        if check_kind("width", width, timedelta) < MIN_WIDTH:
            raise ValueError(f"width must be at least a minute, not {width}")
        patterns = None if names is None else [pattern.like for pattern in names_term(names).patterns]
        page = await self._reads.statistics.add_up(since.total_seconds(), width, patterns, MAX_SUMMED_ROWS)
        return await self._described(since, page)

    async def _described(self, since: timedelta, page: StatisticsPage) -> Statistics:
        """Return the statistics of a page, with the workers that count nothing."""
        uncounted = why_uncounted(await self._reads.workers.list_workers())
        return Statistics(page.now - since, page.now, tuple(page.rows), page.is_complete, uncounted)


def _check_period(since: object) -> None:
    """Raise an error unless ``since``, the length of a period, is a timedelta from 0 to 90 days."""
    if not timedelta() <= check_kind("since", since, timedelta) <= MAX_STATISTICS_AGE:
        raise ValueError(f"since must be between 0 and {MAX_STATISTICS_AGE.days} days, not {since}")
