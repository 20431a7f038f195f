"""Examples that a type checker must accept, and mistakes that it must find.

Each mistake has a ``type: ignore`` with its code. mypy --strict reports unused ones, so a mistake that mypy
no longer finds is an error too. The code never runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import assert_type
from zoneinfo import ZoneInfo

import asyncpg
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

import pg_scheduler
from pg_scheduler import (
    AfterOutcome,
    Call,
    ConflictResolution,
    Connection,
    ConnectionAdapter,
    CurrentJob,
    Job,
    JobCounts,
    JobFunction,
    JobPriority,
    JobResult,
    JobSpec,
    JobStatus,
    Limit,
    Page,
    PeriodicJobConfig,
    PollingConfig,
    RetryPolicy,
    Scheduler,
    VacuumConfig,
    VacuumPolicy,
    VacuumTrigger,
    Worker,
    call,
    current_job,
    job,
    job_state,
    periodic,
)
from pg_scheduler.events import Event, EventStream, JobCompleted, JobFailed
from pg_scheduler.sync import StepConnection, SyncScheduler, current_scheduler, current_steps
from pg_scheduler.testing import AsyncTestKit, DrainResult, TestKit

SOON = datetime(2030, 1, 1, tzinfo=UTC)

# -- decorators keep the type of a function ------------------------------------------------------------


@job(
    name="mail.send",
    aliases=["send_mail"],
    timeout=timedelta(seconds=30),
    misfire_grace_time=None,
    max_retries=5,
    retry=RetryPolicy(base=timedelta(seconds=1)),
    priority=JobPriority.HIGH,
    typed=True,
)
async def send(to: str, *, copies: int = 1) -> bool:
    assert_type(current_job(), CurrentJob)
    assert_type(job_state(RetryPolicy), RetryPolicy)
    assert_type(current_job().deadline, datetime | None)
    assert_type(current_job().scheduler, Scheduler)
    await current_job().scheduler.enqueue(report)
    return bool(to) and copies > 0


@job()
def resize(path: str) -> None:
    assert_type(current_scheduler().enqueue(send, args=(path,)), str)
    assert_type(current_scheduler().count_jobs(), JobCounts)


def fetch_size(path: str, *, scale: int = 1) -> float:
    return len(path) / scale


def store_size(connection: StepConnection, size: float) -> int:
    assert_type(connection.execute("INSERT INTO sizes VALUES ($1)", size), str)
    return current_scheduler().enqueue(send, args=("a",), connection=connection) == "a"


@job()
def measure(path: str) -> None:
    steps = current_steps()
    assert_type(steps.run("size", fetch_size, path, scale=2), float)
    steps.run("size", fetch_size, 3)  # type: ignore[call-overload]
    steps.run("size", fetch_size, path, factor=2)  # type: ignore[call-arg]
    assert_type(steps.run("size", fetch_size, path, retry=RetryPolicy(), max_retries=2), float)
    assert_type(steps.transaction("store", store_size, 1.5), int)
    assert_type(steps.wait("approval", kind=datetime), datetime)
    assert_type(steps.receive("orders", kind=datetime), datetime)
    with steps.cursor("lines", start=0) as cursor:
        cursor.set(cursor.value + 1)


@periodic(every=timedelta(minutes=5), priority=JobPriority.LOW)
async def sweep() -> None: ...


@periodic(cron="0 3 * * *", timezone=ZoneInfo("Europe/Berlin"), use_advisory_lock=True, enabled=False)
@periodic(cron="0 4 * * *", timezone="Asia/Kathmandu", dedup_key="report", job_name="report")
async def report(day: int = 0) -> int:
    return day


async def call_them() -> None:
    assert_type(await send("ada", copies=2), bool)
    assert_type(await sweep(), None)
    assert_type(await report(1), int)
    await send(1)  # type: ignore[arg-type]
    await sweep(1)  # type: ignore[call-arg]


def plain() -> None: ...


def account_of(account: int, amount: int) -> int:
    return account


async def add(
    scheduler: Scheduler, func: JobFunction, connection: Connection | None, outcome: AfterOutcome
) -> list[str | None]:
    await scheduler.enqueue(func, after=["id"], after_outcome=outcome, connection=connection)
    return await scheduler.schedule_bulk([JobSpec(func), JobSpec(send, args=("ada",))])


job()(plain)
periodic(every=timedelta(hours=1))(plain)
periodic(every=60)  # type: ignore[arg-type]
job(aliases=5)  # type: ignore[arg-type]
job(max_retries="5")  # type: ignore[arg-type]
job(priority=5)  # type: ignore[arg-type]


@job(
    limits=[
        Limit(max_running=1, key=lambda account, **_: account),
        Limit(max_running=2, key=account_of),
        Limit(max_running=2, key=5),  # type: ignore[arg-type]
    ]
)
async def charge(account: int, amount: int) -> None: ...


# -- the Scheduler -------------------------------------------------------------------------------------


async def create(pool: asyncpg.Pool[asyncpg.Record]) -> None:
    config = VacuumConfig(
        completed=VacuumPolicy.keep_last(100),
        failed=VacuumPolicy.after_days(0.5),
        cancelled=VacuumPolicy(VacuumTrigger.TIME_BASED, days=1),
        expired=VacuumPolicy.never(),
        interval_minutes=5,
        track_metrics=True,
    )
    scheduler = Scheduler(
        pool,
        10,
        None,
        config,
        True,
        5,
        PollingConfig(min_interval=0.1, jitter=False),
        schema="jobs",
        direct_dsn=None,
        shutdown_timeout=10,
        retry_policy=RetryPolicy(base=timedelta(seconds=1), jitter=0),
    )
    assert_type(scheduler.worker_id, str)
    assert_type(scheduler.is_running, bool)
    assert_type(scheduler.is_shutting_down, bool)
    async with scheduler as started:
        assert_type(started, Scheduler)
    Scheduler(pool, max_jobs=5)  # type: ignore[call-arg]
    Scheduler("postgresql://")  # type: ignore[arg-type]


class CustomScheduler(Scheduler):
    LEASE_DURATION = 30
    HEARTBEAT_THRESHOLD = 60.5
    WORKER_ID_LENGTH = 12


async def enqueue(scheduler: Scheduler, pool: asyncpg.Pool[asyncpg.Record]) -> None:
    job_id = await scheduler.schedule(
        send,
        execution_time=SOON,
        args=("ada",),
        kwargs={"copies": 2},
        priority=JobPriority.HIGH,
        max_retries=3,
        job_id="mail-1",
        conflict_resolution=ConflictResolution.REPLACE,
        misfire_grace_time=None,
        timeout=timedelta(minutes=1),
    )
    assert_type(job_id, str)
    specs = [JobSpec(send, SOON, ("ada",)), JobSpec(report, SOON, misfire_grace_time=None, timeout=5)]
    assert_type(await scheduler.schedule_bulk(specs, batch_size=10), list[str | None])
    data = {"args": [1], "kwargs": {"a": None}}
    assert_type(await scheduler.schedule_job("app.work", SOON, data, JobPriority.LOW, 0, None), str)
    async with pool.acquire() as connection, connection.transaction():
        await scheduler.schedule(send, execution_time=SOON, args=["ada"], connection=connection)
        await scheduler.schedule_bulk(specs, connection=connection)
        await scheduler.enqueue(send, args=["ada"], connection=connection)
        await scheduler.cancel_job(job_id, connection=connection)
        await scheduler.schedule_job("app.work", SOON, data, connection=connection)
    assert_type(await scheduler.enqueue(send, args=["ada"], delay=timedelta(minutes=1), max_retries=2), str)
    assert_type(await scheduler.enqueue("mail.send", kwargs={"to": "ada"}, delay=2.5), str)
    await scheduler.enqueue(send, delay="5")  # type: ignore[arg-type]
    await scheduler.enqueue(send, priority=None)  # type: ignore[arg-type]
    await scheduler.schedule(send, SOON)  # type: ignore[call-arg]
    await scheduler.schedule(plain, execution_time=SOON)
    await scheduler.schedule(send, execution_time="now")  # type: ignore[arg-type]
    await scheduler.schedule(send, execution_time=SOON, priority=5)  # type: ignore[arg-type]
    JobSpec()  # type: ignore[call-arg]


# -- connections of other libraries --------------------------------------------------------------------


async def run_statement(statement: str, texts: Sequence[str]) -> list[str]:
    return [statement, *texts]


async def enqueue_with_orders(
    scheduler: Scheduler, blocking: SyncScheduler, session: AsyncSession, blocking_session: Session
) -> None:
    await scheduler.enqueue(report, connection=session)
    await scheduler.enqueue(report, connection=await session.connection())
    await scheduler.enqueue(report, connection=ConnectionAdapter(run_statement))
    assert_type(await scheduler.get_job("1", connection=session), Job | None)
    await scheduler.enqueue(report, connection=blocking_session)  # type: ignore[arg-type]
    assert_type(blocking.enqueue(report, connection=blocking_session), str)
    blocking.enqueue(report, connection="default")
    blocking.enqueue(report, connection=session)  # type: ignore[arg-type]


# -- the test kits have the types of functions -----------------------------------------------------------


async def look_at_jobs(scheduler: Scheduler, session: AsyncSession, blocking_session: Session) -> None:
    kit = AsyncTestKit(session, scheduler=scheduler)
    assert_type(await kit.assert_scheduled(report, kwargs={"day": 1}, after=timedelta(days=1)), Job)
    assert_type(await kit.drain(), DrainResult)
    assert_type(await kit.run(report, 1), int)
    await kit.run(report, "1")  # type: ignore[call-overload]
    async with kit.scheduling() as jobs:
        await kit.scheduler.enqueue(report)
    assert_type(jobs, list[Job])
    AsyncTestKit(blocking_session)  # type: ignore[arg-type]

    plain = TestKit(blocking_session, scheduler=SyncScheduler())
    assert_type(plain.scheduler.enqueue(report), str)
    assert_type(plain.run(report, 1), int)
    with plain.scheduling() as jobs:
        plain.advance(days=1)
    assert_type(plain.drain(raises=False).completed, int)
    TestKit("default")
    TestKit(session)  # type: ignore[arg-type]


# -- the arguments of jobs -----------------------------------------------------------------------------


async def call_as_values(scheduler: Scheduler) -> None:
    assert_type(call(send, "ada", copies=2), Call[bool])
    assert_type(call(report), Call[int])
    welcome = call(send, "ada")
    await scheduler.schedule(welcome, execution_time=SOON, max_retries=1)
    await scheduler.enqueue(welcome, delay=timedelta(minutes=1))
    await scheduler.schedule_bulk([JobSpec(call(report, day), SOON) for day in range(3)])
    call(send)  # type: ignore[call-overload]
    call(send, 1)  # type: ignore[call-overload]
    call(send, "ada", copies="2")  # type: ignore[arg-type]
    call(send, "ada", bcc=True)  # type: ignore[call-arg]
    assert_type(call(plain), Call[None])
    call(plain, 1)  # type: ignore[call-overload]
    await scheduler.enqueue(call(report, "monday"))  # type: ignore[call-overload]
    JobSpec(call(sweep, 1), SOON)  # type: ignore[call-overload]


async def register(scheduler: Scheduler) -> None:
    assert_type(await scheduler.register(send)("ada"), bool)

    @scheduler.register
    async def bare(number: int) -> int:
        return number

    @scheduler.register(name="app.named", aliases=("old",))
    async def named(number: int) -> int:
        return number

    assert_type(await bare(1), int)
    assert_type(await named(1), int)
    await named("1")  # type: ignore[arg-type]
    scheduler.register(plain)
    scheduler.register(send, timeout="5")  # type: ignore[call-overload]


async def read_jobs(scheduler: Scheduler) -> None:
    assert_type(await scheduler.get_job_result("id", timeout=5), JobResult)
    assert_type(await scheduler.get_job_result("id", wait=False), JobResult | None)
    await scheduler.get_job_result("id", connection=await asyncpg.connect())  # type: ignore[call-overload]
    found = await scheduler.get_job("id")
    assert_type(found, Job | None)
    if found:
        assert_type(found.status, JobStatus)
        assert_type(found.timeout, timedelta | None)
        found.status = JobStatus.FAILED  # type: ignore[misc]
    assert_type(await scheduler.list_jobs(status=["failed", JobStatus.EXPIRED], limit=5), Page[Job])
    page = await scheduler.list_jobs(status="failed", due_from=SOON, after="id")
    assert_type(page, Page[Job])
    assert_type(page.next, str | None)
    assert_type(page[0], Job)
    assert_type(await scheduler.count_jobs(), JobCounts)
    assert_type(await scheduler.workers(), list[Worker])
    assert_type(await scheduler.cancel_job("id"), bool)
    await scheduler.update_job_status("id", "pending")
    await scheduler.update_job_status("id", JobStatus.PENDING)
    assert_type(await scheduler.run_vacuum(), dict[str, int])
    await scheduler.update_job_status("id", 5)  # type: ignore[arg-type]


async def control_schedules(scheduler: Scheduler) -> None:
    assert_type(scheduler.get_periodic_jobs(), dict[str, PeriodicJobConfig])
    assert_type(scheduler.enable_periodic_job("key"), bool)
    assert_type(scheduler.disable_periodic_job("key"), bool)
    assert_type(await scheduler.trigger_periodic_job("key"), str | None)
    status = scheduler.get_periodic_job_status("key")
    if status is not None:
        assert_type(status["enabled"] is True, bool)


def call_without_asyncio() -> None:
    with SyncScheduler("postgresql://", pool_size=2, max_concurrent_jobs=5, lease=None) as scheduler:
        assert_type(scheduler, SyncScheduler)
        assert_type(scheduler.schedule(send, execution_time=SOON, args=["ada"], timeout=5), str)
        assert_type(scheduler.schedule_bulk([JobSpec(send, SOON)]), list[str | None])
        assert_type(scheduler.get_job("id"), Job | None)
        assert_type(scheduler.get_job_result("id"), JobResult)
        assert_type(scheduler.is_running, bool)
        assert_type(scheduler.start(), None)
        assert_type(scheduler.get_periodic_jobs(), dict[str, PeriodicJobConfig])
        assert_type(next(scheduler.events(JobFailed)), Event)
        scheduler.events().close()

        @scheduler.register(name="app.counted")
        async def counted(number: int) -> int:
            return number

        scheduler.schedule(counted, execution_time="now")  # type: ignore[arg-type]
        scheduler.schedule(counted)  # type: ignore[call-arg]
        scheduler.undefined()  # type: ignore[attr-defined]
    SyncScheduler(5)  # type: ignore[arg-type]
    SyncScheduler("postgresql://", max_jobs=5)  # type: ignore[call-arg]
    SyncScheduler("postgresql://", max_concurrent_jobs="5")  # type: ignore[arg-type]


def subscribe(scheduler: Scheduler) -> None:
    def callback(event: Event) -> None: ...

    stop = scheduler.subscribe(callback, JobCompleted, JobFailed)
    assert_type(stop(), None)
    scheduler.subscribe(callback, str)  # type: ignore[arg-type]

    async def handle(event: Event) -> None: ...

    assert_type(scheduler.subscribe(handle, JobFailed, once=True)(), None)
    assert_type(scheduler.events(JobFailed), EventStream)


assert_type(JobPriority.from_db_value(3), JobPriority)
assert_type(JobPriority.LOW.db_value, int)
assert_type(pg_scheduler.__version__, str)
PollingConfig(unknown=1)  # type: ignore[call-arg]
PollingConfig(min_interval="1")  # type: ignore[arg-type]
