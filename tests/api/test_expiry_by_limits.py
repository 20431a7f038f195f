"""A job that expires while it waits for a limit says so, in its row and to the task of its alert."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pg_scheduler import JobStatus, Limit
from pg_scheduler.inspect import Inspector
from pg_scheduler.testing import TestScheduler
from tests.support.store import Pool

START = datetime(2030, 1, 1, 12, tzinfo=UTC)
HALF_HOUR = timedelta(minutes=30)
BLOCKED = (
    "not started between 2030-01-01 12:00:00 and 2030-01-01 12:01:00 UTC; "
    "it waited for limit:stripe: until 2030-01-01 12:01:00 UTC; its misfire grace time is 60 seconds"
)


@pytest.mark.parametrize("error", [None, "ValueError: the first attempt"])
async def test_job_that_expires_while_it_waits_for_a_limit_says_so(pool: Pool, error: str | None) -> None:
    alerts: list[str] = []

    async def charge(order: int) -> None: ...

    async def alert(job_id: str, job_name: str, error: str, attempts: int) -> None:
        alerts.append(error)

    async with TestScheduler(pool, now=START) as t:
        t.scheduler.register(alert, name="alert")
        t.scheduler.register(
            charge,
            name="charge",
            limits=[Limit("stripe", max_starts=1, per=HALF_HOUR)],
            misfire_grace_time=60,
            on_failure="alert",
        )
        await t.scheduler.enqueue("charge", args=(1,), job_id="first")
        await t.scheduler.enqueue("charge", args=(2,), job_id="second")
        await t.run_until(timedelta(seconds=30))
        await pool.execute("UPDATE scheduled_jobs SET error_message = $1 WHERE job_id = 'second'", error)
        await t.run_until(timedelta(minutes=5))
        job = await t.scheduler.get_job("second")
        assert job is not None
        assert (job.status, job.error_message) == (JobStatus.EXPIRED, BLOCKED)
        assert alerts == [BLOCKED]
        # Slots were in use meanwhile, for which the job did not wait.
        await pool.execute(
            "INSERT INTO scheduler_stats (bucket, span, job_name, counts, sums, run_hist, late_hist)"
            " VALUES ($1, 60, 'other', array_fill(0, ARRAY [12]), ARRAY [50.0, 0], array_fill(0, ARRAY [48]),"
            " array_fill(0, ARRAY [48]))",
            START,
        )
        explanation = await Inspector(t.scheduler).explain_job("second")
        assert "took slots" not in explanation.reasons[0].text
        await pool.execute(
            """UPDATE scheduled_jobs SET options = options - 'expiry' WHERE job_id = 'second'"""
        )
        explanation = await Inspector(t.scheduler).explain_job("second")
        assert "took slots: 'other'" in explanation.reasons[0].text, "a job without a known cause"
        assert "it waited for limit:stripe:" in str([reason.text for reason in explanation.reasons])


async def test_job_that_starts_after_its_limit_has_room_keeps_no_note_of_the_wait(pool: Pool) -> None:
    async def charge(order: int) -> None: ...

    async with TestScheduler(pool, now=START) as t:
        limits = [Limit("stripe", max_starts=1, per=HALF_HOUR)]
        t.scheduler.register(charge, name="charge", limits=limits, misfire_grace_time=3600)
        await t.scheduler.enqueue("charge", args=(1,), job_id="first")
        await t.scheduler.enqueue("charge", args=(2,), job_id="second")
        await t.run_until(timedelta(minutes=31))
        job = await t.scheduler.get_job("second")
        assert job is not None
        assert (job.status, job.error_message) == (JobStatus.COMPLETED, None)


async def test_job_that_gets_more_time_expires_for_the_reason_of_then(pool: Pool) -> None:
    async def charge(order: int) -> None: ...

    async with TestScheduler(pool, now=START) as t:
        limits = [Limit("stripe", max_starts=1, per=HALF_HOUR)]
        t.scheduler.register(charge, name="charge", limits=limits, misfire_grace_time=60)
        await t.scheduler.enqueue("charge", args=(1,), job_id="first")
        await t.scheduler.enqueue("charge", args=(2,), job_id="second")
        await t.run_until(timedelta(seconds=30))
        # While its expiry is suspended, the job is late and does not expire.
        await t.scheduler.tasks.pause("charge", suspend_expiry=True)
        await t.run_until(timedelta(minutes=10))
        job = await t.scheduler.get_job("second")
        assert job is not None
        assert job.status is JobStatus.PENDING
        # Then it gets a time in which it could have started.
        await pool.execute(
            "UPDATE scheduled_jobs SET expires_at = $1 WHERE job_id = 'second'", START + 2 * HALF_HOUR
        )
        await pool.execute("UPDATE scheduler_tasks SET suspends_expiry = false")
        await t.run_until(timedelta(hours=2))
        job = await t.scheduler.get_job("second")
        assert job is not None
        assert job.status is JobStatus.EXPIRED
        assert job.error_message == (
            "not started between 2030-01-01 12:00:00 and 2030-01-01 13:00:00 UTC; the task charge was paused"
            "; its misfire grace time is 60 seconds"
        )
