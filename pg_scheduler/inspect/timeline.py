"""The life of a job: what happened to it, and what is ahead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from pg_scheduler.inspect.texts import length
from pg_scheduler.jobs.history import PARENT
from pg_scheduler.jobs.model import Job
from pg_scheduler.status import JobStatus


@dataclass(frozen=True, slots=True)
class Event:
    """A point in the life of a job."""

    at: datetime | None
    title: str
    worker: str | None = None
    error: str | None = None
    traceback: str | None = None
    log: Sequence[str] = ()
    """The last lines that the attempt logged. They can contain arguments."""
    is_ahead: bool = False


def timeline_of(job: Job) -> Iterator[Event]:
    """Yield the past events of a job, the oldest first, then those that are expected if it is unfinished."""
    yield Event(job.created_at, "created")
    past = list(_past(job))
    if job.status is not JobStatus.PENDING:  # the due time is that of the last attempt
        later = (place for place, each in enumerate(past) if each.at and each.at >= job.execution_time)
        past.insert(next(later, len(past)), Event(job.execution_time, "due"))
    yield from past
    if job.finished_at is None:
        yield from _ahead(job)


def _past(job: Job) -> Iterator[Event]:
    """Yield the attempts, and the end of the job."""
    for each in job.errors:
        error = ": ".join(filter(None, (each.error_type, each.message))) or None
        ran = ""
        if each.started_at is not None and each.ended_at is not None:
            ran = f" after {length(each.ended_at - each.started_at)}"
        yield Event(
            each.ended_at,
            "not started" if each.outcome == PARENT else f"attempt {each.attempt}: {each.outcome}{ran}",
            each.worker_id,
            error,
            each.traceback,
            each.log,
        )
    if job.started_at is not None and not (job.errors and job.errors[-1].attempt == job.attempt):
        yield Event(job.started_at, f"attempt {job.attempt} started", job.worker_id)
    if job.finished_at is not None:
        yield Event(job.finished_at, job.status.value)


def _ahead(job: Job) -> Iterator[Event]:
    if job.status is JobStatus.PENDING:
        yield Event(job.execution_time, f"attempt {job.attempt + 1} due", is_ahead=True)
        if job.expires_at is not None:
            yield Event(job.expires_at, "expires unless it has started", is_ahead=True)
    left = job.max_retries - job.retry_count
    if left > 0:
        yield Event(None, f"{left} retries are left", is_ahead=True)


def last_attempt(job: Job) -> int:
    """Return the number of the last attempt that the job can have without an intervention.

    Attempts that were released, snoozed, or made before a call of `retry_job()` use no retry.
    """
    left = max(job.max_retries - job.retry_count, 0)
    return left + (job.attempt + 1 if job.started_at is None else max(job.attempt, 1))
