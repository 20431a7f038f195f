"""Limits and shares of running Schedulers while the application refuses the change of one row."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import asyncpg
import pytest

from pg_scheduler import Limit, Scheduler, Share
from pg_scheduler.events import JobBlocked, JobCompleted, ServiceRetrying
from tests.api.conftest import Make
from tests.support import inside
from tests.support.guards import guard
from tests.support.worker import PATIENCE, Recorder

REFUSAL = "RAISE EXCEPTION 'this job is frozen'; END IF; RETURN NEW;"


async def until_completed(record: Recorder, *job_ids: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while not {*job_ids} <= {event.job_id for event in record.of(JobCompleted)}:
            await record.until(JobCompleted, len(record.of(JobCompleted)) + 1)


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the texts about refused rows; the one of an earlier pause is not counted again."""
    records = [record for record in caplog.records if record.levelno >= logging.ERROR]
    return sorted({record.getMessage() for record in records})


async def end_scheduler(scheduler: Scheduler) -> None:
    """Shut down, within the limits of its own and without the error of the trigger."""
    async with asyncio.timeout(PATIENCE):
        await scheduler.shutdown()


async def test_refused_job_of_a_limit_delays_no_other_job_of_any_limit(
    make: Make, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, pause_of_refused_rows_s=0.5)
    gate = asyncio.Event()

    async def work(*_: Any) -> None:
        await gate.wait()

    scheduler = make()
    scheduler.register(work, name="first", limits=[Limit("L", max_running=1)])
    scheduler.register(work, name="second", limits=[Limit("M", max_running=1)])
    record = Recorder(scheduler)
    await scheduler.start()
    await scheduler.enqueue("first", job_id="holder")
    await scheduler.enqueue("second", job_id="other holder")
    for job_id in ("bad", "good 1", "good 2"):
        await scheduler.enqueue("first", job_id=job_id)
    await scheduler.enqueue("second", job_id="other")
    await record.until(JobBlocked, 4)
    body = f"IF OLD.job_id = 'bad' AND NEW.blocked_on IS NULL THEN {REFUSAL}"
    await guard(pool, body, is_deferred=False)
    gate.set()
    await until_completed(record, "holder", "good 1", "good 2", "other holder", "other")
    assert not record.of(ServiceRetrying)
    (message,) = refusals(caplog)
    assert message.startswith("job bad not unblocked, next attempt in ")
    await pool.execute("DROP TRIGGER guard ON scheduled_jobs")
    await until_completed(record, "bad")
    await end_scheduler(scheduler)


async def test_shutdown_succeeds_although_the_last_room_of_a_limit_is_for_a_refused_job(
    make: Make, pool: asyncpg.Pool
) -> None:
    gate = asyncio.Event()

    async def work(*_: Any) -> None:
        await gate.wait()

    scheduler = make(shutdown_timeout=30)
    scheduler.register(work, name="first", limits=[Limit("L", max_running=1)])
    record = Recorder(scheduler)
    await scheduler.start()
    await scheduler.enqueue("first", job_id="holder")
    await scheduler.enqueue("first", job_id="bad")
    await record.until(JobBlocked)
    body = f"IF OLD.blocked_on IS NOT NULL AND NEW.blocked_on IS NULL THEN {REFUSAL}"
    await guard(pool, body, is_deferred=False)
    ending = asyncio.create_task(end_scheduler(scheduler))
    asyncio.get_running_loop().call_later(0.2, gate.set)
    await ending
    assert [event.job_id for event in record.of(JobCompleted)] == ["holder"]
    assert await pool.fetchval("SELECT count(*) FROM scheduler_workers") == 0


async def test_refused_job_of_a_tenant_delays_no_other_job_of_any_share(
    make: Make, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, pause_of_refused_rows_s=0.5)

    async def work(_tenant: str) -> None: ...

    scheduler = make()
    scheduler.register(work, name="first", share=Share("one", key=lambda tenant: tenant))
    scheduler.register(work, name="second", share=Share("two", key=lambda tenant: tenant))
    record = Recorder(scheduler)
    good = [await scheduler.enqueue(name, args=(tenant,)) for name in ("first", "second") for tenant in "ab"]
    await scheduler.enqueue("first", args=("frozen",), job_id="bad")
    good.append(await scheduler.enqueue("first", args=("frozen",)))
    body = f"IF OLD.job_id = 'bad' AND NEW.blocked_on IS NULL THEN {REFUSAL}"
    await guard(pool, body, is_deferred=False)
    await scheduler.start()
    await until_completed(record, *(job_id for job_id in good if job_id))
    assert not record.of(ServiceRetrying)
    (message,) = refusals(caplog)
    assert message.startswith("job bad does not get the turn of its tenant, next attempt in ")
    await pool.execute("DROP TRIGGER guard ON scheduled_jobs")
    await until_completed(record, "bad")
    await end_scheduler(scheduler)
