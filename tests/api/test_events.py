"""Events through the public API: waiting, iterating, slow subscribers, and the stored job."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import ConflictResolution, JobConflictError, JobSpec, NotRunningError, Scheduler
from pg_scheduler.events import (
    Event,
    EventsDropped,
    JobCompleted,
    JobFailed,
    JobScheduled,
    JobStarted,
    WorkerStarted,
    WorkerStopped,
)
from tests.api.conftest import Make
from tests.support import inside
from tests.support.inside import bus_of
from tests.support.worker import PATIENCE, Gate, Recorder, now

LATER = timedelta(hours=1)


async def work(*args: Any) -> None: ...


async def fail() -> None:
    raise ValueError("no")


# -- next_event() and events() -------------------------------------------------------------------------


async def test_next_event_returns_the_first_event_of_its_classes(scheduler: Scheduler) -> None:
    waiting = asyncio.ensure_future(scheduler.next_event(JobCompleted, JobFailed, timeout=PATIENCE))
    await asyncio.sleep(0)
    job_id = await scheduler.schedule(fail, execution_time=now())
    event = await waiting
    assert isinstance(event, JobFailed)
    assert (event.job_id, event.error) == (job_id, "ValueError: no")


async def test_next_event_raises_timeout_error_when_there_is_none(make: Make) -> None:
    scheduler = make()
    with pytest.raises(TimeoutError, match=r"^no event within 0.001 s; pass a longer timeout=$"):
        await scheduler.next_event(timeout=timedelta(milliseconds=1))
    with pytest.raises(TimeoutError, match=r"^no JobStarted or JobFailed within 0.001 s;"):
        await scheduler.next_event(JobStarted, JobFailed, timeout=0.001)
    assert not bus_of(scheduler).wants(JobStarted), "the subscription has ended"


async def test_next_event_raises_value_error_when_the_timeout_is_not_positive(make: Make) -> None:
    with pytest.raises(ValueError, match="timeout must be more than 0 seconds"):
        await make().next_event(JobFailed, timeout=-1)


async def test_flags_of_subscriptions_must_be_bools(make: Make) -> None:
    scheduler, text = make(), "no"
    flag: Any = text
    with pytest.raises(TypeError, match="once must be a bool, not str: 'no'"):
        scheduler.subscribe(print, once=flag)
    with pytest.raises(TypeError, match="cluster must be a bool, not str: 'no'"):
        scheduler.subscribe(print, cluster=flag)
    assert not bus_of(scheduler).wants(JobStarted)


async def test_next_event_raises_not_running_error_when_the_scheduler_stops(make: Make) -> None:
    scheduler = make()
    await scheduler.start()
    waiting = asyncio.ensure_future(scheduler.next_event(JobFailed))
    await asyncio.sleep(0)
    await scheduler.shutdown()
    with pytest.raises(NotRunningError, match="stopped while next_event"):
        await waiting


async def test_events_iterates_until_the_scheduler_has_stopped(make: Make) -> None:
    scheduler = make()
    events = scheduler.events(WorkerStarted, JobCompleted, WorkerStopped)
    async with scheduler:
        assert isinstance(await anext(events), WorkerStarted)
        await scheduler.schedule(work, execution_time=now())
        assert isinstance(await anext(events), JobCompleted)
    assert [type(event) async for event in events] == [WorkerStopped]


# -- subscribers ---------------------------------------------------------------------------------------


async def test_shutdown_waits_for_async_subscribers_and_delivers_the_last_event(make: Make) -> None:
    scheduler = make()
    handled: list[type[Event]] = []

    async def handle(event: Event) -> None:
        await asyncio.sleep(0)
        handled.append(type(event))

    scheduler.subscribe(handle, WorkerStarted, WorkerStopped)
    async with scheduler:
        pass
    assert handled == [WorkerStarted, WorkerStopped]
    async with scheduler:
        pass
    assert handled == [WorkerStarted, WorkerStopped] * 2


async def test_shutdown_cancels_an_async_subscriber_that_does_not_end(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert inside.internal_setting("timeout_of_subscriber_s") == 5.0
    inside.replace(monkeypatch, timeout_of_subscriber_s=0.01)
    scheduler = make()
    cancelled: list[Event] = []

    async def hang(event: Event) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(event)

    scheduler.subscribe(hang, WorkerStarted)
    async with scheduler:
        pass
    assert [type(event) for event in cancelled] == [WorkerStarted]


async def test_async_subscriber_can_shut_the_scheduler_down(make: Make) -> None:
    scheduler = make()

    async def stop(_event: Event) -> None:
        await scheduler.shutdown()

    scheduler.subscribe(stop, JobFailed)
    await scheduler.start()
    await scheduler.schedule(fail, execution_time=now())
    async with asyncio.timeout(PATIENCE):
        await scheduler.wait()
    assert not scheduler.is_running


@pytest.mark.slow
async def test_slow_and_raising_subscribers_delay_no_job(make: Make, open_gate: Gate) -> None:
    scheduler = make(max_concurrent_jobs=50, batch_claim_limit=50)
    began = asyncio.Event()
    release = asyncio.Event()
    handled: list[Event] = []

    def raise_error(_event: Event) -> None:
        raise LookupError("mine")

    async def hang(event: Event) -> None:
        began.set()
        await release.wait()
        handled.append(event)

    scheduler.subscribe(raise_error)
    scheduler.subscribe(hang, JobCompleted)
    unread = scheduler.events(JobCompleted)
    jobs = 1_200
    left, drained = jobs, asyncio.Event()

    def count(_event: Event) -> None:
        nonlocal left
        left -= 1
        if not left:
            drained.set()

    scheduler.subscribe(count, JobCompleted)
    await scheduler.start()
    await scheduler.schedule_bulk([JobSpec(work, now(), (n,)) for n in range(jobs)])
    async with asyncio.timeout(PATIENCE):
        await drained.wait()
    assert began.is_set()
    assert handled == []
    assert await anext(unread) == EventsDropped(jobs - 1000, "events()")
    release.set()
    await bus_of(scheduler).drain(PATIENCE)
    assert handled[1] == EventsDropped(jobs - 1001, handled[1].subscriber)  # type: ignore[attr-defined]
    assert len(handled) == 1002


@pytest.mark.slow
async def test_subscriber_that_blocks_the_event_loop_costs_no_job(make: Make) -> None:
    """Real time: the event loop is blocked for longer than the lease."""
    scheduler = make(lease=timedelta(seconds=1))
    blocked: list[str] = []

    def block(event: Event) -> None:
        time.sleep(1.5)  # the subject: longer than the lease
        blocked.append(type(event).__name__)

    scheduler.subscribe(block, JobStarted, once=True)
    seen = Recorder(scheduler)
    await scheduler.start()
    await scheduler.schedule_bulk([JobSpec(work, now(), job_id=f"job {n}") for n in range(5)])
    completed = await seen.until(JobCompleted, 5)
    assert blocked == ["JobStarted"]
    assert {event.attempt for event in completed} == {1}


# -- JobScheduled --------------------------------------------------------------------------------------


async def test_schedule_publishes_the_stored_job(make: Make) -> None:
    scheduler = make()
    await scheduler.initialize_db()
    due = now() + LATER
    seen = Recorder(scheduler)
    await scheduler.schedule(work, execution_time=due, job_id="a")
    assert seen.of(JobScheduled) == [JobScheduled("a", f"{__name__}.work", 0, due)]
    with suppress(JobConflictError):
        await scheduler.schedule(work, execution_time=due, job_id="a")
    await scheduler.schedule(
        work, execution_time=due, job_id="a", conflict_resolution=ConflictResolution.IGNORE
    )
    assert len(seen.of(JobScheduled)) == 1, "nothing was stored"
    await scheduler.schedule(
        work, execution_time=due + LATER, job_id="a", conflict_resolution=ConflictResolution.REPLACE
    )
    assert seen.of(JobScheduled)[1:] == [JobScheduled("a", f"{__name__}.work", 0, due + LATER)]


async def test_enqueue_publishes_the_job_with_its_due_time(make: Make, pool: asyncpg.Pool) -> None:
    scheduler = make()
    await scheduler.initialize_db()
    seen = Recorder(scheduler)
    job_id = await scheduler.enqueue(work, delay=LATER, job_id="a")
    await scheduler.enqueue(work, job_id="a", conflict_resolution=ConflictResolution.IGNORE)
    due = await pool.fetchval("SELECT execution_time FROM scheduled_jobs WHERE job_id = $1", job_id)
    (event,) = seen.of(JobScheduled)
    assert (event.job_id, event.job_name, event.attempt) == ("a", f"{__name__}.work", 0)
    assert timedelta() <= due - event.execution_time < timedelta(minutes=1)


async def test_schedule_publishes_nothing_for_jobs_of_a_callers_transaction(
    make: Make, pool: asyncpg.Pool
) -> None:
    scheduler = make()
    await scheduler.initialize_db()
    seen = Recorder(scheduler)
    async with pool.acquire() as connection, connection.transaction():
        await scheduler.schedule(work, execution_time=now() + LATER, connection=connection)
        await scheduler.schedule_bulk([JobSpec(work, now() + LATER)], connection=connection)
    assert seen.of(JobScheduled) == []


@pytest.mark.parametrize("resolution", list(ConflictResolution))
async def test_schedule_bulk_publishes_each_job_that_was_stored(
    make: Make, resolution: ConflictResolution
) -> None:
    scheduler = make()
    await scheduler.initialize_db()
    await scheduler.schedule(work, execution_time=now() + LATER, job_id="old")
    seen = Recorder(scheduler)
    ids = ["a", "b"] if resolution is ConflictResolution.RAISE else ["a", "b", "a", "old"]
    specs = [JobSpec(work, now() + n * LATER, job_id=job_id) for n, job_id in enumerate(ids, start=1)]
    specs += [JobSpec(work, now() + LATER) for _ in range(600)]
    generated = (await scheduler.schedule_bulk(specs, conflict_resolution=resolution))[len(ids) :]
    events = {event.job_id: event.execution_time for event in seen.of(JobScheduled)}
    assert len(seen.of(JobScheduled)) == len(events)
    expected = {"a": 0, "b": 1}
    if resolution is ConflictResolution.REPLACE:
        expected = {"a": 2, "b": 1, "old": 3}
    assert set(events) == {*expected, *generated}
    assert {job_id: events[job_id] for job_id in expected} == {
        job_id: specs[place].execution_time for job_id, place in expected.items()
    }
