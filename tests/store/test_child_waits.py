"""No order of the statements of a suspension and of the ends of its children loses a wake-up or a result.

The attempt inserts its children and stores its step, then it is suspended, in another transaction. The orders
of all statements and commits are exhausted, but for one pair of operations that has thousands of them.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import asyncpg
import pytest

from pg_scheduler import JobStatus
from pg_scheduler.database.statements import Transaction
from pg_scheduler.jobs.outcome import RowChange
from pg_scheduler.jobs.result import KeptResult
from pg_scheduler.jobs.step_values import CHILD, SLEEP
from pg_scheduler.jobs.steps import Suspension
from tests.store.protocol import Actor, Op, World, interleave
from tests.store.test_steps import until_a_lock_is_awaited
from tests.support.dependencies import add, child, edges, passed, state
from tests.support.inside import COMPLETE, NO_TIMEOUT, Claim, Outcome, Store
from tests.support.store import NAME, NOW, SECOND, new_job, row, running
from tests.support.stories import LONG

pytestmark = pytest.mark.slow

MAX_SWITCHES = 3
"""The bound for the longest pair of operations, whose 4,900 orders take three minutes; none if `LONG`."""

CHILDREN = ("job:docs:0", "job:docs:1")
DEADLINE = NOW + 3600 * SECOND
WAITS = Suspension(CHILD, "docs", NO_TIMEOUT)
SLEEPS = Suspension(SLEEP, "nap", DEADLINE)
BOTH = [(WAITS,), (SLEEPS, WAITS)]
"""The suspensions of a job that waits for children only, and of one that also sleeps."""


@dataclass
class End(Op):
    """A child completes with a value."""

    claim: Claim

    async def run(self, store: Store) -> set[str]:
        change = RowChange(JobStatus.COMPLETED, kept=KeptResult(60.0, "7"))
        return await store.results.settle("w1", [(self.claim, Outcome(change, None))])


@dataclass
class Suspend(Op):
    """The job is suspended."""

    claim: Claim
    suspensions: tuple[Suspension, ...]

    async def run(self, store: Store) -> bool:
        assert await store.results.settle("w1", [(self.claim, Outcome.suspend(self.suspensions))]) == {"job"}
        return True


@dataclass
class Retry(Op):
    """A caller retries a child."""

    job_id: str

    async def run(self, store: Store) -> bool:
        return await store.jobs.retry(self.job_id) is not None


@dataclass
class WaitFor(Suspend):
    """A step waits for jobs that exist. The answer is whether the job is suspended: they have not ended."""

    children: Sequence[str] = CHILDREN

    async def run(self, store: Store) -> bool:
        if await begin_wait(store, self.claim, self.children):
            return False
        return await super().run(store)


async def begin_wait(store: Store, job: Claim, children: Sequence[str]) -> bool:
    """Store a step that waits for jobs that exist; return whether they have ended."""

    async def begin(transaction: Transaction) -> bool:
        connection, ids = transaction.connection, json.dumps(children)
        family = await store.steps.find_children("w1", job, "docs", dict.fromkeys(children), connection)
        options = {"version": 1, "until": NO_TIMEOUT, "connection": connection}
        await store.steps.store("w1", job, "docs", CHILD, ids, **options)  # type: ignore[arg-type]
        return await store.dependencies.await_jobs(job.job_id, family.definition, children, transaction)

    return await store.statements.run_retrying(begin)


class Waits(World):
    """A world without the rules of the protocol, whose end is checked instead."""

    check: Callable[[Sequence[Op]], Awaitable[None]]

    async def step(self, actor: Actor) -> None:
        await super().step(actor)
        await self.look_after()  # one operation may have several transactions

    async def _look(self, actor: Actor) -> None:
        task, op = actor.task, actor.op
        if task is not None and op is not None and task.done():
            actor.task, op.answer = None, task.result()

    async def finish_all(self, known: set[object]) -> None:
        while any(actor.is_busy for actor in self.actors):
            going = [actor for actor in self.actors if actor.can_go]
            await (self.step(going[0]) if going else self.look_after())
        await self.check([actor.op for actor in self.actors if actor.op is not None])


KEPT = ("scheduled_jobs", "scheduler_workers", "scheduler_steps", "scheduler_after", "scheduler_results")


@asynccontextmanager
async def world_of(
    dsn: str, pool: asyncpg.Pool, store: Store, children: int
) -> AsyncIterator[tuple[Waits, list[Claim]]]:
    """Yield a world in which the job and its children run, and their claims."""
    async with Waits.on(dsn, 2) as world:
        assert isinstance(world, Waits)
        jobs = [new_job(job_id, execution_time=NOW) for job_id in ("job", *CHILDREN[:children])]
        claims = sorted(await running(store, *jobs), key=lambda claim: claim.job_id)
        await pool.execute(
            "UPDATE scheduled_jobs SET options = '{\"keep_result\": 60}' WHERE job_id <> 'job'"
        )
        await pool.execute(f"UPDATE scheduled_jobs SET created_at = '{NOW}'")
        yield world, claims


async def save(pool: asyncpg.Pool) -> Callable[[], Awaitable[None]]:
    """Save the tables, and return a function that restores them."""
    for table in KEPT:
        await pool.execute(f"CREATE TABLE kept_{table} AS TABLE {table}")

    async def restore() -> None:
        for table in KEPT:
            await pool.execute(f"DELETE FROM {table}; INSERT INTO {table} TABLE kept_{table}")

    return restore


async def check_end(pool: asyncpg.Pool, children: Sequence[str], *, is_suspended: bool) -> None:
    """Assert that the job continues, with the results of its children."""
    job = await row(pool)
    assert (job["status"], job["blocked_on"]) == ("pending" if is_suspended else "running", None)
    assert job["execution_time"] <= NOW
    steps = await pool.fetch("SELECT * FROM scheduler_steps ORDER BY kind")
    assert [step["kind"] for step in steps] == [CHILD, *["result"] * len(children)]
    assert all(step["ended_at"] is not None for step in steps)
    assert {json.loads(step["value"])["value"] for step in steps[1:]} == {7}
    assert await pool.fetchval("SELECT count(*) FROM scheduler_after") == 0


@pytest.mark.parametrize("suspensions", BOTH, ids=["alone", "beside a sleep"])
async def test_no_order_of_a_suspension_and_the_end_of_the_last_child_loses_a_wake_up(
    suspensions: tuple[Suspension, ...], dsn: str, pool: asyncpg.Pool, store: Store
) -> None:
    async def check(ops: Sequence[Op]) -> None:
        await check_end(pool, CHILDREN, is_suspended=True)

    async with world_of(dsn, pool, store, 2) as (world, (job, first, last)):
        world.check = check
        assert not await begin_wait(store, job, CHILDREN)
        assert await End(first).run(store) == {first.job_id}
        begin = await save(pool)
        assert await interleave(world, begin, lambda: [Suspend(job, suspensions), End(last)]) > 30


@pytest.mark.parametrize("suspensions", BOTH, ids=["alone", "beside a sleep"])
async def test_no_order_of_a_step_and_the_end_of_a_child_that_exists_loses_a_wake_up(
    suspensions: tuple[Suspension, ...], dsn: str, pool: asyncpg.Pool, store: Store
) -> None:
    async def check(ops: Sequence[Op]) -> None:
        await check_end(pool, CHILDREN[:1], is_suspended=ops[0].answer)

    async with world_of(dsn, pool, store, 1) as (world, (job, child)):
        world.check = check
        begin = await save(pool)
        plays = lambda: [WaitFor(job, suspensions, CHILDREN[:1]), End(child)]  # noqa: E731
        assert await interleave(world, begin, plays) > 30


async def test_jobs_that_come_to_wait_for_each_other_at_once_are_refused(
    pool: asyncpg.Pool, store: Store
) -> None:
    first, second, third = await running(store, *(new_job(job_id, execution_time=NOW) for job_id in "abc"))
    assert not await begin_wait(store, second, [third.job_id])
    async with store.statements.transaction() as transaction:
        family = await store.steps.find_children(
            "w1", first, "docs", {second.job_id: None}, transaction.connection
        )
        definition = family.definition
        assert not await store.dependencies.await_jobs(first.job_id, definition, [second.job_id], transaction)
        closing = asyncio.create_task(begin_wait(store, third, [first.job_id]))
        await until_a_lock_is_awaited(pool)
    with pytest.raises(ValueError, match="job 'c' would wait for itself"):
        await closing


async def test_jobs_whose_children_come_to_wait_for_the_other_at_once_are_refused(
    pool: asyncpg.Pool, store: Store
) -> None:
    """The transactions share no row."""
    first, second = await running(store, *(new_job(job_id, execution_time=NOW) for job_id in "ab"))
    await add(store, child("x", second.job_id), child("y", first.job_id))
    async with store.statements.transaction() as transaction:
        family = await store.steps.find_children("w1", first, "docs", {"x": None}, transaction.connection)
        assert not await store.dependencies.await_jobs(first.job_id, family.definition, ["x"], transaction)
        closing = asyncio.create_task(begin_wait(store, second, ["y"]))
        await until_a_lock_is_awaited(pool)
    with pytest.raises(ValueError, match="job 'b' would wait for itself"):
        await closing


@pytest.mark.parametrize("ends", [COMPLETE, Outcome.fail("why")], ids=["completes", "fails"])
async def test_job_that_waits_for_a_child_waits_no_longer_for_a_former_parent(
    pool: asyncpg.Pool, store: Store, ends: Outcome
) -> None:
    (parent,) = await running(store, new_job("parent", execution_time=NOW))
    await add(store, child("job", "parent"))
    await store.inserts.replace([new_job("job", execution_time=NOW), new_job("kid", execution_time=NOW)])
    claims = {claim.job_id: claim for claim in (await store.claims.exchange("w1", [NAME], 5)).jobs}
    assert not await begin_wait(store, claims["job"], ["kid"])
    await store.results.settle("w1", [(claims["job"], Outcome.suspend((WAITS,)))])
    await store.results.settle("w1", [(parent, ends)])
    assert await state(pool, "job") == [("pending", "after")]
    await store.results.settle("w1", [(claims["kid"], COMPLETE)])
    assert await state(pool, "job") == [("pending", None)]
    assert not await passed(store, "job")


async def mark_children(pool: asyncpg.Pool) -> None:
    """Mark the children as those of the step, as the insertion of children does."""
    await pool.execute(
        "UPDATE scheduled_jobs AS child SET options = child.options || jsonb_build_object('child_of',"
        " jsonb_build_object('job', 'job', 'step', 'docs', 'definition', job.options ->> 'definition'))"
        " FROM scheduled_jobs AS job WHERE job.job_id = 'job' AND child.job_id <> 'job'"
    )


@pytest.mark.timeout(900)
async def test_no_order_of_the_retry_of_a_child_and_the_end_of_the_last_other_one_loses_a_wake_up(
    dsn: str, pool: asyncpg.Pool, store: Store
) -> None:
    """The step has ended, or waits for the child again."""
    orders = {"ended": 0, "waits": 0}

    async def check(ops: Sequence[Op]) -> None:
        assert ops[0].answer
        waits = await pool.fetchval("SELECT count(*) FROM scheduler_after")
        orders["waits" if waits else "ended"] += 1
        job = await row(pool)
        assert (job["status"], job["blocked_on"]) == ("pending", "after" if waits else None)
        is_open = await pool.fetchval("SELECT ended_at IS NULL FROM scheduler_steps WHERE kind = 'child'")
        assert is_open == bool(waits)
        await pool.execute("UPDATE scheduled_jobs SET execution_time = now() WHERE job_id = 'job'")
        claims = {claim.job_id: claim for claim in (await store.claims.exchange("w1", [NAME], 5)).jobs}
        await End(claims[CHILDREN[0]]).run(store)
        assert (await row(pool))["blocked_on"] is None
        results = await pool.fetch(
            "SELECT name, value ->> 'status' AS status FROM scheduler_steps WHERE kind = 'result'"
        )
        stored = {(result["name"].partition(":")[0], result["status"]) for result in results}
        assert ("child" if waits else "again", "completed") in stored
        assert (("child", "failed") in stored) != bool(waits)

    async with world_of(dsn, pool, store, 2) as (world, (job, first, last)):
        world.check = check
        assert not await begin_wait(store, job, CHILDREN)
        await mark_children(pool)
        await Suspend(job, (WAITS,)).run(store)
        await store.results.settle("w1", [(first, Outcome.fail("why"))])
        begin = await save(pool)
        plays, switches = lambda: [Retry(first.job_id), End(last)], math.inf if LONG else MAX_SWITCHES
        assert await interleave(world, begin, plays, switches=switches) > 30
    assert min(orders.values()) > 5


async def test_definition_that_waits_in_vain_leaves_the_waits_of_the_attempt_that_runs(
    pool: asyncpg.Pool, store: Store
) -> None:
    """Its steps would end with the first child, although they wait for others."""
    names = ("job", "parent", *CHILDREN)
    claims = {
        claim.job_id: claim
        for claim in await running(store, *(new_job(name, execution_time=NOW) for name in names))
    }
    await pool.execute(
        "UPDATE scheduled_jobs SET options = '{\"keep_result\": 60}' WHERE job_id LIKE 'job:%'"
    )
    assert not await begin_wait(store, claims["job"], CHILDREN)
    await mark_children(pool)
    await add(store, child("job", "parent"), replace=True)
    await store.results.settle("w1", [(claims["parent"], Outcome.fail("why"))])
    assert json.loads((await row(pool))["on_end"]).keys() == {"in_vain"}
    assert json.loads((await row(pool))["on_end"])["in_vain"]["reason"]
    await End(claims[CHILDREN[0]]).run(store)
    assert await edges(pool) == {(CHILDREN[1], "job")}
    await End(claims[CHILDREN[1]]).run(store)
    assert await pool.fetchval("SELECT count(*) FROM scheduler_steps WHERE kind = 'result'") == 2
    assert await pool.fetchval("SELECT ended_at IS NOT NULL FROM scheduler_steps WHERE kind = 'child'")
