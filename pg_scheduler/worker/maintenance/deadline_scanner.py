"""Scan for the next lease or misfire grace time to expire, and signal when it does.

One read-only statement scans for both. So an idle worker makes few statements, and the rescuer and the
expirer act when the time comes. The scan is repeated for rows that were written after it.
"""

from __future__ import annotations

import random
from typing import ClassVar

from pg_scheduler.worker.maintenance.loose_ends import LooseEnds
from pg_scheduler.worker.maintenance.name_reporter import NameReporter
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.service import Service


class DeadlineScanner(Service):
    """Signal expired leases and misfire grace times."""

    name: ClassVar[str] = "deadline_scanner"
    interval_s = 30.0
    """Seconds between two scans; half a lease if that is less, so that leases renewed in time are not met."""
    retry_interval_s = 5.0
    """Seconds until the next scan after a deadline has passed: another session may have locked the row."""
    horizon_jitter = 0.2
    """The random share of the interval."""
    spread_s = 0.5
    """Seconds over which the nodes spread that wait for the same deadline."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.events)
        self._workers = node.store.workers
        self._interval = min(self.interval_s, node.config.lease_seconds / 2)
        self._heartbeat_threshold = node.config.heartbeat_threshold
        self._signals = node.signals
        self._names = NameReporter(node) if node.config.runs_jobs else None
        self._loose_ends = LooseEnds(node)

    async def run_once(self) -> float:
        """Scan once, signal leases and jobs that have expired, and report overdue jobs."""
        moved = random.uniform(-self.horizon_jitter, self.horizon_jitter)  # noqa: S311 - jitter, no secret
        horizon = self._interval * (1 + moved)
        ahead = await self._workers.scan_deadlines(horizon, self._heartbeat_threshold)
        if ahead.has_overdue and self._names is not None:
            await self._names.report()
        if ahead.has_blocked:
            self._signals.limits_blocked()
        waits = []
        if ahead.has_ended and await self._loose_ends.apply_consequences():
            waits.append(0.0)
        if ahead.has_waiting:
            await self._loose_ends.repair_waiting()
        deadlines = (
            (ahead.lapse_in, self._signals.lease_expired),
            (ahead.expiry_in, self._signals.grace_expired),
        )
        for ends_in, expired in deadlines:
            if ends_in is not None and ends_in <= 0:
                expired()
                waits.append(self.retry_interval_s)
            elif ends_in is not None:
                waits.append(ends_in + random.uniform(0, self.spread_s))  # noqa: S311 - the same
        return min(horizon, *waits) if waits else horizon
