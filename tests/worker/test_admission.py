"""Admission and unblocking, pass by pass: no claim stays without a decision, whatever happens."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import DatabaseUnavailableError, Limit
from pg_scheduler.admission.admission import Admission
from pg_scheduler.admission.unblocker import Unblocker
from pg_scheduler.events import JobBlocked, JobLost, JobReleased
from pg_scheduler.worker.executor import Executor
from tests.support import inside
from tests.support.inside import RELEASE, Claim, Completer, Revocation, TaskOptions
from tests.support.parts import Parts
from tests.support.worker import Gate, Recorder, claim, new_job, now, statuses


class Bench:
    """The parts of a worker that decide about jobs of a limited task."""

    def __init__(self, parts: Parts, limit: int) -> None:
        self.parts = parts
        self.gate = Gate()
        parts.tasks.register(
            self.gate.job, name="test.job", options=TaskOptions(limits=(Limit(max_running=limit),))
        )
        self.completer: Completer = parts.completer()
        self.executor: Executor = parts.executor(self.completer, slots=10)
        self.unblocker: Unblocker = parts.unblocker()
        self.admission: Admission = parts.admission(self.executor, self.unblocker)

    async def claim(self, *job_ids: str) -> list[Claim]:
        """Claim jobs, which wait for a decision."""
        claims = await claim(self.parts.store, *map(new_job, job_ids))
        assert self.admission.keep_limited(claims) == []
        return claims

    async def end(self) -> None:
        """Let all attempts end, and write their results."""
        self.gate.open.set()
        await self.parts.ended(self.executor)
        await self.completer.drain()

    async def blocked(self, pool: asyncpg.Pool) -> set[str]:
        rows = await pool.fetch("SELECT job_id FROM scheduled_jobs WHERE blocked_on IS NOT NULL")
        return {row[0] for row in rows}


async def test_unblocker_announces_the_due_time_of_the_jobs_that_it_unblocks(parts: Parts) -> None:
    """Without it, workers whose claims do not begin at the start of the index would search for them."""
    bench = Bench(parts, 1)
    announced: list[datetime | None] = []
    parts.signals.jobs_released.connect(announced.append)
    due = [now() - timedelta(hours=hours) for hours in (3, 2, 1)]
    claims = await claim(parts.store, *(new_job(f"{n}", execution_time=each) for n, each in enumerate(due)))
    assert bench.admission.keep_limited(claims) == []
    await bench.admission.run_once()
    await bench.end()
    announced.clear()
    await bench.unblocker.run_once()
    assert announced == due[1:]  # after the end of an attempt, and by a scan


async def test_admission_releases_undecided_claims_when_it_stops(parts: Parts, seen: Recorder) -> None:
    bench = Bench(parts, 5)
    await bench.claim("a", "b")
    await bench.admission.drain()
    await bench.completer.drain()
    assert {event.job_id for event in seen.of(JobReleased)} == {"a", "b"}
    assert await statuses(parts.store, "a", "b") == ["pending", "pending"]
    assert bench.gate.calls == []


async def test_admission_ends_a_revoked_attempt_without_running_it_when_it_stops(
    parts: Parts, seen: Recorder
) -> None:
    bench = Bench(parts, 5)
    await bench.claim("a")
    bench.executor.in_flight.attempts["a"].revoke(Revocation.LOST)
    await bench.admission.drain()
    await parts.ended(bench.executor)
    assert [event.job_id for event in seen.of(JobLost)] == ["a"]
    assert bench.gate.calls == []
    assert not bench.executor.in_flight.held()


async def test_admission_releases_its_claims_when_it_is_cancelled_during_the_decision(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(parts, 5)
    await bench.claim("a", "b")
    asked = asyncio.Event()

    async def hang(*_: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(parts.store.limits, "admit", hang)
    deciding = asyncio.create_task(bench.admission.run_once())
    await asked.wait()
    deciding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await deciding
    await bench.completer.drain()
    assert await statuses(parts.store, "a", "b") == ["pending", "pending"]


async def test_admission_asks_no_more_when_the_database_fails_between_single_decisions(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock timeout of the batch, a decision, then an unreachable server."""
    bench = Bench(parts, 5)
    await bench.claim("a", "b", "c")
    admit = parts.store.limits.admit
    asked: list[list[str]] = []

    async def failing(worker_id: str, requests: Any, longest: Any) -> Any:
        asked.append([request.claim.job_id for request in requests])
        if len(asked) == 1:
            raise DatabaseUnavailableError("busy") from asyncpg.LockNotAvailableError("busy")
        if len(asked) == 3:
            raise DatabaseUnavailableError("down")
        return await admit(worker_id, requests, longest)

    monkeypatch.setattr(parts.store.limits, "admit", failing)
    with pytest.raises(DatabaseUnavailableError, match="down"):
        await bench.admission.run_once()
    assert [len(each) for each in asked] == [3, 1, 1]
    (admitted,) = asked[1]
    assert list(bench.executor.in_flight.held()) == [admitted]
    await bench.end()
    released = sorted({"a", "b", "c"} - {admitted})
    assert await statuses(parts.store, *released) == ["pending", "pending"]
    assert await statuses(parts.store, admitted) == ["completed"]


async def test_unblocker_unblocks_jobs_in_place_of_the_last_attempts_when_it_stops(
    parts: Parts, seen: Recorder, pool: asyncpg.Pool
) -> None:
    bench = Bench(parts, 1)
    await bench.claim("a", "b")
    await bench.admission.run_once()
    (event,) = seen.of(JobBlocked)
    assert await bench.blocked(pool) == {event.job_id}
    await bench.end()
    await bench.unblocker.drain()
    assert await bench.blocked(pool) == set()


async def test_unblocker_makes_another_pass_at_once_when_a_batch_was_full(
    parts: Parts, pool: asyncpg.Pool
) -> None:
    bench = Bench(parts, 4)
    bench.unblocker.batch_size, bench.unblocker.gap_s = 1, 0.0
    await bench.claim(*"abcdefgh")
    await bench.admission.run_once()
    await bench.end()
    left = [len(await bench.blocked(pool))]
    while left[-1]:
        assert await bench.unblocker.run_once() == 0
        left.append(len(await bench.blocked(pool)))
    assert left == [4, 2, 1, 0]  # the first pass scans all limits, too


async def test_unblocker_forgets_admitted_attempts_that_were_lost(parts: Parts) -> None:
    bench = Bench(parts, 2)
    await bench.claim("a")
    await bench.admission.run_once()
    bench.executor.in_flight.attempts["a"].revoke(Revocation.LOST)
    await parts.ended(bench.executor)
    bench.unblocker.request_scan()
    await bench.unblocker.run_once()
    assert bench.unblocker._admitted == {}


async def test_unblocker_keeps_an_admitted_attempt_while_the_result_of_a_former_one_is_not_written(
    parts: Parts,
) -> None:
    bench = Bench(parts, 2)
    (held,) = await bench.claim("a")
    await bench.admission.run_once()
    parts.result_buffer.put(held._replace(attempt=held.attempt - 1), RELEASE)
    bench.unblocker.request_scan()
    await bench.unblocker.run_once()
    assert list(bench.unblocker._admitted) == ["a"]
    await bench.end()


async def test_unblocker_ignores_the_end_of_another_attempt_of_an_admitted_job(parts: Parts) -> None:
    bench = Bench(parts, 2)
    (held,) = await bench.claim("a")
    await bench.admission.run_once()
    bench.unblocker.settled([held._replace(attempt=held.attempt + 1)])
    assert list(bench.unblocker._admitted) == ["a"]
    await bench.end()
    assert bench.unblocker._admitted == {}


async def test_admission_forgets_the_limits_that_refused_attempts_long_ago(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker may admit the next attempt of an account, so a number bounds the memory."""
    inside.replace(monkeypatch, counted_limits=3)
    bench = Bench(parts, 1)
    (held,) = await claim(parts.store, new_job("held"))
    for account in range(10):
        bench.admission._note_surplus(held, f"limit:accounts:{account}")
        bench.admission._note_surplus(held, "limit:accounts:busy")
    assert [*bench.admission._blocked_in_a_row] == [f"limit:accounts:{n}" for n in (8, 9)] + [
        "limit:accounts:busy"
    ]
    assert bench.admission._blocked_in_a_row["limit:accounts:busy"] == 10
