"""The driver of this library: its public API and nothing else."""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import asyncpg

from benchmarks.peers.protocol import Order, Peer, nap, record, run, say
from pg_scheduler import JobPriority, JobSpec, PollingConfig, Scheduler, VacuumConfig, VacuumPolicy

__all__ = ["TUNED", "Ours", "main", "other", "sleep", "work"]

TUNED = {"max_concurrent_jobs": 1000, "batch_claim_limit": 500}

CLAIM = re.compile(r"attempt\s*=\s*(\w+\.)?attempt\b")
"""How a claim is recognised among the statements."""

LOOKS = 100


async def work(t: float, user: str) -> None:  # noqa: ARG001 - an argument like any user's
    """A job that does nothing but tell that it starts."""
    record(t)


async def sleep(t: float, user: str) -> None:  # noqa: ARG001 - the same
    """A job that sleeps until its worker stops."""
    record(t)
    await nap()


async def other(t: float, user: str) -> None:
    """A job that only its sender knows."""


JOBS = {"work": work, "nap": sleep, "other": other}


class Ours(Peer):
    """Uses the pool as any application would.

    Options of an order: ``slots`` and ``claim``; ``poll``, seconds between two looks of an idle worker;
    ``priority``; ``batch`` of the bulk call; ``trace``, to time every claim; ``statements``, to tell every
    statement and when it was made; ``keep``, False to delete
    completed jobs at once; ``report``, seconds between two words about memory; ``shutdown_timeout``.
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
        """Make the tables."""
        async with self._pool() as pool:
            await Scheduler(pool).initialize_db()

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """In a process that works too: through the same Scheduler."""
        if self._scheduler is not None:
            yield
            return
        async with self._pool() as pool:
            self._scheduler = Scheduler(pool)
            await self._scheduler.initialize_db()
            yield
            self._scheduler = None

    async def send(self, arguments: dict[str, Any], due: float | None) -> None:
        """schedule()."""
        assert self._scheduler is not None
        await self._scheduler.schedule(
            self.job, execution_time=_instant(due), kwargs=arguments, priority=self.priority
        )

    async def send_many(self, arguments: list[dict[str, Any]], due: float | None) -> None:
        """schedule_bulk() with a batch size like the peers' largest statements."""
        assert self._scheduler is not None
        instant = _instant(due)
        jobs = [
            JobSpec(self.job, instant, kwargs=each, priority=self.priority, misfire_grace_time=None)
            for each in arguments
        ]
        batch = self.order.options.get("batch", 10_000)
        for start in range(0, len(jobs), 100_000):
            await self._scheduler.schedule_bulk(jobs[start : start + 100_000], batch_size=batch)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """A Scheduler that knows one function."""
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
        settings["shutdown_timeout"] = options.get("shutdown_timeout", 30.0)
        async with AsyncExitStack() as stack:
            pool = await stack.enter_async_context(self._pool())
            self._scheduler = Scheduler(pool, **settings)
            self._scheduler.register(self.job)
            async with self._scheduler:
                beat = asyncio.create_task(self._report()) if "report" in options else None
                yield
                if beat:
                    beat.cancel()
                if options.get("statements"):
                    say(event="statements", seen=list(self.statements))
                if options.get("trace"):
                    claims = [1000 * each for each in self.claims]
                    say(event="claims", milliseconds=claims, **await self._look_closer(pool))

    async def _look_closer(self, pool: asyncpg.Pool) -> dict[str, float]:
        """The last claim again, timed by the server itself and rolled back; and what any round trip costs.

        The round trips are as far apart as the polls of an idle worker: back to back they would be several
        times as fast, because neither side goes to sleep.
        """
        if self._last is None:
            return {}
        query, arguments = self._last
        async with pool.acquire() as connection:
            executions = []
            for _ in range(LOOKS):
                transaction = connection.transaction()
                await transaction.start()
                plan = await connection.fetchval(
                    f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {query}", *arguments
                )
                await transaction.rollback()
                executions.append(json.loads(plan)[0]["Execution Time"])
            statement = await connection.prepare("SELECT 1")
            trips = []
            for _ in range(LOOKS):
                await asyncio.sleep(self.order.options.get("poll", 0.01))
                began = time.perf_counter()
                await statement.fetchval()
                trips.append(1000 * (time.perf_counter() - began))
        return {"execution": statistics.median(executions), "select_one": statistics.median(trips)}

    async def _report(self) -> None:
        """Tell the memory now and then; see the soak."""
        while True:
            result = record.result()
            say(event="report", count=result["count"], last=result["last"], rss=result["rss"])
            record.samples.clear()
            record.marks.clear()
            await asyncio.sleep(self.order.options["report"])

    def _pool(self) -> asyncpg.Pool:
        async def watch(connection: Any) -> None:
            connection.add_query_logger(self._count if self.order.options.get("statements") else self._note)

        return asyncpg.create_pool(
            self.order.dsn,
            min_size=1,
            max_size=10,
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
    """Be the driver."""
    run(Ours, order)
