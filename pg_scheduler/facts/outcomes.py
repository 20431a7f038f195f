"""What counts as failed, and the failure rate.

An attempt failed if it ended with an error, whether its job is retried or not, or if it was lost with its
worker. The failure rate divides these by the attempts that completed, were suspended or failed. A durable job
has many attempts, of which all but the last end in a sleep or a wait as planned. So an attempt that was
suspended did not fail. One that was released, snoozed, skipped or cancelled does not show whether its
function works, so it counts neither way. A job that expired was not started in time: it is a failed job
without a failed attempt.

``outcomes.sql`` has the same definitions for statements.
"""

from __future__ import annotations

from typing import Final

from pg_scheduler.base.figures import OUTCOMES, JobFigures, JobOutcome
from pg_scheduler.base.status import JobStatus
from pg_scheduler.queue.failure_alerts import FAILURES

FAILED_ATTEMPTS: Final[tuple[JobOutcome, ...]] = ("failed", "retried", "lost")
"""The outcomes of attempts that failed."""

DECIDED_ATTEMPTS: Final[tuple[JobOutcome, ...]] = ("completed", "suspended", *FAILED_ATTEMPTS)
"""The outcomes of attempts that completed, were suspended or failed."""

FAILED_ENTRIES: Final = frozenset({"error", "timeout", "crashed", "lost", "refused"})
"""The outcomes of attempts that failed, as the history of a job has them."""

FAILED_JOBS: Final = FAILURES
"""The statuses of jobs that failed: those after which the queue enqueues ``on_failure``."""

UNSUCCESSFUL_JOBS: Final = FAILED_JOBS | {JobStatus.CANCELLED}
"""The statuses of jobs that ended and did not complete, also because they were cancelled."""


def count_completed(figures: JobFigures) -> int:
    """Return how many attempts completed their jobs."""
    return figures.ended[OUTCOMES.index("completed")]


def count_failed(figures: JobFigures) -> int:
    """Return how many attempts failed."""
    return sum(figures.ended[OUTCOMES.index(outcome)] for outcome in FAILED_ATTEMPTS)


def count_decided(figures: JobFigures) -> int:
    """Return how many attempts completed, were suspended or failed."""
    return sum(figures.ended[OUTCOMES.index(outcome)] for outcome in DECIDED_ATTEMPTS)


def failure_rate(figures: JobFigures) -> float | None:
    """Return the share of failed attempts among those that completed, were suspended or failed.

    Without any such attempt, return None.
    """
    decided_count = count_decided(figures)
    if not decided_count:
        return None
    return count_failed(figures) / decided_count
