"""Read what concerns all workers of a database: totals, schedules, transactions."""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple

from pg_scheduler.base.figures import JobFigures
from pg_scheduler.database.session import Connection
from pg_scheduler.database.statements import Repository
from pg_scheduler.errors import SchemaForbiddenError
from pg_scheduler.facts.lateness import OVERDUE_S
from pg_scheduler.facts.schedule_state import ScheduleState
from pg_scheduler.inspect.store.statistics import figures_of

TABLES: Final = (
    *("scheduled_jobs", "scheduler_workers", "scheduler_schedules", "scheduler_after", "scheduler_results"),
    *("scheduler_steps", "scheduler_starts", "scheduler_tasks", "scheduler_stats", "scheduler_totals"),
    *("scheduler_audit", "scheduler_bulk_runs", "scheduler_database", "scheduler_deadlines"),
    "scheduler_sequences",
    *("scheduler_failures", "scheduler_error_groups", "scheduler_error_counts", "scheduler_streams"),
)
"""The tables, without the small tables of the vacuum and the migrations."""


class ScheduleRow(NamedTuple):
    """A schedule and its fire times.

    Attributes:
        task: The task of its jobs. People need it, because an id may be a hash.
        is_enabled: Whether it is neither paused nor finished.
        state: Its state, one of ``SCHEDULE_STATES``.
        overdue_s: Seconds since it should have fired, or its pause should have ended; 0 before that.
    """

    schedule_id: str
    task: str
    is_enabled: bool
    next_fire_at: datetime | None
    last_fire_at: datetime | None
    overdue_s: float
    state: ScheduleState


class UnfinishedRow(NamedTuple):
    """The numbers of unfinished jobs by state.

    Attributes:
        is_due_capped: Whether counting due and running jobs stopped.
        is_later_capped: Whether counting the jobs that are due later stopped.
    """

    due: int
    running: int
    scheduled: int
    retrying: int
    sleeping: int
    awaiting: int
    is_due_capped: bool
    is_later_capped: bool
    blocked: int


class UnsuccessfulRow(NamedTuple):
    """The numbers of jobs among the newest unsuccessful ones.

    Attributes:
        is_capped: Whether there may be others.
    """

    quarantined: int
    failed: int
    expired: int
    cancelled: int
    is_capped: bool


class ServerRow(NamedTuple):
    """The time of the database, and the age of its oldest transaction in seconds, 0 for none."""

    now: datetime
    oldest_transaction_s: float


class ClusterRepository(Repository):
    """The statements that describe the whole database for metrics."""

    async def unfinished(self, rows: int, *, on: Connection) -> UnfinishedRow:
        """Count unfinished jobs by state.

        At most ``rows`` blocked jobs are counted, and of each priority at most ``rows`` due and ``rows``
        later jobs.
        """
        counts = await self._rows(UnfinishedRow, "inspect_unfinished", rows, self._statements.now, on=on)
        return counts[0]

    async def unsuccessful(self, rows: int, *, on: Connection) -> UnsuccessfulRow:
        """Count the newest unsuccessful jobs by status, at most ``rows`` of them."""
        (counts,) = await self._rows(UnsuccessfulRow, "inspect_unsuccessful", rows, on=on)
        return counts

    async def totals(self, names: int) -> list[tuple[str, JobFigures]]:
        """Return the totals of the statistics, which only grow, by job name, for at most ``names`` names."""
        rows = await self._statements.fetch("inspect_totals", names)
        return [(row["job_name"], figures_of(row)) for row in rows]

    async def schedules(self, limit: int) -> list[ScheduleRow]:
        """Return the first schedules in the order of their ids, at most ``limit``."""
        return await self._rows(ScheduleRow, "inspect_schedules", self._statements.now, limit, OVERDUE_S)

    async def server(self) -> ServerRow:
        """Return the time of the database, and the age of its oldest transaction."""
        (row,) = await self._statements.fetch("inspect_server")
        return ServerRow(*row)

    async def last_death(self, records: int) -> datetime | None:
        """Return when a worker was last declared dead; None if no worker was within an hour.

        At most ``records`` records are examined. The result is also None if the role may not read them.
        """
        try:
            rows = await self._statements.fetch("inspect_last_death", self._statements.now, records)
        except SchemaForbiddenError:  # a role with the grants of an earlier release
            return None
        at: datetime | None = rows[0]["at"]
        return at
