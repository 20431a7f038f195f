"""A job that failed finally enqueues the task of on_failure=, once, in the same transaction."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import (
    Abort,
    ConflictResolution,
    JobPriority,
    JobStatus,
    Overlap,
    RetryPolicy,
    Scheduler,
    Unique,
    current_job,
    job,
)
from pg_scheduler.clock import FakeClock
from pg_scheduler.errors import ConfigurationError, PayloadError
from pg_scheduler.events import JobCompleted, JobExpired, JobFailed
from pg_scheduler.jobs.validation import MAX_ID_BYTES
from pg_scheduler.queue.failure_alerts import alert_id
from pg_scheduler.queue.followers import distinct_id
from pg_scheduler.testing import TestScheduler
from pg_scheduler.triggers import Every
from tests.api.conftest import Make
from tests.support.inside import RELEASE, Outcome, store_of
from tests.support.worker import LEASE, Recorder, new_worker

START = datetime(2040, 1, 1, tzinfo=UTC)
QUICK = RetryPolicy(timedelta(milliseconds=1), 1.0, timedelta(milliseconds=1))
MINUTE = timedelta(minutes=1)


async def work(*args: object, **kwargs: object) -> None: ...


async def page(**kwargs: object) -> None: ...


class Bench:
    """A Scheduler that is not started, whose jobs a test claims and settles."""

    def __init__(self, make: Make, **options: Any) -> None:
        self.clock = FakeClock(START)
        self.scheduler = make(clock=self.clock)
        self.store = store_of(self.scheduler)
        self.scheduler.register(page, name="alerts.page", **options)
        self.scheduler.register(work, name="app.work", on_failure="alerts.page")

    async def settle(self, outcome: Any, name: str = "app.work") -> None:
        await self.store.workers.register(new_worker(), LEASE)
        (claim,) = (await self.store.claims.exchange("me", [name], 1)).jobs
        await self.store.results.settle("me", [(claim, outcome)])

    async def ids(self) -> set[str]:
        return {each.job_id for each in await self.scheduler.list_jobs()}


Build = Callable[..., Bench]


@pytest.fixture
async def build(make: Make) -> AsyncIterator[Build]:
    """Return what creates the bench of a test, with these options of the alert."""
    benches: list[Bench] = []

    def create(**options: Any) -> Bench:
        benches.append(Bench(make, **options))
        return benches[-1]

    yield create
    for bench in benches:
        await bench.store.connections.release_held()


async def test_job_whose_retries_are_used_up_enqueues_one_alert(make: Make) -> None:
    calls: list[dict[str, Any]] = []

    async def alert(**kwargs: Any) -> None:
        calls.append(kwargs)

    @job(name=f"{__name__}.failing", on_failure=f"{__name__}.alert", max_retries=2, retry=QUICK)
    async def failing() -> None:
        raise ValueError("no")

    scheduler = make()
    scheduler.register(alert, name=f"{__name__}.alert")
    seen = Recorder(scheduler)
    await scheduler.start()
    job_id = await scheduler.enqueue(failing)
    await seen.until(JobCompleted, job_id=f"{job_id}:failed")
    about = {"job_id": job_id, "job_name": f"{__name__}.failing"}
    assert calls == [{**about, "error": "ValueError: no", "attempts": 3}]
    assert await scheduler.retry_job(job_id)
    await seen.until(JobFailed, 2, job_id=job_id)
    assert len(await scheduler.list_jobs()) == 2, "a second failure enqueues no other one"


async def test_alert_has_the_options_of_its_task_and_is_due_at_once(build: Build) -> None:
    bench = build(
        priority=JobPriority.HIGH,
        max_retries=7,
        timeout=5,
        metadata={"team": "ops"},
        keep_result=MINUTE,
    )
    await bench.scheduler.enqueue("app.work", job_id="a")
    await bench.settle(Outcome.fail("no"))
    alert = await bench.scheduler.get_job("a:failed")
    assert alert is not None
    assert (alert.job_name, alert.status, alert.priority) == (
        "alerts.page",
        JobStatus.PENDING,
        JobPriority.HIGH,
    )
    assert (alert.max_retries, alert.timeout, alert.execution_time) == (7, timedelta(seconds=5), START)
    assert alert.metadata == {"team": "ops"}
    assert alert.kwargs == {"job_id": "a", "job_name": "app.work", "error": "no", "attempts": 1}


@pytest.mark.parametrize("outcome", [Outcome.skip("locked"), Outcome.retry(MINUTE, "no")])
async def test_job_that_did_not_fail_finally_enqueues_nothing(build: Build, outcome: Any) -> None:
    bench = build()
    await bench.scheduler.enqueue("app.work", job_id="a", max_retries=1)
    await bench.settle(outcome)
    assert await bench.ids() == {"a"}


async def test_cancelled_job_enqueues_nothing(build: Build) -> None:
    bench = build()
    await bench.scheduler.enqueue("app.work", job_id="a")
    await bench.scheduler.cancel_job("a")
    assert await bench.ids() == {"a"}


async def test_job_that_no_claim_reaches_enqueues_an_alert_when_it_expires(build: Build) -> None:
    bench = build()
    await bench.scheduler.enqueue("app.work", job_id="a", delay=1)
    bench.clock.advance(timedelta(seconds=302))
    assert len(await bench.store.jobs.expire("me", ["app.work"], 10)) == 1
    await check_alert_of_expired(bench.scheduler)


async def test_job_that_expires_in_a_claim_enqueues_an_alert(make: Make) -> None:
    clock = FakeClock(START)
    caller, worker = make(clock=clock), make(clock=clock)
    for scheduler in (caller, worker):
        scheduler.register(page, name="alerts.page")
        scheduler.register(work, name="app.work", on_failure="alerts.page")
    await caller.enqueue("app.work", job_id="a", delay=1)
    clock.advance(timedelta(seconds=302))
    seen = Recorder(worker)
    await worker.start()
    await seen.until(JobExpired, job_id="a")
    await seen.until(JobCompleted, job_id="a:failed")
    await check_alert_of_expired(caller)


async def check_alert_of_expired(scheduler: Scheduler) -> None:
    expired, alert = [await scheduler.get_job(job_id) for job_id in ("a", "a:failed")]
    assert expired is not None
    assert alert is not None
    assert expired.status is JobStatus.EXPIRED
    assert (alert.kwargs["job_id"], alert.kwargs["error"]) == ("a", expired.error_message)
    assert str(expired.error_message).startswith("not started between 2040-01-01 00:00:01")
    assert alert.expires_at is None, "an alert waits for a worker that runs it"


async def test_job_that_is_quarantined_after_crashes_enqueues_an_alert(build: Build) -> None:
    bench = build()
    await bench.scheduler.enqueue("app.work", job_id="child")
    await bench.settle(Outcome.crash("the process died", 1))
    await bench.scheduler.enqueue("app.work", job_id="worker")
    await bench.store.workers.register(new_worker(), 1.0)
    assert len((await bench.store.claims.exchange("me", ["app.work"], 1)).jobs) == 1
    bench.clock.advance(MINUTE)
    (failed,) = (await bench.store.workers.rescue(120, max_crashes=1)).quarantined
    alert = await bench.scheduler.get_job("worker:failed")
    assert alert is not None
    assert alert.kwargs["error"] == failed.error
    assert await bench.ids() == {"child", "child:failed", "worker", "worker:failed"}


async def test_job_of_a_schedule_enqueues_an_alert(build: Build) -> None:
    bench = build()
    await bench.scheduler.schedules.add(
        "app.work", Every(MINUTE), schedule_id="s", pause_after_failures=1, overlap=Overlap.ALLOW
    )
    job_id = await bench.scheduler.schedules.trigger("s")
    await bench.settle(Outcome.fail("no"))
    schedule = await bench.scheduler.schedules.get("s")
    assert schedule is not None
    assert schedule.paused_at is not None
    assert await bench.ids() == {job_id, f"{job_id}:failed"}


async def test_job_with_arguments_that_do_not_fit_and_an_aborted_job_enqueue_alerts(
    make: Make, pool: asyncpg.Pool
) -> None:
    async def typed(number: int) -> None:
        raise Abort("no")

    scheduler = make()
    name = f"{__name__}.typed"
    scheduler.register(typed, name=name, typed=True, on_failure="elsewhere.page")
    seen = Recorder(scheduler)
    await scheduler.start()
    first = await scheduler.enqueue(name, args=(1,), max_retries=3)
    await seen.until(JobFailed, job_id=first)
    second = await scheduler.enqueue(name, args=(2,), delay=timedelta(hours=1))
    await pool.execute(
        "UPDATE scheduled_jobs SET task_data = $1, execution_time = now() WHERE job_id = $2",
        '{"args": ["x"]}',
        second,
    )
    await scheduler.retry_job(first)
    await seen.until(JobFailed, job_id=second)
    assert {each.job_id for each in await scheduler.list_jobs(job_name="elsewhere.page")} == {
        f"{first}:failed",
        f"{second}:failed",
    }


async def test_alert_is_rolled_back_with_the_failure(build: Build, pool: asyncpg.Pool) -> None:
    bench = build()
    await bench.scheduler.enqueue("app.work", job_id="a")
    await pool.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$;"
        "CREATE TRIGGER refuse BEFORE INSERT ON scheduled_jobs FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    with pytest.raises(asyncpg.RaiseError):
        await bench.settle(Outcome.fail("no"))
    found = await bench.scheduler.get_job("a")
    assert found is not None
    assert found.status is JobStatus.RUNNING


async def test_task_that_alerts_itself_is_enqueued_once(build: Build) -> None:
    bench = build(on_failure="alerts.page")
    await bench.scheduler.enqueue("alerts.page", job_id="a")
    await bench.settle(Outcome.fail("no"), "alerts.page")
    await bench.settle(Outcome.fail("no"), "alerts.page")
    assert await bench.ids() == {"a", "a:failed"}


async def test_chain_of_alerts_contains_each_task_once(build: Build) -> None:
    bench = build(on_failure="app.work")
    await bench.scheduler.enqueue("app.work", job_id="a")
    for name in ("app.work", "alerts.page", "app.work"):
        await bench.settle(Outcome.fail("no"), name)
    assert await bench.ids() == {"a", "a:failed", "a:failed:failed"}


@pytest.mark.parametrize(
    "on_end",
    [
        {"on_failure": 5},
        {"on_failure": ""},
        {"on_failure": "é" * 1001},
        {"on_failure": "alerts.page", "failed_tasks": 7},
    ],
)
async def test_alert_written_by_hand_does_not_stop_the_failure(
    build: Build, pool: asyncpg.Pool, on_end: dict[str, Any]
) -> None:
    bench = build()
    await bench.scheduler.enqueue("app.work", job_id="a")
    await pool.execute("UPDATE scheduled_jobs SET on_end = $1::text::jsonb", json.dumps(on_end))
    await bench.settle(Outcome.fail("no"))
    assert await bench.ids() == ({"a", "a:failed"} if "failed_tasks" in on_end else {"a"})


async def attempts_in_alert(scheduler: Scheduler, job_id: str = "a") -> list[int]:
    """Return the numbers that the alerts of a job have, the earliest alert first."""
    alerts = await scheduler.list_jobs(job_name="alerts.page")
    ordered = sorted(alerts, key=lambda alert: (alert.created_at, alert.job_id))
    return [alert.kwargs["attempts"] for alert in ordered if alert.kwargs["job_id"] == job_id]


@pytest.mark.parametrize(
    ("outcomes", "count"),
    [
        ([Outcome.fail("no")], 1),
        ([Outcome.snooze(MINUTE)] * 2 + [Outcome.fail("no")], 1),
        ([Outcome.snooze(MINUTE), Outcome.retry(MINUTE, "no"), RELEASE, Outcome.fail("no")], 2),
        ([Outcome.retry(MINUTE, "no")] * 2 + [Outcome.fail("no")], 3),
        ([Outcome.crash("died", 9), Outcome.fail("no")], 2),
        ([Outcome.retry(MINUTE, "no"), Outcome.crash("died", 1)], 2),
    ],
)
async def test_alert_counts_failed_attempts(build: Build, outcomes: list[Outcome], count: int) -> None:
    bench = build()
    await bench.scheduler.enqueue("app.work", job_id="a", max_retries=9)
    for outcome in outcomes:
        await bench.settle(outcome)
        bench.clock.advance(MINUTE)
    assert await attempts_in_alert(bench.scheduler) == [count]


@pytest.mark.parametrize("is_retried", [True, False])
async def test_alert_of_a_job_that_expires_counts_the_attempts_before(build: Build, is_retried: bool) -> None:
    bench = build()
    await bench.scheduler.enqueue("app.work", job_id="a", delay=1, max_retries=1)
    bench.clock.advance(timedelta(seconds=1))
    await bench.settle(Outcome.retry(MINUTE, "no") if is_retried else Outcome.snooze(MINUTE))
    bench.clock.advance(timedelta(seconds=601))
    assert len(await bench.store.jobs.expire("me", ["app.work"], 10)) == 1
    assert await attempts_in_alert(bench.scheduler) == [int(is_retried)]


async def test_alert_counts_no_attempts_of_earlier_definitions(build: Build) -> None:
    bench = build()
    for _ in range(3):
        await bench.scheduler.enqueue(
            "app.work", job_id="a", max_retries=1, conflict_resolution=ConflictResolution.REPLACE
        )
        await bench.settle(Outcome.fail("no"))
        bench.clock.advance(MINUTE)
    assert await attempts_in_alert(bench.scheduler) == [1, 1, 1]


async def test_alert_counts_no_attempts_before_a_retry_by_hand(build: Build) -> None:
    bench = build()
    await bench.scheduler.enqueue("app.work", job_id="a", max_retries=9)
    await bench.settle(Outcome.retry(MINUTE, "no"))
    await bench.scheduler.cancel_job("a")
    await bench.scheduler.retry_job("a")
    await bench.settle(Outcome.fail("no"))
    assert await attempts_in_alert(bench.scheduler) == [1]


async def test_alert_counts_no_attempt_twice_if_the_status_of_a_waiting_job_was_set(build: Build) -> None:
    bench = build()
    await bench.scheduler.enqueue("app.work", job_id="a", max_retries=9)
    await bench.settle(Outcome.retry(MINUTE, "no"))
    await bench.scheduler.update_job_status("a", JobStatus.FAILED)
    assert await attempts_in_alert(bench.scheduler) == [1]


async def test_alert_counts_the_attempt_that_could_not_read_its_row(build: Build) -> None:
    bench = build()
    await bench.scheduler.enqueue("app.work", job_id="a", max_retries=9)
    for outcome in (Outcome.snooze(MINUTE), Outcome.retry(MINUTE, "no")):
        await bench.settle(outcome)
        bench.clock.advance(MINUTE)
    async with bench.store.statements.transaction() as transaction:
        await bench.store.claims._quarantine("a", PayloadError("too large"), transaction)
    await bench.store.results.consequences.apply(["a"])
    assert await attempts_in_alert(bench.scheduler) == [2]


async def test_alert_counts_no_sleeps_and_no_attempts_before_the_last_step(pool: asyncpg.Pool) -> None:
    async def pause_and_fail() -> None:
        if current_job().attempt == 1:
            raise ValueError("before the first step")
        await current_job().steps.sleep("first", MINUTE)
        await current_job().steps.sleep("second", MINUTE)
        raise ValueError("after the last step")

    async with TestScheduler(pool) as t:
        t.scheduler.register(page, name="alerts.page")
        t.scheduler.register(
            pause_and_fail, name="app.pause", on_failure="alerts.page", max_retries=1, retry=QUICK
        )
        await t.scheduler.enqueue("app.pause", job_id="a")
        await t.run_until(timedelta(hours=1))
        assert await attempts_in_alert(t.scheduler) == [2]


async def test_replacing_a_job_replaces_its_alert(build: Build, pool: asyncpg.Pool) -> None:
    bench = build()
    await bench.scheduler.enqueue("app.work", job_id="a")
    assert json.loads(await pool.fetchval("SELECT on_end FROM scheduled_jobs")) == {
        "on_failure": "alerts.page"
    }
    await bench.scheduler.enqueue("elsewhere.run", job_id="a", conflict_resolution=ConflictResolution.REPLACE)
    assert await pool.fetchval("SELECT on_end FROM scheduled_jobs") is None


async def test_each_definition_of_a_job_alerts_once_when_it_fails(build: Build) -> None:
    """Night after night under one id, as "Unique jobs" recommends; and jobs that expire unclaimed."""
    bench = build()
    for night in range(3):
        await bench.scheduler.enqueue("app.work", job_id="a", conflict_resolution=ConflictResolution.REPLACE)
        await bench.settle(Outcome.fail(f"night {night}"))
    for _ in range(2):
        await bench.scheduler.enqueue(
            "app.work", job_id="a", delay=1, conflict_resolution=ConflictResolution.REPLACE
        )
        bench.clock.advance(timedelta(seconds=302))
        assert len(await bench.store.jobs.expire("me", ["app.work"], 10)) == 1
    alerts = await bench.scheduler.list_jobs(job_name="alerts.page")
    errors = sorted(alert.kwargs["error"] for alert in alerts)
    assert errors[:3] == ["night 0", "night 1", "night 2"]
    assert [error[:11] for error in errors[3:]] == ["not started"] * 2
    assert {alert.job_id[:9] for alert in alerts} == {"a:failed", "a:failed:"}


async def test_other_job_with_the_id_of_an_alert_loses_none(build: Build) -> None:
    bench = build()
    await bench.scheduler.enqueue("elsewhere.run", job_id="a:failed")
    await bench.scheduler.enqueue("app.work", job_id="a")
    await bench.settle(Outcome.fail("no"))
    (alert,) = await bench.scheduler.list_jobs(job_name="alerts.page")
    assert alert.job_id.startswith("a:failed:")
    assert alert.kwargs["job_id"] == "a"
    other = await bench.scheduler.get_job("a:failed")
    assert other is not None
    assert other.job_name == "elsewhere.run"


@pytest.mark.parametrize(
    ("unique", "alerts"),
    [
        ("on call", 1),
        (Unique(args=()), 1),
        (Unique(args=("job_name",)), 1),
        (Unique(args=(), per=timedelta(hours=1)), 1),
        (Unique(), 3),
    ],
)
async def test_alert_is_there_already_when_another_one_has_the_key_of_its_task(
    build: Build, unique: Unique | str, alerts: int
) -> None:
    bench = build(unique=unique)
    for number in range(3):
        await bench.scheduler.enqueue("app.work", job_id=str(number))
        await bench.settle(Outcome.fail("no"))
    assert len(await bench.scheduler.list_jobs(job_name="alerts.page")) == alerts
    assert (await bench.scheduler.count_jobs(job_name="app.work")).failed == 3


async def test_job_fails_again_when_the_alert_before_has_ended(build: Build) -> None:
    bench = build(unique="on call")
    for number in range(2):
        await bench.scheduler.enqueue("app.work", job_id=str(number))
        await bench.settle(Outcome.fail("no"))
        assert await bench.scheduler.cancel_job(f"{number}:failed")


def test_id_of_an_alert_is_shortened_when_it_would_be_too_long() -> None:
    assert alert_id("a") == "a:failed"
    longest = "é" * 1000
    assert alert_id("x" * (MAX_ID_BYTES - 7)) == "x" * (MAX_ID_BYTES - 7) + ":failed"
    ids = {alert_id(longest), alert_id(longest[:-1] + "e"), alert_id(longest[:-1] + "f")}
    assert len(ids) == 3
    assert all(len(each.encode()) <= MAX_ID_BYTES and each.endswith(":failed") for each in ids)
    others = {distinct_id(alert_id) for alert_id in [*ids, *ids, "a"]}
    assert len(others) == 7
    assert all(len(alert_id.encode()) <= MAX_ID_BYTES for alert_id in others)


@pytest.mark.parametrize("name", [5, "", "\x00"])
def test_register_rejects_an_invalid_name(make: Make, name: Any) -> None:
    scheduler: Scheduler = make()
    with pytest.raises((TypeError, ValueError, ConfigurationError)):
        scheduler.register(work, name="app.work", on_failure=name)
