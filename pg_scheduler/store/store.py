"""Every verb of the scheduler in the database: one typed method per statement.

The store knows the schema its tables are in, the clock that decides, and how to get connections. It
resolves the schema at its first use and names it in every statement from then on.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import partial
from hashlib import md5
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

import asyncpg

from pg_scheduler.clock import Clock, SystemClock
from pg_scheduler.errors import DatabaseUnavailableError, SchemaForbiddenError, SchemaMissingError
from pg_scheduler.jobs.model import Job, JobCounts, JobStatus, Worker
from pg_scheduler.jobs.outcome import (
    CompleteOutcome,
    FailOutcome,
    Outcome,
    ReleaseOutcome,
    RetryOutcome,
    SkipOutcome,
)
from pg_scheduler.jobs.rows import Claim, GeneratedIdJob, NewJob
from pg_scheduler.migrate import REMEDY, home_schema, migrate, verify
from pg_scheduler.schedules.row import PeriodicRow
from pg_scheduler.schedules.sync import SyncPlan
from pg_scheduler.sqltext import qualify
from pg_scheduler.store.connections.pool import (
    CALL_TIMEOUT,
    HOT_TIMEOUT,
    Connections,
    PoolConnection,
    is_open,
    transact,
)
from pg_scheduler.store.connections.shared import SharedConnection
from pg_scheduler.store.copy import COLUMNS, packed
from pg_scheduler.store.faults import is_lock_timeout, translated
from pg_scheduler.store.queries import load_queries
from pg_scheduler.store.records import job_from, periodic_from, worker_from

__all__ = [
    "FROM_THE_START",
    "NO_IDS",
    "Ahead",
    "ExchangeResult",
    "Quarantined",
    "RenewResult",
    "RescueResult",
    "Since",
    "StatusChange",
    "Store",
    "VacuumDay",
    "VacuumTotal",
]

ATTEMPTS: Final = 5
QUARANTINED: Final = "quarantined: {} workers died while they ran this job. retry_job() runs it once more."
SETTLING: Final = 10.0
"""Seconds after a start of the server in which a worker without a session means nothing."""
LOST: Final = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
"""How a transaction ends that lost against another one and may simply be tried again."""

UNUSABLE: Final = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError)
"""How a statement ends that makes values of a JSON document which somebody wrote by hand."""

Use = Callable[[], AbstractAsyncContextManager[PoolConnection]]
"""A way to get a connection for one statement."""

HOT: Final = frozenset({"exchange_jobs", "complete_unlocked"})
"""Statements of the hot path, which have a connection of their own. Heartbeats do not queue up there."""

UPKEEP: Final = frozenset({"renew_lease", "look_ahead", "periodic_rows"})
"""Statements that an idle worker makes, and that may be made twice: they use the lent connection, if it is
free and answers."""

PLANNED: Final = frozenset({"renew_lease", "look_ahead", "expire_jobs", "restart_leases"})
"""Statements that need planner settings, and elsewhere get a transaction of their own for that."""

OWN: Final = PLANNED | {
    "deregister_worker",
    "suspect_workers",
    "enable_periodic",
    "held_claim",
    "periodic_rows",
    "register_worker",
    "statuses_of",
}
"""Statements that do not wait for a connection until jobs that use the pool give one back."""

CLAIM_COLUMNS: Final = len(Claim._fields)
IN_ORDER: Final = attrgetter("priority", "execution_time", "job_id")
"""The order in which jobs start; a claim has none. Ids go byte by byte, as in the index."""

Since: TypeAlias = Sequence[datetime | None]
"""For each priority, the most urgent first, the instant before which nothing is left."""

FROM_THE_START: Final[Since] = (None,) * 4

NO_IDS: Final = ("",) * 4
"""For each priority, the id before which nothing is left at that instant."""


@dataclass(frozen=True, slots=True)
class ExchangeResult:
    """What an exchange brought.

    ``jobs`` are to run, in this order; ``expired`` were found past their grace; ``due_in`` are the seconds
    until the next job of a known name is due, negative if it is already but could not be had, None if none
    waits or there were as many as asked for; ``refused`` are ids of completions that ``finish()`` has to
    decide: the job is lost, a new definition waits for it, or somebody has locked its row. ``silence`` tells
    that another worker's liveness lock can be had.
    """

    jobs: list[Claim]
    expired: list[Claim]
    due_in: float | None
    refused: set[str]
    silence: bool = False


@dataclass(frozen=True, slots=True)
class RenewResult:
    """What a renewal found.

    Attributes:
        alive: Whether the worker's row is still there.
        lost: Jobs that are no longer its own.
        late: Whether the lease was over; then the next beat is the first that counts.
    """

    alive: bool
    lost: list[str]
    late: bool = False


@dataclass(frozen=True, slots=True)
class Ahead:
    """What will be over.

    ``lapse_in`` are the seconds until the first lease ends, ``expiry_in`` those until the first waiting job
    expires; negative if it is over already, None if there is none to be seen.
    """

    lapse_in: float | None
    expiry_in: float | None


class Quarantined(NamedTuple):
    """A job that failed because too many workers died under it."""

    job_id: str
    job_name: str
    attempt: int
    error: str


@dataclass(frozen=True, slots=True)
class RescueResult:
    """What a rescue did: who is dead, which jobs are pending again, and which failed."""

    dead_workers: list[str]
    job_ids: list[str]
    quarantined: list[Quarantined] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StatusChange:
    """Whether a job was changed, which one, and the worker that ran it and has to be told."""

    changed: bool
    worker_id: str | None = None
    job_name: str = field(default="", compare=False)
    attempt: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class VacuumDay:
    """A row of ``vacuum_stats``."""

    stat_date: date
    deleted_completed: int
    deleted_failed: int
    deleted_cancelled: int
    deleted_expired: int
    last_run: datetime | None
    worker_id: str | None


@dataclass(frozen=True, slots=True)
class VacuumTotal:
    """All rows of ``vacuum_stats`` summed up."""

    total_completed: int
    total_failed: int
    total_cancelled: int
    total_expired: int
    last_vacuum_run: datetime | None


class Store:
    """The tables of one scheduler.

    Args:
        connections: Where statements run.
        schema: The schema of the tables; None for the one the search path leads to.
        clock: Gives ``now`` in tests.
    """

    def __init__(
        self, connections: Connections, *, schema: str | None = None, clock: Clock | None = None
    ) -> None:
        self.connections = connections
        self.shared = SharedConnection()
        self._clock = clock or SystemClock()
        self._schema = schema
        self._queries: Mapping[str, str] | None = None

    # -- schema ----------------------------------------------------------------------------------------

    async def schema(self, *, on: PoolConnection | None = None) -> str:
        """The schema of the tables, looked up once."""
        if self._schema is None:
            if on is not None:
                with translated():
                    self._schema = await home_schema(on)
            else:
                async with self.connections.acquire() as connection:
                    self._schema = await home_schema(connection)
        return self._schema

    async def migrate(self) -> None:
        """Bring the tables to this version, or see that they are there."""
        schema = await self.schema()
        async with self.connections.acquire() as connection:
            try:
                await verify(connection, schema=schema)
            except SchemaMissingError as missing:
                try:
                    await migrate(connection, schema=schema)
                except asyncpg.InsufficientPrivilegeError as error:
                    found = str(missing).removesuffix(REMEDY)  # this role has just failed to do that
                    raise SchemaForbiddenError(
                        f"{found}, and this database role may not create or upgrade them ({error}); call "
                        "initialize_db() as the role that owns the tables before the workers start"
                    ) from error

    async def channel(self, *, on: PoolConnection | None = None) -> str:
        """The notification channel: one per schema, short enough for any schema's name."""
        schema = await self.schema(on=on)
        return f"pg_scheduler_{md5(schema.encode(), usedforsecurity=False).hexdigest()}"

    # -- scheduling ------------------------------------------------------------------------------------

    async def insert(
        self, jobs: Sequence[NewJob], *, message: str | None = None, connection: PoolConnection | None = None
    ) -> set[str]:
        """Insert the jobs whose ids are free; their ids. If there are any, the message goes along."""
        return await self._insert(jobs, message, on=connection)

    async def insert_small(self, jobs: Sequence[NewJob], *, message: str | None = None) -> set[str]:
        """The same for a few jobs of many calls in a row, on a connection kept for a moment between them."""
        return await self._insert(jobs, message, use=self.connections.kept)

    async def copy(
        self, jobs: Sequence[GeneratedIdJob], batch_size: int, *, connection: PoolConnection | None = None
    ) -> None:
        """Insert jobs in the cheapest way; a statement for each batch."""
        if not jobs:
            return
        schema, now = await self.schema(on=connection), self._now
        columns = COLUMNS if now is None else (*COLUMNS, "created_at")
        async with self.connections.acquire() if connection is None else nullcontext(connection) as one:
            for start in range(0, len(jobs), batch_size):
                with translated():
                    await one.copy_to_table(
                        "scheduled_jobs",
                        source=packed(jobs[start : start + batch_size], now),
                        columns=columns,
                        schema_name=schema,
                        format="binary",
                        timeout=CALL_TIMEOUT,
                    )

    async def replace(self, jobs: Sequence[NewJob], *, connection: PoolConnection | None = None) -> None:
        """Insert jobs or give existing ones a new definition. The ids must differ."""
        if jobs:
            await self._fetch_again("replace_jobs", *zip(*jobs, strict=True), self._now, on=connection)

    async def statuses_of(
        self, job_ids: Collection[str], *, connection: PoolConnection | None = None
    ) -> dict[str, JobStatus]:
        """The statuses of those ids that exist."""
        rows = await self._fetch("statuses_of", list(job_ids), on=connection)
        return {row[0]: JobStatus(row[1]) for row in rows}

    @asynccontextmanager
    async def all_or_nothing(self, connection: PoolConnection | None = None) -> AsyncIterator[PoolConnection]:
        """A transaction of our own, or a savepoint in the caller's."""
        if connection is None:
            async with self.connections.transaction() as own:
                yield own
        else:
            with translated():
                async with transact(connection):
                    yield connection

    # -- the path of a job -----------------------------------------------------------------------------

    async def exchange(
        self,
        worker_id: str,
        names: Sequence[str],
        limit: int,
        *,
        completed: Sequence[Claim] = (),
        keep: bool = True,
        since: Since = FROM_THE_START,
        after: Sequence[str] = NO_IDS,
    ) -> ExchangeResult:
        """Write completions and take at most ``limit`` due jobs of these names, in one round trip.

        The completions are claims of one attempt number, each job once; not kept, their rows are deleted.
        The search for due jobs begins at ``since``, and there at the ids of ``after``. Nothing of it waits
        for long for a row that somebody else has locked.
        """
        ids = [claim.job_id for claim in completed]
        attempt = completed[0].attempt if completed else 0
        locked: set[str] = set()
        try:
            rows = await self._fetch(
                "exchange_jobs", worker_id, names, limit, self._now, ids, attempt, *since, keep, after
            )
        except DatabaseUnavailableError as fault:
            if not (ids and is_lock_timeout(fault)):
                raise
            done = await self._fetch("complete_unlocked", worker_id, self._now, ids, attempt, keep)
            locked = {*ids} - {row[0] for row in done}
            rows = await self._fetch(
                "exchange_jobs", worker_id, names, limit, self._now, [], 0, *since, keep, after
            )
        told = rows.pop()
        jobs: list[Claim] = []
        expired: list[Claim] = []
        for row in rows:
            claim = Claim._make(row[:CLAIM_COLUMNS])
            (expired if row[CLAIM_COLUMNS] else jobs).append(claim)
        jobs.sort(key=IN_ORDER)
        refused = locked.union(told["refused"] or ())
        return ExchangeResult(jobs, expired, told["due"], refused, told["silence"])

    async def finish(self, worker_id: str, outcomes: Sequence[tuple[Claim, Outcome]]) -> set[str]:
        """Write outcomes of any kind under their tokens, each job once, in one transaction.

        Returns:
            The ids of those that were accepted, as they are or for a new definition that waited.
        """
        settled = {claim.job_id: _settlement(claim, outcome) for claim, outcome in outcomes}
        async with self.connections.transaction(own=True) as connection:
            return await self._settle(settled, worker_id, connection)

    async def held_claim(self, job_id: str, worker_id: str) -> Claim | None:
        """The claim this worker has on a job, as the row says; None if it has none."""
        rows = await self._fetch("held_claim", job_id, worker_id)
        return Claim._make(rows[0]) if rows else None

    async def cancel(self, job_id: str) -> StatusChange:
        """Cancel a pending or running job."""
        return _status_change(await self._fetch("cancel_job", job_id, self._now))

    async def retry(self, job_id: str) -> bool:
        """Make a job that ended pending, due now, its retries and crashes unused; whether there was one."""
        return bool(await self._fetch("retry_job", job_id, self._now))

    async def set_status(self, job_id: str, status: JobStatus, lease: float) -> StatusChange:
        """Set a status by hand; ``running`` reserves the job for ``lease`` seconds."""
        return _status_change(await self._fetch("set_status", job_id, status.value, lease, self._now))

    # -- workers ---------------------------------------------------------------------------------------

    async def register(self, worker: Worker, lease: float, liveness_key: int | None = None) -> None:
        """Give the worker a row, a lease of so many seconds, and the key of the lock it holds."""
        await self._fetch(
            "register_worker",
            worker.worker_id,
            worker.hostname,
            worker.pid,
            worker.version,
            worker.max_concurrent_jobs,
            lease,
            self._now,
            liveness_key,
        )

    async def renew(
        self,
        worker_id: str,
        held: Mapping[str, int],
        lease: float,
        *,
        ended: Mapping[str, int] | None = None,
        liveness_key: int | None = None,
        on: PoolConnection | None = None,
    ) -> RenewResult:
        """Renew the worker's lease and those of its jobs, by id and attempt; tell its key.

        Jobs that have ended, and whose results are not written yet, are still its own.
        """
        own = {**(ended or {}), **held}
        args = (worker_id, list(own), json.dumps(own), lease, self._now, liveness_key, len(held))
        (row,) = await self._fetch("renew_lease", *args, on=on)
        return RenewResult(row["alive"], row["lost"], row["late"])

    async def suspect_workers(self, worker_id: str, *, silence: bool = True) -> dict[str, object]:
        """Other workers whose lease is over, or whose session ended; each with what changes if it lives."""
        rows = await self._fetch("suspect_workers", worker_id, SETTLING, silence, self._now)
        return {row[0]: (row[1], row[2]) for row in rows}

    async def deregister(self, worker_id: str) -> None:
        """Remove the worker's row."""
        await self._fetch("deregister_worker", worker_id)

    async def workers(self) -> list[Worker]:
        """Every worker with a row, the oldest first."""
        return [worker_from(row) for row in await self._fetch("list_workers", self._now)]

    async def restart_leases(self, limit: int = 1000) -> None:
        """Let leases begin now that were given by a clock which has been put back since."""
        await self._fetch("restart_leases", self._now, limit)

    async def rescue(
        self,
        heartbeat_threshold: float,
        limit: int = 1000,
        *,
        suspects: Sequence[str] | None = None,
        max_crashes: int | None = None,
    ) -> RescueResult:
        """Declare workers dead, and release running jobs that nobody holds any more.

        Dead are those of ``suspects`` without a lease, or whose liveness lock can be had; None for all
        without a lease. A job under which ``max_crashes`` workers died fails instead.
        """
        async with self.connections.transaction(own=True) as connection:
            dead = [
                row[0] for row in await self._fetch("delete_dead_workers", self._now, suspects, on=connection)
            ]
            orphans = await self._fetch(
                "lock_orphans", dead, self._now, heartbeat_threshold, limit, on=connection
            )
            outcomes = {row["job_id"]: _orphaned(row, max_crashes) for row in orphans}
            rescued: set[str] = set()
            for worker_id in {row["worker_id"] for row in orphans}:
                own = {row["job_id"] for row in orphans if row["worker_id"] == worker_id}
                settled = {job_id: outcome for job_id, outcome in outcomes.items() if job_id in own}
                rescued |= await self._settle(settled, worker_id, connection)
        quarantined = [
            Quarantined(row["job_id"], row["job_name"], row["attempt"], error)
            for row in orphans
            if row["job_id"] in rescued and (error := outcomes[row["job_id"]]["error"])
        ]
        pending = rescued - {failed.job_id for failed in quarantined}
        return RescueResult(dead, sorted(pending), quarantined)

    async def release_unacknowledged(
        self, worker_id: str, known: Mapping[str, int], limit: int = 1000
    ) -> list[str]:
        """Release what the worker claimed and never heard of: all but those, by id and attempt. Their ids."""
        async with self.connections.transaction(own=True) as connection:
            rows = await self._fetch(
                "lock_unacknowledged", worker_id, json.dumps(known), self._now, limit, on=connection
            )
            released = {row["job_id"]: _release(row["attempt"]) for row in rows}
            return sorted(await self._settle(released, worker_id, connection) if released else ())

    # -- upkeep ----------------------------------------------------------------------------------------

    async def look_ahead(self, horizon: float, heartbeat_threshold: float) -> Ahead:
        """Look when something will be over, among all workers and the jobs due within so many seconds."""
        (row,) = await self._fetch("look_ahead", self._now, horizon, heartbeat_threshold)
        return Ahead(row["lapse_in"], row["expiry_in"])

    async def expire(self, limit: int) -> list[tuple[str, str, int]]:
        """Expire pending jobs past their grace; id, name and attempt of each."""
        return [(row[0], row[1], row[2]) for row in await self._fetch("expire_jobs", self._now, limit)]

    async def table_blocks(self) -> int:
        """The size of the jobs table in blocks."""
        blocks: int = await self._value(
            "table_blocks", qualify("{schema}scheduled_jobs", await self.schema())
        )
        return blocks

    async def vacuum_blocks(
        self, first: int, end: int, cutoffs: Mapping[JobStatus, datetime]
    ) -> dict[JobStatus, int]:
        """Delete within these blocks what ended before the cutoff of its status; how many of each."""
        instants = json.dumps({status.value: instant.isoformat() for status, instant in cutoffs.items()})
        rows = await self._fetch("vacuum_blocks", (first, 0), (end, 0), instants)
        return {JobStatus(row[0]): row[1] for row in rows}

    async def vacuum_surplus(self, status: JobStatus, keep: int, limit: int) -> int:
        """Delete jobs of a status beyond the newest ``keep`` of each name; how many."""
        count: int = await self._value("vacuum_surplus", status.value, keep, limit)
        return count

    async def record_vacuum(self, deleted: Mapping[JobStatus, int], worker_id: str) -> None:
        """Add to the day's counts."""
        order = (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.EXPIRED)
        await self._fetch("record_vacuum", *(deleted.get(each, 0) for each in order), worker_id, self._now)

    async def vacuum_stats(self, days: int) -> list[VacuumDay]:
        """Counts of the last days, the newest first."""
        return [VacuumDay(**dict(row)) for row in await self._fetch("vacuum_stats", days, self._now)]

    async def total_vacuum_stats(self) -> VacuumTotal:
        """Counts of all days."""
        (row,) = await self._fetch("total_vacuum_stats")
        return VacuumTotal(**dict(row))

    # -- looking ---------------------------------------------------------------------------------------

    async def get_job(self, job_id: str) -> Job | None:
        """One job, or None."""
        rows = await self._fetch("get_job", job_id)
        return job_from(rows[0]) if rows else None

    async def list_jobs(
        self,
        *,
        after: str | None,
        statuses: Sequence[JobStatus] | None,
        job_name: str | None,
        worker_id: str | None,
        due_from: datetime | None,
        due_before: datetime | None,
        limit: int,
    ) -> list[Job]:
        """A page of jobs in the order of their ids."""
        wanted = None if statuses is None else [status.value for status in statuses]
        rows = await self._fetch("list_jobs", after, wanted, job_name, worker_id, due_from, due_before, limit)
        return [job_from(row) for row in rows]

    async def count_jobs(self, job_name: str | None) -> JobCounts:
        """How many jobs have each status."""
        return JobCounts(**{row[0]: row[1] for row in await self._fetch("count_jobs", job_name)})

    async def waiting_names(self) -> list[str]:
        """Names of jobs that are not finished."""
        return [row[0] for row in await self._fetch("waiting_names")]

    async def now(self, *, on: PoolConnection | None = None) -> datetime:
        """The clock that decides."""
        now: datetime = await self._value("now", self._now, on=on)
        return now

    # -- periodic --------------------------------------------------------------------------------------

    async def periodic_rows(self, *, on: PoolConnection | None = None) -> dict[str, PeriodicRow]:
        """Every schedule by dedup key."""
        return (await self.periodic_rows_and_now(on=on))[0]

    async def periodic_rows_and_now(
        self, *, on: PoolConnection | None = None
    ) -> tuple[dict[str, PeriodicRow], datetime | None]:
        """The same, with the time by the clock that decides; None if there is no schedule."""
        rows = await self._fetch("periodic_rows", self._now, on=on)
        schedules = map(periodic_from, rows)
        return {each.dedup_key: each for each in schedules}, rows[0]["now"] if rows else None

    @asynccontextmanager
    async def periodic_locked(self) -> AsyncIterator[PoolConnection]:
        """A transaction in which nobody else writes schedules."""
        async with self.connections.transaction(own=True) as connection:
            await self._execute("lock_periodic", on=connection)
            yield connection

    async def chained_runs(self, dedup_keys: Sequence[str], *, on: PoolConnection) -> dict[str, datetime]:
        """When the waiting jobs of 0.2.x chains are due, by dedup key."""
        found = {}
        for key in dedup_keys:
            instant = await self._value("last_chained_run", key, on=on)
            if instant is not None:
                found[key] = instant
        return found

    async def write_periodic(self, merge: SyncPlan, *, on: PoolConnection) -> None:
        """Write what a merge says."""
        for key in merge.delete:
            await self._fetch("delete_periodic", key, on=on)
        for row in merge.write:
            await self._fetch(
                "upsert_periodic",
                row.dedup_key,
                row.derived_key,
                row.job_name,
                row.function,
                row.every,
                row.cron,
                row.timezone,
                row.use_advisory_lock,
                row.priority,
                row.max_retries,
                row.enabled,
                row.enabled_in_code,
                row.anchor,
                row.last_fire_at,
                row.next_fire_at,
                self._now,
                on=on,
            )

    async def due_periodic(self, dedup_keys: Sequence[str], *, on: PoolConnection) -> list[PeriodicRow]:
        """Schedules among these whose time has come, locked; others may be planning the rest."""
        return [periodic_from(row) for row in await self._fetch("due_periodic", dedup_keys, self._now, on=on)]

    async def move_periodic(
        self, dedup_key: str, window: datetime | None, next_fire_at: datetime, *, on: PoolConnection
    ) -> None:
        """Move a schedule on; ``window`` is the one that was enqueued, if one was."""
        await self._fetch("move_periodic", dedup_key, window, next_fire_at, self._now, on=on)

    async def enable_periodic(self, dedup_key: str, enabled: bool) -> bool:
        """Switch a schedule on or off; False if it has no row."""
        return bool(await self._fetch("enable_periodic", dedup_key, enabled, self._now))

    # -- messages and locks ----------------------------------------------------------------------------

    async def notify(self, messages: Sequence[str], *, connection: PoolConnection | None = None) -> None:
        """Send messages to every node that listens, when the transaction commits."""
        channel = await self.channel(on=connection)
        kept = partial(self.connections.kept, own=True)
        await self._fetch("notify", channel, messages, on=connection, use=kept)

    @asynccontextmanager
    async def advisory_lock(self, key: int) -> AsyncIterator[bool]:
        """Hold a lock on one connection through the block; False if somebody else has it.

        Should the connection break within the block, the lock is gone with it: the lock keeps runs
        apart, the fence keeps their results apart.
        """
        queries = load_queries(await self.schema())
        async with self.connections.hold_for_a_lock() as connection:
            with translated():
                taken: bool = await connection.fetchval(
                    queries["take_advisory_lock"], key, timeout=CALL_TIMEOUT
                )
            try:
                yield taken
            finally:
                if taken and is_open(connection):
                    with translated():
                        await connection.fetchval(queries["drop_advisory_lock"], key, timeout=CALL_TIMEOUT)

    # -- inner -----------------------------------------------------------------------------------------

    @property
    def _now(self) -> datetime | None:
        return self._clock.override()

    async def _insert(
        self,
        jobs: Sequence[NewJob],
        message: str | None,
        *,
        on: PoolConnection | None = None,
        use: Use | None = None,
    ) -> set[str]:
        if not jobs:
            return set()
        columns = jobs[0] if len(jobs) == 1 else zip(*jobs, strict=True)
        if message is None and all(isinstance(job, GeneratedIdJob) for job in jobs):
            if len(jobs) == 1:
                await self._fetch_again("insert_generated_job", *columns, self._now, on=on, use=use)
            else:
                await self._fetch_again("insert_generated_jobs", *columns, self._now, on=on, use=use)
            return {job.job_id for job in jobs}
        last = (self._now, await self.channel(on=on) if message else None, message)
        if len(jobs) == 1:
            rows = await self._fetch_again("insert_job", *columns, *last, on=on, use=use)
        else:
            rows = await self._fetch_again("insert_jobs", *columns, *last, on=on, use=use)
        return {row[0] for row in rows}

    async def _settle(
        self, settled: Mapping[str, Mapping[str, Any]], worker_id: str, connection: PoolConnection
    ) -> set[str]:
        """Write outcomes; what is refused may have a new definition waiting, or be there already."""
        accepted = await self._write("settle_jobs", settled, worker_id, connection)
        for refusal in (self._replace_ended, self._find_settled):
            refused = {job_id: token for job_id, token in settled.items() if job_id not in accepted}
            accepted |= await refusal(refused, worker_id, connection)
        return accepted

    async def _find_settled(
        self, tokens: Mapping[str, Mapping[str, Any]], worker_id: str, connection: PoolConnection
    ) -> set[str]:
        """Those whose outcome was written before, by a call whose answer was lost."""
        if not tokens:
            return set()
        rows = await self._fetch(
            "already_settled", list(tokens), json.dumps(tokens), worker_id, on=connection
        )
        return {row[0] for row in rows}

    async def _replace_ended(
        self, tokens: Mapping[str, Mapping[str, Any]], worker_id: str, connection: PoolConnection
    ) -> set[str]:
        """Give rows their new definitions. One that no row can take is written down as its job's failure."""
        if not tokens:
            return set()
        try:
            async with transact(connection):
                return await self._write("apply_replacements", tokens, worker_id, connection)
        except UNUSABLE as error:
            if len(tokens) > 1:  # one of them is to blame
                return set().union(
                    *[await self._replace_ended({one: tokens[one]}, worker_id, connection) for one in tokens]
                )
            ((job_id, token),) = tokens.items()
            why = f"the new definition that waited for this job cannot be used: {error}"
            await self._fetch(
                "refuse_replacement", job_id, worker_id, token["attempt"], why, self._now, on=connection
            )
            return set()

    async def _write(
        self, name: str, by_id: Mapping[str, Mapping[str, Any]], worker_id: str, connection: PoolConnection
    ) -> set[str]:
        if not by_id:
            return set()
        rows = await self._fetch(name, list(by_id), json.dumps(by_id), worker_id, self._now, on=connection)
        return {row[0] for row in rows}

    async def _fetch(
        self, name: str, *args: Any, on: PoolConnection | None = None, use: Use | None = None
    ) -> list[asyncpg.Record]:
        query = load_queries(self._schema or await self.schema(on=on))[name]
        if on is not None:
            with translated():
                return list(await on.fetch(query, *args, timeout=CALL_TIMEOUT))
        if name in UPKEEP and self.shared.is_free:
            with suppress(DatabaseUnavailableError):  # whatever it was: there is another connection to ask
                return await self.shared.fetch(query, *args)
        if use is None and name in HOT:
            use = self.connections.steady
        elif use is None:
            way = self.connections.transaction if name in PLANNED else self.connections.acquire
            use = partial(way, own=name in OWN)
        timeout = HOT_TIMEOUT if name in HOT else CALL_TIMEOUT
        async with use() as connection:
            return list(await connection.fetch(query, *args, timeout=timeout))

    async def _fetch_again(
        self, name: str, *args: Any, on: PoolConnection | None = None, use: Use | None = None
    ) -> list[asyncpg.Record]:
        """As ``_fetch``; a statement of our own that lost a deadlock is simply run again."""
        for _ in range(ATTEMPTS - 1 if on is None else 0):
            try:
                return await self._fetch(name, *args, use=use)
            except DatabaseUnavailableError as fault:
                if not isinstance(fault.__cause__, LOST):
                    raise
        return await self._fetch(name, *args, on=on, use=use)

    async def _value(self, name: str, *args: Any, on: PoolConnection | None = None) -> Any:
        rows = await self._fetch(name, *args, on=on)
        return rows[0][0] if rows else None

    async def _execute(self, name: str, *, on: PoolConnection) -> None:
        query = load_queries(await self.schema())[name]
        with translated():
            await on.execute(query, timeout=CALL_TIMEOUT)


def _release(attempt: int) -> dict[str, Any]:
    return {"attempt": attempt, "status": "pending", "error": None, "delay": 0, "retries": 0, "crashes": 0}


def _orphaned(row: asyncpg.Record, max_crashes: int | None) -> dict[str, Any]:
    """What becomes of a job that nobody holds."""
    outcome = _release(row["attempt"])
    if not row["crashed"]:
        return outcome
    outcome["crashes"] = 1
    crashes = row["crash_count"] + 1
    if max_crashes is not None and crashes >= max_crashes:
        outcome |= {"status": "failed", "error": QUARANTINED.format(crashes)}
    return outcome


def _settlement(claim: Claim, outcome: Outcome) -> dict[str, Any]:
    base = _release(claim.attempt)
    match outcome:
        case CompleteOutcome():
            return base | {"status": "completed"}
        case FailOutcome(error=error):
            return base | {"status": "failed", "error": error}
        case RetryOutcome(delay=delay, error=error):
            return base | {"error": error, "delay": delay.total_seconds(), "retries": 1}
        case SkipOutcome(reason):
            return base | {"status": "cancelled", "error": reason}
        case ReleaseOutcome():
            return base


def _status_change(rows: Sequence[asyncpg.Record]) -> StatusChange:
    return StatusChange(True, *rows[0]) if rows else StatusChange(False)
