"""What the services for jobs that wait for a limit, or for the turn of their tenants, have in common."""

from __future__ import annotations

from datetime import datetime

from pg_scheduler.store.limits import LatePosition
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.service import Service


class BlockedJobs(Service):
    """A service that scans the index of blocked jobs."""

    scan_interval_s = 2.0
    """Seconds between two scans, while tasks with limits or shares are registered."""
    batch_size = 500
    """Limits or tenants, and jobs of one of them, of one statement."""
    late_batch_size = 5000
    """Blocked jobs whose misfire grace time one scan reads."""
    cleanup_interval_s = 600.0
    """Seconds between two deletions of starts that nothing counts any more."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.events)
        self._limits = node.store.limits
        self._tasks = node.tasks
        self._signals = node.signals
        self._late: LatePosition | None = None

    async def _unblock_forgotten(self, keys: list[str]) -> None:
        """Unblock jobs whose code does not have these limits or shares any more."""
        size = self.batch_size
        unblocked = await self._limits.unblock_forgotten(keys, self._tasks.names(), size)
        self._report(unblocked, 0)

    async def _unblock_late(self, keys: list[str]) -> None:
        """Unblock jobs past their misfire grace time, so that they expire as others do."""
        since = self._late if self._late is not None and self._late.key in keys else None
        keys = keys[keys.index(since.key) :] if since is not None else keys
        late, self._late = await self._limits.unblock_late(keys, since, self.late_batch_size)
        self._report(late, late)

    def _report(self, unblocked: int, late: int, due: datetime | None = None) -> None:
        if late:
            self._signals.grace_expired()
        if unblocked:
            self._signals.jobs_released(due)
