"""Write what events report to the database, as counts.

Each batch of counts has a number, and the row of the worker has the number of the last batch that was added.
So a batch whose response was lost is written again, but counted once. A killed process loses what it counted
since the last batch.
"""

from __future__ import annotations

from typing import ClassVar

from pg_scheduler.base.meter import Meter
from pg_scheduler.database.author import report_refused
from pg_scheduler.database.faults import RECORD_REFUSALS
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.statistics.statements import StatisticsRepository
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.service import Service


class StatisticsWriter(Service):
    """Write what the Meter counted to the tables of statistics, if it counted anything."""

    name: ClassVar[str] = "statistics_writer"
    jitter: ClassVar[float] = 0.1
    interval_s = 10.0
    """Seconds from one batch to the next."""

    def __init__(self, node: Node, meter: Meter, statistics: StatisticsRepository) -> None:
        super().__init__(node.events)
        self._statistics = statistics
        self._meter = meter
        self._worker_id = node.worker_id
        self._is_refused = False

    async def run_once(self) -> float:
        """Write what was counted since the last pass; return the seconds until the next pass."""
        batch = self._meter.batch()
        if batch is None:
            return self.interval_s
        try:
            is_added = await self._statistics.add(self._worker_id, batch.number, batch.jobs)
        except RECORD_REFUSALS as refusal:
            # Statistics are for people, so a refused batch never stops a worker. The next pass repeats it.
            if not self._is_refused:
                report_refused("statistics of jobs", refusal)
            self._is_refused = True
            return self.interval_s
        self._is_refused = False
        # If the worker was declared dead, its row is missing and nothing is added. The meter keeps the batch,
        # and a pass writes it after the next heartbeat has written the row again.
        if is_added:
            self._meter.settle(batch)
        return self.interval_s

    async def drain(self) -> None:
        """Write the last counts, unless the database is unavailable.

        Statistics must neither delay a shutdown nor make it fail.
        """
        if self.outage is not None:
            return
        try:
            await self.run_once()
        except DatabaseUnavailableError:
            # The meter keeps the counts, and the next start of this Scheduler writes them.
            return
