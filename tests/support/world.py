"""Rows for the tests of what reads them: jobs, workers, and what belongs to them.

A test states what it is about, and the defaults complete each row to one that the constraints accept and that
the engine could have written. In every column, also in those that a method takes by their names only,

- a timedelta is an instant by the clock of the server: ``due=-HOUR`` was due an hour ago;
- a dict, or a list of dicts, is a JSON document;
- a function returns the value for the number of the row, from 1: ``due=lambda n: n * HOUR``. In a text,
  ``"job-{}".format`` is such a function.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import uuid4

import asyncpg
import pytest

NOW: Final = timedelta()
SECOND: Final = timedelta(seconds=1)
MINUTE: Final = timedelta(minutes=1)
HOUR: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1)


@dataclass
class World:
    """A database that a test fills."""

    pool: asyncpg.Pool

    async def job(self, job_id: str = "job", name: str = "app.work", **columns: Any) -> None:
        """Add a job; the columns are those of ``jobs()``."""
        await self.jobs(1, name, job_id=job_id, **columns)

    async def jobs(
        self,
        count: int,
        name: Any = "app.work",
        *,
        job_id: Any = None,
        status: Any = "pending",
        due: Any = NOW,
        started: Any = None,
        ended: Any = None,
        **columns: Any,
    ) -> None:
        """Add jobs, with what a job of their status has: a running one a worker and a lease, and so on.

        Without ``job_id``, they have random ones.
        """
        columns |= {"job_name": name, "status": status, "execution_time": due}
        chosen = {"job_id": job_id, "started_at": started, "finished_at": ended}
        columns |= {column: value for column, value in chosen.items() if value is not None}
        if job_id is None:
            columns["job_id"] = lambda _: str(uuid4())
        rows = numbered(count, columns)
        await self._insert("scheduled_jobs", [{**columns_of(row["status"]), **row} for row in rows])
        failed_ids = [row["job_id"] for row in rows if row["status"] in {"failed", "expired"}]
        if failed_ids:
            from tests.support.errors import count_errors

            await count_errors(self.pool, failed_ids)

    async def worker(
        self,
        worker_id: str = "w1",
        *,
        names: Any = ("work",),
        started: Any = NOW,
        lease: Any = MINUTE,
        **columns: Any,
    ) -> None:
        """Add a worker that claims "work", with one free slot of two."""
        size = {"max_concurrent_jobs": 2, "running_jobs": 1}
        process = {"worker_id": worker_id, "hostname": "host", "pid": 1, "version": "1", "names": names}
        times = {"started_at": started, "last_beat": NOW, "lease_until": lease}
        await self._insert("scheduler_workers", [{**process, **size, **times, **columns}])

    async def start(self, key: Any, job_id: Any, *, count: int = 1, at: Any = NOW, **columns: Any) -> None:
        """Add a start that counts in a limit or share, as long as the job runs."""
        columns = {"attempt": 1, "keep_s": 0, **columns, "key": key, "job_id": job_id, "at": at}
        await self._insert("scheduler_starts", numbered(count, columns))

    async def step(
        self,
        job_id: str,
        name: Any,
        kind: str = "step",
        *,
        count: int = 1,
        value: Any = None,
        started: Any = NOW,
        ended: Any = NOW,
        **columns: Any,
    ) -> None:
        """Add a step of a job, with a value that JSON can represent; one with ``ended=None`` is not over."""
        columns = {"attempt": 1, **columns, "job_id": job_id, "name": name, "kind": kind}
        columns |= {"value": None if value is None else json.dumps(value)}
        columns |= {"started_at": started, "ended_at": ended}
        await self._insert("scheduler_steps", numbered(count, columns))

    async def attempts(
        self,
        name: str,
        count: int,
        *,
        at: timedelta | datetime,
        failed: int = 0,
        expired: int = 0,
        took_s: float = 0.04,
    ) -> None:
        """Add statistics of attempts that ended in a minute, and of jobs that expired then."""
        from pg_scheduler.base.figures import BOUNDS, OUTCOMES

        instant = at if isinstance(at, datetime) else await self.pool.fetchval("SELECT now() + $1", at)
        ended = {"completed": count - failed, "failed": failed, "expired": expired}
        counts = [count, count, *(ended.get(outcome, 0) for outcome in OUTCOMES)]
        durations = [0] * (len(BOUNDS) + 1)
        durations[next(place for place, bound in enumerate(BOUNDS) if took_s <= bound)] = count
        await self.pool.execute(
            "INSERT INTO scheduler_stats (bucket, span, job_name, counts, sums, run_hist, late_hist)"
            " VALUES (date_trunc('minute', $1::timestamptz), 60, $2, $3, $4, $5, $6)",
            *(instant, name, counts, [count * took_s, 0.0], durations, [0] * len(durations)),
        )

    async def edge(self, parent_id: str, child_id: str, **columns: Any) -> None:
        """Let a job wait for another one."""
        await self._insert("scheduler_after", [{"parent_id": parent_id, "child_id": child_id, **columns}])

    async def paused_task(
        self, name: Any, *, count: int = 1, paused: Any = NOW, actor: str = "ada", **columns: Any
    ) -> None:
        """Pause a task, without a record in the audit."""
        columns |= {"name": name, "paused_at": paused, "actor": actor}
        await self._insert("scheduler_tasks", numbered(count, columns))

    async def audit(
        self,
        action: Any,
        subject: Any = None,
        *,
        count: int = 1,
        at: Any = NOW,
        actor: Any = "ada",
        via: Any = "cli",
        details: Any = "{}",
        **columns: Any,
    ) -> None:
        """Add a record to the audit."""
        columns |= {"action": action, "subject": subject, "at": at, "actor": actor, "via": via}
        await self._insert("scheduler_audit", numbered(count, {**columns, "details": details}))

    async def _insert(self, table: str, rows: list[dict[str, Any]]) -> None:
        """Insert rows with the same columns, all at one instant of the server."""
        places = [
            f"now() + ${place}::interval"
            if any(isinstance(row[name], timedelta) for row in rows)
            else f"${place}"
            for place, name in enumerate(rows[0], 1)
        ]
        await self.pool.executemany(
            f"INSERT INTO {table} ({', '.join(rows[0])}) VALUES ({', '.join(places)})",
            [[json.dumps(value) if is_document(value) else value for value in row.values()] for row in rows],
        )


@pytest.fixture
def world(pool: asyncpg.Pool) -> World:
    """The test's database, to add rows to."""
    return World(pool)


def is_document(value: object) -> bool:
    """Return whether a value is a dict or a list of dicts."""
    return isinstance(value, dict) or (isinstance(value, list) and bool(value) and isinstance(value[0], dict))


def numbered(count: int, columns: dict[str, Any]) -> list[dict[str, Any]]:
    """Return rows with these columns, whose functions get the number of the row."""
    return [
        {name: value(number) if callable(value) else value for name, value in columns.items()}
        for number in range(1, count + 1)
    ]


def columns_of(status: str) -> dict[str, Any]:
    """Return what a job of a status has, as the engine writes it and the constraints of the table want it."""
    is_running, is_ended = status == "running", status not in {"pending", "running"}
    return {
        "worker_id": "w1" if is_running else None,
        "attempt": 1 if is_running else 0,
        "started_at": NOW if is_running else None,
        "last_heartbeat": NOW if is_running else None,
        "lease_until": MINUTE if is_running else None,
        "finished_at": NOW if is_ended else None,
        "error_message": "no" if is_ended and status != "completed" else None,
    }


def populate(dsn: str, fill: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    """Fill the database of a test that has no event loop."""

    async def connect_and_fill() -> None:
        async with asyncpg.create_pool(dsn, min_size=1, max_size=2) as pool:
            await fill(World(pool))

    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        runner.run(connect_and_fill())
