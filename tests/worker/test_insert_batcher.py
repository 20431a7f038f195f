"""InsertBatcher: concurrent calls share a statement, and each gets its own result."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import asyncpg
import pytest

from pg_scheduler.errors import DatabaseUnavailableError, ServiceCancelledError
from pg_scheduler.events import EventBus
from pg_scheduler.jobs.rows import GeneratedIdJob, PlainJob
from pg_scheduler.queue.insert_batcher import MAX_JOBS, InsertBatcher, LockedInserts
from pg_scheduler.queue.outbox import Outbox
from tests.support.inside import Store
from tests.support.worker import PATIENCE, new_job


class Counting:
    """Inserts jobs and records the ids of each statement."""

    def __init__(self, store: Store) -> None:
        self.statements: list[list[str]] = []
        self.fault: BaseException | None = None
        self.hold: asyncio.Event | None = None
        self.store = store

    async def insert(self, jobs: Sequence[PlainJob], **_: object) -> set[str]:
        self.statements.append([job.job_id for job in jobs])
        if self.hold is not None and len(jobs) > 1:
            await self.hold.wait()
        if self.fault is not None:
            raise self.fault
        return await self.store.inserts.insert(jobs)

    def batcher(self) -> InsertBatcher:
        outbox = Outbox(self.store, EventBus(), horizon_s=-math.inf)  # no job is due soon
        return InsertBatcher(self.insert, LockedInserts(self.store), outbox)


@pytest.fixture
def counting(store: Store) -> Counting:
    return Counting(store)


async def test_insert_batcher_inserts_a_single_call_at_once(counting: Counting) -> None:
    batcher = counting.batcher()
    assert await batcher.insert(new_job("a"), None)
    assert await batcher.insert(new_job("b"), None)
    assert not await batcher.insert(new_job("a"), None)
    assert counting.statements == [["a"], ["b"], ["a"]]


async def test_insert_batcher_inserts_concurrent_calls_with_the_next_statement(counting: Counting) -> None:
    batcher = counting.batcher()
    names = [f"{n:02}" for n in range(50)]
    assert all(await asyncio.gather(*(batcher.insert(new_job(name), None) for name in names)))
    assert counting.statements == [names[:1], names[1:]]
    assert await batcher.insert(new_job("later"), None)


async def test_insert_batcher_shares_every_statement_between_callers_in_a_loop(counting: Counting) -> None:
    batcher = counting.batcher()

    async def caller(name: str) -> None:
        for n in range(5):
            assert await batcher.insert(new_job(f"{name}{n}"), None)

    await asyncio.gather(*(caller(name) for name in "abcdefgh"))
    assert [len(each) for each in counting.statements] == [1, 8, 8, 8, 8, 7]
    assert await batcher.insert(new_job("alone"), None)
    assert await batcher.insert(new_job("again"), None)
    assert counting.statements[-2:] == [["alone"], ["again"]]


async def test_insert_batcher_limits_the_jobs_per_statement(counting: Counting) -> None:
    batcher = counting.batcher()
    await asyncio.gather(*(batcher.insert(new_job(f"{n:05}"), None) for n in range(MAX_JOBS + 3)))
    assert [len(each) for each in counting.statements] == [1, MAX_JOBS, 2]


async def test_insert_batcher_inserts_one_of_two_concurrent_jobs_with_the_same_id(counting: Counting) -> None:
    batcher = counting.batcher()
    results = await asyncio.gather(*(batcher.insert(new_job(each), None) for each in "xaabab"))
    assert results == [True, True, False, True, False, False]


async def test_insert_batcher_raises_only_for_the_caller_of_a_rejected_job(counting: Counting) -> None:
    batcher = counting.batcher()
    wrong = new_job("wrong", priority=2)  # which the table rejects
    results = await asyncio.gather(
        *(batcher.insert(job, None) for job in (new_job("x"), new_job("a"), wrong, new_job("b"))),
        return_exceptions=True,
    )
    assert [results[0], results[1], results[3]] == [True, True, True]
    assert isinstance(results[2], asyncpg.CheckViolationError)


async def test_insert_batcher_inserts_jobs_with_generated_ids_together_when_another_job_is_rejected(
    counting: Counting,
) -> None:
    """Hardly anything can delay them, so they wait for no search for the job that failed."""
    batcher = counting.batcher()
    generated = [GeneratedIdJob(*new_job(job_id)) for job_id in "abcd"]
    jobs = [new_job("first"), *generated[:2], new_job("wrong", priority=2), *generated[2:]]
    await asyncio.gather(*(batcher.insert(job, None) for job in jobs), return_exceptions=True)
    assert counting.statements[2:] == [["a", "b", "c", "d"], ["wrong"]]


async def test_insert_batcher_raises_for_every_caller_when_the_database_is_unavailable(
    counting: Counting,
) -> None:
    batcher = counting.batcher()
    counting.fault = DatabaseUnavailableError("unreachable")
    results = await asyncio.gather(
        *(batcher.insert(new_job(each), None) for each in "abc"), return_exceptions=True
    )
    assert all(isinstance(result, DatabaseUnavailableError) for result in results)
    counting.fault = None
    assert await batcher.insert(new_job("a"), None)


async def test_insert_batcher_serves_the_other_callers_when_one_is_cancelled(counting: Counting) -> None:
    batcher = counting.batcher()
    calls = [asyncio.create_task(batcher.insert(new_job(each), None)) for each in "abcd"]
    await asyncio.sleep(0)
    calls[0].cancel()  # its statement is running
    calls[2].cancel()  # it waits
    async with asyncio.timeout(PATIENCE):
        await asyncio.wait(calls)
    assert calls[0].cancelled()
    assert calls[2].cancelled()
    assert (calls[1].result(), calls[3].result()) == (True, True)


async def begin_shared(
    batcher: InsertBatcher, counting: Counting, *jobs: PlainJob
) -> list[asyncio.Task[bool]]:
    """Insert jobs until their shared statement runs, which ``counting.hold`` ends."""
    counting.hold = asyncio.Event()
    calls = [asyncio.create_task(batcher.insert(job, None)) for job in (new_job("first"), *jobs)]
    async with asyncio.timeout(PATIENCE):
        while len(counting.statements) < 2:  # noqa: ASYNC110 - nothing reports it
            await asyncio.sleep(0)
    return calls[1:]


async def test_insert_batcher_fails_the_callers_when_its_task_is_cancelled_during_their_statement(
    counting: Counting,
) -> None:
    batcher = counting.batcher()
    calls = await begin_shared(batcher, counting, new_job("a"), new_job("b"))
    (flush,) = (task for task in asyncio.all_tasks() if task.get_name() == "pg_scheduler insert")
    flush.cancel()
    async with asyncio.timeout(PATIENCE):
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(result) for result in results] == [ServiceCancelledError] * 2
        assert await batcher.insert(new_job("c"), None)


async def test_insert_batcher_serves_the_others_when_a_caller_left_before_the_jobs_were_inserted_one_by_one(
    counting: Counting,
) -> None:
    batcher = counting.batcher()
    wrong = [new_job(job_id, priority=2) for job_id in ("wrong", "left wrong")]  # which the table rejects
    calls = await begin_shared(batcher, counting, new_job("a"), wrong[0], wrong[1], new_job("left"))
    for call in calls[2:]:
        call.cancel()
    assert counting.hold is not None
    counting.hold.set()
    async with asyncio.timeout(PATIENCE):
        results = await asyncio.gather(*calls, return_exceptions=True)
    assert results[0] is True
    assert [type(result) for result in results[1:]] == [
        asyncpg.CheckViolationError,
        asyncio.CancelledError,
        asyncio.CancelledError,
    ]
    assert not await batcher.insert(new_job("left"), None)  # its row was inserted


async def test_insert_batcher_fails_the_others_when_a_caller_left_before_the_database_was_unavailable(
    counting: Counting,
) -> None:
    batcher = counting.batcher()
    calls = await begin_shared(batcher, counting, new_job("a"), new_job("left"))
    calls[1].cancel()
    assert counting.hold is not None
    counting.fault = DatabaseUnavailableError("down")
    counting.hold.set()
    async with asyncio.timeout(PATIENCE):
        results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results] == [DatabaseUnavailableError, asyncio.CancelledError]
