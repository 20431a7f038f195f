"""Gives the jobs of dead workers back: of those whose lease is over, and of those whose process has ended.

The lookout says when a lease is over. That a process has ended shows at once, in its liveness lock, which
the claimer's polls look at. But a session may also have broken off and come back, and a clock that is put
forward ends every lease at once. So nobody is dead unheard: such a worker is asked for a heartbeat first, and
is dead if neither that nor a new lock is there a moment later.
"""

from __future__ import annotations

import time
from typing import ClassVar, Final

from pg_scheduler.enqueue.outbox import Outbox
from pg_scheduler.events import EventBus, JobFailed, JobsReclaimed
from pg_scheduler.store.workers import WorkerRepository
from pg_scheduler.worker.lease.lease import Lease
from pg_scheduler.worker.service import NEVER, Service
from pg_scheduler.worker.signals import Signals

__all__ = ["Rescuer"]

SHORTLY: Final = 1.0
BATCH: Final = 1000

PATIENCE: Final = 1.5
"""Seconds that a worker in doubt gets to answer."""


class Rescuer(Service):
    """Release the jobs of dead workers.

    Args:
        heartbeat_threshold: Seconds after the last heartbeat that count as a lease for rows without one.
        max_crashes: Workers that may die under one job before it fails; None for any number.
    """

    name: ClassVar[str] = "rescuer"

    def __init__(  # noqa: PLR0917 - each is another collaborator, wired once
        self,
        workers: WorkerRepository,
        events: EventBus,
        worker_id: str,
        lease: Lease,
        outbox: Outbox,
        signals: Signals,
        *,
        heartbeat_threshold: float,
        max_crashes: int | None,
    ) -> None:
        super().__init__(events)
        self._workers = workers
        self._worker_id = worker_id
        self._heartbeat_threshold = heartbeat_threshold
        self._max_crashes = max_crashes
        self._lease = lease
        self._outbox = outbox
        self._signals = signals
        self._scans_locks = False
        self._doubtful: dict[str, tuple[object, float]] = {}

    def scan_locks(self) -> None:
        """Look for free liveness locks: the claimer has found one."""
        if not self._scans_locks:
            self._scans_locks = True
            self.wake()

    async def run_once(self) -> float:
        """One rescue, unless our own lease is in doubt: its renewal, which is overdue, has to come first."""
        if not self._lease.is_trusted:
            return SHORTLY
        await self._workers.restart_leases(BATCH)
        suspects = await self._find_suspects()
        rescue = await self._workers.rescue(
            self._heartbeat_threshold, BATCH, suspects=suspects, max_crashes=self._max_crashes
        )
        if rescue.job_ids or rescue.dead_workers:
            self._events.publish(JobsReclaimed(tuple(rescue.job_ids), tuple(rescue.dead_workers)))
        for failed in rescue.quarantined:
            self._events.publish(
                JobFailed(failed.job_id, failed.job_name, failed.attempt, error=failed.error)
            )
        if rescue.job_ids:
            self._signals.due()
        if len(rescue.job_ids) + len(rescue.quarantined) == BATCH:
            return 0
        return PATIENCE if self._doubtful else NEVER

    async def _find_suspects(self) -> list[str]:
        before, self._doubtful = self._doubtful, {}
        doubtful = await self._workers.suspect_workers(self._worker_id, silence=self._scans_locks)
        unheard = [each for each, sign in doubtful.items() if before.get(each, (None, 0.0))[0] != sign]
        if unheard:
            await self._outbox.request_heartbeats(unheard)
        now = time.monotonic()  # from here on they have time to answer, however long the asking took
        suspects = []
        for worker_id, sign in doubtful.items():
            since = now if worker_id in unheard else before[worker_id][1]
            if worker_id in unheard or now - since < PATIENCE:
                self._doubtful[worker_id] = (sign, since)
            else:
                suspects.append(worker_id)
        self._scans_locks = self._scans_locks and bool(self._doubtful)
        return suspects
