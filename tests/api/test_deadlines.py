"""A job has ended when its deadline has passed, whatever it did before; it fails and is not retried."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import (
    UNSET,
    ConflictResolution,
    JobCall,
    JobExecutor,
    JobSpec,
    JobStatus,
    Limit,
    Retry,
    RetryPolicy,
    Scheduler,
    Share,
    Snooze,
    Unique,
    call,
    current_job,
)
from pg_scheduler.errors import ConfigurationError, DeadlineExceededError, JobFailedError
from pg_scheduler.events import (
    JobCompleted,
    JobDeadlineExceeded,
    JobFailed,
    JobRetried,
    JobStarted,
    JobSuspended,
)
from pg_scheduler.testing import TestScheduler
from pg_scheduler.triggers import Every
from pg_scheduler.worker.attempt_runner import DeadlineTimer
from tests.api.conftest import Make
from tests.support.inside import AttemptRunner, store_of, worker_of
from tests.support.worker import PATIENCE, Gate, Recorder

pytestmark = pytest.mark.usefixtures("own_catalogue")

START = datetime(2030, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)

ERROR = "DeadlineExceededError: the job passed its deadline of 2030-01-01 02:00:00 UTC"


async def noop(*_: Any, **__: Any) -> None: ...


async def wait_in_step(kind: str) -> None:
    """Wait longer than any deadline of these tests."""
    steps = current_job().steps
    match kind:
        case "sleep":
            await steps.sleep("sleep", DAY)
        case "signal":
            await steps.wait("signal")
        case "child":
            await steps.child("child", call(noop), delay=DAY, deadline=None)


async def fail() -> None:
    raise OSError("no route")


async def seen(t: TestScheduler, job_id: str = "job") -> tuple[JobStatus, str | None]:
    job = await t.scheduler.get_job(job_id)
    assert job is not None
    return job.status, job.error_message


# -- a deadline ends whatever the job waits for -----------------------------------------------------------


@pytest.mark.parametrize("kind", ["sleep", "signal", "child"])
async def test_suspended_job_fails_at_its_deadline(pool: asyncpg.Pool, kind: str) -> None:
    async with TestScheduler(pool, now=START) as t:
        events = Recorder(t.scheduler)
        await t.scheduler.enqueue(wait_in_step, args=(kind,), job_id="job", deadline=2 * HOUR)
        await t.run_until(2 * HOUR - SECOND)
        assert (await seen(t))[0] is JobStatus.PENDING
        await t.run_until(2 * SECOND)
        assert await seen(t) == (JobStatus.FAILED, ERROR)
        (event,) = events.of(JobDeadlineExceeded, job_id="job")
        assert (event.error, event.deadline) == (ERROR, START + 2 * HOUR)
        assert events.of(JobFailed, job_id="job") == [event], "subscribers to failures get it too"
        await t.run_until(2 * DAY)
        assert await seen(t) == (JobStatus.FAILED, ERROR), "what it waited for wakes it no more"


async def test_job_that_waits_for_its_retry_fails_at_its_deadline(pool: asyncpg.Pool) -> None:
    async with TestScheduler(pool, now=START, retry_policy=RetryPolicy(DAY, 1.0, DAY)) as t:
        events = Recorder(t.scheduler)
        await t.scheduler.enqueue(fail, job_id="job", max_retries=5, deadline=2 * HOUR)
        await t.run_until(3 * HOUR)
        assert await seen(t) == (JobStatus.FAILED, f"{ERROR}; error of the last attempt: OSError: no route")
        assert len(events.of(JobRetried)) == 1


async def test_job_that_is_due_later_fails_at_its_deadline(pool: asyncpg.Pool) -> None:
    """The due time of a job may be moved beyond its deadline, which stays."""
    async with TestScheduler(pool, now=START) as t:
        await t.scheduler.enqueue(noop, job_id="job", delay=HOUR, deadline=HOUR)
        (moved,) = await store_of(t.scheduler).jobs.move(["job"], to=START + DAY)
        assert moved.changed
        await t.run_until(2 * HOUR + SECOND)
        assert await seen(t) == (JobStatus.FAILED, ERROR)


async def test_job_that_waits_for_others_fails_at_its_deadline(pool: asyncpg.Pool) -> None:
    async with TestScheduler(pool, now=START) as t:
        await t.scheduler.enqueue(noop, job_id="parent", delay=DAY)
        await t.scheduler.enqueue(noop, job_id="job", after=["parent"], deadline=2 * HOUR)
        await t.scheduler.enqueue(noop, job_id="grandchild", after=["job"])
        await t.run_until(2 * HOUR + SECOND)
        assert await seen(t) == (JobStatus.FAILED, ERROR)
        assert (await seen(t, "grandchild"))[0] is JobStatus.CANCELLED
        await t.run_until(DAY)
        assert await seen(t) == (JobStatus.FAILED, ERROR), "the end of the other job wakes it no more"


async def test_job_that_waits_for_a_limit_or_its_turn_fails_at_its_deadline(pool: asyncpg.Pool) -> None:
    async with TestScheduler(pool, now=START) as t:
        t.scheduler.register(noop, name="limited", limits=[Limit("day", max_starts=1, per=DAY)])
        await t.scheduler.enqueue("limited", job_id="first")
        await t.scheduler.enqueue("limited", job_id="job", deadline=2 * HOUR)
        await t.run_until(HOUR)
        blocked = await t.scheduler.get_job("job")
        assert blocked is not None
        assert blocked.blocked_on == "limit:day:"
        await t.run_until(HOUR + SECOND)
        assert await seen(t) == (JobStatus.FAILED, ERROR)


async def test_deadline_holds_while_the_task_is_paused(pool: asyncpg.Pool) -> None:
    """A pause that suspends the misfire grace time does not move a deadline, which is an instant."""
    async with TestScheduler(pool, now=START) as t:
        t.scheduler.register(noop, name="paused", share=Share("tenants", key=lambda: "a"))
        await t.scheduler.tasks.pause("paused", suspend_expiry=True)
        await t.scheduler.enqueue("paused", job_id="job", deadline=2 * HOUR, misfire_grace_time=60)
        await t.run_until(2 * HOUR + SECOND)
        assert await seen(t) == (JobStatus.FAILED, ERROR)


# -- attempts -----------------------------------------------------------------------------------------------


def pass_deadline(scheduler: Scheduler) -> None:
    """Do what the timer of the only running attempt does at the deadline."""
    (attempt,) = worker_of(scheduler).node.in_flight.attempts.values()
    AttemptRunner.end_at_deadline(attempt)


async def test_job_does_not_end_early_if_the_clock_of_its_host_is_set_forward(scheduler: Scheduler) -> None:
    """The offset is what the last heartbeat measured. Before the next one, the clock may have been set."""
    scheduler.register(noop, name="task")
    store_of(scheduler).statements.clock_offset_s = -DAY.total_seconds()
    job_id = await scheduler.enqueue("task", deadline=HOUR, timeout=None, keep_result=HOUR)
    result = await scheduler.get_job_result(job_id, timeout=PATIENCE)
    assert result.status is JobStatus.COMPLETED


async def test_deadline_comes_soon_after_a_clock_was_set_forward() -> None:
    ended = asyncio.Event()
    left_s = iter([3600.0, 0.0])
    timer = DeadlineTimer(lambda: next(left_s), ended.set, check_s=0.01)
    timer.start()
    async with asyncio.timeout(PATIENCE):
        await ended.wait()


async def test_deadline_waits_for_a_clock_that_was_set_back() -> None:
    ended = asyncio.Event()
    left_s = iter([0.01, 0.02, 0.02, 0.0])
    timer = DeadlineTimer(lambda: next(left_s), ended.set)
    timer.start()
    async with asyncio.timeout(PATIENCE):
        await ended.wait()
    assert list(left_s) == []


async def test_running_attempt_is_cancelled_at_the_deadline_and_not_retried(
    scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    events, gate = Recorder(scheduler), Gate()
    scheduler.register(gate.job, name="task")
    job_id = await scheduler.enqueue("task", max_retries=5, deadline=HOUR, timeout=None, keep_result=HOUR)
    await gate.wait_begun()
    pass_deadline(scheduler)
    (event,) = await events.until(JobDeadlineExceeded)
    assert gate.cancelled == 1
    job = await scheduler.get_job(job_id)
    assert job is not None
    assert (job.status, job.attempt, job.deadline) == (JobStatus.FAILED, 1, event.deadline)
    (entry,) = job.errors
    assert (entry.outcome, entry.error_type) == ("timeout", "pg_scheduler.DeadlineExceededError")
    result = await scheduler.get_job_result(job_id)
    assert result is not None
    with pytest.raises(JobFailedError, match="DeadlineExceededError: the job passed its deadline of"):
        result.unwrap()


@pytest.mark.parametrize(
    "error", [OSError("closed"), Retry(0.3), Snooze(0.3)], ids=["error", "retry", "snooze"]
)
async def test_what_the_code_raises_while_it_ends_at_the_deadline_does_not_count(
    scheduler: Scheduler, error: Exception
) -> None:
    events, has_begun = Recorder(scheduler), asyncio.Event()

    async def clean_up() -> None:
        try:
            has_begun.set()
            await asyncio.Event().wait()
        finally:
            raise error

    scheduler.register(clean_up, name="task")
    await scheduler.enqueue("task", max_retries=5, deadline=HOUR)
    await has_begun.wait()
    pass_deadline(scheduler)
    (event,) = await events.until(JobFailed)
    assert isinstance(event, JobDeadlineExceeded)
    assert not events.of(JobRetried)


async def test_job_that_wants_to_sleep_at_its_deadline_fails(scheduler: Scheduler) -> None:
    events, has_begun = Recorder(scheduler), asyncio.Event()

    async def sleep_instead() -> None:
        try:
            has_begun.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await current_job().steps.sleep("rest", DAY)

    scheduler.register(sleep_instead, name="task")
    await scheduler.enqueue("task", deadline=HOUR)
    await has_begun.wait()
    pass_deadline(scheduler)
    await events.until(JobDeadlineExceeded)
    assert not events.of(JobSuspended)


async def test_thread_sees_the_deadline(scheduler: Scheduler) -> None:
    """A thread cannot be stopped: it sees its cancellation, and what it returns then does not count."""
    events, is_told = Recorder(scheduler), threading.Event()

    def work_in_thread() -> None:
        while not current_job().is_cancelled:
            time.sleep(0.001)
        is_told.set()

    scheduler.register(work_in_thread, name="threaded")
    await scheduler.enqueue("threaded", max_retries=5, deadline=HOUR)
    await events.until(JobStarted)
    pass_deadline(scheduler)
    await events.until(JobDeadlineExceeded)
    assert is_told.is_set()


async def test_attempt_that_is_claimed_after_the_deadline_does_not_begin(pool: asyncpg.Pool) -> None:
    """A claim may be before the scan, so the worker reads the deadline itself."""
    begun = []

    async def note() -> None:
        begun.append(1)

    async with TestScheduler(pool, now=START) as t:
        events = Recorder(t.scheduler)
        await t.scheduler.enqueue(note, job_id="job", delay=HOUR, deadline=HOUR)
        # Without its entry, no scan finds the job.
        await pool.execute("DELETE FROM scheduler_deadlines")
        await store_of(t.scheduler).jobs.move(["job"], to=START + 3 * HOUR)
        await t.run_until(4 * HOUR)
        assert await seen(t) == (JobStatus.FAILED, ERROR)
        assert begun == []
        assert len(events.of(JobDeadlineExceeded)) == 1


class Waiting(JobExecutor):
    """An executor that runs one job, which never ends by itself."""

    capacity = 1

    async def run(self, call: JobCall) -> Any:
        await asyncio.Event().wait()


async def test_attempt_that_waits_for_its_executor_ends_at_the_deadline(make: Make) -> None:
    def work() -> None: ...

    scheduler = make(executors={"waiting": Waiting()})
    events = Recorder(scheduler)
    await scheduler.start()
    scheduler.register(work, name="task", executor="waiting", timeout=None)
    await scheduler.enqueue("task", job_id="first")
    await events.until(JobStarted)
    await scheduler.enqueue("task", job_id="second", deadline=0.2)
    await events.until(JobDeadlineExceeded, job_id="second")
    assert not events.of(JobStarted, job_id="second")


async def test_job_whose_worker_dies_fails_at_its_deadline(pool: asyncpg.Pool) -> None:
    """The rescuer makes the job pending, and then its deadline ends it."""
    async with TestScheduler(pool, now=START) as t:

        async def die() -> None:
            t.crash()

        await t.scheduler.enqueue(die, job_id="job", deadline=30)
        await t.run_until(10 * MINUTE)
        job = await t.scheduler.get_job("job")
        assert job is not None
        assert (job.status, job.crash_count) == (JobStatus.FAILED, 1)
        assert job.error_message is not None
        assert job.error_message.startswith("DeadlineExceededError")


async def test_job_that_ends_in_time_completes(pool: asyncpg.Pool) -> None:
    async with TestScheduler(pool, now=START) as t:
        events = Recorder(t.scheduler)
        await t.scheduler.enqueue(noop, job_id="job", deadline=HOUR)
        await t.run_until(HOUR + 5 * MINUTE)
        assert await seen(t) == (JobStatus.COMPLETED, None)
        assert len(events.of(JobCompleted)) == 1
        assert not events.of(JobFailed)
        assert await pool.fetchval("SELECT count(*) FROM scheduler_deadlines") == 0, "no entry is left"


async def test_run_job_has_the_error_as_its_cause(scheduler: Scheduler) -> None:
    with pytest.raises(JobFailedError) as raised:
        await scheduler.run_job(asyncio.sleep, args=(PATIENCE,), deadline=0.1)
    assert isinstance(raised.value.__cause__, DeadlineExceededError)
    assert isinstance(raised.value.__cause__, TimeoutError)


# -- children, alerts, dependents --------------------------------------------------------------------------


async def children_of(t: TestScheduler) -> dict[str, datetime | None]:
    page = await t.scheduler.list_jobs()
    return {job.job_id: job.deadline for job in page}


async def test_children_inherit_the_instant(pool: asyncpg.Pool) -> None:
    """That of the job replaces that of the task of a child."""
    async with TestScheduler(pool, now=START) as t:
        t.scheduler.register(wait_in_step, name="child", deadline=DAY)

        async def parent() -> None:
            steps = current_job().steps
            await steps.gather(
                "all",
                [
                    call(wait_in_step, "sleep"),
                    call(wait_in_step, "signal"),
                ],
            )

        await t.scheduler.enqueue(parent, job_id="job", deadline=2 * HOUR)
        await t.drain()
        assert await children_of(t) == {
            "job": START + 2 * HOUR,
            "job:all:0": START + 2 * HOUR,
            "job:all:1": START + 2 * HOUR,
        }
        await t.run_until(2 * HOUR + SECOND)
        for job_id in await children_of(t):
            assert await seen(t, job_id) == (JobStatus.FAILED, ERROR)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, 2 * HOUR),
        ({"deadline": HOUR}, HOUR),
        ({"deadline": START + 90 * MINUTE}, 90 * MINUTE),
        ({"deadline": None}, None),
    ],
)
async def test_step_gives_its_child_a_deadline(
    pool: asyncpg.Pool, given: dict[str, Any], expected: timedelta | None
) -> None:
    async with TestScheduler(pool, now=START) as t:

        async def parent() -> None:
            await current_job().steps.child("child", call(wait_in_step, "signal"), **given)

        await t.scheduler.enqueue(parent, job_id="job", deadline=2 * HOUR)
        await t.drain()
        deadline = None if expected is None else START + expected
        assert (await children_of(t))["job:child"] == deadline


async def test_parent_gets_the_error_of_a_child_that_passed_its_deadline(pool: asyncpg.Pool) -> None:
    errors: list[JobFailedError] = []

    async def parent() -> str:
        try:
            await current_job().steps.child("child", call(wait_in_step, "signal"), deadline=HOUR)
        except JobFailedError as error:
            errors.append(error)
        return "went without it"

    async with TestScheduler(pool, now=START) as t:
        await t.scheduler.enqueue(parent, job_id="job", keep_result=DAY)
        await t.run_until(HOUR + MINUTE)
        result = await t.scheduler.get_job_result("job", wait=False)
        assert result is not None
        assert result.value == "went without it"
        (error,) = errors
        assert "DeadlineExceededError: the job passed its deadline of 2030-01-01 01:00:00 UTC" in str(error)


@pytest.mark.parametrize("kind", ["signal", "running"])
async def test_alert_of_the_failure_is_enqueued_once(pool: asyncpg.Pool, kind: str) -> None:
    alerts: list[dict[str, Any]] = []

    async def page(**kwargs: Any) -> None:
        alerts.append(kwargs)

    async with TestScheduler(pool, now=START) as t:
        t.scheduler.register(page, name="page")
        t.scheduler.register(wait_in_step, name="task", on_failure="page")
        await t.scheduler.enqueue("task", args=("signal",), job_id="job", deadline=2 * HOUR)
        if kind == "running":
            await pool.execute("DELETE FROM scheduler_deadlines")
            await store_of(t.scheduler).jobs.move(["job"], to=START + 3 * HOUR)
        await t.run_until(DAY)
        (alert,) = alerts
        assert (alert["job_id"], alert["job_name"], alert["error"]) == ("job", "task", ERROR)


async def test_failure_counts_once_among_the_errors_of_its_task(pool: asyncpg.Pool) -> None:
    """Both ways to the failure count under one text, although their errors name instants."""
    async with TestScheduler(pool, now=START) as t:
        for number, job_id in enumerate(("swept", "claimed")):
            await t.scheduler.enqueue(
                wait_in_step, args=("signal",), job_id=job_id, delay=number, deadline=HOUR + number * SECOND
            )
        await t.drain()
        await pool.execute("DELETE FROM scheduler_deadlines WHERE job_id = 'claimed'")
        await store_of(t.scheduler).jobs.move(["claimed"], to=START + 3 * HOUR)
        await t.run_until(4 * HOUR)
        rows = await pool.fetch("SELECT text, sum(jobs) AS jobs FROM scheduler_failures GROUP BY text")
        text = "DeadlineExceededError: the job passed its deadline of #-#-# # UTC"
        assert [tuple(row) for row in rows] == [(text, 2)]


# -- where a deadline comes from -----------------------------------------------------------------------------


async def deadline(scheduler: Scheduler, job_id: str) -> datetime | None:
    job = await scheduler.get_job(job_id)
    assert job is not None
    return job.deadline


async def test_each_way_in_gives_the_deadline(pool: asyncpg.Pool) -> None:
    async with TestScheduler(pool, now=START) as t:
        due, at = START + HOUR, START + DAY
        scheduler = t.scheduler
        scheduler.register(noop, name="task")
        ids: dict[str, Any] = {
            "schedule": await scheduler.schedule(noop, execution_time=due, deadline=HOUR),
            "schedule, instant": await scheduler.schedule(noop, execution_time=due, deadline=at),
            "enqueue": await scheduler.enqueue(noop, deadline=3600),
            "enqueue, delay": await scheduler.enqueue(noop, delay=HOUR, deadline=3600.5),
            "enqueue, instant": await scheduler.enqueue(noop, delay=HOUR, deadline=at),
            "schedule_job": await scheduler.schedule_job("task", due, {}, deadline=HOUR),
            "none": await scheduler.enqueue(noop, deadline=None),
            "replaced": await scheduler.enqueue(
                noop, job_id="x", delay=HOUR, deadline=HOUR, conflict_resolution=ConflictResolution.REPLACE
            ),
        }
        (ids["bulk"], ids["bulk, due"]) = await scheduler.schedule_bulk(
            [JobSpec(noop, deadline=HOUR), JobSpec(noop, due, deadline=at)]
        )
        async with pool.acquire() as connection, connection.transaction():
            ids["transaction"] = await scheduler.enqueue(noop, connection=connection, deadline=HOUR)
        deadlines = {way: await deadline(scheduler, job_id) for way, job_id in ids.items()}
        assert deadlines == {
            "schedule": due + HOUR,
            "schedule, instant": at,
            "enqueue": START + HOUR,
            "enqueue, delay": due + HOUR + timedelta(seconds=0.5),
            "enqueue, instant": at,
            "schedule_job": due + HOUR,
            "none": None,
            "replaced": due + HOUR,
            "bulk": START + HOUR,
            "bulk, due": at,
            "transaction": START + HOUR,
        }
        noted = {row["job_id"]: row["at"] for row in await pool.fetch("SELECT * FROM scheduler_deadlines")}
        assert noted == {ids[way]: instant for way, instant in deadlines.items() if instant}


async def test_transaction_that_rolls_back_leaves_no_entry(pool: asyncpg.Pool, scheduler: Scheduler) -> None:
    async with pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await scheduler.enqueue(noop, connection=connection, delay=HOUR, deadline=HOUR)
        await transaction.rollback()
    assert await pool.fetchval("SELECT count(*) FROM scheduler_deadlines") == 0


async def test_call_replaces_the_deadline_of_the_task(pool: asyncpg.Pool) -> None:
    async with TestScheduler(pool, now=START) as t:
        t.scheduler.register(noop, name="task", deadline=DAY)
        ids = [await t.scheduler.enqueue("task", deadline=limit) for limit in (UNSET, HOUR, None)]
        assert [await deadline(t.scheduler, job_id) for job_id in ids] == [START + DAY, START + HOUR, None]
        (info,) = [info for info in await t.scheduler.tasks.list() if info.name == "task"]
        assert info.deadline == DAY


async def test_jobs_of_a_schedule_have_its_deadline(pool: asyncpg.Pool) -> None:
    async with TestScheduler(pool, now=START) as t:
        t.scheduler.register(wait_in_step, name="task", deadline=DAY)
        schedule = await t.scheduler.schedules.add(
            "task", Every(hours=1), schedule_id="s", args=("signal",), deadline=HOUR, start=START + HOUR
        )
        assert schedule.deadline == HOUR
        await t.run_until(HOUR + SECOND)
        (job,) = await t.scheduler.list_jobs()
        assert job.deadline == START + 2 * HOUR
        schedule = await t.scheduler.schedules.update("s", deadline=None)
        assert schedule.deadline is None


@pytest.mark.parametrize(
    "late", [timedelta(0), timedelta(seconds=600), timedelta(milliseconds=1), timedelta(days=40.5)]
)
async def test_late_fire_time_has_exactly_the_whole_time(pool: asyncpg.Pool, late: timedelta) -> None:
    """Suppose no node ran for a day: the job of the missed fire time has not failed when it is enqueued."""
    async with TestScheduler(pool, now=START) as t:
        t.scheduler.register(wait_in_step, name="task")
        await t.scheduler.schedules.add(
            "task", Every(days=50), schedule_id="s", args=("signal",), deadline=MINUTE, start=START + HOUR
        )
        t.advance(HOUR + late)
        await t.drain()
        (job,) = await t.scheduler.list_jobs()
        assert job.status is JobStatus.PENDING
        assert job.deadline == START + HOUR + late + MINUTE


@pytest.mark.parametrize(
    ("value", "error", "match"),
    [
        (0, ConfigurationError, "more than 0"),
        (-HOUR, ConfigurationError, "more than 0"),
        (float("nan"), ConfigurationError, "more than 0"),
        (1e12, ConfigurationError, "at most"),
        ("tomorrow", TypeError, "deadline must be"),
        (True, TypeError, "deadline must be"),
        (datetime(2030, 1, 1), ValueError, "has no time zone"),  # noqa: DTZ001 - the subject
        (START, ValueError, "is not after the due time"),
    ],
)
async def test_deadline_that_cannot_be_is_refused(
    make: Make, value: Any, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        await make().schedule(noop, execution_time=START, deadline=value)


def debounced(scheduler: Scheduler, deadline: datetime) -> Awaitable[object]:
    return scheduler.enqueue(noop, unique=Unique(debounce=HOUR), deadline=deadline)


def in_bulk(scheduler: Scheduler, deadline: datetime, *specs: JobSpec) -> Awaitable[object]:
    return scheduler.schedule_bulk([JobSpec(noop), *specs, JobSpec(noop, deadline=deadline)])


WAYS: dict[str, Callable[[Scheduler, datetime], Awaitable[object]]] = {
    "schedule": lambda it, at: it.schedule(noop, execution_time=START + HOUR, deadline=at),
    "schedule_job": lambda it, at: it.schedule_job("task", START + HOUR, {}, deadline=at),
    "enqueue": lambda it, at: it.enqueue(noop, delay=HOUR, deadline=at),
    "enqueue, name": lambda it, at: it.enqueue("task", delay=HOUR, deadline=at),
    "enqueue, id": lambda it, at: it.enqueue(noop, job_id="x", delay=HOUR, deadline=at),
    "enqueue, per": lambda it, at: it.enqueue(noop, delay=HOUR, unique=Unique(per=DAY), deadline=at),
    "enqueue, replace": lambda it, at: it.enqueue(
        noop, job_id="x", delay=HOUR, conflict_resolution=ConflictResolution.REPLACE, deadline=at
    ),
    "enqueue, debounced": debounced,
    "run_job": lambda it, at: it.run_job(noop, delay=HOUR, deadline=at),
    "bulk, due": lambda it, at: it.schedule_bulk([JobSpec(noop), JobSpec(noop, START + HOUR, deadline=at)]),
}
"""The calls that give a job a due time, in an hour, and a deadline."""

WAYS_NOW: dict[str, Callable[[Scheduler, datetime], Awaitable[object]]] = {
    "enqueue": lambda it, at: it.enqueue(noop, deadline=at),
    "run_job": lambda it, at: it.run_job(noop, deadline=at),
    "bulk": in_bulk,
}
"""The calls whose jobs are due now."""


@pytest.mark.parametrize("late_by", [timedelta(0), SECOND])
@pytest.mark.parametrize("way", [*WAYS, *(f"{way}, now" for way in WAYS_NOW)])
async def test_call_whose_job_would_be_due_after_its_deadline_is_refused(
    pool: asyncpg.Pool, way: str, late_by: timedelta
) -> None:
    """The job could never start, and would fail with an error that names the deadline as its cause."""
    async with TestScheduler(pool, now=START) as t:
        t.scheduler.register(noop, name="task")
        schedule, due = (WAYS[way], START + HOUR) if way in WAYS else (WAYS_NOW[way[:-5]], START)
        match = "is not after the due time 2030-01-01T.*pass a later deadline="
        with pytest.raises(ValueError, match=match) as raised:
            await schedule(t.scheduler, due - late_by)
        assert due.isoformat() in str(raised.value)
        assert not await t.scheduler.list_jobs()
        assert await pool.fetchval("SELECT count(*) FROM scheduler_deadlines") == 0
        # A moment later is late enough.
        if "run_job" not in way:
            await schedule(t.scheduler, due + SECOND)


async def test_call_in_a_transaction_whose_job_would_be_due_after_its_deadline_is_refused(
    pool: asyncpg.Pool,
) -> None:
    async with TestScheduler(pool, now=START) as t, pool.acquire() as connection, connection.transaction():
        with pytest.raises(ValueError, match="is not after the due time"):
            await t.scheduler.enqueue(noop, delay=HOUR, deadline=START + HOUR, connection=connection)
        await t.scheduler.enqueue(noop, connection=connection)


async def test_child_is_refused_only_if_its_own_deadline_is_before_its_due_time(pool: asyncpg.Pool) -> None:
    """The deadline of the job ends both, so a child that is due later is no mistake of the step."""
    async with TestScheduler(pool, now=START) as t:

        async def parent(**options: Any) -> None:
            await current_job().steps.child("child", call(noop), delay=3 * HOUR, **options)

        t.scheduler.register(parent, name="parent")
        await t.scheduler.enqueue("parent", job_id="inherited", deadline=2 * HOUR)
        await t.scheduler.enqueue("parent", job_id="own", kwargs={"deadline": None}, deadline=2 * HOUR)
        await t.drain()
        deadlines = await children_of(t)
        assert deadlines["inherited:child"] == START + 2 * HOUR
        assert deadlines["own:child"] is None

        async def careless() -> None:
            await current_job().steps.child("child", call(noop), delay=3 * HOUR, deadline=START + HOUR)

        await t.scheduler.enqueue(careless, job_id="careless", max_retries=0)
        await t.drain()
        status, error = await seen(t, "careless")
        assert status is JobStatus.FAILED
        assert error is not None
        assert "is not after the due time" in error


async def test_instant_for_all_jobs_of_a_task_is_refused(make: Make) -> None:
    scheduler = make()
    with pytest.raises(TypeError, match="pass the instant where a job is scheduled"):
        scheduler.register(noop, deadline=START)  # type: ignore[call-overload] # the subject
    with pytest.raises(TypeError, match="pass the instant where a job is scheduled"):
        await scheduler.schedules.add(noop, Every(hours=1), deadline=START)  # type: ignore[arg-type] # the subject


@pytest.mark.parametrize(
    ("called_at", "due", "expected"),
    [
        (45, 90, 120),  # the call asks for 105, and the first call permits 90
        (20, 80, 110),
        (30, 90, 120),
        (180, 90, 210),  # no worker ran at 90: the grace time begins anew with the call, and so does this
    ],
)
async def test_deadline_of_a_postponed_job_counts_from_the_due_time_that_it_gets(
    pool: asyncpg.Pool, called_at: int, due: int, expected: int
) -> None:
    async with TestScheduler(pool, now=START) as t:
        unique = Unique(debounce=HOUR, max_wait=1.5 * HOUR)
        job_id = await t.scheduler.enqueue(noop, unique=unique, deadline=30 * MINUTE)
        assert await deadline(t.scheduler, job_id) == START + 90 * MINUTE
        t.advance(called_at * MINUTE)
        assert await t.scheduler.enqueue(noop, unique=unique, deadline=30 * MINUTE) == job_id
        job = await t.scheduler.get_job(job_id)
        assert job is not None
        assert (job.execution_time, job.deadline) == (START + due * MINUTE, START + expected * MINUTE)
        noted = await pool.fetch("SELECT at FROM scheduler_deadlines WHERE job_id = $1 ORDER BY at", job_id)
        assert [row["at"] for row in noted] == [START + 90 * MINUTE, START + expected * MINUTE]
        # A call that gives an instant has that, whatever the due time is.
        at = START + DAY
        await t.scheduler.enqueue(noop, unique=unique, deadline=at)
        assert await deadline(t.scheduler, job_id) == at


async def test_deadline_of_a_definition_that_waits_counts_from_the_due_time_that_it_gets(
    scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    gate, events = Gate(), Recorder(scheduler)
    scheduler.register(gate.job, name="task", unique=Unique(debounce=0.01, max_wait=0.01), deadline=HOUR)
    job_id = await scheduler.enqueue("task")
    await gate.wait_begun()
    unique = Unique(debounce=HOUR, max_wait=2 * HOUR)
    for _ in range(2):
        await scheduler.enqueue("task", unique=unique)
    # The second call continues the series of the first one, which began two hours ago now.
    await pool.execute(
        """UPDATE scheduled_jobs SET on_end = jsonb_set(on_end, '{replacement,options,debounce,since}',
            to_jsonb(extract(epoch FROM now()) - 5400))"""
    )
    await scheduler.enqueue("task", unique=unique)
    gate.open.set()
    await events.until(JobCompleted, job_id=job_id)
    job = await scheduler.get_job(job_id)
    assert job is not None
    assert job.deadline is not None
    assert job.deadline - job.execution_time == HOUR
    assert job.execution_time - job.created_at < 0.6 * HOUR
    assert await pool.fetchval("SELECT count(*) FROM scheduler_deadlines WHERE at = $1", job.deadline) == 1


# -- retries, new definitions --------------------------------------------------------------------------------


@pytest.mark.parametrize("by_status", [False, True])
async def test_retry_drops_a_deadline_that_has_passed(pool: asyncpg.Pool, *, by_status: bool) -> None:
    async with TestScheduler(pool, now=START) as t:
        await t.scheduler.enqueue(wait_in_step, args=("sleep",), job_id="job", deadline=2 * HOUR)
        await t.run_until(3 * HOUR)
        assert await seen(t) == (JobStatus.FAILED, ERROR)
        if by_status:
            assert await t.scheduler.update_job_status("job", JobStatus.PENDING)
        else:
            assert await t.scheduler.retry_job("job")
        assert await deadline(t.scheduler, "job") is None
        await t.run_until(DAY)
        assert (await seen(t))[0] is JobStatus.COMPLETED, (
            "the sleep had begun before, and ends as it would have"
        )


async def test_retry_keeps_a_deadline_of_the_future(pool: asyncpg.Pool) -> None:
    async with TestScheduler(pool, now=START) as t:
        await t.scheduler.enqueue(fail, job_id="job", deadline=2 * HOUR)
        await t.run_until(MINUTE)
        assert (await seen(t))[1] == "OSError: no route"
        t.scheduler.register(fail, max_retries=0)
        await pool.execute("UPDATE scheduled_jobs SET max_retries = 5")
        assert await t.scheduler.retry_job("job")
        assert await deadline(t.scheduler, "job") == START + 2 * HOUR


async def test_new_definition_has_its_own_deadline(pool: asyncpg.Pool) -> None:
    """The entry of the former definition means nothing any more."""
    async with TestScheduler(pool, now=START) as t:
        for limit in (HOUR, 3 * HOUR):
            await t.scheduler.enqueue(
                wait_in_step,
                args=("signal",),
                job_id="job",
                deadline=limit,
                conflict_resolution=ConflictResolution.REPLACE,
            )
            await t.drain()
        await t.run_until(2 * HOUR)
        assert (await seen(t))[0] is JobStatus.PENDING
        assert await pool.fetchval("SELECT count(*) FROM scheduler_deadlines") == 1, (
            "that of the former is gone"
        )
        await t.run_until(HOUR + SECOND)
        assert (await seen(t))[0] is JobStatus.FAILED


async def test_definition_that_waited_for_a_running_job_has_its_deadline(
    scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    gate, events = Gate(), Recorder(scheduler)
    scheduler.register(gate.job, name="task")
    await scheduler.enqueue("task", job_id="job", deadline=DAY)
    await gate.wait_begun()
    replace = ConflictResolution.REPLACE
    await scheduler.enqueue("task", job_id="job", delay=DAY, deadline=HOUR, conflict_resolution=replace)
    gate.open.set()
    await events.until(JobCompleted, job_id="job")
    job = await scheduler.get_job("job")
    assert job is not None
    assert job.deadline is not None
    assert job.status is JobStatus.PENDING
    assert job.deadline - job.execution_time == HOUR
    assert await pool.fetchval("SELECT count(*) FROM scheduler_deadlines WHERE at = $1", job.deadline) == 1
