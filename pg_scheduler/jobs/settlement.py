"""Derive from the outcome of an attempt what is written to its row, and the event that follows.

``row_change()`` returns the values of the row, ``outcome_event()`` the event. The executor passes completions
on without these functions, and ``exchange_jobs`` writes them; ``row_change()`` is for those that it refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from pg_scheduler.events import (
    JobCancelled,
    JobCompleted,
    JobEvent,
    JobFailed,
    JobLost,
    JobReleased,
    JobRetried,
    JobSnoozed,
)
from pg_scheduler.jobs.history import history_entry
from pg_scheduler.jobs.model import JobStatus
from pg_scheduler.jobs.outcome import (
    CompleteOutcome,
    CrashOutcome,
    FailOutcome,
    Outcome,
    ReleaseOutcome,
    RetryOutcome,
    RevokedOutcome,
    SkipOutcome,
    SnoozeOutcome,
)
from pg_scheduler.jobs.result import KeptResult
from pg_scheduler.jobs.rows import Claim

QUARANTINED: Final = "quarantined: {} workers died while they ran this job. retry_job() runs it once more."


@dataclass(frozen=True, slots=True)
class RowChange:
    """Column values that settle an attempt.

    Attributes:
        attempt: The attempt, which is part of the fencing token.
        status: The new status.
        error: The new error message; None keeps the old one, unless the job completed.
        delay_s: Seconds until a pending job is due; 0 keeps its execution time.
        retries: Added to the row's retries.
        crashes: Added to the row's crashes.
        entry: Appended to the row's history, as JSON text; None for an attempt that simply completed.
        kept: The result to store; None for a job that does not keep it.
        is_revoked: Whether the job was ended before, so that only the end of the attempt is reported.
    """

    attempt: int
    status: JobStatus
    error: str | None = None
    delay_s: float = 0.0
    retries: int = 0
    crashes: int = 0
    entry: str | None = None
    kept: KeptResult | None = None
    is_revoked: bool = False


def row_change(attempt: int, outcome: Outcome) -> RowChange:  # noqa: PLR0911 - one for each outcome
    """Return the row change of an outcome."""
    match outcome:
        case CompleteOutcome(kept):
            return RowChange(attempt, JobStatus.COMPLETED, kept=kept)
        case FailOutcome(error, _, entry, kept):
            entry = entry or history_entry("error", message=error)
            return RowChange(attempt, JobStatus.FAILED, error, entry=entry, kept=kept)
        case RetryOutcome(delay, error, _, entry):
            entry = entry or history_entry("error", message=error)
            return RowChange(attempt, JobStatus.PENDING, error, delay.total_seconds(), retries=1, entry=entry)
        case SnoozeOutcome(delay):
            entry = history_entry("snoozed")
            return RowChange(attempt, JobStatus.PENDING, delay_s=delay.total_seconds(), entry=entry)
        case SkipOutcome(reason):
            entry = history_entry("skipped", message=reason)
            return RowChange(attempt, JobStatus.CANCELLED, reason, entry=entry)
        case ReleaseOutcome():
            return release_change(attempt)
        case RevokedOutcome():
            return RowChange(attempt, JobStatus.CANCELLED, is_revoked=True)
        case CrashOutcome(error, max_crashes, crashes, trace):
            change = reclaim_change(attempt, crashed=True, crashes=crashes, max_crashes=max_crashes)
            reason = change.error or error
            return replace(change, error=reason, entry=history_entry("crashed", message=reason, trace=trace))


def release_change(attempt: int, outcome: str = "released") -> RowChange:
    """Return the row change that makes a job pending again without counting the attempt."""
    return RowChange(attempt, JobStatus.PENDING, entry=history_entry(outcome))


def reclaim_change(attempt: int, *, crashed: bool, crashes: int, max_crashes: int | None) -> RowChange:
    """Return the row change of an orphaned job.

    Args:
        attempt: The attempt that no worker holds any more.
        crashed: Whether its worker died.
        crashes: The number of workers that died before while they ran the job.
        max_crashes: The number that quarantines the job; None for no limit.
    """
    if not crashed:
        return release_change(attempt, "lost")
    if max_crashes is None or crashes + 1 < max_crashes:
        return RowChange(attempt, JobStatus.PENDING, crashes=1, entry=history_entry("crashed"))
    reason = QUARANTINED.format(crashes + 1)
    entry = history_entry("crashed", message=reason)
    return RowChange(attempt, JobStatus.FAILED, reason, crashes=1, entry=entry)


def outcome_event(claim: Claim, outcome: Outcome, *, accepted: bool) -> JobEvent | None:
    """Return the event of an outcome; ``JobLost`` for one that the database refused.

    None for a job that was ended before: its event is published when its attempt has ended.
    """
    about = (claim.job_id, claim.job_name, claim.attempt)
    if isinstance(outcome, CrashOutcome):
        change = row_change(claim.attempt, outcome)
        error = change.error or outcome.error
        is_final = change.status is JobStatus.FAILED
        outcome = FailOutcome(error) if is_final else RetryOutcome(timedelta(0), error)
    event: JobEvent | None
    match outcome:
        case RevokedOutcome():
            event = None
        case _ if not accepted:
            event = JobLost(*about)
        case CompleteOutcome():
            event = JobCompleted(*about)
        case FailOutcome(error, exception):
            event = JobFailed(*about, error=error, exception=exception)
        case RetryOutcome(delay, error, exception):
            event = JobRetried(*about, error=error, delay=delay, exception=exception)
        case SnoozeOutcome(delay):
            event = JobSnoozed(*about, delay=delay)
        case SkipOutcome(reason):
            event = JobCancelled(*about, reason=reason)
        case ReleaseOutcome():
            event = JobReleased(*about)
    return event
