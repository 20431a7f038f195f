"""Delete finished jobs and count the deletions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime

from pg_scheduler.sqltext import qualify
from pg_scheduler.status import JobStatus
from pg_scheduler.store.statements import Repository


@dataclass(frozen=True, slots=True)
class VacuumDay:
    """A row of ``vacuum_stats``."""

    stat_date: date
    deleted_completed: int
    deleted_failed: int
    deleted_cancelled: int
    deleted_expired: int
    last_run: datetime | None
    worker_id: str | None


@dataclass(frozen=True, slots=True)
class VacuumTotal:
    """The sum of all rows of ``vacuum_stats``."""

    total_completed: int
    total_failed: int
    total_cancelled: int
    total_expired: int
    last_vacuum_run: datetime | None


class RetentionRepository(Repository):
    """The statements that delete finished jobs and count them."""

    async def table_blocks(self) -> int:
        """Return the size of the jobs table in blocks."""
        table = qualify("{schema}scheduled_jobs", await self._statements.schema())
        return await self._statements.number("table_blocks", table)

    async def vacuum_blocks(
        self, first: int, end: int, cutoffs: Mapping[JobStatus, datetime]
    ) -> dict[JobStatus, int]:
        """Delete within these blocks the jobs that finished before the cutoff of their status; count them."""
        rows = await self._statements.fetch("vacuum_blocks", (first, 0), (end, 0), _json(cutoffs))
        return {JobStatus(row[0]): row[1] for row in rows}

    async def count_in_blocks(
        self, first: int, end: int, cutoffs: Mapping[JobStatus, datetime]
    ) -> dict[JobStatus, int]:
        """Count what ``vacuum_blocks()`` would delete."""
        rows = await self._statements.fetch("count_in_blocks", (first, 0), (end, 0), _json(cutoffs))
        return {JobStatus(row[0]): row[1] for row in rows}

    async def vacuum_surplus(self, status: JobStatus, keep: int, limit: int) -> int:
        """Delete jobs of a status beyond the newest ``keep`` of each name, and count them."""
        return await self._statements.number("vacuum_surplus", status.value, keep, limit)

    async def record_vacuum(self, deleted: Mapping[JobStatus, int], worker_id: str) -> None:
        """Add deletions to the counts of the current day."""
        order = (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.EXPIRED)
        counts = (deleted.get(status, 0) for status in order)
        await self._statements.fetch("record_vacuum", *counts, worker_id, self._statements.now)

    async def vacuum_stats(self, days: int) -> list[VacuumDay]:
        """Return the deletions of each of the last days, newest first."""
        rows = await self._statements.fetch("vacuum_stats", days, self._statements.now)
        return [VacuumDay(**dict(row)) for row in rows]

    async def total_vacuum_stats(self) -> VacuumTotal:
        """Return the deletions of all days by status."""
        (row,) = await self._statements.fetch("total_vacuum_stats")
        return VacuumTotal(**dict(row))


def _json(cutoffs: Mapping[JobStatus, datetime]) -> str:
    return json.dumps({status.value: instant.isoformat() for status, instant in cutoffs.items()})
