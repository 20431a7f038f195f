"""Apply the consequences of ended jobs that a crash left behind, and correct what jobs wait for.

The deadline scanner calls it when its scan finds such jobs; a worker without them makes no statement for it.
"""

from __future__ import annotations

from pg_scheduler.store.dependencies import ScanPosition
from pg_scheduler.worker.node import Node


class LooseEnds:
    """What remains of ended jobs after a crash or a change by hand."""

    max_ended = 500
    """Ended jobs whose consequences one call applies."""
    max_blocks = 100
    """Blocks of edges that one call reads."""
    max_jobs = 1000
    """Waiting jobs that one call reads."""

    def __init__(self, node: Node) -> None:
        self._consequences = node.store.consequences
        self._dependencies = node.store.dependencies
        self._worker_id = node.worker_id
        self._in_flight = node.in_flight
        self._position = ScanPosition()

    async def apply_consequences(self) -> bool:
        """Apply consequences that are left; return whether there may be more."""
        limit = self.max_ended
        gone = await self._consequences.report_gone(self._worker_id, self._in_flight.unreported(), limit)
        return limit in {gone, await self._consequences.apply_lost(limit)}

    async def repair_waiting(self) -> None:
        """Read a part of the jobs that wait for others, and correct what does not agree with other rows."""
        self._position = await self._dependencies.repair(
            self._position, blocks=self.max_blocks, jobs=self.max_jobs
        )
