"""The completer writes results in batches, and loses none while the database is unavailable."""

from __future__ import annotations

import asyncio
import itertools
from datetime import datetime, timedelta

import asyncpg
import pytest

from pg_scheduler import DatabaseUnavailableError, JobStatus
from pg_scheduler.events import (
    EventBus,
    JobCancelled,
    JobCompleted,
    JobEvent,
    JobFailed,
    JobLost,
    JobReleased,
    JobRetried,
    ServiceRetrying,
)
from tests.support.inside import COMPLETE, NEVER, RELEASE, Connections, Outcome, Store
from tests.support.parts import Parts
from tests.support.worker import Recorder, claim, completed, locked, new_job, now, statuses, wire_to


async def test_completer_sleeps_when_there_is_nothing_to_write(parts: Parts) -> None:
    assert await parts.completer().run_once() == NEVER


@pytest.mark.parametrize(
    ("outcome", "status", "event"),
    [
        (COMPLETE, "completed", JobCompleted("a", "test.job", 1)),
        (Outcome.fail("no"), "failed", JobFailed("a", "test.job", 1, "no")),
        (
            Outcome.retry(timedelta(minutes=1), "no"),
            "pending",
            JobRetried("a", "test.job", 1, "no", timedelta(minutes=1)),
        ),
        (RELEASE, "pending", JobReleased("a", "test.job", 1)),
        (Outcome.skip("taken"), "cancelled", JobCancelled("a", "test.job", 1, "taken")),
    ],
)
async def test_completer_writes_and_publishes_each_outcome(
    parts: Parts, seen: Recorder, outcome: Outcome, status: str, event: JobEvent
) -> None:
    (held,) = await claim(parts.store, new_job("a", max_retries=1))
    completer = parts.completer()
    parts.result_buffer.put(held, outcome)
    assert await completer.run_once() == NEVER
    job = await parts.store.jobs.get_job("a")
    assert job is not None
    assert (job.status, seen.events) == (status, [event])
    assert job.retry_count == isinstance(event, JobRetried)
    assert job.error_message == getattr(event, "error", getattr(event, "reason", None))
    if isinstance(event, JobRetried):
        assert timedelta(seconds=50) < job.execution_time - job.created_at < timedelta(seconds=70)


async def test_completer_publishes_events_after_the_commit(parts: Parts, bus: EventBus, dsn: str) -> None:
    (held,) = await claim(parts.store, new_job("a"))
    completer = parts.completer()
    parts.result_buffer.put(held, COMPLETE)
    told: list[asyncio.Task[object]] = []
    other = await asyncpg.connect(dsn)

    def look(event: object) -> None:
        query = other.fetchval("SELECT status FROM scheduled_jobs WHERE job_id = 'a'")
        told.append(asyncio.ensure_future(query))

    bus.subscribe(look, JobCompleted)
    await completer.run_once()
    assert await told[0] == "completed"
    await other.close()


async def test_completer_writes_in_batches(parts: Parts, seen: Recorder) -> None:
    parts.result_buffer.batch_size = 10
    held = await claim(parts.store, *(new_job(f"{n:02}") for n in range(25)))
    completer = parts.completer()
    for each in held:
        parts.result_buffer.put(each, COMPLETE)
    assert [await completer.run_once() for _ in range(3)] == [0, 0, NEVER]
    assert [event.job_id for event in seen.of(JobCompleted)] == [f"{n:02}" for n in range(25)]


async def test_completer_writes_all_kinds_of_outcomes_in_one_pass(parts: Parts, seen: Recorder) -> None:
    held = await claim(parts.store, *(new_job(job_id) for job_id in "abcd"))
    completer = parts.completer()
    outcomes: list[Outcome] = [COMPLETE, Outcome.fail("no"), RELEASE, COMPLETE]
    for each, outcome in zip(held, outcomes, strict=True):
        parts.result_buffer.put(each, outcome)
    assert await completer.run_once() == NEVER
    assert await statuses(parts.store, *"abcd") == ["completed", "failed", "pending", "completed"]
    assert len(seen.events) == 4


async def test_no_job_is_claimed_while_too_many_outcomes_are_not_written(parts: Parts) -> None:
    parts.result_buffer.batch_size, parts.result_buffer.capacity = 2, 4
    completer = parts.completer()
    executor = parts.executor(completer, slots=10)
    claimer = parts.claimer(executor)
    for claimed in await claim(parts.store, *(new_job(str(n)) for n in range(6))):
        parts.result_buffer.put(claimed, COMPLETE)
    assert (executor.free, executor.room) == (10, 0)
    await parts.store.inserts.insert([new_job("later")])
    await claimer.run_once()
    assert await statuses(parts.store, "later") == ["pending"]
    await completer.run_once()
    assert executor.room == 0, "four are left: still too many"
    parts.calls.clear()
    await completer.run_once()
    assert executor.room == 10
    assert "slot_free" in parts.calls, "the claimer wakes"


@pytest.mark.parametrize("outcomes", list(itertools.product([COMPLETE, Outcome.fail("no")], repeat=2)))
async def test_completer_writes_two_attempts_of_one_job_one_after_the_other(
    parts: Parts, seen: Recorder, outcomes: tuple[Outcome, Outcome]
) -> None:
    """Both ended before either could be written: each under its own token."""
    (old,) = await claim(parts.store, new_job("a"))
    await parts.store.jobs.set_status("a", JobStatus.PENDING, 60)
    (new,) = await claim(parts.store, new_job("a"))
    completer = parts.completer()
    parts.result_buffer.put(old, outcomes[0])
    parts.result_buffer.put(new, outcomes[1])
    passes = 0
    while await completer.run_once() == 0:
        passes += 1
    assert passes <= 1
    assert JobLost("a", "test.job", 1) in seen.events
    (ended,) = [event for event in seen.of(JobEvent) if event.attempt == 2]
    assert len(seen.events) == 2
    assert (type(ended), *await statuses(parts.store, "a")) == (
        (JobCompleted, "completed") if outcomes[1] is COMPLETE else (JobFailed, "failed")
    )


async def test_completer_signals_pending_and_released_jobs(parts: Parts) -> None:
    held = await claim(parts.store, new_job("a"), new_job("b"))
    completer = parts.completer()
    parts.result_buffer.put(held[0], Outcome.fail("no"))
    await completer.run_once()
    parts.result_buffer.put(held[1], RELEASE)
    await completer.run_once()
    assert parts.calls == ["due", "jobs_released", "due"]


async def test_completer_publishes_a_refused_result_as_lost(parts: Parts, seen: Recorder) -> None:
    (old,) = await claim(parts.store, new_job("a"))
    await parts.store.results.settle("me", [(old, RELEASE)])
    (new,) = await claim(parts.store, new_job("a"))
    completer = parts.completer()
    parts.result_buffer.put(old, COMPLETE)
    await completer.run_once()
    assert seen.events == [JobLost("a", "test.job", 1)]
    assert await statuses(parts.store, "a") == ["running"]
    parts.result_buffer.put(new, Outcome.fail("no"))
    await completer.run_once()
    assert await statuses(parts.store, "a") == ["failed"]


async def test_completer_writes_the_batch_when_one_result_is_refused(parts: Parts, seen: Recorder) -> None:
    held = await claim(parts.store, new_job("a"), new_job("b"))
    await parts.store.jobs.cancel("a")
    completer = parts.completer()
    for each in held:
        parts.result_buffer.put(each, COMPLETE)
    await completer.run_once()
    assert await statuses(parts.store, "a", "b") == ["cancelled", "completed"]
    cancelled = JobCancelled("a", "test.job", 1, reason="cancelled by a caller")
    assert seen.events == [JobCompleted("b", "test.job", 1), cancelled]


@pytest.mark.parametrize("outcome", [COMPLETE, Outcome.fail("no"), Outcome.snooze(timedelta(hours=1))])
async def test_attempt_that_ends_before_its_worker_learns_of_the_cancellation_is_cancelled(
    parts: Parts, seen: Recorder, outcome: Outcome
) -> None:
    """It is not lost, so it raises no failure rate; also if the job was retried meanwhile."""
    held = await claim(parts.store, new_job("a"), new_job("b"))
    await parts.store.jobs.cancel("a")
    await parts.store.jobs.cancel("b")
    assert await parts.store.jobs.retry("b")
    completer = parts.completer()
    for attempt in held:
        parts.result_buffer.put(attempt, outcome)
    await completer.run_once()
    await completer.run_once()
    assert seen.events == [
        JobCancelled(job_id, "test.job", 1, reason="cancelled by a caller") for job_id in ("a", "b")
    ]


async def test_completion_whose_row_was_locked_is_deleted_when_completed_jobs_are_not_kept(
    parts: Parts, seen: Recorder, dsn: str
) -> None:
    parts.use_result_buffer(keeps_completed=False)
    held = await claim(parts.store, new_job("a"), new_job("b"))
    completer = parts.completer()
    for each in held:
        parts.result_buffer.put(each, COMPLETE)
    other = await asyncpg.connect(dsn)
    async with other.transaction():
        await other.execute("SELECT FROM scheduled_jobs WHERE job_id = 'a' FOR UPDATE")
        with parts.result_buffer.completions() as completions:
            completions.refused = await parts.store.claims.complete("me", completions.claims, keep=False)
    assert await other.fetchval("SELECT string_agg(job_id, ',') FROM scheduled_jobs") == "a"
    await completer.run_once()
    assert await other.fetchval("SELECT count(*) FROM scheduled_jobs") == 0
    await other.close()
    assert {event.job_id for event in seen.of(JobCompleted)} == {"a", "b"}
    assert parts.result_buffer.deleted == {JobStatus.COMPLETED: 2}


@pytest.mark.parametrize(
    ("outcome", "status"),
    [(COMPLETE, "completed"), (Outcome.fail("no"), "failed"), (Outcome.skip("no"), "cancelled")],
)
async def test_completer_keeps_its_results_when_the_database_is_unavailable(
    touchy: Store, bus: EventBus, dsn: str, outcome: Outcome, status: str
) -> None:
    parts, seen = Parts(touchy, bus), Recorder(bus)
    held = await claim(touchy, new_job("a"), new_job("b"))
    completer = parts.completer()
    for each in held:
        parts.result_buffer.put(each, outcome)
    async with locked(dsn, "scheduled_jobs"):
        with pytest.raises(DatabaseUnavailableError):
            await completer.run_once()
    assert seen.events == []
    assert await completer.run_once() == NEVER
    assert await statuses(touchy, "a", "b") == [status] * 2
    assert [event.job_id for event in seen.of(JobEvent)] == ["a", "b"]


async def test_completer_retries_until_the_database_is_available(
    dsn: str, bus: EventBus, seen: Recorder
) -> None:
    async with wire_to(dsn) as wire:
        pool = await asyncpg.create_pool(wire.dsn, min_size=1, max_size=3)
        parts = Parts(Store(Connections(pool)), bus)
        held = await claim(parts.store, new_job("a"))
        completer = parts.completer()
        await completer.start()
        wire.cut()
        parts.result_buffer.put(held[0], COMPLETE)
        await seen.until(ServiceRetrying, 2)
        await wire.heal()
        await seen.until(JobCompleted, job_id="a")
        await completer.stop()
        await pool.close()


async def test_completer_drain_retries_until_the_database_is_available(
    touchy: Store, bus: EventBus, dsn: str
) -> None:
    parts = Parts(touchy, bus)
    completer = parts.completer(flush_timeout=20)
    held = await claim(touchy, *(new_job(str(n)) for n in range(700)))
    await completer.start()
    async with locked(dsn, "scheduled_jobs"):
        for each in held:
            parts.result_buffer.put(each, COMPLETE)
        seen = Recorder(bus)
        await seen.until(ServiceRetrying)
        stopping = asyncio.create_task(completer.stop())
        done, _ = await asyncio.wait([stopping], timeout=0.1)  # real time: it must retry
        assert not done
    await stopping
    assert len(seen.of(JobCompleted)) == 700


async def test_completer_drain_raises_with_the_jobs_whose_results_were_not_written(
    touchy: Store, bus: EventBus, dsn: str
) -> None:
    parts = Parts(touchy, bus)
    completer = parts.completer(flush_timeout=0)
    for each, outcome in completed(await claim(touchy, new_job("one"), new_job("two"))):
        parts.result_buffer.put(each, outcome)
    async with locked(dsn, "scheduled_jobs"):
        with pytest.raises(DatabaseUnavailableError, match="one, two") as raised:
            await completer.drain()
    assert isinstance(raised.value.__cause__, DatabaseUnavailableError)


@pytest.mark.parametrize(
    ("outcome", "keeps_due_time"),
    [
        (RELEASE, True),
        (Outcome.crash("no", None), True),
        (Outcome.retry(timedelta(0), "no"), True),
        (Outcome.retry(timedelta(seconds=1), "no"), False),
        (Outcome.snooze(timedelta(0)), True),
        (Outcome.snooze(timedelta(seconds=1)), False),
        (Outcome.fail("no"), False),
    ],
)
async def test_completer_announces_pending_jobs_with_the_time_when_they_are_due(
    parts: Parts, outcome: Outcome, keeps_due_time: bool
) -> None:
    """Claims return to that time. A job that is due after a delay is not in front of them."""
    due = now() - timedelta(hours=1)
    held = await claim(
        parts.store, new_job("a", execution_time=due, max_retries=1), new_job("b", execution_time=due)
    )
    announced: list[datetime | None] = []
    released: list[datetime | None] = []
    parts.signals.due.connect(announced.append)
    parts.signals.jobs_released.connect(released.append)
    began = now()
    parts.result_buffer.put(held[0], outcome)
    parts.result_buffer.put(held[1], Outcome.fail("no"))
    await parts.completer().run_once()
    assert [each == due for each in announced] == [keeps_due_time]
    assert announced[0] is not None
    assert keeps_due_time or began <= announced[0]
    assert released == [due] * (outcome is RELEASE)
