"""What Sentry receives about jobs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import asyncpg
import pytest
import sentry_sdk

from pg_scheduler import (
    Abort,
    ConfigurationError,
    JobSpec,
    PollingConfig,
    RetryPolicy,
    Scheduler,
    Snooze,
    current_job,
)
from pg_scheduler.events import JobCancelled, JobCompleted, JobFailed, JobSnoozed, JobStarted
from pg_scheduler.integrations.sentry import SentryMiddleware, config_of, slug_of
from pg_scheduler.sync import SyncScheduler
from pg_scheduler.triggers import Cron, Every, FixedDelay, Trigger
from tests.support.cases import each_case
from tests.support.sentry import Kept, reporting
from tests.support.worker import PATIENCE, Recorder, now

YEARLY = Cron("0 0 1 1 *", timezone="Europe/Berlin")
NEW_YEAR = datetime(2023, 12, 31, tzinfo=UTC), datetime(2024, 1, 1, tzinfo=UTC)
AT_ONCE = RetryPolicy(base=timedelta(milliseconds=1), maximum=timedelta(milliseconds=1))


@pytest.fixture
def sentry() -> Iterator[Kept]:
    with reporting() as transport:
        yield transport


class Make(Protocol):
    """Create a Scheduler that reports to Sentry and is shut down at the end of the test."""

    def __call__(self, **settings: Any) -> Scheduler: ...


@pytest.fixture
async def make(pool: asyncpg.Pool) -> AsyncIterator[Make]:
    async with AsyncExitStack() as stack:

        def build(**settings: Any) -> Scheduler:
            polling = PollingConfig(idle_start_interval=600, max_interval=600, semaphore_full_interval=600)
            reported = {key: settings.pop(key) for key in ("on", "monitor_schedules") if key in settings}
            scheduler = Scheduler(
                pool,
                polling_config=polling,
                retry_policy=AT_ONCE,
                middleware=[SentryMiddleware(**reported)],
                **settings,
            )
            stack.push_async_callback(asyncio.wait_for, scheduler.shutdown(), PATIENCE)
            return scheduler

        yield build


async def nothing() -> None: ...


# -- traces --------------------------------------------------------------------------------------------


async def test_every_attempt_belongs_to_the_trace_that_scheduled_the_job(make: Make, sentry: Kept) -> None:
    scheduler = make()
    seen = Recorder(scheduler)

    async def charge() -> None:
        if current_job().attempt == 1:
            raise ConnectionError

    scheduler.register(charge, name="sentry.charge")
    await scheduler.start()
    with (
        sentry_sdk.isolation_scope(),  # as a server has one for each request; the worker has another
        sentry_sdk.start_transaction(op="http.server", name="POST /orders") as request,
    ):
        job_id = await scheduler.enqueue(charge, max_retries=1)
    await seen.until(JobCompleted, job_id=job_id)
    await scheduler.shutdown()
    (sent,) = sentry.transactions("POST /orders")
    (publish,) = [span for span in sent["spans"] if span["op"] == "queue.publish"]
    assert publish["description"] == "sentry.charge"
    assert publish["data"]["messaging.message.id"] == job_id
    assert publish["data"]["messaging.destination.name"] == "sentry.charge"
    attempts = sentry.transactions("sentry.charge")
    assert len(attempts) == 2
    for number, attempt in enumerate(attempts):
        trace = attempt["contexts"]["trace"]
        assert trace["trace_id"] == request.trace_id
        assert trace["parent_span_id"] == publish["span_id"]
        assert trace["op"] == "queue.process"
        assert trace["data"]["messaging.message.id"] == job_id
        assert trace["data"]["messaging.destination.name"] == "sentry.charge"
        assert trace["data"]["messaging.message.retry.count"] == number
        assert 0 <= trace["data"]["messaging.message.receive.latency"] < PATIENCE * 1000
        assert trace["status"] == ("ok" if number else "internal_error")
        assert attempt["tags"]["attempt"] == str(number + 1)


async def test_jobs_of_a_bulk_call_share_one_span(make: Make, sentry: Kept) -> None:
    scheduler = make()
    scheduler.register(nothing, name="sentry.bulk")
    await scheduler.initialize_db()
    with sentry_sdk.start_transaction(name="import"):
        ids = await scheduler.schedule_bulk([JobSpec(nothing, now() + timedelta(hours=1))] * 2)
    (sent,) = sentry.transactions("import")
    (publish,) = [span for span in sent["spans"] if span["op"] == "queue.publish"]
    assert publish["data"]["messaging.batch.message_count"] == 2
    for job_id in ids:
        job = await scheduler.get_job(job_id or "")
        assert job is not None
        assert job.metadata["trace"]["sentry-trace"].split("-")[1] == publish["span_id"]


async def test_job_of_a_sync_scheduler_belongs_to_the_trace_of_its_thread(
    make: Make, sentry: Kept, dsn: str
) -> None:
    def in_thread() -> str:
        with (
            sentry_sdk.isolation_scope(),
            SyncScheduler(dsn, middleware=[SentryMiddleware()]) as client,
            sentry_sdk.start_transaction(name="view") as request,
        ):
            client.enqueue("sentry.sync")
            return request.trace_id

    scheduler = make()
    seen = Recorder(scheduler)
    scheduler.register(nothing, name="sentry.sync")
    await scheduler.start()
    trace_id = await asyncio.to_thread(in_thread)
    await seen.until(JobCompleted)
    await scheduler.shutdown()
    (attempt,) = sentry.transactions("sentry.sync")
    assert attempt["contexts"]["trace"]["trace_id"] == trace_id


async def test_every_job_of_a_schedule_begins_a_trace(make: Make, sentry: Kept) -> None:
    scheduler = make()
    seen = Recorder(scheduler)
    scheduler.register(nothing, name="sentry.planned")
    with sentry_sdk.start_transaction(name="startup"):
        await scheduler.start()
    await scheduler.schedules.add(nothing, Every(seconds=0.2), schedule_id="often")
    await seen.until(JobCompleted, count=2)
    await scheduler.shutdown()
    traces = [each["contexts"]["trace"] for each in sentry.transactions("sentry.planned")]
    assert len({trace["trace_id"] for trace in traces}) == len(traces) >= 2
    assert not any("parent_span_id" in trace and trace["parent_span_id"] for trace in traces)


async def test_trace_of_another_program_is_continued_beside_opentelemetry(make: Make, sentry: Kept) -> None:
    scheduler = make()
    seen = Recorder(scheduler)
    scheduler.register(nothing, name="sentry.foreign")
    await scheduler.start()
    trace_id, own = "a" * 32, "b" * 32
    for trace in (
        {"sentry-trace": f"{trace_id}-{'1' * 16}-1", "baggage": f"sentry-trace_id={trace_id}"},
        {
            "sentry-trace": f"{own}-{'2' * 16}-1",
            "sentry-baggage": f"sentry-trace_id={own}",
            "baggage": "user=1",
        },
    ):
        await scheduler.schedule_job("sentry.foreign", now(), {}, metadata={"trace": trace})
    await seen.until(JobCompleted, count=2)
    await scheduler.shutdown()
    found = Counter(each["contexts"]["trace"]["trace_id"] for each in sentry.transactions("sentry.foreign"))
    assert found[trace_id] == found[own] == 1


# -- events --------------------------------------------------------------------------------------------


async def fail() -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize(("on", "expected"), [("failed", 1), ("attempt", 3)])
async def test_failed_job_is_reported_once_or_for_each_attempt(
    make: Make, sentry: Kept, on: str, expected: int
) -> None:
    scheduler = make(on=on)
    seen = Recorder(scheduler)
    scheduler.register(fail, name="sentry.fail")
    await scheduler.start()
    job_id = await scheduler.enqueue(fail, max_retries=2)
    await seen.until(JobFailed, job_id=job_id)
    await scheduler.shutdown()  # its log records are written
    assert sentry.errors == ["ZeroDivisionError"] * expected
    last = sentry.of("event")[-1]
    assert last["tags"] == {"job_id": job_id, "job_name": "sentry.fail", "attempt": "3"}
    assert last["transaction"] == "sentry.fail"
    assert last["contexts"]["job"]["worker_id"] == scheduler.worker_id
    assert last["exception"]["values"][-1]["stacktrace"]["frames"][-1]["function"] == "fail"
    assert last["exception"]["values"][-1]["mechanism"] == {"type": "pg_scheduler", "handled": False}
    last_trace = sentry.transactions("sentry.fail")[-1]["contexts"]["trace"]
    assert last["contexts"]["trace"]["trace_id"] == last_trace["trace_id"]


async def test_failure_that_no_middleware_sees_is_reported_once(make: Make, sentry: Kept) -> None:
    scheduler = make()
    seen = Recorder(scheduler)
    scheduler.register(fail, name="sentry.known")
    await scheduler.start()
    await scheduler.schedule_job("sentry.known", now() + timedelta(hours=1), {}, job_id="broken")
    change = "SET task_data = '{\"args\": 1}', execution_time = now()"
    await scheduler.db_pool.execute(f"UPDATE scheduled_jobs {change} WHERE job_id = 'broken'")
    await scheduler.enqueue(fail)  # wakes the worker
    await seen.until(JobFailed, count=2)
    await scheduler.shutdown()
    assert Counter(sentry.errors) == {"PayloadError": 1, "ZeroDivisionError": 1}


async def test_aborted_job_and_exit_of_a_thread_are_reported_once(make: Make, sentry: Kept) -> None:
    scheduler = make()
    seen = Recorder(scheduler)

    async def give_up() -> None:
        raise Abort("no account")

    def leave() -> None:
        raise SystemExit(3)

    scheduler.register(give_up, name="sentry.abort")
    scheduler.register(leave, name="sentry.exit")
    await scheduler.start()
    await scheduler.enqueue(give_up, max_retries=5)
    await scheduler.enqueue(leave)
    await seen.until(JobFailed, count=2)
    await scheduler.shutdown()
    assert sorted(sentry.errors) == ["Abort", "SystemExit"]


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_timeout_is_reported_once_with_the_line_that_it_interrupted(
    make: Make, sentry: Kept, kind: str
) -> None:
    scheduler = make()
    seen = Recorder(scheduler)

    async def hang() -> None:
        await asyncio.Event().wait()

    def hang_in_thread() -> None:
        while not current_job().is_cancelled:
            time.sleep(0.005)

    func = hang if kind == "async" else hang_in_thread
    scheduler.register(func, name="sentry.hang")
    await scheduler.start()
    await scheduler.enqueue(func, timeout=timedelta(seconds=0.2))
    await seen.until(JobFailed)
    await scheduler.shutdown()
    assert sentry.errors == ["TimeoutError"]
    (error,) = sentry.of("event")[0]["exception"]["values"][-1:]
    assert "0.2 seconds" in error["value"]
    functions = [frame["function"] for frame in error["stacktrace"]["frames"]]
    assert ("hang" in " ".join(functions)) or kind == "thread"
    assert sentry.transactions("sentry.hang")[0]["contexts"]["trace"]["status"] == "deadline_exceeded"


async def test_snoozed_and_cancelled_attempts_are_no_errors(make: Make, sentry: Kept) -> None:
    scheduler = make()
    seen = Recorder(scheduler)

    async def later() -> None:
        raise Snooze(timedelta(hours=1))

    async def hang() -> None:
        await asyncio.Event().wait()

    scheduler.register(later, name="sentry.later")
    scheduler.register(hang, name="sentry.cancelled")
    await scheduler.start()
    await scheduler.enqueue(later)
    await seen.until(JobSnoozed)
    job_id = await scheduler.enqueue(hang)
    await seen.until(JobStarted, job_id=job_id)
    await scheduler.cancel_job(job_id)
    await seen.until(JobCancelled)
    await scheduler.shutdown()
    assert sentry.of("event") == []
    outcomes = {each["transaction"]: each["contexts"]["trace"] for each in sentry.of("transaction")}
    assert outcomes["sentry.later"]["data"]["pg_scheduler.outcome"] == "snoozed"
    assert outcomes["sentry.cancelled"]["status"] == "cancelled"


# -- scopes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_event_has_the_tags_and_breadcrumbs_of_its_own_job_only(
    make: Make, sentry: Kept, pool: asyncpg.Pool[asyncpg.Record], kind: str
) -> None:
    scheduler = make()
    seen = Recorder(scheduler)
    meeting, threads = asyncio.Barrier(2), threading.Barrier(2)

    def mark(number: int) -> None:
        sentry_sdk.set_tag(f"customer-{number}", "yes")
        sentry_sdk.add_breadcrumb(message=f"crumb {number}")

    async def work(number: int) -> None:
        mark(number)
        await meeting.wait()  # both jobs run at the same time
        await pool.execute("SELECT 42 AS answer")
        await scheduler.schedule_job("sentry.tags", now() + timedelta(hours=1), {"args": [9]})
        raise ValueError(number)

    def work_in_thread(number: int) -> None:
        mark(number)
        threads.wait(PATIENCE)
        raise ValueError(number)

    func = work if kind == "async" else work_in_thread
    scheduler.register(func, name="sentry.tags")
    sentry_sdk.set_tag("service", "billing")
    await scheduler.start()
    for number in (1, 2):
        await scheduler.enqueue(func, args=(number,))
    await seen.until(JobFailed, count=2)
    await scheduler.enqueue(nothing)
    await seen.until(JobCompleted)
    await scheduler.shutdown()
    events = {event["exception"]["values"][-1]["value"]: event for event in sentry.of("event")}
    assert set(events) == {"1", "2"}
    for own, other in (("1", "2"), ("2", "1")):
        event = events[own]
        assert event["tags"][f"customer-{own}"] == "yes"
        assert event["tags"]["service"] == "billing"
        assert f"customer-{other}" not in event["tags"]
        messages = [crumb["message"] for crumb in event["breadcrumbs"]["values"]]
        assert messages[0] == f"crumb {own}"  # nothing of the worker precedes it
        assert f"crumb {other}" not in messages
        assert ("SELECT 42 AS answer" in messages) is (kind == "async")
        assert not [message for message in messages if "schedule" in message]
    (done,) = sentry.transactions(f"{nothing.__module__}.{nothing.__qualname__}")
    assert not any(tag.startswith("customer") for tag in done["tags"])
    assert sentry_sdk.get_isolation_scope()._tags == {"service": "billing"}


async def test_request_that_schedules_a_job_has_no_breadcrumbs_of_its_statements(
    make: Make, sentry: Kept, pool: asyncpg.Pool[asyncpg.Record]
) -> None:
    scheduler = make()
    scheduler.register(nothing, name="sentry.request")
    await scheduler.initialize_db()
    with sentry_sdk.isolation_scope():
        async with pool.acquire() as connection, connection.transaction():
            await connection.execute("SELECT 1 AS mine")
            await scheduler.schedule(nothing, execution_time=now(), connection=connection)
        await scheduler.tasks.pause("sentry.request")  # notifies by a statement of its own
        sentry_sdk.capture_message("done")
    (event,) = sentry.of("event")
    messages = [crumb["message"] for crumb in event["breadcrumbs"]["values"]]
    assert "SELECT 1 AS mine" in messages
    assert not [message for message in messages if "schedule" in message]


# -- check-ins -----------------------------------------------------------------------------------------


async def test_jobs_of_a_schedule_check_in_once_for_all_attempts(make: Make, sentry: Kept) -> None:
    scheduler = make(monitor_schedules=True)
    seen = Recorder(scheduler)
    may_fail = True

    async def report() -> None:
        if may_fail:
            raise OSError

    scheduler.register(report, name="sentry.report")
    await scheduler.start()
    options: dict[str, Any] = {"max_retries": 1, "timeout": timedelta(seconds=90)}
    await scheduler.schedules.add(report, YEARLY, schedule_id="Nightly Report", **options)
    await scheduler.schedules.backfill("Nightly Report", *NEW_YEAR)
    await seen.until(JobFailed)
    may_fail = False
    await scheduler.schedules.trigger("Nightly Report")  # by hand: it checks in nowhere
    await seen.until(JobCompleted)
    await scheduler.shutdown()
    check_ins = sentry.of("check_in")
    statuses = [each["status"] for each in check_ins]
    assert statuses == ["in_progress", "in_progress", "error"]
    assert len({each["check_in_id"] for each in check_ins}) == 1
    assert {each["monitor_slug"] for each in check_ins} == {"nightly-report"}
    assert check_ins[2]["duration"] >= 0
    assert check_ins[0]["monitor_config"] == {
        "schedule": {"type": "crontab", "value": "0 0 1 1 *"},
        "timezone": "Europe/Berlin",
        "max_runtime": 2,
    }


@pytest.mark.parametrize(
    ("monitored", "expected"), [(False, set()), (["first"], {"first"}), (True, {"first", "second"})]
)
async def test_only_monitored_schedules_check_in(
    make: Make, sentry: Kept, monitored: Any, expected: set[str]
) -> None:
    scheduler = make(monitor_schedules=monitored)
    seen = Recorder(scheduler)
    scheduler.register(nothing, name="sentry.monitored")
    await scheduler.start()
    for schedule_id in ("first", "second"):
        await scheduler.schedules.add(nothing, YEARLY, schedule_id=schedule_id)
        await scheduler.schedules.backfill(schedule_id, *NEW_YEAR)
    await scheduler.enqueue(nothing)
    await seen.until(JobCompleted, count=3)
    await scheduler.shutdown()
    assert [each["status"] for each in sentry.of("check_in")].count("ok") == len(expected)
    assert {each["monitor_slug"] for each in sentry.of("check_in")} == expected


def test_slug_of_a_schedule_is_valid_and_unique() -> None:
    assert slug_of("app.tasks:send_mail") == "app-tasks-send_mail"
    long, longer = slug_of("x" * 60), slug_of("x" * 61)
    assert len(long) == 50
    assert long != longer
    assert slug_of("报告") != slug_of("日报")


@each_case(
    ("trigger", "schedule"),
    [
        (Cron("0 3 * * 1"), {"type": "crontab", "value": "0 3 * * 1"}),
        (Cron("0 3 * * 1 0"), {"type": "crontab", "value": "0 3 * * 1"}),
        (Cron("@hourly"), {"type": "crontab", "value": "@hourly"}),
        (Every(minutes=90), {"type": "interval", "value": 90, "unit": "minute"}),
        (Every(hours=48), {"type": "interval", "value": 2, "unit": "day"}),
        (Cron("* * * * * 30"), None),
        (Every(seconds=30), None),
        (FixedDelay(timedelta(minutes=5)), None),
        (None, None),
    ],
)
def test_monitor_of_a_trigger_is_what_sentry_can_express(
    trigger: Trigger | None, schedule: dict[str, Any] | None
) -> None:
    config = config_of(trigger, None)
    assert (None if config is None else config["schedule"]) == schedule


# -- the middleware itself -----------------------------------------------------------------------------


async def test_jobs_run_without_headers_if_sentry_is_not_initialized(make: Make) -> None:
    assert not sentry_sdk.get_client().is_active()
    scheduler = make()
    scheduler.register(nothing, name="sentry.off")
    async with scheduler:
        job_id = await scheduler.enqueue(nothing)
        await Recorder(scheduler).until(JobCompleted, count=0)
        job = await scheduler.get_job(job_id)
    assert job is not None
    assert "trace" not in job.metadata


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="on must be 'failed' or 'attempt', not 'never'"):
        SentryMiddleware(on="never")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"pass \['nightly'\]"):
        SentryMiddleware(monitor_schedules="nightly")
