"""Results reach the table: in batches, under their tokens, and not lost while the database is away."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from pg_scheduler import JobStatus, TransientFault
from pg_scheduler.domain.outcome import Completed, Failed, Outcome, Release, Retry, Skip
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
from pg_scheduler.services import completer as module
from pg_scheduler.services.base import NEVER
from pg_scheduler.store.pool import Connections
from pg_scheduler.store.store import Store
from tests.services.kit import Recorder, claim, completed, locked, new_job, statuses, wire_to
from tests.services.parts import Parts


async def test_nothing_to_write_means_sleep(parts: Parts) -> None:
    assert await parts.completer().run_once() == NEVER


@pytest.mark.parametrize(
    ("outcome", "status", "event"),
    [
        (Completed(), "completed", JobCompleted("a", "test.job", 1)),
        (Failed("no"), "failed", JobFailed("a", "test.job", 1, "no")),
        (
            Retry(timedelta(minutes=1), "no"),
            "pending",
            JobRetried("a", "test.job", 1, "no", timedelta(minutes=1)),
        ),
        (Release(), "pending", JobReleased("a", "test.job", 1)),
        (Skip("taken"), "cancelled", JobCancelled("a", "test.job", 1, "taken")),
    ],
)
async def test_each_outcome_is_written_and_told(
    parts: Parts, seen: Recorder, outcome: Outcome, status: str, event: JobEvent
) -> None:
    (held,) = await claim(parts.store, new_job("a", max_retries=1))
    completer = parts.completer()
    await completer.put(held, outcome)
    assert await completer.run_once() == NEVER
    job = await parts.store.get_job("a")
    assert job is not None
    assert (job.status, seen.events) == (status, [event])
    assert job.retry_count == isinstance(outcome, Retry)
    assert job.error_message == getattr(outcome, "error", getattr(outcome, "reason", None))
    if isinstance(outcome, Retry):
        assert timedelta(seconds=50) < job.execution_time - job.created_at < timedelta(seconds=70)


async def test_events_come_after_the_commit(parts: Parts, bus: EventBus, dsn: str) -> None:
    (held,) = await claim(parts.store, new_job("a"))
    completer = parts.completer()
    await completer.put(held, Completed())
    told: list[asyncio.Task[object]] = []
    other = await asyncpg.connect(dsn)

    def look(event: object) -> None:
        query = other.fetchval("SELECT status FROM scheduled_jobs WHERE job_id = 'a'")
        told.append(asyncio.ensure_future(query))

    bus.subscribe(look, JobCompleted)
    await completer.run_once()
    assert await told[0] == "completed"
    await other.close()


async def test_what_gathered_is_written_in_batches(
    parts: Parts, seen: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH", 10)
    held = await claim(parts.store, *(new_job(f"{n:02}") for n in range(25)))
    completer = parts.completer()
    for each in held:
        await completer.put(each, Completed())
    assert [await completer.run_once() for _ in range(3)] == [0, 0, NEVER]
    assert [event.job_id for event in seen.of(JobCompleted)] == [f"{n:02}" for n in range(25)]


async def test_a_mixed_batch_is_written_in_one_transaction(parts: Parts, seen: Recorder) -> None:
    held = await claim(parts.store, *(new_job(job_id) for job_id in "abcd"))
    completer = parts.completer()
    outcomes: list[Outcome] = [Completed(), Failed("no"), Release(), Completed()]
    for each, outcome in zip(held, outcomes, strict=True):
        await completer.put(each, outcome)
    await completer.run_once()
    assert await statuses(parts.store, *"abcd") == ["completed", "failed", "pending", "completed"]
    assert len(seen.events) == 4


async def test_who_outruns_the_database_waits(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH", 2)
    monkeypatch.setattr(module, "HIGH_WATER", 4)
    held = await claim(parts.store, *(new_job(str(n)) for n in range(6)))
    completer = parts.completer()
    putting = [asyncio.create_task(completer.put(each, Completed())) for each in held]
    done, waiting = await asyncio.wait(putting, timeout=0.02)  # real time: they must not come back
    assert (len(done), len(waiting)) == (3, 3)
    await completer.run_once()
    assert not any(task.done() for task in waiting)  # four are left: still too many
    await completer.run_once()
    await asyncio.gather(*waiting)
    await completer.run_once()
    assert await statuses(parts.store, *"012345") == ["completed"] * 6


async def test_two_tries_of_one_job_are_written_one_after_the_other(parts: Parts, seen: Recorder) -> None:
    """Both ended before either could be written: each under its own token."""
    (old,) = await claim(parts.store, new_job("a"))
    await parts.store.set_status("a", JobStatus.PENDING, 60)
    (new,) = await claim(parts.store, new_job("a"))
    completer = parts.completer()
    await completer.put(old, Failed("no"))
    await completer.put(new, Completed())
    assert [await completer.run_once(), await completer.run_once()] == [0, NEVER]
    assert seen.events == [JobLost("a", "test.job", 1), JobCompleted("a", "test.job", 2)]
    assert await statuses(parts.store, "a") == ["completed"]


async def test_neighbours_hear_of_what_was_written_and_handed_back(parts: Parts) -> None:
    held = await claim(parts.store, new_job("a"), new_job("b"))
    completer = parts.completer()
    await completer.put(held[0], Failed("no"))
    await completer.run_once()
    await completer.put(held[1], Release())
    await completer.run_once()
    assert parts.calls == ["written", "handed back"]


async def test_a_refused_result_is_told_and_changes_nothing(parts: Parts, seen: Recorder) -> None:
    (old,) = await claim(parts.store, new_job("a"))
    await parts.store.finish("me", [(old, Release())])
    (new,) = await claim(parts.store, new_job("a"))
    completer = parts.completer()
    await completer.put(old, Completed())
    await completer.run_once()
    assert seen.events == [JobLost("a", "test.job", 1)]
    assert await statuses(parts.store, "a") == ["running"]
    await completer.put(new, Failed("no"))
    await completer.run_once()
    assert await statuses(parts.store, "a") == ["failed"]


async def test_a_refused_result_does_not_hold_up_its_batch(parts: Parts, seen: Recorder) -> None:
    held = await claim(parts.store, new_job("a"), new_job("b"))
    await parts.store.cancel("a")
    completer = parts.completer()
    for each in held:
        await completer.put(each, Completed())
    await completer.run_once()
    assert await statuses(parts.store, "a", "b") == ["cancelled", "completed"]
    assert [type(event) for event in seen.events] == [JobLost, JobCompleted]


async def test_a_transient_fault_keeps_the_buffer(touchy: Store, bus: EventBus, dsn: str) -> None:
    parts, seen = Parts(touchy, bus), Recorder(bus)
    held = await claim(touchy, new_job("a"), new_job("b"))
    completer = parts.completer()
    for each in held:
        await completer.put(each, Completed())
    async with locked(dsn, "scheduled_jobs"):
        with pytest.raises(TransientFault):
            await completer.run_once()
    assert seen.events == []
    await completer.run_once()
    assert await statuses(touchy, "a", "b") == ["completed"] * 2
    assert len(seen.of(JobCompleted)) == 2


async def test_the_loop_tries_again_until_the_server_is_back(dsn: str, bus: EventBus, seen: Recorder) -> None:
    async with wire_to(dsn) as wire:
        pool = await asyncpg.create_pool(wire.dsn, min_size=1, max_size=3)
        parts = Parts(Store(Connections(pool)), bus)
        held = await claim(parts.store, new_job("a"))
        completer = parts.completer()
        await completer.start()
        wire.cut()
        await completer.put(held[0], Completed())
        await seen.until(ServiceRetrying, 2)
        await wire.heal()
        await seen.until(JobCompleted, job_id="a")
        await completer.stop()
        await pool.close()


async def test_drain_waits_for_the_database_and_loses_nothing(touchy: Store, bus: EventBus, dsn: str) -> None:
    completer = Parts(touchy, bus).completer(flush_timeout=20)
    held = await claim(touchy, *(new_job(str(n)) for n in range(700)))
    await completer.start()
    async with locked(dsn, "scheduled_jobs"):
        for each in held:
            await completer.put(each, Completed())
        seen = Recorder(bus)
        await seen.until(ServiceRetrying)
        stopping = asyncio.create_task(completer.stop())
        done, _ = await asyncio.wait([stopping], timeout=0.1)  # real time: it must go on trying
        assert not done
    await stopping
    assert len(seen.of(JobCompleted)) == 700


async def test_drain_names_what_it_could_not_write(touchy: Store, bus: EventBus, dsn: str) -> None:
    completer = Parts(touchy, bus).completer(flush_timeout=0)
    for each, outcome in completed(await claim(touchy, new_job("one"), new_job("two"))):
        await completer.put(each, outcome)
    async with locked(dsn, "scheduled_jobs"):
        with pytest.raises(TransientFault, match="one, two") as raised:
            await completer.drain()
    assert isinstance(raised.value.__cause__, TransientFault)
