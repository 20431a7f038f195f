"""Statistics of jobs: the tables agree with the jobs, whatever happens to them."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

import asyncpg
import pytest

from pg_scheduler import JobSpec, RetryPolicy, Scheduler, Snooze
from pg_scheduler.base.figures import Snapshot
from pg_scheduler.events import JobCancelled, JobCompleted, JobExpired, JobFailed
from pg_scheduler.tools import meter_of
from tests.api.conftest import Make
from tests.support import inside
from tests.support.inside import OUTCOMES
from tests.support.worker import PATIENCE, Gate, Recorder, now

SOON = timedelta(milliseconds=10)

COUNTED = ("scheduled", "started", *OUTCOMES)


async def totals(pool: asyncpg.Pool, table: str = "scheduler_totals") -> dict[str, Counter[str]]:
    """What a table of statistics counts, by job name."""
    counts: dict[str, Counter[str]] = {}
    for row in await pool.fetch(f"SELECT job_name, counts FROM {table}"):
        found = Counter(dict(zip(COUNTED, row["counts"], strict=True)))
        counts[row["job_name"]] = counts.get(row["job_name"], Counter()) + found
    return counts


async def statuses(pool: asyncpg.Pool) -> dict[str, Counter[str]]:
    """The numbers of jobs by name and status."""
    counts: dict[str, Counter[str]] = {}
    for row in await pool.fetch("SELECT job_name, status, count(*) FROM scheduled_jobs GROUP BY 1, 2"):
        counts.setdefault(row[0], Counter())[row[1]] = row[2]
    return counts


async def test_totals_equal_the_jobs_after_failures_retries_cancellations_and_expiry(
    make: Make, pool: asyncpg.Pool
) -> None:
    gate = Gate()
    scheduler = make(retry_policy=RetryPolicy(base=SOON, maximum=SOON))
    seen = Recorder(scheduler)

    async def fail() -> None:
        raise ValueError("no")

    async def nap(again: list[int] = []) -> None:  # noqa: B006 - remembers the first attempt
        if not again:
            again.append(1)
            raise Snooze(SOON)

    async def work() -> None: ...

    for func in (fail, nap, work):
        scheduler.register(func, name=func.__name__)
    scheduler.register(gate.job, name="gate")
    late = now() - timedelta(hours=1)
    await scheduler.schedule_bulk([JobSpec(work, now())] * 40)
    await scheduler.schedule(work, execution_time=late, misfire_grace_time=1)
    await scheduler.schedule(work, execution_time=now() + timedelta(days=1), job_id="far")
    await scheduler.schedule(fail, execution_time=now(), max_retries=2)
    await scheduler.schedule(nap, execution_time=now())
    await scheduler.enqueue("gate", job_id="running")
    await scheduler.start()
    await gate.wait_begun()
    await scheduler.cancel_job("far")
    await scheduler.cancel_job("running")
    await seen.until(JobCompleted, 41)
    await seen.until(JobFailed)
    await seen.until(JobExpired)
    await seen.until(JobCancelled, 2)
    await scheduler.shutdown()
    found = await totals(pool)
    assert found["work"] == {"scheduled": 42, "started": 40, "completed": 40, "cancelled": 1, "expired": 1}
    assert found["fail"] == {"scheduled": 1, "started": 3, "retried": 2, "failed": 1}
    assert found["nap"] == {"scheduled": 1, "started": 2, "snoozed": 1, "completed": 1}
    assert found["gate"] == {"scheduled": 1, "started": 1, "cancelled": 1}
    for name, counts in (await statuses(pool)).items():
        assert {status: found[name][status] for status in counts} == counts
    assert await totals(pool, "scheduler_stats") == found


def snapshot(scheduler: Scheduler) -> Snapshot:
    meter = meter_of(scheduler)  # the metrics of a process will read it
    assert meter is not None
    return meter.snapshot()


async def until(pool: asyncpg.Pool, name: str, counts: Counter[str]) -> None:
    """Wait until the totals have these counts."""
    async with asyncio.timeout(PATIENCE):
        while (await totals(pool)).get(name) != counts:
            pass


async def test_statistics_are_written_while_the_scheduler_runs(
    make: Make, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = make()
    inside.replace(monkeypatch, interval_of_statistics_s=0.02)

    async def work() -> None: ...

    scheduler.register(work, name="work")
    await scheduler.start()
    for number in (1, 2, 3):
        await scheduler.enqueue("work")
        await until(pool, "work", Counter(scheduled=number, started=number, completed=number))


async def test_totals_of_two_schedulers_add_up(make: Make, pool: asyncpg.Pool) -> None:
    async def work() -> None: ...

    schedulers = [make(), make()]
    for each in schedulers:
        each.register(work, name="work")
        await each.start()
    await schedulers[0].schedule_bulk([JobSpec(work, now())] * 200)
    async with asyncio.timeout(PATIENCE):
        while (await statuses(pool))["work"]["completed"] < 200:
            pass  # either may complete the next one
    for each in schedulers:
        await each.shutdown()
    assert await totals(pool) == {"work": {"scheduled": 200, "started": 200, "completed": 200}}
    assert await statuses(pool) == {"work": {"completed": 200}}
    counted = [snapshot(each).jobs.get("work") for each in schedulers]  # one may have completed them all
    assert sum(each.started for each in counted if each is not None) == 200


async def test_released_and_skipped_jobs_are_counted(make: Make, pool: asyncpg.Pool) -> None:
    gate = Gate()
    scheduler = make(shutdown_timeout=0)
    scheduler.register(gate.job, name="gate")
    await scheduler.start()
    await scheduler.enqueue("gate")
    await gate.wait_begun()
    await scheduler.shutdown()
    assert await totals(pool) == {"gate": {"scheduled": 1, "started": 1, "released": 1}}
    assert await statuses(pool) == {"gate": {"pending": 1}}


async def test_functions_in_threads_are_measured(make: Make, pool: asyncpg.Pool) -> None:
    scheduler = make()
    seen = Recorder(scheduler)

    def work() -> None: ...

    scheduler.register(work, name="work", executor="thread")
    await scheduler.start()
    await scheduler.enqueue("work")
    await seen.until(JobCompleted)
    assert snapshot(scheduler).jobs["work"].durations.number == 1


async def test_lateness_is_measured_by_the_clock_of_the_scheduler(make: Make) -> None:
    scheduler = make()
    seen = Recorder(scheduler)

    async def work() -> None: ...

    scheduler.register(work, name="work")
    await scheduler.schedule(work, execution_time=now() - timedelta(seconds=100))
    await scheduler.start()
    await seen.until(JobCompleted)
    assert snapshot(scheduler).jobs["work"].lateness.at_most([90, 120]) == [0, 1]


async def test_scheduler_without_statistics_counts_and_writes_nothing(make: Make, pool: asyncpg.Pool) -> None:
    scheduler = make(statistics=False)
    seen = Recorder(scheduler)

    async def work() -> None: ...

    scheduler.register(work, name="work")
    await scheduler.start()
    await scheduler.enqueue("work")
    await seen.until(JobCompleted)
    await scheduler.shutdown()
    assert meter_of(scheduler) is None
    assert await totals(pool) == await totals(pool, "scheduler_stats") == {}
