"""Write what the Meter counted to the tables of statistics, every 10 seconds if it counted anything.

Each batch has a number, which the row of the worker remembers: a batch whose response was lost is written
again and counted once. A killed process loses what it counted since the last batch.
"""

from __future__ import annotations

from typing import ClassVar

from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.measure.meter import Meter
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.service import Service


class StatisticsWriter(Service):
    """Write what the Meter counted."""

    name: ClassVar[str] = "statistics_writer"
    jitter: ClassVar[float] = 0.1
    interval_s = 10.0
    """Seconds from one batch to the next."""

    def __init__(self, node: Node, meter: Meter) -> None:
        super().__init__(node.events)
        self._statistics = node.store.statistics
        self._meter = meter
        self._worker_id = node.worker_id

    async def run_once(self) -> float:
        """Write what was counted since the last pass."""
        batch = self._meter.batch()
        # A worker that was declared dead has no row until its next heartbeat: the batch waits for it.
        if batch is not None and await self._statistics.add(self._worker_id, batch.number, batch.jobs):
            self._meter.settle(batch)
        return self.interval_s

    async def drain(self) -> None:
        """Write the rest, unless the database is unavailable: statistics do not fail or delay a shutdown."""
        if self.outage is not None:
            return
        try:
            await self.run_once()
        except DatabaseUnavailableError:
            return  # the next start of this Scheduler writes them
