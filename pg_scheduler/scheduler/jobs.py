"""Select and change jobs for callers, and notify the workers that a change concerns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from pg_scheduler.base.status import JobStatus
from pg_scheduler.database.session import Connection
from pg_scheduler.events import JobCancelled
from pg_scheduler.events.types import BY_CALLER
from pg_scheduler.jobs.payload import encode_object
from pg_scheduler.jobs.rows import Claim
from pg_scheduler.jobs.step_values import check_step_name
from pg_scheduler.jobs.validation import check_execution_time, check_job_id, check_list, check_text
from pg_scheduler.queue.jobs import CancelledJob, JobFilters
from pg_scheduler.scheduler.parts import Parts

MAX_PAGE_LENGTH: Final = 10_000
"""The maximum number of jobs or schedules that one call returns."""


class Jobs:
    """Selects and changes jobs for the methods of `Scheduler`, and notifies their workers."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def check_filters(
        self,
        *,
        status: JobStatus | str | Iterable[JobStatus | str] | None,
        job_name: str | None,
        worker_id: str | None,
        due_from: datetime | None,
        due_before: datetime | None,
        metadata: Mapping[str, Any] | None,
    ) -> JobFilters:
        """Return the filters of ``list_jobs()`` and ``cancel_jobs()`` as the store takes them."""
        statuses = None
        if status is not None:
            # A JobStatus is a str too.
            is_single = isinstance(status, str)
            values = [status] if is_single else check_list("status", status, "JobStatus")
            statuses = [JobStatus.parse(value) for value in values]
        for name, text in (("job_name", job_name), ("worker_id", worker_id)):
            if text is not None:
                check_text(name, text)
        labels = None if metadata is None else encode_object("metadata", metadata)
        return JobFilters(
            statuses=statuses,
            names=None if job_name is None else self._parts.tasks.names_like(job_name),
            worker_id=worker_id,
            due_from=None if due_from is None else check_execution_time(due_from, name="due_from"),
            due_before=None if due_before is None else check_execution_time(due_before, name="due_before"),
            # An empty object is contained in the metadata of every job, so it is no filter.
            metadata=None if labels == "{}" else labels,
        )

    async def cancel(self, job_id: str, connection: Connection | None = None) -> bool:
        """Cancel a job, in the caller's transaction if given; return whether it was pending or running."""
        change = await self._parts.store.jobs.cancel(job_id, self._reason("cancelled"), connection)
        await self._notify_owner(change.worker_id, connection)
        # A worker that runs the job publishes the event itself. In the transaction of a caller no event is
        # published, because it is unknown whether that transaction commits.
        if change.changed and change.worker_id is None and connection is None:
            self._parts.events.publish(
                JobCancelled(job_id, change.job_name, change.attempt, reason=BY_CALLER)
            )
        return change.changed

    async def cancel_family(self, job_id: str, connection: Connection | None) -> int:
        """Cancel a job and its children, in the caller's transaction if given; return how many."""
        if connection is not None:
            await self._parts.store.connections.check_isolation(connection)
        jobs = await self._parts.store.jobs.cancel_family(job_id, self._reason("cancelled"), connection)
        await self._report_cancelled(jobs, connection)
        return len(jobs)

    async def cancel_all(
        self, filters: JobFilters, connection: Connection | None, *, children: bool = False
    ) -> int:
        """Cancel the jobs that match the filters, in the caller's transaction if given; return how many.

        ``children`` is whether their families are cancelled too.
        """
        if all(value is None for value in filters):
            raise ValueError(
                "cancel_jobs() needs a filter; to cancel all jobs, pass status=['pending', 'running']"
            )
        if connection is None:
            return await self._cancel_batches(filters, None, children=children)
        if children:
            await self._parts.store.connections.check_isolation(connection)
        async with self._parts.store.statements.transaction(within=connection):
            return await self._cancel_batches(filters, connection, children=children)

    async def _cancel_batches(
        self, filters: JobFilters, connection: Connection | None, *, children: bool
    ) -> int:
        """Cancel the jobs that match the filters, batch by batch; return how many."""
        reason = self._reason("cancelled")
        # Each batch begins after the last job of the one before it.
        cancelled_count, after = 0, None
        while True:
            jobs, after = await self._parts.store.jobs.cancel_next(
                after, filters, reason, connection, children=children
            )
            cancelled_count += len(jobs)
            await self._report_cancelled(jobs, connection)
            if after is None:
                return cancelled_count

    async def _report_cancelled(self, jobs: Sequence[CancelledJob], connection: Connection | None) -> None:
        """Notify the workers that run cancelled jobs, and publish the events of the others."""
        for worker_id in {job.worker_id for job in jobs}:
            await self._notify_owner(worker_id, connection)
        for job in jobs:
            # As in cancel(), a worker that runs the job publishes the event itself, and there is no event in
            # the transaction of a caller.
            if job.worker_id is None and connection is None:
                self._parts.events.publish(
                    JobCancelled(job.job_id, job.job_name, job.attempt, reason=BY_CALLER)
                )

    async def retry(self, job_id: str, from_step: str | None, connection: Connection | None) -> bool:
        """Run a finished job again, from a stored step on if one is given; return whether it had finished."""
        jobs = self._parts.store.jobs
        if from_step is None:
            due_at = await jobs.retry(job_id, connection)
        else:
            due_at = await jobs.retry_from(job_id, check_step_name(from_step), connection)
        # Without a new due time, the job has not finished or does not exist.
        if due_at is None:
            return False
        await self._parts.outbox.notify_due(due_at, connection)
        return True

    async def retry_family(self, job_id: str, connection: Connection | None) -> int:
        """Retry a job and its children that ended without success; return how many jobs were retried."""
        if connection is not None:
            await self._parts.store.connections.check_isolation(connection)
        due_times = await self._parts.store.jobs.retry_family(job_id, connection)
        if due_times:
            await self._parts.outbox.notify_due(min(due_times), connection)
        return len(due_times)

    async def run_now(self, job_id: str, connection: Connection | None) -> bool:
        """Make a pending job due now; return whether it was pending."""
        now = await self._parts.store.statements.read_clock(on=connection)
        jobs = await self._parts.store.jobs.move([job_id], to=now, connection=connection)
        is_pending = any(job.changed for job in jobs)
        if is_pending:
            await self._parts.outbox.notify_due(now, connection)
        return is_pending

    async def set_status(self, job_id: str, status: JobStatus) -> bool:
        """Set the status of a job; return whether it exists."""
        reason = self._reason(f"set to {status.value}")
        change = await self._parts.store.jobs.set_status(
            job_id, status, self._parts.config.lease_seconds, reason
        )
        # The worker that ran the job has lost it, and cancels the attempt.
        await self._notify_owner(change.worker_id)
        if status is JobStatus.PENDING and change.due is not None:
            await self._parts.outbox.notify_due(change.due)
        return change.changed

    async def held_claim(self, job_row: Mapping[str, Any]) -> Claim:
        """Return the claim of a job that this worker has claimed and does not run yet.

        A claim is what an executor needs to run a job: its id, its attempt and its arguments.

        Raises:
            ValueError: The row has no ``job_id``, the job runs already, or this worker has not claimed it.
        """
        try:
            job_id = check_job_id(job_row["job_id"])
        except KeyError:
            raise ValueError(
                f"job_row has no job_id, but the keys {[*job_row.keys()]}; "
                "pass the row of a job that this worker claimed"
            ) from None
        if job_id in self._parts.running().node.in_flight.held():
            raise ValueError(f"job {job_id!r} is already running on this worker; wait until it has finished")
        claim = await self._parts.store.claims.held_claim(job_id, self._parts.life.worker_id)
        if claim is None:
            raise ValueError(
                f"job {job_id!r} is not claimed by worker {self._parts.life.worker_id}; "
                "pass the row of a job that this worker claimed"
            )
        return claim

    def _reason(self, change: str) -> str:
        """Return the reason of a change for the rows of jobs, such as "cancelled by <name of the caller>"."""
        return f"{change} by {self._parts.actor}"

    async def _notify_owner(self, worker_id: str | None, connection: Connection | None = None) -> None:
        """Notify the worker that runs a job, at once or by the commit of a caller's transaction.

        Nothing happens if ``worker_id`` is None, because no worker runs the job.
        """
        parts = self._parts
        if worker_id is None:
            return
        if connection is not None:
            await parts.outbox.notify_worker(worker_id, connection)
        # The worker is this one, which needs no notification: its next heartbeat, which begins at once, finds
        # the change.
        elif worker_id == parts.life.worker_id and parts.runtime is not None:
            parts.runtime.node.signals.heartbeat_requested()
        else:
            await parts.outbox.notify_worker(worker_id)
