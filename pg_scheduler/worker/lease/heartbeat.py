"""Keeps the worker's lease, and acts when it is lost.

Lease arithmetic as in Gray and Cheriton, "Leases" (SOSP 1989): the holder counts from the moment it
asked, by its own monotonic clock, and stops trusting a margin before the end; the granter counts by its
own. So the holder never believes longer than the granter.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import ClassVar, Final

from pg_scheduler.errors import DatabaseUnavailableError, PoolClosedError
from pg_scheduler.events import EventBus, LeaseLost
from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.jobs.model import JobStatus, Worker
from pg_scheduler.store.store import Store
from pg_scheduler.worker.in_flight import InFlight, Revocation
from pg_scheduler.worker.service import Service

__all__ = ["Heartbeat"]

BEATS_PER_LEASE: Final = 3
"""One beat may fail and one may be late before the lease is in danger."""

DEAF_INTERVAL: Final = 0.5
"""Seconds between beats of a worker that runs jobs and hears no notifications: a job cancelled elsewhere is
stopped within a second all the same."""

MARGIN: Final = 0.1
"""The part of the lease at its end in which the worker does not trust it any more."""


class Heartbeat(Service):
    """Renew the lease and learn which jobs were taken away.

    Args:
        lease: Seconds.
        hears: Tells whether notifications arrive.
        liveness_key: The key of the lock that the process holds, if it does.
    """

    name: ClassVar[str] = "heartbeat"

    def __init__(
        self,
        store: Store,
        events: EventBus,
        in_flight: InFlight,
        worker: Worker,
        *,
        lease: float,
        hears: Callable[[], bool],
        liveness_key: Callable[[], int | None],
    ) -> None:
        super().__init__(events)
        self._store = store
        self._in_flight = in_flight
        self._worker = worker
        self._lease = lease
        self._hears = hears
        self._liveness_key = liveness_key
        self.renewed_at = 0.0
        """When the last renewal was asked for, by the monotonic clock."""
        self._is_lost = False
        self._lapse: asyncio.TimerHandle | None = None

    @property
    def is_trusted(self) -> bool:
        """Whether the lease surely runs."""
        return time.monotonic() < self.trusted_until

    @property
    def trusted_until(self) -> float:
        """When the lease can no longer be trusted unless it is renewed, by the monotonic clock."""
        return self.renewed_at + self._lease * (1 - MARGIN)

    def renewed(self, asked: float) -> None:
        """The lease was renewed, as asked for then, in whichever thread."""
        self.renewed_at = max(asked, self.renewed_at)
        if self.is_trusted:
            self._is_lost = False

    def suspect(self) -> None:
        """What is due could not be had: the lease may be over by the server's clock, which can be set."""
        if time.monotonic() >= self.renewed_at + DEAF_INTERVAL:
            self.wake()

    async def prepare(self) -> None:
        """Register."""
        await self._register()

    async def run_once(self) -> float:
        """One beat."""
        held = self._in_flight.held()
        asked = time.monotonic()
        try:
            beat = await self._store.renew(
                self._worker.worker_id,
                held,
                self._lease,
                ended=self._in_flight.unwritten(),
                liveness_key=self._liveness_key(),
            )
        except DatabaseUnavailableError:
            if held and not self.is_trusted:
                self._give_up()
            raise
        if not beat.alive:
            self._give_up()
            await self._register()
            return self._lease / BEATS_PER_LEASE
        self._trust(asked)
        if lost := {job_id: held[job_id] for job_id in beat.lost if job_id in held}:
            await self._take_away(lost)
        beat_interval = self._lease / BEATS_PER_LEASE
        if beat.late:
            return min(beat_interval, DEAF_INTERVAL)
        return beat_interval if self._hears() or not held else min(beat_interval, DEAF_INTERVAL)

    async def drain(self) -> None:
        """Leave."""
        if self._lapse:
            self._lapse.cancel()
        try:
            await self._store.deregister(self._worker.worker_id)
        except PoolClosedError:
            raise
        except (
            DatabaseUnavailableError
        ) as fault:  # nothing is lost: nobody holds its lock, and its lease ends
            logger.warning(
                "row of worker %s not deleted: %s; another worker deletes it when the lease has expired",
                self._worker.worker_id,
                fault,
                extra=record_fields(worker_id=self._worker.worker_id),
            )

    async def _register(self) -> None:
        asked = time.monotonic()
        await self._store.register(self._worker, self._lease, self._liveness_key())
        self._trust(asked)

    def _trust(self, asked: float) -> None:
        self.renewed(asked)
        self._watch()

    def _watch(self) -> None:
        if self._lapse:
            self._lapse.cancel()
        # A beat that gets no answer fails late; what runs must not wait for that.
        left = self.trusted_until - time.monotonic()
        self._lapse = asyncio.get_running_loop().call_later(left, self._lapsed)

    def _lapsed(self) -> None:
        if self.is_trusted:  # renewed in another thread
            self._watch()
        elif self._in_flight.held():
            self._give_up()

    def _give_up(self) -> None:
        if not self._is_lost:  # while jobs take their time to end, the timer and each beat find it lost
            self._is_lost = True
            self._events.publish(LeaseLost(self._worker.worker_id))
        self._in_flight.revoke_all(Revocation.LOST)

    async def _take_away(self, lost: dict[str, int]) -> None:
        statuses = await self._store.statuses_of(list(lost))
        for job_id, attempt in lost.items():
            is_cancelled = statuses.get(job_id) is JobStatus.CANCELLED
            reason = Revocation.CANCELLED if is_cancelled else Revocation.LOST
            self._in_flight.revoke(job_id, attempt, reason)
