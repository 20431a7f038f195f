"""How many jobs the claimer claims, and how long it sleeps."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import DatabaseUnavailableError
from pg_scheduler.errors import ConnectionLostError
from pg_scheduler.events import (
    EventBus,
    JobCompleted,
    JobExpired,
    JobLost,
    JobsReclaimed,
    JobStarted,
    PassFinished,
    ServiceRetrying,
)
from pg_scheduler.worker import claimer as module
from pg_scheduler.worker import cursor
from pg_scheduler.worker.claims import ClaimRepository, ExchangeResult
from pg_scheduler.worker.pacing import APPROACH_S, ClaimSize
from pg_scheduler.worker.service import BackoffOptions, Service
from tests.support.cases import each_case
from tests.support.inside import COMPLETE, NEVER, PlainJob, Revocation, Store
from tests.support.parts import Parts, sent_statements
from tests.support.worker import (
    LEASE,
    PATIENCE,
    Gate,
    Recorder,
    claim,
    holds,
    insert_unreadable,
    locked,
    new_job,
    new_worker,
    now,
    statuses,
)


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
async def known(parts: Parts, gate: Gate) -> Parts:
    """Parts of a registered worker that knows ``test.job``."""
    parts.tasks.register(gate.job, name="test.job")
    await parts.store.workers.register(new_worker(), LEASE)
    return parts


async def finish(parts: Parts, gate: Gate, executor: object) -> None:
    gate.open.set()
    await Parts.ended(executor)  # type: ignore[arg-type]


async def test_claimer_claims_again_at_once_when_the_last_claim_was_full(known: Parts, gate: Gate) -> None:
    await known.store.inserts.insert([new_job(str(n)) for n in range(5)])
    executor = known.executor(slots=10)
    claimer = known.claimer(executor, batch=3)
    assert await claimer.run_once() == 0
    assert executor.free == 7
    assert await claimer.run_once() == 0  # it began where the first one ended: once more, from the start
    assert executor.free == 5
    assert await claimer.run_once() > 0
    assert executor.free == 5
    assert known.calls == []
    await finish(known, gate, executor)


async def test_claims_grow_with_the_backlog_up_to_the_free_slots(known: Parts, gate: Gate) -> None:
    """The first one leaves a short queue to other workers. None takes a job that it cannot start."""
    await known.store.inserts.insert([new_job(str(n)) for n in range(110)])
    executor = known.executor(slots=100)
    claimer = known.claimer(executor, batch=None)
    for free in (90, 70, 30, 0):
        assert await claimer.run_once() == 0
        assert executor.free == free
    await claimer.run_once()
    assert (await known.store.jobs.count_jobs(None)).running == 100
    gate.open.set()
    await Parts.ended(executor)
    gate.open.clear()
    assert await claimer.run_once() == 0
    assert await claimer.run_once() > 0, "the queue is empty"
    assert executor.free == 90
    await known.store.inserts.insert([new_job(f"later {n}") for n in range(40)])
    await claimer.run_once()
    assert executor.free == 80, "a short queue again"
    await finish(known, gate, executor)


async def test_claims_are_small_again_after_one_that_failed(
    touchy: Store, bus: EventBus, dsn: str, gate: Gate
) -> None:
    """They may be too large to be answered in time."""
    parts = Parts(touchy, bus)
    parts.tasks.register(gate.job, name="test.job")
    await touchy.workers.register(new_worker(), LEASE)
    await touchy.inserts.insert([new_job(str(n)) for n in range(60)])
    executor = parts.executor(slots=100)
    claimer = parts.claimer(executor, batch=None)
    await claimer.run_once()
    await claimer.run_once()
    assert executor.free == 70
    async with locked(dsn, "scheduled_jobs"):
        with pytest.raises(DatabaseUnavailableError):
            await claimer.run_once()
    await claimer.run_once()
    assert executor.free == 60
    await finish(parts, gate, executor)


@each_case("slots", [1, 25, 128, 256, 1_000])
@each_case("given", [None, 10, 500])
def test_claim_size_does_not_exceed_what_is_given_or_adapted(slots: int, given: int | None) -> None:
    size = ClaimSize(given, slots)
    seen = [size.limit]
    for _ in range(10):
        size.adapt(size.limit, size.limit)
        seen.append(size.limit)
    adapted = {1: 10, 25: 25, 128: 128, 256: 128, 1_000: 500}
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == ((10, adapted[slots]) if given is None else (given, given))
    size.adapt(1, 1)
    assert size.limit == seen[-1], "one free slot says nothing about the backlog"
    size.adapt(2, 1)
    assert size.limit == seen[0]


@pytest.mark.parametrize(("slots", "free"), [(16, 16), (20, 10)])
async def test_jobs_of_a_claim_end_before_the_next_one_unless_that_has_as_many_slots(
    known: Parts, gate: Gate, slots: int, free: int
) -> None:
    """Small claims cost as much as large ones. With slots to spare, the database works beside the jobs."""
    gate.open.set()
    await known.store.inserts.insert([new_job(str(n)) for n in range(10)])
    executor = known.executor(slots=slots)
    claimer = known.claimer(executor, batch=10)
    assert await claimer.run_once() == 0
    assert executor.free == free
    await Parts.ended(executor)


async def test_claimer_releases_unacknowledged_claims_after_a_lost_response(
    touchy: Store, bus: EventBus, seen: Recorder, dsn: str, gate: Gate
) -> None:
    """It does not wait until the lease of the row is over."""
    parts = Parts(touchy, bus)
    parts.tasks.register(gate.job, name="test.job")
    _, heard, written = await claim(touchy, new_job("unheard"), new_job("heard"), new_job("written"))
    executor = parts.executor(slots=10)
    executor.submit(heard)
    parts.result_buffer.put(written, COMPLETE)
    claimer = parts.claimer(executor)
    async with locked(dsn, "scheduled_jobs"):
        for _ in ("the claim", "the look for what it took"):
            with pytest.raises(DatabaseUnavailableError):
                await claimer.run_once()
    await claimer.run_once()
    assert [event.job_ids for event in seen.of(JobsReclaimed)] == [("unheard",)]
    assert [event.job_id for event in seen.of(JobCompleted)] == ["written"]
    assert executor.in_flight.held() == {"heard": 1, "unheard": 2}
    await claimer.run_once()
    assert len(seen.of(JobsReclaimed)) == 1
    executor.in_flight.revoke(
        "heard", 1, Revocation.LOST
    )  # the lease is over, and no other worker has claimed it yet
    await seen.until(JobLost)
    claimer.reconcile_claims()
    await claimer.run_once()
    assert seen.of(JobsReclaimed)[1].job_ids == ("heard",)
    assert executor.in_flight.held() == {"heard": 2, "unheard": 2}
    await finish(parts, gate, executor)


async def test_claimer_reconciles_again_when_an_attempt_is_lost_during_a_reconciliation(
    known: Parts, seen: Recorder, dsn: str, gate: Gate
) -> None:
    (held,) = await claim(known.store, new_job("a"))
    executor = known.executor(slots=10)
    executor.submit(held)
    await gate.wait_begun()
    claimer = known.claimer(executor)
    claimer.reconcile_claims()
    async with locked(dsn, "scheduled_jobs"):
        look = asyncio.create_task(claimer.run_once())
        waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        while not await known.store.connections._pool.fetchval(waits):  # noqa: ASYNC110 - no event comes
            await asyncio.sleep(0)
        executor.in_flight.revoke("a", 1, Revocation.LOST)
        await seen.until(JobLost)
        claimer.reconcile_claims()
    await look
    await claimer.run_once()
    assert [event.job_ids for event in seen.of(JobsReclaimed)] == [("a",)]
    await finish(known, gate, executor)


async def test_claimer_claims_no_more_jobs_than_there_are_free_slots(known: Parts, gate: Gate) -> None:
    await known.store.inserts.insert([new_job(str(n)) for n in range(5)])
    executor = known.executor(slots=2)
    claimer = known.claimer(executor, batch=10, semaphore_full_interval=7.0)
    assert await claimer.run_once() == 0
    assert len(executor.in_flight.held()) == 2
    assert await claimer.run_once() == 7.0
    assert (await known.store.jobs.count_jobs(None)).running == 2
    await finish(known, gate, executor)


async def test_claimer_does_not_overfill_the_slots_when_two_passes_run_at_once(
    known: Parts, gate: Gate
) -> None:
    """As when a caller calls listen_for_jobs() while the claimer runs."""
    await known.store.inserts.insert([new_job(str(n)) for n in range(5)])
    executor = known.executor(slots=1)
    claimer = known.claimer(executor)
    await asyncio.gather(claimer.run_once(), claimer.run_once())
    assert len(executor.in_flight.held()) == 1
    await finish(known, gate, executor)


async def test_claimer_sleeps_until_the_next_job_is_due(known: Parts) -> None:
    soon = now() + timedelta(seconds=30)
    await known.store.inserts.insert(
        [
            new_job("soon", execution_time=soon, priority=8),
            new_job("later", execution_time=soon + timedelta(seconds=20), priority=1),
        ]
    )
    claimer = known.claimer(max_interval=60.0, idle_start_interval=60.0)
    assert 10 < await claimer.run_once() <= 30


async def test_claimer_claims_shortly_before_a_due_time_and_then_at_it(known: Parts, gate: Gate) -> None:
    """The second of two passes waits for the last millisecond itself, since timers are coarser."""
    due = now() + timedelta(seconds=0.5)
    await known.store.inserts.insert([new_job("a", execution_time=due)])
    executor = known.executor()
    claimer = known.claimer(executor, max_interval=60.0, idle_start_interval=60.0)
    assert await claimer.run_once() <= 0.5 - APPROACH_S
    while not known.in_flight.held():  # as the loop does, but for the sleeps
        await claimer.run_once()
    assert now() >= due, "never early"
    await finish(known, gate, executor)


async def test_claimer_adds_no_jitter_to_a_due_time(
    known: Parts, bus: EventBus, seen: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only polls have jitter. A job whose due time moved by 10 % of the sleep would be late."""
    monkeypatch.setattr(random, "uniform", lambda low, high: high)  # the longest possible sleep
    gate = Gate()
    gate.open.set()
    known.tasks.register(gate.job, name="test.job")
    claimer = known.claimer(max_interval=60.0, idle_start_interval=60.0)
    await known.store.inserts.insert([new_job("a", execution_time=now() + timedelta(seconds=1.5))])
    await claimer.start()
    (first,) = seen.of(PassFinished, service="claimer")
    assert first.next_in <= 1.5
    await claimer.stop()


async def test_claimer_sets_no_timer_for_jobs_of_unknown_names(known: Parts) -> None:
    await known.store.inserts.insert([new_job("a", "nobody.knows")])
    claimer = known.claimer(max_interval=60.0, idle_start_interval=30.0, jitter=False)
    assert await claimer.run_once() == 30.0
    assert await statuses(known.store, "a") == ["pending"]


async def test_claimer_polls_less_often_while_idle_and_starts_over_after_a_job(
    known: Parts, gate: Gate
) -> None:
    gate.open.set()
    executor = known.executor()
    claimer = known.claimer(
        executor,
        min_interval=2.0,
        idle_start_interval=1.0,
        backoff_multiplier=2.0,
        max_interval=5.0,
        jitter=False,
    )
    assert [await claimer.run_once() for _ in range(5)] == [2.0, 2.0, 4.0, 5.0, 5.0]
    await known.store.inserts.insert([new_job("a")])
    assert await claimer.run_once() == 2.0
    await Parts.ended(executor)


@pytest.mark.parametrize("chance", [-1.0, 1.0])
async def test_claimer_applies_at_most_ten_percent_jitter_to_a_poll(
    known: Parts, seen: Recorder, monkeypatch: pytest.MonkeyPatch, chance: float
) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: high if chance > 0 else low)
    claimer = known.claimer(max_interval=60.0, idle_start_interval=10.0)
    await claimer.start()
    (first,) = seen.of(PassFinished, service="claimer")
    assert first.next_in == pytest.approx(10.0 + chance)
    await claimer.stop()


async def test_jitter_shortens_no_poll_below_the_shortest_sleep(
    known: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: low)
    claimer = known.claimer(max_interval=60.0, min_interval=10.0, idle_start_interval=10.0)
    assert await claimer.run_once() == 10.0


async def test_claimer_does_not_spin_when_a_due_job_is_locked(known: Parts, dsn: str) -> None:
    """Another transaction has locked the row: the poll finds nothing, and must not be repeated at once."""
    await known.store.inserts.insert([new_job("a")])
    other = await asyncpg.connect(dsn)
    claimer = known.claimer(min_interval=0.05)
    async with other.transaction():
        await other.execute("SELECT FROM scheduled_jobs FOR UPDATE")
        assert [await claimer.run_once() for _ in range(3)] == [pytest.approx(0.05, rel=0.1)] * 3
    await other.close()


async def test_claimer_claims_nothing_and_does_not_spin_when_its_worker_row_is_missing(
    parts: Parts, gate: Gate
) -> None:
    parts.tasks.register(gate.job, name="test.job")
    await parts.store.inserts.insert([new_job("a")])
    claimer = parts.claimer(min_interval=0.05)
    assert [await claimer.run_once() > 0 for _ in range(3)] == [True] * 3
    assert await statuses(parts.store, "a") == ["pending"]


async def test_claimer_claims_by_priority_then_time_then_id(known: Parts, seen: Recorder, gate: Gate) -> None:
    old, older = now() - timedelta(hours=1), now() - timedelta(hours=2)
    await known.store.inserts.insert(
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


async def test_claimer_expires_jobs_past_their_misfire_grace_time(
    known: Parts, seen: Recorder, gate: Gate
) -> None:
    late = now() - timedelta(seconds=60)
    graces = {"expired": 30, "in time": 90, "patient": None}
    await known.store.inserts.insert(
        [new_job(job_id, execution_time=late, misfire_grace_time=grace) for job_id, grace in graces.items()]
    )
    gate.open.set()
    executor = known.executor()
    claimer = known.claimer(executor, batch=3)
    assert await claimer.run_once() == 0  # a batch that brought expired rows is no idle queue
    await Parts.ended(executor)
    assert [event.job_id for event in seen.of(JobExpired)] == ["expired"]
    assert await statuses(known.store, "expired", "in time", "patient") == ["expired", "running", "running"]


async def test_jobs_have_expired_although_the_reason_could_not_be_written(
    known: Parts, seen: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim is committed, and no later one finds these jobs."""

    async def lose_connection(*_args: object) -> None:
        raise ConnectionLostError("gone")

    past = now() - timedelta(seconds=9)
    await known.store.inserts.insert([new_job("old", execution_time=past, misfire_grace_time=0)])
    monkeypatch.setattr(known.store.claims, "explain_expiry", lose_connection)
    with pytest.raises(ConnectionLostError):
        await known.claimer(known.executor()).run_once()
    assert [event.job_id for event in seen.of(JobExpired)] == ["old"]
    assert await statuses(known.store, "old") == ["expired"]


# -- results go along ----------------------------------------------------------------------------------


class Line:
    """Executor, completer and claimer, wired as in the runtime."""

    def __init__(self, parts: Parts, *, slots: int, batch: int) -> None:
        self.completer = parts.completer()
        self.executor = parts.executor(self.completer, slots=slots)
        self.claimer = parts.claimer(
            self.executor,
            batch=batch,
            semaphore_full_interval=60.0,
            max_interval=60.0,
            idle_start_interval=60.0,
        )
        parts.signals.slot_free.connect(self.claimer.wake)

    async def start(self) -> None:
        await self.completer.start()
        await self.claimer.start()

    async def stop(self) -> None:
        await self.claimer.stop()
        await self.executor.stop()
        await self.completer.stop()


async def test_claimer_writes_completions_with_the_next_claim(
    known: Parts, seen: Recorder, gate: Gate
) -> None:
    await known.store.inserts.insert([new_job(job_id) for job_id in "abc"])
    line = Line(known, slots=2, batch=5)
    gate.open.set()
    assert await line.claimer.run_once() == 0
    await Parts.ended(line.executor)
    assert await statuses(known.store, *"abc") == ["running", "running", "pending"]
    await line.claimer.run_once()
    assert await statuses(known.store, *"abc") == ["completed", "completed", "running"]
    assert [event.job_id for event in seen.of(JobCompleted)] == ["a", "b"]
    await Parts.ended(line.executor)


async def test_pipeline_runs_a_backlog_and_writes_every_result(
    known: Parts, seen: Recorder, gate: Gate
) -> None:
    gate.open.set()
    await known.store.inserts.insert([new_job(str(n)) for n in range(100)])
    line = Line(known, slots=7, batch=3)
    await line.start()
    await seen.until(JobCompleted, 100)
    assert len(gate.calls) == 100
    await line.stop()
    assert (await known.store.jobs.count_jobs(None)).completed == 100


async def test_claimer_loses_no_result_when_a_claim_fails(
    touchy: Store, bus: EventBus, seen: Recorder, gate: Gate, dsn: str
) -> None:
    parts = Parts(touchy, bus)
    parts.tasks.register(gate.job, name="test.job")
    await touchy.workers.register(new_worker(), LEASE)
    await touchy.inserts.insert([new_job(job_id) for job_id in "abc"])
    line = Line(parts, slots=2, batch=5)
    gate.open.set()
    await line.claimer.run_once()
    await Parts.ended(line.executor)
    async with locked(dsn, "scheduled_jobs"):
        with pytest.raises(DatabaseUnavailableError):
            await line.claimer.run_once()
    assert seen.of(JobCompleted) == []
    await line.completer.run_once()
    assert [event.job_id for event in seen.of(JobCompleted)] == ["a", "b"]
    assert await statuses(touchy, *"abc") == ["completed", "completed", "pending"]


async def test_completer_writes_completions_while_claims_fail(
    known: Parts, seen: Recorder, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claimer backs off then; completions that wait for a claim would wait as long."""
    exchange = known.store.claims.exchange
    claims = 0

    async def broken_claims(
        worker_id: str, names: Sequence[str], limit: int, **values: Any
    ) -> ExchangeResult:
        nonlocal claims
        claims += limit > 0
        if limit and claims > 1:
            raise DatabaseUnavailableError("no claims today")
        return await exchange(worker_id, names, limit, **values)

    monkeypatch.setattr(known.store.claims, "exchange", broken_claims)
    monkeypatch.setattr(Service, "backoff", BackoffOptions(first_s=600.0))
    await known.store.inserts.insert([new_job(job_id) for job_id in "ab"])
    line = Line(known, slots=2, batch=1)
    await line.start()
    await seen.until(ServiceRetrying, service="claimer")
    gate.open.set()
    await seen.until(JobCompleted, job_id="a")
    await line.stop()


async def test_completer_writes_completions_that_arrive_during_the_last_claim(
    known: Parts, seen: Recorder, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They waited for a next claim, and the last claim was not full, so none came."""
    exchange = known.store.claims.exchange
    claims, asked, answered = 0, asyncio.Event(), asyncio.Event()

    async def slow_second_claim(*args: Any, **values: Any) -> ExchangeResult:
        nonlocal claims
        answer = await exchange(*args, **values)
        claims += args[2] > 0
        if claims == 2:
            asked.set()
            await answered.wait()
        return answer

    monkeypatch.setattr(known.store.claims, "exchange", slow_second_claim)
    monkeypatch.setattr(cursor, "MAX_AGE_S", 0.0)  # the second claim has seen all: a sleep follows
    await known.store.inserts.insert([new_job(job_id) for job_id in "ab"])
    line = Line(known, slots=3, batch=2)
    await line.start()
    await asyncio.wait_for(asked.wait(), PATIENCE)
    assert known.result_buffer.claims_follow
    gate.open.set()
    await Parts.ended(line.executor)
    answered.set()
    await seen.until(JobCompleted, 2)
    await line.stop()


async def test_completer_writes_completions_when_the_claimer_stops(
    known: Parts, seen: Recorder, gate: Gate
) -> None:
    await known.store.inserts.insert([new_job(job_id) for job_id in "ab"])
    line = Line(known, slots=1, batch=1)
    await line.start()
    await gate.wait_begun()
    assert known.result_buffer.claims_follow
    (held,) = await claim(known.store, new_job("c", priority=1), limit=1)
    known.result_buffer.put(held, COMPLETE)
    await line.claimer.stop()
    assert not holds(known.result_buffer.claims_follow)
    await seen.until(JobCompleted, job_id="c")
    gate.open.set()
    await seen.until(JobCompleted, job_id="a")
    await line.stop()
    assert await statuses(known.store, *"abc") == ["completed", "pending", "completed"]


async def test_completer_writes_completions_when_more_jobs_run_than_there_are_slots(
    known: Parts, seen: Recorder, gate: Gate
) -> None:
    """As when a caller calls execute_job() while all slots are taken."""
    await known.store.inserts.insert([new_job(job_id) for job_id in "ab"])
    line = Line(known, slots=1, batch=1)
    await line.start()
    await gate.wait_begun()

    async def other() -> None: ...

    known.tasks.register(other, name="test.other")
    (held,) = await claim(known.store, new_job("extra", "test.other"))
    await line.executor.submit(held)
    await seen.until(JobCompleted, job_id="extra")
    assert await statuses(known.store, "a", "b") == ["running", "pending"]
    gate.open.set()
    await line.stop()


async def test_completer_writes_the_last_completions_of_a_burst_without_a_claim(
    known: Parts, seen: Recorder, gate: Gate
) -> None:
    await known.store.inserts.insert([new_job(job_id) for job_id in "abc"])
    line = Line(known, slots=3, batch=2)
    await line.start()
    await seen.until(JobStarted, 3)
    gate.open.set()
    await seen.until(JobCompleted, 3)
    await line.stop()


async def test_claimer_claims_nothing_for_any_caller_when_it_has_stopped(known: Parts, gate: Gate) -> None:
    """listen_for_jobs() may be under way while the Scheduler shuts down: no worker would run its jobs."""
    executor = known.executor()
    claimer = known.claimer(executor)
    await claimer.start()
    await claimer.stop()
    await known.store.inserts.insert([new_job("a")])
    assert await claimer.run_once() == NEVER
    assert executor.in_flight.held() == {}
    await claimer.start()
    assert executor.in_flight.held() == {"a": 1}
    await claimer.stop()
    await finish(known, gate, executor)


# -- cursor --------------------------------------------------------------------------------------------


@pytest.fixture
async def busy(known: Parts, monkeypatch: pytest.MonkeyPatch) -> Parts:
    """Twelve due jobs, a minute apart, and a cursor that does not age by itself."""
    monkeypatch.setattr(cursor, "MAX_AGE_S", 50.0)
    start = now() - timedelta(hours=1)
    await known.store.inserts.insert(
        [new_job(f"{n:02}", execution_time=start + timedelta(minutes=n)) for n in range(12)]
    )
    return known


def late_job() -> PlainJob:
    return new_job("late", execution_time=now() - timedelta(hours=2))


async def test_claimer_claims_a_late_insert_next_after_a_rescan(busy: Parts, gate: Gate) -> None:
    executor = busy.executor(slots=20)
    claimer = busy.claimer(executor, batch=2)
    await claimer.run_once()
    await busy.store.inserts.insert([late_job()])
    claimer.rescan()
    await claimer.run_once()
    assert set(executor.in_flight.held()) == {"00", "01", "late", "02"}
    await finish(busy, gate, executor)


async def test_claimer_claims_a_late_insert_next_when_rescan_is_called_during_a_claim(
    busy: Parts, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange = busy.store.claims.exchange
    executor = busy.executor(slots=20)
    claimer = busy.claimer(executor, batch=2)

    async def and_meanwhile(*args: Any, **values: Any) -> ExchangeResult:
        answer = await exchange(*args, **values)
        await busy.store.inserts.insert([late_job()])
        claimer.rescan()
        return answer

    monkeypatch.setattr(busy.store.claims, "exchange", and_meanwhile)
    await claimer.run_once()
    monkeypatch.setattr(busy.store.claims, "exchange", exchange)
    await claimer.run_once()
    assert set(executor.in_flight.held()) == {"00", "01", "late", "02"}
    await finish(busy, gate, executor)


async def test_claimer_claims_a_late_insert_under_load_when_the_cursor_is_too_old(
    busy: Parts, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = busy.executor(slots=20)
    claimer = busy.claimer(executor, batch=2)
    await claimer.run_once()
    await busy.store.inserts.insert([late_job()])
    await claimer.run_once()
    assert set(executor.in_flight.held()) == {"00", "01", "02", "03"}
    monkeypatch.setattr(cursor, "time", LaterTime())
    await claimer.run_once()
    assert set(executor.in_flight.held()) == {"00", "01", "02", "03", "late", "04"}
    await finish(busy, gate, executor)


async def test_claimer_claims_a_late_insert_before_it_sleeps(busy: Parts, gate: Gate) -> None:
    executor = busy.executor(slots=20)
    claimer = busy.claimer(executor, batch=10)
    assert await claimer.run_once() == 0
    await busy.store.inserts.insert([late_job()])
    assert await claimer.run_once() == 0
    assert (len(executor.in_flight.held()), "late" in executor.in_flight.held()) == (12, False)
    assert await claimer.run_once() > 0
    assert "late" in executor.in_flight.held()
    await finish(busy, gate, executor)


async def test_claimer_claims_a_more_urgent_late_insert_next(busy: Parts, gate: Gate) -> None:
    executor = busy.executor(slots=20)
    claimer = busy.claimer(executor, batch=2)
    await claimer.run_once()
    urgent = new_job("urgent", priority=3, execution_time=now() - timedelta(hours=2))
    await busy.store.inserts.insert([urgent])
    await claimer.run_once()
    assert set(executor.in_flight.held()) == {"00", "01", "urgent", "02"}
    await finish(busy, gate, executor)


async def test_claimer_releases_jobs_when_the_response_arrives_after_the_lease_expired(
    known: Parts, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop was blocked. The keeper renewed the lease, but not these rows: they may be lost."""
    await known.store.inserts.insert([new_job("a")])
    real = ClaimRepository.exchange

    async def late(self: ClaimRepository, *args: Any, **options: Any) -> ExchangeResult:
        answer = await real(self, *args, **options)
        monkeypatch.setattr(module, "time", LaterTime())
        return answer

    monkeypatch.setattr(ClaimRepository, "exchange", late)
    executor = known.executor()
    known.lease.renewed(time.monotonic() - 20)
    await known.claimer(executor).run_once()
    assert (gate.calls, executor.in_flight.held()) == ([], {})
    monkeypatch.undo()
    await known.completer().run_once()
    assert await statuses(known.store, "a") == ["pending"]


class LaterTime:
    """A minute later."""

    @staticmethod
    def monotonic() -> float:
        return time.monotonic() + 60


async def test_claimer_claims_nothing_while_the_lease_is_not_trusted(known: Parts, gate: Gate) -> None:
    """The row of the worker is valid for another second, which no job may count on."""
    await known.store.inserts.insert([new_job("a")])
    executor = known.executor()
    claimer = known.claimer(executor, min_interval=0.01)
    known.lease.renewed(time.monotonic())
    known.lease.revoke()
    assert await claimer.run_once() == 0.01
    assert (await statuses(known.store, "a"), executor.in_flight.held()) == (["pending"], {})
    assert known.calls.count("lease_suspect") == 1
    known.lease.renewed(time.monotonic())
    await claimer.run_once()
    assert list(executor.in_flight.held()) == ["a"]
    await finish(known, gate, executor)


# -- jobs under which a worker died --------------------------------------------------------------------


async def insert_crashed(parts: Parts, *job_ids: str) -> None:
    await parts.store.inserts.insert([new_job(job_id) for job_id in job_ids])
    async with parts.store.connections.acquire() as connection:
        await connection.execute(
            "UPDATE scheduled_jobs SET crash_count = 1 WHERE job_id = ANY ($1)", list(job_ids)
        )


async def test_claimer_runs_one_job_at_a_time_under_which_a_worker_died(
    known: Parts, seen: Recorder, gate: Gate
) -> None:
    await insert_crashed(known, *"abcd")
    await known.store.inserts.insert([new_job("new")])
    executor = known.executor(slots=10)
    claimer = known.claimer(executor, batch=2)
    assert await claimer.run_once() == 0, "the others crowded out the new job"
    assert executor.in_flight.held() == {"a": 1}
    while await claimer.run_once() == 0:
        pass
    assert executor.in_flight.held() == {"a": 1, "new": 1}, "new jobs run at the same time"
    gate.open.set()
    await known.ended(executor)
    assert known.calls.count("crashed_job_ended") == 1
    assert await claimer.run_once() == 0, "it wrote the result, so the next one may be claimed"
    assert seen.of(JobCompleted)
    assert executor.in_flight.held() == {}
    for count, job_id in enumerate("bcd", 2):
        gate.open.clear()
        while not executor.in_flight.held():
            await claimer.run_once()
        assert executor.in_flight.held() == {job_id: 1}
        gate.open.set()
        await known.ended(executor)
        assert known.calls.count("crashed_job_ended") == count
    while await claimer.run_once() == 0:
        pass
    assert sorted(event.job_id for event in seen.of(JobCompleted)) == ["a", "b", "c", "d", "new"]


async def test_claimer_waits_for_the_result_of_a_job_under_which_a_worker_died(parts: Parts) -> None:
    """A death of this worker between the end of the job and the write would count for both."""

    async def fail() -> None:
        raise ValueError("no")

    parts.tasks.register(fail, name="test.job")
    await parts.store.workers.register(new_worker(), LEASE)
    await insert_crashed(parts, "a", "b")
    executor = parts.executor(slots=10)
    claimer = parts.claimer(executor, min_interval=0.05)
    await claimer.run_once()
    await parts.ended(executor)
    assert parts.in_flight.unwritten() == {"a": 1}
    assert await claimer.run_once() == 0.05, "the completer writes failures"
    assert executor.in_flight.held() == {}
    await parts.completer().run_once()
    assert await claimer.run_once() == 0
    assert parts.in_flight.unwritten() == {"b": 1}


async def test_claimer_claims_the_next_job_when_the_last_one_under_which_a_worker_died_has_expired(
    known: Parts, seen: Recorder, gate: Gate
) -> None:
    past = now() - timedelta(seconds=9)
    await known.store.inserts.insert([new_job("old", execution_time=past, misfire_grace_time=0)])
    await insert_crashed(known, "old", "b")
    executor = known.executor(slots=10)
    claimer = known.claimer(executor)
    assert await claimer.run_once() == 0
    assert [event.job_id for event in seen.of(JobExpired)] == ["old"]
    assert await claimer.run_once() == 0
    assert executor.in_flight.held() == {"b": 1}
    await finish(known, gate, executor)


async def test_claimer_polls_by_an_exchange_while_the_next_job_is_due_after_the_next_poll(
    known: Parts,
) -> None:
    """Nothing else expires late jobs, claims crashed ones and looks at the liveness locks then."""
    await known.store.inserts.insert([new_job("later", execution_time=now() + timedelta(hours=1))])
    claimer = known.claimer(known.executor(), min_interval=0.01, max_interval=60)
    statements = sent_statements(known)
    for _ in range(2):
        assert await claimer.run_once() <= 60
    assert statements == ["exchange_jobs"] * 2


@pytest.mark.parametrize("expired", [False, True])
async def test_claimer_claims_cheaply_when_it_is_notified(
    known: Parts, seen: Recorder, gate: Gate, expired: bool
) -> None:
    """What the cheaper statement leaves, the next pass finds."""
    executor = known.executor()
    claimer = known.claimer(executor)
    await claimer.run_once()
    past = now() - timedelta(seconds=9)
    await known.store.inserts.insert(
        [new_job("a"), *([new_job("old", execution_time=past, misfire_grace_time=0)] if expired else [])]
    )
    statements = sent_statements(known)
    claimer.announce(now())
    assert (await claimer.run_once() == 0) is expired
    assert statements == ["claim_jobs"]
    assert executor.in_flight.held() == {"a": 1}
    assert await claimer.run_once() > 0
    assert statements == ["claim_jobs", "exchange_jobs", *["explain_expiry"] * expired]
    assert [event.job_id for event in seen.of(JobExpired)] == ["old"] * expired
    await finish(known, gate, executor)


async def test_claimer_looks_for_silent_workers_when_it_is_notified_often(known: Parts) -> None:
    """The cheaper statement does not, so one claim per poll interval is an exchange."""
    claimer = known.claimer(known.executor(), max_interval=0.05)
    statements = sent_statements(known)
    async with asyncio.timeout(PATIENCE):
        while statements.count("exchange_jobs") < 3 or statements.count("claim_jobs") < 3:
            claimer.announce(now())
            await claimer.run_once()


@pytest.mark.parametrize(("max_crashes", "together"), [(1, 1), (2, 1), (3, 2), (9, 2), (None, 2)])
async def test_claimer_isolates_jobs_before_they_reach_the_limit_of_crashes(
    known: Parts, gate: Gate, max_crashes: int | None, together: int
) -> None:
    """One death may be the machine's. The last death that is allowed counts for one job only."""
    await insert_crashed(known, *"ab")
    executor = known.executor()
    claimer = known.claimer(executor, max_crashes=max_crashes)
    while await claimer.run_once() == 0:
        pass
    assert len(executor.in_flight.held()) == together
    await finish(known, gate, executor)


@pytest.mark.slow
async def test_claimer_quarantines_an_unreadable_row_when_notifications_keep_arriving(
    known: Parts, gate: Gate, dsn: str
) -> None:
    claimer = known.claimer(known.executor(slots=2), max_interval=60)
    await claimer.run_once()
    await known.store.inserts.insert(
        [new_job(job_id, execution_time=now() - timedelta(hours=1)) for job_id in "ab"]
    )
    async with known.store.connections.acquire() as connection:
        await connection.execute("UPDATE scheduled_jobs SET crash_count = 2")
    await insert_unreadable(dsn)
    for _ in range(4):
        claimer.announce()
        await claimer.run_once()
    assert await statuses(known.store, "unreadable") == ["failed"]
    assert known.in_flight.held() == {"a": 1}
