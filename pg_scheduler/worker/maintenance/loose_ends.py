"""Apply the consequences of ended jobs that a crash left behind, and correct what jobs wait for.

The deadline scanner calls it when its scan finds such jobs; a worker without them makes no statement for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pg_scheduler.store.consequences import Consequences
from pg_scheduler.store.dependencies import DependencyRepository, ScanPosition


@dataclass(frozen=True, slots=True)
class LooseEndsOptions:
    """The bounds of one call."""

    max_ended: int = 500
    """Ended jobs whose consequences one call applies."""
    max_blocks: int = 100
    """Blocks of edges that one call reads."""
    max_jobs: int = 1000
    """Waiting jobs that one call reads."""


class LooseEnds:
    """What remains of ended jobs after a crash or a change by hand."""

    def __init__(
        self,
        consequences: Consequences,
        dependencies: DependencyRepository,
        worker_id: str,
        known: Callable[[], Mapping[str, int]],
        options: LooseEndsOptions = LooseEndsOptions(),
    ) -> None:
        self._consequences = consequences
        self._dependencies = dependencies
        self._worker_id = worker_id
        self._known = known
        self._options = options
        self._position = ScanPosition()

    async def apply_consequences(self) -> bool:
        """Apply consequences that are left; return whether there may be more."""
        limit = self._options.max_ended
        gone = await self._consequences.report_gone(self._worker_id, self._known(), limit)
        return limit in {gone, await self._consequences.apply_lost(limit)}

    async def repair_waiting(self) -> None:
        """Read a part of the jobs that wait for others, and correct what does not agree with other rows."""
        self._position = await self._dependencies.repair(
            self._position, blocks=self._options.max_blocks, jobs=self._options.max_jobs
        )
