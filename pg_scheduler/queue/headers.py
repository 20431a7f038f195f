"""Call the middleware of a Scheduler for the jobs that it stores."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from typing import Any, Final

from pg_scheduler.base.foreign import is_ctrl_c
from pg_scheduler.base.settings import Notify
from pg_scheduler.database.callers.adapter import AnyConnection
from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.jobs.codec import PayloadCodec
from pg_scheduler.jobs.metadata import with_trace
from pg_scheduler.jobs.middleware import Middleware, ScheduledCall, SendingMiddleware
from pg_scheduler.jobs.model import ConflictResolution
from pg_scheduler.jobs.rows import EPOCH, AnyJob, ExtendedJob
from pg_scheduler.jobs.task import JobSpec
from pg_scheduler.queue.bulk import PREPARE_BATCH
from pg_scheduler.queue.enqueuer import Enqueuer, needs_time


class Sender:
    """The methods of middleware that are called for jobs before they are stored."""

    def __init__(self, middleware: Sequence[Middleware], codec: PayloadCodec | None = None) -> None:
        self._codec: Final = codec
        # Only some middleware has this method, which returns strings for the metadata of a job by name.
        methods = (getattr(instance, "headers", None) for instance in middleware)
        self._headers: Final[list[Any]] = [method for method in methods if method is not None]
        self._sending: Final = [
            instance.sending for instance in middleware if isinstance(instance, SendingMiddleware)
        ]

    def call_of(self, job: AnyJob, due: datetime) -> ScheduledCall:
        """Return what middleware sees of a job that is due at this time."""
        schedule_id = job.schedule_id if isinstance(job, ExtendedJob) else None
        return ScheduledCall(job.job_id, job.job_name, due, schedule_id, job.task_data, self._codec)

    @property
    def is_used(self) -> bool:
        """Whether any middleware has such a method."""
        return bool(self._headers or self._sending)

    @contextmanager
    def sending(self, call: ScheduledCall | None, count: int = 1) -> Iterator[None]:
        """Run the block, which stores jobs, within ``sending()`` of all middleware.

        The middleware gets the job if the block stores a single one, else None and the number of jobs.
        """
        with ExitStack() as stack:
            for sending in self._sending:
                stack.enter_context(sending(call, count))
            yield

    def with_headers(self, task_data: str, call: ScheduledCall) -> str:
        """Return the arguments and metadata of a job with the headers that middleware adds to the metadata.

        They are unchanged if the metadata has headers already.

        Raises:
            TypeError: A middleware returned something else than strings by name.
            PayloadError: PostgreSQL cannot store a text, or the headers are too large.
        """
        trace: dict[str, str] = {}
        for headers in self._headers:
            texts = headers(call)
            if not isinstance(texts, Mapping) or not all(
                isinstance(name, str) and isinstance(value, str) for name, value in texts.items()
            ):
                owner = type(headers.__self__).__name__
                raise TypeError(f"headers() of {owner} must return strings by name, not {texts!r}")
            trace.update(texts)
        return with_trace(task_data, trace) if trace else task_data

    def add_to_planned(self, job: ExtendedJob, schedule_id: str) -> ExtendedJob:
        """Return a job of a schedule with the headers; without them if a middleware raises an exception."""
        try:
            call = self.call_of(job, job.execution_time)
            return job.with_task_data(self.with_headers(job.task_data, call))
        except BaseException as error:  # user code, which must not stop a schedule
            if is_ctrl_c(error):
                raise
            logger.exception(
                "headers() of a middleware raised an exception; job %r of schedule %r of %s has none",
                job.job_id,
                schedule_id,
                job.job_name,
                extra=record_fields(job_id=job.job_id, job_name=job.job_name),
            )
            return job


class SendingEnqueuer:
    """An enqueuer that calls middleware. A Scheduler without middleware uses the inner one."""

    def __init__(self, enqueuer: Enqueuer, sender: Sender) -> None:
        self.enqueuer: Final = enqueuer
        self.sender: Final = sender

    async def insert(
        self,
        job: AnyJob,
        conflict_resolution: ConflictResolution,
        connection: AnyConnection | None,
        *,
        is_delayed: bool = False,
        notify: Notify | None = None,
    ) -> str:
        """Insert one validated job, as ``Enqueuer.insert()``."""
        # The id of such a job depends on its due time, or its statement needs it. So it is read before.
        if is_delayed and needs_time(job, conflict_resolution):
            job, is_delayed = await self.enqueuer.at_due_time(job, connection), False
        due = job.execution_time
        # For middleware, the time of this host is close enough. A delayed job is due at EPOCH plus its delay.
        if is_delayed:
            due = datetime.now(UTC) + (due - EPOCH)
        call = self.sender.call_of(job, due)
        with self.sender.sending(call):
            job = job.with_task_data(self.sender.with_headers(job.task_data, call))
            return await self.enqueuer.insert(
                job, conflict_resolution, connection, is_delayed=is_delayed, notify=notify
            )

    async def insert_all(
        self,
        specs: Sequence[JobSpec],
        conflict_resolution: ConflictResolution,
        batch_size: int,
        connection: AnyConnection | None,
        *,
        notify: Notify | None = None,
    ) -> list[str | None]:
        """Validate and insert many jobs, as ``Enqueuer.insert_all()``."""
        specs = list(specs)
        with self.sender.sending(None, len(specs)):
            return await self.enqueuer.insert_all(
                specs, conflict_resolution, batch_size, connection, notify=notify, change=self._add_to_all
            )

    async def _add_to_all(self, jobs: Sequence[AnyJob]) -> list[AnyJob]:
        """Return the jobs with the headers of middleware, and yield to the event loop at intervals."""
        changed: list[AnyJob] = []
        for start in range(0, len(jobs), PREPARE_BATCH):
            if start:
                await asyncio.sleep(0)
            for job in jobs[start : start + PREPARE_BATCH]:
                call = self.sender.call_of(job, job.execution_time)
                changed.append(job.with_task_data(self.sender.with_headers(job.task_data, call)))
        return changed
