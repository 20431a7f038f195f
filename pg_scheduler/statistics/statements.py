"""Add to the statistics of jobs, and merge or delete old rows of statistics."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from pg_scheduler.base.figures import JobFigures
from pg_scheduler.database.statements import Repository

ERROR_AGES_S: Final = (2 * 3600.0, 8 * 86_400.0, 90 * 86_400.0)
"""The ages up to which counts of errors by minute, hour and day are kept. Groups are kept as long as days."""


class StatisticsRepository(Repository):
    """The statements that write statistics of jobs by name."""

    async def add(self, worker_id: str, batch: int, jobs: Mapping[str, JobFigures]) -> bool:
        """Add figures to the rows of this minute and to the totals, unless the batch was added before.

        Args:
            worker_id: The worker that counted.
            batch: The number of the batch, greater than the numbers of this worker's earlier batches.
            jobs: The figures to add, by job name.

        Returns:
            False if the worker has no row: nothing was added. True if the batch is added, now or before.
        """
        rows = json.dumps([_row(name, figures) for name, figures in jobs.items()])
        now = self._statements.now
        is_added: bool = await self._statements.value("add_statistics", worker_id, batch, rows, now)
        return is_added

    async def fold(self, span_s: int, longer_s: int | None, days: float, limit: int) -> int:
        """Merge old rows into rows of a longer span, such as minutes into hours, or delete the old rows.

        With the old rows, old counts and groups of errors are deleted.

        Args:
            span_s: The seconds that each of the old rows covers.
            longer_s: The seconds that each merged row covers; None to delete the old rows.
            days: The age in days from which on a row is old.
            limit: The maximum number of old rows of a table that the call merges or deletes.

        Returns:
            How many old rows were merged or deleted.
        """
        now = self._statements.now
        if longer_s is None:
            return await self._statements.number(
                "delete_statistics", span_s, days * 86_400, limit, now, *ERROR_AGES_S
            )
        return await self._statements.number("fold_statistics", span_s, longer_s, days * 86_400, limit, now)


def _row(name: str, figures: JobFigures) -> dict[str, object]:
    """Return the columns of a row of ``scheduler_stats`` by name, for the figures of jobs of one name.

    A later release may append elements to the arrays, but must not move an element, since rows are added
    place by place.
    """
    return {
        "job_name": name,
        "counts": [figures.scheduled, figures.started, *figures.ended],
        "sums": [figures.durations.total, figures.lateness.total],
        "run_hist": figures.durations.buckets,
        "late_hist": figures.lateness.buckets,
    }
