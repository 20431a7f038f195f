"""Builders and helpers of the store tests."""

from __future__ import annotations

import inspect
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import asyncpg
import pytest

from pg_scheduler.database import session
from pg_scheduler.database.options import ConnectionOptions
from pg_scheduler.database.pool import Connections
from pg_scheduler.inspect.store.store import InspectionStore
from pg_scheduler.jobs.model import Worker
from pg_scheduler.jobs.rows import Claim, PlainJob
from pg_scheduler.scheduler.store import Store
from pg_scheduler.schedules.row import ScheduleRow
from pg_scheduler.worker.claims import FROM_THE_START, NO_IDS
from tests.support import inside

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
LEASE = 60.0
NAME = "app.work"

Pool = asyncpg.Pool
Connection: TypeAlias = session.Connection


def use_options(monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """Give these connection options to the schedulers of the test."""
    with_options = partial(Connections, options=ConnectionOptions(**options))
    inside.replace(monkeypatch, connections_of_scheduler=with_options)


def as_user(dsn: str, user: str) -> str:
    """Return the DSN with another user."""
    parts = urlsplit(dsn)
    address = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"{user}@{address}").geturl()


def parts_of(store: Store | InspectionStore) -> dict[str, Any]:
    """Return the public attributes of a store, also those that it makes at their first use."""
    late = {
        name
        for owner in type(store).__mro__
        for name, value in vars(owner).items()
        if isinstance(value, cached_property)
    }
    names = (name for name in {*vars(store), *late} if not name.startswith("_"))
    return {name: getattr(store, name) for name in names}


def methods_of(store: Store | InspectionStore) -> set[str]:
    """Return the public methods of a store and its repositories, as they are called on it."""
    owners: dict[str, object] = {"": store}
    owners |= {
        f"{name}.": part
        for name, part in parts_of(store).items()
        if type(part).__name__.endswith("Repository")
    }
    return {
        f"{prefix}{name}"
        for prefix, owner in owners.items()
        for name, _ in inspect.getmembers(type(owner), inspect.isfunction)
        if not name.startswith("_")
    }


def new_schedule(schedule_id: str = "key", **changes: Any) -> ScheduleRow:
    """Return a schedule of a caller that is due every hour, next in a second."""
    values: dict[str, Any] = {
        "owner": "api",
        "task": NAME,
        "trigger": '{"kind": "every", "every": "PT1H"}',
        "described": "every hour",
        "overlap": "allow",
        "catch_up": "latest",
        "anchor": NOW,
        "next_fire_at": NOW + SECOND,
        "created_at": NOW,
        "updated_at": NOW,
    }
    return ScheduleRow(schedule_id=schedule_id, **(values | changes))


def new_job(job_id: str = "job", **changes: Any) -> PlainJob:
    """Return a job that is due at NOW."""
    job = PlainJob(
        job_id=job_id,
        job_name=NAME,
        execution_time=NOW,
        task_data='{"args":[],"kwargs":{}}',
        priority=5,
        max_retries=0,
        misfire_grace_time=None,
        timeout_seconds=3600.0,
    )
    return job._replace(**changes)


def worker(worker_id: str = "w1", **changes: Any) -> Worker:
    """Return a worker; the database sets its instants."""
    return replace(Worker(worker_id, "host", 7, "1.0", 25, 0, NOW, NOW, NOW, True), **changes)


async def running(store: Store, *jobs: PlainJob, worker_id: str = "w1") -> list[Claim]:
    """Insert jobs and have a worker claim them."""
    await store.inserts.insert(jobs)
    await store.workers.register(worker(worker_id), LEASE)
    claims = (await store.claims.exchange(worker_id, [job.job_name for job in jobs], len(jobs))).jobs
    assert len(claims) == len(jobs)
    return claims


async def claim_on(
    connection: Connection, store: Store, limit: int, worker_id: str = "w1"
) -> list[asyncpg.Record]:
    """Claim on a connection of the test, and return the rows."""
    args = (worker_id, [NAME], limit, NOW, [], 0, *FROM_THE_START, True, NO_IDS, True, None, 1)
    *rows, _status_change = await store.statements.fetch("exchange_jobs", *args, on=connection)
    return rows


async def due_in(store: Store, names: list[str]) -> float | None:
    """Return the seconds until the next job of these names is due."""
    return (await store.claims.exchange("without a lease", names, 1)).due_in


async def row(pool: Pool, job_id: str = "job") -> dict[str, Any]:
    """Return the row of a job."""
    found = await pool.fetchrow("SELECT * FROM scheduled_jobs WHERE job_id = $1", job_id)
    assert found, f"there is no job {job_id}"
    return dict(found)


async def column(pool: Pool, name: str) -> dict[str, Any]:
    """Return one column of every job, by id."""
    return {each["job_id"]: each[name] for each in await pool.fetch("SELECT * FROM scheduled_jobs")}
