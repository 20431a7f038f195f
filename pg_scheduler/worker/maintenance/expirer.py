"""Expire pending jobs that no claim reaches: their function is not registered, or no slot is free.

The deadline scanner wakes it when the misfire grace time of a job elapses.
"""

from __future__ import annotations

from typing import ClassVar

from pg_scheduler.events import JobExpired
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.service import NEVER, Service


class Expirer(Service):
    """Expire jobs past their misfire grace time."""

    name: ClassVar[str] = "expirer"
    batch_size = 500
    """Jobs that one statement expires."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.events)
        self._jobs = node.store.jobs
        self._tasks = node.tasks
        self._worker_id = node.worker_id

    async def run_once(self) -> float:
        """Expire one batch of jobs."""
        expired = await self._jobs.expire(self._worker_id, self._tasks.names(), self.batch_size)
        for job_id, job_name, attempt in expired:
            self._events.publish(JobExpired(job_id, job_name, attempt))
        return 0 if len(expired) == self.batch_size else NEVER
