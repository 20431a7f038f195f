"""store_step, load_steps and end_step: fenced by worker and attempt, without steps of an earlier job."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler.clock import FakeClock
from pg_scheduler.errors import DuplicateStepError, JobLostError
from pg_scheduler.jobs.step_values import CURSOR, RETRY, SIGNAL, SLEEP, STEP, StoredStep
from tests.support.inside import Claim, Store, row_of_retries
from tests.support.patience import PATIENCE
from tests.support.store import NOW, SECOND, Connection, Pool, new_job, row, running

HOUR = timedelta(hours=1)


async def stored(pool: Pool) -> dict[str, Any]:
    """Return the values of all steps by name."""
    found = await pool.fetch("SELECT name, value FROM scheduler_steps ORDER BY name")
    return {each["name"]: None if each["value"] is None else json.loads(each["value"]) for each in found}


async def put(
    store: Store, claim: Claim, name: str, value: str | None = "1", kind: str = STEP, **options: Any
) -> StoredStep:
    return await store.steps.store("w1", claim, name, kind, value, **({"version": 1} | options))


async def test_step_is_returned_and_loaded_as_it_is_stored(store: Store, pool: Pool) -> None:
    (claim,) = await running(store, new_job())
    step = await put(store, claim, "quote", '{"price": 9.5, "id": 1}')
    assert step == StoredStep("quote", STEP, '{"id": 1, "price": 9.5}', has_ended=True)
    assert await store.steps.load("job") == [step]
    (found,) = await pool.fetch("SELECT * FROM scheduler_steps")
    assert (found["attempt"], found["started_at"], found["ended_at"]) == (1, NOW, NOW)


async def test_first_step_marks_the_job_and_ends_its_expiry(store: Store, pool: Pool) -> None:
    (claim,) = await running(store, new_job(misfire_grace_time=60))
    await put(store, claim, "a", version=3)
    found = await row(pool)
    options = json.loads(found["options"])
    assert options.pop("definition")
    assert options == {"steps": 3}
    assert (found["misfire_grace_time"], found["expires_at"]) == (None, None)
    await put(store, claim, "b", version=4)
    options |= {"definition": json.loads((await row(pool))["options"])["definition"]}
    assert json.loads((await row(pool))["options"]) == options, "the version is that of the first step"


async def test_mark_keeps_the_other_options_of_the_job(store: Store, pool: Pool) -> None:
    (claim,) = await running(store, new_job())
    await pool.execute("""UPDATE scheduled_jobs SET options = '{"keep_result": 60, "steps": 0}'""")
    await put(store, claim, "a", version=2)
    options = json.loads((await row(pool))["options"])
    assert options.pop("definition")
    assert options == {"keep_result": 60, "steps": 2}


@pytest.mark.parametrize(
    ("worker_id", "attempt", "change"),
    [
        ("other", 1, ""),
        ("w1", 2, ""),
        ("w1", 1, "status = 'completed', finished_at = now()"),
        ("w1", 1, "worker_id = 'other'"),
        ("w1", 1, "attempt = 2"),
    ],
)
async def test_step_is_refused_for_an_attempt_that_the_worker_does_not_hold(
    worker_id: str, attempt: int, change: str, store: Store, pool: Pool
) -> None:
    (claim,) = await running(store, new_job())
    await put(store, claim, "sleep", None, SLEEP, delay_s=60.0)
    if change:
        await pool.execute(f"UPDATE scheduled_jobs SET {change}")
    claim = claim._replace(attempt=attempt)
    with pytest.raises(JobLostError):
        await store.steps.store(worker_id, claim, "late", STEP, "1", version=1)
    with pytest.raises(JobLostError):
        await store.steps.end(worker_id, claim, "sleep")
    assert await stored(pool) == {"sleep": None}
    assert await pool.fetchval("SELECT ended_at FROM scheduler_steps") is None


async def test_step_waits_for_the_transaction_that_reclaims_its_job_and_is_refused(
    store: Store, pool: Pool
) -> None:
    """The job is marked already: otherwise the mark would wait in place of the fence."""
    (claim,) = await running(store, new_job())
    await put(store, claim, "a")
    async with pool.acquire() as connection:
        async with connection.transaction():
            await connection.execute("UPDATE scheduled_jobs SET worker_id = 'other', attempt = 2")
            late = asyncio.create_task(put(store, claim, "late"))
            await until_a_lock_is_awaited(pool)
        with pytest.raises(JobLostError):
            await late
    assert await stored(pool) == {"a": 1}


async def until_a_lock_is_awaited(pool: Pool, sessions: int = 1) -> None:
    waits = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    async with asyncio.timeout(PATIENCE):
        while await pool.fetchval(waits) < sessions:
            pass


async def test_reclaiming_waits_for_a_step_that_is_being_stored(store: Store, pool: Pool) -> None:
    (claim,) = await running(store, new_job())
    async with pool.acquire() as connection:
        async with connection.transaction():
            await put(store, claim, "a", connection=connection)
            taken = asyncio.create_task(pool.execute("UPDATE scheduled_jobs SET attempt = 2"))
            await until_a_lock_is_awaited(pool)
        await taken
    assert [step.name for step in await store.steps.load("job")] == ["a"], "the next attempt loads the step"


async def test_deletion_of_a_job_waits_for_no_signal_that_is_being_stored(store: Store, pool: Pool) -> None:
    """The signal would wait for the row of the job next, which is a deadlock."""
    (claim,) = await running(store, new_job())
    await put(store, claim, "a")
    await put(store, claim, "go", None, SIGNAL, delay_s=60.0)
    await pool.execute("UPDATE scheduled_jobs SET status = 'pending', worker_id = NULL, lease_until = NULL")
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT FROM scheduler_steps WHERE name = 'go' FOR UPDATE")
        assert [each.changed for each in await store.jobs.delete(["job"])] == [True]
    assert await stored(pool) == {"go": None}


@pytest.mark.parametrize("name", ["old", "new"])
async def test_first_step_deletes_the_steps_of_an_earlier_job_of_the_id(
    name: str, store: Store, pool: Pool
) -> None:
    insert = "INSERT INTO scheduler_steps VALUES ($1, $2, 'sleep', '7', 1, $3, $3, NULL)"
    for job_id, old in (("job", "old"), ("job", "older"), ("other", "old")):
        await pool.execute(insert, job_id, old, NOW)
    (claim,) = await running(store, new_job())
    assert await put(store, claim, name) == StoredStep(name, STEP, "1", has_ended=True)
    assert [step.name for step in await store.steps.load("job")] == [name]
    assert await store.steps.load("other") == [], "it is not marked"
    assert await pool.fetchval("SELECT name FROM scheduler_steps WHERE job_id = 'other'") == "old"


async def fail(store: Store, claim: Claim, value: str, delay_s: float | None = 60.0) -> StoredStep:
    """Store the failed attempts of the step "a"."""
    return await put(store, claim, row_of_retries("a"), value, RETRY, delay_s=delay_s)


async def test_failures_are_replaced_with_the_time_of_the_next_attempt(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    (claim,) = await running(store, new_job(misfire_grace_time=60))
    first = await fail(store, claim, "1")
    assert first == StoredStep(
        row_of_retries("a"), RETRY, "1", has_ended=False, until=NOW + 60 * SECOND, left_s=60.0
    )
    clock.advance(SECOND)
    assert await fail(store, claim, "2", 120.0) == first._replace(
        value="2", until=NOW + 121 * SECOND, left_s=120.0
    )
    (found,) = await pool.fetch("SELECT * FROM scheduler_steps")
    assert (found["started_at"], found["ended_at"]) == (NOW + SECOND, None)
    assert (await row(pool))["misfire_grace_time"] is None, "the job has begun"
    last = await fail(store, claim, "3", None)
    assert (last.value, last.has_ended, last.until) == ("3", True, None)
    again = await fail(store, claim, "4")
    assert (again.value, again.has_ended, again.left_s) == ("4", False, 60.0), "they began again"


async def test_failures_of_an_attempt_that_does_not_hold_its_job_are_refused(
    store: Store, pool: Pool
) -> None:
    (claim,) = await running(store, new_job())
    await fail(store, claim, "1")
    await pool.execute("UPDATE scheduled_jobs SET attempt = 2")
    with pytest.raises(JobLostError):
        await fail(store, claim, "2")
    assert await stored(pool) == {row_of_retries("a"): 1}


async def test_failure_waits_for_the_transaction_that_reclaims_its_job_and_is_refused(
    store: Store, pool: Pool
) -> None:
    """The next attempt may have stored a later failure, which this one would replace."""
    (claim,) = await running(store, new_job())
    await fail(store, claim, "1")
    async with pool.acquire() as connection:
        async with connection.transaction():
            await connection.execute("UPDATE scheduled_jobs SET worker_id = 'other', attempt = 2")
            late = asyncio.create_task(fail(store, claim, "2"))
            await until_a_lock_is_awaited(pool)
            await connection.execute("UPDATE scheduler_steps SET value = '7'")
        with pytest.raises(JobLostError):
            await late
    assert await stored(pool) == {row_of_retries("a"): 7}


async def test_failure_is_no_progress_of_a_job_that_kills_its_workers(store: Store, pool: Pool) -> None:
    (claim,) = await running(store, new_job())
    await pool.execute("UPDATE scheduled_jobs SET crash_count = 2")
    await fail(store, claim, "1")
    await fail(store, claim, "2")
    assert (await row(pool))["crash_count"] == 2
    await put(store, claim, "a")
    assert (await row(pool))["crash_count"] == 0


async def test_name_of_another_kind_is_refused(store: Store, pool: Pool) -> None:
    (claim,) = await running(store, new_job())
    await put(store, claim, "a")
    with pytest.raises(DuplicateStepError, match="step 'a' of job 'job' is stored as another kind"):
        await put(store, claim, "a", "2", CURSOR)
    assert await stored(pool) == {"a": 1}


async def test_step_that_is_stored_again_has_the_new_value(store: Store, pool: Pool) -> None:
    """A cursor; or a step whose answer was lost."""
    (claim,) = await running(store, new_job())
    await put(store, claim, "lines", "1", CURSOR)
    assert (await put(store, claim, "lines", "2", CURSOR)).value == "2"
    assert await stored(pool) == {"lines": 2}


async def test_sleep_ends_after_its_length_by_the_clock_of_the_database(
    store: Store, clock: FakeClock
) -> None:
    (claim,) = await running(store, new_job())
    step = await put(store, claim, "s", None, SLEEP, delay_s=3600.0)
    assert step == StoredStep("s", SLEEP, None, has_ended=False, until=NOW + HOUR, left_s=3600.0)
    clock.advance(SECOND)
    again = await put(store, claim, "s", None, SLEEP, delay_s=3600.0)
    assert again == step._replace(left_s=3599.0), "the answer of the first call was lost"


async def test_sleep_until_a_time_that_has_passed_has_ended(store: Store) -> None:
    (claim,) = await running(store, new_job())
    for name, until in (("past", NOW - HOUR), ("now", NOW)):
        step = await put(store, claim, name, None, SLEEP, until=until)
        assert (step.has_ended, step.until) == (True, until)
    assert not (await put(store, claim, "later", None, SLEEP, until=NOW + SECOND)).has_ended


async def test_end_reports_whether_the_sleep_was_open(store: Store) -> None:
    (claim,) = await running(store, new_job())
    await put(store, claim, "s", None, SLEEP, delay_s=60.0)
    assert await store.steps.end("w1", claim, "s")
    assert not await store.steps.end("w1", claim, "s")
    assert [step.has_ended for step in await store.steps.load("job")] == [True]


async def test_load_leaves_out_the_results_of_other_jobs(store: Store, pool: Pool) -> None:
    insert = "INSERT INTO scheduler_steps VALUES ('job', 'result:1', 'result', '7', 0, NULL, now(), now())"
    await pool.execute(insert)
    assert await store.steps.load("job") == []


async def test_load_reads_times_beyond_the_calendar_of_python(store: Store, pool: Pool) -> None:
    (claim,) = await running(store, new_job())
    await put(store, claim, "c")
    for name, until in (("a", "infinity"), ("b", "-infinity")):
        insert = f"INSERT INTO scheduler_steps VALUES ('job', '{name}', 'sleep', NULL, 1, '{until}', now())"
        await pool.execute(insert)
    a, b, _ = sorted(await store.steps.load("job"))
    assert a.until
    assert b.until
    assert (a.until.year, b.until.year) == (9999, 1)
    assert a.left_s is not None
    assert b.left_s is not None
    assert b.left_s < 0 < a.left_s


async def test_step_commits_with_the_transaction_of_its_connection(store: Store, pool: Pool) -> None:
    (claim,) = await running(store, new_job())
    connection = await pool.acquire()
    transaction = connection.transaction()
    await transaction.start()
    await put(store, claim, "a", connection=connection)
    await transaction.rollback()
    await pool.release(connection)
    assert await stored(pool) == {}
    assert (await row(pool))["options"] is None


async def updates(connection: Connection) -> int:
    """Return how many rows of jobs the session has updated, all of them on their page."""
    counts = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relname = 'scheduled_jobs'"
    row = await connection.fetchrow(counts)
    assert row
    assert row["n_tup_upd"] == row["n_tup_hot_upd"]
    return int(row["n_tup_upd"])


async def test_first_step_updates_the_row_of_its_job_on_its_page_and_others_do_not(
    store: Store, pool: asyncpg.Pool
) -> None:
    (claim,) = await running(store, new_job())
    await put(store, claim, "a")
    (other,) = await running(store, new_job("other"))
    async with pool.acquire() as connection, connection.transaction():
        before = await updates(connection)
        await put(store, other, "a", connection=connection)
        first = await updates(connection)
        await put(store, other, "b", connection=connection)
        assert first - before == 1
        assert await updates(connection) == first, "later steps only lock the row"
