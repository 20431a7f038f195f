"""The cost of a Scheduler to its database, counted and not timed: statements, transactions, notifications.

Tests of results do not detect one more round trip per job, and benchmarks do not fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import JobSpec, Scheduler
from pg_scheduler.events import EventBus, JobCompleted
from tests.api.conftest import Make
from tests.support.inside import Connections, Store, outbox_of
from tests.support.parts import Parts
from tests.support.statements import Statements
from tests.support.worker import PATIENCE, Gate, claim, new_job, now

HOUR = timedelta(hours=1)


async def work(*args: Any) -> None: ...


@pytest.fixture
def sent() -> Statements:
    """Return the record of what the connections of the pool send."""
    return Statements()


@pytest.fixture
async def pool(dsn: str, sent: Statements) -> AsyncIterator[asyncpg.Pool]:
    """Replace the usual pool by one that records its statements."""
    pool = await asyncpg.create_pool(dsn, min_size=1, max_size=5, init=sent.listen)
    yield pool
    await asyncio.wait_for(pool.close(), PATIENCE)


@pytest.fixture
async def other(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """Return a connection outside the pool."""
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


@pytest.fixture
async def idle(make: Make, pool: asyncpg.Pool, sent: Statements) -> Scheduler:
    """Return a Scheduler that was not started and has looked up its schema."""
    scheduler = make()
    async with pool.acquire() as connection, connection.transaction():
        await scheduler.schedule(work, execution_time=now() + HOUR, connection=connection)
    await sent.take()
    return scheduler


UPKEEP = 12
"""Exchanges and transactions that are not for a full claim: the first, the last ones, heartbeats."""


@pytest.mark.parametrize(
    ("slots", "batch", "jobs", "size"),
    [
        (1000, 500, 10_000, 500),
        (25, 10, 1_500, 10),
        (16, 10, 1_000, 10),
        (1, 10, 50, 1),
        (16, None, 1_000, 16),
        (128, None, 4_000, 128),
        (1000, None, 10_000, 500),
    ],
)
async def test_scheduler_uses_one_transaction_per_claim_of_a_backlog(  # noqa: PLR0917 - fixtures
    make: Make, sent: Statements, slots: int, batch: int | None, jobs: int, size: int
) -> None:
    """Each claim is full and carries completions. Nothing else is sent for a job."""
    scheduler = make(max_concurrent_jobs=slots, batch_claim_limit=batch)
    left, drained = jobs, asyncio.Event()

    def count(_: object) -> None:
        nonlocal left
        left -= 1
        if not left:
            drained.set()

    scheduler.subscribe(count, JobCompleted)
    await scheduler.start()
    backlog = [JobSpec(work, now(), (n,)) for n in range(jobs)]
    await sent.take()
    await scheduler.schedule_bulk(backlog)
    async with asyncio.timeout(PATIENCE):
        await drained.wait()
    drain = await sent.take()
    claims = jobs / size
    bulk = jobs / 1_000 * 2  # including the resets by the pool
    assert drain.named["exchange_jobs"] <= claims + UPKEEP
    assert drain.transactions <= bulk + claims + 2 * UPKEEP


async def test_schedule_sends_one_statement_per_call(idle: Scheduler, sent: Statements) -> None:
    for _ in range(20):
        await idle.schedule(work, execution_time=now() + HOUR)
    calls = await sent.take()
    assert calls.named == {"insert_generated_job": 20}
    assert calls.counts.keys() <= {"insert_generated_job", "RESET"}, "no transaction block either"


async def test_schedule_calls_share_statements_when_concurrent(idle: Scheduler, sent: Statements) -> None:
    await asyncio.gather(*(idle.schedule(work, execution_time=now() + HOUR) for _ in range(500)))
    calls = await sent.take()
    assert calls.named.keys() <= {"insert_generated_job", "insert_generated_jobs"}
    assert calls.named.total() <= 3


@pytest.mark.parametrize("starts", [False, True])
async def test_schedule_calls_share_a_notification_when_consecutive(
    make: Make, sent: Statements, starts: bool
) -> None:
    scheduler = make()
    outbox_of(scheduler).gap_s = 3600.0  # all calls fall into one gap
    if starts:
        await scheduler.start()
    await sent.take()
    for _ in range(50):
        await scheduler.schedule(work, execution_time=now())
    calls = await sent.take()
    assert (calls.named["insert_job"], calls.named["insert_generated_job"]) == (1, 49), (
        "the first insert also notifies"
    )
    assert calls.named["notify"] <= 1


async def test_bulk_sends_at_most_twenty_statements_and_one_notification(
    idle: Scheduler, sent: Statements, other: asyncpg.Connection
) -> None:
    received: asyncio.Queue[str] = asyncio.Queue()
    channel = await Store(Connections(idle.db_pool)).locks.channel()
    await other.add_listener(channel, lambda *message: received.put_nowait(message[3]))
    await sent.take()

    await idle.schedule_bulk([JobSpec(work, now(), (n,)) for n in range(10_000)])
    bulk = await sent.take()
    assert not bulk.named.keys() - {"notify"}, "the rows are sent by COPY"
    assert bulk.named["notify"] <= 1
    assert bulk.counts.total() <= 20

    await idle.db_pool.execute("SELECT pg_notify($1, 'end')", channel)
    messages = []
    async with asyncio.timeout(PATIENCE):
        while (message := await received.get()) != "end":
            messages.append(message)
    assert len(messages) <= 1, "nothing else notifies, such as a trigger"


@pytest.mark.parametrize(
    ("notify", "due_in", "one", "several"),
    [
        ("hint", HOUR, {"insert_generated_job": 1}, {"insert_generated_jobs": 1}),
        ("hint", 0 * HOUR, {"insert_generated_job": 1}, {"insert_generated_jobs": 1}),
        ("commit", 0 * HOUR, {"insert_job": 1}, {"insert_generated_jobs": 1, "notify": 1}),
    ],
)
async def test_schedule_sends_one_statement_on_the_callers_connection_and_none_elsewhere(  # noqa: PLR0917 - fixtures
    make: Make,
    sent: Statements,
    other: asyncpg.Connection,
    notify: str,
    due_in: timedelta,
    one: dict[str, int],
    several: dict[str, int],
) -> None:
    idle = make(notify=notify)
    async with other.transaction():  # asyncpg reads the types once
        await idle.schedule(work, execution_time=now() + HOUR, connection=other)
    await sent.take()
    own = Statements()
    await own.listen(other)
    async with other.transaction():
        await own.take()
        await idle.schedule(work, execution_time=now() + due_in, connection=other)
        assert (await own.take()).counts == one
        await idle.schedule_bulk([JobSpec(work, now() + due_in)] * 5, connection=other)
        assert (await own.take()).named == several
    assert not (await sent.take()).counts


@pytest.mark.parametrize("jobs", [0, 1, 1_000])
async def test_heartbeat_sends_one_statement_for_any_number_of_jobs(
    pool: asyncpg.Pool, sent: Statements, jobs: int
) -> None:
    gate = Gate()
    parts = Parts(Store(Connections(pool)), EventBus())
    parts.tasks.register(gate.job, name="test.job")
    executor = parts.executor(slots=1_000)
    executor.submit_all(await claim(parts.store, *(new_job(str(n)) for n in range(jobs))), soon=True)
    assert len(executor.in_flight.held()) == jobs
    heartbeat = parts.heartbeat()
    await heartbeat.prepare()
    await heartbeat.run_once()  # that of a worker which was alone reads who has come since
    await sent.take()
    await heartbeat.run_once()
    beat = await sent.take()
    gate.open.set()
    await parts.ended(executor)
    await heartbeat.drain()
    await parts.store.connections.release_held()
    assert beat.named == {"renew_lease": 1}
    assert beat.transactions <= 2, "one for the heartbeat, one for the reset by the pool"


async def test_poll_of_an_observer_reads_no_jobs_unless_a_lease_expired(
    pool: asyncpg.Pool, sent: Statements
) -> None:
    """Each statement about orphans reads the whole backlog."""
    parts = Parts(Store(Connections(pool)), EventBus())
    parts.configure(role="observer")
    rescuer = parts.rescuer()
    about_jobs = {"restart_leases", "lock_orphans"}
    await rescuer.run_once()
    assert (await sent.take()).named == {"suspect_workers": 1}, "its start may follow a crash"
    await rescuer.run_once()
    assert (await sent.take()).named == {}, "it has just looked"
    parts.lock_looks.last_at -= parts.config.polling.max_interval
    await rescuer.run_once()
    assert (await sent.take()).named == {"suspect_workers": 1}
    rescuer.scan_jobs()
    await rescuer.run_once()
    assert (await sent.take()).named.keys() >= about_jobs
    await parts.store.connections.release_held()
