"""The single-step methods of pg-scheduler 0.2. Each calls the component that now does the work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.jobs.rows import Claim
from pg_scheduler.jobs.validation import check_job_id
from pg_scheduler.scheduler.parts import SchedulerMethods


class LegacyMethods(SchedulerMethods):
    """The methods of `Scheduler` that run a single step of a service.

    All but ``load_task_functions()`` raise NotRunningError unless the Scheduler is running.
    """

    async def recover_orphaned_jobs(self) -> None:
        """Reclaim the jobs of dead workers now."""
        await self._parts.running().rescuer.run_once()

    async def periodic_orphan_recovery(self) -> None:
        """Reclaim the jobs of dead workers now. A running Scheduler does so whenever a lease expires."""
        await self.recover_orphaned_jobs()

    async def monitor_heartbeats(self) -> None:
        """Reclaim the jobs of workers whose lease has expired now."""
        await self.recover_orphaned_jobs()

    async def listen_for_jobs(self) -> None:
        """Claim due jobs now. A running Scheduler does so whenever jobs are due."""
        await self._parts.running().claimer.run_once()

    async def send_heartbeat(self, job_id: str) -> None:
        """Renew the lease of this worker and its jobs. A running Scheduler does so every third of a lease."""
        check_job_id(job_id)
        await self._parts.running().heartbeat.run_once()

    async def load_task_functions(self) -> list[str]:
        """Return the names of pending jobs that are not registered here, and log a warning for each.

        Their jobs stay pending for a worker that registers them.
        """
        unknown = sorted(
            name
            for name in await self._parts.store.jobs.waiting_names()
            if not self._parts.tasks.resolve(name)
        )
        for name in unknown:
            logger.warning(
                "pending jobs reference the unregistered function %r; start a worker that registers it",
                name,
                extra=record_fields(job_name=name, worker_id=self._parts.life.worker_id),
            )
        return unknown

    async def execute_job(self, job_row: Mapping[str, Any]) -> None:
        """Run one job that this worker has claimed, and wait until it has finished.

        Args:
            job_row: The row of the job, or any mapping with its ``job_id``.

        Raises:
            ValueError: This worker has not claimed the job, or runs it already.
        """
        await self._parts.running().executor.submit(await self._claim_of(job_row))

    async def execute_job_with_concurrency_control(self, job_row: Mapping[str, Any]) -> None:
        """Run one job that this worker has claimed once a slot is free, and wait until it has finished.

        Args:
            job_row: The row of the job, or any mapping with its ``job_id``.

        Raises:
            ValueError: This worker has not claimed the job, or runs it already.
        """
        executor = self._parts.running().executor
        await (await executor.submit_when_free(await self._claim_of(job_row)))

    async def _claim_of(self, job_row: Mapping[str, Any]) -> Claim:
        try:
            job_id = check_job_id(job_row["job_id"])
        except KeyError:
            raise ValueError(
                f"job_row has no job_id, but the keys {[*job_row.keys()]}; "
                "pass the row of a job that this worker claimed"
            ) from None
        if job_id in self._parts.running().node.in_flight.held():
            raise ValueError(f"job {job_id!r} is already running on this worker; wait until it has finished")
        claim = await self._parts.store.claims.held_claim(job_id, self._parts.life.worker_id)
        if claim is None:
            raise ValueError(
                f"job {job_id!r} is not claimed by worker {self._parts.life.worker_id}; "
                "pass the row of a job that this worker claimed"
            )
        return claim
