"""Claims take due jobs in order, each with a new attempt number, and never a job that is held."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from pg_scheduler.clock import FakeClock
from tests.support.inside import Claim, Connections, Store
from tests.support.store import (
    LEASE,
    NAME,
    NOW,
    SECOND,
    Pool,
    claim_on,
    column,
    due_in,
    new_job,
    row,
    running,
    worker,
)


@pytest.fixture
async def store(store: Store) -> Store:
    """A store with the worker w1."""
    await store.workers.register(worker(), LEASE)
    return store


Take = Callable[..., Awaitable[Any]]


@pytest.fixture(params=["exchange", "claim"])
def take(request: pytest.FixtureRequest, store: Store) -> Take:
    """Claim by either statement."""
    method: Take = getattr(store.claims, request.param)
    return method


def ids(claims: list[Claim]) -> list[str]:
    return [claim.job_id for claim in claims]


async def test_claim_returns_claims_with_every_value_of_the_job(take: Take, store: Store, pool: Pool) -> None:
    job = new_job(
        execution_time=NOW - SECOND,
        task_data='{"args": [1], "kwargs": {}}',
        priority=3,
        max_retries=2,
        misfire_grace_time=60,
        timeout_seconds=1.5,
        function="app.moved",
        lock_key=-(2**63),
    )
    await store.inserts.insert([job])
    claimed = await take("w1", ["app.moved"], 10)
    assert claimed.expired == []
    assert claimed.jobs == [
        Claim("job", "app.moved", "app.moved", 1, NOW - SECOND, job.task_data, 3, 0, 2, 1.5, -(2**63))
    ]
    found = await row(pool)
    assert (found["status"], found["worker_id"], found["attempt"]) == ("running", "w1", 1)
    assert found["started_at"] == found["last_heartbeat"] == NOW
    assert found["lease_until"] == NOW + LEASE * SECOND
    assert found["finished_at"] is None


async def test_claim_orders_jobs_by_priority_time_and_id(take: Take, store: Store) -> None:
    jobs = [
        new_job("low", priority=8, execution_time=NOW - 60 * SECOND),
        new_job("b", execution_time=NOW - SECOND),
        new_job("a", execution_time=NOW - SECOND),
        new_job("earlier", execution_time=NOW - 2 * SECOND),
        new_job("high", priority=3),
        new_job("critical", priority=1),
    ]
    await store.inserts.insert(jobs)
    order = ["critical", "high", "earlier", "a", "b", "low"]
    assert ids((await take("w1", [NAME], 4)).jobs) == order[:4]
    assert ids((await take("w1", [NAME], 4)).jobs) == order[4:]


async def test_claim_claims_jobs_of_one_instant_by_id_when_inserted_in_another_order(
    take: Take, store: Store
) -> None:
    names = [f"{n * 7919 % 1000:04}" for n in range(1000)]
    await store.inserts.insert([new_job(name) for name in names])
    taken: list[str] = []
    while batch := ids((await take("w1", [NAME], 64)).jobs):
        taken += batch
    assert taken == sorted(names)


async def test_claim_claims_no_job_before_it_is_due(take: Take, store: Store, clock: FakeClock) -> None:
    await store.inserts.insert([new_job(execution_time=NOW + SECOND)])
    assert (await take("w1", [NAME], 1)).jobs == []
    assert await due_in(store, [NAME]) == 1
    clock.advance(SECOND)
    assert await due_in(store, [NAME]) == 0
    assert ids((await take("w1", [NAME], 1)).jobs) == ["job"]
    assert await due_in(store, [NAME]) is None


async def test_claim_claims_no_blocked_job(take: Take, store: Store, pool: Pool) -> None:
    await store.inserts.insert([new_job("blocked"), new_job("free")])
    await pool.execute("UPDATE scheduled_jobs SET blocked_on = 'after' WHERE job_id = 'blocked'")
    found = await take("w1", [NAME], 10)
    assert (ids(found.jobs), found.due_in) == (["free"], None)


async def test_claim_returns_the_options_of_a_job(take: Take, store: Store, pool: Pool) -> None:
    await store.inserts.insert([new_job("plain"), new_job("special")])
    await pool.execute(
        """UPDATE scheduled_jobs SET options = '{"keep_result": 5}' WHERE job_id = 'special'"""
    )
    found = await take("w1", [NAME], 10)
    assert [claim.options for claim in found.jobs] == [None, '{"keep_result": 5}']


async def test_exchange_returns_seconds_until_the_next_known_job_is_due(store: Store) -> None:
    await store.inserts.insert(
        [
            new_job("unknown", job_name="other", execution_time=NOW - 99 * SECOND),
            new_job("far", priority=1, execution_time=NOW + 60 * SECOND),
            new_job("near", priority=8, execution_time=NOW - 5 * SECOND),
        ]
    )
    assert await due_in(store, [NAME]) == -5
    assert await due_in(store, []) is None


async def test_exchange_returns_no_due_time_for_jobs_it_claimed(store: Store) -> None:
    await store.inserts.insert(
        [
            new_job("far", priority=1, execution_time=NOW + 60 * SECOND),
            new_job("near", priority=8, execution_time=NOW + 5 * SECOND),
            new_job("due", priority=8, execution_time=NOW - 5 * SECOND),
            new_job("late", priority=8, execution_time=NOW - 9 * SECOND, misfire_grace_time=1),
        ]
    )
    full = await store.claims.exchange("w1", [NAME], 1)
    assert (ids(full.expired), full.due_in) == (["late"], None), "the next claim reports it"
    less = await store.claims.exchange("w1", [NAME], 2)
    assert (ids(less.jobs), less.due_in) == (["due"], 5)
    assert (await store.claims.exchange("w1", [NAME], 2)).due_in == 5


async def test_claim_returns_a_negative_due_time_when_a_due_job_is_locked(
    take: Take, store: Store, pool: Pool
) -> None:
    await store.inserts.insert([new_job("a"), new_job("b", execution_time=NOW - SECOND)])
    async with pool.acquire() as other, other.transaction():
        await other.execute("SELECT FROM scheduled_jobs WHERE job_id = 'b' FOR UPDATE")
        claimed = await take("w1", [NAME], 10)
        assert (ids(claimed.jobs), claimed.due_in) == (["a"], -1)
    claimed = await take("w1", [NAME], 10)
    assert (ids(claimed.jobs), claimed.due_in) == (["b"], None)


async def test_claim_claims_no_job_of_an_unregistered_name(take: Take, store: Store, pool: Pool) -> None:
    await store.inserts.insert(
        [new_job("known"), new_job("unknown", job_name="other"), new_job("moved", function="elsewhere")]
    )
    assert (await take("w1", [], 10)).jobs == []
    assert ids((await take("w1", [NAME], 10)).jobs) == ["known"]
    assert await column(pool, "status") == {"known": "running", "unknown": "pending", "moved": "pending"}
    assert sorted(await store.jobs.waiting_names()) == ["elsewhere", "other"]
    assert ids((await take("w1", ["other", "elsewhere"], 10)).jobs) == ["moved", "unknown"]


async def test_exchange_expires_a_job_past_its_misfire_grace_time(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    await store.inserts.insert(
        [
            new_job("at any time"),
            new_job("in time", misfire_grace_time=60),
            new_job("late", misfire_grace_time=59),
            new_job("none", misfire_grace_time=0),
        ]
    )
    clock.advance(60 * SECOND)
    await store.workers.renew("w1", {}, LEASE)
    claimed = await store.claims.exchange("w1", [NAME], 10)
    assert ids(claimed.jobs) == ["at any time", "in time"]
    assert ids(claimed.expired) == ["late", "none"]
    late = await row(pool, "late")
    assert (late["status"], late["finished_at"], late["started_at"]) == ("expired", NOW + 60 * SECOND, None)
    assert (await store.claims.exchange("w1", [NAME], 10)).expired == []


async def test_claim_claims_a_job_when_its_grace_time_ends_at_this_instant(take: Take, store: Store) -> None:
    await store.inserts.insert([new_job(misfire_grace_time=0)])
    assert ids((await take("w1", [NAME], 1)).jobs) == ["job"]


async def test_claim_gives_each_claim_a_new_attempt_number(take: Take, store: Store) -> None:
    (first,) = await running(store, new_job())
    await store.workers.rescue(120)
    assert (await take("w1", [NAME], 1)).jobs == [], "it is held"
    await store.workers.deregister("w1")
    await store.workers.register(worker("w2"), LEASE)
    await store.jobs.set_status(
        "job", (await store.jobs.statuses_of(["job"]))["job"].__class__.PENDING, LEASE
    )
    (second,) = (await take("w2", [NAME], 1)).jobs
    assert (first.attempt, second.attempt) == (1, 2)
    assert await store.claims.held_claim("job", "w1") is None
    assert await store.claims.held_claim("job", "w2") == second


async def test_claim_claims_nothing_when_the_worker_has_no_row(take: Take, store: Store, pool: Pool) -> None:
    await store.inserts.insert([new_job()])
    assert (await take("without a row", [NAME], 1)).jobs == []
    assert (await row(pool))["attempt"] == 0


async def test_exchange_claims_nothing_when_the_lease_expired(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    await store.inserts.insert([new_job()])
    clock.advance(LEASE * SECOND)
    assert (await store.claims.exchange("w1", [NAME], 1)).jobs == []
    assert (await row(pool))["status"] == "pending"
    await store.workers.renew("w1", {}, LEASE)
    assert ids((await store.claims.exchange("w1", [NAME], 1)).jobs) == ["job"]


async def test_exchange_calls_claim_different_jobs_when_concurrent(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    await store.workers.register(worker("w2"), LEASE)
    await store.inserts.insert([new_job(f"{n:02}") for n in range(10)])
    async with pool.acquire() as one:
        transaction = one.transaction()
        await transaction.start()
        first = await claim_on(one, store, 4)
        second = (await store.claims.exchange("w2", [NAME], 10)).jobs
        await transaction.commit()
    assert sorted(each["job_id"] for each in first) == ["00", "01", "02", "03"]
    assert ids(second) == ["04", "05", "06", "07", "08", "09"]


async def test_exchange_claims_each_job_once_when_many_workers_compete(store: Store) -> None:
    await store.inserts.insert([new_job(f"{n:03}", priority=(1, 3, 5, 8)[n % 4]) for n in range(200)])
    workers = [f"w{n}" for n in range(5)]
    for each in workers:
        await store.workers.register(worker(each), LEASE)

    async def take(worker_id: str) -> list[str]:
        taken: list[str] = []
        # Rows that another claim has locked look like an empty queue.
        while (await store.jobs.count_jobs(None)).pending:
            taken += ids((await store.claims.exchange(worker_id, [NAME], 7)).jobs)
        return taken

    taken = await asyncio.gather(*map(take, workers))
    everything = [each for some in taken for each in some]
    assert sorted(everything) == [f"{n:03}" for n in range(200)]


async def test_exchange_locks_only_the_rows_that_it_claims(store: Store, pool: Pool) -> None:
    jobs = [new_job(f"{priority}-{n}", priority=priority) for priority in (1, 3, 5, 8) for n in range(3)]
    await store.inserts.insert(jobs)
    for limit in (1, 2, 4, 5):
        async with pool.acquire() as one:
            transaction = one.transaction()
            await transaction.start()
            taken = {each["job_id"] for each in await claim_on(one, store, limit)}
            free = await pool.fetch(
                "SELECT job_id FROM scheduled_jobs WHERE status = 'pending' FOR UPDATE SKIP LOCKED"
            )
            await transaction.rollback()
        assert taken == {job.job_id for job in jobs[:limit]}
        assert {each["job_id"] for each in free} == {job.job_id for job in jobs[limit:]}


async def test_exchange_skips_a_row_that_changes_concurrently(store: Store, pool: Pool) -> None:
    """Another transaction cancels the job after the claim read it as pending."""
    await store.inserts.insert([new_job("a"), new_job("b")])
    async with pool.acquire() as other, other.transaction():
        await other.execute(
            "UPDATE scheduled_jobs SET status = 'cancelled', finished_at = now() WHERE job_id = 'a'"
        )
        assert ids((await store.claims.exchange("w1", [NAME], 10)).jobs) == ["b"]
    assert (await store.claims.exchange("w1", [NAME], 10)).jobs == []
    assert await column(pool, "attempt") == {"a": 0, "b": 1}


async def test_held_claim_returns_the_claim_of_its_worker_only(store: Store) -> None:
    (claim,) = await running(store, new_job(function="app.moved", job_name="app.moved"))
    assert await store.claims.held_claim("job", "w1") == claim
    assert await store.claims.held_claim("job", "w2") is None
    assert await store.claims.held_claim("other", "w1") is None
    await store.jobs.cancel("job")
    assert await store.claims.held_claim("job", "w1") is None


async def test_earliest_and_latest_instants_survive_a_round_trip(store: Store, clock: FakeClock) -> None:
    last = NOW.max.replace(tzinfo=NOW.tzinfo) - timedelta(microseconds=1)
    first = NOW.min.replace(tzinfo=NOW.tzinfo) + timedelta(microseconds=1)
    await store.inserts.insert(
        [
            new_job("last", execution_time=last, misfire_grace_time=2**31 - 1),
            new_job("first", execution_time=first),
        ]
    )
    assert ids((await store.claims.exchange("w1", [NAME], 10)).jobs) == ["first"]
    job = await store.jobs.get_job("last")
    assert job
    assert (job.execution_time, job.expires_at) == (last, None)
    assert await due_in(store, [NAME]) == pytest.approx((last - NOW).total_seconds())
    clock.now = last - timedelta(days=1)
    assert await due_in(store, [NAME]) == pytest.approx(86400)


async def test_store_works_with_a_pool_of_one_connection(dsn: str, clock: FakeClock) -> None:
    import asyncpg

    async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as small:
        store = Store(Connections(small), clock=clock)
        assert ids(await running(store, new_job())) == ["job"]


async def test_exchange_writes_nothing_when_no_job_is_due(store: Store, pool: Pool) -> None:
    """Not even a row lock, which writes WAL: idle workers poll every two seconds."""
    await store.workers.register(worker(), LEASE)
    async with pool.acquire() as connection, connection.transaction():
        assert await claim_on(connection, store, 10) == []
        assert await connection.fetchval("SELECT pg_current_xact_id_if_assigned()") is None
        await store.inserts.insert([new_job()], connection=connection)
        assert len(await claim_on(connection, store, 10)) == 1


async def test_exchange_claims_one_job_under_which_a_worker_died(store: Store, pool: Pool) -> None:
    await store.inserts.insert([new_job(job_id, priority=3 if job_id == "c" else 5) for job_id in "abcde"])
    await store.inserts.insert([new_job("later", execution_time=NOW + 9 * SECOND)])
    await pool.execute("UPDATE scheduled_jobs SET crash_count = 1 WHERE job_id = ANY ('{b,c,d}')")
    found = await store.claims.exchange("w1", [NAME], 10)
    assert (ids(found.jobs), found.crashed) == (["c", "a", "e"], "c"), "the first in the order of claims"
    assert found.due_in == 9, "those that may not run now are not due"
    found = await store.claims.exchange("w1", [NAME], 10, crashed=False)
    assert (ids(found.jobs), found.crashed, found.due_in) == ([], None, 9)
    assert await column(pool, "status") == {
        "a": "running",
        "b": "pending",
        "c": "running",
        "d": "pending",
        "e": "running",
        "later": "pending",
    }
    for job_id in "bd":
        found = await store.claims.exchange("w1", [NAME], 1)
        assert (ids(found.jobs), found.crashed) == ([job_id], job_id)


async def test_exchange_returns_an_expired_job_under_which_a_worker_died(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    await store.inserts.insert([new_job("a", misfire_grace_time=0)])
    await pool.execute("UPDATE scheduled_jobs SET crash_count = 1")
    clock.advance(SECOND)
    found = await store.claims.exchange("w1", [NAME], 10)
    assert (found.jobs, ids(found.expired), found.crashed) == ([], ["a"], "a")


async def test_claim_leaves_expired_and_crashed_jobs_to_an_exchange(store: Store, clock: FakeClock) -> None:
    await store.inserts.insert([new_job("plain"), new_job("late", misfire_grace_time=1), new_job("crashed")])
    async with store.connections.acquire() as connection:
        await connection.execute("UPDATE scheduled_jobs SET crash_count = 1 WHERE job_id = 'crashed'")
    clock.advance(2 * SECOND)
    claimed = await store.claims.claim("w1", [NAME], 10)
    assert (ids(claimed.jobs), claimed.expired, claimed.due_in) == (["plain"], [], -2)
    claimed = await store.claims.exchange("w1", [NAME], 10, crashed=False)
    assert (claimed.jobs, ids(claimed.expired)) == ([], ["late"])
    assert (await store.claims.claim("w1", [NAME], 10)).due_in == -2, "a crashed job is due"
    assert (await store.claims.claim("w1", [NAME], 10, crashed=False)).due_in is None


async def test_complete_refuses_completions_that_are_lost_or_locked(store: Store, pool: Pool) -> None:
    done, lost, again, locked = await running(store, *map(new_job, ("done", "lost", "again", "locked")))
    await store.jobs.cancel("lost")
    await pool.execute("UPDATE scheduled_jobs SET attempt = 2 WHERE job_id = 'again'")
    async with pool.acquire() as other, other.transaction():
        await other.execute("SELECT FROM scheduled_jobs WHERE job_id = 'locked' FOR UPDATE")
        refused = await store.claims.complete("w1", [done, lost, again, locked], keep=True)
    assert refused == {"lost", "again", "locked"}
    left = {"lost": "cancelled", "again": "running", "locked": "running"}
    assert await column(pool, "status") == {"done": "completed", **left}
