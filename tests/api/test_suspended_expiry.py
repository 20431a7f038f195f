"""Pauses that suspend expiry: no job expires during the pause, nor in the order of what ends it."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from itertools import permutations
from typing import Any

import asyncpg
import pytest

from pg_scheduler import JobSpec, JobStatus, Scheduler, Share
from pg_scheduler.clock import FakeClock
from pg_scheduler.events import JobCompleted, JobExpired, ServiceRetrying, TaskResumed
from tests.api.conftest import Make
from tests.support import inside
from tests.support.guards import guard
from tests.support.inside import Renewal, store_of, worker_of
from tests.support.worker import PATIENCE, Gate, Recorder, now

FAST_POLL_INTERVAL_S = inside.internal_setting("fast_poll_interval_of_pauses_s")

pytestmark = pytest.mark.usefixtures("own_catalogue")

START = datetime(2040, 1, 1, tzinfo=UTC)
GRACE = timedelta(seconds=10)


async def work(*args: Any) -> None: ...


async def welcome(*args: Any) -> None: ...


async def statuses(pool: asyncpg.Pool) -> dict[str, str]:
    rows = await pool.fetch("SELECT job_id, status FROM scheduled_jobs")
    return {row["job_id"]: row["status"] for row in rows}


async def scan(scheduler: Scheduler) -> None:
    """Let a node read the pauses and expire what is late."""
    await worker_of(scheduler).pauses.run_once()
    await worker_of(scheduler).expirer.run_once()


async def test_jobs_do_not_expire_during_the_pause_and_get_their_time_again(
    make: Make, pool: asyncpg.Pool, open_gate: Gate
) -> None:
    clock = FakeClock(START)
    scheduler = make(clock=clock, misfire_grace_time=10)
    scheduler.register(open_gate.job, name="mail.send", aliases=["send_mail"])
    seen = Recorder(scheduler)
    await scheduler.start()
    assert await scheduler.tasks.pause("mail.send", suspend_expiry=True)
    (info,) = [info for info in await scheduler.tasks.list() if info.is_paused]
    assert info.suspends_expiry
    paused = [await scheduler.schedule_job(name, START, {}) for name in ("mail.send", "send_mail")]
    other = await scheduler.schedule_job("elsewhere", START, {})
    clock.advance(GRACE * 2)
    await scan(scheduler)
    assert (await statuses(pool)) == {**dict.fromkeys(paused, "pending"), other: "expired"}
    assert await scheduler.tasks.resume("send_mail")
    times = {job_id: await scheduler.get_job(job_id) for job_id in paused}
    assert {job.expires_at for job in times.values() if job} == {clock.now + GRACE}
    for job_id in paused:
        await seen.until(JobCompleted, job_id=job_id)
    assert [event.job_id for event in seen.of(JobExpired)] == [other]
    assert len(seen.of(TaskResumed)) == 1
    assert not await scheduler.tasks.resume("mail.send")


async def test_jobs_of_a_share_keep_their_turns_during_the_pause(
    make: Make, pool: asyncpg.Pool, open_gate: Gate
) -> None:
    """Another task with a share is not paused, so the feeder looks for late jobs of all tenants."""
    clock = FakeClock(START)
    scheduler = make(clock=clock, misfire_grace_time=10, max_concurrent_jobs=1)
    scheduler.register(open_gate.job, name="export", share=Share("exports", key=lambda tenant: tenant))
    scheduler.register(work, name="other", share=Share(key=lambda tenant: tenant))
    seen = Recorder(scheduler)
    assert await scheduler.tasks.pause("export", suspend_expiry=True)
    await scheduler.start()
    tenants = ["loud"] * 6 + ["quiet"]
    await scheduler.schedule_bulk([JobSpec(open_gate.job, START, args=(tenant,)) for tenant in tenants])
    clock.advance(GRACE * 2)
    worker_of(scheduler).feeder.request_scan()
    await worker_of(scheduler).feeder.run_once()
    rows = await pool.fetch("SELECT DISTINCT left(blocked_on, 6) AS wait, error_message FROM scheduled_jobs")
    assert [tuple(row) for row in rows] == [("share:", None)]
    assert await scheduler.tasks.resume("export")
    await seen.until(JobCompleted, 7)
    assert ("quiet",) in open_gate.calls[:2]


async def test_worker_that_does_not_know_the_task_leaves_its_aliases_alone(
    make: Make, pool: asyncpg.Pool
) -> None:
    clock = FakeClock(START)
    owner, other = make(clock=clock, misfire_grace_time=10), make(clock=clock)
    owner.register(work, name="mail.send", aliases=["send_mail"])
    await owner.start()
    await other.start()
    assert await owner.tasks.pause("mail.send", suspend_expiry=True)
    job_id = await owner.schedule_job("send_mail", START, {})
    clock.advance(GRACE * 2)
    await scan(other)
    assert await statuses(pool) == {job_id: "pending"}
    assert await other.tasks.resume("mail.send"), "it knows the alias from the row of the other worker"
    found = await other.get_job(job_id)
    assert found
    assert found.status is not JobStatus.EXPIRED


async def names_of_pause(pool: asyncpg.Pool) -> set[str]:
    return {"mail.send", *await pool.fetchval("SELECT names FROM scheduler_tasks WHERE name = 'mail.send'")}


@pytest.mark.parametrize("name", ["mail.send", "send_mail"])
async def test_pause_keeps_the_aliases_when_the_worker_that_knows_them_stops(
    make: Make, pool: asyncpg.Pool, name: str
) -> None:
    clock = FakeClock(START)
    owner, other = (make(clock=clock, misfire_grace_time=10) for _ in range(2))
    owner.register(work, name="mail.send", aliases=["send_mail"])
    await owner.start()
    await other.start()
    assert await other.tasks.pause(name, suspend_expiry=True), "it knows the names from the other worker only"
    await owner.shutdown()
    assert [worker.worker_id for worker in await other.workers()] == [other.worker_id]
    job_ids = [await other.schedule_job(job_name, START, {}) for job_name in ("mail.send", "send_mail")]
    clock.advance(GRACE * 2)
    await scan(other)
    assert await statuses(pool) == dict.fromkeys(job_ids, "pending")
    assert await other.tasks.resume(name)
    jobs = [await other.get_job(job_id) for job_id in job_ids]
    assert [job.status for job in jobs if job] == [JobStatus.PENDING] * 2


@pytest.mark.parametrize("name", ["mail.send", "send_mail"])
async def test_pause_has_the_names_that_workers_report(make: Make, pool: asyncpg.Pool, name: str) -> None:
    caller = make()
    await pool.execute(
        "INSERT INTO scheduler_workers (worker_id, hostname, pid, version, max_concurrent_jobs, started_at,"
        " last_beat, lease_until, settings) VALUES ('w1', 'host', 1, '1', 1, now(), now(), now(), $1::jsonb)",
        json.dumps({"aliases": {"send_mail": "mail.send", "letter": "mail.send", "post": "elsewhere"}}),
    )
    await caller.tasks.pause(name)
    names = await pool.fetchval("SELECT names FROM scheduler_tasks WHERE name = $1", name)
    assert sorted({name, *names}) == ["letter", "mail.send", "send_mail"]


async def test_pause_has_the_names_that_its_caller_knows(make: Make, pool: asyncpg.Pool) -> None:
    caller = make()
    caller.register(work, name="mail.send", aliases=["send_mail"])
    assert await caller.tasks.pause("send_mail")
    assert await names_of_pause(pool) >= {"mail.send", "send_mail"}


async def test_worker_adds_the_names_that_it_knows_to_a_pause(make: Make, pool: asyncpg.Pool) -> None:
    await make().tasks.pause("mail.send", suspend_expiry=True)
    owner, further = make(), make()
    owner.register(work, name="mail.send", aliases=["send_mail"])
    further.register(work, name="mail.send", aliases=["send_letter"])
    for worker in (owner, further):
        await worker.start()
        await worker.shutdown()
    assert await names_of_pause(pool) >= {"send_mail", "send_letter"}
    before = await pool.fetchval("SELECT xmin::text FROM scheduler_tasks")
    await owner.start()
    assert await pool.fetchval("SELECT xmin::text FROM scheduler_tasks") == before, "it has all names"


async def test_worker_adds_names_as_soon_as_the_row_of_the_pause_is_free(
    make: Make, pool: asyncpg.Pool
) -> None:
    owner = make()
    await make().tasks.pause("mail.send", suspend_expiry=True)
    owner.register(work, name="mail.send", aliases=["send_mail"])
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT FROM scheduler_tasks FOR UPDATE")
        await owner.start()
        watcher = worker_of(owner).pauses
        assert await watcher.run_once() <= FAST_POLL_INTERVAL_S
        assert await names_of_pause(pool) == {"mail.send"}
    await watcher.run_once()
    assert await names_of_pause(pool) >= {"send_mail"}


async def test_jobs_under_a_name_that_is_added_during_the_end_get_their_time_again(
    make: Make, pool: asyncpg.Pool
) -> None:
    clock = FakeClock(START)
    scheduler = make(clock=clock, misfire_grace_time=10)
    pauses = store_of(scheduler).pauses
    await scheduler.tasks.pause("mail.send", suspend_expiry=True)
    job_id = await scheduler.schedule_job("send_mail", START, {})
    clock.advance(GRACE / 2)
    assert await pauses.resume(["mail.send"])
    (pause,) = await pauses.paused()
    renewal = Renewal(pauses, pause, {"mail.send"})
    assert await pauses.add_names("mail.send", {"send_mail"})
    await renewal.run()
    assert renewal.is_ended_here
    job = await scheduler.get_job(job_id)
    assert job
    assert job.expires_at == clock.now + GRACE


async def test_names_that_were_written_by_hand_stop_nothing(make: Make, pool: asyncpg.Pool) -> None:
    scheduler = make()
    await scheduler.start()
    await scheduler.tasks.pause("mail.send", suspend_expiry=True)
    await pool.execute("UPDATE scheduler_tasks SET names = ARRAY[['send_mail', NULL], [NULL, 'x']]")
    await scan(scheduler)
    assert await scheduler.tasks.resume("mail.send")
    assert await scheduler.tasks.list() == []


async def test_pause_with_an_end_renews_in_batches_and_one_node_reports_it(
    make: Make, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, batch_of_renewal_of_pause=3)
    clock = FakeClock(START)
    scheduler = make(clock=clock, misfire_grace_time=10)
    scheduler.register(work, name="mail.send")
    seen = Recorder(scheduler)
    await scheduler.tasks.pause("mail.send", until=START + GRACE * 3, suspend_expiry=True)
    for n in range(10):
        await scheduler.schedule_job("mail.send", START, {}, job_id=f"job-{n}")
    await scheduler.schedule_job("elsewhere", START, {}, job_id="other", misfire_grace_time=None)
    clock.advance(GRACE * 4)
    await scheduler.start()
    for n in range(10):
        await seen.until(JobCompleted, job_id=f"job-{n}")
    assert seen.of(TaskResumed) == [TaskResumed("mail.send", actor=None)]
    assert not seen.of(JobExpired)


async def test_blocked_jobs_of_a_limit_get_their_time_again(make: Make, pool: asyncpg.Pool) -> None:
    clock = FakeClock(START)
    scheduler = make(clock=clock, misfire_grace_time=10)
    assert await scheduler.tasks.pause("mail.send", suspend_expiry=True)
    job_ids = [await scheduler.schedule_job("mail.send", START, {}) for _ in range(5)]
    await pool.execute("UPDATE scheduled_jobs SET blocked_on = 'limit:smtp:' WHERE job_id <> $1", job_ids[0])
    clock.advance(GRACE / 2)
    assert await scheduler.tasks.resume("mail.send")
    jobs = [await scheduler.get_job(job_id) for job_id in job_ids]
    assert {job.expires_at for job in jobs if job} == {clock.now + GRACE}


async def start_worker(make: Make, clock: FakeClock) -> tuple[Scheduler, Scheduler]:
    """Return a worker of the task "mail.send" and another Scheduler."""
    worker, caller = (make(clock=clock, misfire_grace_time=10) for _ in range(2))
    worker.register(work, name="mail.send")
    await worker.start()
    return worker, caller


async def test_no_order_of_resuming_claiming_and_expiring_expires_a_job(
    make: Make, pool: asyncpg.Pool
) -> None:
    """Each order of the steps of a resumption, and of a worker that reads the pauses, claims and expires."""
    clock = FakeClock(START)
    worker, caller = await start_worker(make, clock)
    store, node = store_of(worker), worker_of(worker).node

    async def resume() -> None:
        await store.pauses.resume(["mail.send"])

    async def renew() -> None:
        pauses = [pause for pause in await store.pauses.paused() if pause.has_ended]
        for renewal in [Renewal(store.pauses, pause, {pause.name}) for pause in pauses]:
            while not await renewal.run_once():
                await expire()
                await claim()

    async def expire() -> None:
        await store.jobs.expire(node.worker_id, [], 100, unexpiring_names=node.routing.unexpiring_names)

    async def claim() -> None:
        await store.claims.exchange(node.worker_id, node.routing.names(), 100)

    async def read() -> None:
        await worker_of(worker).pauses.run_once()

    for number, order in enumerate(permutations([resume, renew, expire, claim, read])):
        job_id = f"job-{number}"
        await caller.tasks.pause("mail.send", suspend_expiry=True)
        await read()
        await caller.schedule_job("mail.send", clock.now, {}, job_id=job_id)
        clock.advance(GRACE * 2)
        for step in (*order, resume, renew, read, claim, expire):
            await step()
        assert (await statuses(pool))[job_id] != "expired", [step.__name__ for step in order]


async def test_no_worker_claims_a_job_before_all_have_their_time_again(
    make: Make, pool: asyncpg.Pool
) -> None:
    worker, caller = await start_worker(make, FakeClock(START))
    node = worker_of(worker).node
    await caller.tasks.pause("mail.send", suspend_expiry=True)
    await pool.execute("UPDATE scheduler_tasks SET paused_until = $1", START)  # which notifies no worker
    await worker_of(worker).pauses._read()
    assert "mail.send" not in node.routing.names(), "the pause has ended, but its row is still there"
    await caller.tasks.resume("mail.send")
    await worker_of(worker).pauses._read()
    assert "mail.send" in node.routing.names()


async def test_locked_job_delays_the_end_for_a_bounded_time(
    make: Make, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, patience_of_renewal_of_pause_s=0.2)
    scheduler = make(misfire_grace_time=1)
    await scheduler.tasks.pause("mail.send", suspend_expiry=True)
    hour_ago = now() - timedelta(hours=1)
    jobs = [await scheduler.schedule_job("mail.send", hour_ago, {}) for _ in range(2)]
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT FROM scheduled_jobs WHERE job_id = $1 FOR UPDATE", jobs[0])
        assert await scheduler.tasks.resume("mail.send")
    assert await scheduler.tasks.list() == []
    expiries = [found.expires_at for job_id in jobs if (found := await scheduler.get_job(job_id))]
    assert [expiry is not None and expiry > hour_ago + timedelta(minutes=1) for expiry in expiries] == [
        False,
        True,
    ]


async def test_resume_returns_true_where_it_does_the_rest_of_a_call_that_was_cut(
    make: Make, pool: asyncpg.Pool
) -> None:
    cut, other = make(), make()
    seen = Recorder(other)
    await cut.tasks.pause("mail.send", suspend_expiry=True)
    job_id = await cut.schedule_job("mail.send", now(), {})
    async with asyncio.timeout(PATIENCE), pool.acquire() as connection, connection.transaction():
        # The call ends the pause and then waits for the locked job, so it is cut between the two.
        await connection.execute("SELECT FROM scheduled_jobs WHERE job_id = $1 FOR UPDATE", job_id)
        call = asyncio.create_task(cut.tasks.resume("mail.send"))
        while await pool.fetchval("SELECT paused_until IS NULL FROM scheduler_tasks"):
            pass
        call.cancel()
        await asyncio.wait([call])
    assert call.cancelled()
    assert await other.tasks.resume("mail.send")
    assert [event.task_name for event in seen.of(TaskResumed)] == ["mail.send"]
    assert not await other.tasks.resume("mail.send")


REFUSED_RENEWAL = (
    "IF OLD.job_id = 'bad' AND NEW.expires_at > OLD.expires_at THEN RAISE EXCEPTION 'not this one'; END IF; "
    "RETURN NEW;"
)


async def test_resume_ends_the_pause_although_the_application_refuses_to_renew_a_job(
    make: Make, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    inside.replace(monkeypatch, patience_of_renewal_of_pause_s=0.2)
    scheduler = make(misfire_grace_time=1)
    await scheduler.tasks.pause("mail.send", suspend_expiry=True)
    hour_ago = now() - timedelta(hours=1)
    for job_id in ("bad", "good 1", "good 2"):
        await scheduler.schedule_job("mail.send", hour_ago, {}, job_id=job_id)
    await guard(pool, REFUSED_RENEWAL, is_deferred=False)
    assert await scheduler.tasks.resume("mail.send")
    assert await scheduler.tasks.list() == []
    renewed = await pool.fetch("SELECT job_id FROM scheduled_jobs WHERE expires_at > $1", now() - GRACE)
    assert {row["job_id"] for row in renewed} == {"good 1", "good 2"}
    (message,) = caplog.messages
    assert message.startswith(
        "job bad keeps the misfire grace time from before the pause, no further attempt: "
    )


async def test_pauses_end_although_the_application_refuses_to_renew_a_job_of_one(
    make: Make, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    inside.replace(monkeypatch, patience_of_renewal_of_pause_s=0.5)
    scheduler = make(misfire_grace_time=60)
    scheduler.register(work, name="mail.send")
    scheduler.register(welcome, name="mail.welcome")
    seen = Recorder(scheduler)
    await scheduler.start()
    until = now() + timedelta(seconds=1)
    good = []
    for name in ("mail.send", "mail.welcome"):
        await scheduler.tasks.pause(name, until=until, suspend_expiry=True)
        good.append(await scheduler.schedule_job(name, now(), {}))
    await scheduler.schedule_job("mail.send", now(), {}, job_id="bad")
    await guard(pool, REFUSED_RENEWAL, is_deferred=False)
    for job_id in (*good, "bad"):
        await seen.until(JobCompleted, job_id=job_id)
    assert {event.task_name for event in await seen.until(TaskResumed, 2)} == {"mail.send", "mail.welcome"}
    assert not seen.of(ServiceRetrying)
    assert len([message for message in caplog.messages if "job bad keeps" in message]) == 1


async def test_pause_whose_row_the_application_refuses_to_delete_delays_no_other_end(
    make: Make, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, pause_of_refused_rows_s=0.5)
    scheduler = make()
    seen = Recorder(scheduler)
    await scheduler.start()
    body = "IF OLD.name = 'bad' THEN RAISE EXCEPTION 'not this one'; END IF; RETURN OLD;"
    await guard(pool, body, on="DELETE", table="scheduler_tasks", is_deferred=False)
    until = now() + timedelta(seconds=0.5)
    for name in ("bad", "good 1", "good 2"):
        await scheduler.tasks.pause(name, until=until, suspend_expiry=True)
    for name in ("good 1", "good 2"):
        await seen.until(TaskResumed, task_name=name)
    assert "pause of task 'bad' not ended" in caplog.text
    await pool.execute("DROP FUNCTION guard CASCADE")
    await seen.until(TaskResumed, task_name="bad")
    assert not seen.of(ServiceRetrying)


async def test_pause_whose_names_the_application_refuses_delays_no_other_pause(
    make: Make, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture
) -> None:
    owner = make()
    for name, func in (("bad", work), ("good", welcome)):
        await make().tasks.pause(name, suspend_expiry=True)
        owner.register(func, name=name, aliases=[f"{name} alias"])
    body = "IF OLD.name = 'bad' THEN RAISE EXCEPTION 'not this one'; END IF; RETURN NEW;"
    await guard(pool, body, table="scheduler_tasks", is_deferred=False)
    await owner.start()
    rows = await pool.fetch("SELECT name, names FROM scheduler_tasks")
    names = {row["name"]: row["names"] for row in rows}
    assert "good alias" in names["good"]
    assert "bad alias" not in names["bad"]
    (message,) = caplog.messages
    assert message.startswith("names of the pause of task 'bad' not completed, next attempt in 60 s: ")


async def test_lock_that_ends_in_time_loses_no_job(make: Make, pool: asyncpg.Pool) -> None:
    scheduler = make(misfire_grace_time=60)
    await scheduler.tasks.pause("mail.send", suspend_expiry=True)
    hour_ago = now() - timedelta(hours=1)
    job_id = await scheduler.schedule_job("mail.send", hour_ago, {})
    async with pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("SELECT FROM scheduled_jobs WHERE job_id = $1 FOR UPDATE", job_id)
        resuming = asyncio.create_task(scheduler.tasks.resume("mail.send"))
        await asyncio.sleep(0.3)  # the subject is a lock that is held for some time
        assert not resuming.done()
        await transaction.rollback()
        assert await resuming
    found = await scheduler.get_job(job_id)
    assert found
    assert found.expires_at
    assert found.expires_at > now()


async def test_pausing_again_during_the_end_keeps_the_pause(make: Make) -> None:
    scheduler = make()
    await scheduler.tasks.pause("mail.send", suspend_expiry=True)
    pauses = store_of(scheduler).pauses
    assert await pauses.resume(["mail.send"])
    (pause,) = await pauses.paused()
    renewal = Renewal(pauses, pause, {"mail.send"})
    assert not await renewal.run_once()
    assert await scheduler.tasks.pause("mail.send", suspend_expiry=True)
    while not await renewal.run_once():
        pass
    assert not renewal.is_ended_here
    (info,) = await scheduler.tasks.list()
    assert info.is_paused
    assert info.suspends_expiry


@pytest.mark.parametrize("value", [1, "yes", None])
async def test_pause_refuses_a_suspend_expiry_that_is_no_bool(make: Make, value: Any) -> None:
    with pytest.raises(TypeError, match="suspend_expiry must be a bool, not"):
        await make().tasks.pause("mail.send", suspend_expiry=value)
