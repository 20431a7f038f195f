"""The protocol of claims, leases and fencing tokens, twice: as plain rules about rows, and as statements.

A rule states what one operation makes of a committed state. The ``World`` runs operations of the real store
concurrently, each in its own session and transaction, one statement or commit per turn. The server reports
which session waits for a lock. After each commit the world checks that every row follows by a rule from a
state that was committed while the operation ran, and that the invariants hold.
"""

from __future__ import annotations

import asyncio
import json
import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain, combinations
from typing import Any, ClassVar, NamedTuple

import asyncpg

from pg_scheduler.base.status import JobStatus
from pg_scheduler.clock import FakeClock
from pg_scheduler.database.faults import translated
from pg_scheduler.database.pool import Connections
from pg_scheduler.database.session import Connection
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.events import JobCancelled, JobCompleted, JobFailed, JobRetried, JobSnoozed
from pg_scheduler.jobs.outcome import COMPLETE, Outcome
from pg_scheduler.jobs.rows import Claim, PlainJob
from pg_scheduler.queue.jobs import ExpiredJob, StatusChange
from pg_scheduler.scheduler.store import Store
from pg_scheduler.worker.claims import ExchangeResult
from pg_scheduler.worker.worker_rows import RenewResult, RescueResult
from tests.support.patience import PATIENCE
from tests.support.store import LEASE, NAME, NOW, SECOND, new_job, worker

MAX_CRASHES = 2
GRACE = 90
SOON = 0.002
"""Seconds after which the test asks the server whether a session waits for a lock."""
LIVENESS = {"w1": 101, "w2": 102, "w3": 103}
"""The liveness lock of each worker."""
EXTENSION = LEASE
"""Seconds for which a held liveness lock extends an expired lease."""
LIMIT = 10

ENDED = {"completed", "failed", "cancelled", "expired"}


class Row(NamedTuple):
    """A job, as the protocol sees it."""

    status: str
    worker: str | None
    attempt: int
    definition: int
    waiting: int | None
    retries: int
    crashes: int
    grace: int | None
    due: datetime
    expires: datetime | None
    lease: datetime | None
    ended: datetime | None

    @property
    def token(self) -> tuple[str | None, int] | None:
        """The worker and attempt that may settle the job."""
        return (self.worker, self.attempt) if self.status == "running" else None


class Lease(NamedTuple):
    """A worker, as the protocol sees it."""

    beat: datetime
    until: datetime
    stopping: bool = False
    held: frozenset[tuple[str, int]] | None = None
    """The attempts that run on in a worker that is stopping, as its last heartbeat named them."""


class State(NamedTuple):
    """The committed rows."""

    jobs: Mapping[str, Row]
    workers: Mapping[str, Lease]
    locked: frozenset[str]
    """Workers whose process holds its liveness lock."""


def after(instant: datetime, seconds: float | None) -> datetime | None:
    return None if seconds is None else instant + seconds * SECOND


def pending(row: Row, now: datetime, **changes: Any) -> Row:
    """Return the row as pending again."""
    row = row._replace(status="pending", worker=None, waiting=None, lease=None, ended=None, **changes)
    return row._replace(expires=after(max(row.due, now) if "due" in changes else now, row.grace))


def ended(row: Row, status: str, now: datetime, **changes: Any) -> Row:
    return row._replace(status=status, waiting=None, lease=None, ended=now, **changes)


class Op(ABC):
    """One operation of one session; ``now`` is when its transaction began."""

    skips: ClassVar[bool] = False
    """Whether it skips locked rows."""
    now: datetime = NOW
    answer: Any = None

    @abstractmethod
    async def run(self, store: Store) -> Any:
        """Run the operation."""

    def job(self, job_id: str, row: Row | None, state: State) -> Row | None:
        """Return what the operation makes of a job."""
        return row

    def lease(self, worker_id: str, lease: Lease | None, state: State) -> Lease | None:
        """Return what the operation makes of a worker's row."""
        return lease

    def job_ids(self) -> Sequence[str]:
        """Return the jobs that it may insert."""
        return ()

    def effects(self, state: State) -> Iterator[State]:
        """Return the states that it may make of a state."""
        jobs = {each: self.job(each, state.jobs.get(each), state) for each in {*state.jobs, *self.job_ids()}}
        names = {*state.workers, getattr(self, "worker_id", "w1")}
        leases = {each: self.lease(each, state.workers.get(each), state) for each in names}
        yield State(
            {key: row for key, row in jobs.items() if row},
            {key: lease for key, lease in leases.items() if lease},
            state.locked,
        )

    def check(self, before: State, now: State) -> None:  # noqa: B027 - not every operation has an answer
        """Assert that the answer describes the change."""


def changed(before: State, now: State) -> set[str]:
    keys = {*before.jobs, *now.jobs}
    return {key for key in keys if before.jobs.get(key) != now.jobs.get(key)}


@dataclass
class Register(Op):
    worker_id: str

    async def run(self, store: Store) -> None:
        await store.workers.register(worker(self.worker_id), LEASE, LIVENESS[self.worker_id], EXTENSION)

    def lease(self, worker_id: str, lease: Lease | None, state: State) -> Lease | None:
        if worker_id != self.worker_id:
            return lease
        return (lease or Lease(self.now, self.now))._replace(beat=self.now, until=self.now + LEASE * SECOND)


@dataclass
class MarkStopping(Op):
    worker_id: str

    async def run(self, store: Store) -> None:
        await store.workers.mark_stopping(self.worker_id)

    def lease(self, worker_id: str, lease: Lease | None, state: State) -> Lease | None:
        return lease._replace(stopping=True) if lease and worker_id == self.worker_id else lease


@dataclass
class HoldRow(Op):
    """A transaction of the application that locks the row of a job, until its commit."""

    job_id: str

    async def run(self, store: Store) -> None:
        async with store.connections.transaction() as connection:
            await connection.execute(
                f"SELECT FROM scheduled_jobs WHERE job_id = '{self.job_id}' FOR UPDATE", timeout=PATIENCE
            )


@dataclass
class Deregister(Op):
    worker_id: str

    async def run(self, store: Store) -> None:
        await store.workers.deregister(self.worker_id)

    def lease(self, worker_id: str, lease: Lease | None, state: State) -> Lease | None:
        return None if worker_id == self.worker_id else lease


@dataclass
class Insert(Op):
    new: PlainJob
    number: int = 0

    async def run(self, store: Store) -> set[str]:
        return await store.inserts.insert([self.new])

    def job_ids(self) -> Sequence[str]:
        return [self.new.job_id]

    def fresh(self) -> Row:
        grace = self.new.misfire_grace_time
        due = self.new.execution_time
        return Row("pending", None, 0, self.number, None, 0, 0, grace, due, after(due, grace), None, None)

    def job(self, job_id: str, row: Row | None, state: State) -> Row | None:
        return self.fresh() if row is None and job_id == self.new.job_id else row

    def check(self, before: State, now: State) -> None:
        assert changed(before, now) == self.answer


@dataclass
class Replace(Insert):
    async def run(self, store: Store) -> set[str]:
        await store.inserts.replace([self.new])
        return {self.new.job_id}

    def job(self, job_id: str, row: Row | None, state: State) -> Row | None:
        if job_id != self.new.job_id:
            return row
        if row is not None and row.status == "running":
            return row._replace(waiting=self.number)
        return self.fresh() if row is None else self.fresh()._replace(attempt=row.attempt)

    def check(self, before: State, now: State) -> None:
        assert changed(before, now) <= self.answer


@dataclass
class ExchangeOp(Op):
    """Write completions and claim jobs."""

    skips: ClassVar[bool] = True
    worker_id: str
    completed: Sequence[Claim] = ()
    limit: int = LIMIT
    crashed: bool = True

    async def run(self, store: Store) -> ExchangeResult:
        return await store.claims.exchange(
            self.worker_id, [NAME], self.limit, completed=self.completed, crashed=self.crashed
        )

    def effects(self, state: State) -> Iterator[State]:
        (every,) = super().effects(state)
        pending = {key for key, row in state.jobs.items() if row.status == "pending"}
        claimed = {key for key in pending if every.jobs[key].status != "pending"}
        crashed = {key for key in claimed if state.jobs[key].crashes}
        for one in crashed if self.crashed and crashed else {None}:  # any one of them, or none
            left = {key: state.jobs[key] for key in crashed - {one}}
            yield every._replace(jobs={**every.jobs, **left})

    def job(self, job_id: str, row: Row | None, state: State) -> Row | None:
        if row is None:
            return row
        lease = state.workers.get(self.worker_id)
        for claim in self.completed:
            if (
                job_id == claim.job_id
                and row.token == (self.worker_id, claim.attempt)
                and row.waiting is None
            ):
                return ended(row, "completed", self.now)
        if (
            not self.limit
            or row.status != "pending"
            or row.due > self.now
            or not lease
            or lease.until <= self.now
        ):
            return row
        row = row._replace(worker=self.worker_id)
        if row.expires is not None and row.expires < self.now:
            return ended(row, "expired", self.now)
        return row._replace(status="running", attempt=row.attempt + 1, lease=lease.until)

    def check(self, before: State, now: State) -> None:
        answer: ExchangeResult = self.answer
        if answer.jobs:
            assert self.worker_id in before.workers, "who was declared dead claims nothing"
        for claim in answer.jobs:
            row = now.jobs[claim.job_id]
            assert row.token == (self.worker_id, claim.attempt)
            assert f"[{row.definition}]" in claim.task_data
            assert row.expires is None or row.expires >= self.now, "an expired job never runs"
        finished = {claim.job_id for claim in self.completed} - answer.refused
        crashed = [each.job_id for each in (*answer.jobs, *answer.expired) if now.jobs[each.job_id].crashes]
        assert crashed == ([answer.crashed] if answer.crashed else []), "at most one job of a dead worker"
        assert self.crashed or not crashed
        reported = [claim.job_id for claim in (*answer.jobs, *answer.expired)]
        assert changed(before, now) == {*reported, *finished}
        assert len(reported) + len(finished) == len({*reported, *finished})


@dataclass
class Renew(Op):
    skips: ClassVar[bool] = True
    worker_id: str
    held: Mapping[str, int]

    async def run(self, store: Store) -> RenewResult:
        liveness = LIVENESS[self.worker_id]
        return await store.workers.renew(
            self.worker_id, self.held, LEASE, liveness_key=liveness, extension_s=EXTENSION
        )

    def job(self, job_id: str, row: Row | None, state: State) -> Row | None:
        token = (self.worker_id, self.held.get(job_id))
        if row is None or row.token != token or self.worker_id not in state.workers:
            return row
        return row._replace(lease=self.now + LEASE * SECOND)

    def lease(self, worker_id: str, lease: Lease | None, state: State) -> Lease | None:
        if not lease or worker_id != self.worker_id:
            return lease
        was_over = lease.until < self.now  # such a heartbeat does not count
        return Lease(
            lease.beat if was_over else self.now,
            self.now + LEASE * SECOND,
            lease.stopping,
            frozenset(self.held.items()) if lease.stopping else lease.held,
        )

    def check(self, before: State, now: State) -> None:
        renewal: RenewResult = self.answer
        if renewal.alive:
            assert now.workers[self.worker_id] == self.lease(
                self.worker_id, before.workers[self.worker_id], before
            )
        for job_id, attempt in self.held.items():
            row = before.jobs.get(job_id)
            own = row is not None and row.token == (self.worker_id, attempt) and renewal.alive
            assert not (own and job_id in renewal.lost), "a held job is not lost"


@dataclass
class Finish(Op):
    worker_id: str
    outcomes: Sequence[tuple[Claim, Outcome]]
    definitions: Mapping[int, PlainJob]

    async def run(self, store: Store) -> set[str]:
        return await store.results.settle(self.worker_id, self.outcomes)

    def job(self, job_id: str, row: Row | None, state: State) -> Row | None:
        for claim, outcome in self.outcomes:
            if row and job_id == claim.job_id and row.token == (self.worker_id, claim.attempt):
                return self.settled(row, outcome)
        return row

    def settled(self, row: Row, outcome: Outcome) -> Row:  # noqa: PLR0911 - one for each outcome
        if row.waiting is not None:
            return defined(row, self.definitions[row.waiting], self.now)
        assert outcome.make_event is not None
        match outcome.make_event("job", "name", 1):
            case JobCompleted():
                return ended(row, "completed", self.now)
            case JobFailed():
                return ended(row, "failed", self.now)
            case JobCancelled():
                return ended(row, "cancelled", self.now)
            case JobRetried(delay=delay):
                return pending(row, self.now, retries=row.retries + 1, due=self._due(row, delay))
            case JobSnoozed(delay=delay):
                return pending(row, self.now, due=self._due(row, delay))
            case _:
                return pending(row, self.now)

    def _due(self, row: Row, delay: timedelta) -> datetime:
        """Return when a job is due that runs again. One without a delay stays where it is in the queue."""
        return self.now + delay if delay else row.due

    def check(self, before: State, now: State) -> None:
        written = changed(before, now)
        assert written <= self.answer, "what was written is accepted"
        outcomes = {claim.job_id: (claim.attempt, outcome) for claim, outcome in self.outcomes}
        for job_id in self.answer - written:
            row, (attempt, outcome) = before.jobs[job_id], outcomes[job_id]
            there = (row.worker, row.attempt, row.status)
            assert there == (self.worker_id, attempt, self.settled(row, outcome).status), "or it was there"
            assert row.ended


def defined(row: Row, new: PlainJob, now: datetime) -> Row:
    """Return the row with its replacement applied."""
    assert row.waiting is not None
    changes = {"definition": row.waiting, "retries": 0, "crashes": 0, "grace": new.misfire_grace_time}
    return pending(row, now, **changes, due=new.execution_time)


@dataclass
class RescueOp(Op):
    skips: ClassVar[bool] = True
    definitions: Mapping[int, PlainJob]
    suspects: Sequence[str] = ()
    """Suspects; None for every worker whose lease expired."""
    worker_id: str | None = None
    """The worker that asks."""
    known: Mapping[str, int] = field(default_factory=dict)
    """The attempts that it knows, by job id."""

    async def run(self, store: Store) -> RescueResult:
        return await store.workers.rescue(
            120,
            suspects=self.suspects or None,
            max_crashes=MAX_CRASHES,
            worker_id=self.worker_id,
            known_attempts=lambda: self.known,
        )

    def effects(self, state: State) -> Iterator[State]:
        dead = [
            worker_id
            for worker_id, lease in state.workers.items()
            if (worker_id in self.suspects if self.suspects else lease.until < self.now)
            and (worker_id not in state.locked or lease.until + EXTENSION * SECOND < self.now)
        ]
        some = chain.from_iterable(combinations(dead, count) for count in range(len(dead), -1, -1))
        for found in some:  # workers that are claiming are skipped
            workers = {key: lease for key, lease in state.workers.items() if key not in found}
            left = state._replace(workers=workers)
            jobs = {key: self.released(key, row, found, state) for key, row in state.jobs.items()}
            yield left._replace(jobs=jobs)

    def released(self, job_id: str, row: Row, dead: Sequence[str], state: State) -> Row:
        if row.status != "running" or row.due > self.now:
            return row
        assert row.lease is not None
        assert row.worker is not None
        lease = state.workers.get(row.worker)
        is_dead = row.worker in dead
        if not is_dead and row.lease >= (lease.beat if lease else self.now):
            return row
        is_known = row.worker != self.worker_id or self.known.get(job_id) == row.attempt
        is_named = lease is None or lease.held is None or (job_id, row.attempt) in lease.held
        # A live worker alone can tell that it does not have the job.
        if lease and not is_dead and is_known and is_named:
            return row
        if row.waiting is not None:
            return defined(row, self.definitions[row.waiting], self.now)
        crashed = is_dead and lease is not None and not lease.stopping
        crashes = row.crashes + crashed
        if crashed and crashes >= MAX_CRASHES:
            return ended(row, "failed", self.now, crashes=crashes)
        return pending(row, self.now, crashes=crashes)

    def check(self, before: State, now: State) -> None:
        answer: RescueResult = self.answer
        assert set(before.workers) - set(now.workers) == set(answer.dead_workers)
        assert changed(before, now) == {*answer.job_ids, *(each.job_id for each in answer.quarantined)}
        assert all(now.jobs[each.job_id].status == "failed" for each in answer.quarantined)


@dataclass
class GiveBack(Op):
    """Release jobs of a worker that does not know all of its claims."""

    skips: ClassVar[bool] = True
    worker_id: str
    known: Mapping[str, int]
    definitions: Mapping[int, PlainJob]

    async def run(self, store: Store) -> list[str]:
        return await store.claims.release_unacknowledged(self.worker_id, self.known)

    def job(self, job_id: str, row: Row | None, state: State) -> Row | None:
        if row is None or row.status != "running" or row.worker != self.worker_id or row.due > self.now:
            return row
        if self.known.get(job_id) == row.attempt:
            return row
        if row.waiting is not None:
            return defined(row, self.definitions[row.waiting], self.now)
        return pending(row, self.now)

    def check(self, before: State, now: State) -> None:
        assert changed(before, now) == set(self.answer)


@dataclass
class Expire(Op):
    skips: ClassVar[bool] = True

    async def run(self, store: Store) -> list[ExpiredJob]:
        return await store.jobs.expire("w1", [NAME], LIMIT)

    def job(self, job_id: str, row: Row | None, state: State) -> Row | None:
        if row and row.status == "pending" and row.due <= self.now and row.expires and row.expires < self.now:
            return ended(row, "expired", self.now)
        return row

    def check(self, before: State, now: State) -> None:
        assert changed(before, now) == {expired.job_id for expired in self.answer}


@dataclass
class Cancel(Op):
    job_id: str

    async def run(self, store: Store) -> StatusChange:
        return await store.jobs.cancel(self.job_id)

    def job(self, job_id: str, row: Row | None, state: State) -> Row | None:
        if row and job_id == self.job_id and row.status not in ENDED:
            return ended(row, "cancelled", self.now)
        return row

    def check(self, before: State, now: State) -> None:
        assert self.answer.changed == (changed(before, now) == {self.job_id})
        if self.answer.changed:
            token = before.jobs[self.job_id].token
            assert self.answer.worker_id == (token[0] if token else None)


@dataclass
class SetStatus(Op):
    job_id: str
    status: JobStatus

    async def run(self, store: Store) -> StatusChange:
        return await store.jobs.set_status(self.job_id, self.status, LEASE)

    def job(self, job_id: str, row: Row | None, state: State) -> Row | None:
        if row is None or job_id != self.job_id:
            return row
        if self.status is JobStatus.PENDING:
            return pending(row, self.now, due=row.due)
        if self.status is not JobStatus.RUNNING:
            return ended(row, self.status.value, self.now)
        lease = self.now + LEASE * SECOND
        row = row._replace(status="running", worker="set by hand", attempt=row.attempt + 1, lease=lease)
        return row._replace(waiting=None, ended=None)


@dataclass
class RetryJob(Op):
    job_id: str

    async def run(self, store: Store) -> bool:
        return await store.jobs.retry(self.job_id) is not None

    def job(self, job_id: str, row: Row | None, state: State) -> Row | None:
        if row and job_id == self.job_id and row.status in ENDED:
            return pending(row, self.now, due=self.now, retries=0, crashes=0)
        return row

    def check(self, before: State, now: State) -> None:
        assert self.answer == (changed(before, now) == {self.job_id})


@dataclass
class Vacuum(Op):
    status: str
    """Each status is a transaction of its own."""

    async def run(self, store: Store) -> dict[JobStatus, int]:
        return await store.retention.vacuum_blocks(0, 1000, {JobStatus(self.status): self.now})

    def job(self, job_id: str, row: Row | None, state: State) -> Row | None:
        is_old = row and row.status == self.status and row.ended and row.ended <= self.now
        return None if is_old else row

    def check(self, before: State, now: State) -> None:
        assert sum(self.answer.values()) == len(changed(before, now))


LEGAL: Mapping[tuple[str | None, str | None], tuple[type[Op], ...]] = {
    (None, "pending"): (Insert,),
    ("pending", "running"): (ExchangeOp, SetStatus),
    ("pending", "expired"): (ExchangeOp, Expire, SetStatus),
    ("pending", "cancelled"): (Cancel, SetStatus),
    ("running", "completed"): (ExchangeOp, Finish, SetStatus),
    ("running", "failed"): (Finish, RescueOp, SetStatus),
    ("running", "cancelled"): (Finish, Cancel, SetStatus),
    ("running", "pending"): (Finish, GiveBack, RescueOp, SetStatus),
    **{(end, "pending"): (Replace, RetryJob, SetStatus) for end in ENDED},
    **{(end, None): (Vacuum,) for end in ENDED},
}
"""The operations that may move a job from one status to another; set_status may make any change."""


class _Transaction:
    """A transaction or savepoint that waits for a turn before its commit."""

    def __init__(self, session: Session, own: Any) -> None:
        self._session = session
        self._own = own

    async def start(self) -> None:
        await self._own.start()

    async def commit(self) -> None:
        try:
            await self._session.wait_for_commit()
        except BaseException:
            await self.rollback()
            raise
        await self._own.commit()

    async def rollback(self) -> None:
        await self._own.rollback()

    async def __aenter__(self) -> Session:
        with translated():
            await self.start()
        return self._session

    async def __aexit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        with translated():
            if error is None:
                await self.commit()
                return
            await self.rollback()
            raise error


class Session(Connections):
    """One connection. Each statement waits for a turn, and so does the end of the transaction.

    The record of dead workers, which a rescue writes for people after its commit, belongs to the turn of
    that commit.
    """

    def __init__(self, pool: asyncpg.Pool, connection: Connection) -> None:
        super().__init__(pool)
        self._connection = connection
        self.pid: int = connection.get_server_pid()
        self.waits = False
        """Whether it waits for a turn."""
        self.news = asyncio.Event()
        """Set when it begins to wait for a turn, or ends."""
        self._turn = asyncio.Event()
        self._is_record = False

    @property
    def dedicated(self) -> Any:
        return nullcontext()

    def transaction(self, **_options: Any) -> Any:
        return _Transaction(self, self._connection.transaction())

    def acquire(self, *, reserved: bool = False) -> Any:
        return self.transaction()

    async def fetch(self, query: str, *args: Any, timeout: float) -> list[asyncpg.Record]:
        self._is_record = "'declare_dead'" in query
        if not self._is_record:
            await self.wait()
        return list(await self._connection.fetch(query, *args, timeout=timeout))

    async def execute(self, query: str, *args: Any, timeout: float) -> str:
        await self.wait()
        return str(await self._connection.execute(query, *args, timeout=timeout))

    def is_closed(self) -> bool:
        closed: bool = self._connection.is_closed()
        return closed

    def is_in_transaction(self) -> bool:
        return self._connection.is_in_transaction()

    @property
    def _top_xact(self) -> object:  # which asyncpg has no public name for
        connection: Any = self._connection
        return connection._top_xact

    def go(self) -> None:
        """Give it a turn."""
        self.waits = False
        self.news.clear()
        self._turn.set()

    def reset(self) -> None:
        """Stop waiting: the operation ended before its turn."""
        self.waits = False
        self._turn.clear()

    async def wait_for_commit(self) -> None:
        """Wait for the turn of a commit, unless it is that of a record."""
        if self._is_record:
            self._is_record = False
        else:
            await self.wait()

    async def wait(self) -> None:
        """Wait for a turn."""
        self.waits = True
        self.news.set()
        await self._turn.wait()
        self._turn.clear()


@dataclass(eq=False)
class Actor:
    """A session with a store, and its current operation."""

    session: Session
    store: Store
    clock: FakeClock
    op: Op | None = None
    task: asyncio.Task[Any] | None = None
    seen: list[State] = field(default_factory=list)
    """The states that were committed meanwhile."""
    overlapped: bool = False
    blocked: bool = False

    @property
    def is_busy(self) -> bool:
        return self.task is not None

    @property
    def can_go(self) -> bool:
        return self.is_busy and self.session.waits


JOBS = """
    SELECT job_id, status, worker_id, attempt, task_data -> 'args' -> 0,
        on_end -> 'replacement' -> 'task_data' -> 'args' -> 0, retry_count, crash_count, misfire_grace_time,
        execution_time, expires_at,
        CASE WHEN status = 'running' THEN lease_until END, finished_at
    FROM scheduled_jobs
"""
IS_BLOCKED = "SELECT cardinality(pg_blocking_pids($1)) > 0"
CLEAR = "SELECT pg_advisory_unlock_all(); DELETE FROM scheduled_jobs; DELETE FROM scheduler_workers"
SAVE = """
    DROP TABLE IF EXISTS kept_jobs, kept_workers;
    CREATE TEMPORARY TABLE kept_jobs AS TABLE scheduled_jobs;
    CREATE TEMPORARY TABLE kept_workers AS TABLE scheduler_workers
"""
RESTORE = f"""
    {CLEAR};
    INSERT INTO scheduled_jobs TABLE kept_jobs;
    INSERT INTO scheduler_workers TABLE kept_workers
"""
WORKERS = "SELECT worker_id, last_beat, lease_until, stopping, health -> 'held' FROM scheduler_workers"


class World:
    """Real sessions on a real database, stepped by hand, and the committed states."""

    def __init__(self, pool: asyncpg.Pool, watch: Connection, actors: Sequence[Actor]) -> None:
        self.now = NOW
        self.definitions: dict[int, PlainJob] = {}
        self.claims: list[tuple[str, Claim]] = []
        """Every fencing token so far, and its worker."""
        self.ended: set[tuple[str, int]] = set()
        """The attempts whose threads have ended in a worker that is stopping."""
        self.actors = actors
        self._watch = watch
        self.state = State({}, {}, frozenset())

    @classmethod
    @asynccontextmanager
    async def on(cls, dsn: str, count: int) -> AsyncIterator[World]:
        """Yield a world with this many sessions."""
        # Once it is known to wait for a lock, a session need not wait long to learn of a deadlock.
        settings = {"deadlock_timeout": "10ms", "synchronous_commit": "off"}
        size = count + 1
        pool = await asyncpg.create_pool(dsn, min_size=size, max_size=size, server_settings=settings)
        try:
            connections = [await pool.acquire() for _ in range(size)]
            actors = []
            for connection in connections[1:]:
                session, clock = Session(pool, connection), FakeClock(NOW)
                actors.append(Actor(session, Store(session, schema="public", clock=clock), clock))
            yield cls(pool, connections[0], actors)
        finally:
            pool.terminate()  # a test that failed has left transactions open, and locks

    async def save(self) -> Callable[[], Awaitable[None]]:
        """Save the tables, and return a function that restores them."""
        kept = (self.now, dict(self.definitions), list(self.claims), set(self.ended), self.state)
        await self._watch.execute(SAVE)

        async def restore() -> None:
            now, definitions, claims, ended, state = kept
            await self._watch.execute(RESTORE)
            for worker_id in state.locked:
                await self._watch.fetchval("SELECT pg_advisory_lock($1)", LIVENESS[worker_id])
            self.now, self.state = now, state
            self.definitions.clear()
            self.definitions.update(definitions)
            self.claims[:] = claims
            self.ended = set(ended)

        return restore

    async def reset(self) -> None:
        """Remove all rows, those of a failed test too."""
        while busy := [actor for actor in self.actors if actor.task]:
            for actor in busy:
                if actor.session.waits or actor.task is None or actor.task.done():
                    await self._cancel(actor)
                else:
                    await self._settle(actor)
        await self._watch.execute(CLEAR)
        self.now = NOW
        self.definitions.clear()
        self.claims.clear()
        self.ended.clear()
        self.state = State({}, {}, frozenset())

    def define(self, job_id: str, **changes: Any) -> tuple[PlainJob, int]:
        """Return a new definition of a job, identified by its argument."""
        number = len(self.definitions)
        text = f'{{"args":[{number}],"kwargs":{{}}}}'
        job = new_job(job_id, **{"execution_time": self.now, "task_data": text} | changes)
        self.definitions[number] = job
        return job, number

    def insert(self, job_id: str = "a", **changes: Any) -> Op:
        return Insert(*self.define(job_id, **changes))

    def replace(self, job_id: str = "a", **changes: Any) -> Op:
        return Replace(*self.define(job_id, **changes))

    def finish(self, worker_id: str, outcome: Outcome, *claims: Claim) -> Op:
        return Finish(worker_id, [(claim, outcome) for claim in claims], self.definitions)

    def rescue(self, *suspects: str) -> Op:
        return RescueOp(self.definitions, suspects)

    def rescue_own(self, worker_id: str, known: Sequence[Claim] = ()) -> Op:
        """Reclaim jobs as a worker does that knows these claims."""
        attempts = {claim.job_id: claim.attempt for claim in known}
        return RescueOp(self.definitions, worker_id=worker_id, known=attempts)

    def give_back(self, worker_id: str, known: Sequence[Claim] = ()) -> Op:
        return GiveBack(worker_id, {claim.job_id: claim.attempt for claim in known}, self.definitions)

    def claims_of(self, worker_id: str) -> list[Claim]:
        """Return the claims of a worker that received every answer and no notification."""
        return [claim for owner, claim in self.claims if owner == worker_id]

    def renew(self, worker_id: str) -> Op:
        """Renew the lease of a worker, and the attempts whose threads run."""
        held = {claim.job_id: claim.attempt for claim in self.claims_of(worker_id)}
        return Renew(worker_id, dict(held.items() - self.ended))

    async def live(self, worker_id: str) -> None:
        """Let the worker's process hold its lock, unless a rescue holds it now."""
        if worker_id not in self.state.locked and await self._watch.fetchval(
            "SELECT pg_try_advisory_lock($1)", LIVENESS[worker_id]
        ):
            self._committed(self.state._replace(locked=self.state.locked | {worker_id}))

    async def die(self, worker_id: str) -> None:
        """End the worker's process, which frees its lock."""
        if worker_id in self.state.locked:
            await self._watch.fetchval("SELECT pg_advisory_unlock($1)", LIVENESS[worker_id])
            self._committed(self.state._replace(locked=self.state.locked - {worker_id}))

    async def do(self, op: Op, actor: Actor | None = None) -> Any:
        """Run an operation from begin to commit, as far as locks allow."""
        actor = actor or self.actors[0]
        await self.begin(op, actor)
        while actor.can_go:
            await self.step(actor)
        return op.answer

    async def begin(self, op: Op, actor: Actor) -> None:
        """Begin an operation, and stop before its first statement."""
        op.now = actor.clock.now = self.now
        actor.op, actor.seen = op, [self.state]
        busy = [each for each in self.actors if each.is_busy]
        actor.overlapped = len(busy) > 0
        for each in busy:
            each.overlapped = True
        actor.session.news.clear()
        actor.task = asyncio.create_task(op.run(actor.store))
        actor.task.add_done_callback(lambda _: actor.session.news.set())
        await self._settle(actor)

    async def step(self, actor: Actor) -> None:
        """Run one statement, or the commit."""
        actor.session.go()
        await self._settle(actor)
        await self._look(actor)
        if not actor.is_busy:  # it released its locks
            await self.look_after()

    async def look_after(self) -> None:
        """Let sessions continue whose lock became free."""
        waiting = True
        while waiting:
            waiting = False
            for other in [each for each in self.actors if each.blocked]:
                await self._settle(other)
                if not other.blocked:
                    waiting = True
                    await self._look(other)

    async def fall(self, actor: Actor) -> None:
        """Roll the session's transaction back, as a lost connection does."""
        await self._cancel(actor)
        await self._expect_no_change()
        await self.look_after()

    async def _cancel(self, actor: Actor) -> None:
        task, actor.task = actor.task, None
        assert task is not None
        task.cancel()
        await asyncio.wait([task])
        actor.session.reset()

    async def _settle(self, actor: Actor) -> None:
        """Wait until it waits for a turn or a lock, or has ended."""
        async with asyncio.timeout(PATIENCE):
            while not actor.session.news.is_set():
                if actor.blocked:
                    waits = await self._watch.fetchval(IS_BLOCKED, actor.session.pid)
                    actor.blocked = waits and not actor.session.news.is_set()
                    if actor.blocked:
                        return
                with suppress(TimeoutError):
                    async with asyncio.timeout(SOON):
                        await actor.session.news.wait()
                actor.blocked = not actor.session.news.is_set()  # the server decides
            actor.blocked = False

    async def _look(self, actor: Actor) -> None:
        """If the operation ended, check its effects."""
        task, op = actor.task, actor.op
        assert op is not None
        if task is None or not task.done():
            return
        actor.task = None
        try:
            op.answer = task.result()
        except DatabaseUnavailableError as fault:
            assert isinstance(fault.__cause__, asyncpg.DeadlockDetectedError), fault  # noqa: PT017
            await self._expect_no_change()
            return
        before, now = self.state, await self._read()
        self._judge_rows(actor, before, now)
        op.check(before, now)
        self._judge_tokens(op, before, now)
        if isinstance(op, ExchangeOp):
            self.claims += [(op.worker_id, claim) for claim in op.answer.jobs]
        self._committed(now)

    def _judge_rows(self, actor: Actor, before: State, now: State) -> None:
        """Assert that each row follows by the rules from a state committed while the operation ran."""
        op = actor.op
        assert op is not None
        skips = op.skips and actor.overlapped
        possible = [(state, effect) for state in actor.seen for effect in op.effects(state)]
        for kind in ("jobs", "workers"):
            was, is_, effects = getattr(before, kind), getattr(now, kind), []
            for key in {*was, *is_}:
                effects = [
                    getattr(effect, kind).get(key)
                    for state, effect in possible
                    if getattr(state, kind).get(key) == was.get(key)
                ]
                if is_.get(key) == was.get(key):
                    untouched = any(
                        getattr(effect, kind).get(key) == getattr(state, kind).get(key)
                        for state, effect in possible
                    )
                    assert skips or untouched, f"{op} left {key} as it was: {was.get(key)}"
                else:
                    assert is_.get(key) in effects, (
                        f"{op} made {is_.get(key)} of {was.get(key)}, not {effects}"
                    )

    def _judge_tokens(self, op: Op, before: State, now: State) -> None:
        """Assert the invariants."""
        for job_id in changed(before, now):
            was, row = before.jobs.get(job_id), now.jobs.get(job_id)
            step = (was.status if was else None, row.status if row else None)
            assert step[0] == step[1] or isinstance(op, LEGAL.get(step, SetStatus)), (op, step)
            if was is None or row is None:
                continue
            assert row.attempt >= was.attempt, "the fence never goes back"
            if row.token is not None and row.token != was.token:
                assert row.attempt > was.attempt, "each claim has a fresh token"
            if isinstance(op, Finish | ExchangeOp) and was.status == "running":
                assert was.worker == op.worker_id, "only its worker settles an attempt"
            if row.crashes > was.crashes:
                assert isinstance(op, RescueOp)
                assert row.crashes == was.crashes + 1
                assert was.worker not in now.workers, "only deaths count"
            if isinstance(op, RescueOp) and was.worker in now.workers and was.worker != op.worker_id:
                assert (job_id, was.attempt) in self.ended, "no job of a live worker is an orphan for others"
            if was.waiting is not None and row.status == "pending" and not isinstance(op, SetStatus):
                assert row.definition == was.waiting, "the new definition runs next"

    async def _expect_no_change(self) -> None:
        assert await self._read() == self.state

    def _committed(self, state: State) -> None:
        self.state = state
        for actor in self.actors:
            if actor.is_busy:
                actor.seen.append(state)

    async def _read(self) -> State:
        jobs = {
            job_id: Row(
                status, worker_id, attempt, int(definition), None if waiting is None else int(waiting), *rest
            )
            for job_id, status, worker_id, attempt, definition, waiting, *rest in await self._watch.fetch(
                JOBS
            )
        }
        workers = {
            worker_id: Lease(
                beat, until, stopping, None if held is None else frozenset(json.loads(held).items())
            )
            for worker_id, beat, until, stopping, held in await self._watch.fetch(WORKERS)
        }
        return State(jobs, workers, self.state.locked)

    # -- to the end ------------------------------------------------------------------------------------

    async def finish_all(self, known: set[object]) -> None:
        """End all operations, then run every job with a new worker: none is lost or stuck.

        Of a state that is among the known ones that is known.
        """
        while busy := [actor for actor in self.actors if actor.is_busy]:
            going = [actor for actor in busy if actor.can_go]
            if going:
                await self.step(going[0])
            else:
                await self.look_after()
        state = (self.now, frozenset(self.state.jobs.items()), frozenset(self.state.workers.items()))
        if state in known:
            return
        known.add(state)
        self.now += 3 * LEASE * SECOND
        await self.do(self.rescue())
        await self.do(Register("w3"))
        for _ in range(4):  # a second replacement may wait, and crashed jobs are claimed one by one
            answer = await self.do(ExchangeOp("w3"))
            await self.do(self.finish("w3", COMPLETE, *answer.jobs))
            self.now += SECOND
        assert {row.status for row in self.state.jobs.values()} <= ENDED


async def interleave(
    world: World,
    restore: Callable[[], Awaitable[None]],
    play: Callable[[], Sequence[Op]],
    *,
    switches: float = math.inf,
) -> int:
    """Run operations in every interleaving of their statements and commits.

    Args:
        world: Where they run.
        restore: Restores the rows before each order.
        play: Returns the operations.
        switches: How often at most another operation continues although the current one could. Few are enough
            for nearly all races (Musuvathi and Qadeer, "Iterative context bounding", 2007).

    Returns:
        How many orders there are.
    """
    count = 0
    known: set[object] = set()
    path: list[tuple[int, int]] = []
    while True:
        await restore()
        ops = play()
        actors = world.actors[: len(ops)]
        for op, actor in zip(ops, actors, strict=True):
            await world.begin(op, actor)
        depth, last, switched = 0, actors[0], 0
        while any(actor.is_busy for actor in actors):
            ready = [actor for actor in actors if actor.can_go]
            if not ready:  # a deadlock, which the server resolves
                await world.look_after()
                continue
            if depth and last.can_go and switched == switches:
                ready = [last]
            if depth == len(path):
                path.append((0, len(ready)))
            choice, options = path[depth]
            assert options == len(ready), "the same choices lead to the same choices"
            switched += depth > 0 and last.can_go and ready[choice] is not last
            depth, last = depth + 1, ready[choice]
            await world.step(last)
        await world.finish_all(known)
        count += 1
        while path and path[-1][0] + 1 == path[-1][1]:
            path.pop()
        if not path:
            return count
        path[-1] = (path[-1][0] + 1, path[-1][1])
