"""A test kit sees and changes only the rows that the transaction of its test has written."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import asyncpg
import psycopg
import pytest

from pg_scheduler import Scheduler, current_job, job
from pg_scheduler.sync import SyncScheduler
from pg_scheduler.testing import AsyncTestKit, DrainResult, TestKit
from tests.support.inside import load_fragment, run_at_once
from tests.support.patience import PATIENCE
from tests.support.transactions import ASYNC_KINDS, SYNC_KINDS, Application, application, settled
from tests.testing.test_transaction_kits import entered, plain_application

DAY = timedelta(days=1)
Pool = asyncpg.Pool
ran: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


@job(name="written.mail")
async def send_mail(to: str) -> None:
    ran.append(to)


@job(name="written.grow")
async def grow(depth: int) -> None:
    ran.append(depth)
    if depth:
        await current_job().scheduler.enqueue(grow, args=(depth - 1,))


@job(name="written.fail")
async def fail() -> None:
    raise ValueError("no")


@job(name="written.book", sequence=lambda account, *_: account)
async def book(account: str, who: str) -> None:
    if who == "nobody":
        raise LookupError(who)
    ran.append((account, who))


@job(name="written.report", misfire_grace_time=30)
async def report(who: str) -> None:
    ran.append(who)


async def commit_jobs(dsn: str) -> None:
    """Commit what other programs have in the tables: due and late jobs, sequences, an edge and pauses."""
    async with Scheduler.connect(dsn, start=False) as other:
        now = await other.db_pool.fetchval("SELECT now()")
        await other.enqueue(send_mail, args=("a customer",), job_id="theirs")
        await other.enqueue(send_mail, args=("a customer",), job_id="their child", after=["theirs"])
        await other.schedule(book, execution_time=now - DAY, args=("both", "they"), misfire_grace_time=None)
        await other.schedule(book, execution_time=now, args=("ours", "they"), misfire_grace_time=None)
        await other.enqueue(report, args=("they",), job_id="their report")
        await other.enqueue("name.of.another.service")
        await other.tasks.pause("written.mail", until=now + timedelta(minutes=1))
        await other.tasks.pause("written.fail", until=now + timedelta(minutes=1), suspend_expiry=True)


async def look_around(app: Application, kit: Any) -> None:
    """Let a kit do all it can."""
    assert await settled(kit.scheduled()) == []
    await settled(kit.assert_not_scheduled())
    with pytest.raises(AssertionError, match=r"(?s)all jobs: none\n.*are committed, and the kit sees only"):
        await settled(kit.assert_scheduled(send_mail))
    with pytest.raises(AssertionError, match=r"all jobs: none$"):
        await settled(kit.assert_scheduled(grow))
    assert await settled(kit.run_due()) == await settled(kit.drain()) == DrainResult()
    # Their pauses end by the clock of the kit.
    kit.advance(minutes=2)
    async with entered(kit.scheduling()) as jobs:
        await app.call("enqueue", send_mail, args=("ada",), job_id="ours")
        await app.call("enqueue", send_mail, args=("never",), after=["their report"])
        await app.call("enqueue", grow, args=(2,))
        await app.call("enqueue", fail)
        await app.call("enqueue", book, args=("both", "we"))
        earlier = kit.now - 2 * DAY
        await app.call("schedule", book, execution_time=earlier, args=("ours", "we"), misfire_grace_time=None)
        await app.call("enqueue", report, args=("we",))
    assert len(jobs) == 7
    # A pause of the test ends, and gives its own late job the grace time again.
    await settled(kit.scheduler.tasks.pause("written.report", suspend_expiry=True))
    result = await settled(kit.drain(raises=False))
    assert result == DrainResult(completed=5, failed=1)
    await settled(kit.scheduler.tasks.resume("written.report"))
    assert await settled(kit.drain()) == DrainResult(completed=1)
    assert sorted(map(str, ran)) == ["('ours', 'we')", "0", "1", "2", "ada", "we"]


async def locked_rows(dsn: str) -> dict[str, int]:
    """Return how many committed rows of each table another session cannot change at once."""
    connection = await asyncpg.connect(dsn)
    tables = await connection.fetch("SELECT relname FROM pg_stat_user_tables")
    counts = {}
    for (table,) in tables:
        async with connection.transaction():
            free = await connection.fetch(f'SELECT FROM "{table}" FOR NO KEY UPDATE SKIP LOCKED')
            counts[table] = await connection.fetchval(f'SELECT count(*) FROM "{table}"') - len(free)
    await connection.close()
    return {table: count for table, count in counts.items() if count}


@pytest.mark.parametrize("kind", ASYNC_KINDS)
async def test_async_kit_leaves_committed_rows_alone(kind: str, dsn: str, pool: Pool) -> None:
    await commit_jobs(dsn)
    async with application(kind, dsn, pool) as app:
        await look_around(app, AsyncTestKit(app.connection, scheduler=app.scheduler))
        assert await locked_rows(dsn) == {}
        await settled(app.rollback())


@pytest.mark.parametrize("kind", SYNC_KINDS)
def test_kit_leaves_committed_rows_alone(kind: str, dsn: str) -> None:
    asyncio.run(commit_jobs(dsn))
    with plain_application(kind, dsn) as app:
        run_at_once(look_around(app, TestKit(app.connection, scheduler=app.scheduler)))
        assert asyncio.run(locked_rows(dsn)) == {}
        app.rollback()


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(dsn) as connection:
        yield connection
        connection.rollback()


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_kit_sees_jobs_of_savepoints_among_transactions_of_others(
    dsn: str, connection: psycopg.Connection, isolation: str
) -> None:
    connection.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
    kit = TestKit(connection)
    app = SyncScheduler()

    def enqueue(who: str) -> None:
        app.enqueue(send_mail, args=(who,), connection=connection)

    # The numbers of the savepoints and those of the other transactions alternate.
    with psycopg.connect(dsn) as other:
        for number in range(3):
            connection.execute("SAVEPOINT outer_one")
            enqueue(f"outer {number}")
            app.enqueue(send_mail, args=("they",), connection=other)
            other.commit()
            connection.execute("SAVEPOINT inner_one")
            enqueue(f"inner {number}")
            connection.execute("ROLLBACK TO SAVEPOINT inner_one" if number == 1 else "RELEASE inner_one")
            if number:
                connection.execute("RELEASE outer_one")
            app.enqueue(send_mail, args=("they",), connection=other)
            other.commit()
        app.enqueue(send_mail, args=("they, uncommitted",), connection=other)
        expected = ["inner 0", "inner 2", "outer 0", "outer 1", "outer 2"]
        assert sorted(str(job.args[0]) for job in kit.scheduled()) == expected
        assert kit.drain() == DrainResult(completed=5)
        assert sorted(ran) == expected
        other.rollback()


def test_kit_sees_a_committed_job_that_its_transaction_has_changed(
    dsn: str, connection: psycopg.Connection
) -> None:
    with psycopg.connect(dsn) as other:
        SyncScheduler().enqueue(send_mail, args=("later",), job_id="theirs", delay=DAY, connection=other)
    kit = TestKit(connection)
    with kit.scheduling() as jobs:
        assert kit.scheduler.run_job_now("theirs")
    assert [job.job_id for job in jobs] == ["theirs"]
    assert kit.drain() == DrainResult(completed=1)
    assert ran == ["later"]


def test_kit_leaves_the_committed_head_of_a_sequence_that_waits_again(
    dsn: str, connection: psycopg.Connection
) -> None:
    async def commit_retried_job() -> None:
        async with Scheduler.connect(dsn) as worker:
            job_id = await worker.enqueue(book, args=("theirs", "nobody"))
            await worker.get_job_result(job_id, timeout=PATIENCE)
        async with Scheduler.connect(dsn, start=False) as other:
            assert await other.retry_job(job_id)

    asyncio.run(commit_retried_job())
    kit = TestKit(connection)
    kit.scheduler.schedule(book, execution_time=kit.now - DAY, args=("theirs", "we"), misfire_grace_time=None)
    assert kit.drain() == DrainResult()
    assert asyncio.run(locked_rows(dsn)) == {}


def test_kit_sees_all_jobs_without_a_transaction(dsn: str) -> None:
    asyncio.run(commit_jobs(dsn))
    with psycopg.connect(dsn, autocommit=True) as connection:
        kit = TestKit(connection)
        kit.assert_scheduled(report)
        kit.scheduler.tasks.resume("written.mail")
        assert kit.drain() == DrainResult(completed=5, unregistered=("name.of.another.service",))
        assert sorted(map(str, ran)) == [
            *["('both', 'they')", "('ours', 'they')"],
            *2 * ["a customer"],
            "they",
        ]


async def test_kit_rejects_a_connection_whose_transaction_has_ended(pool: Pool) -> None:
    async with pool.acquire() as connection:
        async with connection.transaction():
            kit = AsyncTestKit(connection)
            await kit.scheduler.enqueue(send_mail, args=("ada",))
        for method in (kit.drain, kit.run_due, kit.scheduled):
            with pytest.raises(ValueError, match="not in a transaction"):
                await method()
    assert ran == []


def test_blocking_kit_resumes_a_task_whose_expiry_was_suspended(connection: psycopg.Connection) -> None:
    kit = TestKit(connection)
    kit.scheduler.tasks.pause("written.report", suspend_expiry=True)
    kit.scheduler.enqueue(report, args=("we",))
    kit.advance(minutes=1)
    assert kit.drain() == DrainResult()
    assert kit.scheduler.tasks.resume("written.report")
    assert kit.drain() == DrainResult(completed=1)


EPOCH = 2**32

VERSIONS = {
    # What wrote the version: the number of its transaction, and whether it counts as written here. This
    # transaction has the number 5,000,000,000, and the next one to be given out is 5,000,000,010.
    "this transaction": (5_000_000_000, True),
    "a savepoint that has no number in the snapshot": (5_000_000_012, True),
    "the transaction before": (4_999_999_999, False),
    "a transaction before the counter began anew": (EPOCH - 1, False),
    "one of the half of the numbers before": (5_000_000_000 - 2**31, False),
    "one whose 32 bits are those of a later one": (5_000_000_000 + 2**31 - 1 - EPOCH, False),
    "the first one after that": (5_002_000_000 - EPOCH, False),
    "a frozen one": (2, False),
}


@pytest.mark.parametrize("writer", VERSIONS)
def test_versions_of_all_ages_are_told_apart(connection: psycopg.Connection, writer: str) -> None:
    number, is_written_here = VERSIONS[writer]
    text = load_fragment("written_here")
    # A look at the number of this transaction would fail, because the server has not given it out.
    end = 5_000_000_000 if number == 5_000_000_000 else 5_000_000_010
    for expression, value in {
        "pg_current_xact_id_if_assigned()": "xid8 '5000000000'",
        "pg_snapshot_xmax(pg_current_snapshot())": f"xid8 '{end}'",
        "xmin": f"xid '{number % EPOCH}'",
    }.items():
        assert expression in text
        text = text.replace(expression, value)
    assert connection.execute(f"SELECT {text}").fetchone() == (is_written_here,)
