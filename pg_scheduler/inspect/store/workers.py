"""Read workers, what they report and the attempts that they ran, a bounded number of rows at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from pg_scheduler.database.statements import Repository
from pg_scheduler.jobs.payload import object_from
from pg_scheduler.jobs.worker_report import ReportedHealth, ReportedSettings, reported_names

MAX_WORKERS: Final = 500

MAX_DUE: Final = 5_000
"""Due and running jobs of each priority that are examined."""

MAX_UNSUCCESSFUL: Final = 5_000


@dataclass(frozen=True, slots=True)
class InspectedWorker:
    """A worker, what it claims and what it reports.

    Attributes:
        slots: The number of its slots.
        running_jobs: The number of jobs that ran at its last heartbeat.
        is_alive: Whether its lease is valid.
        claims_jobs: Whether its role runs jobs.
        is_draining: Whether it claims no more jobs, or has shut down.
        names: The names that it claims; None if it does not report them.
        aliases: The task of each other name that it claims.
        health: Its report about itself.
        reclaim_at: When its jobs are reclaimed at the latest; None if that is at the end of its lease.
    """

    worker_id: str
    hostname: str
    slots: int
    running_jobs: int
    is_alive: bool
    claims_jobs: bool
    is_draining: bool
    names: frozenset[str] | None
    aliases: Mapping[str, str]
    health: ReportedHealth
    lease_until: datetime
    reclaim_at: datetime | None

    @property
    def busy_slots(self) -> int:
        """How many slots were taken at its last heartbeat: those of its jobs, without replaced threads."""
        return max(self.running_jobs - self.health.replaced_threads, 0)


class SlotsRow(NamedTuple):
    """The slots of a worker that are in use now, which is later than its last heartbeat.

    Attributes:
        running: The number of attempts that run.
        waiting: How many of these attempts wait for children in memory.
        has_parent: Whether one of the waiting attempts waits for the job that is explained.
    """

    worker_id: str | None
    running: int
    waiting: int = 0
    has_parent: bool = False


class AttemptRow(NamedTuple):
    """The last attempt of a job, with the history of the job.

    Attributes:
        started_at: When the attempt started; None if that is unknown.
        finished_at: When the job ended; None while the attempt runs.
        history: The entries of ``errors`` by the same worker, as JSON; None if there are none.
        is_last: Whether the statement ended with this job, because it has examined its maximum of jobs. Such
            a job is returned in any case, so the attempt may be one of another worker.
    """

    job_id: str
    job_name: str
    status: str
    worker_id: str | None
    attempt: int
    started_at: datetime | None
    finished_at: datetime | None
    history: str | None = None
    is_last: bool = False


class IdRange(NamedTuple):
    """Ids from ``low`` on and before ``high``. At most ``most`` of them are examined, the greatest first."""

    low: str
    high: str
    most: int


class WorkerReadRepository(Repository):
    """The statements that read workers and attempts by their workers."""

    async def workers(self) -> list[InspectedWorker]:
        """Return the workers, live and dead ones; if there are more than 500, those that have run longest."""
        rows = await self._statements.fetch("inspect_workers", self._statements.now, MAX_WORKERS)
        return [_worker_from(row) for row in rows]

    async def running(self) -> list[AttemptRow]:
        """Return the running attempts of all workers."""
        return await self._rows(AttemptRow, "inspect_running_attempts", MAX_DUE, self._statements.now)

    async def slots(self, job_id: str) -> list[SlotsRow]:
        """Return how many slots of each worker are in use, and whether one has the parent of a job."""
        return await self._rows(SlotsRow, "inspect_slots", MAX_DUE, self._statements.now, job_id)

    async def unsuccessful(self, worker_id: str, since: datetime) -> list[AttemptRow]:
        """Return the last attempts, by a worker, of jobs that ended with an error since an instant.

        The last job of those that are examined is returned in any case.
        """
        return await self._rows(
            AttemptRow, "inspect_unsuccessful_attempts", worker_id, since, MAX_UNSUCCESSFUL
        )

    async def completed(self, worker_id: str, since: datetime, ranges: Sequence[IdRange]) -> list[AttemptRow]:
        """Return the last attempts, by a worker, of jobs that completed since an instant.

        Only jobs with ids in the ranges are examined. The last one of a range is returned in any case.
        """
        # The statement takes an array of each field of the ranges.
        lows = [id_range.low for id_range in ranges]
        highs = [id_range.high for id_range in ranges]
        maxima = [id_range.most for id_range in ranges]
        return await self._rows(
            AttemptRow, "inspect_completed_attempts", worker_id, since, lows, highs, maxima
        )


def _worker_from(row: Any) -> InspectedWorker:
    """Return the worker of a row. A worker of another release may have written its JSON in another form."""
    values = dict(row)
    names = reported_names(values.pop("names"))
    return InspectedWorker(
        names=None if names is None else frozenset(names),
        aliases=ReportedSettings({"aliases": object_from(values.pop("aliases"))}).aliases,
        health=ReportedHealth.of(object_from(values.pop("health"))),
        **values,
    )
