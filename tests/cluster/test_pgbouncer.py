"""A real PgBouncer, mostly in transaction mode: every feature works, and shared sessions keep no state."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import (
    ConfigurationError,
    JobConflictError,
    JobSpec,
    JobStatus,
    PollingConfig,
    RetryPolicy,
    Scheduler,
    periodic,
)
from pg_scheduler.events import (
    JobCancelled,
    JobCompleted,
    JobFailed,
    JobStarted,
    ListenerConnected,
    ListenerLost,
)
from pg_scheduler.sync import SyncScheduler
from tests.cluster.bouncer import SERVER_CONNECTIONS, bouncer, find_program
from tests.cluster.pooled_jobs import make_durable
from tests.support.inside import ExitCode, address_parts, run_command, store_of
from tests.support.transactions import KINDS, application, settled
from tests.support.worker import PATIENCE, Gate, Recorder

POLLING = PollingConfig(idle_start_interval=0.05, max_interval=0.1)
WITHOUT_BACKOFF = RetryPolicy(base=timedelta(milliseconds=1))
OLD, NEW = "bookworm", "trixie"
"""PgBouncer 1.18, which does not support prepared statements, and 1.24."""

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(params=[OLD, NEW])
def suite(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def pgbouncer_dsn(dsn: str, suite: str) -> Iterator[str]:
    """The DSN of the test's database through a PgBouncer."""
    with running(dsn, suite) as through:
        yield through


@pytest.fixture
def rotating_dsn(dsn: str, suite: str) -> Iterator[str]:
    """The same, through a PgBouncer that uses another session for each transaction."""
    with running(dsn, suite, "server_round_robin = 1") as through:
        yield through


@contextmanager
def running(dsn: str, suite: str, *settings: str) -> Iterator[str]:
    """Run the PgBouncer of a Debian release; skip the test without it."""
    program = find_program(suite)
    if program is None:
        pytest.skip(
            f"PgBouncer from {suite} is missing; dev.py test fetches it if apt can read Debian's archive"
        )
    lines = [*settings, *(["max_prepared_statements = 100"] if suite == NEW else [])]
    with bouncer(program, dsn, "\n".join(lines)) as through:
        yield through


@pytest.fixture
async def pooled(pgbouncer_dsn: str) -> AsyncIterator[asyncpg.Pool]:
    """The user's pool, without prepared statements, as asyncpg requires behind PgBouncer."""
    async with asyncpg.create_pool(pgbouncer_dsn, min_size=1, max_size=6, statement_cache_size=0) as pool:
        yield pool


def now() -> datetime:
    return datetime.now(UTC)


async def note(*_: Any) -> None: ...


class Flaky:
    def __init__(self) -> None:
        self.calls = 0

    async def job(self) -> None:
        self.calls += 1
        if self.calls == 1:
            raise RuntimeError("the first attempt always fails")


async def run_every_kind_of_job(scheduler: Scheduler, client: Scheduler) -> None:
    """Run one-off, bulk, retried, periodic, cancelled and interrupted jobs."""
    seen, gate, flaky = Recorder(scheduler), Gate(), Flaky()
    scheduler.register(gate.job, name="gate")
    scheduler.register(flaky.job, name="flaky")
    scheduler.register(note)
    one = await client.schedule(note, execution_time=now())
    await seen.until(JobCompleted, job_id=one)
    many = await client.schedule_bulk([JobSpec(note, now(), args=(n,)) for n in range(500)])  # by COPY
    assert len(set(many)) == 500
    await seen.until(JobCompleted, 501)
    data: dict[str, Any] = {"args": [], "kwargs": {}}
    again = await scheduler.schedule(flaky.job, execution_time=now(), max_retries=1)
    await seen.until(JobCompleted, job_id=again)
    assert flaky.calls == 2
    held = await client.schedule_job("gate", now(), data)
    await gate.wait_begun()
    assert await client.cancel_job(held)
    async with asyncio.timeout(PATIENCE / 2):  # a heartbeat would cancel it only after up to 20 s
        await seen.until(JobCancelled, job_id=held)
    assert gate.cancelled == 1
    often = await scheduler.trigger_periodic_job("often")
    await seen.until(JobCompleted, job_id=often)
    held = await client.schedule_job("gate", now(), data)
    await gate.wait_begun()
    await scheduler.shutdown()
    row = await client.get_job(held)
    assert row is not None
    assert row.status is JobStatus.PENDING, "released"


async def session_state(pool: asyncpg.Pool, pgbouncer_dsn: str) -> dict[str, Any]:
    """Return the settings, channels and locks of the sessions that all clients share."""
    state: dict[str, Any] = {}
    clients = [
        await asyncpg.connect(pgbouncer_dsn, statement_cache_size=0) for _ in range(SERVER_CONNECTIONS)
    ]
    transactions = [each.transaction() for each in clients]
    try:
        for transaction in transactions:
            await transaction.start()
        pids = [await each.fetchval("SELECT pg_backend_pid()") for each in clients]
        assert len(set(pids)) == SERVER_CONNECTIONS, "every session is inspected"
        for client in clients:
            for name in ("enable_seqscan", "enable_bitmapscan", "plan_cache_mode", "lock_timeout"):
                state.setdefault(name, set()).add(await client.fetchval(f"SHOW {name}"))
            state.setdefault("channels", set()).update(
                row[0] for row in await client.fetch("SELECT pg_listening_channels()")
            )
    finally:
        for transaction in transactions:
            await transaction.rollback()
        for client in clients:
            await client.close()
    locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = ANY ($1)"
    state["locks"] = await pool.fetchval(locks, pids)
    return state


CLEAN = {
    "enable_seqscan": {"on"},
    "enable_bitmapscan": {"on"},
    "plan_cache_mode": {"auto"},
    "lock_timeout": {"0"},
    "channels": set(),
    "locks": 0,
}


def make_scheduler(pool: asyncpg.Pool, **settings: Any) -> Scheduler:
    return Scheduler(
        pool, polling_config=POLLING, shutdown_timeout=0.05, retry_policy=WITHOUT_BACKOFF, **settings
    )


async def test_scheduler_works_through_pgbouncer_without_a_direct_dsn(
    pooled: asyncpg.Pool, pool: asyncpg.Pool, pgbouncer_dsn: str
) -> None:
    @periodic(every=timedelta(hours=1), dedup_key="often")
    async def often() -> None: ...

    scheduler = make_scheduler(pooled)
    seen = Recorder(scheduler)
    async with scheduler:
        (lost,) = seen.of(ListenerLost)
        assert "PgBouncer" in lost.reason
        assert await pool.fetchval("SELECT liveness_key FROM scheduler_workers") is None
        assert await session_state(pool, pgbouncer_dsn) == CLEAN
        await run_every_kind_of_job(scheduler, make_scheduler(pooled))
        assert store_of(scheduler).connections.dedicated_connection.connection is None
    assert await session_state(pool, pgbouncer_dsn) == CLEAN


@pytest.mark.parametrize("has_direct_dsn", [False, True])
async def test_scheduler_behind_session_mode_listens_and_locks_only_by_a_direct_dsn(
    dsn: str, pool: asyncpg.Pool, suite: str, *, has_direct_dsn: bool
) -> None:
    """PgBouncer gives clients process ids of its own in session mode too, so it is taken for a shared one."""

    @periodic(every=timedelta(hours=1), dedup_key="often", use_advisory_lock=True)
    async def often() -> None: ...

    with running(dsn, suite, "pool_mode = session", "default_pool_size = 20") as through:
        # In session mode the pool may cache statements.
        async with asyncpg.create_pool(through, min_size=1, max_size=6) as pooled:
            scheduler = make_scheduler(pooled, direct_dsn=dsn if has_direct_dsn else None)
            seen = Recorder(scheduler)
            scheduler.register(note)
            async with scheduler:
                job_id = await scheduler.schedule(note, execution_time=now())
                await seen.until(JobCompleted, job_id=job_id)
                locking_id = await scheduler.trigger_periodic_job("often")
                has_lock = await pool.fetchval("SELECT liveness_key FROM scheduler_workers") is not None
                assert has_lock is has_direct_dsn
                assert bool(seen.of(ListenerConnected)) is has_direct_dsn
                if has_direct_dsn:
                    await seen.until(JobCompleted, job_id=locking_id)
                else:
                    (lost,) = seen.of(ListenerLost)
                    assert "PgBouncer in any mode" in lost.reason
                    (failed,) = await seen.until(JobFailed, job_id=locking_id)
                    assert "PgBouncer in any mode" in failed.error
                    assert "direct_dsn" in failed.error


async def test_schedulers_create_the_tables_through_a_pgbouncer_without_a_second_session(
    empty_dsn: str, suite: str
) -> None:
    with running(empty_dsn, suite, "max_db_connections = 1") as through:
        async with asyncpg.create_pool(through, min_size=1, max_size=6, statement_cache_size=0) as pooled:
            async with asyncio.timeout(PATIENCE / 2):
                await asyncio.gather(*(make_scheduler(pooled).initialize_db() for _ in range(3)))
            assert await pooled.fetchval("SELECT count(*) FROM scheduled_jobs") == 0


async def test_direct_dsn_restores_notifications_and_the_liveness_lock(
    pooled: asyncpg.Pool, pool: asyncpg.Pool, pgbouncer_dsn: str, dsn: str
) -> None:
    @periodic(every=timedelta(hours=1), dedup_key="often", use_advisory_lock=True)
    async def often() -> None:
        locks.append(await pool.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"))

    locks: list[int] = []
    scheduler = make_scheduler(pooled, direct_dsn=dsn)
    seen = Recorder(scheduler)
    async with scheduler:
        assert seen.of(ListenerConnected)
        assert await pool.fetchval("SELECT liveness_key FROM scheduler_workers") is not None
        await run_every_kind_of_job(scheduler, make_scheduler(pooled, direct_dsn=dsn))
        assert locks[0] == 2, "the lock of the worker and the lock of the job"
    assert await session_state(pool, pgbouncer_dsn) == CLEAN


async def test_advisory_lock_job_fails_without_a_direct_dsn(
    pooled: asyncpg.Pool, pool: asyncpg.Pool, pgbouncer_dsn: str
) -> None:
    @periodic(every=timedelta(hours=1), dedup_key="often", use_advisory_lock=True)
    async def often() -> None: ...

    scheduler = make_scheduler(pooled)
    seen = Recorder(scheduler)
    async with scheduler:
        job_id = await scheduler.trigger_periodic_job("often")
        (failed,) = await seen.until(JobFailed, job_id=job_id)
        assert "direct_dsn" in failed.error
        assert not seen.of(JobStarted)
    assert await session_state(pool, pgbouncer_dsn) == CLEAN


@pytest.mark.parametrize("suite", [NEW], indirect=True)
async def test_scheduler_uses_prepared_statements_through_a_newer_pgbouncer(
    pgbouncer_dsn: str, pool: asyncpg.Pool
) -> None:
    @periodic(every=timedelta(hours=1), dedup_key="often")
    async def often() -> None: ...

    async with asyncpg.create_pool(pgbouncer_dsn, min_size=1, max_size=6) as cached:
        async with make_scheduler(cached) as scheduler:
            await run_every_kind_of_job(scheduler, make_scheduler(cached))
        assert await session_state(pool, pgbouncer_dsn) == CLEAN


@pytest.mark.parametrize("suite", [OLD], indirect=True)
async def test_concurrent_calls_all_end_when_the_pool_caches_statements_of_shared_sessions(
    pgbouncer_dsn: str,
) -> None:
    async def call(number: int) -> None:
        job_id = await schedulers[number % 2].schedule(note, execution_time=now())
        await schedulers[number % 2].get_job_result(job_id, timeout=0.05)

    async with (
        asyncpg.create_pool(pgbouncer_dsn, min_size=1, max_size=6) as one,
        asyncpg.create_pool(pgbouncer_dsn, min_size=1, max_size=6) as other,
    ):
        schedulers = [make_scheduler(one), make_scheduler(other)]
        kinds = set[type]()
        while ConfigurationError not in kinds:  # two calls may use each session in turn by chance
            async with asyncio.timeout(PATIENCE):
                results = await asyncio.gather(*map(call, range(20)), return_exceptions=True)
            kinds |= {type(result) for result in results}
    assert kinds <= {ConfigurationError, TimeoutError}


@pytest.mark.parametrize("suite", [OLD], indirect=True)
async def test_start_refuses_a_pool_whose_statements_a_pooler_loses_before_it_claims(
    pgbouncer_dsn: str, pooled: asyncpg.Pool
) -> None:
    job_id = await make_scheduler(pooled).schedule(note, execution_time=now())
    async with asyncpg.create_pool(pgbouncer_dsn, min_size=1, max_size=6) as cached:
        for _ in range(3):
            scheduler = make_scheduler(cached)
            scheduler.register(note)
            with pytest.raises(ConfigurationError, match=r"statement_cache_size=0.*pgbouncer=true"):
                await scheduler.start()
            assert not scheduler.is_running
    assert await pooled.fetchval("SELECT status FROM scheduled_jobs WHERE job_id = $1", job_id) == "pending"
    assert await pooled.fetchval("SELECT count(*) FROM scheduler_workers") == 0


async def test_scheduler_with_a_pool_of_its_own_works_through_pgbouncer(
    pgbouncer_dsn: str, rotating_dsn: str
) -> None:
    for through in (pgbouncer_dsn, rotating_dsn, f"{pgbouncer_dsn}&pgbouncer=true"):
        async with Scheduler.connect(through, start=False) as scheduler:
            seen = Recorder(scheduler)
            await scheduler.start()
            job_ids = [await scheduler.enqueue(make_durable, args=(number,)) for number in range(10)]
            await seen.until(JobCompleted, len(job_ids))
            await scheduler.shutdown()


async def test_blocking_scheduler_works_through_pgbouncer_by_an_option_of_the_dsn(pgbouncer_dsn: str) -> None:
    def call() -> None:
        with SyncScheduler(f"{pgbouncer_dsn}&pgbouncer=true") as scheduler:
            for number in range(10):
                scheduler.enqueue(note, job_id=str(number))
                assert scheduler.get_job(str(number)) is not None

    await asyncio.to_thread(call)


@pytest.mark.parametrize("suite", [OLD], indirect=True)
def test_command_line_works_through_pgbouncer_without_a_direct_dsn(
    pgbouncer_dsn: str, dsn: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command works: the worker, with its check and its child processes, and the others."""
    at = ("--dsn", pgbouncer_dsn)
    for number in range(20):
        assert run_command(["jobs", "add", "pooled.durable", "--args", f"[{number}]", *at]) == ExitCode.DONE
    for command in (
        ["worker", "--check", "tests.cluster.pooled_jobs"],
        ["check", "tests.cluster.pooled_jobs"],
        ["worker", "--drain", "tests.cluster.pooled_jobs"],
        ["jobs", "list"],
        ["status"],
        ["migrate", "--check"],
    ):
        if command[:2] == ["worker", "--drain"]:  # which ends its process
            program = [sys.executable, "-m", "pg_scheduler", *command, *at]
            ran = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
            assert ran.returncode == ExitCode.DONE, ran.stderr
        else:
            assert run_command([*command, *at]) == ExitCode.DONE, (command, capsys.readouterr().err)

    async def count() -> Any:
        connection = await asyncpg.connect(dsn)
        query = "SELECT status, attempt, count(*)::int FROM scheduled_jobs GROUP BY 1, 2"
        rows = [tuple(row) for row in await connection.fetch(query)]
        await connection.close()
        return rows

    assert asyncio.run(count()) == [("completed", 1, 20)]


def test_migrations_of_several_schemas_share_a_session_of_pgbouncer(empty_dsn: str, suite: str) -> None:
    """Each process finds the prepared statements of those before, which would have the same names."""
    with running(empty_dsn, suite) as through:  # which prefers the session that was used last
        for words in (["migrate"], ["migrate", "verify"], ["migrate", "plan"]):
            for schema in ("one", "two"):
                program = [sys.executable, "-m", "pg_scheduler", *words, "--schema", schema, "--dsn", through]
                ran = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
                assert ran.returncode == ExitCode.DONE, (words, schema, ran.stderr)


async def test_call_that_waits_for_an_open_transaction_leaves_shared_sessions_clean(
    pooled: asyncpg.Pool, pool: asyncpg.Pool, pgbouncer_dsn: str
) -> None:
    scheduler = make_scheduler(pooled)
    async with pool.acquire() as connection, asyncio.timeout(PATIENCE):
        async with connection.transaction():
            await scheduler.enqueue(note, job_id="x", connection=connection)
            waiting = asyncio.create_task(scheduler.enqueue(note, job_id="x"))
            await asyncio.gather(*(scheduler.enqueue(note, job_id=f"other {n}") for n in range(5)))
            assert not waiting.done()
        with pytest.raises(JobConflictError):
            await waiting
    await scheduler.shutdown()
    assert await session_state(pool, pgbouncer_dsn) == CLEAN


# -- connections of callers ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["psycopg-async", "sqlalchemy-asyncpg"])
async def test_connection_of_a_caller_is_compared_through_pgbouncer(
    kind: str, dsn: str, pgbouncer_dsn: str
) -> None:
    """The same database by the other address is accepted, and another database is not."""
    through_to_other = pgbouncer_dsn.replace(address_parts(dsn)["database"], "postgres")
    for own, given in ((dsn, pgbouncer_dsn), (pgbouncer_dsn, dsn)):
        async with asyncpg.create_pool(own, min_size=0, max_size=2, statement_cache_size=0) as pool:
            async with application(kind, given, pool, is_pooled=True) as app:
                await app.call("enqueue", note)
                await settled(app.commit())
            async with application(kind, through_to_other, pool, is_pooled=True) as app:
                with pytest.raises(ConfigurationError, match="connection leads to the database 'postgres'"):
                    await app.call("enqueue", note)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("suite", "is_pooled"), [(OLD, True), (NEW, True), (NEW, False)], indirect=["suite"])
async def test_job_belongs_to_the_transaction_of_a_caller(
    rotating_dsn: str, pool: asyncpg.Pool, kind: str, is_pooled: bool
) -> None:
    await session_state(pool, rotating_dsn)  # opens all sessions
    session, kept = "SELECT pg_backend_pid()", set()
    async with (
        asyncpg.create_pool(rotating_dsn, min_size=1, statement_cache_size=0) as pooled,
        # A notification after the transaction would take one of the sessions in turn.
        application(kind, rotating_dsn, pooled, is_pooled=is_pooled, notify="commit") as app,
    ):
        await app.execute("CREATE TABLE sessions (pid int)")
        for number in range(2 * SERVER_CONNECTIONS + 2):  # psycopg prepares a statement at its sixth use
            await app.execute(f"INSERT INTO sessions {session}")
            kept.add(await app.call("enqueue", note, args=(number,)))
            with pytest.raises(JobConflictError):
                await app.call("schedule", note, execution_time=now(), job_id=max(kept))
            kept |= set(await app.call("schedule_bulk", [JobSpec(note, now())] * 3))
            assert await app.call("cancel_job", max(kept))
            await settled(app.commit())
            await app.call("enqueue", note)
            await settled(app.rollback())
        assert (await app.call("get_job", max(kept))).status is JobStatus.CANCELLED
    assert {row[0] for row in await pool.fetch("SELECT job_id FROM scheduled_jobs")} == kept
    assert await pool.fetchval("SELECT count(DISTINCT pid) FROM sessions") == SERVER_CONNECTIONS
    assert await session_state(pool, rotating_dsn) == CLEAN
