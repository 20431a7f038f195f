"""A broadcast gives one value to all jobs that wait for it, or to those of a task, of metadata, of ids."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import ConflictResolution, PayloadError, Sleep, Wait, current_job
from pg_scheduler.events import JobCompleted, JobSuspended
from pg_scheduler.sync import SyncScheduler
from pg_scheduler.testing import TestScheduler
from tests.api.conftest import Make
from tests.support import inside
from tests.support.codecs import KeyedCodec
from tests.support.transactions import KINDS, application, settled
from tests.support.worker import PATIENCE, Recorder

START = datetime(2030, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
NOW = timedelta(0)
KEPT = 3650 * DAY


@pytest.fixture
async def t(pool: asyncpg.Pool) -> AsyncIterator[TestScheduler]:
    async with TestScheduler(pool, now=START) as scheduler:
        for function, name in ((wait, "wait"), (receive, "receive"), (sleep, "sleep"), (first, "first")):
            scheduler.scheduler.register(function, name=f"broadcast.{name}")
        yield scheduler


async def wait() -> Any:
    return await current_job().steps.wait("go")


async def receive() -> list[Any]:
    return [await current_job().steps.receive("go") for _ in range(2)]


async def sleep() -> None:
    await current_job().steps.sleep("go", DAY)


async def first() -> Any:
    """Wait for a signal that loses, and then for another one."""
    steps = current_job().steps
    await steps.first("winner", Wait("go"), Sleep("soon", timedelta(hours=1)))
    return await steps.wait("other")


async def add(t: TestScheduler, name: str, *job_ids: str, **options: Any) -> None:
    for job_id in job_ids:
        await t.scheduler.enqueue(f"broadcast.{name}", job_id=job_id, keep_result=KEPT, **options)


async def value_of(t: TestScheduler, job_id: str) -> Any:
    result = await t.scheduler.get_job_result(job_id, wait=False)
    return None if result is None else result.unwrap()


async def test_all_jobs_that_wait_get_the_value_once(t: TestScheduler) -> None:
    await add(t, "wait", "w1", "w2")
    await add(t, "receive", "r1")
    await add(t, "sleep", "s1")
    await t.run_until(NOW)
    assert await t.scheduler.broadcast("go", {"n": 1}) == 3
    await t.run_until(NOW)
    assert [await value_of(t, job_id) for job_id in ("w1", "w2", "r1", "s1")] == [
        {"n": 1},
        {"n": 1},
        None,
        None,
    ]
    assert await t.scheduler.broadcast("go", {"n": 2}) == 1, "the job that waits for its next message"
    await t.run_until(NOW)
    assert await value_of(t, "r1") == [{"n": 1}, {"n": 2}]
    assert await t.scheduler.broadcast("go", {"n": 3}) == 0


async def test_job_that_does_not_wait_yet_gets_nothing(t: TestScheduler) -> None:
    await add(t, "wait", "w1")
    assert await t.scheduler.broadcast("go", 1) == 0
    await t.run_until(NOW)
    assert await t.scheduler.broadcast("go", 2) == 1
    await t.run_until(NOW)
    assert await value_of(t, "w1") == 2


async def test_repeated_broadcast_reaches_no_wait_twice(t: TestScheduler) -> None:
    await add(t, "wait", "w1")
    await t.run_until(NOW)
    assert await t.scheduler.broadcast("go", 1) == 1
    assert await t.scheduler.broadcast("go", 2) == 0
    assert await t.scheduler.signal("w1", "go", 3) is False
    await t.run_until(NOW)
    assert await value_of(t, "w1") == 1


async def test_filters_select_the_jobs(t: TestScheduler) -> None:
    await add(t, "wait", "w1", metadata={"region": "eu", "tier": 1})
    await add(t, "wait", "w2", metadata={"region": "us"})
    await add(t, "receive", "r1", metadata={"region": "eu"})
    await t.run_until(NOW)
    broadcast = t.scheduler.broadcast
    assert await broadcast("go", 1, job_name="broadcast.sleep") == 0
    assert await broadcast("go", 1, job_ids=["s1", "w9"]) == 0
    assert await broadcast("go", 1, job_ids=[]) == 0
    assert (
        await broadcast("go", 1, job_name="broadcast.wait", metadata={"region": "eu"}, job_ids=["w1", "r1"])
        == 1
    )
    assert await broadcast("go", 2, metadata={"region": "eu"}) == 1
    assert await broadcast("go", 3, job_name="broadcast.wait") == 1
    await t.run_until(NOW)
    assert [await value_of(t, "w1"), await value_of(t, "w2")] == [1, 3]


async def test_loser_of_first_does_not_count_as_a_wait(t: TestScheduler) -> None:
    await add(t, "first", "f1")
    await t.run_until(DAY)
    assert await t.scheduler.broadcast("go", 1) == 0
    assert await t.scheduler.broadcast("other", 2) == 1
    await t.run_until(NOW)
    assert await value_of(t, "f1") == 2


async def test_job_with_several_waits_gets_the_value_in_one_of_them(t: TestScheduler) -> None:
    async def receive_at_once() -> list[Any]:
        steps = current_job().steps
        return list(await asyncio.gather(steps.receive("go"), steps.wait("go")))

    t.scheduler.register(receive_at_once, name="broadcast.several")
    await add(t, "several", "s1")
    await t.run_until(NOW)
    assert [await t.scheduler.broadcast("go", number) for number in range(3)] == [1, 1, 0]
    await t.run_until(NOW)
    assert await value_of(t, "s1") == [0, 1]


async def test_definition_that_waits_for_the_end_of_an_attempt_gets_nothing(t: TestScheduler) -> None:
    """The broadcast is for the wait of the running attempt, and the new definition does not wait."""
    reached: list[int] = []

    async def replace() -> None:
        waiting = asyncio.create_task(current_job().steps.receive("go"))
        await asyncio.sleep(0)
        await current_job().steps.run("replace", replace_and_send)
        waiting.cancel()

    async def replace_and_send() -> None:
        await add(t, "receive", "r1", conflict_resolution=ConflictResolution.REPLACE)
        reached.append(await t.scheduler.broadcast("go", 1))

    t.scheduler.register(replace, name="broadcast.replace")
    await add(t, "replace", "r1")
    await t.run_until(NOW)
    assert reached == [0]
    assert await t.scheduler.broadcast("go", 2) == 1


async def test_job_that_waits_in_memory_gets_the_value(make: Make) -> None:
    busy = asyncio.Event()

    async def wait_while_a_task_works() -> Any:
        task = asyncio.create_task(busy.wait())
        value = await current_job().steps.wait("go")
        busy.set()
        await task
        return value

    scheduler = make()
    scheduler.register(wait_while_a_task_works, name="broadcast.memory")
    seen = Recorder(scheduler)
    await scheduler.start()
    await scheduler.enqueue("broadcast.memory", job_id="job", keep_result=DAY)
    async with asyncio.timeout(PATIENCE):
        while not await scheduler.broadcast("go", 7):  # until the wait is stored
            pass
    await seen.until(JobCompleted)
    assert (await scheduler.get_job_result("job")).unwrap() == 7


async def test_pages_reach_every_job(t: TestScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    inside.replace(monkeypatch, page_of_broadcast=3)
    inside.replace(monkeypatch, size_of_broadcast=2)
    names = [f"w{number}" for number in range(5)]
    await add(t, "wait", *names)
    await t.run_until(NOW)
    assert await t.scheduler.broadcast("go", 1) == 5
    await t.run_until(NOW)
    assert [await value_of(t, name) for name in names] == [1] * 5


@pytest.mark.parametrize("kind", KINDS)
async def test_broadcast_takes_effect_at_the_commit_of_the_caller(
    kind: str, t: TestScheduler, dsn: str, pool: asyncpg.Pool
) -> None:
    await add(t, "wait", "w1", "w2")
    await t.run_until(NOW)
    async with application(kind, dsn, pool) as app:
        assert await app.call("broadcast", "go", 1) == 2
        await settled(app.rollback())
        assert await app.call("broadcast", "go", 2) == 2
        assert await app.call("broadcast", "go", 3) == 0
        await settled(app.commit())
    await t.run_until(NOW)
    assert [await value_of(t, "w1"), await value_of(t, "w2")] == [2, 2]


async def test_broadcast_wakes_a_worker_of_another_process(make: Make, pool: asyncpg.Pool) -> None:
    worker = make()
    worker.register(wait, name="broadcast.wait")
    seen = Recorder(worker)
    await worker.start()
    await worker.enqueue("broadcast.wait", job_id="job", keep_result=DAY)
    await seen.until(JobSuspended)
    assert await make().broadcast("go", 7) == 1
    await seen.until(JobCompleted)


async def test_codec_encodes_the_value_for_each_task(pool: asyncpg.Pool) -> None:
    async with TestScheduler(pool, now=START, codec=KeyedCodec("k1")) as t:
        t.scheduler.register(wait, name="broadcast.wait")
        t.scheduler.register(wait, name="broadcast.other")
        await add(t, "wait", "w1")
        await add(t, "other", "o1")
        await t.run_until(NOW)
        assert await t.scheduler.broadcast("go", "secret") == 2
        texts = await pool.fetch("SELECT value::text FROM scheduler_steps")
        assert all("secret" not in row[0] and "broadcast." in row[0] for row in texts)
        await t.run_until(NOW)
        assert [await value_of(t, "w1"), await value_of(t, "o1")] == ["secret", "secret"]


async def test_hostile_calls_are_rejected(t: TestScheduler) -> None:
    broadcast = t.scheduler.broadcast
    with pytest.raises(ValueError, match="must not be empty"):
        await broadcast("")
    with pytest.raises(PayloadError):
        await broadcast("go", object())
    with pytest.raises(TypeError, match=r"job_ids must be a list of ids, not the str 'w1'"):
        await broadcast("go", job_ids="w1")
    with pytest.raises(ValueError, match="job_id"):
        await broadcast("go", job_ids=[""])
    with pytest.raises(TypeError):
        await broadcast("go", job_name=7)  # type: ignore[arg-type]


async def test_sync_scheduler_broadcasts(t: TestScheduler, dsn: str) -> None:
    await add(t, "wait", "w1", "w2")
    await t.run_until(NOW)

    def call() -> int:
        with SyncScheduler(dsn) as scheduler:
            return scheduler.broadcast("go", 1, job_ids=iter(["w1"]))

    assert await asyncio.to_thread(call) == 1


@pytest.mark.parametrize("level", ["repeatable_read", "serializable"])
async def test_broadcast_at_another_isolation_level_is_refused(
    t: TestScheduler, pool: asyncpg.Pool, level: Any
) -> None:
    async with pool.acquire() as connection, connection.transaction(isolation=level):
        with pytest.raises(
            ValueError, match="READ COMMITTED: at any other one, jobs that have begun to wait"
        ):
            await t.scheduler.broadcast("go", 1, connection=connection)
