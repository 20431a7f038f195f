"""Add to the statistics of jobs, and merge those of the past."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pg_scheduler.base.figures import JobFigures
from pg_scheduler.database.statements import Repository


class StatisticsRepository(Repository):
    """The statements that write statistics of jobs by name."""

    async def add(self, worker_id: str, batch: int, jobs: Mapping[str, JobFigures]) -> bool:
        """Add figures to those of the minute and to the totals, unless this batch was added before.

        Args:
            worker_id: The worker that counted.
            batch: The number of the batch; those of a worker increase.
            jobs: The figures to add, by job name.

        Returns:
            False if the worker has no row, so that nothing was added.
        """
        rows = json.dumps([_row(name, figures) for name, figures in jobs.items()])
        now = self._statements.now
        is_added: bool = await self._statements.value("add_statistics", worker_id, batch, rows, now)
        return is_added

    async def fold(self, span_s: int, longer_s: int | None, days: float, limit: int) -> int:
        """Merge rows of a span that are older than these days into a longer one; return their number.

        Args:
            span_s: The span in seconds.
            longer_s: The longer span in seconds; None to delete the rows.
            days: The age in days.
            limit: The maximum number of rows.
        """
        now = self._statements.now
        if longer_s is None:
            return await self._statements.number("delete_statistics", span_s, days * 86_400, limit, now)
        return await self._statements.number("fold_statistics", span_s, longer_s, days * 86_400, limit, now)


def _row(name: str, figures: JobFigures) -> dict[str, object]:
    """Return the columns of ``scheduler_stats``. Elements may be appended to its arrays."""
    return {
        "job_name": name,
        "counts": [figures.scheduled, figures.started, *figures.ended],
        "sums": [figures.durations.total, figures.lateness.total],
        "run_hist": figures.durations.buckets,
        "late_hist": figures.lateness.buckets,
    }
