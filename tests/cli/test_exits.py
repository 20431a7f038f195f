"""What ends a program ends only its job, whichever task or callback of the job raises it."""

from __future__ import annotations

import asyncio
import itertools
import signal
import sys
from pathlib import Path

import asyncpg
import pytest

from pg_scheduler import JobStatus, Scheduler
from tests.cli.exiting_jobs import FAILING, HARMLESS, STOPPING
from tests.cli.programs import starter, until
from tests.docs.snippets import ROOT
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.slow

JOBS = "tests.cli.exiting_jobs"
EXITS = ("SystemExit", "KeyboardInterrupt")


async def test_worker_survives_an_exit_in_each_task_and_callback_of_a_job(
    dsn: str, tmp_path: Path, pool: asyncpg.Pool[asyncpg.Record]
) -> None:
    scheduler = Scheduler(pool)
    exits = [*itertools.product((*FAILING, *HARMLESS), EXITS)]
    ways = [*exits, *((way, "") for way in STOPPING)]
    with starter(dsn, tmp_path)(JOBS) as program:
        for way, name in ways:
            job_id = await scheduler.enqueue("exits.run", args=(way, name))

            async def has_ended(job_id: str = job_id) -> bool:
                job = await scheduler.get_job(job_id)
                return job is not None and job.status.is_finished

            await until(has_ended)
            job = await scheduler.get_job(job_id)
            assert job is not None
            expected = JobStatus.FAILED if way in FAILING else JobStatus.COMPLETED
            assert (job.status, job.attempt, job.crash_count) == (expected, 1, 0), (way, name)
            assert (job.error_message or name).startswith(name)
        assert program.process.poll() is None
        assert program.text.count("it ended that task only") == len(exits)
        assert program.text.count("called stop() of the event loop") == len(STOPPING)
        program.process.send_signal(signal.SIGTERM)
        assert await program.end() == 0


async def test_job_that_ends_the_event_loop_of_its_program_counts_as_a_crash_each_time(
    dsn: str, pool: asyncpg.Pool[asyncpg.Record]
) -> None:
    """In a program with an event loop of its own, asyncio ends the program."""
    await Scheduler(pool).enqueue("exits.run", args=("gather", "SystemExit"))
    counts = []
    for _ in range(3):
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", JOBS, dsn, cwd=ROOT)
        await asyncio.wait_for(process.wait(), PATIENCE)
        counts += await pool.fetch("SELECT status, crash_count FROM scheduled_jobs")
    assert [*map(tuple, counts)] == [("pending", 1), ("pending", 2), ("failed", 3)]
    assert (await pool.fetchval("SELECT error_message FROM scheduled_jobs")).startswith("quarantined:")
