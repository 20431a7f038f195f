"""Enqueue the ``on_failure`` task of a job in the transaction that writes its final failure, or its expiry.

The transaction that clears ``on_end`` inserts the alert, so each failure has exactly one alert. Its id is
derived from the id of the failed job. If another job has that id, such as the alert of an earlier definition
of the job, a random part is added, so that no alert is lost. An event about the failure may be lost, but the
alert may not, because it is a job.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pg_scheduler.base.status import JobStatus
from pg_scheduler.database.statements import Transaction
from pg_scheduler.jobs.rows import AnyJob
from pg_scheduler.queue.consequences import EndedJob
from pg_scheduler.queue.followers import Followers, following_id, task_of
from pg_scheduler.queue.prepare import JobPreparer
from pg_scheduler.queue.store import QueueStore

SUFFIX: Final = ":failed"

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
        self._followers = Followers(store)

    async def enqueue(self, ended: Sequence[EndedJob], transaction: Transaction) -> Sequence[str]:
        """Enqueue the alerts of those jobs that failed or expired.

        This is a handler of consequences, which has to return the ids of the jobs that it ends. It ends none,
        so it returns an empty sequence.
        """
        failed_jobs = [job for job in ended if job.status in FAILURES and task_of(job, "on_failure")]
        if failed_jobs:
            now = await self._store.statements.read_clock(on=transaction.connection)
            alerts: list[AnyJob] = []
            for job in failed_jobs:
                arguments = alert_arguments(job.job_id, job.job_name, job.error, job.failed_attempts)
                alert = self._preparer.prepare_follower(
                    task_of(job, "on_failure"),
                    now,
                    arguments,
                    job_id=alert_id(job.job_id),
                    failed_tasks=_failed_tasks(job),
                )
                alerts.append(alert)
            await self._followers.insert(alerts, now, transaction)
        return ()


def alert_id(job_id: str) -> str:
    """Return the id of the alert of a failed job. A hash replaces the end of a job id that is too long."""
    return following_id(job_id, SUFFIX)


def _failed_tasks(job: EndedJob) -> list[str]:
    """Return the tasks of the alerts that have failed before this job, which is an alert itself.

    The list is empty for any other job. What is no name was written by hand, and is left out.
    """
    names = job.on_end.get("failed_tasks")
    if not isinstance(names, list):
        return []
    return [name for name in names if isinstance(name, str)]
