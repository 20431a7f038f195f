"""Rows on the hot path: a job to insert and a claimed job."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from pg_scheduler.jobs.unique import slot_id


class NewJob(NamedTuple):
    """A validated job, ready to be inserted.

    It is a tuple, since a bulk call creates many. Fields that differ between jobs precede those that many
    jobs share.
    """

    job_id: str
    task_data: str
    execution_time: datetime
    job_name: str
    priority: int
    max_retries: int
    misfire_grace_time: int | None
    timeout_seconds: float | None
    function: str | None = None
    lock_key: int | None = None

    def due_at(self, execution_time: datetime) -> NewJob:
        """Return the job with another due time."""
        return self._replace(execution_time=execution_time)


class GeneratedIdJob(NewJob):
    """A job with a generated id. The id cannot exist, so the job may be inserted by COPY."""

    __slots__ = ()


class Extras(NamedTuple):
    """The columns of a job that are NULL in a plain one."""

    options: str | None = None
    """JSON that the worker reads with the claim."""
    unique_key: str | None = None
    """The key of which at most one job is unfinished."""
    blocked_on: str | None = None
    """What the job waits for besides its time."""
    on_end: str | None = None
    """JSON that lists the consequences of the job's end."""


class Span(NamedTuple):
    """What the id of a job is derived from that exists once in a time span."""

    text: str
    """How the id begins."""
    per: timedelta
    """The length of the time span."""


class ExtendedJob(NewJob):
    """A job with values that plain jobs lack. Statements of their own insert it."""

    extras: Extras
    after: tuple[str, ...]
    """Ids of jobs that must end before; each once."""
    after_outcome: str
    """``completed`` or ``ended``."""
    span: Span | None
    """Derives the id from the due time; None if the time does not matter."""

    @classmethod
    def of(
        cls,
        job: NewJob,
        extras: Extras,
        *,
        after: tuple[str, ...] = (),
        after_outcome: str = "completed",
        span: Span | None = None,
    ) -> ExtendedJob:
        """Return the job with these extras."""
        if span is not None:
            job = job._replace(job_id=slot_id(span.text, span.per, job.execution_time))
        extended = cls._make(job)
        extended.extras, extended.after, extended.after_outcome = extras, after, after_outcome
        extended.span = span
        return extended

    def with_id(self, job_id: str) -> ExtendedJob:
        """Return the job with another id."""
        return ExtendedJob.of(
            self._replace(job_id=job_id), self.extras, after=self.after, after_outcome=self.after_outcome
        )

    def due_at(self, execution_time: datetime) -> ExtendedJob:
        """Return the job with another due time."""
        return ExtendedJob.of(
            super().due_at(execution_time),
            self.extras,
            after=self.after,
            after_outcome=self.after_outcome,
            span=self.span,
        )


class DelayedJob(NamedTuple):
    """A validated job that is due a delay after its insertion, by the clock of the database."""

    job_id: str
    task_data: str
    delay_s: float
    job_name: str
    priority: int
    max_retries: int
    misfire_grace_time: int | None
    timeout_seconds: float | None
    function: str | None = None
    lock_key: int | None = None


class GeneratedIdDelayedJob(DelayedJob):
    """A delayed job with a generated id, which cannot exist."""

    __slots__ = ()


class Claim(NamedTuple):
    """A job claimed by this worker. Its fencing token is the attempt with the id of the worker.

    It is a tuple in the order of the claim statement's columns, since one is created for every attempt.
    """

    job_id: str
    job_name: str
    function: str
    attempt: int
    execution_time: datetime
    task_data: str
    priority: int
    retry_count: int
    max_retries: int
    timeout_seconds: float | None
    lock_key: int | None
    options: str | None = None
