"""Each outcome has one row change and one event."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from pg_scheduler.base.status import JobStatus
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
from pg_scheduler.jobs.history import errors_from
from pg_scheduler.jobs.outcome import REVOKED, RowChange, reclaim_change
from tests.support.inside import COMPLETE, RELEASE, Claim, Outcome, quarantine_error

CLAIM = Claim("id", "name", "name", 7, datetime(2030, 1, 1, tzinfo=UTC), "{}", 5, 0, 3, None, None)
ERROR = ValueError("no")
DELAY = timedelta(seconds=1.5)

OUTCOMES: list[tuple[Outcome, RowChange, JobEvent]] = [
    (COMPLETE, RowChange(JobStatus.COMPLETED), JobCompleted("id", "name", 7)),
    (
        Outcome.fail("no", ERROR),
        RowChange(JobStatus.FAILED, "no", entry='{"outcome":"error","message":"no"}'),
        JobFailed("id", "name", 7, error="no", exception=ERROR),
    ),
    (
        Outcome.fail("no", ERROR, '{"outcome":"timeout"}'),
        RowChange(JobStatus.FAILED, "no", entry='{"outcome":"timeout"}'),
        JobFailed("id", "name", 7, error="no", exception=ERROR),
    ),
    (
        Outcome.retry(DELAY, "no", ERROR, '{"outcome":"error"}'),
        RowChange(JobStatus.PENDING, "no", delay_s=1.5, retries=1, entry='{"outcome":"error"}'),
        JobRetried("id", "name", 7, error="no", delay=DELAY, exception=ERROR),
    ),
    (
        Outcome.snooze(DELAY),
        RowChange(JobStatus.PENDING, delay_s=1.5, entry='{"outcome":"snoozed"}'),
        JobSnoozed("id", "name", 7, delay=DELAY),
    ),
    (
        Outcome.skip("locked"),
        RowChange(JobStatus.CANCELLED, "locked", entry='{"outcome":"skipped","message":"locked"}'),
        JobCancelled("id", "name", 7, reason="locked"),
    ),
    (
        RELEASE,
        RowChange(JobStatus.PENDING, entry='{"outcome":"released"}'),
        JobReleased("id", "name", 7),
    ),
]


@pytest.mark.parametrize(("outcome", "change", "event"), OUTCOMES, ids=lambda each: type(each).__name__)
def test_every_outcome_has_the_expected_row_change_and_event(
    outcome: Outcome, change: RowChange, event: JobEvent
) -> None:
    assert outcome.change == change
    assert outcome.event_of(CLAIM) == event
    assert outcome.event_of(CLAIM, accepted=False) == JobLost("id", "name", 7)


def test_attempt_of_a_job_that_was_ended_before_has_no_event() -> None:
    assert REVOKED.change == RowChange(JobStatus.CANCELLED, is_revoked=True)
    assert REVOKED.event_of(CLAIM, accepted=False) is None


def test_crash_fails_the_job_when_too_many_workers_died() -> None:
    crash = Outcome.crash("SIGKILL", 2)
    assert crash.event_of(CLAIM) == JobRetried("id", "name", 7, error="SIGKILL", delay=timedelta(0))
    assert crash.after_crashes is not None
    last = crash.after_crashes(1)
    assert (last.change.status, last.change.crashes) == (JobStatus.FAILED, 1)
    assert last.event_of(CLAIM) == JobFailed("id", "name", 7, error=quarantine_error(2))


def errors_of(change: RowChange) -> list[str]:
    """Return the outcome of the entry, with the attempt that the statement adds."""
    entry = {"attempt": 7, **json.loads(change.entry or "{}")}
    return [error.outcome for error in errors_from(json.dumps([entry]))]


@pytest.mark.parametrize(
    ("crashed", "crashes", "max_crashes", "status", "added"),
    [
        (False, 9, 3, JobStatus.PENDING, 0),
        (True, 0, 3, JobStatus.PENDING, 1),
        (True, 1, 3, JobStatus.PENDING, 1),
        (True, 2, 3, JobStatus.FAILED, 1),
        (True, 9, None, JobStatus.PENDING, 1),
        (True, 0, 1, JobStatus.FAILED, 1),
    ],
)
def test_reclaim_change_quarantines_a_job_when_too_many_workers_died(
    crashed: bool, crashes: int, max_crashes: int | None, status: JobStatus, added: int
) -> None:
    change = reclaim_change(crashed=crashed, crashes=crashes, max_crashes=max_crashes)
    assert (change.status, change.crashes, change.retries) == (status, added, 0)
    assert (change.error is None) is (status is JobStatus.PENDING)
    assert errors_of(change) == ["crashed" if crashed else "lost"]
    if change.error:
        died = "3 workers died while they ran" if crashes else "1 worker died while it ran"
        assert change.error.startswith(f"quarantined: {died} this job; max_crashes= permits")
