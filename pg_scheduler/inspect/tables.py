"""Read what belongs to jobs in other tables: results."""

from __future__ import annotations

from pg_scheduler.errors import JobNotFoundError
from pg_scheduler.jobs.result import JobResult
from pg_scheduler.jobs.validation import check_job_id
from pg_scheduler.store.store import Store

__all__ = ["TableReads"]


class TableReads:
    """The methods of an Inspector that read one small table each."""

    _reads: Store

    async def get_result(self, job_id: str) -> JobResult | None:
        """Return how a job ended, and its value if it was kept; None if it has not ended.

        Raises:
            JobNotFoundError: No job has this id, and no result is kept.
        """
        found = await self._reads.kept_results.get([check_job_id(job_id)])
        if job_id not in found:
            raise JobNotFoundError(job_id)
        return found[job_id]
