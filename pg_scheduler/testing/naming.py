"""Find the names of the jobs of a function."""

from __future__ import annotations

from pg_scheduler.jobs.model import JobFunction
from pg_scheduler.scheduler import Scheduler


class NamingScheduler(Scheduler):
    """A Scheduler that returns the names of jobs to a test."""

    def name_of(self, func: JobFunction | str) -> str:
        """Return the name of the jobs of a function."""
        if isinstance(func, str):
            return func
        return self._parts.tasks.adopt(func).name

    def job_names_of(self, func: JobFunction | str) -> set[str]:
        """Return the names that jobs of a function may have: those of its schedules have the schedule's."""
        name = self.name_of(func)
        periodic = self.get_periodic_jobs().values()
        return {name, *(each.job_name for each in periodic if each.function == name)}
