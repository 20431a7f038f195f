"""No order of the retry of a job and of the end of the one that it waits for leaves it blocked.

The retry takes the row as it is after the end, and reads whether the job waits. What it reads must not be
older than the row. The orders of all statements and commits are exhausted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import asyncpg
import pytest

from pg_scheduler import JobStatus
from pg_scheduler.inspect import ChangeOutcome
from pg_scheduler.inspect.store.bulk import Batch
from pg_scheduler.inspect.store.store import InspectionStore
from pg_scheduler.queue.dependencies import ScanPosition
from tests.store.protocol import Op, interleave
from tests.store.test_child_waits import KEPT, Retry, Waits, save
from tests.support.cases import each_case
from tests.support.dependencies import add, child, edges, state
from tests.support.inside import COMPLETE, Claim, Outcome, Store
from tests.support.patience import PATIENCE
from tests.support.store import new_job, running
from tests.support.stories import LONG

pytestmark = pytest.mark.slow


@dataclass
class RetryInBulk(Op):
    """A person retries the jobs of a list."""

    job_id: str

    async def run(self, store: Store) -> bool:
        (change,) = (await InspectionStore(store).bulk.change(Batch("retry", [self.job_id]))).jobs
        return change.outcome is ChangeOutcome.DONE


@dataclass
class SetPending(Op):
    """A caller sets the status, which does not wait for other jobs again."""

    job_id: str

    async def run(self, store: Store) -> bool:
        return (await store.jobs.set_status(self.job_id, JobStatus.PENDING, 60.0)).changed


@dataclass
class Settle(Op):
    """The attempt of the other job ends."""

    claim: Claim
    outcome: Outcome

    async def run(self, store: Store) -> bool:
        return bool(await store.results.settle("w1", [(self.claim, self.outcome)]))


@each_case("restart", [Retry, RetryInBulk, SetPending])
@pytest.mark.parametrize("parents", [1, 2] if LONG else [2])
@pytest.mark.parametrize("outcome", [COMPLETE, Outcome.fail("no")], ids=["completed", "failed"])
async def test_no_order_of_a_retry_and_the_end_of_another_job_leaves_the_retried_one_blocked(
    dsn: str,
    pool: asyncpg.Pool,
    store: Store,
    *,
    restart: type[Retry | RetryInBulk | SetPending],
    parents: int,
    outcome: Outcome,
) -> None:
    """Other jobs for which it waits have ended before the retry."""
    await pool.execute("TRUNCATE scheduled_jobs, scheduler_after, scheduler_workers")
    ends: set[str] = set()

    async def check(ops: Sequence[Op]) -> None:
        assert ops[0].answer
        assert ops[1].answer
        ((status, blocked_on),) = await state(pool, "c")
        ends.add(status)
        assert (status, blocked_on) in {("pending", None), ("cancelled", None)}
        assert await edges(pool) == set()

    async with Waits.on(dsn, 2) as world:
        assert isinstance(world, Waits)
        world.check = check
        first, *others = await running(store, *(new_job(f"p{n}") for n in range(parents)))
        await add(store, child("c", *(claim.job_id for claim in (first, *others))))
        assert (await store.jobs.cancel("c")).changed
        for claim in others:
            assert await store.results.settle("w1", [(claim, COMPLETE)])
        begin = await save(pool)
        try:
            assert await interleave(world, begin, lambda: [restart("c"), Settle(first, outcome)]) > 3
        finally:
            for table in KEPT:
                await pool.execute(f"DROP TABLE kept_{table}")
    is_cancelled = outcome is not COMPLETE and restart is not SetPending
    assert ends == ({"pending", "cancelled"} if is_cancelled else {"pending"})


async def test_commit_of_a_retry_at_another_isolation_level_wakes_a_scan(
    dsn: str, pool: asyncpg.Pool, store: Store
) -> None:
    """The transaction does not see that the other job has ended since its first statement."""
    (parent,) = await running(store, new_job("p"))
    await add(store, child("c", "p"))
    assert (await store.jobs.cancel("c")).changed
    heard: asyncio.Queue[object] = asyncio.Queue()
    listener = await asyncpg.connect(dsn)
    await listener.add_listener(await store.locks.channel(), lambda *call: heard.put_nowait(call[3]))
    async with pool.acquire() as connection, connection.transaction(isolation="repeatable_read"):
        await connection.execute("SELECT FROM scheduled_jobs")
        assert await store.results.settle("w1", [(parent, COMPLETE)])
        assert await store.jobs.retry("c", connection) is not None
    async with asyncio.timeout(PATIENCE):
        while await heard.get() != "ended":
            pass
    await listener.close()
    assert await state(pool, "c") == [("pending", "after")]
    await store.dependencies.repair(ScanPosition(), blocks=9, jobs=9)
    assert await state(pool, "c") == [("pending", None)]
