"""Calls in flight at once share a statement; each has its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import asyncpg
import pytest

from pg_scheduler.enqueue.insert_batcher import MAX_JOBS, InsertBatcher
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.jobs.rows import NewJob
from pg_scheduler.store.store import Store
from tests.support.worker import PATIENCE, new_job


class Counting:
    """Inserts for real, and remembers what went together."""

    def __init__(self, store: Store) -> None:
        self.statements: list[list[str]] = []
        self.fault: BaseException | None = None
        self._store = store

    async def insert(self, jobs: Sequence[NewJob]) -> set[str]:
        self.statements.append([job.job_id for job in jobs])
        if self.fault is not None:
            raise self.fault
        return await self._store.jobs.insert_small(jobs)


@pytest.fixture
def counting(store: Store) -> Counting:
    return Counting(store)


async def test_a_lone_call_goes_out_at_once(counting: Counting) -> None:
    coalescer = InsertBatcher(counting.insert)
    assert await coalescer.insert(new_job("a"))
    assert await coalescer.insert(new_job("b"))
    assert not await coalescer.insert(new_job("a"))
    assert counting.statements == [["a"], ["b"], ["a"]]


async def test_calls_in_flight_share_the_next_statement(counting: Counting) -> None:
    coalescer = InsertBatcher(counting.insert)
    names = [f"{n:02}" for n in range(50)]
    assert all(await asyncio.gather(*(coalescer.insert(new_job(name)) for name in names)))
    assert counting.statements == [names[:1], names[1:]]
    assert await coalescer.insert(new_job("later"))


async def test_callers_who_come_back_together_share_every_statement(counting: Counting) -> None:
    coalescer = InsertBatcher(counting.insert)

    async def caller(name: str) -> None:
        for n in range(5):
            assert await coalescer.insert(new_job(f"{name}{n}"))

    await asyncio.gather(*(caller(name) for name in "abcdefgh"))
    assert [len(each) for each in counting.statements] == [1, 8, 8, 8, 8, 7]
    assert await coalescer.insert(new_job("alone"))
    assert await coalescer.insert(new_job("again"))
    assert counting.statements[-2:] == [["alone"], ["again"]]


async def test_a_statement_has_its_bounds(counting: Counting) -> None:
    coalescer = InsertBatcher(counting.insert)
    await asyncio.gather(*(coalescer.insert(new_job(f"{n:05}")) for n in range(MAX_JOBS + 3)))
    assert [len(each) for each in counting.statements] == [1, MAX_JOBS, 2]


async def test_of_one_id_in_flight_twice_one_is_taken(counting: Counting) -> None:
    coalescer = InsertBatcher(counting.insert)
    answers = await asyncio.gather(*(coalescer.insert(new_job(each)) for each in "xaabab"))
    assert answers == [True, True, False, True, False, False]


async def test_each_caller_has_its_own_error(counting: Counting) -> None:
    coalescer = InsertBatcher(counting.insert)
    wrong = new_job("wrong", priority=2)  # which the table refuses
    answers = await asyncio.gather(
        *(coalescer.insert(job) for job in (new_job("x"), new_job("a"), wrong, new_job("b"))),
        return_exceptions=True,
    )
    assert [answers[0], answers[1], answers[3]] == [True, True, True]
    assert isinstance(answers[2], asyncpg.CheckViolationError)


async def test_a_fault_reaches_everybody_and_ends_with_it(counting: Counting) -> None:
    coalescer = InsertBatcher(counting.insert)
    counting.fault = DatabaseUnavailableError("away")
    answers = await asyncio.gather(
        *(coalescer.insert(new_job(each)) for each in "abc"), return_exceptions=True
    )
    assert all(isinstance(answer, DatabaseUnavailableError) for answer in answers)
    counting.fault = None
    assert await coalescer.insert(new_job("a"))


async def test_a_caller_that_is_cancelled_does_not_disturb_the_others(counting: Counting) -> None:
    coalescer = InsertBatcher(counting.insert)
    calls = [asyncio.create_task(coalescer.insert(new_job(each))) for each in "abcd"]
    await asyncio.sleep(0)
    calls[0].cancel()  # its statement is under way
    calls[2].cancel()  # it waits
    async with asyncio.timeout(PATIENCE):
        await asyncio.wait(calls)
    assert calls[0].cancelled()
    assert calls[2].cancelled()
    assert (calls[1].result(), calls[3].result()) == (True, True)
