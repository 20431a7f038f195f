"""Transactions of many writers, each of which may schedule a job, and how soon that job starts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import asyncpg

from benchmarks.bench import Bench, Database
from benchmarks.contestants import OURS, Contestant
from benchmarks.results import Goal, percentile
from pg_scheduler import Scheduler, job
from pg_scheduler.base.settings import Notify

TITLE: Final = "transactions of 64 writers, a second, each with a job or none; pick-up after the commit, ms"

WRITERS: Final = 64
MODES: Final[tuple[Notify, ...]] = ("commit", "hint", "never")
GOALS: Final = (
    Goal("a job, hint", than="ours", than_measure="a job, never", least=0.9),
    Goal("trigger, start, p50", most=5.0),
    *(
        Goal(f"trigger, start, {each}", than="ours", than_measure=f"trigger, bare start, {each}", most=1.25)
        for each in ("p50", "p95")
    ),
)

TRIGGER: Final = """
CREATE TABLE events (id text PRIMARY KEY, number integer);
CREATE FUNCTION add_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM scheduler_add_job('bench.commits', jsonb_build_array(NEW.id));
    PERFORM pg_notify('bare', NEW.id);
    RETURN NEW;
END
$$;
CREATE TRIGGER add_job AFTER INSERT ON events FOR EACH ROW EXECUTE FUNCTION add_job();
"""
"""Adds a job for each event, and notifies a listener that does nothing else."""

starts: dict[str, float] = {}
"""When each job started."""


@job(name="bench.commits")
async def work(number: str) -> None:
    """Record the start."""
    starts[number] = time.perf_counter()


async def measure(bench: Bench) -> None:
    """Let the modes take turns, without a worker; then commit one job after the other, with a worker."""
    seconds, samples = bench.scale(5, 1), bench.scale(200, 20)

    async def one(_contestant: Contestant, database: Database) -> None:
        async with asyncpg.create_pool(database.dsn, min_size=WRITERS, max_size=WRITERS) as pool:
            await pool.execute("CREATE TABLE orders (number integer, text text)")
            bench.outcome.add("ours", "no job", await _rate(pool, None, seconds))
            for mode in MODES:
                scheduler = Scheduler(pool, notify=mode)
                bench.outcome.add("ours", f"a job, {mode}", await _rate(pool, scheduler, seconds))
            await pool.execute("DELETE FROM scheduled_jobs")
        for mode in MODES[:2]:
            delays = await _delays(database.dsn, mode, samples)
            for name, share in (("p50", 0.5), ("p99", 0.99)):
                bench.outcome.add("ours", f"pick-up {name}, {mode}", 1000 * percentile(delays, share))
        for name, delays in (await _trigger_delays(database.dsn, samples)).items():
            for percent, share in (("p50", 0.5), ("p95", 0.95)):
                bench.outcome.add("ours", f"trigger, {name}, {percent}", 1000 * percentile(delays, share))

    await bench.alternate([OURS], one)


async def _rate(pool: asyncpg.Pool, scheduler: Scheduler | None, seconds: float) -> float:
    """Return the transactions of all writers in a second."""
    number, ends_at = 0, time.perf_counter() + seconds

    async def write() -> None:
        nonlocal number
        while time.perf_counter() < ends_at:
            async with pool.acquire() as connection, connection.transaction():
                await connection.execute("INSERT INTO orders VALUES ($1, 'x')", number)
                if scheduler is not None:
                    await scheduler.schedule(
                        work, execution_time=datetime.now(UTC), args=("",), connection=connection
                    )
            number += 1

    await asyncio.gather(*(write() for _ in range(WRITERS)))
    return number / seconds


async def _delays(dsn: str, mode: Notify, samples: int) -> list[float]:
    """Return the seconds from a commit to the start of its job by a worker that only notifications reach."""
    open_pool: Callable[[], Any] = lambda: asyncpg.create_pool(dsn, min_size=1, max_size=5)  # noqa: E731
    delays = []
    starts.clear()
    async with open_pool() as own, open_pool() as pool, Scheduler(own):
        sender = Scheduler(pool, notify=mode)
        for place in range(samples):
            number = f"{mode} {place}"
            async with pool.acquire() as connection, connection.transaction():
                await sender.schedule(
                    work, execution_time=datetime.now(UTC), args=(number,), connection=connection
                )
            committed = time.perf_counter()
            while number not in starts:  # noqa: ASYNC110 - the job sets it
                await asyncio.sleep(0.0005)
            delays.append(starts[number] - committed)
            await asyncio.sleep(0.02)
    return delays[samples // 10 :]


async def _trigger_delays(dsn: str, samples: int) -> dict[str, list[float]]:
    """Return the seconds from commits of a trigger to the starts of its jobs, and to those of a bare loop.

    The bare loop gets its notifications by the same commits, and its claim is the commit of one row.
    """
    found: dict[str, list[float]] = {"start": [], "bare start": [], "bare notification": []}
    received: dict[str, float] = {}
    claimed: dict[str, float] = {}
    claims: list[asyncio.Task[None]] = []
    starts.clear()
    connect = partial(asyncpg.connect, dsn)
    async with asyncpg.create_pool(dsn, min_size=1, max_size=5) as own, Scheduler(own):
        writer, listener, claimer = await connect(), await connect(), await connect()
        await writer.execute(TRIGGER)

        async def claim(number: str) -> None:
            await claimer.execute("UPDATE events SET number = number + 1 WHERE id = $1", number)
            claimed[number] = time.perf_counter()

        def receive(_connection: object, _pid: int, _channel: str, number: Any) -> None:
            received[number] = time.perf_counter()
            claims.append(asyncio.create_task(claim(number)))

        await listener.add_listener("bare", receive)
        for place in range(samples):
            number = f"trigger {place}"
            await writer.execute("INSERT INTO events VALUES ($1, $2)", number, place)
            committed = time.perf_counter()
            while number not in starts or number not in claimed:  # noqa: ASYNC110 - others set them
                await asyncio.sleep(0.0005)
            for name, times in zip(found, (starts, claimed, received), strict=True):
                found[name].append(times[number] - committed)
            await asyncio.sleep(0.02)
        for connection in (writer, listener, claimer):
            await connection.close()
    return {name: delays[samples // 10 :] for name, delays in found.items()}
