"""Apply the consequences of ended jobs that a crash left behind, and correct what jobs wait for.

The deadline scanner calls it when its scan finds such jobs; a worker without them makes no statement for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pg_scheduler.store.consequences import Consequences
from pg_scheduler.store.dependencies import DependencyRepository, ScanPosition


class LooseEnds:
    """What remains of ended jobs after a crash or a change by hand."""

    max_ended = 500
    """Ended jobs whose consequences one call applies."""
    max_blocks = 100
    """Blocks of edges that one call reads."""
    max_jobs = 1000
    """Waiting jobs that one call reads."""

    def __init__(
        self,
        consequences: Consequences,
        dependencies: DependencyRepository,
        worker_id: str,
        known: Callable[[], Mapping[str, int]],
    ) -> None:
        self._consequences = consequences
        self._dependencies = dependencies
        self._worker_id = worker_id
        self._known = known
        self._position = ScanPosition()

    async def apply_consequences(self) -> bool:
        """Apply consequences that are left; return whether there may be more."""
        limit = self.max_ended
        gone = await self._consequences.report_gone(self._worker_id, self._known(), limit)
        return limit in {gone, await self._consequences.apply_lost(limit)}

    async def repair_waiting(self) -> None:
        """Read a part of the jobs that wait for others, and correct what does not agree with other rows."""
        self._position = await self._dependencies.repair(
            self._position, blocks=self.max_blocks, jobs=self.max_jobs
        )
