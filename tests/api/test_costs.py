"""What a Scheduler asks of its database, counted and not timed: statements, transactions, notifications.

A round trip more for each job shows in no test of what comes out, and in a benchmark only if somebody looks.
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
from pg_scheduler.store.connections.pool import Connections
from pg_scheduler.store.store import Store
from pg_scheduler.worker import announcer
from tests.api.conftest import Make
from tests.support.parts import Parts
from tests.support.statements import Statements
from tests.support.worker import PATIENCE, Gate, claim, new_job, now

HOUR = timedelta(hours=1)


async def work(*args: Any) -> None: ...


@pytest.fixture
def sent() -> Statements:
    """What the pool's connections send."""
    return Statements()


@pytest.fixture
async def pool(dsn: str, sent: Statements) -> AsyncIterator[asyncpg.Pool]:
    """In the place of the usual pool, one that tells."""
    pool = await asyncpg.create_pool(dsn, min_size=1, max_size=5, init=sent.listen)
    yield pool
    await asyncio.wait_for(pool.close(), PATIENCE)


@pytest.fixture
async def other(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection that is not the pool's."""
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


@pytest.fixture
async def idle(make: Make, pool: asyncpg.Pool, sent: Statements) -> Scheduler:
    """One that was not started, and has looked its schema up."""
    scheduler = make()
    async with pool.acquire() as connection:
        await scheduler.schedule(work, execution_time=now() + HOUR, connection=connection)
    await sent.take()
    return scheduler


UPKEEP = 12
"""Exchanges and transactions that are not for a full claim: the first, the last ones, beats and the like."""


@pytest.mark.parametrize(("slots", "batch", "jobs"), [(1000, 500, 10_000), (25, 10, 1_500), (1, 10, 50)])
async def test_a_backlog_is_run_with_one_transaction_for_each_claim(
    make: Make, sent: Statements, slots: int, batch: int, jobs: int
) -> None:
    """Each claim is full and takes completions along. Nothing else is sent for a job."""
    asyncio.get_running_loop().set_debug(False)  # its tracebacks make a task ten times as dear
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
    claims = jobs / min(slots, batch)
    bulk = jobs / 1_000 * 2  # with the pool's resets
    assert drain.named["exchange_jobs"] <= claims + UPKEEP
    assert drain.transactions <= bulk + claims + 2 * UPKEEP


async def test_one_call_is_one_statement(idle: Scheduler, sent: Statements) -> None:
    for _ in range(20):
        await idle.schedule(work, execution_time=now() + HOUR)
    calls = await sent.take()
    assert calls.named == {"insert_generated_job": 20}
    assert calls.counts.keys() <= {"insert_generated_job", "RESET"}, "nor any transaction block"


async def test_calls_that_are_made_at_once_share_statements(idle: Scheduler, sent: Statements) -> None:
    await asyncio.gather(*(idle.schedule(work, execution_time=now() + HOUR) for _ in range(500)))
    calls = await sent.take()
    assert calls.named.keys() <= {"insert_generated_job", "insert_generated_jobs"}
    assert calls.named.total() <= 3


@pytest.mark.parametrize("starts", [False, True])
async def test_calls_that_follow_one_another_share_a_notification(
    make: Make, sent: Statements, monkeypatch: pytest.MonkeyPatch, starts: bool
) -> None:
    monkeypatch.setattr(announcer, "GAP", 3600.0)  # so that all of them lie within one
    scheduler = make()
    if starts:
        await scheduler.start()
    await sent.take()
    for _ in range(50):
        await scheduler.schedule(work, execution_time=now())
    calls = await sent.take()
    assert (calls.named["insert_job"], calls.named["insert_generated_job"]) == (1, 49), "one says so as well"
    assert calls.named["notify"] <= 1


async def test_a_bulk_is_a_few_statements_and_one_notification(
    idle: Scheduler, sent: Statements, other: asyncpg.Connection
) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    channel = await Store(Connections(idle.db_pool)).channel()
    await other.add_listener(channel, lambda *message: heard.put_nowait(message[3]))
    await sent.take()

    await idle.schedule_bulk([JobSpec(work, now(), (n,)) for n in range(10_000)])
    bulk = await sent.take()
    assert not bulk.named.keys() - {"notify"}, "they are copied, ten times at most"
    assert bulk.named["notify"] <= 1
    assert bulk.counts.total() <= 20

    await idle.db_pool.execute("SELECT pg_notify($1, 'end')", channel)
    messages = []
    async with asyncio.timeout(PATIENCE):
        while (message := await heard.get()) != "end":
            messages.append(message)
    assert len(messages) <= 1, "none comes from elsewhere, as from a trigger"


@pytest.mark.parametrize(
    ("due_in", "one", "several"),
    [
        (HOUR, {"insert_generated_job": 1}, {"insert_generated_jobs": 1}),
        (0 * HOUR, {"insert_job": 1}, {"insert_generated_jobs": 1, "notify": 1}),
    ],
)
async def test_a_call_on_the_callers_connection_adds_a_statement_there_and_none_elsewhere(  # noqa: PLR0917 - fixtures
    idle: Scheduler,
    sent: Statements,
    other: asyncpg.Connection,
    due_in: timedelta,
    one: dict[str, int],
    several: dict[str, int],
) -> None:
    await idle.schedule(work, execution_time=now() + HOUR, connection=other)  # asyncpg learns its types
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
async def test_a_heartbeat_is_one_statement_however_many_jobs_are_held(
    pool: asyncpg.Pool, sent: Statements, jobs: int
) -> None:
    gate = Gate()
    parts = Parts(Store(Connections(pool)), EventBus())
    parts.tasks.register(gate.job, name="test.job")
    executor = parts.executor(slots=1_000)
    executor.submit_all(await claim(parts.store, *(new_job(str(n)) for n in range(jobs))))
    assert len(executor.in_flight.held()) == jobs
    heartbeat = parts.heartbeat(executor)
    await heartbeat.prepare()
    await sent.take()
    await heartbeat.run_once()
    beat = await sent.take()
    gate.open.set()
    await parts.ended(executor)
    await heartbeat.drain()
    await parts.store.connections.release_held()
    assert beat.named == {"renew_lease": 1}
    assert beat.transactions <= 2, "its own, and the pool's reset"
