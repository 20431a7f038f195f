"""Values and streams that running jobs publish, and their readers, through the public API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import (
    ConflictResolution,
    JobLostError,
    JobNotFoundError,
    JobStatus,
    JobStream,
    NotRunningError,
    PayloadError,
    RetryPolicy,
    Scheduler,
    StreamItem,
    current_job,
)
from pg_scheduler.events import JobPublished
from pg_scheduler.streams import attempt as attempt_streams
from pg_scheduler.streams.statements import StreamRepository
from pg_scheduler.sync import SyncScheduler, current_streams
from pg_scheduler.testing import TestScheduler, job_context
from tests.api.conftest import Make
from tests.support import inside
from tests.support.codecs import KeyedCodec
from tests.support.inside import worker_of
from tests.support.worker import PATIENCE, Recorder

Pool = asyncpg.Pool

START = datetime(2030, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
HOUR = timedelta(hours=1)


@pytest.fixture
async def t(pool: Pool) -> AsyncIterator[TestScheduler]:
    async with TestScheduler(pool, now=START) as scheduler:
        yield scheduler


async def stored(pool: Pool) -> list[tuple[str, int, Any]]:
    rows = await pool.fetch("SELECT name, number, value FROM scheduler_streams ORDER BY name, number")
    return [(row["name"], row["number"], json.loads(row["value"])) for row in rows]


async def run(t: TestScheduler, func: Callable[..., Any], *, fails: bool = False, **options: Any) -> str:
    """Run a job until no attempt is due within an hour; return its id. It completes, unless it is to fail."""
    job_id = await t.scheduler.enqueue(func, **options)
    await t.run_until(HOUR)
    found = await t.scheduler.get_job(job_id)
    assert found
    assert found.status is (JobStatus.FAILED if fails else JobStatus.COMPLETED), found.error_message
    return job_id


async def read(scheduler: Scheduler, job_id: str, name: str, after: int = 0) -> list[tuple[int, Any]]:
    """Return all items of a stream whose job ends."""
    async with asyncio.timeout(PATIENCE):
        return [(item.number, item.value) async for item in scheduler.stream(job_id, name, after=after)]


# -- what a job publishes --------------------------------------------------------------------------------


async def test_items_are_numbered_in_order_and_readable_after_the_end(t: TestScheduler) -> None:
    async def speak() -> None:
        words, dots = current_job().stream("words"), current_job().stream("dots")
        assert [await words.append("a"), await dots.append(None), await words.append({"n": [1]})] == [1, 1, 2]
        assert (words.name, await words.count(), await dots.count()) == ("words", 2, 1)

    job_id = await run(t, speak)
    assert await read(t.scheduler, job_id, "words") == [(1, "a"), (2, {"n": [1]})]
    assert await read(t.scheduler, job_id, "words", after=1) == [(2, {"n": [1]})]
    assert await read(t.scheduler, job_id, "words", after=2) == []
    assert await read(t.scheduler, job_id, "dots") == [(1, None)]
    assert await read(t.scheduler, job_id, "none") == []


async def test_last_value_of_a_name_is_read(t: TestScheduler, pool: Pool) -> None:
    async def pay() -> None:
        await current_job().publish("url", "first")
        assert await stored(pool) == [("url", 0, "first")]
        await current_job().publish("url", "second")

    job_id = await run(t, pay)
    assert await t.scheduler.get_value(job_id, "url") == "second"
    assert await t.scheduler.get_value(job_id, "url", wait=False) == "second"
    assert await t.scheduler.get_value(job_id, "other") is None


async def test_value_and_stream_may_have_the_same_name(t: TestScheduler) -> None:
    async def speak() -> None:
        await current_job().publish("name", "value")
        assert await current_job().stream("name").append("item") == 1

    job_id = await run(t, speak)
    assert await t.scheduler.get_value(job_id, "name") == "value"
    assert await read(t.scheduler, job_id, "name") == [(1, "item")]


async def test_value_commits_with_the_items_before_it(t: TestScheduler, pool: Pool) -> None:
    async def speak() -> None:
        await current_job().stream("items").append(1)
        await current_job().publish("is_ready", True)
        assert await stored(pool) == [("is_ready", 0, True), ("items", 1, 1)]

    await run(t, speak)


async def test_flush_returns_when_the_items_are_committed(t: TestScheduler, pool: Pool) -> None:
    async def speak() -> None:
        stream = current_job().stream("items")
        for number in range(1200):
            await stream.append(number)
        await stream.flush()
        assert len(await stored(pool)) == 1200

    job_id = await run(t, speak)
    assert await read(t.scheduler, job_id, "items") == [(n + 1, n) for n in range(1200)]


async def test_items_are_written_in_the_background(t: TestScheduler, pool: Pool) -> None:
    async def speak() -> None:
        stream = current_job().stream("items")
        await stream.append("first")
        await stream.append("second")
        async with asyncio.timeout(PATIENCE):
            while len(await stored(pool)) < 2:  # noqa: ASYNC110 - the row is written by another task
                await asyncio.sleep(0)

    await run(t, speak)


async def test_full_batch_is_written_by_the_append_that_fills_it(
    t: TestScheduler, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, gap_of_batches_of_stream_s=3600.0)
    inside.replace(monkeypatch, items_of_batch_of_stream=3)

    async def speak() -> None:
        stream = current_job().stream("items")
        await stream.append(0)
        await stream.flush()
        await stream.append(1)
        await stream.append(2)
        assert len(await stored(pool)) == 1
        await stream.append(3)
        assert len(await stored(pool)) == 4
        await stream.append("x" * 1000)

    await run(t, speak)
    assert len(await stored(pool)) == 5


async def test_items_before_a_step_are_committed_with_or_before_it(
    t: TestScheduler, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, gap_of_batches_of_stream_s=3600.0)

    async def nothing() -> None: ...

    async def write(_: Any) -> None:
        await current_job().stream("items").append("within")
        raise_at = current_job().attempt
        if raise_at == 1:
            raise ValueError

    async def speak() -> None:
        stream = current_job().stream("items")
        if await stream.count() == 0:
            await stream.append("before")
            await current_job().steps.run("step", nothing)
            assert await stored(pool) == [("items", 1, "before")]
        await current_job().steps.transaction("transaction", write)
        assert len(await stored(pool)) == await stream.count()

    await run(t, speak, max_retries=1)
    # The first attempt appended within a transaction that was rolled back: the item is not part of that.
    assert [value for _, _, value in await stored(pool)] == ["before", "within", "within"]


async def test_items_after_the_last_step_are_written_when_the_function_ends(
    t: TestScheduler, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, gap_of_batches_of_stream_s=3600.0)

    async def speak(how: str) -> None:
        stream = current_job().stream(how)
        await stream.flush()
        await stream.append(1)
        await stream.flush()
        await stream.append(2)
        if how == "raises":
            raise ValueError(how)
        if how == "sleeps":
            await current_job().steps.sleep("night", HOUR)

    for how in ("returns", "raises", "sleeps"):
        await t.scheduler.enqueue(speak, args=(how,))
    await t.drain()
    assert {(name, number) for name, number, _ in await stored(pool)} == {
        (how, number) for how in ("returns", "raises", "sleeps") for number in (1, 2)
    }


# -- attempts --------------------------------------------------------------------------------------------


async def test_next_attempt_continues_behind_the_last_item(t: TestScheduler) -> None:
    counts = []

    async def speak() -> None:
        stream = current_job().stream("items")
        counts.append(await stream.count())
        await stream.append(current_job().attempt)
        await stream.append(current_job().attempt)
        if current_job().attempt < 3:
            raise ValueError

    job_id = await run(t, speak, max_retries=2)
    assert counts == [0, 2, 4]
    assert await read(t.scheduler, job_id, "items") == list(enumerate([1, 1, 2, 2, 3, 3], 1))


async def test_item_with_a_number_is_appended_once_by_all_attempts(t: TestScheduler) -> None:
    async def speak() -> None:
        stream = current_job().stream("items")
        for number in range(1, current_job().attempt * 10):
            assert await stream.append([number, current_job().attempt], number=number) == number
        with pytest.raises(ValueError, match="number=99 would leave a gap in the stream 'items'"):
            await stream.append(0, number=99)
        if current_job().attempt < 3:
            raise ValueError

    job_id = await run(t, speak, max_retries=2)
    found = await read(t.scheduler, job_id, "items")
    assert found == [(number, [number, number // 10 + 1]) for number in range(1, 30)]


async def test_stale_attempt_publishes_nothing(t: TestScheduler, pool: Pool) -> None:
    """The worker of the attempt was declared dead, and another one has claimed the job."""

    async def speak() -> None:
        stream = current_job().stream("items")
        await stream.append("of the owner")
        await current_job().publish("value", 1)
        await pool.execute("UPDATE scheduled_jobs SET attempt = attempt + 1")
        await stream.append("of nobody")
        with pytest.raises(JobLostError):
            await stream.flush()
        with pytest.raises(JobLostError):
            await current_job().publish("value", 2)
        with pytest.raises(JobLostError):
            await stream.append("once more")

    await t.scheduler.enqueue(speak)
    await t.drain()
    assert await stored(pool) == [("items", 1, "of the owner"), ("value", 0, 1)]


@pytest.mark.parametrize(
    "change", ["worker_id = 'other'", "attempt = 7", "status = 'cancelled', finished_at = now()"]
)
async def test_append_is_fenced_by_worker_attempt_and_status(
    t: TestScheduler, pool: Pool, change: str
) -> None:
    errors = []

    async def speak() -> None:
        await pool.execute(f"UPDATE scheduled_jobs SET {change}")
        try:
            await current_job().publish("value", 1)
        except JobLostError as error:
            errors.append(error)

    await t.scheduler.enqueue(speak)
    await t.drain()
    assert len(errors) == 1
    assert await stored(pool) == []


async def test_batch_whose_commit_had_no_answer_is_written_once(
    t: TestScheduler, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, calls = StreamRepository.append, []

    async def append_twice(self: StreamRepository, *args: Any, **options: Any) -> None:
        calls.append(args)
        await append(self, *args, **options)
        await append(self, *args, **options)

    monkeypatch.setattr(StreamRepository, "append", append_twice)

    async def speak() -> None:
        for number in range(3):
            await current_job().stream("items").append(number)
        await current_job().publish("value", "a")
        await current_job().publish("value", "b")

    await run(t, speak)
    assert calls
    assert await stored(pool) == [("items", 1, 0), ("items", 2, 1), ("items", 3, 2), ("value", 0, "b")]


async def test_attempt_fails_if_its_last_items_are_refused(
    t: TestScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise PayloadError("the database refuses it")

    monkeypatch.setattr(StreamRepository, "append", refuse)

    async def speak() -> None:
        await current_job().stream("items").append(1)

    job_id = await run(t, speak, fails=True)
    found = await t.scheduler.get_job(job_id)
    assert found
    assert found.error_message == "PayloadError: the database refuses it"


async def test_code_that_outlives_its_attempt_publishes_nothing(t: TestScheduler) -> None:
    streams: list[JobStream] = []

    async def speak() -> None:
        stream = current_job().stream("items")
        await stream.append(1)
        streams.append(stream)

    job_id = await run(t, speak)
    with pytest.raises(JobLostError):
        await streams[0].append(2)
    assert await read(t.scheduler, job_id, "items") == [(1, 1)]


async def test_new_definition_of_a_job_has_streams_of_its_own(t: TestScheduler, pool: Pool) -> None:
    async def speak(value: str) -> None:
        await current_job().stream("items").append(value)
        await current_job().publish(value, value)

    async def schedule(value: str) -> None:
        resolution = ConflictResolution.REPLACE
        await t.scheduler.enqueue(speak, args=(value,), job_id="job", conflict_resolution=resolution)

    await schedule("old")
    await t.drain()
    await schedule("new")
    assert await t.scheduler.get_value("job", "old", wait=False) is None
    await t.drain()
    assert await read(t.scheduler, "job", "items") == [(1, "new")]
    assert await t.scheduler.get_value("job", "old") is None
    assert await t.scheduler.get_value("job", "new") == "new"
    assert len(await stored(pool)) == 4
    await t.scheduler.run_vacuum()
    assert await stored(pool) == [("items", 1, "new"), ("new", 0, "new")]


async def test_job_that_is_retried_by_hand_keeps_its_stream(t: TestScheduler) -> None:
    async def speak() -> None:
        stream = current_job().stream("items")
        await stream.append(await stream.count())
        if await stream.count() == 1:
            raise ValueError

    job_id = await run(t, speak, fails=True)
    assert await read(t.scheduler, job_id, "items") == [(1, 0)]
    await t.scheduler.retry_job(job_id)
    await t.drain()
    assert await read(t.scheduler, job_id, "items") == [(1, 0), (2, 1)]


async def test_plain_job_stays_plain(t: TestScheduler, pool: Pool) -> None:
    async def work() -> None: ...

    await run(t, work)
    assert await pool.fetchval("SELECT options FROM scheduled_jobs") is None


async def test_signal_to_a_job_keeps_what_it_has_published(t: TestScheduler) -> None:
    async def speak() -> None:
        await current_job().publish("value", 1)
        assert await current_job().scheduler.signal(current_job().job_id, "go") is True
        await current_job().publish("other", 2)
        await current_job().steps.wait("go")

    job_id = await run(t, speak)
    assert await t.scheduler.get_value(job_id, "value") == 1
    assert await t.scheduler.get_value(job_id, "other") == 2


# -- completing() ----------------------------------------------------------------------------------------


async def test_items_of_a_block_commit_with_the_completion(t: TestScheduler, pool: Pool) -> None:
    async def speak() -> None:
        stream = current_job().stream("items")
        await stream.append("before")
        async with current_job().completing():
            await stream.append("within")
        with pytest.raises(JobLostError):
            await stream.append("after")

    job_id = await run(t, speak)
    assert [value for _, _, value in await stored(pool)] == ["before", "within"]
    assert await read(t.scheduler, job_id, "items") == [(1, "before"), (2, "within")]


async def test_items_of_a_block_that_was_rolled_back_are_kept(t: TestScheduler, pool: Pool) -> None:
    async def speak() -> None:
        stream = current_job().stream("items")
        async with pool.acquire() as connection:
            transaction = connection.transaction()
            await transaction.start()
            async with current_job().completing(connection=connection):
                await stream.append("within")
            await transaction.rollback()
        await stream.append("after")

    await run(t, speak)
    assert [value for _, _, value in await stored(pool)] == ["within", "after"]


# -- bounds ----------------------------------------------------------------------------------------------


async def test_bounds_are_kept_over_attempts(t: TestScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    inside.replace(monkeypatch, items_of_stream=4)
    errors: list[str] = []

    async def speak() -> None:
        stream = current_job().stream("items")
        try:
            for _ in range(3):
                await stream.append(0)
        except PayloadError as error:
            errors.append(str(error))
            raise
        raise ValueError

    job_id = await run(t, speak, fails=True, max_retries=1)
    (error,) = errors
    assert error == (
        f"the streams of job {job_id!r} have 4 items, which is the most; append several values as one item, "
        "or store them elsewhere"
    )
    assert len(await read(t.scheduler, job_id, "items")) == 4


async def test_bytes_of_all_streams_are_bounded(t: TestScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_streams, "MAX_BYTES", 40)

    async def speak() -> None:
        if current_job().attempt == 1:
            await current_job().stream("a").append("x" * 20)
            raise ValueError
        with pytest.raises(PayloadError, match=r"with this item of .b. the streams of job .* have 44 bytes"):
            await current_job().stream("b").append("y" * 20)
        await current_job().stream("b").append("y" * 16)

    await run(t, speak, max_retries=1)


async def test_number_of_names_is_bounded(t: TestScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_streams, "MAX_NAMES", 2)

    async def speak() -> None:
        await current_job().publish("a", 1)
        await current_job().stream("b").append(1)
        with pytest.raises(PayloadError, match="'c' is number 3 of the names that job"):
            await current_job().publish("c", 1)
        await current_job().publish("b", 1)

    job_id = await run(t, speak)
    assert await t.scheduler.get_value(job_id, "b") == 1


async def test_unfit_values_and_names_are_refused(t: TestScheduler) -> None:
    async def speak() -> None:
        stream = current_job().stream("items")
        with pytest.raises(PayloadError, match="'items': the value has 65538 bytes of JSON, more than 65536"):
            await stream.append("x" * inside.internal_setting("bytes_of_item_of_stream"))
        with pytest.raises(PayloadError, match="'items'"):
            await stream.append(object())
        with pytest.raises(ValueError, match="the name of a stream must not be empty"):
            current_job().stream("")
        with pytest.raises(TypeError, match="the name of a published value"):
            await current_job().publish(7, 1)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="number must be between 1 and"):
            await stream.append(1, number=0)
        await stream.append(1)

    job_id = await run(t, speak)
    assert await read(t.scheduler, job_id, "items") == [(1, 1)]


# -- readers ---------------------------------------------------------------------------------------------


async def test_reader_gets_items_while_the_job_runs(make: Make) -> None:
    scheduler = make()
    await scheduler.start()
    received: asyncio.Queue[str] = asyncio.Queue()

    async def speak() -> None:
        for number in range(1, 6):
            await current_job().stream("items").append(number)
            assert await received.get() == f"item {number}"

    job_id = await scheduler.enqueue(speak)
    async with asyncio.timeout(PATIENCE):
        async for item in scheduler.stream(job_id, "items"):
            assert item == StreamItem(item.number, item.number)
            received.put_nowait(f"item {item.number}")
    assert (await scheduler.get_job_result(job_id)).status is JobStatus.COMPLETED


async def test_reader_waits_over_a_retry_and_ends_with_the_job(make: Make) -> None:
    scheduler = make(retry_policy=RetryPolicy(base=timedelta(milliseconds=10)))
    await scheduler.start()

    async def speak() -> None:
        await current_job().stream("items").append(current_job().attempt)
        raise ValueError

    job_id = await scheduler.enqueue(speak, max_retries=2)
    assert await read(scheduler, job_id, "items") == [(1, 1), (2, 2), (3, 3)]
    assert (await scheduler.get_job(job_id)).status is JobStatus.FAILED  # type: ignore[union-attr]


async def test_stream_ends_when_its_job_is_cancelled(make: Make) -> None:
    scheduler = make()
    await scheduler.start()

    async def speak() -> None:
        await current_job().stream("items").append(1)
        await asyncio.Event().wait()

    job_id = await scheduler.enqueue(speak)
    async with asyncio.timeout(PATIENCE), aclosing(scheduler.stream(job_id, "items")) as items:  # type: ignore[type-var]
        assert (await anext(items)).value == 1
        await scheduler.cancel_job(job_id)
        assert await anext(items, None) is None


async def test_stream_ends_when_its_job_is_deleted_or_replaced(t: TestScheduler, pool: Pool) -> None:
    async def speak() -> None:
        await current_job().stream("items").append(1)
        await current_job().steps.sleep("night", DAY)

    for change in ("delete", "replace"):
        job_id = await t.scheduler.enqueue(speak, job_id=f"job:{change}")
        await t.drain()
        async with asyncio.timeout(PATIENCE):
            items = t.scheduler.stream(job_id, "items")
            assert (await anext(items)).value == 1
            if change == "delete":
                await pool.execute("DELETE FROM scheduled_jobs WHERE job_id = $1", job_id)
            else:
                resolution = ConflictResolution.REPLACE
                await t.scheduler.enqueue(speak, job_id=job_id, delay=DAY, conflict_resolution=resolution)
            assert await anext(items, None) is None


async def test_stream_of_an_unknown_job_raises(scheduler: Scheduler) -> None:
    with pytest.raises(JobNotFoundError):
        await read(scheduler, "none", "items")
    with pytest.raises(JobNotFoundError):
        await scheduler.get_value("none", "value")
    with pytest.raises(JobNotFoundError):
        await scheduler.get_value("none", "value", wait=False)


async def test_value_is_awaited_until_it_is_published(make: Make) -> None:
    scheduler = make()
    await scheduler.start()
    go = asyncio.Event()

    async def pay() -> None:
        await go.wait()
        await current_job().publish("url", "https://example.org")

    job_id = await scheduler.enqueue(pay)
    assert await scheduler.get_value(job_id, "url", wait=False) is None
    for timeout in (0, 0.01):
        with pytest.raises(TimeoutError, match=f"job {job_id!r} has not published 'url' within {timeout}"):
            await scheduler.get_value(job_id, "url", timeout=timeout)
    waiting = asyncio.create_task(scheduler.get_value(job_id, "url", timeout=PATIENCE))
    go.set()
    assert await waiting == "https://example.org"


async def test_wait_for_a_value_ends_with_the_job(make: Make) -> None:
    scheduler = make()
    await scheduler.start()

    async def work() -> None: ...

    job_id = await scheduler.enqueue(work)
    assert await scheduler.get_value(job_id, "url", timeout=PATIENCE) is None


async def test_reader_in_another_process_is_woken_by_a_notification(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader polls too rarely to see the item in time."""
    inside.replace(monkeypatch, stream_first_interval_s=3600.0)
    worker, reader = make(), make(only=("other.*",))
    await worker.start()
    await reader.start()
    published = asyncio.Event()

    async def speak() -> None:
        await published.wait()
        await current_job().publish("value", 1)

    worker.register(speak, name="speak")
    job_id = await worker.enqueue("speak")
    waiting = asyncio.create_task(reader.get_value(job_id, "value", timeout=PATIENCE))
    audience = worker_of(worker).node.audience
    async with asyncio.timeout(PATIENCE):
        while "JobPublished" not in audience.kinds:
            await worker.send_heartbeat(job_id)
    published.set()
    assert await waiting == 1


async def test_reader_in_a_scheduler_that_is_not_started_polls(make: Make, pool: Pool) -> None:
    worker, reader = make(), make()
    await worker.start()
    received = asyncio.Event()

    async def speak() -> None:
        await current_job().stream("items").append(1)
        await received.wait()
        await current_job().stream("items").append(2)

    job_id = await worker.enqueue(speak)
    async with asyncio.timeout(PATIENCE):
        items = []
        async for item in reader.stream(job_id, "items"):
            items.append(item.number)
            received.set()
    assert items == [1, 2]


async def test_event_stands_for_a_batch(make: Make) -> None:
    scheduler = make()
    seen = Recorder(scheduler)
    await scheduler.start()

    async def speak() -> None:
        for number in range(10):
            await current_job().stream("items").append(number)
        await current_job().publish("value", 1)

    job_id = await scheduler.enqueue(speak)
    await scheduler.get_job_result(job_id)
    events = await seen.until(JobPublished, job_id=job_id)
    assert events == [JobPublished(job_id, events[0].job_name, 1)]


async def test_many_readers_share_a_query(make: Make) -> None:
    scheduler = make()
    await scheduler.start()
    begun = asyncio.Event()

    async def speak() -> None:
        await begun.wait()
        for number in range(250):
            await current_job().stream("items").append(number)

    job_id = await scheduler.enqueue(speak)
    readers = [asyncio.create_task(read(scheduler, job_id, "items")) for _ in range(120)]
    begun.set()
    for found in await asyncio.gather(*readers):
        assert found == [(n + 1, n) for n in range(250)]


# -- codec, threads, processes ---------------------------------------------------------------------------


async def test_values_and_items_are_encrypted(pool: Pool) -> None:
    async def speak() -> None:
        await current_job().stream("items").append("secret")
        await current_job().publish("value", "secret")

    async with TestScheduler(pool, now=START, codec=KeyedCodec("k1")) as t:
        job_id = await run(t, speak)
        assert "secret" not in json.dumps(await stored(pool))
        assert await read(t.scheduler, job_id, "items") == [(1, "secret")]
        assert await t.scheduler.get_value(job_id, "value") == "secret"
    reader = Scheduler(pool, codec=KeyedCodec("k2"))
    with pytest.raises(PayloadError, match=f"what job {job_id!r} has published as 'value' cannot be read"):
        await reader.get_value(job_id, "value", wait=False)


async def test_job_in_a_thread_publishes_and_appends(t: TestScheduler) -> None:
    @t.scheduler.register()
    def speak() -> None:
        streams = current_streams()
        streams.publish("value", 1)
        stream = streams.stream("items")
        assert stream.name == "items"
        assert [stream.append("a"), stream.append("b", number=2), stream.append("c", number=2)] == [1, 2, 2]
        stream.flush()
        assert stream.count() == 2
        with pytest.raises(NotRunningError, match=r"current_streams\(\)"):
            current_job().stream("items")

    job_id = await run(t, speak)
    assert await read(t.scheduler, job_id, "items") == [(1, "a"), (2, "b")]
    assert await t.scheduler.get_value(job_id, "value") == 1


async def test_async_job_has_no_blocking_streams(t: TestScheduler) -> None:
    async def speak() -> None:
        with pytest.raises(RuntimeError, match=r"an async job awaits publish\(\) and stream\(\)"):
            current_streams()

    await run(t, speak)


def test_job_context_has_no_streams() -> None:
    with job_context(), pytest.raises(NotRunningError, match="use a TestScheduler"):
        current_job().stream("items")


def test_sync_scheduler_reads_values_and_streams(dsn: str) -> None:
    async def speak() -> None:
        await current_job().publish("value", 1)
        for number in range(3):
            await current_job().stream("items").append(number)

    with SyncScheduler(dsn) as scheduler:
        scheduler.start()
        job_id = scheduler.enqueue(speak)
        assert scheduler.get_value(job_id, "value", timeout=PATIENCE) == 1
        assert [item.value for item in scheduler.stream(job_id, "items", after=1)] == [1, 2]
