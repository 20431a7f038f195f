"""No order of the statements that change a family and of those of its jobs leaves a part of it behind."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import asyncpg
import pytest

from pg_scheduler.errors import JobLostError
from pg_scheduler.jobs.step_values import CHILD
from tests.store.protocol import Op, interleave
from tests.store.test_child_waits import (
    CHILDREN,
    MAX_SWITCHES,
    WAITS,
    End,
    Suspend,
    begin_wait,
    mark_children,
    save,
    world_of,
)
from tests.store.test_steps import until_a_lock_is_awaited
from tests.support.inside import NO_TIMEOUT, Claim, ExtendedJob, Extras, Outcome, Store
from tests.support.store import NAME, NOW, new_job, row, running
from tests.support.stories import LONG

NEW = "job:docs:0"


@dataclass
class InsertChild(Op):
    """The attempt inserts a child and stores its step. The answer is whether it held its job."""

    claim: Claim

    async def run(self, store: Store) -> bool:
        async with store.statements.transaction() as transaction:
            on = transaction.connection
            try:
                family = await store.steps.find_children("w1", self.claim, "docs", {NEW: None}, on)
            except JobLostError:
                return False
            mark = {"job": "job", "definition": family.definition, "step": "docs"}
            options = json.dumps({"child_of": mark, "keep_result": 60})
            child = ExtendedJob(new_job(NEW, execution_time=NOW), Extras(options=options))
            await store.inserts.insert_extended([child], connection=on)
            await store.steps.store(
                "w1", self.claim, "docs", CHILD, json.dumps([NEW]), version=1, until=NO_TIMEOUT, connection=on
            )
            await store.dependencies.await_jobs("job", family.definition, [NEW], transaction)
            return True


@dataclass
class CancelFamily(Op):
    """A caller cancels a job with its children. The answer is which jobs were cancelled."""

    job_id: str = "job"

    async def run(self, store: Store) -> set[str]:
        return {job.job_id for job in await store.jobs.cancel_family(self.job_id, "by a test")}


@dataclass
class RetryFamily(Op):
    """A caller retries a job with its children. The answer is how many jobs were retried."""

    async def run(self, store: Store) -> int:
        return len(await store.jobs.retry_family("job"))


async def statuses(pool: asyncpg.Pool) -> dict[str, str]:
    return {found["job_id"]: found["status"] for found in await pool.fetch("SELECT * FROM scheduled_jobs")}


@pytest.mark.slow
async def test_no_order_of_a_cancellation_and_the_insertion_of_a_child_leaves_the_child(
    dsn: str, pool: asyncpg.Pool, store: Store
) -> None:
    orders = {True: 0, False: 0}

    async def check(ops: Sequence[Op]) -> None:
        is_inserted = ops[0].answer
        orders[is_inserted] += 1
        assert await statuses(pool) == dict.fromkeys({"job", NEW} if is_inserted else {"job"}, "cancelled")
        assert ops[1].answer == ({"job", NEW} if is_inserted else {"job"})

    async with world_of(dsn, pool, store, 0) as (world, (job,)):
        world.check = check
        begin = await save(pool)
        assert await interleave(world, begin, lambda: [InsertChild(job), CancelFamily()]) > 10
    assert min(orders.values()) > 1


@pytest.mark.slow
async def test_no_order_of_a_cancellation_and_the_end_of_a_child_leaves_a_job(
    dsn: str, pool: asyncpg.Pool, store: Store
) -> None:
    orders = {"completed": 0, "cancelled": 0}

    async def check(ops: Sequence[Op]) -> None:
        found = await statuses(pool)
        orders[found[CHILDREN[1]]] += 1
        assert found["job"] == "cancelled"
        ended = {job_id for job_id, status in found.items() if status == "cancelled"}
        assert ops[0].answer == ended
        assert await pool.fetchval("SELECT count(*) FROM scheduler_after") == 0

    async with world_of(dsn, pool, store, 2) as (world, (job, first, last)):
        world.check = check
        assert not await begin_wait(store, job, CHILDREN)
        await mark_children(pool)
        await Suspend(job, (WAITS,)).run(store)
        await End(first).run(store)
        begin = await save(pool)
        plays, switches = lambda: [CancelFamily(), End(last)], math.inf if LONG else MAX_SWITCHES
        assert await interleave(world, begin, plays, switches=switches) > 10
    assert min(orders.values()) > 1


@pytest.mark.slow
async def test_no_order_of_the_cancellations_of_a_family_and_of_a_part_of_it_cancels_a_job_twice(
    dsn: str, pool: asyncpg.Pool, store: Store
) -> None:
    async def check(ops: Sequence[Op]) -> None:
        assert set((await statuses(pool)).values()) == {"cancelled"}
        whole, part = ops[0].answer, ops[1].answer
        assert not whole & part
        assert whole | part == {"job", *CHILDREN}

    async with world_of(dsn, pool, store, 2) as (world, (job, *_)):
        world.check = check
        assert not await begin_wait(store, job, CHILDREN)
        await mark_children(pool)
        await Suspend(job, (WAITS,)).run(store)
        begin = await save(pool)
        plays, switches = lambda: [CancelFamily(), CancelFamily(CHILDREN[0])], MAX_SWITCHES
        assert await interleave(world, begin, plays, switches=switches) > 5


@pytest.mark.slow
async def test_no_order_of_a_retry_and_the_end_of_the_last_other_child_loses_a_wake_up(
    dsn: str, pool: asyncpg.Pool, store: Store
) -> None:
    """The step has ended, and keeps its results, or waits for the child again."""
    orders = {"ended": 0, "waits": 0}

    async def check(ops: Sequence[Op]) -> None:
        waits = await pool.fetchval("SELECT count(*) FROM scheduler_after")
        orders["waits" if waits else "ended"] += 1
        assert ops[0].answer == waits
        job = await row(pool)
        assert (job["status"], job["blocked_on"]) == ("pending", "after" if waits else None)
        assert (await statuses(pool))[CHILDREN[0]] == ("pending" if waits else "failed")
        if waits:
            claims = {claim.job_id: claim for claim in (await store.claims.exchange("w1", [NAME], 5)).jobs}
            await End(claims[CHILDREN[0]]).run(store)
            assert (await row(pool))["blocked_on"] is None

    async with world_of(dsn, pool, store, 2) as (world, (job, first, last)):
        world.check = check
        assert not await begin_wait(store, job, CHILDREN)
        await mark_children(pool)
        await Suspend(job, (WAITS,)).run(store)
        await store.results.settle("w1", [(first, Outcome.fail("why"))])
        begin = await save(pool)
        plays, switches = lambda: [RetryFamily(), End(last)], math.inf if LONG else MAX_SWITCHES
        assert await interleave(world, begin, plays, switches=switches) > 10
    assert min(orders.values()) > 1


async def test_family_is_locked_from_the_children_to_the_job_as_the_end_of_a_child_locks_it(
    pool: asyncpg.Pool, store: Store
) -> None:
    """In the other order, the end of a child and the call would wait for each other."""
    job, *_ = await running(store, *(new_job(job_id, execution_time=NOW) for job_id in ("job", *CHILDREN)))
    assert not await begin_wait(store, job, CHILDREN)
    await pool.execute("UPDATE scheduled_jobs SET options = '{}' WHERE job_id <> 'job'")
    await mark_children(pool)
    async with pool.acquire() as connection, pool.acquire() as callers_connection:
        transaction = callers_connection.transaction()
        await transaction.start()
        async with connection.transaction():
            await connection.execute("SELECT FROM scheduled_jobs WHERE job_id = $1 FOR UPDATE", CHILDREN[1])
            cancelling = asyncio.ensure_future(
                store.jobs.cancel_family("job", "by a test", callers_connection)
            )
            await until_a_lock_is_awaited(pool)
            await connection.execute("SELECT FROM scheduled_jobs WHERE job_id = 'job' FOR UPDATE NOWAIT")
        assert len(await cancelling) == 3
        await transaction.commit()


async def test_marks_that_were_written_by_hand_close_no_circle(pool: asyncpg.Pool, store: Store) -> None:
    claims = await running(store, *(new_job(job_id, execution_time=NOW) for job_id in ("job", "other")))
    first, second = sorted(claims, key=lambda claim: claim.job_id)
    assert not await begin_wait(store, first, ["other"])
    await pool.execute("UPDATE scheduled_jobs SET options = '{}' WHERE job_id = 'other'")
    await mark_children(pool)
    await pool.execute(
        "INSERT INTO scheduler_steps (job_id, name, kind, value, attempt, started_at, definition)"
        " VALUES ('other', 'back', 'child', '[\"job\", \"other\"]', 1, now(), 'd'),"
        " ('other', 'odd', 'child', '7', 1, now(), 'd')"
    )
    await pool.execute(
        'UPDATE scheduled_jobs SET options = options || \'{"steps": 1, "definition": "d"}\''
        " WHERE job_id = 'other'"
    )
    mark = '{"child_of": {"job": "other", "step": "back", "definition": "d"}}'
    await pool.execute("UPDATE scheduled_jobs SET options = options || $1::jsonb WHERE job_id = 'job'", mark)
    assert second.job_id == "other"
    assert len(await store.jobs.cancel_family("other", "by a test")) == 1
    assert len(await store.jobs.cancel_family("job", "by a test")) == 1
