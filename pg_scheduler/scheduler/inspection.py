"""Read jobs, workers and statistics, and report the health of a Scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from pg_scheduler.base.health import Health, judge
from pg_scheduler.base.status import JobStatus
from pg_scheduler.database.callers.adapter import AnyConnection
from pg_scheduler.jobs.model import Job, JobCounts, Page, Worker
from pg_scheduler.jobs.payload import encode_object
from pg_scheduler.jobs.registry import TaskRegistry
from pg_scheduler.jobs.validation import (
    check_count,
    check_execution_time,
    check_job_id,
    check_list,
    check_text,
)
from pg_scheduler.queue.jobs import JobFilters
from pg_scheduler.scheduler.health import facts_about
from pg_scheduler.scheduler.parts import SchedulerMethods

MAX_PAGE_LENGTH: Final = 10_000
"""The maximum number of jobs that one call of ``list_jobs()`` returns."""


class InspectionMethods(SchedulerMethods):
    """The methods of `Scheduler` that read."""

    async def get_job(self, job_id: str, *, connection: AnyConnection | None = None) -> Job | None:
        """Return the job, or None if it does not exist.

        Args:
            job_id: The job.
            connection: A connection of yours, as in ``schedule()``; the call sees what its transaction has
                changed.
        """
        checked = await self._parts.store.connections.check_call(connection)
        return await self._parts.store.jobs.get_job(check_job_id(job_id), checked)

    async def list_jobs(
        self,
        *,
        status: JobStatus | str | Iterable[JobStatus | str] | None = None,
        job_name: str | None = None,
        worker_id: str | None = None,
        due_from: datetime | None = None,
        due_before: datetime | None = None,
        metadata: Mapping[str, Any] | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Page[Job]:
        """Return a page of jobs, ordered by id. Generated ids sort by the time of their creation.

        Args:
            status: One status or several; None for all. An empty list selects no job.
            job_name: Only jobs with this name. If its task is registered here, its former names and aliases
                are found too.
            worker_id: Only jobs that this worker runs or ran last.
            due_from: Only jobs due at or after this time.
            due_before: Only jobs due before this time.
            metadata: Only jobs whose metadata contain these keys and values. Such a call examines at most
                20,000 rows, so a page can be short, or empty, while ``next`` is set.
            after: The ``next`` of the previous page; None for the first page.
            limit: Jobs per page, 1 to 10,000.

        Returns:
            The jobs, with ``next``: the ``after=`` of the following page, None at the end.

        Raises:
            ValueError: A status is unknown, a time is naive, or the limit is out of range.
            PayloadError: JSON cannot represent the metadata; a ValueError.

        Example::

            page = await scheduler.list_jobs(status="failed")
            if page.next is not None:
                more = await scheduler.list_jobs(status="failed", after=page.next)
        """
        check_count("limit", limit, least=1, most=MAX_PAGE_LENGTH)
        filters = check_filters(
            self._parts.tasks,
            status=status,
            job_name=job_name,
            worker_id=worker_id,
            due_from=due_from,
            due_before=due_before,
            metadata=metadata,
        )
        return await self._parts.store.jobs.list_jobs(
            after=None if after is None else check_job_id(after), limit=limit, **filters._asdict()
        )

    async def count_jobs(self, *, job_name: str | None = None) -> JobCounts:
        """Return the number of jobs in each status, of one name as in ``list_jobs()`` or of all."""
        names = None
        if job_name is not None:
            names = self._parts.tasks.names_like(check_text("job_name", job_name))
        return await self._parts.store.jobs.count_jobs(names)

    async def workers(self) -> list[Worker]:
        """Return every worker that has a row, oldest first, and whether its lease is valid."""
        return await self._parts.store.workers.list_workers()

    async def get_vacuum_stats(self, days: int = 7) -> list[dict[str, Any]]:
        """Return the deletions of the last days in UTC, newest first; empty without ``track_metrics``.

        Keys: ``stat_date, deleted_completed, deleted_failed, deleted_cancelled, deleted_expired, last_run,
        worker_id``.

        Args:
            days: The number of days, today included; at least 1.

        Raises:
            ValueError: ``days`` is less than 1.
        """
        check_count("days", days, least=1)
        if not self._parts.config.vacuum.track_metrics:
            return []
        return [asdict(day) for day in await self._parts.store.retention.vacuum_stats(days)]

    async def get_total_vacuum_stats(self) -> dict[str, Any]:
        """Return the deletions since the first vacuum; empty without ``track_metrics``.

        Keys: ``total_completed, total_failed, total_cancelled, total_expired, last_vacuum_run``.
        """
        if not self._parts.config.vacuum.track_metrics:
            return {}
        return asdict(await self._parts.store.retention.total_vacuum_stats())

    def health(self) -> Health:
        """Return whether this Scheduler is live, ready and started, with the checks that decide it.

        From memory, without a query. Any thread may call it, also while the event loop is blocked: the answer
        names the job that blocks it. A call in the event loop finds that loop responding.
        """
        return judge(facts_about(self._parts.life))


def check_filters(
    tasks: TaskRegistry,
    *,
    status: JobStatus | str | Iterable[JobStatus | str] | None,
    job_name: str | None,
    worker_id: str | None,
    due_from: datetime | None,
    due_before: datetime | None,
    metadata: Mapping[str, Any] | None,
) -> JobFilters:
    """Return the filters of ``list_jobs()`` and ``cancel_jobs()`` as the store takes them.

    Raises:
        TypeError: A value has the wrong type.
        ValueError: A status is unknown, or a time is naive.
        PayloadError: JSON cannot represent the metadata.
    """
    statuses = None
    if status is not None:
        given = [status] if isinstance(status, str) else check_list("status", status, "JobStatus")
        statuses = [JobStatus.parse(each) for each in given]
    for name, value in (("job_name", job_name), ("worker_id", worker_id)):
        if value is not None:
            check_text(name, value)
    wanted = None if metadata is None else encode_object("metadata", metadata)
    return JobFilters(
        statuses,
        None if job_name is None else tasks.names_like(job_name),
        worker_id,
        None if due_from is None else check_execution_time(due_from, name="due_from"),
        None if due_before is None else check_execution_time(due_before, name="due_before"),
        None if wanted == "{}" else wanted,
    )
