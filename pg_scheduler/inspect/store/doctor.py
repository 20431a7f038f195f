"""Read the facts from which the doctor derives its findings."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from pg_scheduler.base.figures import Histogram
from pg_scheduler.database.migrations.shape import TABLES, index_statements
from pg_scheduler.database.migrations.verify import verify_parts
from pg_scheduler.database.statements import Repository
from pg_scheduler.errors import SchemaError
from pg_scheduler.inspect.store.connections import VERIFY_LOCK_TIMEOUT_MS
from pg_scheduler.migrate import missing_indexes

MAX_INDEXES: Final = 500
MAX_UNSUCCESSFUL: Final = 20_000
MAX_QUARANTINED: Final = 100
MAX_STATISTICS: Final = 30_000
MAX_DUE: Final = 10_000
MAX_RUNNING: Final = 1000
MAX_OLDEST: Final = 1000
MAX_SCHEDULES: Final = 10_000
MAX_STEPS: Final = 10_000
MAX_ZONED: Final = 1000
MAX_SCHEDULES_RETURNED: Final = 100
MAX_TRIGGER_BYTES: Final = 4096

SETTINGS: Final = (
    *("server_version_num", "server_version", "autovacuum", "track_counts"),
    *("autovacuum_freeze_max_age", "autovacuum_multixact_freeze_max_age"),
    *("statement_timeout", "transaction_timeout", "default_transaction_isolation"),
    *("default_transaction_read_only", "in_hot_standby"),
    *("max_connections", "superuser_reserved_connections", "reserved_connections"),
)
"""The settings that checks judge; servers before PostgreSQL 16 lack some of them."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """A table of this library.

    Attributes:
        options: Its storage settings.
        freeze_age: Transactions since its oldest row that is not frozen.
        multixact_age: Multixacts since its oldest row that is not frozen.
        live: About how many rows it has.
        dead: About how many dead rows it has.
        updates: Updates since the statistics were reset.
        hot_updates: The HOT updates among them, which wrote to no index.
        vacuumed_at: When it was last vacuumed; None if that is unknown.
        bytes: Its size, without indexes.
        total_bytes: Its size, with indexes.
    """

    name: str
    options: Mapping[str, str]
    freeze_age: int
    multixact_age: int
    live: int
    dead: int
    updates: int
    hot_updates: int
    vacuumed_at: datetime | None
    bytes: int
    total_bytes: int


class IndexRow(NamedTuple):
    """An index of a table of this library.

    Attributes:
        method: Its access method, such as ``btree``.
        constraint: The constraint that it belongs to; None for none.
        columns: The columns that its keys, expressions and condition use.
    """

    table: str
    name: str
    is_valid: bool
    method: str
    constraint: str | None
    columns: Sequence[str]


class SettingRow(NamedTuple):
    """A setting of the session, and where its value comes from, such as ``database``."""

    value: str
    source: str


OFF: Final = SettingRow("off", "default")
"""Stands for a setting that the server does not have."""


class QuarantinedRow(NamedTuple):
    """A job that reached ``max_crashes``.

    Attributes:
        examined: The number of unsuccessful jobs among which it was found.
    """

    job_id: str
    job_name: str
    crash_count: int
    finished_at: datetime
    examined: int


class ExpiryCauseRow(NamedTuple):
    """How many jobs of a name expired for one cause.

    Attributes:
        cause: One of ``ExpiryCause``, or that of another release.
        object: The limit or the share that they waited for, such as ``limit:stripe``; None for another cause.
    """

    job_name: str
    cause: str
    object: str | None
    jobs: int


class FailingRow(NamedTuple):
    """How many attempts of a job name failed, in a recent period and in the period before it.

    Attributes:
        failed: Attempts that failed in the recent period.
        decided: Attempts that count for the failure rate in the recent period.
        failed_for_good: Failed attempts after which the job was not retried.
        earlier_failed: Attempts that failed in the period before.
        earlier_decided: Attempts that count for the failure rate in the period before.
        earlier_s: The seconds that the statistics of the period before cover; None if it has none.
    """

    job_name: str
    failed: int
    decided: int
    failed_for_good: int
    earlier_failed: int
    earlier_decided: int
    earlier_s: float | None


@dataclass(frozen=True, slots=True)
class RunningRow:
    """A job that runs.

    Attributes:
        name: The name that its worker claimed.
        running_s: Seconds since its start; None if that is unknown.
        expired_s: Seconds since its lease expired, negative before; None without a lease.
        durations: How long attempts of its name took so far; None if nothing was counted.
    """

    job_id: str
    name: str
    worker_id: str | None
    attempt: int
    running_s: float | None
    expired_s: float | None
    durations: Histogram | None


class PayloadRow(NamedTuple):
    """Jobs of a name with large arguments: their number, the bytes of the largest, and the id of one job."""

    name: str
    jobs: int
    most: int
    example: str


class OverdueRow(NamedTuple):
    """A schedule that should have fired."""

    schedule_id: str
    task: str
    kinds: Sequence[str]
    overdue_s: float


class ScheduleTaskRow(NamedTuple):
    """A task, the number of its schedules, and the ids of the first ones."""

    task: str
    schedules: int
    ids: Sequence[str]


class RetiredRow(NamedTuple):
    """A schedule that the code declares no longer, its task, and since when that is known."""

    schedule_id: str
    task: str
    retired_at: datetime


class HerdRow(NamedTuple):
    """A second, the number of schedules that fire in it, and the ids of the first ones."""

    second: datetime
    schedules: int
    ids: Sequence[str]


class BrokenRow(NamedTuple):
    """A schedule that the planner paused because of an error, and the error."""

    schedule_id: str
    note: str | None


class AheadRow(NamedTuple):
    """A schedule whose next fire time was computed at a time that the clock has not reached."""

    schedule_id: str
    task: str
    next_fire_at: datetime
    computed_at: datetime


class ZonedRow(NamedTuple):
    """A trigger that names a time zone, as JSON."""

    schedule_id: str
    trigger: str
    anchor: datetime


class DoctorRepository(Repository):
    """The statements that only the doctor needs. Each reads a bounded number of rows."""

    async def schema_problem(self) -> SchemaError | None:
        """Return how the tables, without indexes, differ from those of this release; None if they do not."""
        schema = await self._statements.schema()
        connections = self._statements.connections
        async with connections.transaction(lock_timeout_ms=VERIFY_LOCK_TIMEOUT_MS) as connection:
            try:
                await verify_parts(connection, schema, optional=index_statements())
            except SchemaError as problem:
                return problem
        return None

    async def find_missing_indexes(self) -> list[str]:
        """Return the indexes that do not exist or are invalid, and that ``migrate indexes`` builds."""
        schema = await self._statements.schema()
        async with self._statements.connections.acquire() as connection:
            return await missing_indexes(connection, schema=schema)

    async def tables(self) -> list[TableRow]:
        """Return the tables with their settings and statistics."""
        rows = await self._statements.fetch("doctor_tables", await self._statements.schema(), list(TABLES))
        tables: list[TableRow] = []
        for row in rows:
            # Each option is a text, such as ``fillfactor=80``.
            options = dict(option.split("=", 1) for option in row["options"] or ())
            tables.append(TableRow(**{**row, "options": options}))
        return tables

    async def indexes(self) -> list[IndexRow]:
        """Return the first 500 indexes of the tables."""
        return await self._rows(
            IndexRow, "doctor_indexes", await self._statements.schema(), list(TABLES), MAX_INDEXES
        )

    async def settings(self) -> dict[str, SettingRow]:
        """Return the settings of ``SETTINGS`` that the server has, with their values in this session."""
        rows = await self._statements.fetch("doctor_settings", list(SETTINGS))
        return {row["name"]: SettingRow(row["value"], row["source"]) for row in rows}

    async def quarantined(self, seconds: float) -> tuple[list[QuarantinedRow], bool]:
        """Return the jobs that reached ``max_crashes`` lately, and whether there may be more.

        These are jobs of the last ``seconds`` seconds, the newest first. At most 100 are returned, among the
        newest 20,000 unsuccessful ones.
        """
        args = seconds, MAX_UNSUCCESSFUL, MAX_QUARANTINED, self._statements.now
        rows = await self._rows(QuarantinedRow, "doctor_quarantined", *args)
        # Each row has the number of all jobs that the statement examined.
        is_capped = bool(rows) and rows[0].examined >= MAX_UNSUCCESSFUL
        return rows, is_capped or len(rows) >= MAX_QUARANTINED

    async def failing(self, seconds: float, earlier_s: float) -> list[FailingRow]:
        """Return the 100 job names with most failed attempts in a period that ends now.

        Args:
            seconds: The length of the period in seconds.
            earlier_s: The length in seconds of the period before it, whose attempts are counted separately.
        """
        return await self._rows(
            FailingRow, "doctor_failing", seconds, earlier_s, MAX_STATISTICS, self._statements.now
        )

    async def expired_names(self, seconds: float) -> list[tuple[str, int]]:
        """Return the 100 job names with most jobs that expired in the last ``seconds`` seconds.

        Each name has the number of these jobs.
        """
        args = seconds, MAX_STATISTICS, self._statements.now
        rows = await self._statements.fetch("doctor_expiring", *args)
        return [(row["job_name"], row["expired"]) for row in rows]

    async def expiry_causes(self, seconds: float) -> list[ExpiryCauseRow]:
        """Return why jobs expired in the last ``seconds`` seconds.

        Only the newest 20,000 unsuccessful jobs are examined.
        """
        args = seconds, MAX_UNSUCCESSFUL, self._statements.now
        return await self._rows(ExpiryCauseRow, "doctor_expiry_causes", *args)

    async def endings(self, seconds: float) -> tuple[dict[str, int], float]:
        """Return by status how many jobs ended in the last ``seconds`` seconds, as the statistics have it.

        The second value is the number of seconds since the first of these jobs.
        """
        (row,) = await self._statements.fetch("doctor_endings", seconds, MAX_STATISTICS, self._statements.now)
        numbers = dict(row)
        seconds_since_first: float = numbers.pop("seconds")
        return numbers, seconds_since_first

    async def running(self) -> list[RunningRow]:
        """Return at most 1,000 running jobs, among the first 10,000 due ones of each priority."""
        rows = await self._statements.fetch("doctor_running", MAX_DUE, self._statements.now, MAX_RUNNING)
        return [_running_from(row) for row in rows]

    async def payloads(self, sample: int, size: int) -> list[PayloadRow]:
        """Return the names whose jobs have large arguments, among the first unfinished jobs.

        Args:
            sample: The number of jobs of each priority that are examined.
            size: The bytes, as stored, that large arguments exceed.
        """
        return await self._rows(PayloadRow, "doctor_payloads", sample, size)

    async def oldest(self) -> dict[str, float]:
        """Return by status how many seconds ago the oldest of the first 1,000 unsuccessful jobs ended."""
        rows = await self._statements.fetch("doctor_oldest", MAX_OLDEST, self._statements.now)
        return {row["status"]: row["seconds"] for row in rows}

    async def orphaned_steps(self) -> tuple[int, list[str]]:
        """Return how many of the first 10,000 stored steps belong to no job, and five ids that they name."""
        rows = await self._statements.fetch("doctor_orphaned_steps", MAX_STEPS)
        # Each row has the total number too.
        total = rows[0]["total"] if rows else 0
        return total, [row["job_id"] for row in rows]

    async def overdue(self, seconds: float) -> list[OverdueRow]:
        """Return the schedules that are overdue by more than ``seconds`` seconds, at most the worst 100."""
        return await self._rows(
            OverdueRow, "doctor_overdue", seconds, MAX_SCHEDULES_RETURNED, self._statements.now
        )

    async def lost_schedules(self, schedule_ids: Collection[str]) -> list[str]:
        """Return those of these ids that no schedule has, at most 100."""
        rows = await self._statements.fetch(
            "doctor_lost_schedules", list(schedule_ids), MAX_SCHEDULES_RETURNED
        )
        return [row["schedule_id"] for row in rows]

    async def retired(self) -> list[RetiredRow]:
        """Return the first 100 schedules that the code declares no longer."""
        return await self._rows(RetiredRow, "doctor_retired_schedules", MAX_SCHEDULES_RETURNED)

    async def schedule_tasks(self) -> tuple[list[ScheduleTaskRow], bool]:
        """Return the tasks of the first 10,000 schedules that fire next, and whether there may be more."""
        rows = await self._rows(ScheduleTaskRow, "doctor_schedule_tasks", MAX_SCHEDULES)
        return rows, sum(row.schedules for row in rows) >= MAX_SCHEDULES

    async def herds(self, size: int) -> list[HerdRow]:
        """Return the seconds in which more than this number of the first 10,000 schedules fire."""
        return await self._rows(HerdRow, "doctor_herds", MAX_SCHEDULES, size)

    async def broken(self) -> list[BrokenRow]:
        """Return at most 100 schedules that the planner paused because of an error.

        The first 10,000 schedules are examined.
        """
        rows = await self._statements.fetch("doctor_broken", MAX_SCHEDULES)
        return [BrokenRow(row["schedule_id"], row["note"]) for row in rows]

    async def ahead(self) -> list[AheadRow]:
        """Return schedules whose next fire time comes from a clock that was set back.

        At most 100 schedules are returned, among the first 10,000.
        """
        return await self._rows(AheadRow, "doctor_ahead", self._statements.now, MAX_SCHEDULES)

    async def zoned(self) -> list[ZonedRow]:
        """Return the triggers with a time zone among the first 1,000 schedules that fire next."""
        return await self._rows(ZonedRow, "doctor_zoned", MAX_ZONED, MAX_TRIGGER_BYTES)


def _running_from(row: Any) -> RunningRow:
    """Return a row of the statement as a `RunningRow`, with the histogram of durations in one value."""
    values = dict(row)
    buckets = values.pop("run_hist")
    total_s = values.pop("run_sum") or 0.0
    # A row of another release may have other buckets, which cannot be compared.
    is_comparable = buckets is not None and len(buckets) == len(Histogram().buckets)
    durations = Histogram(tuple(number or 0 for number in buckets), total_s) if is_comparable else None
    return RunningRow(**values, durations=durations)
