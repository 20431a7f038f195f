"""A job that is cancelled after it has begun enqueues the task of on_cancel=, with what it has done."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import ConflictResolution, JobStatus, RetryPolicy, Scheduler, call, current_job, job
from pg_scheduler import job as decorate
from pg_scheduler.events import JobCompleted
from pg_scheduler.inspect import Inspector
from pg_scheduler.testing import TestScheduler
from tests.api.conftest import Make
from tests.support import inside
from tests.support.codecs import KeyedCodec
from tests.support.inside import Connections, Store, registry_of
from tests.support.worker import Recorder

MAX_VALUES_BYTES = inside.internal_setting("bytes_of_clean_ups")

Pool = asyncpg.Pool

START = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
NAME = f"{__name__}.order"
CLEAN_UP = f"{__name__}.undo"

calls: list[dict[str, Any]] = []


@job(name=CLEAN_UP)
async def undo(**arguments: Any) -> None:
    calls.append(arguments)


async def add(number: int) -> int:
    return number + 1


@job(name=NAME, on_cancel=CLEAN_UP)
async def order() -> None:
    steps = current_job().steps
    await steps.run("reserve", add, 1)
    await steps.run("charge", add, 2)
    await steps.wait("approval")


@pytest.fixture
async def t(pool: Pool) -> AsyncIterator[TestScheduler]:
    calls.clear()
    async with TestScheduler(pool, now=START) as scheduler:
        yield scheduler


def step(name: str, value: Any, kind: str = "step", *, is_omitted: bool = False) -> dict[str, Any]:
    return {"name": name, "kind": kind, "value": value, "is_omitted": is_omitted}


DONE = [step("reserve", 2), step("charge", 3)]


async def ids(scheduler: Scheduler) -> set[str]:
    return {item.job_id for item in await scheduler.list_jobs()}


async def test_suspended_job_that_is_cancelled_gets_one_clean_up_with_its_steps(t: TestScheduler) -> None:
    await t.scheduler.enqueue(order, job_id="job")
    await t.drain()
    assert await t.scheduler.cancel_job("job")
    assert not await t.scheduler.cancel_job("job")
    await t.drain()
    (arguments,) = calls
    assert arguments.pop("reason").startswith("cancelled by ")
    assert arguments == {"job_id": "job", "job_name": NAME, "steps": DONE}
    assert await ids(t.scheduler) == {"job", "job:on_cancel"}


async def test_job_that_has_not_begun_gets_none(t: TestScheduler) -> None:
    await t.scheduler.enqueue(order, job_id="job", delay=HOUR)
    assert await t.scheduler.cancel_job("job")
    assert await ids(t.scheduler) == {"job"}


async def test_definition_that_has_not_begun_gets_none(t: TestScheduler) -> None:
    await t.scheduler.enqueue(order, job_id="job")
    await t.drain()
    t.advance(10)
    replace = ConflictResolution.REPLACE
    await t.scheduler.schedule(order, execution_time=START + HOUR, job_id="job", conflict_resolution=replace)
    assert await t.scheduler.cancel_job("job")
    assert await ids(t.scheduler) == {"job"}, "a replacement is no cancellation"


async def test_job_that_waits_for_its_retry_has_begun(t: TestScheduler) -> None:
    async def failing() -> None:
        raise ValueError("no")

    t.scheduler.register(
        failing,
        name=f"{__name__}.failing",
        on_cancel=CLEAN_UP,
        retry=RetryPolicy(HOUR, maximum=HOUR),
        max_retries=1,
    )
    await t.scheduler.enqueue(failing, job_id="job")
    await t.drain()
    assert await t.scheduler.cancel_job("job")
    await t.drain()
    assert [arguments["steps"] for arguments in calls] == [[]]
    assert "error of the last attempt: ValueError: no" in calls[0]["reason"]


async def test_job_that_ends_otherwise_gets_none(t: TestScheduler) -> None:
    await t.scheduler.enqueue(order, job_id="job")
    await t.drain()
    await t.scheduler.signal("job", "approval")
    await t.drain()
    found = await t.scheduler.get_job("job")
    assert found
    assert found.status is JobStatus.COMPLETED
    assert calls == []


async def test_each_cancellation_of_a_retried_job_gets_one(t: TestScheduler) -> None:
    await t.scheduler.enqueue(order, job_id="job")
    for _ in range(2):
        await t.drain()
        assert await t.scheduler.cancel_job("job")
        assert await t.scheduler.retry_job("job")
    await t.drain()
    assert [arguments["steps"] for arguments in calls] == [DONE, DONE]


@pytest.mark.parametrize("how", ["one", "search", "people", "status", "family", "transaction"])
async def test_every_way_to_cancel_enqueues_one(t: TestScheduler, pool: Pool, how: str) -> None:
    for number in (1, 2):
        await t.scheduler.enqueue(order, job_id=f"job:{number}")
    await t.drain()
    match how:
        case "one":
            for number in (1, 2):
                assert await t.scheduler.cancel_job(f"job:{number}")
        case "search":
            assert await t.scheduler.cancel_jobs(job_name=NAME) == 2
        case "people":
            async for _ in Inspector(t.scheduler).cancel_jobs(where=f"name:{NAME}"):
                pass
        case "status":
            for number in (1, 2):
                assert await t.scheduler.update_job_status(f"job:{number}", "cancelled")
        case "family":
            assert await t.scheduler.cancel_jobs(job_name=NAME, children=True) == 2
        case "transaction":
            async with pool.acquire() as connection, connection.transaction():
                assert await t.scheduler.cancel_jobs(job_name=NAME, connection=connection) == 2
    await t.drain()
    assert sorted(arguments["job_id"] for arguments in calls) == ["job:1", "job:2"]


async def test_process_that_does_not_know_the_task_enqueues_it(t: TestScheduler, pool: Pool) -> None:
    await t.scheduler.enqueue(order, job_id="job")
    await t.drain()
    other = Scheduler(pool)
    registry_of(other).__init__()  # type: ignore[misc]
    assert await other.cancel_job("job")
    await t.drain()
    assert [arguments["steps"] for arguments in calls] == [DONE]


async def test_process_of_an_earlier_release_cancels_without_a_clean_up(t: TestScheduler, pool: Pool) -> None:
    """Its consequences have no handler of the key ``on_cancel``."""
    await t.scheduler.enqueue(order, job_id="job")
    await t.drain()
    store = Store(Connections(pool))
    assert (await store.jobs.cancel("job")).changed
    assert await t.scheduler.retry_job("job")
    await t.drain()
    assert calls == []
    assert await t.scheduler.cancel_job("job")
    await t.drain()
    assert [arguments["steps"] for arguments in calls] == [DONE], "the retried job has its clean-up again"
    await store.connections.release_held()


async def test_values_are_bounded_and_children_and_sleeps_are_listed(t: TestScheduler) -> None:
    async def noise(length: int) -> str:
        return os.urandom(length // 2).hex()

    async def kid() -> None:
        await current_job().steps.wait("signal")

    async def all_kinds() -> None:
        steps = current_job().steps
        await steps.run("first", add, 1)
        await steps.sleep("nap", 1)
        async with steps.cursor("place", start=0) as cursor:
            await cursor.set(5)
        await steps.run("long", noise, 20_000)
        await steps.run("short", add, 2)
        for number in range(10):
            await steps.run(f"many-{number}", noise, 6000)
        await steps.child("kid", call(kid))

    t.scheduler.register(all_kinds, name=f"{__name__}.all", on_cancel=CLEAN_UP)
    await t.scheduler.enqueue(all_kinds, job_id="job")
    await t.run_until(HOUR)
    await t.scheduler.signal("job", "unheard", 1)
    assert await t.scheduler.cancel_job("job")
    await t.drain()
    (arguments,) = calls
    numbered_steps = [stored for stored in arguments["steps"] if stored["name"].startswith("many-")]
    assert [stored["is_omitted"] for stored in numbered_steps] == sorted(
        stored["is_omitted"] for stored in numbered_steps
    )
    assert 3 <= sum(not stored["is_omitted"] for stored in numbered_steps) < 10
    values = sum(len(json.dumps(stored["value"])) for stored in numbered_steps)
    assert values < 4 * MAX_VALUES_BYTES
    assert [stored for stored in arguments["steps"] if stored not in numbered_steps] == [
        step("first", 2),
        step("nap", None, "sleep"),
        step("place", 5, "cursor"),
        step("long", None, is_omitted=True),
        step("short", 3),
        step("kid", None, "child", is_omitted=True),
    ]


async def test_messages_that_have_come_are_listed_under_the_names_for_people(t: TestScheduler) -> None:
    async def read() -> None:
        steps = current_job().steps
        with suppress(TimeoutError):
            await steps.receive("items", timeout=1)
        for number in range(3):
            item = await steps.receive("items")
            await steps.run(f"reserve-{number}", add, item)

    t.scheduler.register(read, name=f"{__name__}.read", on_cancel=CLEAN_UP)
    await t.scheduler.enqueue(read, job_id="job")
    await t.run_until(HOUR)
    for number in (1, 2):
        assert await t.scheduler.send("job", "items", number)
        await t.run_until(timedelta(minutes=1))
    assert await t.scheduler.send("job", "letters", "too early")
    assert await t.scheduler.signal("job", "items", "unheard")
    assert await t.scheduler.cancel_job("job")
    await t.drain()
    (arguments,) = calls
    assert arguments["steps"] == [
        step("items#1", 1, "signal"),
        step("reserve-0", 2),
        step("items#2", 2, "signal"),
        step("reserve-1", 3),
        step("letters#1", "too early", "signal"),
    ]


async def test_clean_up_of_a_running_job_begins_after_its_attempt(make: Make) -> None:
    calls.clear()
    began, may_end = asyncio.Event(), asyncio.Event()

    @decorate(name=f"{__name__}.stubborn", on_cancel=CLEAN_UP)
    async def stubborn() -> None:
        await current_job().steps.run("reserve", add, 1)
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            await may_end.wait()

    scheduler = make()
    seen = Recorder(scheduler)
    await scheduler.start()
    await scheduler.enqueue(stubborn, job_id="job")
    await began.wait()
    assert await scheduler.cancel_job("job")
    assert await ids(scheduler) == {"job"}
    may_end.set()
    await seen.until(JobCompleted, job_id="job:on_cancel")
    assert [arguments["steps"] for arguments in calls] == [[step("reserve", 2)]]


class FailingCodec(KeyedCodec):
    """A codec whose encoding fails."""

    def encode(self, data: bytes, job_name: str) -> bytes:
        raise OSError("no key server")


async def test_encoded_values_are_passed_on_encoded_or_not_at_all(pool: Pool) -> None:
    calls.clear()
    async with TestScheduler(pool, now=START, codec=KeyedCodec("a")) as t:
        for number in (1, 2, 3, 4):
            await t.scheduler.enqueue(order, job_id=f"job:{number}")
        await t.drain()
        assert await t.scheduler.cancel_job("job:1")
        # A process without the codec cannot read the values.
        assert await Scheduler(pool).cancel_job("job:2")
        # One that only decodes would store them readable, as would one whose codec fails.
        assert await Scheduler(pool, codec=KeyedCodec("a", encrypt=False)).cancel_job("job:3")
        assert await Scheduler(pool, codec=FailingCodec("a")).cancel_job("job:4")
        rows = await pool.fetch("SELECT job_id, task_data::text FROM scheduled_jobs")
        texts: dict[str, str] = {row[0]: row[1] for row in rows}
        assert "reserve" not in texts["job:1:on_cancel"]
        for number in (2, 3, 4):
            assert "reserve" in texts[f"job:{number}:on_cancel"]
        await t.drain()
    by_id = {arguments["job_id"]: arguments["steps"] for arguments in calls}
    assert by_id["job:1"] == DONE
    for number in (2, 3, 4):
        omitted = [step(name, None, is_omitted=True) for name in ("reserve", "charge")]
        assert by_id[f"job:{number}"] == omitted


async def test_clean_up_that_a_unique_key_leaves_out_is_logged(
    t: TestScheduler, caplog: pytest.LogCaptureFixture
) -> None:
    t.scheduler.register(undo, name="clean.once", unique="once")
    t.scheduler.register(order, name="held", on_cancel="clean.once")
    for job_id in ("a", "b"):
        await t.scheduler.enqueue("held", job_id=job_id)
    await t.drain()
    for job_id in ("a", "b"):
        assert await t.scheduler.cancel_job(job_id)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [warning.split(",")[0] for warning in warnings] == ["clean-up b:on_cancel not enqueued"]


async def test_step_may_have_the_name_of_the_suffix(t: TestScheduler) -> None:
    async def kid() -> int:
        return 1

    async def parent() -> int:
        return await current_job().steps.child("on_cancel", call(kid))

    await t.scheduler.enqueue(kid, job_id="job:on_cancel", delay=HOUR)
    await t.scheduler.enqueue(parent, job_id="job", keep_result=HOUR)
    await t.drain()
    assert (await t.scheduler.get_job_result("job")).unwrap() == 1


async def test_option_is_checked_and_shown(t: TestScheduler) -> None:
    with pytest.raises(ValueError, match="name"):
        t.scheduler.register(add, name="x", on_cancel="")
    (info,) = [task for task in await t.scheduler.tasks.list() if task.name == NAME]
    assert info.on_cancel == CLEAN_UP
