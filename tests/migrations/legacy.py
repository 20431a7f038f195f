"""A program that uses pg-scheduler 0.2.3, run as a separate process with that release on the import path.

``fill DSN`` creates jobs in every state of the old release, prints "ready", and keeps one of them running
until it is killed. ``run DSN JOB_ID ...`` runs until these jobs are completed. Each call is printed as JSON.
``produce DSN`` inserts jobs in each way of the old release for each line that it reads, and prints their ids.
"""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import UTC, datetime, timedelta

import asyncpg

from pg_scheduler import ConflictResolution, JobPriority, JobSpec, Scheduler, VacuumConfig, periodic

FAR_AWAY = datetime(2100, 1, 1, tzinfo=UTC)

_FILLED = """
    SELECT count(*) FILTER (WHERE (job_id, status) IN (
               ('done', 'completed'), ('broken', 'failed'), ('late', 'expired'), ('stuck', 'running')
           )) = 4
       AND count(*) FILTER (WHERE job_id = 'retrying' AND retry_count = 1) = 1
       AND count(*) FILTER (WHERE job_name = 'periodic_tick' AND status = 'completed') > 0
    FROM scheduled_jobs
"""
_COMPLETED = """
    SELECT count(*) = cardinality($1::text[])
    FROM scheduled_jobs
    WHERE job_id = ANY($1) AND status = 'completed'
"""


async def note(*args: object, **kwargs: object) -> None:
    print_line(json.dumps({"args": args, "kwargs": kwargs}))


async def fail() -> None:
    raise RuntimeError("as planned")


async def hang() -> None:
    await asyncio.Event().wait()


async def tick() -> None:
    pass


def print_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def fill(pool: asyncpg.Pool) -> None:
    periodic(every=timedelta(seconds=1))(tick)
    scheduler = Scheduler(pool, vacuum_config=VacuumConfig(track_metrics=True))
    await scheduler.start()
    now = datetime.now(UTC)
    await scheduler.schedule(
        note,
        execution_time=FAR_AWAY,
        args=(1, 2.5, "žluť", None, True, [1, {"deep": []}]),
        kwargs={"key": "value"},
        priority=JobPriority.HIGH,
        max_retries=2,
        job_id="waiting",
        misfire_grace_time=60,
    )
    await scheduler.schedule(note, execution_time=FAR_AWAY, job_id="patient", misfire_grace_time=None)
    await scheduler.schedule_bulk([JobSpec(note, FAR_AWAY, args=("bulk",), job_id="bulk")])
    await scheduler.schedule(note, execution_time=FAR_AWAY, job_id="cancelled")
    await scheduler.cancel_job("cancelled")
    await scheduler.schedule(
        note, execution_time=now - timedelta(hours=1), job_id="late", misfire_grace_time=1
    )
    await scheduler.schedule(note, execution_time=now, args=("done",), job_id="done")
    await scheduler.schedule(fail, execution_time=now, job_id="broken")
    await scheduler.schedule(fail, execution_time=now, job_id="retrying", max_retries=1)
    await scheduler.schedule(hang, execution_time=now, job_id="stuck")
    await wait_until(pool, _FILLED)
    print_line("ready")
    await hang()


async def run(pool: asyncpg.Pool, *job_ids: str) -> None:
    scheduler = Scheduler(pool)
    # The old release registers functions only when it schedules a job of them.
    vars(scheduler)["task_map"].update(note=note, hang=note)
    await scheduler.start()
    await wait_until(pool, _COMPLETED, list(job_ids))
    await scheduler.shutdown()


async def produce(pool: asyncpg.Pool) -> None:
    scheduler = Scheduler(pool)  # never started, as in a process that only enqueues
    while line := await asyncio.to_thread(sys.stdin.readline):
        own, now = line.strip(), datetime.now(UTC)
        ids = [
            await scheduler.schedule(note, execution_time=now, job_id=own),
            await scheduler.schedule(note, execution_time=now),
            *await scheduler.schedule_bulk([JobSpec(note, now), JobSpec(note, now, job_id=f"{own}-bulk")]),
        ]
        replacing = {"job_id": own, "conflict_resolution": ConflictResolution.REPLACE}
        assert await scheduler.schedule(note, execution_time=now, **replacing) == own
        print_line(json.dumps(ids))


async def wait_until(pool: asyncpg.Pool, query: str, *args: object) -> None:
    # The old release publishes no event when a job ends, so the table is polled.
    while not await pool.fetchval(query, *args):  # noqa: ASYNC110
        await asyncio.sleep(0.05)


COMMANDS = {"fill": fill, "run": run, "produce": produce}


async def main(command: str, dsn: str, *job_ids: str) -> None:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=4) as pool:
        await COMMANDS[command](pool, *job_ids)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
