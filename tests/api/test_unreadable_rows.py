"""Rows whose arguments are too large for the table, or for being read."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from pg_scheduler import JobSpec, JobStatus, PayloadError, Scheduler
from pg_scheduler.events import JobCompleted, JobFailed, ServiceFaulted
from tests.api.conftest import Make
from tests.support.worker import PATIENCE, Recorder, now

pytestmark = pytest.mark.timeout(120)

LIMIT_BYTES = 16 * 2**20

ENQUEUER = """
    CREATE ROLE enqueuer;
    GRANT SELECT (job_id, status) ON scheduled_jobs TO enqueuer;
    GRANT INSERT (job_id, task_data, execution_time, job_name) ON scheduled_jobs TO enqueuer;
"""
INSERT = "INSERT INTO scheduled_jobs (job_id, task_data, execution_time, job_name)"

BOMB = """('{"args": [' || repeat('1e131071,', 8300) || '0]}')::jsonb"""
"""Arguments of 75 kB, in which each number has 131,072 digits: their text has more than 1 GB."""


async def note(*args: object) -> None: ...


NAME = f"{note.__module__}.{note.__qualname__}"


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
    await pool.execute(ENQUEUER)
    try:
        await as_enqueuer(pool, f"{INSERT} SELECT 'bomb', {BOMB}, now() - interval '1 minute', '{NAME}'")
        neighbours = [f"neighbour {n}" for n in range(20)]
        rows = "SELECT id, '{}', now() - interval '30 seconds', $2 FROM unnest($1::text[]) AS id"
        await pool.execute(f"{INSERT} {rows}", neighbours, NAME)
        for each in workers:
            await each.start()
        await asyncio.gather(*(completed_once(seen, job_id) for job_id in neighbours))
        (failed,) = [event for each in seen for event in each.of(JobFailed)]
    finally:
        await pool.execute("DROP OWNED BY enqueuer; DROP ROLE enqueuer")
    assert failed.job_id == "bomb"
    assert failed.error.startswith("the row of this job cannot be read (ProgramLimitExceededError: ")
    row = await pool.fetchrow("SELECT status, error_message FROM scheduled_jobs WHERE job_id = 'bomb'")
    assert row is not None
    assert tuple(row) == ("failed", failed.error)
    for each, recorder in zip(workers, seen, strict=True):
        assert each.is_running
        assert not recorder.of(ServiceFaulted)


async def test_scheduler_stops_when_every_claim_fails_without_an_unreadable_row(
    scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    await pool.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;"
        "CREATE TRIGGER refuse BEFORE UPDATE ON scheduled_jobs FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    job_id = await scheduler.schedule(note, execution_time=now())
    with pytest.raises(asyncpg.RaiseError):
        await asyncio.wait_for(scheduler.wait(), PATIENCE)
    row = await scheduler.get_job(job_id)
    assert row is not None
    assert row.status is JobStatus.PENDING
