"""Enqueue the ``on_failure`` task of a job in the transaction that writes its final failure, or its expiry.

The transaction that clears ``on_end`` inserts the alert, so each failure has exactly one alert. Its id is
derived from the id of the failed job. If another job has that id, such as the alert of an earlier definition
of the job, a random part is added, so that no alert is lost. An event about the failure may be lost, but the
alert may not, because it is a job.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from hashlib import sha256
from typing import Any, Final

from pg_scheduler.base.messages import due_message
from pg_scheduler.base.status import JobStatus
from pg_scheduler.database.statements import Transaction
from pg_scheduler.jobs.rows import AnyJob, ExtendedJob
from pg_scheduler.jobs.validation import MAX_ID_BYTES
from pg_scheduler.queue.consequences import EndedJob
from pg_scheduler.queue.prepare import JobPreparer
from pg_scheduler.queue.store import QueueStore
from pg_scheduler.queue.writer import JobWriter

SUFFIX: Final = ":failed"
HASH_CHARACTERS: Final = 32
RANDOM_BYTES: Final = 8
"""The length of the random part of an id, which makes it unique."""

FAILURES: Final = frozenset({JobStatus.FAILED, JobStatus.EXPIRED})
"""The statuses of ended jobs that get an alert: no caller asked for such an end."""


def alert_arguments(job_id: str, job_name: str, error: str | None, attempts: int) -> dict[str, Any]:
    """Return the arguments with which the task of ``on_failure=`` is called for a failed job."""
    return {"job_id": job_id, "job_name": job_name, "error": error, "attempts": attempts}


class FailureAlerts:
    """Enqueues the jobs that follow the failure of other jobs."""

    def __init__(self, store: QueueStore, preparer: JobPreparer) -> None:
        self._store = store
        self._preparer = preparer
        self._writer = JobWriter(store)

    async def enqueue(self, ended: Sequence[EndedJob], transaction: Transaction) -> Sequence[str]:
        """Enqueue the alerts of those jobs that failed or expired.

        This is a handler of consequences, which has to return the ids of the jobs that it ends. It ends none,
        so it returns an empty sequence.
        """
        failed_jobs = [job for job in ended if job.status in FAILURES and _task_of(job)]
        if failed_jobs:
            now = await self._store.statements.read_clock(on=transaction.connection)
            alerts: list[AnyJob] = []
            for job in failed_jobs:
                arguments = alert_arguments(job.job_id, job.job_name, job.error, job.failed_attempts)
                alert = self._preparer.prepare_alert(
                    _task_of(job),
                    now,
                    arguments,
                    job_id=alert_id(job.job_id),
                    failed_tasks=_failed_tasks(job),
                )
                alerts.append(alert)
            await self._insert(alerts, now, transaction)
        return ()

    async def _insert(self, alerts: Sequence[AnyJob], now: datetime, transaction: Transaction) -> None:
        """Insert alerts. If the id of an alert is taken, insert the alert under another id.

        An alert with the id of a time span is not inserted again: the alert of that span exists. Neither is
        an alert whose unique key another job has.
        """
        message = due_message("", now)
        ordered = sorted(alerts, key=lambda alert: alert.job_id)
        # The due time is that of an earlier statement. If the server's clock is set back in between, the time
        # of creation shows that the jobs were due at once.
        insert = partial(self._writer.insert, within=transaction.connection, message=message, created_at=now)
        inserted = await insert(ordered)
        alerts_of_taken_ids = [
            alert for alert in ordered if alert.job_id not in inserted and not _is_of_a_span(alert)
        ]
        if alerts_of_taken_ids:
            renamed = [alert.with_id(distinct_alert_id(alert.job_id)) for alert in alerts_of_taken_ids]
            await insert(renamed)


def _is_of_a_span(alert: AnyJob) -> bool:
    """Return whether at most one alert is enqueued in a time span, so that the span decides its id."""
    return isinstance(alert, ExtendedJob) and alert.span is not None


def alert_id(job_id: str) -> str:
    """Return the id of the alert of a failed job. A hash replaces the end of a job id that is too long."""
    return _shortened(job_id, SUFFIX) + SUFFIX


def distinct_alert_id(taken_id: str) -> str:
    """Return an id that no other job has, for an alert whose id is taken."""
    suffix = f":{os.urandom(RANDOM_BYTES).hex()}"
    return _shortened(taken_id, suffix) + suffix


def _shortened(job_id: str, suffix: str) -> str:
    """Return a job id with room for a suffix. The end of an id that is too long becomes a hash."""
    if len(job_id.encode()) + len(suffix) <= MAX_ID_BYTES:
        return job_id
    # The cut may divide a character of several bytes, whose first bytes are ignored.
    room = MAX_ID_BYTES - len(suffix) - HASH_CHARACTERS
    start = job_id.encode()[:room].decode(errors="ignore")
    return start + sha256(job_id.encode()).hexdigest()[:HASH_CHARACTERS]


def _task_of(job: EndedJob) -> str:
    """Return the name of the task to enqueue; an empty one for a value that was written by hand."""
    name = job.on_end["on_failure"]
    return name if isinstance(name, str) and len(name.encode()) <= MAX_ID_BYTES else ""


def _failed_tasks(job: EndedJob) -> list[str]:
    """Return the tasks of the alerts that have failed before this job, which is an alert itself.

    The list is empty for any other job. What is no name was written by hand, and is left out.
    """
    names = job.on_end.get("failed_tasks")
    if not isinstance(names, list):
        return []
    return [name for name in names if isinstance(name, str)]
