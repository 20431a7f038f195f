"""Transactions of the application that add jobs after others, and stay open.

They exclude neither each other nor what happens to the other job meanwhile. In whatever order that job ends,
the call is made and its transaction is committed, the new job never waits for ever.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

import asyncpg
import pytest

from pg_scheduler.clock import FakeClock
from pg_scheduler.database.statements import CallersTransaction
from pg_scheduler.errors import DatabaseUnavailableError
from tests.support.cases import each_case
from tests.support.dependencies import add as add_committed
from tests.support.dependencies import child, edges, state
from tests.support.inside import COMPLETE, Claim, ExtendedJob, Store
from tests.support.patience import PATIENCE
from tests.support.store import NAME, Pool, new_job, running

End: TypeAlias = Callable[[Store, Claim], Awaitable[object]]


class Caller:
    """An open transaction of the application, which does not wait long for a lock."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self.connection = connection
        self._transaction = connection.transaction()
        self.begin = self._transaction.start
        self.commit = self._transaction.commit
        self.rollback = self._transaction.rollback


@asynccontextmanager
async def calling(dsn: str) -> AsyncIterator[Caller]:
    connection = await asyncpg.connect(dsn, server_settings={"lock_timeout": "5s"})
    caller = Caller(connection)
    try:
        await caller.begin()
        yield caller
    finally:
        await connection.close()


async def add(store: Store, caller: Caller, *jobs: ExtendedJob, replace: bool = False) -> None:
    """Add jobs that wait for others, in the transaction of the application."""
    async with store.statements.transaction(within=caller.connection) as transaction:
        assert isinstance(transaction, CallersTransaction)
        if replace:
            await store.inserts.replace_extended(jobs, connection=transaction.connection)
        else:
            await store.inserts.insert_extended(jobs, connection=transaction.connection)
        await store.dependencies.block(jobs, transaction, replaced=replace)


async def complete(store: Store, claim: Claim) -> None:
    """Complete a job as a worker does: at once, and if that is refused with its consequences."""
    if await store.claims.complete("w1", [claim], keep=True):
        assert await store.results.settle("w1", [(claim, COMPLETE)]) == {claim.job_id}


async def complete_and_delete(store: Store, claim: Claim) -> None:
    if await store.claims.complete("w1", [claim], keep=False):
        assert await store.results.settle("w1", [(claim, COMPLETE)], deleted=Counter()) == {claim.job_id}


async def settle(store: Store, claim: Claim) -> None:
    assert await store.results.settle("w1", [(claim, COMPLETE)]) == {claim.job_id}


async def cancel(store: Store, claim: Claim) -> None:
    assert (await store.jobs.cancel(claim.job_id)).changed


ENDS: dict[str, End] = {
    "completion": complete,
    "completion with deletion": complete_and_delete,
    "outcome": settle,
    "cancellation": cancel,
}


async def repair(store: Store) -> None:
    """Do what the scanner does when the commit has notified it."""
    await store.consequences.report_gone("w1", {}, 9)
    await store.consequences.apply_lost(9)


async def test_callers_that_add_jobs_after_one_do_not_exclude_each_other(
    dsn: str, store: Store, pool: Pool
) -> None:
    await store.inserts.insert([new_job("p")])
    async with calling(dsn) as one, calling(dsn) as two:
        await add(store, one, child("c1", "p"))
        await add(store, two, child("c2", "p"))
        await add(store, two, child("c3", "p"), replace=True)
        async with store.statements.transaction(lock_timeout_ms=2000) as transaction:
            jobs = [child("c4", "p")]
            await store.inserts.insert_extended(jobs, connection=transaction.connection)
            await store.dependencies.block(jobs, transaction)
        await two.commit()
        await one.rollback()
    assert await edges(pool) == {("p", "c2"), ("p", "c3"), ("p", "c4")}
    assert await pool.fetchval("SELECT on_end FROM scheduled_jobs WHERE job_id = 'p'") == '{"child": true}'


async def test_job_is_claimed_ended_and_cancelled_while_a_caller_adds_jobs_after_it(
    dsn: str, store: Store, pool: Pool
) -> None:
    await store.inserts.insert([new_job("p"), new_job("q")])
    async with calling(dsn) as caller:
        await add(store, caller, child("c1", "p"), child("c2", "q"))
        assert (await store.jobs.cancel("q")).changed
        (claim,) = await running(store, new_job("r"))
        names = {claim.job_id for claim in (await store.claims.claim("w1", [NAME], 9)).jobs}
        assert {claim.job_id, *names} == {"p", "r"}


@each_case("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("moment", ["before the call", "before the commit", "after the commit"])
async def test_job_is_released_whenever_the_other_one_ends(
    dsn: str, store: Store, pool: Pool, moment: str, end: End
) -> None:
    await pool.execute("TRUNCATE scheduled_jobs, scheduler_after, scheduler_workers")
    (claim,) = await running(store, new_job("p"))
    ends = end is cancel  # the attempt of a cancelled job ends later
    async with calling(dsn) as caller:
        if moment == "before the call":
            await end(store, claim)
            if end is complete_and_delete:
                return  # the call raises JobNotFoundError
        await add(store, caller, child("c", "p", outcome="ended"))
        if moment == "before the commit":
            await end(store, claim)
        await caller.commit()
        if moment == "after the commit":
            await end(store, claim)
    if ends:
        await pool.execute("DELETE FROM scheduler_workers")
    await repair(store)
    assert await state(pool, "c") == [("pending", None)]
    assert await edges(pool) == set()


async def test_commit_waits_for_the_end_of_the_other_job_in_progress_and_then_marks_it(
    dsn: str, store: Store, pool: Pool
) -> None:
    (claim,) = await running(store, new_job("p"))
    heard: asyncio.Queue[object] = asyncio.Queue()
    listener = await asyncpg.connect(dsn)
    await listener.add_listener(await store.locks.channel(), lambda *call: heard.put_nowait(call[3]))
    async with calling(dsn) as caller:
        async with store.statements.transaction() as transaction:
            changes = {(claim.job_id, claim.attempt): COMPLETE.change}
            assert await store.results.settle_within(changes, "w1", transaction) == {"p"}
            await add(store, caller, child("c", "p"))
            commit = asyncio.create_task(caller.commit())
            async with asyncio.timeout(PATIENCE):
                while not await pool.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
                    assert not commit.done()
        await commit
    assert await state(pool, "p", "c") == [("completed", None), ("pending", "after")]
    async with asyncio.timeout(PATIENCE):
        assert await heard.get() == "ended"
    await listener.close()
    await repair(store)
    assert await state(pool, "c") == [("pending", None)]


async def test_end_that_waits_for_the_commit_sees_the_new_edge(dsn: str, store: Store, pool: Pool) -> None:
    """The trigger of the commit holds the row of the other job while that job ends."""
    (claim,) = await running(store, new_job("p"))
    async with calling(dsn) as caller:
        await add(store, caller, child("c", "p"))
        await caller.connection.execute(
            "SET CONSTRAINTS ALL IMMEDIATE"
        )  # as the commit does, which stays open here
        assert await store.claims.complete("w1", [claim], keep=True) == {"p"}, "the row is locked"
        await caller.commit()
    await complete(store, claim)
    assert await state(pool, "p", "c") == [("completed", None), ("pending", None)]


async def test_rolled_back_call_leaves_neither_edge_nor_mark(dsn: str, store: Store, pool: Pool) -> None:
    (claim,) = await running(store, new_job("p"))
    async with calling(dsn) as caller:
        await add(store, caller, child("c", "p"))
        await caller.rollback()
    assert await store.claims.complete("w1", [claim], keep=True) == set(), "a plain job ends as a plain one"
    assert await edges(pool) == set()


async def test_parents_of_one_call_are_released_within_it(dsn: str, store: Store, pool: Pool) -> None:
    """The end of the first new job, whose parent has failed, ends the second one too."""
    (claim,) = await running(store, new_job("p"))
    await store.jobs.cancel(claim.job_id)
    await pool.execute("UPDATE scheduled_jobs SET on_end = NULL")
    async with calling(dsn) as caller:
        await add(store, caller, child("c", "p"), child("d", "c"))
        await caller.commit()
    assert await state(pool, "c", "d") == [("cancelled", None)] * 2


@pytest.mark.parametrize(
    "others", [[], [child("after x", "x"), child("after y", "y")]], ids=["free", "awaited"]
)
async def test_callers_that_would_close_a_circle_exclude_each_other(
    dsn: str, store: Store, pool: Pool, clock: FakeClock, others: list[ExtendedJob]
) -> None:
    """If others wait for the jobs, these are marked, so that the commits write neither."""
    await store.inserts.insert([new_job("x"), new_job("y")])
    if others:
        await add_committed(store, *others)

    async def replace(caller: Caller, job_id: str, parent: str) -> None:
        await add(store, caller, child(job_id, parent), replace=True)
        await caller.commit()

    async with calling(dsn) as one, calling(dsn) as two:
        results = await asyncio.gather(replace(one, "x", "y"), replace(two, "y", "x"), return_exceptions=True)
    refusals = DatabaseUnavailableError, ValueError, asyncpg.DeadlockDetectedError  # the last one at COMMIT
    assert len([result for result in results if isinstance(result, refusals)]) == 1
    assert len(await edges(pool)) == 1 + len(others)
