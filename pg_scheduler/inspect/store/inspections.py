"""Read what people ask about jobs and their steps, a bounded number of rows at a time."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from pg_scheduler.base.status import JobStatus
from pg_scheduler.database.records import job_from
from pg_scheduler.database.statements import Repository
from pg_scheduler.errors import JobNotFoundError
from pg_scheduler.jobs.model import Job
from pg_scheduler.jobs.step_values import MAX_STEPS, stored_name
from pg_scheduler.jobs.streams import MAX_NAMES

MAX_BACKLOG_ROWS: Final = 50_000
"""Rows of the claim index that are examined."""

MAX_GROUPS: Final = 500
"""Names of due jobs that are returned."""

MAX_LAST_ITEMS: Final = 20
"""Items of each stream that are shown."""

MAX_WAITS: Final = 100
MAX_QUEUE_ROWS: Final = 20_000
MAX_PARENTS: Final = 100
MAX_STATISTICS: Final = 5000

MIN_LOCK_S: Final = 1.0
"""Seconds for which a row must be locked to explain a delay: claims and heartbeats lock it for
milliseconds."""

_ESTIMATE: Final = re.compile(r"rows=([0-9]+)")


class InspectedJob(NamedTuple):
    """A job, and what its row does not contain.

    Attributes:
        job: The job.
        task: The name that a worker must claim for it.
        now: The time of the database.
        standby_lag_s: The age of the data of a standby in seconds; None on a primary.
        has_steps: Whether steps or signals may be stored for it, since its row is marked.
        expiry_cause: Why it expired, one of ``ExpiryCause``; None for another status, or if that is unknown.
        debounce: JSON that states since when further calls postpone it, and for how long they may; None if
            they do not.
    """

    job: Job
    task: str
    now: datetime
    standby_lag_s: float | None
    has_steps: bool
    expiry_cause: str | None
    debounce: str | None


class LockRow(NamedTuple):
    """A session that holds a lock that a job needs.

    Attributes:
        kind: ``row`` or ``advisory``.
        pid: The process id of its backend.
        application: Its application name.
        since: When its transaction began; None if that is unknown.
        statement: Its statement, or its last one; None if the reader may not see it.
    """

    kind: str
    pid: int
    application: str
    since: datetime | None = None
    statement: str | None = None


class QueueRow(NamedTuple):
    """The due jobs that start before a due job.

    Attributes:
        ahead: The number of these jobs.
        outranked_by: The number of these jobs that have a higher priority.
        is_capped: Whether counting stopped, so that there may be more.
    """

    ahead: int
    outranked_by: int
    is_capped: bool = False


class BacklogRow(NamedTuple):
    """The due jobs of a name.

    Attributes:
        name: The name that a worker must claim.
        due: The number of its due jobs.
        running: The number of its running jobs.
        oldest_due_at: When the first of its due jobs was due; None if none is due.
    """

    name: str
    due: int
    running: int
    oldest_due_at: datetime | None


class BacklogRows(NamedTuple):
    """The due jobs by name. The name of the oldest due job comes first.

    Attributes:
        rows: At most 500 names.
        is_capped: Whether counting stopped after 50,000 unfinished jobs.
        are_names_capped: Whether there may be further names.
    """

    rows: list[BacklogRow]
    is_capped: bool
    are_names_capped: bool


class BlockerRow(NamedTuple):
    """An unfinished job that another one waits for."""

    child_id: str
    job_id: str
    job_name: str


class ExpiringRow(NamedTuple):
    """The waiting jobs of some names, and how many of them expire before some instants.

    Attributes:
        due: Those that are due.
        due_expiring: Those of the due ones that can expire.
        expire_by: When the last of these has expired; None if there are none.
        expiring: Those that expire, in the order of the instants.
        is_capped: Whether there may be more.
    """

    due: int
    due_expiring: int
    expire_by: datetime | None
    expiring: Sequence[int]
    is_capped: bool


class Edge(NamedTuple):
    """A job that waits for another one."""

    parent_id: str
    child_id: str


@dataclass(frozen=True, slots=True)
class LinkedJob:
    """A job that another one waits for, or that waits for it."""

    job_id: str
    job_name: str | None
    """Its name; None if it does not exist."""
    status: JobStatus | None
    """Its status; None if it does not exist."""


@dataclass(frozen=True, slots=True)
class StepRow:
    """A step as its row has it.

    Attributes:
        value: Its value as JSON. None if it has no value, or if the value is large and was not requested by
            the name of the step.
        size: The bytes of the stored value; 0 if there is none.
        is_wait: Whether the job waits for it, as far as its row states that.
        failures: Its failed attempts as JSON; None for none.
    """

    name: str
    kind: str
    value: str | None
    size: int
    attempt: int
    until: datetime | None
    started_at: datetime
    ended_at: datetime | None
    is_wait: bool
    failures: str | None


@dataclass(frozen=True, slots=True)
class WaitRow:
    """A sleep or a wait of a job, or a signal that came before the job waited for it.

    Attributes:
        until: The end of the sleep or the wait; None for a signal.
        since: When the sleep or the wait began, or when the signal came.
        is_open: Whether the sleep or the wait has not ended; False for a signal.
        failures: The failed attempts of a step whose next one the job waits for, as JSON; None for others.
    """

    name: str
    kind: str
    until: datetime | None
    since: datetime
    is_open: bool
    failures: str | None = None


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """A value or an item that a job has published.

    Attributes:
        number: The number of the item; 0 for a value.
        value: Its JSON; None if it is large.
        size: The bytes that it needs in the table.
    """

    name: str
    number: int
    value: str | None
    size: int


class InspectionRepository(Repository):
    """The statements about jobs that only people need."""

    async def job(self, job_id: str) -> InspectedJob | None:
        """Return a job, and facts that are not columns of its row; None if it does not exist."""
        rows = await self._statements.fetch("inspect_job", job_id, self._statements.now)
        if not rows:
            return None
        values = dict(rows[0])
        # The columns of these names are facts. All other columns are those of the job.
        _job, *fact_names = InspectedJob._fields
        facts = {name: values.pop(name) for name in fact_names}
        return InspectedJob(job_from(values, self._statements.codec), **facts)

    async def locks(self, job_id: str) -> list[LockRow]:
        """Return the sessions that hold the lock of a job's row or its advisory lock.

        A session with the lock of the row counts only if its transaction has lasted for ``MIN_LOCK_S``
        seconds or more.
        """
        return await self._rows(LockRow, "inspect_locks", job_id, MIN_LOCK_S)

    async def migrations(self, limit: int) -> list[datetime]:
        """Return when the migrations of the schema were applied, in the order of their versions."""
        rows = await self._statements.fetch("inspect_migrations", limit)
        return [row["applied_at"] for row in rows]

    async def queue(self, job: Job, paused: Collection[str]) -> QueueRow:
        """Count the due jobs that start before a due job. Jobs of paused tasks do not count."""
        position = job.priority.db_value, job.execution_time, job.job_id
        rows = await self._statements.fetch(
            "inspect_queue", *position, MAX_QUEUE_ROWS, self._statements.now, list(paused)
        )
        return QueueRow(*rows[0])

    async def tenant_queue(self, job: Job) -> QueueRow:
        """Count the jobs before a job that wait for the turn of the same tenant, or for the same limit."""
        position = job.blocked_on, job.priority.db_value, job.execution_time, job.job_id
        rows = await self._statements.fetch("inspect_tenant_queue", *position, MAX_QUEUE_ROWS)
        return QueueRow(*rows[0])

    async def sequence_queue(self, job: Job) -> QueueRow:
        """Count the jobs that precede a waiting job in its sequence, in which priorities do not matter."""
        position = job.blocked_on, job.execution_time, job.job_id
        rows = await self._statements.fetch("inspect_sequence_queue", *position, MAX_QUEUE_ROWS)
        return QueueRow(*rows[0])

    async def backlog(self) -> BacklogRows:
        """Count the due jobs by name, among the first 50,000 unfinished ones."""
        records = await self._statements.fetch(
            "inspect_backlog", MAX_BACKLOG_ROWS, self._statements.now, MAX_GROUPS
        )
        rows = [
            BacklogRow(record["name"], record["due"], record["running"], record["oldest_due_at"])
            for record in records
        ]
        # Each record has the number of all jobs that the statement examined.
        is_capped = bool(records) and records[0]["examined"] >= MAX_BACKLOG_ROWS
        return BacklogRows(rows, is_capped, are_names_capped=len(records) == MAX_GROUPS)

    async def expiring(self, names: Collection[str], ends: Sequence[datetime | None]) -> ExpiringRow:
        """Count the jobs of some names that expire before each of these instants unless they start.

        For None instead of an instant, all jobs that can expire count. At most 50,000 unfinished and as many
        blocked jobs are examined.
        """
        args = list(names), MAX_BACKLOG_ROWS, list(ends), self._statements.now
        (row,) = await self._statements.fetch("inspect_expiring", *args)
        return ExpiringRow(*row)

    async def slot_use(self, since: datetime, until: datetime) -> list[tuple[str, float]]:
        """Return the names that used slots for most time, and the seconds of each.

        Only attempts that ended between the two instants count.
        """
        rows = await self._statements.fetch("inspect_slot_use", since, until, MAX_STATISTICS)
        return [(row["job_name"], row["seconds"]) for row in rows]

    async def estimate_due(self) -> int:
        """Return the number of due jobs that the planner of PostgreSQL estimates, without counting them."""
        query = await self._statements.query("estimate_due")
        async with self._statements.connections.acquire() as connection:
            # The plan is read as text and not as JSON, for which the pool may have a codec of its own.
            first_line: str = await connection.fetchval(
                f"EXPLAIN {query.text}", self._statements.now, timeout=self._statements.call_timeout_s
            )
        estimate = _ESTIMATE.search(first_line)
        return int(estimate[1]) if estimate else 0

    async def blockers(self, job_ids: Collection[str], limit: int) -> list[BlockerRow]:
        """Return the unfinished jobs that each of these jobs waits for, at most ``limit`` for each."""
        return await self._rows(BlockerRow, "inspect_blockers", list(job_ids), limit)

    async def look(self, job_id: str) -> str | None:
        """Return what the worker of a running job shows of its present attempt; None if it shows nothing."""
        rows = await self._statements.fetch("inspect_look", job_id)
        return rows[0]["look"] if rows else None

    async def parents(self, job_id: str) -> list[tuple[str, JobStatus | None]]:
        """Return the ids of the unfinished jobs that a job waits for, each with its status.

        The status is None if there is no such job.
        """
        parents: list[tuple[str, JobStatus | None]] = []
        for row in await self._statements.fetch("inspect_parents", job_id, MAX_PARENTS):
            status = None if row["status"] is None else JobStatus(row["status"])
            parents.append((row["parent_id"], status))
        return parents

    async def linked_jobs(self, job_id: str, limit: int) -> tuple[list[LinkedJob], list[LinkedJob]]:
        """Return jobs that a job waits for, and jobs that wait for it, at most ``limit`` of each."""
        parents: list[LinkedJob] = []
        children: list[LinkedJob] = []
        for row in await self._statements.fetch("inspect_linked_jobs", job_id, limit):
            status = None if row["status"] is None else JobStatus(row["status"])
            linked_job = LinkedJob(row["job_id"], row["job_name"], status)
            if row["is_parent"]:
                parents.append(linked_job)
            else:
                children.append(linked_job)
        return parents, children

    async def edges(self, job_ids: Collection[str], limit: int) -> list[Edge]:
        """Return which of these jobs wait for which others of them.

        At most ``limit`` of the jobs that a job waits for are examined.
        """
        return await self._rows(Edge, "inspect_edges", list(job_ids), limit)

    async def steps(self, job_id: str, name: str | None = None) -> list[StepRow]:
        """Return the steps of a job, or only the step of a name with its whole value.

        At most 1,001 steps are returned, so that a caller who shows 1,000 sees whether there are more.

        Raises:
            JobNotFoundError: There is no such job.
        """
        message = None if name is None else stored_name(name)
        rows = await self._statements.fetch("inspect_steps", job_id, name, MAX_STEPS + 1, message)
        if not rows:
            raise JobNotFoundError(job_id)
        # A job without steps has one row, without a name.
        return [StepRow(*row) for row in rows if row["name"] is not None]

    async def published(self, job_id: str) -> list[PublishedRow]:
        """Return what a job has published, by name and number: of each stream the last items.

        Raises:
            JobNotFoundError: There is no such job.
        """
        rows = await self._statements.fetch("inspect_published", job_id, MAX_NAMES, MAX_LAST_ITEMS)
        if not rows:
            raise JobNotFoundError(job_id)
        # A job that has published nothing has one row, without a name.
        return [PublishedRow(*row) for row in rows if row["name"] is not None]

    async def waits(self, job_id: str) -> list[WaitRow]:
        """Return what a job with steps waits for, and signals that came before a wait, at most 100 in all."""
        return await self._rows(WaitRow, "inspect_waits", job_id, MAX_WAITS)
