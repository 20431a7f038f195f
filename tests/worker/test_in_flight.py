"""The attempts and results that a worker is responsible for."""

from __future__ import annotations

import asyncio

from pg_scheduler.worker.in_flight import TASK_NAME_PREFIX, Attempt, InFlight
from tests.support.inside import Claim, Revocation
from tests.support.worker import holds, now


def attempt_of(job_id: str, number: int = 1) -> Attempt:
    return Attempt(Claim(job_id, "test.job", "test.job", number, now(), "{}", 5, 0, 0, None, None))


def test_in_flight_reports_attempts_and_unwritten_results_separately() -> None:
    in_flight = InFlight(lambda: {"b": 3})
    in_flight.attempts["a"] = attempt_of("a", 2)
    assert (in_flight.held(), in_flight.unwritten()) == ({"a": 2}, {"b": 3})
    assert in_flight.holds("a", 2)
    assert not in_flight.holds("a", 1)
    assert not in_flight.holds("b", 3)


async def test_in_flight_revoke_cancels_the_task_once_and_keeps_the_first_reason() -> None:
    in_flight = InFlight(dict)
    running = in_flight.attempts["a"] = attempt_of("a")
    running.task = asyncio.create_task(asyncio.Event().wait())  # type: ignore[arg-type] # any task will do
    running.has_begun = True
    in_flight.revoke("b", 1, Revocation.LOST)
    in_flight.revoke("a", 2, Revocation.LOST)
    assert not holds(running.revocation)
    in_flight.revoke("a", 1, Revocation.CANCELLED)
    in_flight.revoke_all(Revocation.LOST)
    assert running.revocation is Revocation.CANCELLED
    assert running.task.cancelling() == 1
    await asyncio.wait([running.task])


async def test_attempt_revoke_does_not_cancel_a_task_that_has_not_begun() -> None:
    running = attempt_of("a")
    running.task = asyncio.create_task(asyncio.Event().wait())  # type: ignore[arg-type] # any task will do
    running.revoke(Revocation.SHUTDOWN)
    assert (running.revocation, running.task.cancelling()) == (Revocation.SHUTDOWN, 0)
    running.task.cancel()
    await asyncio.wait([running.task])


async def test_in_flight_claim_of_finds_the_claim_by_the_task_name() -> None:
    in_flight = InFlight(dict)
    running = in_flight.attempts["job 1"] = attempt_of("job 1")

    async def look() -> Claim | None:
        task = asyncio.current_task()
        assert task is not None
        return in_flight.claim_of(task)

    found = [
        await asyncio.create_task(look(), name=name)
        for name in (TASK_NAME_PREFIX + "job 1", TASK_NAME_PREFIX + "2", "another task")
    ]
    assert found == [running.claim, None, None]
