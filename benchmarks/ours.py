"""The driver of this library, through its public API alone."""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import Any

import asyncpg

from benchmarks.our_steps import DURABLE_JOBS, SIGNAL, id_of
from benchmarks.peers.protocol import SHORT_S, Order, Peer, nap, record, run, send_event
from pg_scheduler import JobPriority, JobSpec, Limit, PollingConfig, Scheduler, VacuumConfig, VacuumPolicy
from pg_scheduler.sync import SyncScheduler
from pg_scheduler.triggers import At

TUNED = {"max_concurrent_jobs": 1000, "batch_claim_limit": 500}

CLAIM = re.compile(r"attempt\s*=\s*(\w+\.)?attempt\b")
"""Matches the statements that claim jobs."""

REPETITIONS = 100


async def work(t: float, user: str) -> None:  # noqa: ARG001 - a typical argument
    """Record the start."""
    record(t)


async def sleep(t: float, user: str) -> None:  # noqa: ARG001 - a typical argument
    """Record the start and sleep until the worker stops."""
    record(t)
    await nap()


async def short(t: float, user: str) -> None:  # noqa: ARG001 - a typical argument
    """Record the start and wait for a millisecond."""
    record(t)
    await asyncio.sleep(SHORT_S)


async def fail(t: float, user: str) -> None:
    """Record the start and fail for good."""
    record(t)
    raise LookupError(f"no invoice of {user}")


async def other(t: float, user: str) -> None:
    """Do nothing; workers do not register this job."""


JOBS = {"work": work, "short": short, "fail": fail, "nap": sleep, "other": other, **DURABLE_JOBS}


class Ours(Peer):
    """Uses this library with a pool, as an application would.

    Options of an order: ``slots`` and ``claim``; ``poll``, the polling interval of an idle worker in seconds;
    ``priority``; ``max_running``, the limit of the job; ``batch``, the batch size of the bulk call;
    ``schedules``, True for a schedule for each job of the bulk call; ``callback``, True for one job after
    all of them; ``role``, that of the worker;
    ``trace``, to time every claim; ``statements``, to list every statement with its time; ``keep``, False to
    delete jobs on completion; ``vacuum``, the minutes between two passes of the vacuum, None for none;
    ``days``, for which completed jobs are kept then;
    ``report``, the seconds between two reports of memory; ``shutdown_timeout``; ``connections``, the size of
    the pool.
    """

    def __init__(self, order: Order) -> None:
        super().__init__(order)
        self.job = JOBS[order.job]
        self.priority = JobPriority(order.options.get("priority", "normal"))
        self.claims: list[float] = []
        self.statements: list[tuple[float, str]] = []
        self._last: tuple[str, tuple[Any, ...]] | None = None
        self._scheduler: Scheduler | None = None

    async def install(self) -> None:
        """Create the tables."""
        async with self._pool() as pool:
            await Scheduler(pool).initialize_db()

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """Open a Scheduler to enqueue with; reuse the one of a worker in the same process."""
        if self._scheduler is not None:
            yield
            return
        async with self._pool() as pool:
            self._scheduler = Scheduler(pool)
            await self._scheduler.initialize_db()
            yield
            self._scheduler = None

    async def send(self, arguments: dict[str, Any], due: float | None) -> None:
        """Call schedule()."""
        assert self._scheduler is not None
        await self._scheduler.schedule(
            self.job, execution_time=_instant(due), kwargs=arguments, priority=self.priority
        )

    async def send_many(self, arguments: list[dict[str, Any]], due: float | None) -> None:
        """Call schedule_bulk() with a batch size like the largest statements of the peers."""
        assert self._scheduler is not None
        instant = _instant(due)
        if self.order.options.get("schedules"):
            await self._add_schedules(arguments, instant)
            return
        jobs = [
            JobSpec(
                self.job,
                instant,
                kwargs=each,
                priority=self.priority,
                job_id=id_of(number) if self.order.job == "wait" else None,
                misfire_grace_time=None,
            )
            for number, each in enumerate(arguments)
        ]
        batch = self.order.options.get("batch", 10_000)
        ids: list[str | None] = []
        for start in range(0, len(jobs), 100_000):
            ids = await self._scheduler.schedule_bulk(jobs[start : start + 100_000], batch_size=batch)
        if self.order.options.get("callback"):
            await self._scheduler.enqueue(
                self.job, kwargs=arguments[0], after=[job_id for job_id in ids if job_id]
            )

    async def _add_schedules(self, arguments: list[dict[str, Any]], instant: datetime) -> None:
        """Add the schedules one by one from 10 tasks, because there is no bulk call."""
        assert self._scheduler is not None
        schedules = self._scheduler.schedules
        each = iter(arguments)

        async def caller() -> None:
            for one in each:
                await schedules.add(self.job, At(instant), kwargs=one)

        await asyncio.gather(*(caller() for _ in range(10)))

    async def result_of(self, arguments: dict[str, Any]) -> object:
        """Call run_job()."""
        assert self._scheduler is not None
        return await self._scheduler.run_job(self.job, kwargs=arguments)

    async def signal(self, number: int, value: float) -> None:
        """Send a signal to the job of this number."""
        assert self._scheduler is not None
        await self._scheduler.signal(id_of(number), SIGNAL, value)

    @contextmanager
    def blocking(self) -> Iterator[Callable[[dict[str, Any]], object]]:
        """Call schedule() of a SyncScheduler."""
        with SyncScheduler(self.order.dsn) as scheduler:
            yield lambda arguments: scheduler.schedule(
                self.job, execution_time=_instant(None), kwargs=arguments, priority=self.priority
            )

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Run a Scheduler with one registered function."""
        options = self.order.options
        settings: dict[str, Any] = dict(TUNED if self.order.tuned else {})
        if "slots" in options:
            settings["max_concurrent_jobs"] = options["slots"]
        if "claim" in options:
            settings["batch_claim_limit"] = options["claim"]
        if "poll" in options:
            settings["polling_config"] = PollingConfig(
                options["poll"], options["poll"], 1.0, options["poll"], jitter=False
            )
        if not options.get("keep", True):
            settings["vacuum_config"] = VacuumConfig(completed=VacuumPolicy.immediate(), interval_minutes=0.1)
        if minutes := options.get("vacuum"):
            completed = VacuumPolicy.after_days(options.get("days", 1))
            settings["vacuum_config"] = VacuumConfig(completed=completed, interval_minutes=minutes)
        elif "vacuum" in options:
            settings["vacuum_enabled"] = False
        settings["role"] = options.get("role", "both")
        settings["shutdown_timeout"] = options.get("shutdown_timeout", 30.0)
        async with AsyncExitStack() as stack:
            pool = await stack.enter_async_context(self._pool())
            self._scheduler = Scheduler(pool, **settings)
            most = options.get("max_running")
            self._scheduler.register(self.job, limits=[Limit(max_running=most)] if most else [])
            async with self._scheduler:
                reporter = asyncio.create_task(self._report()) if "report" in options else None
                yield
                if reporter:
                    reporter.cancel()
                if options.get("statements"):
                    send_event(event="statements", seen=list(self.statements))
                if options.get("trace"):
                    claims = [1000 * each for each in self.claims]
                    send_event(event="claims", milliseconds=claims, **await self._time_last_claim(pool))

    async def _time_last_claim(self, pool: asyncpg.Pool) -> dict[str, float]:
        """Repeat the last claim, timed by the server and rolled back, and time trivial round trips.

        The round trips are as far apart as the polls of an idle worker. Without pauses they would be several
        times as fast, because neither side would sleep.
        """
        if self._last is None:
            return {}
        query, arguments = self._last
        async with pool.acquire() as connection:
            executions = []
            for _ in range(REPETITIONS):
                transaction = connection.transaction()
                await transaction.start()
                plan = await connection.fetchval(
                    f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {query}", *arguments
                )
                await transaction.rollback()
                executions.append(json.loads(plan)[0]["Execution Time"])
            statement = await connection.prepare("SELECT 1")
            trips = []
            for _ in range(REPETITIONS):
                await asyncio.sleep(self.order.options.get("poll", 0.01))
                began = time.perf_counter()
                await statement.fetchval()
                trips.append(1000 * (time.perf_counter() - began))
        return {"execution": statistics.median(executions), "select_one": statistics.median(trips)}

    async def _report(self) -> None:
        """Report progress, lateness in milliseconds, and memory at intervals."""
        while True:
            result = record.result()
            samples = sorted(result["samples"]) or [0.0]
            send_event(
                event="report",
                count=result["count"],
                last=result["last"],
                rss=result["rss"],
                cpu=result["cpu"],
                p50=1000 * samples[len(samples) // 2],
                p99=1000 * samples[len(samples) * 99 // 100],
            )
            record.samples.clear()
            record.marks.clear()
            await asyncio.sleep(self.order.options["report"])

    def _pool(self) -> asyncpg.Pool:
        async def watch(connection: Any) -> None:
            connection.add_query_logger(self._count if self.order.options.get("statements") else self._note)

        return asyncpg.create_pool(
            self.order.dsn,
            min_size=1,
            max_size=self.order.options.get("connections", 10),
            init=watch if self.order.options.keys() & {"trace", "statements"} else None,
        )

    def _note(self, query: Any) -> None:
        if CLAIM.search(query.query) and not query.query.startswith("EXPLAIN"):
            self.claims.append(query.elapsed)
            self._last = query.query, query.args

    def _count(self, query: Any) -> None:
        first_line = query.query.strip().removeprefix("-- ").partition("\n")[0]
        self.statements.append((time.time(), re.split(r"[,.:;(]", first_line)[0]))


def _instant(due: float | None) -> datetime:
    return datetime.now(UTC) if due is None else datetime.fromtimestamp(due, UTC)


def main(order: str) -> None:
    """Run the driver."""
    run(Ours, order)
