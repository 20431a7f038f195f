"""Heartbeats renew the lease, and revoke the attempts that are lost."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import DatabaseUnavailableError, JobStatus, Scheduler
from pg_scheduler.clock import FakeClock
from pg_scheduler.events import EventBus, JobCancelled, JobCompleted, JobLost, LeaseLost, PassFinished
from pg_scheduler.worker import heartbeat as module
from pg_scheduler.worker.executor import Executor
from tests.support.inside import COMPLETE, Outcome, Store
from tests.support.parts import Parts
from tests.support.worker import PATIENCE, Gate, Recorder, claim, holds, locked, new_job, statuses


@pytest.fixture
def gate() -> Gate:
    return Gate()


async def work() -> None: ...


async def running(parts: Parts, gate: Gate, *job_ids: str) -> Executor:
    """An executor in which these jobs have begun."""
    parts.tasks.register(gate.job, name="test.job")
    executor = parts.executor()
    for held in await claim(parts.store, *map(new_job, job_ids)):
        executor.submit(held)
        await gate.wait_begun()
    return executor


def losses_before(seen: Recorder, seconds: float) -> list[bool]:
    """Note for each loss of the lease whether it precedes a timer of so many seconds.

    Timers of one event loop expire in their order, however late a busy machine runs it.
    """
    late = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, late.set)
    noted: list[bool] = []
    seen.source.subscribe(lambda _event: noted.append(not late.is_set()), LeaseLost)
    return noted


async def test_heartbeat_stop_succeeds_when_the_database_is_unavailable(
    touchy: Store, bus: EventBus, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is lost: another worker deletes the row."""
    heartbeat = Parts(touchy, bus).heartbeat()
    await heartbeat.start()
    async with locked(dsn, "scheduler_workers"):
        await heartbeat.stop()
    assert "another worker deletes it" in caplog.text


async def test_heartbeat_registers_at_start_and_deregisters_at_stop(parts: Parts) -> None:
    heartbeat = parts.heartbeat(lease=30)
    assert not holds(parts.lease.is_trusted)
    await heartbeat.start()
    (worker,) = await parts.store.workers.list_workers()
    assert (worker.worker_id, worker.is_alive, worker.max_concurrent_jobs) == ("me", True, 5)
    assert worker.lease_until - worker.last_beat == timedelta(seconds=30)
    assert holds(parts.lease.is_trusted)
    await heartbeat.stop()
    assert await parts.store.workers.list_workers() == []


async def test_heartbeat_deregisters_when_it_stops_before_its_first_renewal(parts: Parts) -> None:
    heartbeat = parts.heartbeat()
    await heartbeat.prepare()
    await heartbeat.drain()
    assert await parts.store.workers.list_workers() == []


async def test_heartbeat_renews_the_worker_and_its_running_jobs(
    clocked: Store, clock: FakeClock, bus: EventBus, gate: Gate
) -> None:
    parts = Parts(clocked, bus)
    executor = await running(parts, gate, "a", "b")
    heartbeat = parts.heartbeat(lease=60)
    clock.advance(timedelta(seconds=50))
    assert await heartbeat.run_once() == 20
    (worker,) = await clocked.workers.list_workers()
    assert (worker.running_jobs, worker.last_beat) == (2, clock.now)
    for job_id in "ab":
        job = await clocked.jobs.get_job(job_id)
        assert job is not None
        assert job.last_heartbeat == clock.now
        assert job.lease_until == clock.now + timedelta(seconds=60)
    gate.open.set()
    await parts.ended(executor)


async def test_heartbeat_renews_ended_jobs_until_their_results_are_written(
    clocked: Store, clock: FakeClock, bus: EventBus
) -> None:
    """A result may wait for longer than a lease if only the statement that writes results fails."""
    parts = Parts(clocked, bus)
    completer = parts.completer()
    heartbeat = parts.heartbeat(lease=60)
    a, b, c = await claim(clocked, *map(new_job, "abc"))
    for held, outcome in ((a, COMPLETE), (b, Outcome.fail("no"))):
        parts.result_buffer.put(held, outcome)
    parts.result_buffer.put(c, COMPLETE)
    writing = asyncio.create_task(completer.run_once())
    await asyncio.sleep(0)  # until it waits for the database
    assert parts.in_flight.unwritten() == {"a": 1, "b": 1, "c": 1}
    await writing
    assert parts.in_flight.unwritten() == {}
    assert await statuses(clocked, *"abc") == ["completed", "failed", "completed"]
    await heartbeat.run_once()
    (d,) = await claim(clocked, new_job("d"))
    parts.result_buffer.put(d, COMPLETE)
    clock.advance(timedelta(seconds=50))
    await heartbeat.run_once()
    job = await clocked.jobs.get_job("d")
    assert job is not None
    assert job.lease_until == clock.now + timedelta(seconds=60)
    assert (await clocked.workers.list_workers())[0].running_jobs == 0
    clock.advance(timedelta(seconds=50))
    await heartbeat.run_once()
    assert (await clocked.workers.rescue(120)).job_ids == []
    await completer.run_once()
    assert await statuses(clocked, "d") == ["completed"]


@pytest.mark.parametrize("step", [timedelta(hours=1), -timedelta(hours=1)])
async def test_heartbeat_reports_a_step_of_the_server_clock(
    clocked: Store, clock: FakeClock, bus: EventBus, step: timedelta
) -> None:
    parts = Parts(clocked, bus)
    heartbeat = parts.heartbeat()
    await heartbeat.prepare()
    await heartbeat.run_once()
    clock.advance(step)
    await heartbeat.run_once()
    expected = ["clock_stepped", "clock_set_back"] if step < timedelta(0) else ["clock_stepped"]
    assert parts.calls[-len(expected) :] == expected


async def test_worker_renews_its_lease_when_the_servers_clock_has_ended_it_and_a_job_is_due(
    pool: asyncpg.Pool, clock: FakeClock
) -> None:
    """The claim leaves the job, because the lease in the row has expired. The next heartbeat is far away."""
    async with Scheduler(pool, clock=clock, lease=3600) as scheduler:
        scheduler.register(work, name="test.job")
        seen = Recorder(scheduler)
        clock.advance(timedelta(hours=2))
        await seen.until(JobCompleted, job_id=await scheduler.enqueue("test.job"))


async def test_heartbeat_polls_while_jobs_run_and_no_notifications_arrive(parts: Parts, gate: Gate) -> None:
    executor = await running(parts, gate, "a")
    heartbeat = parts.heartbeat(lease=60)
    parts.signals.notifications_up.clear()
    assert await heartbeat.run_once() <= 1  # cancelled on another node = stopped within a second
    gate.open.set()
    await parts.ended(executor)
    assert await heartbeat.run_once() == 20


@pytest.mark.parametrize(
    ("change", "kind"),
    [("cancel", JobCancelled), ("pending", JobLost), ("completed", JobLost), ("deleted", JobLost)],
)
async def test_heartbeat_revokes_a_job_that_was_changed_elsewhere(
    parts: Parts, seen: Recorder, gate: Gate, change: str, kind: type[JobCancelled | JobLost]
) -> None:
    executor = await running(parts, gate, "a", "b")
    heartbeat = parts.heartbeat()
    if change == "cancel":
        await parts.store.jobs.cancel("a")
    elif change == "deleted":
        await parts.store.jobs.set_status("a", JobStatus.COMPLETED, 60)
        async with parts.store.connections.acquire() as connection:
            await connection.execute("DELETE FROM scheduled_jobs WHERE job_id = 'a'")
    else:
        await parts.store.jobs.set_status("a", JobStatus(change), 60)
    await heartbeat.run_once()
    await seen.until(kind, job_id="a")
    assert executor.in_flight.held() == {"b": 1}
    assert gate.cancelled == 1
    assert not seen.of(LeaseLost)
    gate.open.set()
    await parts.ended(executor)


async def test_heartbeat_revokes_all_and_registers_again_when_the_worker_row_is_missing(
    parts: Parts, seen: Recorder, gate: Gate
) -> None:
    executor = await running(parts, gate, "a", "b")
    heartbeat = parts.heartbeat()
    await parts.store.workers.deregister("me")  # as a rescuer does
    await heartbeat.run_once()
    assert seen.of(LeaseLost) == [LeaseLost("me")]
    await seen.until(JobLost, 2)
    assert (gate.cancelled, executor.in_flight.held()) == (2, {})
    assert [worker.worker_id for worker in await parts.store.workers.list_workers()] == ["me"]
    assert holds(parts.lease.is_trusted)
    await heartbeat.run_once()
    assert len(seen.of(LeaseLost)) == 1


async def test_heartbeat_does_not_renew_a_job_that_was_reclaimed(
    clocked: Store, clock: FakeClock, bus: EventBus, seen: Recorder, gate: Gate
) -> None:
    parts = Parts(clocked, bus)
    await running(parts, gate, "a")
    clock.advance(timedelta(seconds=61))
    await clocked.workers.rescue(120)
    (again,) = await claim(clocked, new_job("a"), worker_id="other")
    await parts.heartbeat().run_once()
    await seen.until(JobLost, job_id="a", attempt=1)
    job = await clocked.jobs.get_job("a")
    assert job is not None
    assert (job.worker_id, job.attempt, job.status) == ("other", again.attempt, "running")


async def test_heartbeat_revokes_nothing_when_it_fails_and_the_lease_is_trusted(
    touchy: Store, bus: EventBus, seen: Recorder, gate: Gate, dsn: str
) -> None:
    parts = Parts(touchy, bus)
    executor = await running(parts, gate, "a")
    heartbeat = parts.heartbeat(lease=60)
    await heartbeat.run_once()
    async with locked(dsn, "scheduler_workers"):
        with pytest.raises(DatabaseUnavailableError):
            await heartbeat.run_once()
    assert executor.in_flight.held() == {"a": 1}
    assert not seen.of(LeaseLost)
    gate.open.set()
    await parts.ended(executor)


async def test_heartbeat_revokes_all_when_it_fails_shortly_before_the_lease_ends(
    touchy: Store, seen: Recorder, gate: Gate, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = Parts(touchy, seen.source)
    await running(parts, gate, "a")
    heartbeat = parts.heartbeat(lease=60)
    await heartbeat.run_once()
    real = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real() + 53)
    assert holds(parts.lease.is_trusted)
    monkeypatch.setattr(time, "monotonic", lambda: real() + 55)
    assert not holds(parts.lease.is_trusted)
    async with locked(dsn, "scheduler_workers"):
        with pytest.raises(DatabaseUnavailableError):
            await heartbeat.run_once()
    assert seen.of(LeaseLost) == [LeaseLost("me")]
    await seen.until(JobLost, job_id="a")
    assert gate.cancelled == 1
    assert await statuses(touchy, "a") == ["running"]  # for the rescuer


async def test_heartbeat_revokes_late_claims_when_it_fails_without_a_trusted_lease(
    touchy: Store, bus: EventBus, seen: Recorder, gate: Gate, dsn: str
) -> None:
    parts = Parts(touchy, bus)
    await running(parts, gate, "a")
    heartbeat = parts.heartbeat(lease=60)
    assert not parts.lease.is_trusted  # as after the trust ran out and before the answer to a claim came
    async with locked(dsn, "scheduler_workers"):
        with pytest.raises(DatabaseUnavailableError):
            await heartbeat.run_once()
    await seen.until(JobLost, job_id="a")
    assert len(seen.of(LeaseLost)) == 1


async def test_heartbeat_waits_once_for_the_confirmation_of_an_extended_lease_when_it_fails_repeatedly(
    touchy: Store, seen: Recorder, gate: Gate, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = Parts(touchy, seen.source)
    executor = await running(parts, gate, "a")
    heartbeat = parts.heartbeat(lease=60, max_loop_block=600)
    parts.lease.lock_taken(1, proves_life=True)
    assert not parts.lease.is_trusted
    timers: list[float] = []
    loop = asyncio.get_running_loop()
    call_later = loop.call_later

    def note(delay: float, callback: Any, *args: Any) -> asyncio.TimerHandle:
        if callback == heartbeat._unconfirmed:
            timers.append(delay)
            delay = 3600
        return call_later(delay, callback, *args)

    monkeypatch.setattr(loop, "call_later", note)
    async with locked(dsn, "scheduler_workers"):
        for _ in range(3):
            with pytest.raises(DatabaseUnavailableError):
                await heartbeat.run_once()
    assert len(timers) == 1
    assert executor.in_flight.held() == {"a": 1}
    heartbeat._unconfirmed()
    await seen.until(JobLost, job_id="a")
    assert len(seen.of(LeaseLost)) == 1
    await heartbeat.drain()


async def test_heartbeat_publishes_lease_lost_once_for_each_loss(
    touchy: Store, seen: Recorder, gate: Gate, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = Parts(touchy, seen.source)
    leave = asyncio.Event()

    async def stubborn() -> None:
        try:
            await gate.job()
        except asyncio.CancelledError:
            await leave.wait()
            raise

    parts.tasks.register(stubborn, name="test.job")
    executor = parts.executor()
    (job,) = await claim(touchy, new_job("a"))
    executor.submit(job)
    await gate.wait_begun()
    heartbeat = parts.heartbeat(lease=60)
    real = time.monotonic
    for times in (1, 2):
        await heartbeat.run_once()
        assert holds(parts.lease.is_trusted)
        shift = 55.0 * times
        monkeypatch.setattr(time, "monotonic", lambda: real() + shift)  # noqa: B023 - used in this round
        async with locked(dsn, "scheduler_workers"):
            for _ in range(2):
                with pytest.raises(DatabaseUnavailableError):
                    await heartbeat.run_once()
        assert executor.in_flight.held() == {"a": 1}
        assert len(seen.of(LeaseLost)) == times
    leave.set()
    await parts.ended(executor)


async def test_lease_counts_from_the_request_when_the_response_is_slow(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow answer brings a lease that has aged as much."""
    heartbeat = parts.heartbeat(lease=60)
    await heartbeat.prepare()
    real, renew = time.monotonic, parts.store.workers.renew

    async def slow(*args: Any, **options: Any) -> object:
        answer = await renew(*args, **options)
        monkeypatch.setattr(time, "monotonic", lambda: real() + 55)
        return answer

    monkeypatch.setattr(parts.store.workers, "renew", slow)
    await heartbeat.run_once()
    assert not holds(parts.lease.is_trusted)


@pytest.mark.slow
async def test_heartbeat_revokes_all_in_time_when_its_statement_hangs(
    parts: Parts, seen: Recorder, gate: Gate, dsn: str
) -> None:
    """Real time: the database does not answer. The jobs must be cancelled before the lease ends."""
    await running(parts, gate, "a")
    heartbeat = parts.heartbeat(lease=1)
    await heartbeat.start()
    async with locked(dsn, "scheduler_workers"):
        heartbeat.wake()
        is_in_time = losses_before(seen, 1.5)
        await seen.until(JobLost, job_id="a")
    assert is_in_time == [True]
    await heartbeat.stop()


@pytest.mark.slow
@pytest.mark.parametrize("is_dead", [False, True])
async def test_heartbeat_asks_before_it_revokes_when_a_liveness_lock_extends_the_lease(
    parts: Parts, seen: Recorder, gate: Gate, is_dead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real time: a job holds the GIL for longer than the lease of one second."""
    monkeypatch.setattr(module, "CONFIRMATION_TIMEOUT_S", PATIENCE)
    executor = await running(parts, gate, "a")
    heartbeat = parts.heartbeat(lease=1, max_loop_block=60)
    await heartbeat.start()
    parts.lease.lock_taken(1, proves_life=True)
    if is_dead:
        await parts.store.workers.deregister("me")
    renewals = parts.lease.renewals
    time.sleep(1.5)  # noqa: ASYNC251 - the subject of the test
    assert not holds(parts.lease.is_trusted)
    if is_dead:
        await seen.until(JobLost, job_id="a")
    while parts.lease.renewals <= renewals:
        await seen.until(PassFinished, len(seen.of(PassFinished)) + 1)
    assert len(seen.of(LeaseLost)) == is_dead
    assert bool(executor.in_flight.held()) is not is_dead
    gate.open.set()
    await parts.ended(executor)
    await heartbeat.stop()


@pytest.mark.slow
async def test_heartbeat_revokes_all_when_an_extended_lease_is_not_confirmed(
    parts: Parts, seen: Recorder, gate: Gate, dsn: str
) -> None:
    """Real time: the database does not answer, and no outage is known."""
    await running(parts, gate, "a")
    heartbeat = parts.heartbeat(lease=1, max_loop_block=60)
    await heartbeat.start()
    parts.lease.lock_taken(1, proves_life=True)
    async with locked(dsn, "scheduler_workers"):
        heartbeat.wake()
        is_in_time = losses_before(seen, 10)  # the statement waits for 30 seconds
        await seen.until(JobLost, job_id="a")
    assert is_in_time == [True]
    await heartbeat.stop()


@pytest.mark.slow
async def test_heartbeat_revokes_nothing_when_the_keeper_confirms_an_extended_lease(
    parts: Parts, seen: Recorder, gate: Gate, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real time: the keeper renews on its own connection while the heartbeat waits for an answer."""
    monkeypatch.setattr(module, "CONFIRMATION_TIMEOUT_S", 2.0)
    executor = await running(parts, gate, "a")
    heartbeat = parts.heartbeat(lease=1, max_loop_block=60)
    await heartbeat.start()
    parts.lease.lock_taken(1, proves_life=True)
    async with locked(dsn, "scheduler_workers"):
        heartbeat.wake()
        async with asyncio.timeout(PATIENCE):
            while not heartbeat._is_confirming:  # noqa: ASYNC110 - no event reports that it asks
                await asyncio.sleep(0.01)
            while holds(heartbeat._is_confirming):
                parts.lease.renewed(time.monotonic())
                await asyncio.sleep(0.01)
        assert executor.in_flight.held() == {"a": 1}
    assert not seen.of(LeaseLost)
    gate.open.set()
    await parts.ended(executor)
    await heartbeat.stop()


@pytest.mark.slow
async def test_heartbeat_revokes_all_at_once_when_an_outage_is_known(
    touchy: Store, bus: EventBus, seen: Recorder, gate: Gate, dsn: str
) -> None:
    """Real time: in an outage, nothing can tell whether the liveness lock is still held."""
    parts = Parts(touchy, bus)
    await running(parts, gate, "a")
    heartbeat = parts.heartbeat(lease=1, max_loop_block=60)
    await heartbeat.start()
    parts.lease.lock_taken(1, proves_life=True)
    async with locked(dsn, "scheduler_workers"):
        heartbeat.wake()
        is_in_time = losses_before(seen, 1.5)
        await seen.until(JobLost, job_id="a")
    assert is_in_time == [True]
    await heartbeat.stop()


def two_services(store: Store, bus: EventBus) -> tuple[Parts, Parts]:
    """Two workers with other code for one name, and with a name of their own."""

    async def other_work() -> int:
        return 1

    parts, others = Parts(store, bus), Parts(store, bus, worker_id="other")
    for worker, code in ((parts, work), (others, other_work)):
        worker.tasks.register(code, name="shared")
        worker.tasks.register(Gate().job, name=f"only {worker.worker_id}")
    return parts, others


async def test_services_that_register_at_the_same_time_are_warned_of_shared_names(
    store: Store, bus: EventBus, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither sees the other when it registers, because the rows are not committed yet."""
    parts, others = two_services(store, bus)
    heartbeat = parts.heartbeat()
    await others.heartbeat().prepare()
    async with pool.acquire() as connection:
        await connection.execute("CREATE TEMP TABLE rows AS SELECT * FROM scheduler_workers")
        await connection.execute("DELETE FROM scheduler_workers")
        async with connection.transaction():
            await connection.execute("INSERT INTO scheduler_workers SELECT * FROM rows")
            await heartbeat.prepare()
    assert "other code" not in caplog.text
    await heartbeat.run_once()
    assert "worker other on" in caplog.text
    caplog.clear()
    await heartbeat.run_once()
    assert caplog.text == ""


async def test_only_the_later_one_of_two_services_is_warned_of_shared_names(
    store: Store, bus: EventBus, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture
) -> None:
    parts, others = two_services(store, bus)
    heartbeat = parts.heartbeat()
    await heartbeat.prepare()
    await others.heartbeat().prepare()
    assert "worker me on" in caplog.text
    # The time between the two may have been shorter than a round trip.
    await pool.execute(
        "UPDATE scheduler_workers SET started_at = started_at + interval '1 minute' WHERE worker_id = 'other'"
    )
    caplog.clear()
    await heartbeat.run_once()
    assert caplog.text == ""
