"""Jobs of one key, one after the other, and of 10,000 keys at once."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import asyncpg

from benchmarks.bare import CYCLE, PLANS
from benchmarks.bench import Bench
from benchmarks.contestants import OURS
from benchmarks.results import Goal
from pg_scheduler import JobSpec, Scheduler, Sequence

TITLE: Final = "drain of sequences: one key, and 10,000 keys at once, 100 slots"

SLOTS: Final = 100
KEYS: Final = 10_000

LOOP: Final = "jobs/s of a bare loop, one for each commit"
ONE: Final = "jobs/s of one key"
PLAIN: Final = "jobs/s without a sequence"
MANY: Final = "jobs/s of 10,000 keys"

GOALS: Final = (
    Goal(ONE, than="ours", than_measure=LOOP, least=0.6),
    Goal(MANY, than="ours", than_measure=PLAIN, least=0.5),
)


async def measure(bench: Bench) -> None:
    """Drain plain jobs, jobs of 10,000 keys and jobs of one key, and run the bare loop, in turn."""
    count_of_one, count_of_many = bench.scale(2_000, 300), bench.scale(20_000, 4_000)
    for _ in range(max(2, bench.rounds)):
        for name, count, keys in (
            (LOOP, count_of_one, 0),
            (ONE, count_of_one, 1),
            (PLAIN, count_of_many, 0),
            (MANY, count_of_many, KEYS),
        ):
            async with bench.database(OURS) as database:
                jobs = Jobs(count)
                rate = await (jobs.loop(database.dsn) if name is LOOP else jobs.drain(database.dsn, keys))
                bench.outcome.add("ours", name, rate)


def _key(key: int, *_: Any) -> int:
    return key


class Jobs:
    """Jobs that do nothing."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.left = count
        self.ended = asyncio.Event()
        self.began = 0.0

    async def job(self, _key: int) -> None:
        """Count the job."""
        if self.left == self.count:
            self.began = time.monotonic()
        self.left -= 1
        if not self.left:
            self.ended.set()

    async def drain(self, dsn: str, keys: int) -> float:
        """Drain jobs of so many keys, none of a sequence if 0; return the jobs per second."""
        async with asyncpg.create_pool(dsn, min_size=2, max_size=10) as pool:
            scheduler = Scheduler(pool, max_concurrent_jobs=SLOTS)
            sequence = Sequence(key=_key) if keys else None
            await self._fill(scheduler, pool, keys, sequence)
            async with scheduler:
                await self.ended.wait()
                return self.count / (time.monotonic() - self.began)

    async def loop(self, dsn: str) -> float:
        """Claim and complete jobs without a library, one for each commit; return the jobs per second."""
        async with asyncpg.create_pool(dsn, min_size=2, max_size=10) as pool:
            await self._fill(Scheduler(pool), pool, 0, None)
        connection = await asyncpg.connect(dsn, server_settings=PLANS)
        cycle = await connection.prepare(CYCLE)
        since = datetime(2000, 1, 1, tzinfo=UTC)
        rows = await cycle.fetch([], "bare", 1, since)
        while rows:
            since = rows[0]["execution_time"]
            await self.job(0)
            rows = await cycle.fetch([rows[0]["job_id"]], "bare", 1, since)
        rate = self.count / (time.monotonic() - self.began)
        await connection.close()
        assert not self.left
        return rate

    async def _fill(
        self, scheduler: Scheduler, pool: asyncpg.Pool, keys: int, sequence: Sequence | None
    ) -> None:
        """Insert the jobs, and let the server settle."""
        scheduler.register(self.job, name="job", sequence=sequence)
        await scheduler.initialize_db()
        due = datetime.now(UTC) - timedelta(minutes=1)
        microsecond = timedelta(microseconds=1)
        await scheduler.schedule_bulk(
            [
                JobSpec(
                    self.job, due + n * microsecond, args=(n % keys if keys else 0,), misfire_grace_time=None
                )
                for n in range(self.count)
            ]
        )
        await pool.execute("VACUUM ANALYZE scheduled_jobs")
        await pool.execute("CHECKPOINT")
