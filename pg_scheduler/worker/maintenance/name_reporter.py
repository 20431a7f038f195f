"""Report overdue jobs whose function is not registered here, with the registered name that is most similar.

The deadline scanner calls it when its scan meets an overdue job, so a worker without such jobs makes no
statement for it.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from pg_scheduler.events import EventBus, UnregisteredName
from pg_scheduler.jobs.naming import most_similar
from pg_scheduler.jobs.registry import TaskRegistry
from pg_scheduler.store.jobs import JobRepository


@dataclass(frozen=True, slots=True)
class NameReporterOptions:
    """The bounds of a report."""

    interval_s: float = 60.0
    """Seconds between two reports."""
    max_names: int = 10
    """Names that one report contains."""
    max_jobs: int = 2000
    """Jobs of each priority that one report reads."""


class NameReporter:
    """Publish the names of overdue jobs that this worker cannot run."""

    def __init__(
        self,
        jobs: JobRepository,
        events: EventBus,
        tasks: TaskRegistry,
        worker_id: str,
        options: NameReporterOptions = NameReporterOptions(),
    ) -> None:
        self._jobs = jobs
        self._events = events
        self._tasks = tasks
        self._worker_id = worker_id
        self._options = options
        self._reported_at: float | None = None

    async def report(self) -> None:
        """Publish an event for each name, the longest overdue first, unless the last report is recent."""
        options = self._options
        now = time.monotonic()
        if self._reported_at is not None and now < self._reported_at + options.interval_s:
            return
        known = self._tasks.names()
        overdue = await self._jobs.overdue_names(self._worker_id, known, options.max_jobs)
        self._reported_at = now
        for place, name in enumerate(overdue[: options.max_names], start=1):
            self._events.publish(
                UnregisteredName(
                    job_name=name.name,
                    jobs=name.jobs,
                    due_since=name.due_since,
                    suggestion=await asyncio.to_thread(most_similar, name.name, known),
                    busy_workers=name.busy_workers,
                    more_names=len(overdue) - place if place == options.max_names else 0,
                )
            )
