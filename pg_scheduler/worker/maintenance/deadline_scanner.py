"""Looks when a lease will be over, or a waiting job too late, and wakes the part that sees to it then.

One look serves both, and only reads. So an idle worker asks little, and what does end is seen to when it
ends, not at some next round. Rounds are left for what came up after the look.
"""

from __future__ import annotations

import random
from typing import ClassVar, Final

from pg_scheduler.events import EventBus
from pg_scheduler.store.workers import WorkerRepository
from pg_scheduler.worker.service import Service
from pg_scheduler.worker.signals import Signals

__all__ = ["DeadlineScanner"]

INTERVAL: Final = 30.0
"""Seconds between two looks at most, give or take the jitter; half a lease if that is less, so that workers
who renew theirs in time are never waited for."""

AGAIN: Final = 5.0
"""Seconds until the next look when something is over: somebody may have it locked."""

JITTER: Final = 0.2
SPREAD: Final = 0.5
"""Seconds within which the nodes come, when all of them wait for the same instant."""


class DeadlineScanner(Service):
    """Look ahead.

    Args:
        lease: Seconds.
        heartbeat_threshold: Seconds after the last heartbeat that count as a lease for rows without one.
    """

    name: ClassVar[str] = "deadline_scanner"

    def __init__(
        self,
        workers: WorkerRepository,
        events: EventBus,
        signals: Signals,
        *,
        lease: float,
        heartbeat_threshold: float,
    ) -> None:
        super().__init__(events)
        self._workers = workers
        self._interval = min(INTERVAL, lease / 2)
        self._heartbeat_threshold = heartbeat_threshold
        self._signals = signals

    async def run_once(self) -> float:
        """One look."""
        horizon = self._interval * (1 + random.uniform(-JITTER, JITTER))  # noqa: S311 - jitter, no secret
        ahead = await self._workers.scan_deadlines(horizon, self._heartbeat_threshold)
        waits = []
        deadlines = (
            (ahead.lapse_in, self._signals.lease_expired),
            (ahead.expiry_in, self._signals.grace_expired),
        )
        for ends_in, expired in deadlines:
            if ends_in is not None and ends_in <= 0:
                expired()
                waits.append(AGAIN)
            elif ends_in is not None:
                waits.append(ends_in + random.uniform(0, SPREAD))  # noqa: S311 - the same
        return min(horizon, *waits) if waits else horizon
