"""Rows whose arguments are too large for the table, or for being read."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from typing import Protocol

import asyncpg
import pytest

from pg_scheduler import JobSpec, PayloadError, Scheduler
from pg_scheduler.events import JobCompleted, JobFailed, ServiceFaulted, ServiceRetrying
from tests.api.conftest import Make
from tests.support import inside
from tests.support.inside import store_of
from tests.support.store import use_options
from tests.support.stories import NIGHTLY
from tests.support.worker import PATIENCE, Recorder, now
from tools.chaos.proxy import Proxy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LIMIT_BYTES = 16 * 2**20

ENQUEUER = """
    CREATE ROLE enqueuer;
    GRANT SELECT (job_id, status) ON scheduled_jobs TO enqueuer;
    GRANT INSERT (job_id, task_data, execution_time, job_name) ON scheduled_jobs TO enqueuer;
"""
INSERT = "INSERT INTO scheduled_jobs (job_id, task_data, execution_time, job_name)"

BOMB = """('{{"args": [' || repeat('1e131071,', {}) || '0]}}')::jsonb"""
"""Arguments with so many numbers of 16 bytes, each of which has 131,072 digits as text."""
UNREADABLE = BOMB.format(8300)
"""More than 1 GB of text."""
SLOW = BOMB.format(2500)
"""328 MB of text."""
LARGEST = BOMB.format(124)
"""Nearly the limit: 16.3 MB of text."""

LARGE_NAME = "repeat('x', 65537)"
COPY = "CREATE TEMP TABLE compressed AS SELECT jsonb_build_array({}) AS data"


async def note(*args: object) -> None: ...


NAME = f"{note.__module__}.{note.__qualname__}"


class SlowNetwork(Protocol):
    """Open a pool on a network that transmits so many bytes per second."""

    async def __call__(self, bytes_per_s: float, /) -> asyncpg.Pool: ...


@pytest.fixture
async def slow_network(dsn: str) -> AsyncIterator[SlowNetwork]:
    proxy = Proxy(dsn)
    pools = []

    async def open_pool(bytes_per_s: float, /) -> asyncpg.Pool:
        proxy.bytes_per_s = bytes_per_s
        pools.append(await asyncpg.create_pool(await proxy.start(), min_size=1, max_size=8))
        return pools[0]

    yield open_pool
    proxy.close()
    for pool in pools:
        pool.terminate()


async def insert_as_earlier_release(pool: asyncpg.Pool, value: str) -> None:
    """Insert a job that is due and overdue, without the limit of the table."""
    async with pool.acquire() as connection, connection.transaction():
        constraint = await connection.fetchval(
            "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'scheduled_jobs_payload'"
        )
        await connection.execute("ALTER TABLE scheduled_jobs DROP CONSTRAINT scheduled_jobs_payload")
        row = f"{INSERT} SELECT 'bomb', {value}, now() - interval '1 minute', '{NAME}'"
        await connection.execute(row, timeout=60)
        command = "ALTER TABLE scheduled_jobs ADD CONSTRAINT scheduled_jobs_payload"
        await connection.execute(f"{command} {constraint}")


async def as_enqueuer(pool: asyncpg.Pool, *statements: str) -> None:
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SET LOCAL ROLE enqueuer")
        for statement in statements:
            await connection.execute(statement, timeout=60)


async def test_role_that_may_insert_cannot_exceed_the_limit_of_the_table(pool: asyncpg.Pool) -> None:
    await pool.execute(ENQUEUER)
    try:
        row = f"{INSERT} SELECT 'bomb', to_jsonb(repeat('x', {LIMIT_BYTES})), now(), 'name'"
        with pytest.raises(asyncpg.CheckViolationError) as caught:
            await as_enqueuer(pool, row)
        assert caught.value.constraint_name == "scheduled_jobs_payload"
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await as_enqueuer(pool, f"{INSERT[:-1]}, attempt) SELECT 'bomb', '{{}}', now(), 'name', 1")
        await as_enqueuer(pool, row.replace(str(LIMIT_BYTES), str(LIMIT_BYTES - 100)))
    finally:
        await pool.execute("DROP OWNED BY enqueuer; DROP ROLE enqueuer")


@NIGHTLY
@pytest.mark.parametrize(
    ("preparation", "data", "name"),
    [
        ("", UNREADABLE, f"'{NAME}'"),
        ("", SLOW, f"'{NAME}'"),
        ("", BOMB.format(130), f"'{NAME}'"),
        ("", SLOW.replace("1e131071", "1e-16383"), f"'{NAME}'"),
        (COPY.format("repeat('x', 100000000)"), "(SELECT data FROM compressed)", f"'{NAME}'"),
        (COPY.format(f"({SLOW})"), "(SELECT data FROM compressed)", f"'{NAME}'"),
        ("", "'{}'::jsonb", LARGE_NAME),
    ],
)
async def test_role_that_may_insert_cannot_store_a_row_that_is_large_as_text(
    pool: asyncpg.Pool, preparation: str, data: str, name: str
) -> None:
    await pool.execute(f"{ENQUEUER} GRANT INSERT (function) ON scheduled_jobs TO enqueuer")
    insert = f"{INSERT[:-1]}, function) SELECT 'bomb', {data}, now(), {name}, '{NAME}'"
    swapped = f"{INSERT[:-1]}, function) SELECT 'bomb', {data}, now(), '{NAME}', {name}"
    try:
        for statement in (insert, swapped):
            with pytest.raises((asyncpg.CheckViolationError, asyncpg.ProgramLimitExceededError)):
                await as_enqueuer(pool, *filter(None, [preparation]), statement)
    finally:
        await pool.execute("DROP OWNED BY enqueuer; DROP ROLE enqueuer")


async def test_largest_rows_of_a_role_that_may_insert_fail_and_the_others_run(
    make: Make, pool: asyncpg.Pool
) -> None:
    scheduler = make()
    seen = Recorder(scheduler)
    scheduler.register(note)
    await pool.execute(ENQUEUER)
    try:
        rows = "SELECT 'bomb ' || n, {}, now() - interval '1 minute', '{}' FROM generate_series(1, 12) AS n"
        await as_enqueuer(pool, f"{INSERT} {rows.format(LARGEST, NAME)}")
    finally:
        await pool.execute("DROP OWNED BY enqueuer; DROP ROLE enqueuer")
    await scheduler.start()
    neighbour = await scheduler.schedule(note, execution_time=now())
    await seen.until(JobCompleted, job_id=neighbour)
    failed = await seen.until(JobFailed, 12)
    assert all("task_data is not valid JSON" in event.error for event in failed)  # int() limits the digits
    assert not seen.of(ServiceFaulted)
    assert not seen.of(ServiceRetrying)


async def test_pending_row_beyond_the_limit_can_be_cancelled(make: Make, pool: asyncpg.Pool) -> None:
    await insert_as_earlier_release(pool, UNREADABLE)
    scheduler = make()
    assert await scheduler.cancel_job("bomb")
    assert await pool.fetchval("SELECT status FROM scheduled_jobs") == "cancelled"


@NIGHTLY
async def test_row_that_takes_too_long_to_read_fails_alone(
    slow_network: SlowNetwork, make: Make, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await insert_as_earlier_release(pool, SLOW)
    began = time.monotonic()
    size = await pool.fetchval("SELECT octet_length(task_data::text) FROM scheduled_jobs")
    duration_s = time.monotonic() - began
    assert size > 3e8
    # The size arrives in time even if it takes much longer to compute than here, and the text never does.
    timeout_s = 5 * duration_s
    use_options(monkeypatch, hot_timeout_s=timeout_s)
    scheduler = make(await slow_network(size / (3 * timeout_s)))
    seen = Recorder(scheduler)
    scheduler.register(note)
    neighbours = [await scheduler.schedule(note, execution_time=now()) for _ in range(20)]
    starting = asyncio.create_task(scheduler.start())
    (failed,) = await seen.until(JobFailed)
    await starting
    for job_id in neighbours:
        await seen.until(JobCompleted, job_id=job_id)
    assert failed.job_id == "bomb"
    assert re.fullmatch(
        r"the row of this job cannot be read \(PayloadError: \d{9} bytes of text, more than \d{8}\); .*",
        failed.error,
    )
    assert not seen.of(ServiceFaulted)


async def test_claimer_retries_and_fails_no_job_when_claims_time_out_for_another_reason(
    make: Make, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The other timeout is that of the pauses, which are read again after an outage.
    use_options(monkeypatch, hot_timeout_s=0.1, call_timeout_s=0.5)
    scheduler = make()
    scheduler.register(note)
    seen = Recorder(scheduler)
    await scheduler.start()
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("LOCK TABLE scheduler_workers IN ACCESS EXCLUSIVE MODE")
        job_id = await scheduler.schedule(note, execution_time=now())
        await seen.until(ServiceRetrying, 3, service="claimer")
    await seen.until(JobCompleted, job_id=job_id)
    assert not seen.of(JobFailed)


@pytest.mark.parametrize("others", [0, 200])
async def test_schedule_raises_a_payload_error_beyond_the_limit_of_the_table(make: Make, others: int) -> None:
    scheduler = make(max_payload_bytes=None)
    await scheduler.initialize_db()
    text = "x" * LIMIT_BYTES
    specs = [JobSpec(note, now(), args=(text,))] + [JobSpec(note, now())] * others
    with pytest.raises(PayloadError, match="the arguments of a job exceed 16 MiB in the table"):
        await scheduler.schedule_bulk(specs)
    calls = [scheduler.schedule(note, execution_time=now(), args=args) for args in [(), (text,), (), (text,)]]
    results = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), PATIENCE)
    assert [type(each) for each in results] == [str, PayloadError, str, PayloadError]


async def completed_once(recorders: list[Recorder], job_id: str) -> None:
    """Wait until one of two workers has completed the job, and assert that it is the only one."""
    waits = [asyncio.create_task(each.until(JobCompleted, job_id=job_id)) for each in recorders]
    done, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in pending:
        wait.cancel()
    assert [wait.exception() for wait in done] == [None]
    assert sum(len(each.of(JobCompleted, job_id=job_id)) for each in recorders) == 1


async def test_two_workers_quarantine_an_unreadable_row_and_run_the_others(
    make: Make, pool: asyncpg.Pool
) -> None:
    workers = [make(), make()]
    seen = [Recorder(each) for each in workers]
    for each in workers:
        each.register(note)
    await insert_as_earlier_release(pool, UNREADABLE)
    neighbours = [f"neighbour {n}" for n in range(20)]
    rows = "SELECT id, '{}', now() - interval '30 seconds', $2 FROM unnest($1::text[]) AS id"
    await pool.execute(f"{INSERT} {rows}", neighbours, NAME)
    for each in workers:
        await each.start()
    await asyncio.gather(*(completed_once(seen, job_id) for job_id in neighbours))
    (failed,) = [event for each in seen for event in each.of(JobFailed)]
    assert failed.job_id == "bomb"
    assert failed.error.startswith("the row of this job cannot be read (ProgramLimitExceededError: ")
    row = await pool.fetchrow("SELECT status, error_message FROM scheduled_jobs WHERE job_id = 'bomb'")
    assert row is not None
    assert tuple(row) == ("failed", failed.error)
    for each, recorder in zip(workers, seen, strict=True):
        assert each.is_running
        assert not recorder.of(ServiceFaulted)


async def ping() -> None: ...


async def test_jobs_of_other_tasks_run_when_the_application_refuses_very_many_claims_of_one(
    scheduler: Scheduler,
    seen: Recorder,
    pool: asyncpg.Pool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    inside.replace(monkeypatch, refused_claims=30)
    inside.replace(monkeypatch, pause_of_refused_claims_s=1.0)
    inside.replace(monkeypatch, pause_of_refused_names_s=0.5)
    scheduler.register(ping, name="ping")
    await pool.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN IF NEW.job_name <> 'ping' THEN RAISE 'no'; END IF; RETURN NEW; END $$;"
        "CREATE TRIGGER refuse BEFORE UPDATE ON scheduled_jobs FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    await scheduler.schedule_bulk([JobSpec(note, now()) for _ in range(500)])
    await scheduler.schedule_bulk([JobSpec(ping, now()) for _ in range(20)])
    await seen.until(JobCompleted, 20)
    assert {event.job_name for event in seen.of(JobCompleted)} == {"ping"}
    message = f"no job of {NAME} is claimed for 0 s, because 31 jobs of this name cannot be claimed: "
    assert any(text.startswith(message) for text in caplog.messages)
    assert not any(text.startswith("no job of ping") for text in caplog.messages)
    await pool.execute("DROP TRIGGER refuse ON scheduled_jobs")
    await seen.until(JobCompleted, 520)
    assert not seen.of(JobFailed)
    assert not seen.of(ServiceRetrying)


async def insert_crashed(pool: asyncpg.Pool, name: str, count: int) -> None:
    """Insert jobs under which two workers died, due before the others."""
    rows = "SELECT 'crashed ' || n, '{}', now() - interval '1 hour', $1, 2 FROM generate_series(1, $2) AS n"
    await pool.execute(f"{INSERT[:-1]}, crash_count) {rows}", name, count)


async def test_worker_quarantines_an_unreadable_row_behind_crashed_jobs(
    make: Make, pool: asyncpg.Pool
) -> None:
    release = asyncio.Event()

    async def blocking() -> None:
        await release.wait()

    scheduler = make(max_concurrent_jobs=5)
    seen = Recorder(scheduler)
    scheduler.register(note)
    scheduler.register(blocking, name="blocking")
    await insert_as_earlier_release(pool, UNREADABLE)
    await insert_crashed(pool, "blocking", 10)
    await scheduler.start()
    neighbour = await scheduler.schedule(note, execution_time=now())
    await seen.until(JobCompleted, job_id=neighbour)
    (failed,) = await seen.until(JobFailed)
    assert failed.job_id == "bomb"
    assert not seen.of(ServiceFaulted)
    release.set()
    await seen.until(JobCompleted, 11)


async def test_claim_without_crashed_jobs_is_searched_for_oversized_rows_behind_them(
    scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    await insert_as_earlier_release(pool, BOMB.format(140))
    await insert_crashed(pool, NAME, 3)
    claims = store_of(scheduler).claims
    assert await claims.quarantine_oversized([NAME], 3) == ([], False)
    ((failed,), are_left) = await claims.quarantine_oversized([NAME], 3, isolated_from=2)
    assert not are_left
    assert failed.job_id == "bomb"
