"""Gives the jobs of workers back whose lease is over, when the lookout says that one is."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final

from pg_scheduler.events import EventBus, JobsRescued
from pg_scheduler.services.base import NEVER, Service
from pg_scheduler.store.store import Store

__all__ = ["Rescuer"]

SHORTLY: Final = 1.0
BATCH: Final = 1000


class Rescuer(Service):
    """Release the jobs of dead workers.

    Args:
        heartbeat_threshold: Seconds after the last heartbeat that count as a lease for rows without one.
        is_trusted: Tells whether this worker's own lease surely runs.
        on_rescued: Called when jobs became pending.
    """

    name: ClassVar[str] = "rescuer"

    def __init__(
        self,
        store: Store,
        events: EventBus,
        *,
        heartbeat_threshold: float,
        is_trusted: Callable[[], bool],
        on_rescued: Callable[[], None],
    ) -> None:
        super().__init__(events)
        self._store = store
        self._heartbeat_threshold = heartbeat_threshold
        self._is_trusted = is_trusted
        self._on_rescued = on_rescued

    async def run_once(self) -> float:
        """One rescue, unless our own lease is in doubt: its renewal, which is overdue, has to come first."""
        if not self._is_trusted():
            return SHORTLY
        rescue = await self._store.rescue(self._heartbeat_threshold, BATCH)
        if rescue.job_ids or rescue.dead_workers:
            self._events.publish(JobsRescued(tuple(rescue.job_ids), tuple(rescue.dead_workers)))
        if rescue.job_ids:
            self._on_rescued()
        return 0 if len(rescue.job_ids) == BATCH else NEVER
