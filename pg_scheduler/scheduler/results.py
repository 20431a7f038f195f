"""Results of jobs, for callers that wait for a result or read a kept one."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Final, Self

from pg_scheduler.database.session import Connection
from pg_scheduler.errors import JobNotFoundError, JobResult
from pg_scheduler.events import Event, JobFailed
from pg_scheduler.queue.result_waiters import NOT_ENDED
from pg_scheduler.scheduler.parts import Parts

RUN_JOB_KEEPS: Final = timedelta(minutes=15)
"""How long ``run_job()`` keeps the result of its job."""


async def read_result(
    parts: Parts, job_id: str, connection: Connection | None, *, wait: bool, timeout_s: float | None
) -> JobResult | None:
    """Return the result of a job, with or without waiting for its end.

    It is None if the job has not ended and ``wait`` is False. With ``connection``, which requires that, the
    result is read in the caller's transaction.

    Raises:
        JobNotFoundError: There is no such job.
        TimeoutError: ``wait`` is True, and the job did not end in time.
    """
    # A wait of 0 seconds is a single query.
    if wait and timeout_s != 0:
        return await parts.waiters.wait(job_id, timeout_s)
    results = await parts.store.kept_results.get([job_id], connection)
    if job_id not in results:
        raise JobNotFoundError(job_id)
    if wait and results[job_id] is None:
        raise TimeoutError(NOT_ENDED.format(job_id, timeout_s))
    return results[job_id]


class FailureRecord:
    """Records the exceptions of a job's failed attempts in this process, while a caller waits for its end.

    The job may fail before the caller knows its id. So the exceptions of all jobs are recorded until
    ``job_id`` is set.
    """

    def __init__(self, parts: Parts) -> None:
        self.job_id: str | None = None
        """The job whose exceptions are recorded; None until its id is known."""
        self._exceptions: dict[tuple[str, int], BaseException | None] = {}
        """The exceptions by the id of a job and the number of its attempt."""
        self._unsubscribe = parts.waiters.failures.subscribe(self._add, JobFailed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._unsubscribe()

    def complete(self, result: JobResult) -> JobResult:
        """Return the result of the job with the recorded exception of its last attempt, if there is one."""
        key = (result.job_id, result.attempts)
        return replace(result, exception=self._exceptions.get(key))

    def _add(self, event: Event) -> None:
        """Record the exception of a failed attempt, if it may be one of the job."""
        if isinstance(event, JobFailed) and self.job_id in (None, event.job_id):
            self._exceptions[event.job_id, event.attempt] = event.exception
