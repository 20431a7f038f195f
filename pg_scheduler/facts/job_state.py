"""The state of a job: its status, and of a pending job what it waits for.

A pending job is ``blocked`` while it waits for other jobs, a limit or the turn of its tenant. Otherwise it is
``due`` once its due time has passed, also while its task is paused. Before that it is ``awaiting`` while a
step waits for a signal, ``sleeping`` while a step sleeps, ``retrying`` if an attempt of it or of a step has
failed, and else ``scheduled``. A failed job is ``quarantined`` if it failed because its workers died.

``job_state.sql`` has the same for statements.
"""

from __future__ import annotations

from datetime import datetime
from types import MappingProxyType
from typing import Final

from pg_scheduler.base.status import JobStatus
from pg_scheduler.jobs.model import Job
from pg_scheduler.jobs.step_values import RETRY, SIGNAL, SLEEP

QUARANTINED: Final = "quarantined:"
"""How the error of a quarantined job begins."""

SUSPENDED_STATES: Final = MappingProxyType({SIGNAL: "awaiting", SLEEP: "sleeping", RETRY: "retrying"})
"""The states of suspended jobs, by what they wait for."""


def state_of(job: Job, now: datetime) -> str:
    """Return the state of a job at the time ``now``."""
    if job.status is not JobStatus.PENDING:
        return ended_state(job.status, job.error_message)
    if job.blocked_on is not None:
        return "blocked"
    if job.execution_time <= now:
        return "due"
    # The job is due later. Either a step of it waits, or its next attempt was planned for then.
    unsuspended_state = "retrying" if job.retry_count else "scheduled"
    return SUSPENDED_STATES.get(job.suspended_by or "", unsuspended_state)


def ended_state(status: JobStatus, error: str | None) -> str:
    """Return the state of a job that is not pending."""
    if status is JobStatus.FAILED and error is not None and error.startswith(QUARANTINED):
        return "quarantined"
    return status.value
