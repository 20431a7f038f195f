"""Read the attempts that workers ran, a bounded number of rows at a time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from pg_scheduler.store.statements import Repository

MAX_DUE: Final = 5_000
"""Due and running jobs of each priority that are examined."""

MAX_UNSUCCESSFUL: Final = 5_000


class AttemptRow(NamedTuple):
    """The last attempt of a job, and the JSON of those before it that did not simply complete.

    Attributes:
        started_at: When it started; None if that is unknown.
        finished_at: When its job ended; None while it runs.
        history: The ``errors`` of its row by the same worker; None for none.
    """

    job_id: str
    job_name: str
    status: str
    worker_id: str | None
    attempt: int
    started_at: datetime | None
    finished_at: datetime | None
    history: str | None = None


class IdRange(NamedTuple):
    """Ids from ``low`` on and before ``high``, of which at most so many are examined, the greatest first."""

    low: str
    high: str
    most: int


class WorkerReadRepository(Repository):
    """The statements that read attempts by their workers."""

    async def running(self) -> list[AttemptRow]:
        """Return the running attempts of all workers."""
        return await self._rows(AttemptRow, "inspect_running_attempts", MAX_DUE, self._statements.now)

    async def unsuccessful(self, worker_id: str, since: datetime) -> list[AttemptRow]:
        """Return the last attempts by a worker of jobs that ended with an error since then."""
        return await self._rows(
            AttemptRow, "inspect_unsuccessful_attempts", worker_id, since, MAX_UNSUCCESSFUL
        )

    async def completed(self, worker_id: str, since: datetime, ranges: Sequence[IdRange]) -> list[AttemptRow]:
        """Return the last attempts by a worker of jobs of some ids that completed since then."""
        columns = [list(column) for column in zip(*ranges, strict=True)]
        return await self._rows(AttemptRow, "inspect_completed_attempts", worker_id, since, *columns)
