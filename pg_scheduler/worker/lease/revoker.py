"""Stop attempts that this worker must not continue: cancelled on any node, lost, or without a lease.

The heartbeat detects them: its answer names the jobs that the worker no longer holds.
"""

from __future__ import annotations

from collections.abc import Mapping

from pg_scheduler.events import LeaseLost
from pg_scheduler.status import JobStatus
from pg_scheduler.worker.in_flight import Revocation
from pg_scheduler.worker.node import Node


class Revoker:
    """Cancel the tasks of attempts whose rows this worker no longer holds."""

    def __init__(self, node: Node) -> None:
        self._jobs = node.store.jobs
        self._events = node.events
        self._in_flight = node.in_flight
        self._lease = node.lease
        self._worker_id = node.worker_id
        self._reported_at_renewal: int | None = None

    async def revoke(self, lost: Mapping[str, int]) -> None:
        """Stop these attempts, given as attempt numbers by job id, and report cancelled jobs as such.

        Attempts that are being stopped, as in threads, are not looked up again.
        """
        lost = {job_id: number for job_id, number in lost.items() if self._in_flight.runs(job_id, number)}
        if not lost:
            return
        found = await self._jobs.read_revoked(list(lost))
        for job_id, attempt in lost.items():
            status, is_awaited = found.get(job_id, (None, False))
            reason = Revocation.CANCELLED if status is JobStatus.CANCELLED else Revocation.LOST
            self._in_flight.revoke(job_id, attempt, reason, is_awaited=is_awaited)

    def revoke_all(self) -> None:
        """Revoke every attempt, because the lease is lost. Publish ``LeaseLost`` once for each loss."""
        if self._reported_at_renewal != self._lease.renewals:  # the timer and each heartbeat may detect it
            self._reported_at_renewal = self._lease.renewals
            self._events.publish(LeaseLost(self._worker_id))
        self._in_flight.revoke_all(Revocation.LOST)
