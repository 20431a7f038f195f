"""Reclaim the jobs of dead workers: those whose lease expired or whose process ended.

The deadline scanner signals an expired lease. The claimer's polls detect an ended process by its free
liveness lock. Claims that get as many jobs as they ask for do not look at the locks, and none are sent while
all slots are taken. So the rescuer looks itself, if no claim has for some seconds.

But a session may also have reconnected, and a clock that is set forward expires every lease at once. So the
rescuer requests a heartbeat from a suspect worker first, and reclaims its jobs if neither a heartbeat nor a
new lock follows in time: ``worker/worker_rows.py`` makes them pending, or failed after too many crashes, as
``reclaim_change()`` in ``jobs/outcome.py`` decides.

An old lease in the row of a job does not show that its worker is dead, because heartbeats skip a row that a
transaction of the application has locked. So a worker's jobs are left to it as long as it has a row. Its own
rescuer releases jobs that it does not know, because the answer to their claim was lost. A worker that has
stopped has no rescuer: while threads of its process run on, its heartbeats name their attempts, and other
workers take its other jobs.
"""

from __future__ import annotations

import platform
import time
from typing import ClassVar, NamedTuple

from pg_scheduler.database.faults import is_queue_full
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.events import JobFailed, JobsReclaimed, ServiceRetrying
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.service import Service


class Suspicion(NamedTuple):
    """A worker that may be dead.

    Attributes:
        state: Its last lease and lock; it is alive if another value follows.
        until: When it is dead if no other value has followed, by the monotonic clock.
    """

    state: object
    until: float


class Rescuer(Service):
    """Reclaim the jobs of dead workers."""

    name: ClassVar[str] = "rescuer"
    answer_timeout_s = 1.5
    """Seconds that a suspect worker gets to make a heartbeat."""
    untrusted_delay_s = 1.0
    """Seconds until the next pass while this worker's own lease is not trusted."""
    batch_size = 1000
    """Jobs that one statement reclaims."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.events)
        self._node = node
        config = node.config
        self._heartbeat_threshold = config.heartbeat_threshold
        self._lease_s = config.lease_seconds
        self._max_crashes = config.max_crashes
        # The identity and the host by which the first pass finds the workers of earlier processes; None
        # without an identity, and after that pass.
        self._namesakes = None if config.identity is None else (config.identity, platform.node())
        # On a node that runs jobs, polls usually look before that.
        self._lock_scan_interval_s = config.polling.max_interval * (2 if config.runs_jobs else 1)
        self._scans_locks = False
        # The first scan of the deadline scanner requests it if there is an expired lease.
        self._scans_jobs = False
        self._suspicions: dict[str, Suspicion] = {}
        self._scan_began_at: float | None = None
        self._no_suspects_at = float("-inf")

    @property
    def no_suspects_at(self) -> float:
        """When the last scan of the liveness locks began that left no worker suspect, by the monotonic clock.

        The jobs of the dead workers that it found are reclaimed.
        """
        return self._no_suspects_at

    def scan_jobs(self) -> None:
        """Scan for running jobs whose lease expired, since the deadline scanner found one."""
        self._scans_jobs = True
        self.wake()

    def scan_locks(self) -> None:
        """Scan for free liveness locks, since a claim found one: the process of its worker has ended."""
        if not self._scans_locks:
            self._scans_locks = True
            self.wake()

    async def reclaim_now(self) -> None:
        """Make a pass now that scans for running jobs whose lease expired, and for free liveness locks."""
        self._scans_jobs = self._scans_locks = True
        await self.run_once()

    async def run_once(self) -> float:
        """Reclaim the jobs of dead workers once; return the seconds until the next pass.

        Do nothing while this worker's own lease is not trusted: it must be renewed first.
        """
        if not self._node.lease.is_trusted:
            return self.untrusted_delay_s
        # The statements about jobs read every due row, so a pass that only looks at the locks sends none.
        scans_jobs, self._scans_jobs = self._scans_jobs, False
        try:
            return await self._reclaim(scans_jobs=scans_jobs)
        except BaseException:  # whatever it was, some jobs may not have been read
            self._scans_jobs = True
            self._scan_began_at = None
            raise

    async def _reclaim(self, *, scans_jobs: bool) -> float:
        """Reclaim the jobs of dead workers; if jobs are scanned, also those whose own lease has expired."""
        batch_size = self.batch_size
        # Leases that end too late, because the server's clock was set back, are corrected before they are
        # judged.
        if scans_jobs:
            await self._node.store.workers.restart_leases(batch_size)
        # No claim has looked at the liveness locks for some time.
        if self._until_lock_scan_s() <= 0:
            self._scans_locks = True
        scans_workers = self._scans_locks or self._suspicions or self._namesakes
        if not (scans_jobs or scans_workers):
            return self._next_delay()
        dead = await self._find_dead()
        # The first pass also finds the workers of earlier processes with this identity on this host.
        if self._namesakes is not None:
            dead += await self._node.store.workers.ended_namesakes(self._node.worker_id, *self._namesakes)
            self._namesakes = None
        if not (scans_jobs or dead):
            return self._next_delay()
        rescue = await self._node.store.workers.rescue(
            self._heartbeat_threshold,
            batch_size,
            suspects=dead,
            max_crashes=self._max_crashes,
            worker_id=self._node.worker_id,
            known_attempts=self._node.in_flight.unreported,
        )
        if rescue.job_ids or rescue.dead_workers:
            self._events.publish(JobsReclaimed(tuple(rescue.job_ids), tuple(rescue.dead_workers)))
        # A dead worker cannot count these attempts. Those of a quarantined job are counted by its event.
        if self._node.meter is not None:
            for job_name, attempts in rescue.lost.items():
                self._node.meter.record_end(job_name, "lost", attempts)
        for failed in rescue.quarantined:
            self._events.publish(
                JobFailed(failed.job_id, failed.job_name, failed.attempt, error=failed.error)
            )
        if rescue.dead_workers:
            self._node.signals.worker_gone()
        if rescue.job_ids:
            self._node.signals.due(rescue.due)
        # The batch was full, so there may be more.
        if len(rescue.job_ids) + len(rescue.quarantined) == batch_size:
            self._scans_jobs = True
            return 0
        return self._next_delay()

    def _next_delay(self) -> float:
        """Return the seconds until the next pass.

        If a scan of the locks has left no worker suspect, note when that scan began.
        """
        if self._suspicions:
            return self.answer_timeout_s
        if self._scan_began_at is not None:
            self._no_suspects_at, self._scan_began_at = self._scan_began_at, None
        return max(self._until_lock_scan_s(), 0)

    def _until_lock_scan_s(self) -> float:
        """Return the seconds until the liveness locks are to be looked at again; negative if that is late."""
        return self._node.lock_looks.last_at + self._lock_scan_interval_s - time.monotonic()

    async def _find_dead(self) -> list[str]:
        """Return the suspect workers that sent no heartbeat in time, and request one from new suspects."""
        previous_suspicions, self._suspicions = self._suspicions, {}
        # The scan begins before the statement, so what happens during the statement is left to the next one.
        if self._scans_locks:
            self._scan_began_at = self._node.lock_looks.last_at = time.monotonic()
        states = await self._node.store.workers.suspect_workers(
            self._node.worker_id, by_lock=self._scans_locks
        )
        # If the lease or the lock of a suspect has changed since the last pass, the worker was alive then. So
        # the suspicion begins anew.
        new_suspects = [
            worker_id
            for worker_id, state in states.items()
            if worker_id not in previous_suspicions or previous_suspicions[worker_id].state != state
        ]
        is_requested = not new_suspects or await self._request_heartbeats(new_suspects)
        # The time of new suspects counts from here, however long the request took. Without the request, a
        # live worker makes its next heartbeat by itself, within the time of a lease.
        now = time.monotonic()
        until = now + (self.answer_timeout_s if is_requested else self._lease_s)
        dead = []
        for worker_id, state in states.items():
            if worker_id in new_suspects:
                self._suspicions[worker_id] = Suspicion(state, until)
            elif now < previous_suspicions[worker_id].until:
                self._suspicions[worker_id] = previous_suspicions[worker_id]
            else:
                dead.append(worker_id)
        # A later pass has to find the same suspects again, so it looks at the locks too.
        self._scans_locks = self._scans_locks and bool(self._suspicions)
        return dead

    async def _request_heartbeats(self, suspects: list[str]) -> bool:
        """Request heartbeats; return False if the server's queue of notifications is full."""
        try:
            await self._node.outbox.request_heartbeats(suspects)
        except DatabaseUnavailableError as fault:
            if not is_queue_full(fault):
                raise
            self._events.publish(ServiceRetrying(self.name, fault, self.answer_timeout_s))
            return False
        return True
