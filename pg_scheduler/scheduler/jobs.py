"""Schedule jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from pg_scheduler.base.settings import Notify
from pg_scheduler.database.callers.adapter import AnyConnection
from pg_scheduler.jobs.model import (
    UNSET,
    AfterOutcome,
    Call,
    ConflictResolution,
    JobFunction,
    JobPriority,
    Unset,
)
from pg_scheduler.jobs.naming import check_name
from pg_scheduler.jobs.payload import split_task_data
from pg_scheduler.jobs.rows import EPOCH
from pg_scheduler.jobs.task import JobSpec
from pg_scheduler.jobs.unique import Unique
from pg_scheduler.jobs.validation import check_delay
from pg_scheduler.scheduler.parts import SchedulerMethods


class JobMethods(SchedulerMethods):
    """The methods of `Scheduler` that insert jobs."""

    async def schedule(
        self,
        func: JobFunction | Call[Any],
        *,
        execution_time: datetime,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        priority: JobPriority | Unset = UNSET,
        max_retries: int | Unset = UNSET,
        job_id: str | None = None,
        conflict_resolution: ConflictResolution = ConflictResolution.RAISE,
        misfire_grace_time: int | Unset | None = UNSET,
        timeout: float | timedelta | Unset | None = UNSET,
        keep_result: timedelta | Unset | None = UNSET,
        metadata: Mapping[str, Any] | None = None,
        after: Iterable[str | None] = (),
        after_outcome: AfterOutcome = "completed",
        pass_results: bool = False,
        unique: Unique | str | Unset | None = UNSET,
        connection: AnyConnection | None = None,
        notify: Notify | None = None,
    ) -> str:
        """Schedule one job at one time.

        Args:
            func: The function to run, or a ``call()`` with its arguments. A coroutine function is registered
                with this Scheduler.
            execution_time: The due time, timezone-aware. A job whose due time has passed runs at once if it
                is within its misfire grace time.
            args: Positional arguments that JSON can represent.
            kwargs: Keyword arguments that JSON can represent.
            priority: Due jobs of a higher priority start first. Default: the task's, else NORMAL.
            max_retries: Retries after a failed first attempt. Default: the task's, else 0.
            job_id: Your own id, at most 2,000 bytes of UTF-8; None to generate one.
            conflict_resolution: The behaviour when the id exists or the unique key is taken.
            misfire_grace_time: Seconds after ``execution_time`` within which the job may start; None for no
                limit. Default: the task's, else the Scheduler's.
            timeout: Time limit of one attempt, in seconds or as a timedelta; None for no limit. Default: the
                task's, else one hour.
            keep_result: How long the result is kept after the end, for ``get_job_result()``; None for
                not at all. Default: the task's, else not at all.
            metadata: A JSON object for people and filters, merged into that of the task.
            after: Ids of jobs that must end before this one may start. Its misfire grace time starts then.
                None, which ``schedule_bulk()`` returns for a job that was not inserted, is skipped.
            after_outcome: ``"completed"`` cancels the job if one of them does not complete; ``"ended"`` runs
                it in any case.
            pass_results: Whether the job reads their results, by ``current_job().predecessors()``. Each of
                them must keep its result, for however short a time, since it is copied to this job.
            unique: Which jobs exclude one another: a key of 1 to 200 bytes, shared by all tasks, or a
                ``Unique()``, whose key contains the task and its arguments. At most one unfinished job has
                the key. None for a job that is not unique. Default: the task's, else None.
            connection: Your connection, session or ConnectionAdapter: asyncpg inside a transaction, psycopg,
                SQLAlchemy or SQLModel. The job exists if and only if its transaction commits.
            notify: With ``connection``, how workers are notified of a job that is due soon: by this process
                after the transaction ("hint"), by the commit ("commit"), or not ("never"). Default: the
                setting of the Scheduler.

        Returns:
            The id of the job; under IGNORE and REPLACE that of the existing one.

        Raises:
            TypeError: ``func`` is not a coroutine function or cannot be called with the arguments, or a value
                has the wrong type.
            ValueError: ``execution_time`` is naive, ``connection`` is not in a transaction that the call
                needs, ``notify`` is given without one, a job in ``after`` keeps no result that
                ``pass_results`` asks for, or another value is out of range.
            ConfigurationError: ``connection`` leads to another database than that of the Scheduler.
            PayloadError: JSON cannot represent an argument, or arguments and metadata exceed
                ``max_payload_bytes``. Nothing is stored.
            JobConflictError: The id exists or the unique key is taken, and the resolution is RAISE; or under
                REPLACE, the id is that of one job and another one has the key; a ValueError.
            JobNotFoundError: A job in ``after`` does not exist. Nothing is stored.
            DatabaseUnavailableError: The database is unavailable, ``connection`` is closed or was released,
                or a response was lost and the job may exist. Call again with the same ``job_id`` and
                ``ConflictResolution.IGNORE``.
            Exception: That of your driver: an earlier error has aborted the transaction of ``connection``.

        Example::

            job_id = await scheduler.schedule(
                send_mail,
                execution_time=datetime.now(UTC) + timedelta(minutes=5),
                args=("ada@example.org",),
                max_retries=3,
            )
        """
        spec = JobSpec(
            func,
            execution_time,
            args,  # type: ignore[arg-type] # a list is as good as a tuple
            kwargs,  # type: ignore[arg-type] # None is as good as {}
            priority,
            max_retries,
            job_id,
            misfire_grace_time,
            timeout=timeout,
            keep_result=keep_result,
            metadata=metadata,
            after=after,
            after_outcome=after_outcome,
            pass_results=pass_results,
            unique=unique,
        )
        (job,) = self._parts.preparer.prepare((spec,))
        return await self._parts.enqueuer.insert(job, conflict_resolution, connection, notify=notify)

    async def enqueue(
        self,
        func: JobFunction | Call[Any] | str,
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        delay: float | timedelta | None = None,
        priority: JobPriority | Unset = UNSET,
        max_retries: int | Unset = UNSET,
        job_id: str | None = None,
        conflict_resolution: ConflictResolution = ConflictResolution.RAISE,
        misfire_grace_time: int | Unset | None = UNSET,
        timeout: float | timedelta | Unset | None = UNSET,
        keep_result: timedelta | Unset | None = UNSET,
        metadata: Mapping[str, Any] | None = None,
        after: Iterable[str | None] = (),
        after_outcome: AfterOutcome = "completed",
        pass_results: bool = False,
        unique: Unique | str | Unset | None = UNSET,
        connection: AnyConnection | None = None,
        notify: Notify | None = None,
    ) -> str:
        """Run one job now, or after a delay, by the clock of the database.

        The clock of this machine does not matter, so a job that is enqueued now is due now on every node.

        Args:
            func: The function to run, a ``call()`` with its arguments, or the name of a task, which
                need not be registered in this process.
            args: Positional arguments that JSON can represent.
            kwargs: Keyword arguments that JSON can represent.
            delay: The time until the job is due, in seconds or as a timedelta; None for now.
            priority: Due jobs of a higher priority start first. Default: the task's, else NORMAL.
            max_retries: Retries after a failed first attempt. Default: the task's, else 0.
            job_id: Your own id; None to generate one.
            conflict_resolution: The behaviour when the id exists or the unique key is taken.
            misfire_grace_time: Seconds after its due time within which the job may start; None for no limit.
                Default: the task's, else no limit; for a job with a delay, the Scheduler's.
            timeout: Time limit of one attempt, in seconds or as a timedelta; None for no limit. Default: the
                task's, else one hour.
            keep_result: How long the result is kept after the end, for ``get_job_result()``; None for
                not at all. Default: the task's, else not at all.
            metadata: A JSON object for people and filters, merged into that of the task.
            after: Ids of jobs that must end before, as in ``schedule()``, with ``after_outcome``.
            after_outcome: ``"completed"`` or ``"ended"``.
            pass_results: Whether the job reads their results, as in ``schedule()``.
            unique: A key or a ``Unique()``, as in ``schedule()``.
            connection: A connection of yours; see ``schedule()``. A delay counts from this call, not from the
                commit.
            notify: With ``connection``, how workers are notified; see ``schedule()``.

        Returns:
            The id of the job.

        Raises:
            ValueError: ``delay`` is negative or too long. ``schedule()`` lists the other errors.

        Example::

            await scheduler.enqueue(call(send_mail, "ada@example.org"))
            await scheduler.enqueue("reports.build", kwargs={"year": 2030}, delay=timedelta(minutes=5))
        """
        delay_s = 0.0 if delay is None else check_delay("delay", delay)
        spec = JobSpec(
            func,  # type: ignore[arg-type] # it may be a name
            EPOCH + timedelta(seconds=delay_s) if delay_s else None,
            args,  # type: ignore[arg-type] # a list is as good as a tuple
            kwargs,  # type: ignore[arg-type] # None is as good as {}
            priority,
            max_retries,
            job_id,
            misfire_grace_time,
            timeout=timeout,
            keep_result=keep_result,
            metadata=metadata,
            after=after,
            after_outcome=after_outcome,
            pass_results=pass_results,
            unique=unique,
        )
        (job,) = self._parts.preparer.prepare((spec,), allows_names=True, allows_now=True)
        return await self._parts.enqueuer.insert(
            job, conflict_resolution, connection, is_delayed=True, notify=notify
        )

    async def schedule_bulk(
        self,
        jobs: Sequence[JobSpec],
        *,
        conflict_resolution: ConflictResolution = ConflictResolution.IGNORE,
        batch_size: int = 1000,
        connection: AnyConnection | None = None,
        notify: Notify | None = None,
    ) -> list[str | None]:
        """Schedule many jobs with few statements, at the times that they give or now.

        Args:
            jobs: The jobs. All are validated before the first one is written. An empty sequence writes
                nothing, and the result is an empty list.
            conflict_resolution: The behaviour for ids and unique keys that exist or occur twice. RAISE
                inserts all jobs or none. Of the jobs with one id or key, IGNORE keeps the first and REPLACE
                the last.
            batch_size: Jobs per statement. Each statement commits separately, except under RAISE, with
                ``connection``, and if a job has ``after``.
            connection: A connection of yours; see ``schedule()``.
            notify: With ``connection``, how workers are notified; see ``schedule()``.

        Returns:
            The ids in the order of ``jobs``, None where a job was not inserted. Under REPLACE, the id of a
            unique job is that of the job whose definition it replaced.

        Raises:
            TypeError: A value has the wrong type, or a function cannot be called with the arguments.
            ValueError: A value is out of range, ``connection`` is not in a transaction, ``notify`` is given
                without one, or a job in ``after`` keeps no result that ``pass_results`` asks for.
            PayloadError: JSON cannot represent an argument, or the arguments of a job are too large.
            JobConflictError: An id or a unique key exists or occurs twice, and the resolution is RAISE; a
                ValueError.
            JobNotFoundError: A job in ``after`` neither exists nor is inserted here. Nothing is stored.
            DatabaseUnavailableError: The database is unavailable, or its response was lost; see
                ``schedule()``.
        """
        return await self._parts.enqueuer.insert_all(
            jobs, conflict_resolution, batch_size, connection, notify=notify
        )

    async def schedule_job(  # noqa: PLR0917 - the signature is the contract with users of 0.2.x
        self,
        job_name: str,
        execution_time: datetime,
        task_data: Mapping[str, Any],
        priority: JobPriority | Unset = UNSET,
        max_retries: int | Unset = UNSET,
        job_id: str | None = None,
        conflict_resolution: ConflictResolution = ConflictResolution.RAISE,
        misfire_grace_time: int | Unset | None = UNSET,
        *,
        timeout: float | timedelta | Unset | None = UNSET,
        keep_result: timedelta | Unset | None = UNSET,
        metadata: Mapping[str, Any] | None = None,
        after: Iterable[str | None] = (),
        after_outcome: AfterOutcome = "completed",
        pass_results: bool = False,
        unique: Unique | str | Unset | None = UNSET,
        connection: AnyConnection | None = None,
        notify: Notify | None = None,
    ) -> str:
        """Schedule one job by name. The function need not be registered in this process.

        Args:
            job_name: ``module.qualname``, or the name given to ``@job`` or ``register()``.
            execution_time: The due time, timezone-aware.
            task_data: ``{"args": [...], "kwargs": {...}}``; both keys are optional.
            priority: Due jobs of a higher priority start first. Default: the task's, else NORMAL.
            max_retries: Retries after a failed first attempt. Default: the task's, else 0.
            job_id: Your own id; None to generate one.
            conflict_resolution: The behaviour when the id exists or the unique key is taken.
            misfire_grace_time: Seconds of grace, as in ``schedule()``.
            timeout: Time limit of one attempt in seconds or as a timedelta, as in ``schedule()``.
            keep_result: How long the result is kept, as in ``schedule()``.
            metadata: A JSON object, as in ``schedule()``. Its key ``trace`` may have trace context of another
                program: strings by name, at most 8 KiB.
            after: Ids of jobs that must end before, as in ``schedule()``.
            after_outcome: ``"completed"`` or ``"ended"``.
            pass_results: Whether the job reads their results, as in ``schedule()``.
            unique: A key or a ``Unique()``, as in ``schedule()``.
            connection: A connection of yours, as in ``schedule()``.
            notify: With ``connection``, how workers are notified, as in ``schedule()``.

        Returns:
            The id of the job. ``schedule()`` lists the errors.
        """
        args, kwargs = split_task_data(task_data)
        spec = JobSpec(
            check_name(job_name),  # type: ignore[arg-type] # instead of a function
            execution_time,
            args,
            kwargs,
            priority,
            max_retries,
            job_id,
            misfire_grace_time,
            timeout=timeout,
            keep_result=keep_result,
            metadata=metadata,
            after=after,
            after_outcome=after_outcome,
            pass_results=pass_results,
            unique=unique,
        )
        (job,) = self._parts.preparer.prepare((spec,), allows_names=True, allows_trace=True)
        return await self._parts.enqueuer.insert(job, conflict_resolution, connection, notify=notify)
