"""Count the jobs that a pause of their task would let expire."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pg_scheduler.inspect.inspector import MAX_BACKLOG_ROWS, Inspector
from pg_scheduler.inspect.texts import counted
from pg_scheduler.jobs.naming import check_name

__all__ = ["ExpiringJobs", "count_expiring"]


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
    """Count the waiting jobs of a task that expire while it is paused.

    Args:
        inspector: The Inspector.
        name: The name of the task.
        until: When the pause ends: jobs count that expire before. None if it has no end: all jobs count that
            have a misfire grace time.

    Example::

        from pg_scheduler.inspect.expiring import count_expiring

        print((await count_expiring(inspector, "mail.send", None)).summary)
    """
    inspections = inspector._reads.inspections  # noqa: SLF001
    return ExpiringJobs(*await inspections.expiring(check_name(name), until, MAX_BACKLOG_ROWS))
