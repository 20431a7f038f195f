"""Delete finished jobs and report the deletions."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pg_scheduler.api.base import SchedulerMethods
from pg_scheduler.jobs.validation import check_count
from pg_scheduler.worker.maintenance.vacuum import Vacuum


class RetentionMethods(SchedulerMethods):
    """The methods of `Scheduler` that delete finished jobs."""

    async def run_vacuum(self) -> dict[str, int]:
        """Apply the vacuum policies now and return the number of deleted jobs by status."""
        vacuum = Vacuum(
            self._parts.store, self._parts.events, self._parts.config.vacuum, self._parts.life.worker_id
        )
        return {status.value: count for status, count in (await vacuum.run()).items()}

    async def get_vacuum_stats(self, days: int = 7) -> list[dict[str, Any]]:
        """Return the deletions of each of the last days, newest first; empty without ``track_metrics``.

        Keys: ``stat_date, deleted_completed, deleted_failed, deleted_cancelled, last_run, worker_id``.
        """
        check_count("days", days, least=1)
        if not self._parts.config.vacuum.track_metrics:
            return []
        return [asdict(day) for day in await self._parts.store.retention.vacuum_stats(days)]

    async def get_total_vacuum_stats(self) -> dict[str, Any]:
        """Return the deletions since the first vacuum; empty without ``track_metrics``.

        Keys: ``total_completed, total_failed, total_cancelled, last_vacuum_run``.
        """
        if not self._parts.config.vacuum.track_metrics:
            return {}
        return asdict(await self._parts.store.retention.total_vacuum_stats())
