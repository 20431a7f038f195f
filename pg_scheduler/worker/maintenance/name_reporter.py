"""Report overdue jobs whose function is not registered here, with the registered name that is most similar.

The deadline scanner calls it when its scan meets an overdue job, so a worker without such jobs makes no
statement for it.
"""

from __future__ import annotations

import asyncio
import time

from pg_scheduler.events import UnregisteredName
from pg_scheduler.jobs.naming import most_similar
from pg_scheduler.worker.node import Node


class NameReporter:
    """Publish the names of overdue jobs that this worker cannot run."""

    interval_s = 60.0
    """Seconds between two reports."""
    max_names = 10
    """Names that one report contains."""
    max_jobs = 2000
    """Jobs of each priority that one report reads."""

    def __init__(self, node: Node) -> None:
        self._jobs = node.store.jobs
        self._events = node.events
        self._tasks = node.tasks
        self._worker_id = node.worker_id
        self._reported_at: float | None = None

    async def report(self) -> None:
        """Publish an event for each name, the longest overdue first, unless the last report is recent."""
        now = time.monotonic()
        if self._reported_at is not None and now < self._reported_at + self.interval_s:
            return
        known = self._tasks.names()
        overdue = await self._jobs.overdue_names(self._worker_id, known, self.max_jobs)
        self._reported_at = now
        for place, name in enumerate(overdue[: self.max_names], start=1):
            self._events.publish(
                UnregisteredName(
                    job_name=name.name,
                    jobs=name.jobs,
                    due_since=name.due_since,
                    suggestion=await asyncio.to_thread(most_similar, name.name, known),
                    busy_workers=name.busy_workers,
                    more_names=len(overdue) - place if place == self.max_names else 0,
                )
            )
