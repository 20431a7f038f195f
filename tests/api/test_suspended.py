"""Suspended jobs beside pauses, limits, unique keys, timeouts, crashes and shares."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import (
    JobConflictError,
    JobPriority,
    JobStatus,
    Limit,
    RetryPolicy,
    Share,
    call,
    current_job,
)
from pg_scheduler.events import JobBlocked
from pg_scheduler.inspect import Inspector
from pg_scheduler.sync import current_steps
from pg_scheduler.testing import TestScheduler
from pg_scheduler.worker.runners.timeouts import TimeoutQueue
from tests.support.worker import PATIENCE, Recorder

START = datetime(2030, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)

NAME = "suspended.job"
KINDS = ["sleep", "wait", "child"]
TENANT = Share("suspended", key=lambda tenant: tenant)


async def test_crashes_before_a_stored_step_do_not_count(pool: asyncpg.Pool) -> None:
    """Each month a machine dies while a subscription is billed; a job that only crashes is quarantined."""
    billed: list[str] = []

    async with TestScheduler(pool, now=START, max_crashes=3) as t:

        async def bill(month: str) -> None:
            billed.append(month)

        async def subscribe(*, is_poison: bool) -> None:
            me = current_job()
            for month in range(5):
                if me.attempt == 2 * month + 1 or is_poison:
                    t.crash()
                await me.steps.run(f"bill-{month}", bill, f"{me.job_id} {month}")
                await me.steps.sleep(f"month-{month}", 30 * DAY)

        options: dict[str, Any] = {"job_id": "job", "keep_result": 3650 * DAY}
        await t.scheduler.enqueue(subscribe, kwargs={"is_poison": False}, **options)
        await t.run_until(200 * DAY)
        result = await t.scheduler.get_job_result("job", wait=False)
        assert result is not None
        result.unwrap()
        assert billed == [f"job {month}" for month in range(5)]
        await t.scheduler.enqueue(subscribe, kwargs={"is_poison": True}, job_id="poison")
        await t.run_until(DAY)
        job = await t.scheduler.get_job("poison")
        assert job is not None
        assert (job.status, job.crash_count) == (JobStatus.FAILED, 3)


async def noop(*_: Any) -> None: ...


async def suspend(kind: str) -> None:
    """Suspend the job for an hour, if it is signalled then."""
    steps = current_job().steps
    match kind:
        case "sleep":
            await steps.sleep("sleep", HOUR)
        case "wait":
            await steps.wait("wait")
        case "child":
            await steps.child("child", call(noop), delay=HOUR, priority=JobPriority.HIGH)


async def pass_an_hour(t: TestScheduler, kind: str) -> None:
    """Let the suspension end, and run what is due then."""
    await t.run_until(HOUR)
    if kind == "wait":
        assert await t.scheduler.signal("job", "wait")
        await t.drain()


class Log(list[Any]):
    """The times at which attempts of a suspended job began and continued."""

    def __init__(self, t: TestScheduler, kind: str) -> None:
        super().__init__()
        self.t = t
        self.kind = kind

    async def job(self) -> None:
        self.append(("begins", self.t.now - START))
        await suspend(self.kind)
        self.append(("continues", self.t.now - START))


@pytest.fixture
async def t(pool: asyncpg.Pool) -> AsyncIterator[TestScheduler]:
    async with TestScheduler(pool, now=START) as scheduler:
        yield scheduler


async def state(t: TestScheduler, job_id: str = "job") -> tuple[JobStatus, str | None]:
    found = await t.scheduler.get_job(job_id)
    assert found
    return found.status, found.blocked_on


# -- pauses ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_suspended_job_does_not_continue_while_its_task_is_paused(t: TestScheduler, kind: str) -> None:
    """Nor does it expire, although it is late by far more than its misfire grace time."""
    log = Log(t, kind)
    t.scheduler.register(log.job, name=NAME)
    await t.scheduler.enqueue(NAME, job_id="job", misfire_grace_time=60)
    await t.drain()
    await t.scheduler.tasks.pause(NAME)
    await pass_an_hour(t, kind)
    await t.run_until(DAY)
    assert log == [("begins", 0 * HOUR)]
    assert (await state(t))[0] is JobStatus.PENDING
    await t.scheduler.tasks.resume(NAME)
    await t.drain()
    assert log[1:] == [("begins", HOUR + DAY), ("continues", HOUR + DAY)]
    assert await state(t) == (JobStatus.COMPLETED, None)


# -- limits ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize("kind", KINDS)
async def test_each_attempt_of_a_suspended_job_is_a_start_for_the_rates_of_limits(
    t: TestScheduler, kind: str, spread: bool
) -> None:
    log, others = Log(t, kind), list[timedelta]()

    async def other() -> None:
        others.append(t.now - START)

    shared = [Limit("suspended.rate", max_starts=1, per=2 * HOUR, spread=spread)]
    t.scheduler.register(log.job, name=NAME, limits=shared)
    t.scheduler.register(other, name="suspended.other", limits=shared)
    await t.scheduler.enqueue(NAME, job_id="job")
    await t.drain()
    await pass_an_hour(t, kind)
    assert (await state(t)) == (JobStatus.PENDING, "limit:suspended.rate:")
    await t.run_until(START + 2 * HOUR)
    assert log == [("begins", 0 * HOUR), ("begins", 2 * HOUR), ("continues", 2 * HOUR)]
    await t.scheduler.enqueue("suspended.other", misfire_grace_time=None)
    await t.run_until(DAY)
    assert others == [4 * HOUR], "two hours after the attempt that continued"


@pytest.mark.parametrize("kind", KINDS)
async def test_suspended_job_continues_only_when_its_limit_has_room(pool: asyncpg.Pool, kind: str) -> None:
    async with TestScheduler(pool, now=START, concurrency=3) as t:
        log = Log(t, kind)
        blocked = Recorder(t.scheduler)

        async def other() -> None:
            if kind == "wait":
                assert await t.scheduler.signal("job", "wait")
            async with asyncio.timeout(PATIENCE):
                while not blocked.of(JobBlocked, job_id="job") and len(log) < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0)
            log.append("other")

        one = [Limit("suspended.one", max_running=1)]
        t.scheduler.register(log.job, name=NAME, limits=one)
        t.scheduler.register(other, name="suspended.other", limits=one)
        await t.scheduler.enqueue(NAME, job_id="job")
        await t.drain()
        await t.scheduler.enqueue("suspended.other", delay=HOUR, priority=JobPriority.CRITICAL)
        await t.run_until(HOUR)
        assert log == [("begins", 0 * HOUR), "other", ("begins", HOUR), ("continues", HOUR)]


# -- unique keys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_suspended_job_holds_its_unique_key_until_it_has_ended(t: TestScheduler, kind: str) -> None:
    t.scheduler.register(Log(t, kind).job, name=NAME)
    await t.scheduler.enqueue(NAME, job_id="job", unique="key")
    await t.drain()
    assert (await state(t))[0] is JobStatus.PENDING
    with pytest.raises(JobConflictError, match="'job'"):
        await t.scheduler.enqueue(NAME, unique="key")
    await pass_an_hour(t, kind)
    assert (await state(t))[0] is JobStatus.COMPLETED
    assert await t.scheduler.enqueue(NAME, job_id="next", unique="key") == "next"


# -- timeouts and crashes --------------------------------------------------------------------------------


class Timeouts:
    """Notes the time limits that workers watch, and which of them they watch still."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds: list[float] = []
        self.watched = 0
        add, remove = TimeoutQueue.add, TimeoutQueue.remove

        def noting_add(queue: TimeoutQueue[Any], item: Any, seconds: float, *since: Any) -> None:
            self.seconds.append(seconds)
            self.watched += 1
            add(queue, item, seconds, *since)

        def noting_remove(queue: TimeoutQueue[Any], item: Any, seconds: float) -> None:
            self.watched -= 1
            remove(queue, item, seconds)

        monkeypatch.setattr(TimeoutQueue, "add", noting_add)
        monkeypatch.setattr(TimeoutQueue, "remove", noting_remove)


@pytest.mark.parametrize("executor", [None, "thread"])
async def test_each_attempt_of_a_suspended_job_has_its_whole_timeout(
    t: TestScheduler, monkeypatch: pytest.MonkeyPatch, executor: str | None
) -> None:
    timeouts = Timeouts(monkeypatch)
    left: list[timedelta] = []

    def note_the_deadline() -> None:
        deadline = current_job().deadline
        assert deadline is not None
        left.append(deadline - before)

    async def rest() -> None:
        note_the_deadline()
        for number in range(2):
            await current_job().steps.sleep(f"{number}", HOUR)

    def rest_in_a_thread() -> None:
        note_the_deadline()
        for number in range(2):
            current_steps().sleep(f"{number}", HOUR)

    if executor is None:
        t.scheduler.register(rest, name=NAME)
    else:
        t.scheduler.register(rest_in_a_thread, name=NAME, executor=executor)
    await t.scheduler.enqueue(NAME, job_id="job", timeout=60)
    for _ in range(3):
        before = datetime.now(UTC)
        await t.drain()
        assert timeouts.watched == 0, "no time limit is watched while the job sleeps"
        t.advance(HOUR)
    assert timeouts.seconds == [60, 60, 60]
    assert min(left) >= MINUTE
    assert (await state(t))[0] is JobStatus.COMPLETED


async def test_attempt_after_a_suspension_times_out(
    t: TestScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time limit expires at once, however long the first attempt takes."""
    add = TimeoutQueue.add

    def add_shortened(queue: TimeoutQueue[Any], item: Any, seconds: float, *since: Any) -> None:
        add(queue, item, 0.0 if item.claim.attempt == 2 else seconds, *since)

    async def rest_and_stall() -> None:
        await current_job().steps.sleep("rest", HOUR)
        await asyncio.Event().wait()

    monkeypatch.setattr(TimeoutQueue, "add", add_shortened)
    await t.scheduler.enqueue(rest_and_stall, job_id="job", timeout=60)
    await t.run_until(HOUR)
    found = await t.scheduler.get_job("job")
    assert found
    assert (found.status, found.attempt) == (JobStatus.FAILED, 2)
    assert "longer than its timeout of 60 seconds" in str(found.error_message)


@pytest.mark.parametrize("kind", KINDS)
async def test_worker_that_dies_while_a_job_is_suspended_is_no_crash_of_the_job(
    pool: asyncpg.Pool, kind: str
) -> None:
    async with TestScheduler(pool, now=START, max_crashes=1) as t:
        log = Log(t, kind)
        t.scheduler.register(log.job, name=NAME)
        await t.scheduler.enqueue(NAME, job_id="job")
        await t.drain()
        t.crash()
        await pass_an_hour(t, kind)
        assert log[1:] == [("begins", HOUR), ("continues", HOUR)]
        assert await state(t) == (JobStatus.COMPLETED, None)
    assert await pool.fetchval("SELECT max(crash_count) FROM scheduled_jobs") == 0


async def test_crashes_after_a_suspension_count_from_its_step_on(pool: asyncpg.Pool) -> None:
    async with TestScheduler(pool, now=START, max_crashes=2) as t:

        async def kill() -> None:
            if current_job().attempt == 1:
                t.crash()
            await current_job().steps.sleep("rest", HOUR)
            t.crash()

        await t.scheduler.enqueue(kill, job_id="job")
        await t.run_until(DAY)
        found = await t.scheduler.get_job("job")
        assert found
        assert (found.status, found.attempt) == (JobStatus.FAILED, 4)
        assert str(found.error_message).startswith("quarantined: 2 workers died")


# -- shares ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_after_another", [False, True])
@pytest.mark.parametrize("kind", [*KINDS, "retry", "crash"])
async def test_job_that_continues_does_not_wait_for_another_turn_of_its_tenant(
    pool: asyncpg.Pool, kind: str, is_after_another: bool
) -> None:
    """It is due before the job of another tenant that has had its turn, but was not claimed."""
    log: list[str] = []
    policy = RetryPolicy(HOUR, maximum=HOUR)
    async with TestScheduler(pool, now=START, retry_policy=policy) as t:

        async def job(tenant: str) -> None:
            if tenant == "a" and current_job().attempt == 1:
                if kind == "retry":
                    raise ValueError
                if kind == "crash":
                    t.crash()
            if tenant == "a":
                await suspend(kind)
            log.append(tenant)

        t.scheduler.register(job, name=NAME, share=TENANT)
        first = await t.scheduler.enqueue(noop, job_id="first")
        after: dict[str, Any] = {"after": [first]} if is_after_another else {}
        await t.scheduler.enqueue(NAME, args=("a",), job_id="job", max_retries=1, **after)
        await t.drain()
        t.advance(HOUR)
        if kind == "wait":
            assert await t.scheduler.signal("job", "wait")
        for number in range(3):
            await t.scheduler.enqueue(NAME, args=("b",), job_id=f"other:{number}")
        if kind == "child":
            assert await t.run_one()
        await t.drain()
        assert log == ["a", "b", "b", "b"]


async def test_jobs_that_wait_for_children_take_no_turns_of_their_tenant(t: TestScheduler) -> None:
    log: list[str] = []

    async def leaf(tenant: str) -> None:
        log.append(tenant)
        t.advance(SECOND)

    async def parent(tenant: str) -> None:
        await current_job().steps.child("leaf", call(registered, tenant), delay=HOUR)

    registered: Any = t.scheduler.register(leaf, name="suspended.leaf", share=TENANT)
    t.scheduler.register(parent, name="suspended.parent", share=TENANT)
    for _ in range(3):
        await t.scheduler.enqueue("suspended.parent", args=("a",))
    await t.drain()
    (tenant,) = (await Inspector(t.scheduler).tenants("suspended")).items
    assert (tenant.key, tenant.waiting, tenant.running, tenant.admitted) == ("a", 3, 0, 0)
    t.advance(HOUR)
    for _ in range(6):
        await t.scheduler.enqueue("suspended.leaf", args=("b",))
    await t.drain()
    assert len(log) == 9
    assert [sorted(log[n : n + 2]) for n in (0, 2, 4)] == [["a", "b"]] * 3
