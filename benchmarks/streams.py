"""Measure streams: ``python -m benchmarks.streams [--dbos PYTHON]``.

Appends of one job and of a hundred at once, the WAL of an item, and the delay from an append to a reader in
another Scheduler, while a job appends an item every 20 ms, as a language model does. With ``--dbos``, see
``dbos_turns.py``.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from benchmarks.dbos_turns import main

ITEM: Final = "x" * 40
"""A word of an answer, with its markup."""

GAP_S: Final = 0.02
SIZES: Final = {"pg_scheduler": (20_000, 1_000, 300), "dbos": (1_000, 50, 300)}
"""The items of the one job, of each of the hundred, and of the measurement of the delay, by contestant."""

JOBS: Final = 100

FLUSHED: Final = 1_000
"""The items of the job that waits for the commit of each one, as DBOS always does."""

Wal = Callable[[], Awaitable[int]]
Run = Callable[[int, int], Awaitable[None]]
Reads = Callable[[int], AsyncIterator[float]]


async def measure(run: Run, reads: Reads, wal: Wal, sizes: tuple[int, int, int]) -> dict[str, float]:
    """Return the figures of one round.

    Args:
        run: Runs so many jobs at once that append so many items each, and returns when all have ended.
        reads: Runs a job that appends so many items, and yields when each one was appended, as it is read.
        wal: Returns the position of the WAL in bytes.
        sizes: See ``SIZES``.
    """
    items_of_one, items_of_many, delayed_count = sizes
    figures: dict[str, float] = {}
    for name, jobs, items in (("one_job", 1, items_of_one), ("100_jobs", JOBS, items_of_many)):
        started_at, before = time.perf_counter(), await wal()
        await run(jobs, items)
        seconds = time.perf_counter() - started_at
        figures[f"{name}_appends_per_s"] = round(jobs * items / seconds)
        figures[f"{name}_wal_bytes_per_item"] = round((await wal() - before) / (jobs * items))
    before = await wal()
    delays = [1000 * (time.time() - appended_at) async for appended_at in reads(delayed_count)]
    figures["paced_wal_bytes_per_item"] = round((await wal() - before) / delayed_count)
    figures["delay_p50_ms"] = round(statistics.median(delays), 1)
    figures["delay_p99_ms"] = round(statistics.quantiles(delays, n=100)[98], 1)
    return figures


# -- this library ----------------------------------------------------------------------------------------


async def run_ours(dsn: str) -> dict[str, float]:
    """Return the figures of this library."""
    import asyncpg  # noqa: PLC0415 - not in the environment of the other one

    from pg_scheduler import Scheduler, current_job  # noqa: PLC0415 - not in the environment of the other one

    async def append(items: int) -> None:
        """Append items as fast as possible."""
        stream = current_job().stream("words")
        for _ in range(items):
            await stream.append(ITEM)

    async def append_and_flush(items: int) -> None:
        """Append items, and wait for the commit of each one."""
        stream = current_job().stream("words")
        for _ in range(items):
            await stream.append(ITEM)
            await stream.flush()

    async def append_paced(items: int) -> None:
        """Append an item every 20 ms."""
        stream = current_job().stream("words")
        for _ in range(items):
            await stream.append(time.time())
            await asyncio.sleep(GAP_S)

    async with (
        asyncpg.create_pool(dsn, min_size=1, max_size=1) as watcher,
        Scheduler.connect(dsn, max_concurrent_jobs=JOBS) as scheduler,
        Scheduler.connect(dsn, role="observer") as reader,
    ):
        scheduler.register(append, name="streams.append", timeout=600)
        scheduler.register(append_and_flush, name="streams.append_and_flush", timeout=600)
        scheduler.register(append_paced, name="streams.append_paced")

        async def run(jobs: int, items: int) -> None:
            """Run jobs, and wait for their ends."""
            job_ids = [await scheduler.enqueue("streams.append", args=(items,)) for _ in range(jobs)]
            for job_id in job_ids:
                await scheduler.get_job_result(job_id)

        async def reads(items: int) -> AsyncIterator[float]:
            """Yield the times of the appends as another Scheduler reads them."""
            job_id = await scheduler.enqueue("streams.append_paced", args=(items,), delay=0.5)
            async for item in reader.stream(job_id, "words"):
                yield item.value

        async def wal() -> int:
            """Return the position of the WAL."""
            return int(await watcher.fetchval("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn"))

        figures = await measure(run, reads, wal, SIZES["pg_scheduler"])
        started_at = time.perf_counter()
        job_id = await scheduler.enqueue("streams.append_and_flush", args=(FLUSHED,))
        await scheduler.get_job_result(job_id)
        figures["one_job_flushed_appends_per_s"] = round(FLUSHED / (time.perf_counter() - started_at))
        return figures


# -- DBOS ------------------------------------------------------------------------------------------------


async def run_dbos(dsn: str) -> dict[str, float]:
    """Return the figures of DBOS. The workflow itself writes the items, so each one is stored once."""
    import psycopg  # noqa: PLC0415 - not in the environment of the other one
    from dbos import DBOS, DBOSConfig  # noqa: PLC0415 - not in the environment of the other one

    @DBOS.workflow()
    async def append(items: int) -> None:
        """Append items as fast as possible."""
        for _ in range(items):
            await DBOS.write_stream_async("words", ITEM)

    @DBOS.workflow()
    async def append_paced(items: int) -> None:
        """Append an item every 20 ms."""
        for _ in range(items):
            await DBOS.write_stream_async("words", time.time())
            await asyncio.sleep(GAP_S)
        await DBOS.close_stream_async("words")

    DBOS(config=DBOSConfig(name="streams", system_database_url=dsn, sys_db_pool_size=20))
    DBOS.launch()
    connection = await psycopg.AsyncConnection.connect(dsn, autocommit=True)

    async def run(jobs: int, items: int) -> None:
        """Run workflows, and wait for their ends."""
        handles = [await DBOS.start_workflow_async(append, items) for _ in range(jobs)]
        for handle in handles:
            await handle.get_result()

    async def reads(items: int) -> AsyncIterator[float]:
        """Yield the times of the appends as they are read."""
        handle = await DBOS.start_workflow_async(append_paced, items)
        async for value in DBOS.read_stream_async(handle.workflow_id, "words"):
            yield value

    async def wal() -> int:
        """Return the position of the WAL."""
        cursor = await connection.execute("SELECT (pg_current_wal_lsn() - '0/0'::pg_lsn)::bigint")
        row = await cursor.fetchone()
        return int(row[0]) if row else 0

    try:
        return await measure(run, reads, wal, SIZES["dbos"])
    finally:
        await connection.close()
        DBOS.destroy()


if __name__ == "__main__":
    main("benchmarks.streams", __doc__ or "", run_ours, run_dbos)
