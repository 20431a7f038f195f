"""Cancel jobs, run them again, set their status, and delete finished ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from pg_scheduler.base.status import JobStatus
from pg_scheduler.database.callers.adapter import AnyConnection
from pg_scheduler.database.session import Connection
from pg_scheduler.events import JobCancelled
from pg_scheduler.events.types import BY_CALLER
from pg_scheduler.jobs.step_values import check_step_name
from pg_scheduler.jobs.validation import check_job_id
from pg_scheduler.queue.jobs import JobFilters
from pg_scheduler.scheduler.inspection import check_filters
from pg_scheduler.scheduler.parts import Parts, SchedulerMethods
from pg_scheduler.worker.vacuum import Vacuum


class ControlMethods(SchedulerMethods):
    """The methods of `Scheduler` that change jobs."""

    async def cancel_job(self, job_id: str, *, connection: AnyConnection | None = None) -> bool:
        """Cancel a pending or running job.

        The task of a running job is cancelled within a second, on whichever worker runs it.

        Args:
            job_id: The job.
            connection: A connection of yours, as in ``schedule()``: the job is cancelled if and only if its
                transaction commits. The row is locked until then.

        Returns:
            True if the job was pending or running, False if it has finished or does not exist.

        Raises:
            TypeError: ``connection`` is no connection of a supported library.
            ValueError: ``connection`` is not in a transaction that the call needs.
        """
        checked = await self._parts.store.connections.check_call(connection)
        return await cancel_job(self._parts, check_job_id(job_id), checked)

    async def cancel_jobs(
        self,
        *,
        status: JobStatus | str | Iterable[JobStatus | str] | None = None,
        job_name: str | None = None,
        worker_id: str | None = None,
        due_from: datetime | None = None,
        due_before: datetime | None = None,
        metadata: Mapping[str, Any] | None = None,
        connection: AnyConnection | None = None,
    ) -> int:
        """Cancel every pending or running job that matches all filters, in bounded batches.

        The batches are transactions of their own: if one fails, earlier ones stay cancelled, and the call can
        be repeated. A job that is scheduled during the call may be missed.

        Args:
            status: ``pending``, ``running`` or both, the default. Finished jobs are never changed.
            job_name: Only jobs with this name.
            worker_id: Only jobs that this worker runs.
            due_from: Only jobs due at or after this time.
            due_before: Only jobs due before this time.
            metadata: Only jobs whose metadata contain these keys and values.
            connection: A connection of yours in a transaction, as in ``cancel_job()``: all batches belong to
                it, so the jobs are cancelled if and only if that commits. Their rows are locked until then.

        Returns:
            The number of cancelled jobs.

        Raises:
            TypeError: ``connection`` is no connection of a supported library.
            ValueError: No filter is given, a status is unknown, a time is naive, or ``connection`` is not in
                a transaction.
            PayloadError: JSON cannot represent the metadata; a ValueError.

        Example::

            cancelled = await scheduler.cancel_jobs(metadata={"tenant": 7})
        """
        checked = await self._parts.store.connections.check_call(connection)
        filters = check_filters(
            self._parts.tasks,
            status=status,
            job_name=job_name,
            worker_id=worker_id,
            due_from=due_from,
            due_before=due_before,
            metadata=metadata,
        )
        if all(value is None for value in filters):
            raise ValueError(
                "cancel_jobs() needs a filter; to cancel all jobs, pass status=['pending', 'running']"
            )
        if checked is None:
            return await self._cancel_jobs(filters, None)
        async with self._parts.store.statements.transaction(within=checked):
            return await self._cancel_jobs(filters, checked)

    async def _cancel_jobs(self, filters: JobFilters, connection: Connection | None) -> int:
        """Cancel the jobs that match the filters, in the caller's transaction if given; return how many."""
        reason = _reason(self._parts, "cancelled")
        cancelled, after = 0, None
        while True:
            jobs, after = await self._parts.store.jobs.cancel_next(after, filters, reason, connection)
            cancelled += len(jobs)
            for worker in {job.worker_id for job in jobs}:
                await _notify_owner(self._parts, worker, connection)
            for job in jobs:
                # Whether the transaction of a caller commits is unknown, so its call publishes no event.
                if job.worker_id is None and connection is None:
                    self._parts.events.publish(
                        JobCancelled(job.job_id, job.job_name, job.attempt, reason=BY_CALLER)
                    )
            if after is None:
                return cancelled

    async def retry_job(
        self, job_id: str, *, from_step: str | None = None, connection: AnyConnection | None = None
    ) -> bool:
        """Run a finished job again now, with its retries and crashes reset.

        It may have failed, expired, completed or been cancelled. Its id, arguments, priority and stored steps
        stay.

        Args:
            job_id: The job.
            from_step: The name of a stored step, which is deleted with the steps that were stored after it,
                so that they run again. Signals that have come stay, unless this names one. None to keep all.
            connection: A connection of yours in a transaction, as in ``schedule()``: the job is retried if
                and only if that commits. The row is locked until then.

        Returns:
            True if the job had finished and is pending now, False if it is unfinished or does not exist. Also
            False while the attempt of a cancelled job still runs, if other jobs or a schedule wait for it.

        Raises:
            JobConflictError: Another unfinished job has its unique key; a ValueError.
            TypeError: ``connection`` is no connection of a supported library.
            ValueError: ``connection`` is not in a transaction, or the job has not stored ``from_step``.
        """
        checked = await self._parts.store.connections.check_call(connection)
        jobs = self._parts.store.jobs
        check_job_id(job_id)
        if from_step is None:
            due = await jobs.retry(job_id, checked)
        else:
            due = await jobs.retry_from(job_id, check_step_name(from_step), checked)
        if due is not None:
            await self._parts.outbox.notify_due(due, checked)
        return due is not None

    async def run_job_now(self, job_id: str, *, connection: AnyConnection | None = None) -> bool:
        """Make a pending job due now, with its whole misfire grace time. Jobs that it waits for end first.

        Args:
            job_id: The job.
            connection: A connection of yours, as in ``schedule()``: the job is due now if and only if its
                transaction commits. The row is locked until then.

        Returns:
            True if the job is pending, False if it runs, has finished or does not exist.

        Raises:
            TypeError: ``connection`` is no connection of a supported library.
            ValueError: ``connection`` is an asyncpg connection outside of a transaction.
        """
        checked = await self._parts.store.connections.check_call(connection)
        now = await self._parts.store.jobs.clock(connection=checked)
        moved = await self._parts.store.jobs.move([check_job_id(job_id)], to=now, connection=checked)
        is_pending = any(job.changed for job in moved)
        if is_pending:
            await self._parts.outbox.notify_due(now, checked)
        return is_pending

    async def update_job_status(self, job_id: str, status: JobStatus | str) -> bool:
        """Set the status of a job, regardless of its current status.

        A worker that runs the job loses it: its task is cancelled and its result rejected. ``pending`` runs a
        finished job again. ``running`` reserves a job for one lease, or until its due time if that is later;
        then it is pending again.

        Args:
            job_id: The job.
            status: A JobStatus or its text.

        Returns:
            False if the job does not exist.

        Raises:
            ValueError: ``status`` is not a status.
            JobConflictError: A finished job would be unfinished, and another one has its unique key; a
                ValueError.
        """
        new = JobStatus.parse(status)
        change = await self._parts.store.jobs.set_status(
            check_job_id(job_id),
            new,
            self._parts.config.lease_seconds,
            _reason(self._parts, f"set to {new.value}"),
        )
        await _notify_owner(self._parts, change.worker_id)
        if new is JobStatus.PENDING and change.due is not None:
            await self._parts.outbox.notify_due(change.due)
        return change.changed

    async def run_vacuum(self) -> dict[str, int]:
        """Apply the vacuum policies now and return the number of deleted jobs by status."""
        store = self._parts.store
        vacuum = Vacuum(
            store,
            self._parts.events,
            self._parts.config.vacuum,
            self._parts.life.worker_id,
            schedules=store.schedules,
            statistics=store.statistics,
        )
        return {status.value: count for status, count in (await vacuum.run()).items()}


async def cancel_job(parts: Parts, job_id: str, connection: Connection | None = None) -> bool:
    """Cancel a pending or running job, in the caller's transaction if given; return whether it was one."""
    change = await parts.store.jobs.cancel(job_id, _reason(parts, "cancelled"), connection)
    await _notify_owner(parts, change.worker_id, connection)
    # A worker that runs the job publishes the event itself. Whether the transaction of a caller commits is
    # unknown.
    if change.changed and change.worker_id is None and connection is None:
        parts.events.publish(JobCancelled(job_id, change.job_name, change.attempt, reason=BY_CALLER))
    return change.changed


def _reason(parts: Parts, change: str) -> str:
    return f"{change} by {parts.actor}"


async def _notify_owner(parts: Parts, worker_id: str | None, connection: Connection | None = None) -> None:
    """Notify the worker that runs a job: now, or by the commit of a caller."""
    if worker_id is None:
        return
    if connection is not None:
        await parts.outbox.notify_worker(worker_id, connection)
    elif worker_id == parts.life.worker_id and parts.runtime is not None:
        parts.runtime.node.signals.heartbeat_requested()
    else:
        await parts.outbox.notify_worker(worker_id)
