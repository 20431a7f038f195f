"""The reason in the ``error_message`` of an expired job: each case, by a sweep and by a claim."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import pytest

from pg_scheduler.clock import FakeClock
from pg_scheduler.facts.expiry import CAUSES, ExpiryCause
from tests.support.inside import Store
from tests.support.store import LEASE, NAME, NOW, SECOND, Pool, new_job, worker

GRACE_S = 10
BETWEEN = "not started between 2030-01-01 12:00:00 and 2030-01-01 12:00:10 UTC; "
GRACE = "; its misfire grace time is 10 seconds"

Expire: TypeAlias = Callable[[Store], Awaitable[object]]


async def attempt_of(store: Store, job_id: str) -> int:
    job = await store.jobs.get_job(job_id)
    assert job is not None
    return job.attempt


async def sweep(store: Store) -> None:
    assert len(await store.jobs.expire("w1", [NAME], 100)) == 1


async def claim(store: Store) -> None:
    answer = await store.claims.exchange("w1", [NAME], 100)
    assert (len(answer.expired), answer.jobs) == (1, [])
    assert answer.expired[0].attempt == await attempt_of(store, answer.expired[0].job_id)
    await store.claims.explain_expiry("w1", [NAME], answer.expired)


BOTH = pytest.mark.parametrize("expire", [sweep, claim])


async def reason(pool: Pool) -> str:
    text: str = await pool.fetchval("SELECT error_message FROM scheduled_jobs WHERE status = 'expired'")
    return text


async def cause(pool: Pool) -> str:
    query = "SELECT options ->> 'expiry' FROM scheduled_jobs WHERE status = 'expired'"
    text: str = await pool.fetchval(query)
    assert text in CAUSES
    return text


@BOTH
async def test_expired_job_says_that_a_worker_of_its_function_was_not_free(
    store: Store, pool: Pool, clock: FakeClock, expire: Expire
) -> None:
    await store.workers.register(worker(), LEASE)
    await store.inserts.insert([new_job(misfire_grace_time=GRACE_S)])
    clock.advance(11 * SECOND)
    await expire(store)
    assert await reason(pool) == BETWEEN + (
        "worker w1, which has registered its function, had no free slot, was blocked, "
        f"or could not reach the database{GRACE}"
    )
    assert await cause(pool) == ExpiryCause.NO_FREE_SLOT


@BOTH
async def test_expired_job_says_that_its_row_has_an_infinite_time(
    store: Store, pool: Pool, clock: FakeClock, expire: Expire
) -> None:
    await store.workers.register(worker(), LEASE)
    await store.inserts.insert([new_job(misfire_grace_time=GRACE_S)])
    await pool.execute("UPDATE scheduled_jobs SET expires_at = '-infinity'")
    clock.advance(SECOND)
    await expire(store)
    assert (await reason(pool)).startswith("not started between 2030-01-01 12:00:00 and -infinity UTC; ")


@BOTH
async def test_expired_job_says_that_no_worker_had_started(
    store: Store, pool: Pool, clock: FakeClock, expire: Expire
) -> None:
    await store.workers.register(worker("gone"), LEASE)
    await store.inserts.insert([new_job(misfire_grace_time=GRACE_S)])
    clock.advance((LEASE + 1) * SECOND)
    await store.workers.register(worker(), LEASE)
    await expire(store)
    assert await reason(pool) == BETWEEN + (
        "no worker that runs now had started: the first one started at 2030-01-01 12:01:01 UTC" + GRACE
    )
    assert await cause(pool) == ExpiryCause.NO_WORKER_YET


@BOTH
async def test_expired_job_says_that_the_worker_of_its_function_started_later(
    store: Store, pool: Pool, clock: FakeClock, expire: Expire
) -> None:
    await store.workers.register(worker("other"), LEASE)
    await store.inserts.insert([new_job(misfire_grace_time=GRACE_S)])
    clock.advance(15 * SECOND)
    await store.workers.register(worker(), LEASE)
    await expire(store)
    assert await reason(pool) == BETWEEN + (
        "no worker claimed it; worker w1, which has registered its function, "
        f"started at 2030-01-01 12:00:15 UTC{GRACE}"
    )
    assert await cause(pool) == ExpiryCause.WORKER_STARTED_LATER


@BOTH
async def test_expired_job_says_that_it_was_scheduled_too_late(
    store: Store, pool: Pool, clock: FakeClock, expire: Expire
) -> None:
    await store.workers.register(worker(), LEASE)
    clock.advance(20 * SECOND)
    await store.inserts.insert([new_job(misfire_grace_time=GRACE_S)])
    await expire(store)
    assert await reason(pool) == BETWEEN + f"it was scheduled later, at 2030-01-01 12:00:20 UTC{GRACE}"
    assert await cause(pool) == ExpiryCause.SCHEDULED_LATE


async def test_expired_job_names_its_function_when_the_worker_has_not_registered_it(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    await store.workers.register(worker(), LEASE)
    await store.inserts.insert([new_job(job_name="nightly", function="app.sned", misfire_grace_time=GRACE_S)])
    clock.advance(11 * SECOND)
    await sweep(store)
    assert await reason(pool) == BETWEEN + (
        f"no worker claimed it, and worker w1 has not registered the function app.sned{GRACE}"
    )
    assert await cause(pool) == ExpiryCause.NO_WORKER


@BOTH
async def test_expired_job_keeps_the_error_of_its_last_attempt(
    store: Store, pool: Pool, clock: FakeClock, expire: Expire
) -> None:
    await store.workers.register(worker(), LEASE)
    await store.inserts.insert([new_job(misfire_grace_time=GRACE_S)])
    await pool.execute("UPDATE scheduled_jobs SET error_message = 'ValueError: no'")
    clock.advance(11 * SECOND)
    await expire(store)
    assert (await reason(pool)).endswith(f"{GRACE}; error of the last attempt: ValueError: no")


@BOTH
@pytest.mark.parametrize("expires_at", ["-infinity", "4713-01-01 BC"])
async def test_job_with_an_expiry_outside_of_the_calendar_expires_with_a_reason(
    store: Store, pool: Pool, expire: Expire, expires_at: str
) -> None:
    await store.workers.register(worker(), LEASE)
    await store.inserts.insert([new_job()])
    await pool.execute("UPDATE scheduled_jobs SET expires_at = $1::text::timestamptz", expires_at)
    await expire(store)
    assert "it was scheduled later" in await reason(pool)


@BOTH
@pytest.mark.parametrize("until", ["12:00:10", "12:00:05"])
async def test_wait_for_a_limit_is_the_cause_unless_the_job_got_more_time_after_it(
    store: Store, pool: Pool, clock: FakeClock, expire: Expire, until: str
) -> None:
    await store.workers.register(worker(), LEASE)
    await store.inserts.insert([new_job(misfire_grace_time=GRACE_S)])
    waited = {"waited": {"for": "limit:bank:", "until": f"2030-01-01 {until}"}}
    await pool.execute("UPDATE scheduled_jobs SET options = $1::text::jsonb", json.dumps(waited))
    clock.advance(11 * SECOND)
    await expire(store)
    expected = ExpiryCause.WAITED if until == "12:00:10" else ExpiryCause.NO_FREE_SLOT
    assert await cause(pool) == expected
    assert ("it waited for limit:bank:" in await reason(pool)) == (expected == ExpiryCause.WAITED)


async def test_claim_keeps_the_error_message_of_a_job_that_it_starts(store: Store, pool: Pool) -> None:
    await store.workers.register(worker(), LEASE)
    await store.inserts.insert([new_job(misfire_grace_time=GRACE_S, execution_time=NOW)])
    await pool.execute("UPDATE scheduled_jobs SET error_message = 'ValueError: no'")
    assert len((await store.claims.exchange("w1", [NAME], 1)).jobs) == 1
    assert await pool.fetchval("SELECT error_message FROM scheduled_jobs") == "ValueError: no"


@BOTH
@pytest.mark.parametrize("attempts", [0, 1])
async def test_expired_job_has_the_number_of_its_attempts(
    store: Store, pool: Pool, clock: FakeClock, expire: Expire, attempts: int
) -> None:
    await store.workers.register(worker(), LEASE)
    await store.inserts.insert([new_job(misfire_grace_time=GRACE_S)])
    if attempts:
        assert len((await store.claims.exchange("w1", [NAME], 1)).jobs) == 1
        change = "SET status = 'pending', worker_id = NULL, lease_until = NULL"
        await pool.execute(f"UPDATE scheduled_jobs {change}")
    clock.advance(11 * SECOND)
    await expire(store)
    row = await pool.fetchrow("SELECT status, attempt FROM scheduled_jobs")
    assert row is not None
    assert tuple(row) == ("expired", attempts)
