"""Count the jobs that a pause of their task would let expire."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pg_scheduler.inspect.inspector import Inspector
from pg_scheduler.inspect.texts import counted
from pg_scheduler.jobs.naming import check_name


@dataclass(frozen=True, slots=True)
class ExpiringJobs:
    """The waiting jobs of a task that expire by their misfire grace time while it is paused."""

    jobs: int
    """Their number."""
    is_capped: bool
    """Whether counting stopped after 50,000 unfinished jobs, so that there may be more."""

    @property
    def summary(self) -> str:
        """The number in one line, as every front end shows it."""
        jobs = counted(self.jobs, "waiting job", is_capped=self.is_capped)
        return f"{jobs} would expire during the pause, by the misfire grace time"


async def count_expiring(inspector: Inspector, name: str, until: datetime | None) -> ExpiringJobs:
    """Count the waiting jobs of a task, under all of its names, that expire while it is paused.

    Args:
        inspector: The Inspector. If it has a Scheduler, that one knows the aliases of the task.
        name: The name of the task, or an alias.
        until: When the pause ends: jobs count that expire before. None if it has no end: all jobs count that
            have a misfire grace time.

    Example::

        from pg_scheduler.inspect.expiring import count_expiring

        print((await count_expiring(inspector, "mail.send", None)).summary)
    """
    names, scheduler = {check_name(name)}, inspector._scheduler  # noqa: SLF001
    tasks = None if scheduler is None else scheduler._tasks  # noqa: SLF001
    if tasks is not None and (task := tasks.resolve(name)) is not None:
        names |= tasks.names_of(task)
    inspections = inspector._reads.inspections  # noqa: SLF001
    return ExpiringJobs(*await inspections.expiring(names, until))
