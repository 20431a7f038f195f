"""What workers counted and measured, by job name and time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeVar

from pg_scheduler.inspect.store.statistics import StatisticsRow
from pg_scheduler.measure.figures import JobFigures

MIN_WIDTH: Final = timedelta(minutes=1)
"""The length of an interval, at least: that of the shortest rows."""

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Statistics:
    """The statistics of a period, with figures that can be added.

    Attributes:
        since: The start of the period.
        until: The time of the database.
        rows: The figures of each job name and minute; of ten minutes or an hour further back. Those of
            `statistics_by_time()` have no name and the length of its intervals.
        is_complete: Whether no row was left out; else the oldest ones are missing.
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
        return self._added(lambda row: row.job_name)

    def by_time(self, width: timedelta = MIN_WIDTH) -> dict[datetime, JobFigures]:
        """Return the figures of each interval in which anything happened, sorted by its start.

        A row that is longer than an interval is counted in that of its start.

        Args:
            width: The length of the intervals, which divide the Unix epoch.

        Raises:
            ValueError: ``width`` is shorter than a minute.

        Example::

            for start, figures in (await inspector.statistics()).by_time().items():
                print(start, figures.started, figures.lateness.quantile(0.95))
        """
        if width < MIN_WIDTH:
            raise ValueError(f"width must be at least a minute, not {width}")
        seconds = width.total_seconds()
        return self._added(
            lambda row: datetime.fromtimestamp(row.at.timestamp() // seconds * seconds, row.at.tzinfo)
        )

    def total(self) -> JobFigures:
        """Return the figures of all rows together."""
        return self._added(lambda _: None).get(None, JobFigures())

    def _added(self, key: Callable[[StatisticsRow], K]) -> dict[K, JobFigures]:
        found: dict[K, list[JobFigures]] = defaultdict(list)
        for row in self.rows:
            found[key(row)].append(row.figures)
        in_order = sorted(found.items(), key=lambda item: (item[0] is not None, item[0]))
        return {place: JobFigures.added(*figures) for place, figures in in_order}
