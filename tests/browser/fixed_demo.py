"""The shop of the demo at a fixed instant: rows like those that its workers write, the same in each run.

The Scheduler has a clock that stands still, so its dashboard shows the same pages at any time. The functions
of the demo are not imported: they would declare its schedules in every test of the process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, Final
from zlib import crc32

import asyncpg

from pg_scheduler import Scheduler
from pg_scheduler.cli.demo.history import write_history
from pg_scheduler.clock import FakeClock
from pg_scheduler.jobs.outcome import quarantine_error
from pg_scheduler.schedules.timing import fire_time_job_id
from pg_scheduler.triggers import Cron, Every
from pg_scheduler.version import __version__
from tests.support.errors import count_errors

__all__ = ["NOW", "open_fixed_demo"]

NOW: Final = datetime(2027, 3, 24, 14, 59, 22, tzinfo=UTC)
"""Four days before a clock change in Berlin."""

HOUR: Final = timedelta(hours=1)
MINUTE: Final = timedelta(minutes=1)
SECOND: Final = timedelta(seconds=1)

TASKS: Final = ("shop.charge", "shop.coupon", "shop.import", "shop.mail", "shop.report", "shop.thumbnail")
WORKERS: Final = {"node-3": "8e2ee8b3", "node-4": "3dc3fde2"}

COLUMNS: Final[dict[str, Any]] = {
    "status": "pending",
    "task_data": {"args": [], "kwargs": {}},
    "priority": 5,
    "retry_count": 0,
    "max_retries": 0,
    "attempt": 0,
    "timeout_seconds": 3600,
    "crash_count": 0,
}

INSERT_JOBS: Final = """
    INSERT INTO scheduled_jobs SELECT * FROM jsonb_populate_recordset(NULL::scheduled_jobs, $1::text::jsonb)
"""
INSERT_WORKER: Final = """
    INSERT INTO scheduler_workers (
        worker_id, identity, hostname, pid, version, max_concurrent_jobs, running_jobs, names, state, health,
        settings, started_at, last_beat, lease_until, metadata
    )
    VALUES (
        $1, $2, 'vm', $3, $11, 25, $4, $5, 'running', $6::text::jsonb, $7::text::jsonb, $8, $9, $10,
        '{"release": "2027.12"}'
    )
"""
UPDATE_SCHEDULE: Final = """
    UPDATE scheduler_schedules SET created_at = $2, last_fire_at = $3, last_job_id = $4, runs = $5, owner = $6
    WHERE schedule_id = $1
"""
INSERT_STARTS: Final = """
    INSERT INTO scheduler_starts (key, job_id, attempt, at)
    SELECT 'limit:bank:', job_id, attempt, $1 FROM scheduled_jobs
    WHERE job_name = 'shop.charge' AND status = 'running'
"""
INSERT_STATISTICS: Final = """
    INSERT INTO scheduler_stats (bucket, span, job_name, counts, sums, run_hist, late_hist)
    SELECT $1, 60, $2, ARRAY[$3::int, $3, $3 - $4::int, $4] || array_fill(0, ARRAY[8]),
        ARRAY[0.4 * $3, 0.01 * $3],
        array_replace(array_fill(0, ARRAY[19]) || -1 || array_fill(0, ARRAY[28]), -1, $3),
        array_replace(array_fill(0, ARRAY[9]) || -1 || array_fill(0, ARRAY[38]), -1, $3)
    ON CONFLICT DO NOTHING
"""
SET_PAUSE: Final = "UPDATE scheduler_tasks SET paused_at = $1 WHERE name = 'shop.report'"
SORT_AUDIT: Final = """
    WITH gone AS (DELETE FROM scheduler_audit RETURNING at, action, subject, actor, via, details)
    INSERT INTO scheduler_audit (at, action, subject, actor, via, details)
    SELECT coalesce(schedules.created_at, tasks.paused_at, gone.at), action, subject, gone.actor, via, details
    FROM gone
    LEFT JOIN scheduler_schedules AS schedules ON schedules.schedule_id = gone.subject
        AND gone.action IN ('add_schedule', 'pause_schedule')
    LEFT JOIN scheduler_tasks AS tasks ON tasks.name = gone.subject AND gone.action LIKE 'pause%'
    ORDER BY 1
"""
INSERT_RELEASE: Final = """
    INSERT INTO scheduler_audit (at, actor, via, action, subject)
    VALUES ($1, 'node-3', 'worker', 'start_release', $2)
"""


async def open_fixed_demo(pool: asyncpg.Pool) -> Scheduler:
    """Fill an empty database, and return a Scheduler that never starts."""
    scheduler = Scheduler(pool, clock=FakeClock(NOW), identity="demo")
    await write_history(pool, NOW)
    await _add_workers(pool)
    await scheduler.tasks.pause("shop.report", note="the warehouse is being moved")
    fires = await _add_schedules(scheduler, pool)
    await pool.execute(INSERT_JOBS, json.dumps([*_jobs(), *fires]))
    await _count_fires(pool, fires)
    await pool.execute(SET_PAUSE, NOW - 5 * MINUTE)
    await pool.execute(INSERT_STARTS, NOW - SECOND)
    released_at = NOW - 34 * MINUTE
    for release, at in (("2027.11", NOW - 20 * HOUR), ("2027.12", released_at)):
        await pool.execute(INSERT_RELEASE, at, release)
    await pool.execute(SORT_AUDIT)
    await count_errors(pool)
    await pool.execute(
        "UPDATE scheduler_error_groups SET first_release = '2027.12' WHERE first_at > $1", released_at
    )
    await pool.execute("UPDATE scheduler_migrations SET applied_at = $1", NOW - timedelta(days=30))
    await pool.execute("VACUUM ANALYZE scheduled_jobs")
    return scheduler


async def _add_workers(pool: asyncpg.Pool) -> None:
    limit = {"task": "shop.charge", "name": "bank", "by_key": False, "max_running": 2}
    for place, (identity, worker_id) in enumerate(WORKERS.items()):
        health = {
            "pool": {"size": 4, "idle": 3 - place, "max": 10},
            "loop_lag_s": 0.0012 + 0.003 * place,
            "is_listening": place != 1,
            "has_liveness_lock": True,
        }
        await pool.execute(
            INSERT_WORKER,
            worker_id,
            identity,
            2543 + place,
            4 - 2 * place,
            [*TASKS, "shop.invoices", "shop.stock"],
            json.dumps(health),
            json.dumps({"limits": [limit]}),
            NOW - (34 - place) * MINUTE,
            NOW - SECOND,
            NOW + 59 * SECOND,
            __version__,
        )


async def _count_fires(pool: asyncpg.Pool, fires: list[dict[str, Any]]) -> None:
    """Add the statistics of the last hour of tasks that only schedules run."""
    numbers: dict[tuple[str, datetime], list[int]] = {}
    for fire in fires:
        minute = datetime.fromisoformat(fire["finished_at"]).replace(second=0, microsecond=0)
        if NOW - HOUR <= minute < NOW - MINUTE:  # the others are not complete
            ended = numbers.setdefault((fire["job_name"], minute), [0, 0])
            ended[0] += 1
            ended[1] += fire["status"] == "failed"
    for (name, minute), (number, failed) in numbers.items():
        await pool.execute(INSERT_STATISTICS, minute, name, number, failed)


async def _add_schedules(scheduler: Scheduler, pool: asyncpg.Pool) -> list[dict[str, Any]]:
    """Add the schedules, and return the jobs of their last fire times."""
    add = scheduler.schedules.add
    schedules = [
        await add("shop.coupon", Cron("0 0 1 * *"), args=("MONTHLY",), schedule_id="coupons", paused=True),
        await add(
            "shop.mail",
            Cron("0 9 * * MON-FRI", timezone="America/New_York"),
            args=(1,),
            schedule_id="morning-mail",
        ),
        await add("shop.thumbnail", Every(MINUTE), args=(1,), schedule_id="refresh-banner"),
        await add("shop.invoices", Cron("30 2 * * *", timezone="Europe/Berlin"), schedule_id="shop.invoices"),
        await add("shop.stock", Every(20 * SECOND), schedule_id="shop.stock"),
    ]
    jobs = []
    for schedule in schedules:
        owner = "code" if schedule.schedule_id.startswith("shop.") else "api"
        since, times = NOW - 40 * 24 * HOUR, list[datetime]()
        if schedule.schedule_id in {"refresh-banner", "shop.stock"}:
            step = MINUTE if owner == "api" else 20 * SECOND
            times = [schedule.anchor - number * step for number in range(24)]
            since = times[-1] - step
        elif schedule.paused_at is None:
            assert schedule.trigger is not None
            times = schedule.trigger.upcoming(60, after=since)
            times = [each for each in reversed(times) if each <= NOW][:24]
        ids = [fire_time_job_id(schedule.schedule_id, at, owner=owner) for at in times]
        jobs += [
            _ended(
                job_id,
                schedule.task,
                at,
                "failed" if place in {4, 11} else "completed",
                options={"schedule_id": schedule.schedule_id, "fire_time": at.isoformat()},
            )
            for place, (job_id, at) in enumerate(zip(ids, times, strict=True))
            if place != 7  # deleted
        ]
        last = (times[0], ids[0]) if times else (None, None)
        await pool.execute(UPDATE_SCHEDULE, schedule.schedule_id, since, *last, len(times), owner)
    return jobs


def _job(job_id: str, name: str, due: datetime, *args: object, **columns: Any) -> dict[str, Any]:
    """Return a row, whose instants are texts."""
    data = {
        "args": args,
        "kwargs": {},
        **({"metadata": columns.pop("metadata")} if "metadata" in columns else {}),
    }
    row = {
        **COLUMNS,
        "job_id": job_id,
        "job_name": name,
        "execution_time": due,
        "created_at": due - SECOND,
        "task_data": data,
        **columns,
    }
    return {key: value.isoformat() if isinstance(value, datetime) else value for key, value in row.items()}


def _running(node: str, seconds: int) -> dict[str, Any]:
    """Return the columns of a job that has run for so long."""
    return {
        "status": "running",
        "attempt": 1,
        "worker_id": WORKERS[node],
        "started_at": NOW - seconds * SECOND,
        "last_heartbeat": NOW - SECOND,
        "lease_until": NOW + 59 * SECOND,
    }


def _ended(
    job_id: str, name: str, due: datetime, status: str, *args: object, **columns: Any
) -> dict[str, Any]:
    """Return the row of a job that ran within a second after it was due, and ended before now."""
    began = min(due, NOW - SECOND)
    return _job(
        job_id,
        name,
        due,
        *args,
        **{
            "status": status,
            "attempt": 1,
            "worker_id": WORKERS["node-4"],
            "started_at": began + 0.01 * SECOND,
            "finished_at": began + (0.05 + crc32(job_id.encode()) % 8 / 10) * SECOND,
            "error_message": None if status == "completed" else "ConnectionError: connection reset by peer",
            **columns,
        },
    )


def _jobs() -> Iterator[dict[str, Any]]:
    """Yield the jobs that were enqueued."""
    ids = (f"0195c{number:03x}-898b-7cb9-9534-9c3edbfb{number:04x}" for number in count(1))
    for supplier in ("northwind", "acme", "globex"):
        yield _job(
            next(ids),
            "shop.import",
            NOW - 62 * SECOND,
            supplier,
            **_running("node-3", 61),
            metadata={"tags": [supplier]},
            progress={"done": 248, "total": 400, "note": "row 248 of 400"},
        )
    for name, node in (("shop.charge", "node-3"), ("shop.mail", "node-4")):
        yield _job(
            next(ids),
            name,
            NOW - SECOND,
            7,
            max_retries=2,
            **_running(node, 1),
        )
    for month in range(1, 4):
        yield _job(next(ids), "shop.report", NOW - 62 * SECOND, f"2030-{month:02}")
    for order in range(3):
        yield _job(next(ids), "shop.charge", NOW - SECOND, order, blocked_on="limit:bank:")
    for hour in range(1, 25):
        yield _job(next(ids), "shop.mail", NOW + hour * HOUR, hour)
    for number in range(40):
        yield _ended(next(ids), "shop.mail", NOW - number * SECOND, "completed", number)
    for number in range(8):
        at, text = NOW - 8.5 * number * SECOND, f"picture {17 * number} is not an image"
        yield _ended(
            next(ids), "shop.thumbnail", at, "failed", 17 * number, error_message=f"ValueError: {text}"
        )
        yield _declined(next(ids), NOW - (1 + 6.5 * number) * SECOND, 91 - 13 * number)
    for number in range(3):
        yield _ended(
            next(ids),
            "shop.coupon",
            NOW - HOUR,
            "expired",
            f"SPRING-{number}",
            attempt=0,
            started_at=None,
            worker_id=None,
            misfire_grace_time=60,
            finished_at=NOW - 62 * SECOND,
            error_message="not started within its misfire grace time",
        )
    yield _ended(
        next(ids), "shop.legacy", NOW - MINUTE, "failed", crash_count=3, error_message=quarantine_error(3)
    )
    yield _job(next(ids), "shop.charge", NOW - SECOND, 8, max_retries=2, **_running("node-4", 1))


def _declined(job_id: str, ended_at: datetime, order: int) -> dict[str, Any]:
    """Return the row of a charge that failed three times."""
    message = f"the bank declined the card of order {order}"
    errors = [
        {
            "attempt": attempt,
            "started_at": (ended_at - before * SECOND - 0.4 * SECOND).isoformat(),
            "ended_at": (ended_at - before * SECOND).isoformat(),
            "worker_id": WORKERS["node-4" if attempt % 2 else "node-3"],
            "outcome": "error",
            "error_type": "PermissionError",
            "message": message,
            "traceback": f'  File "shop.py", line 60, in charge\nPermissionError: {message}\n',
        }
        for attempt, before in ((1, 12.8), (2, 8.4), (3, 0))
    ]
    return _ended(
        job_id,
        "shop.charge",
        ended_at - 0.41 * SECOND,
        "failed",
        order,
        created_at=ended_at - 14 * SECOND,
        finished_at=ended_at,
        attempt=3,
        retry_count=2,
        max_retries=2,
        errors=errors,
        error_message=f"PermissionError: {message}",
    )
