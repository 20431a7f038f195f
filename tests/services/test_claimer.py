"""How many jobs a pass takes, and how long it sleeps then."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta

import asyncpg
import pytest

from pg_scheduler.events import EventBus, JobExpired, JobStarted, PassFinished
from tests.services.kit import LEASE, Gate, Recorder, new_job, new_worker, now, statuses
from tests.services.parts import Parts


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
async def known(parts: Parts, gate: Gate) -> Parts:
    """Parts of a registered worker that knows ``test.job``."""
    parts.tasks.register(gate.job, name="test.job")
    await parts.store.register(new_worker(), LEASE)
    return parts


async def finish(parts: Parts, gate: Gate, executor: object) -> None:
    gate.open.set()
    await Parts.ended(executor)  # type: ignore[arg-type]


async def test_a_full_claim_is_followed_by_the_next_at_once(known: Parts, gate: Gate) -> None:
    await known.store.insert([new_job(str(n)) for n in range(5)])
    executor = known.executor(slots=10)
    claimer = known.claimer(executor, batch=3)
    assert await claimer.run_once() == 0
    assert executor.free == 7
    assert await claimer.run_once() > 0
    assert executor.free == 5
    assert known.calls == ["claimed"] * 2
    await finish(known, gate, executor)


async def test_it_claims_no_more_than_there_are_slots(known: Parts, gate: Gate) -> None:
    await known.store.insert([new_job(str(n)) for n in range(5)])
    executor = known.executor(slots=2)
    claimer = known.claimer(executor, batch=10, semaphore_full_interval=7.0)
    assert await claimer.run_once() == 0
    assert len(executor.held()) == 2
    assert await claimer.run_once() == 7.0
    assert (await known.store.count_jobs(None)).running == 2
    await finish(known, gate, executor)


async def test_two_passes_at_once_do_not_overfill_the_slots(known: Parts, gate: Gate) -> None:
    """As when somebody calls listen_for_jobs() while the claimer runs."""
    await known.store.insert([new_job(str(n)) for n in range(5)])
    executor = known.executor(slots=1)
    claimer = known.claimer(executor)
    await asyncio.gather(claimer.run_once(), claimer.run_once())
    assert len(executor.held()) == 1
    await finish(known, gate, executor)


async def test_it_sleeps_until_the_next_job_is_due(known: Parts) -> None:
    await known.store.insert(
        [
            new_job("soon", execution_time=now() + timedelta(seconds=1), priority=8),
            new_job("later", execution_time=now() + timedelta(seconds=1.5), priority=1),
        ]
    )
    claimer = known.claimer(max_interval=60.0, idle_start_interval=60.0)
    assert 0.8 < await claimer.run_once() <= 1.0


async def test_the_timer_strikes_at_the_due_time_not_around_it(
    known: Parts, bus: EventBus, seen: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jitter belongs to polls. A due time that is moved by 10 % of the sleep is a job that is late."""
    monkeypatch.setattr(random, "uniform", lambda low, high: high)  # the latest that chance can make it
    gate = Gate()
    gate.open.set()
    known.tasks.register(gate.job, name="test.job")
    claimer = known.claimer(max_interval=60.0, idle_start_interval=60.0)
    await known.store.insert([new_job("a", execution_time=now() + timedelta(seconds=1.5))])
    await claimer.start()
    (first,) = seen.of(PassFinished, service="claimer")
    assert first.next_in <= 1.5
    await claimer.stop()


async def test_jobs_of_unknown_names_set_no_timer(known: Parts) -> None:
    await known.store.insert([new_job("a", "nobody.knows")])
    claimer = known.claimer(max_interval=60.0, idle_start_interval=30.0, jitter=False)
    assert await claimer.run_once() == 30.0
    assert await statuses(known.store, "a") == ["pending"]


async def test_idle_polls_grow_up_to_their_bound_and_begin_anew_after_work(known: Parts, gate: Gate) -> None:
    gate.open.set()
    claimer = known.claimer(
        min_interval=2.0, idle_start_interval=1.0, backoff_multiplier=2.0, max_interval=5.0, jitter=False
    )
    assert [await claimer.run_once() for _ in range(5)] == [2.0, 2.0, 4.0, 5.0, 5.0]
    await known.store.insert([new_job("a")])
    assert await claimer.run_once() == 2.0
    await Parts.ended(claimer._executor)


@pytest.mark.parametrize("chance", [-1.0, 1.0])
async def test_jitter_moves_a_poll_by_a_tenth(
    known: Parts, seen: Recorder, monkeypatch: pytest.MonkeyPatch, chance: float
) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: high if chance > 0 else low)
    claimer = known.claimer(max_interval=60.0, idle_start_interval=10.0)
    await claimer.start()
    (first,) = seen.of(PassFinished, service="claimer")
    assert first.next_in == pytest.approx(10.0 + chance)
    await claimer.stop()


async def test_what_is_due_but_locked_does_not_make_it_spin(known: Parts, dsn: str) -> None:
    """Somebody's transaction holds the row: a poll that found nothing, no reason to ask again at once."""
    await known.store.insert([new_job("a")])
    other = await asyncpg.connect(dsn)
    claimer = known.claimer(min_interval=0.05)
    async with other.transaction():
        await other.execute("SELECT FROM scheduled_jobs FOR UPDATE")
        assert [await claimer.run_once() for _ in range(3)][1:] == [
            pytest.approx(0.05, rel=0.1),
            pytest.approx(0.05, rel=0.1),
        ]
    await other.close()


async def test_a_worker_whose_row_is_gone_claims_nothing_and_does_not_spin(parts: Parts, gate: Gate) -> None:
    parts.tasks.register(gate.job, name="test.job")
    await parts.store.insert([new_job("a")])
    claimer = parts.claimer(min_interval=0.05)
    assert [await claimer.run_once() > 0 for _ in range(3)][1:] == [True, True]
    assert await statuses(parts.store, "a") == ["pending"]


async def test_strict_priority_then_time_then_id(known: Parts, seen: Recorder, gate: Gate) -> None:
    old, older = now() - timedelta(hours=1), now() - timedelta(hours=2)
    await known.store.insert(
        [
            new_job("low", priority=8, execution_time=older),
            new_job("normal b", execution_time=old),
            new_job("normal a", execution_time=old),
            new_job("normal older", execution_time=older),
            new_job("critical", priority=1),
            new_job("high", priority=3),
            new_job("future", priority=1, execution_time=now() + timedelta(hours=1)),
        ]
    )
    executor = known.executor(slots=6)
    claimer = known.claimer(executor, batch=2)
    gate.open.set()
    for _ in range(3):
        await claimer.run_once()
    await Parts.ended(executor)
    order = [event.job_id for event in seen.of(JobStarted)]
    assert order == ["critical", "high", "normal older", "normal a", "normal b", "low"]


async def test_jobs_past_their_grace_are_found_expired(known: Parts, seen: Recorder, gate: Gate) -> None:
    late = now() - timedelta(seconds=60)
    graces = {"expired": 30, "in time": 90, "patient": None}
    await known.store.insert(
        [new_job(job_id, execution_time=late, misfire_grace_time=grace) for job_id, grace in graces.items()]
    )
    gate.open.set()
    executor = known.executor()
    claimer = known.claimer(executor, batch=3)
    assert await claimer.run_once() == 0  # a batch that brought expired rows is no idle queue
    await Parts.ended(executor)
    assert [event.job_id for event in seen.of(JobExpired)] == ["expired"]
    assert await statuses(known.store, "expired", "in time", "patient") == ["expired", "running", "running"]
