"""No statement of a service waits long for a row that a transaction of the application holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg
import pytest

from pg_scheduler.clock import FakeClock
from tests.support.dependencies import add, child, state
from tests.support.inside import Outcome, Store
from tests.support.store import NOW, Pool, new_job, running


@asynccontextmanager
async def held(dsn: str, statement: str, *args: object) -> AsyncIterator[None]:
    """Hold a row in a transaction of the application through the block, which must end soon."""
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            await connection.execute(statement, *args)
            async with asyncio.timeout(10):  # far less than the 30 s of a call
                yield
    finally:
        await connection.close()


def row_of(job_id: str) -> str:
    return f"SELECT FROM scheduled_jobs WHERE job_id = '{job_id}' FOR UPDATE"


@pytest.mark.parametrize(
    "lock", [row_of("of a"), "SELECT FROM scheduler_after WHERE parent_id = 'a' FOR UPDATE"]
)
async def test_consequences_of_other_jobs_are_applied_while_a_dependent_is_held(
    store: Store, pool: Pool, dsn: str, lock: str
) -> None:
    await running(store, new_job("a"), new_job("b"))
    await add(store, child("of a", "a"))
    await add(store, child("of b", "b"))
    await pool.execute(
        "UPDATE scheduled_jobs SET status = 'completed', finished_at = $1 WHERE job_id IN ('a', 'b')", NOW
    )
    async with held(dsn, lock):
        assert await store.consequences.apply_lost(10) == 2
        assert await state(pool, "of b") == [("pending", None)]
        assert await store.consequences.apply_lost(10) == 0, "the other one has a pause"
    store.consequences._pause_ends.clear()
    assert await store.consequences.apply_lost(10) == 1
    assert await state(pool, "of a") == [("pending", None)]


async def test_consequences_of_many_jobs_that_precede_a_held_one_are_left_together(
    store: Store, pool: Pool, dsn: str
) -> None:
    ids = [f"part {n}" for n in range(500)]
    await running(store, *(new_job(job_id) for job_id in ids))
    await add(store, child("callback", *ids))
    await pool.execute(
        "UPDATE scheduled_jobs SET status = 'completed', finished_at = $1 WHERE job_id LIKE 'part %'", NOW
    )
    async with held(dsn, row_of("callback")):
        assert await store.consequences.apply_lost(500) == 500
        assert len(store.consequences._pause_ends) == 500
    store.consequences._pause_ends.clear()
    assert store.consequences.next_attempt_in() is None
    assert await store.consequences.apply_lost(500) == 500
    assert await state(pool, "callback") == [("pending", None)]


async def test_jobs_of_a_dead_worker_are_reclaimed_while_a_dependent_is_held(
    store: Store, pool: Pool, dsn: str, clock: FakeClock
) -> None:
    await running(store, new_job("a"), new_job("b"))
    await add(store, child("of a", "a"))
    clock.advance(timedelta(hours=1))
    async with held(dsn, row_of("of a")):
        rescue = await store.workers.rescue(60, max_crashes=1)
        assert sorted(job.job_id for job in rescue.quarantined) == ["a", "b"]
        assert await state(pool, "a", "b") == [("failed", None)] * 2
    assert await store.consequences.apply_lost(10) == 1
    assert await state(pool, "of a") == [("cancelled", None)]


async def test_expired_results_are_deleted_while_one_of_them_is_held(
    store: Store, pool: Pool, dsn: str
) -> None:
    await pool.execute(
        "INSERT INTO scheduler_results (job_id, status, attempts, finished_at, expires_at) "
        "SELECT id, 'completed', 1, $1, $1 FROM unnest(ARRAY['a', 'b']) AS each (id)",
        NOW - timedelta(days=1),
    )
    async with held(dsn, "SELECT FROM scheduler_results WHERE job_id = 'a' FOR UPDATE"):
        assert await store.kept_results.vacuum(10) == 1
    assert await store.kept_results.vacuum(10) == 1


async def test_settling_leaves_out_what_is_held(store: Store, pool: Pool, dsn: str) -> None:
    claims = await running(store, new_job("a"), new_job("b"))
    outcomes = [(claim, Outcome.fail("no")) for claim in claims]
    async with held(dsn, row_of("a")):
        settled = await store.results.settle_unlocked("w1", outcomes)
    assert settled == ({"b"}, {"a"})
    assert await state(pool, "a", "b") == [("running", None), ("failed", None)]


async def test_victims_of_a_table_lock_are_not_named_as_its_holders(store: Store, dsn: str) -> None:
    """A victim holds a lock of rows on one table of the schema, and waits for another table."""
    holder, victim = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    try:
        await holder.execute("BEGIN; LOCK TABLE scheduled_jobs")
        await victim.execute("BEGIN; LOCK TABLE scheduler_steps IN ROW EXCLUSIVE MODE")
        waiting = asyncio.create_task(victim.execute("LOCK TABLE scheduled_jobs IN ROW EXCLUSIVE MODE"))
        # Only transactions that began half a second ago are named.
        await asyncio.sleep(0.6)
        assert [text.split(",")[0] for text in await store.locks.find_holders()] == [
            f"pid {holder.get_server_pid()}"
        ]
        await holder.execute("ROLLBACK")
        await waiting
    finally:
        await holder.close()
        await victim.close()
