"""Chunks in the test kits: without waits, and with the virtual clock."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import Chunk, JobStatus, RetryPolicy
from pg_scheduler.testing import AsyncTestKit, DrainResult, TestKit, TestScheduler
from tests.support.transactions import application, settled
from tests.testing.test_transaction_kits import plain_application

START = datetime(2030, 1, 1, tzinfo=UTC)


class Index:
    """Notes the sizes of its chunks, and fails the first attempt of odd numbers."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    async def job(self, chunk: Chunk[int]) -> None:
        self.sizes.append(len(chunk))
        for job in chunk:
            if job.item % 2 and job.attempt == 1:
                chunk.fail(job, OSError("odd"))

    def plain(self, chunk: Chunk[int]) -> None:
        self.sizes.append(len(chunk))


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_all_due_jobs_are_one_chunk_and_retries_another(pool: asyncpg.Pool, concurrency: int) -> None:
    index = Index()
    async with TestScheduler(pool, now=START, concurrency=concurrency) as t:
        retry = RetryPolicy(base=timedelta(minutes=1))
        t.scheduler.register(index.job, name="index", chunk=100, chunk_wait=600, max_retries=1, retry=retry)
        for number in range(6):
            await t.scheduler.enqueue("index", args=(number,), job_id=str(number))
        assert await t.drain() == 6
        assert index.sizes == [6]
        assert {job.job_id for job in await t.scheduler.list_jobs(status=JobStatus.PENDING)} == {
            "1",
            "3",
            "5",
        }
        await t.run_until(timedelta(hours=1))
        assert index.sizes == [6, 3]
        assert t.ran("index") == 9


async def test_chunk_is_no_larger_than_declared_and_other_jobs_run_too(pool: asyncpg.Pool) -> None:
    index, ran = Index(), []

    async def other(number: int) -> None:
        ran.append(number)

    async with TestScheduler(pool, now=START) as t:
        t.scheduler.register(index.plain, name="index", chunk=4)
        for number in range(10):
            await t.scheduler.enqueue("index", args=(number,))
            await t.scheduler.enqueue(other, args=(number,))
        await t.drain()
        assert index.sizes == [4, 4, 2]
        assert ran == list(range(10))


async def test_next_job_alone_is_a_chunk_of_one(pool: asyncpg.Pool) -> None:
    index = Index()
    async with TestScheduler(pool, now=START) as t:
        t.scheduler.register(index.plain, name="index", chunk=100)
        for number in range(2):
            await t.scheduler.enqueue("index", args=(number,))
        job = await t.run_one()
        assert job is not None
        assert index.sizes == [1]


async def test_crash_in_a_call_repeats_its_jobs(pool: asyncpg.Pool) -> None:
    sizes: list[int] = []
    async with TestScheduler(pool, now=START) as t:

        async def index(chunk: Chunk[int]) -> None:
            sizes.append(len(chunk))
            if len(sizes) == 1:
                t.crash()
                await chunk.pool.execute("SELECT 1")

        t.scheduler.register(index, name="index", chunk=100)
        for number in range(3):
            await t.scheduler.enqueue("index", args=(number,))
        await t.run_until(timedelta(hours=1))
        assert sizes == [3, 3]
        assert not await t.scheduler.list_jobs(status=JobStatus.RUNNING)


async def test_async_kit_calls_the_function_for_each_job(dsn: str, pool: asyncpg.Pool) -> None:
    index = Index()
    async with application("asyncpg", dsn, pool) as app:
        kit = AsyncTestKit(app.connection, scheduler=app.scheduler)
        kit.scheduler.register(index.job, name="index", chunk=100, chunk_wait=600, max_retries=1)
        for number in range(2):
            await kit.scheduler.enqueue("index", args=(number,))
        assert await kit.drain(raises=False) == DrainResult(completed=1, retried=1)
        assert index.sizes == [1, 1]
        run: Any = kit.run  # the types of the arguments are those of the function
        await run(index.job, 4)
        assert index.sizes == [1, 1, 1]
        await settled(app.rollback())


def test_kit_calls_a_plain_function_in_the_thread_of_the_test(dsn: str) -> None:
    threads: list[threading.Thread] = []

    def index(chunk: Chunk[int]) -> None:
        threads.append(threading.current_thread())
        for job in chunk:
            chunk.complete(job)

    with plain_application("psycopg", dsn) as app:
        kit = TestKit(app.connection)
        kit.scheduler.register(index, name="index", chunk=100, chunk_wait=600)
        kit.scheduler.enqueue("index", args=(1,))
        assert kit.drain() == DrainResult(completed=1)
        app.rollback()
    assert threads == [threading.current_thread()]
