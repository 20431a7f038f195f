"""Enqueue the ``on_failure`` task of a job in the transaction that writes its final failure, or its expiry.

The id is derived from that of the failed job, so a job has one alert, even if it is run again and fails
again. An event about the failure may be lost; this job is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Final

from pg_scheduler.enqueue.prepare import JobPreparer
from pg_scheduler.enqueue.writer import JobWriter
from pg_scheduler.jobs.validation import MAX_ID_BYTES
from pg_scheduler.status import JobStatus
from pg_scheduler.store.consequences import EndedJob
from pg_scheduler.store.locks import due_message
from pg_scheduler.store.statements import Transaction
from pg_scheduler.store.store import Store

SUFFIX: Final = ":failed"
HASH_CHARACTERS: Final = 32


FAILURES: Final = frozenset({JobStatus.FAILED, JobStatus.EXPIRED})
"""The ends of a job that no caller asked for."""


class FailureAlerts:
    """Enqueues the jobs that follow the failure of other jobs."""

    def __init__(self, store: Store, preparer: JobPreparer, writer: JobWriter) -> None:
        self._store = store
        self._preparer = preparer
        self._writer = writer

    def connect(self) -> None:
        """Be called when a job with ``on_failure`` has ended."""
        self._store.consequences.handlers["on_failure"] = self.enqueue

    async def enqueue(self, ended: Sequence[EndedJob], transaction: Transaction) -> Sequence[str]:
        """Enqueue the alerts of those jobs that failed or expired."""
        failed = [job for job in ended if job.status in FAILURES and _task_of(job)]
        if failed:
            now = await self._store.jobs.clock(connection=transaction.connection)
            alerts = [
                self._preparer.prepare_alert(
                    _task_of(job),
                    now,
                    {
                        "job_id": job.job_id,
                        "job_name": job.job_name,
                        "error": job.error,
                        "attempts": job.attempt,
                    },
                    job_id=alert_id(job.job_id),
                    failed_tasks=_failed_tasks(job),
                )
                for job in failed
            ]
            alerts.sort(key=lambda alert: alert.job_id)
            await self._writer.insert(alerts, transaction.connection, message=due_message("", now))
        return ()


def alert_id(job_id: str) -> str:
    """Return the id of the alert of a failed job. A hash replaces the end of a job id that is too long."""
    if len(job_id.encode()) + len(SUFFIX) > MAX_ID_BYTES:
        start = job_id.encode()[: MAX_ID_BYTES - len(SUFFIX) - HASH_CHARACTERS].decode(errors="ignore")
        job_id = start + sha256(job_id.encode()).hexdigest()[:HASH_CHARACTERS]
    return job_id + SUFFIX


def _task_of(job: EndedJob) -> str:
    """Return the name of the task to enqueue; an empty one for a value that was written by hand."""
    name = job.on_end["on_failure"]
    return name if isinstance(name, str) and len(name.encode()) <= MAX_ID_BYTES else ""


def _failed_tasks(job: EndedJob) -> list[str]:
    names = job.on_end.get("failed_tasks")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
