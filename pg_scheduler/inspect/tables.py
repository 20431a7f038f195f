"""Read what belongs to jobs in other tables: results, schedules."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from pg_scheduler.errors import JobNotFoundError, JobResult
from pg_scheduler.inspect.store.store import InspectionStore
from pg_scheduler.jobs.validation import check_count, check_execution_time, check_job_id, check_text
from pg_scheduler.schedules.schedule import Schedule, schedule_from_row
from pg_scheduler.status import JobStatus

MAX_ROWS: Final = 500
"""Rows that a call returns."""


class TableReads:
    """The methods of an Inspector that read one small table each."""

    _reads: InspectionStore

    async def get_result(self, job_id: str) -> JobResult | None:
        """Return how a job ended, and its value if it was kept; None if it has not ended.

        Raises:
            JobNotFoundError: No job has this id, and no result is kept.
        """
        found = await self._reads.kept_results.get([check_job_id(job_id)])
        if job_id not in found:
            raise JobNotFoundError(job_id)
        return found[job_id]

    async def migrated_at(self) -> list[datetime]:
        """Return when the first 500 migrations of the schema were applied, by their versions."""
        return await self._reads.inspections.migrations(MAX_ROWS)

    async def parents(self, job_id: str) -> dict[str, JobStatus | None]:
        """Return the jobs that an unfinished job waits for with their statuses, None for one that is missing.

        At most 100 are returned.
        """
        return dict(await self._reads.inspections.parents(check_job_id(job_id)))

    async def standby_lag_s(self) -> float | None:
        """Return for how many seconds a standby has replayed no transaction; None on a primary.

        While the primary is idle, this is longer than its data is old.
        """
        async with self._reads.searches.transaction() as connection:
            return (await self._reads.searches.sizes(on=connection)).standby_lag_s

    async def get_schedule(self, schedule_id: str) -> Schedule | None:
        """Return the schedule, or None if it does not exist."""
        row = await self._reads.schedules.get(check_text("schedule_id", schedule_id))
        return None if row is None else schedule_from_row(row)

    async def schedules(
        self, *, limit: int = 100, after: str | None = None, due_before: datetime | None = None
    ) -> list[Schedule]:
        """Return schedules in the order of their ids.

        Args:
            limit: Their number at most, 1 to 500.
            after: The id after which the list starts; None for the beginning.
            due_before: Only those whose next fire time precedes this time; None for all.

        Raises:
            ValueError: ``limit`` is out of range, or ``due_before`` is naive.
        """
        check_count("limit", limit, least=1, most=MAX_ROWS)
        rows = await self._reads.schedules.list_page(
            after=None if after is None else check_text("after", after),
            owner=None,
            paused=None,
            task=None,
            metadata=None,
            due_before=None if due_before is None else check_execution_time(due_before, name="due_before"),
            limit=limit,
        )
        return [schedule_from_row(row) for row in rows]
