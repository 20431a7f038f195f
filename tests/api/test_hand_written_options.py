"""No value that a person writes into the options of a job stops a call about it, or other jobs.

The options are JSON, so any value may be at the place of each key that a statement reads. A cast that fails
would fail the whole batch of a worker. The keys are those of the statements, so a new one is tried too.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import asyncpg
import pytest

from pg_scheduler import JobStatus, Unique
from pg_scheduler.testing import TestScheduler
from tests.support.inside import load_queries

pytestmark = pytest.mark.usefixtures("own_catalogue")

START: Final = datetime(2030, 1, 1, tzinfo=UTC)
MINUTE: Final = timedelta(minutes=1)
HOUR: Final = timedelta(hours=1)
VALUES: Final = ("null", "1e400", '"1e400"', "[]")
UNIQUE: Final = Unique(debounce=10 * MINUTE, max_wait=HOUR)
READ: Final = re.compile(
    r"options\)?\)? (?:OPERATOR\()?[\w.]*(?:->>?|#>>?)\)? (?:ARRAY ?\[)?'(\w+)'(?:, '(\w+)')?"
)


def paths() -> list[tuple[str, ...]]:
    """Return the places within the options of a job that any statement reads."""
    found = {groups for query in load_queries("public").values() for groups in READ.findall(query.text)}
    return sorted({tuple(key for key in groups if key) for groups in found})


async def noop(number: int) -> None: ...


class World:
    """Jobs, each of which has one odd value in its options."""

    def __init__(self, t: TestScheduler) -> None:
        self.t = t
        self.oddities = [(path, value) for path in paths() for value in VALUES]
        self.ids: list[str] = []

    async def enqueue(self) -> None:
        self.ids = [
            await self.t.scheduler.enqueue("task", args=(number,), unique=UNIQUE, deadline=HOUR)
            for number in range(len(self.oddities))
        ]

    async def write(self) -> None:
        """Write the values, in the options of the jobs and of definitions that wait for the end of them."""
        values: list[tuple[Any, ...]] = []
        for job_id, (path, value) in zip(self.ids, self.oddities, strict=True):
            values.append((job_id, [path[0]], "{}" if len(path) > 1 else value))
            if len(path) > 1:
                values.append((job_id, list(path), value))
        await self.t.pool.executemany(
            """
            UPDATE scheduled_jobs
            SET options = jsonb_set(coalesce(options, '{}'), $2::text[], $3::text::jsonb)
            WHERE job_id = $1
            """,
            values,
        )

    async def check_others(self) -> None:
        """Assert that a job without odd values is enqueued, and runs."""
        job_id = await self.t.scheduler.enqueue("task", args=(-1,), unique=None)
        await self.t.run_until(MINUTE)
        job = await self.t.scheduler.get_job(job_id)
        assert job is not None
        assert job.status is JobStatus.COMPLETED


def test_places_are_found() -> None:
    assert {("deadline",), ("debounce", "since"), ("failed_in",), ("retried_by_hand",)} <= {*paths()}


async def test_odd_values_stop_neither_calls_nor_workers(pool: asyncpg.Pool) -> None:
    async with TestScheduler(pool, now=START) as t:
        t.scheduler.register(noop, name="task")
        world = World(t)
        await world.enqueue()
        await world.write()
        await world.check_others()
        # The calls continue the series that the options tell.
        await world.enqueue()
        await world.write()
        await t.run_until(HOUR)
        await world.check_others()
        await world.write()
        for number, job_id in enumerate(world.ids):
            match number % 3:
                case 0:
                    await t.scheduler.retry_job(job_id)
                case 1:
                    await t.scheduler.retry_job(job_id, children=True)
                case _:
                    await t.scheduler.update_job_status(job_id, "pending")
        await world.write()
        await t.run_until(2 * HOUR)
        await t.scheduler.run_vacuum()
        await world.write()
        await t.scheduler.cancel_jobs(status=["pending", "running"], children=True)
        jobs = await t.scheduler.list_jobs(limit=1000)
        assert {*world.ids} <= {job.job_id for job in jobs}
        await world.check_others()
