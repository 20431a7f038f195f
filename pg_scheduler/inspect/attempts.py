"""Number the attempts of a job, which continue when the job is retried by hand or released."""

from __future__ import annotations

from pg_scheduler.jobs.model import Job


def last_attempt(job: Job) -> int:
    """Return the number of the last attempt that the job can have without an intervention.

    Attempts that were released, snoozed, or made before a call of `retry_job()` use no retry.
    """
    left = max(job.max_retries - job.retry_count, 0)
    return left + (job.attempt + 1 if job.started_at is None else max(job.attempt, 1))
