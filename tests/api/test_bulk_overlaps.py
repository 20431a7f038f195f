"""Jobs of one call of schedule_bulk() that replace each other do so as single calls in the same order do."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import product

import asyncpg
import pytest

from pg_scheduler import ConflictResolution, JobConflictError, JobSpec, Scheduler
from tests.api.conftest import Make

REPLACE = ConflictResolution.REPLACE
START = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)

STATES = {
    "no job": [],
    "one holds a key": [("H", "k")],
    "two hold keys": [("H", "k"), ("a", "m")],
    "one has an id": [("H", None)],
}
"""The ids and the keys of the jobs that exist before the call."""

Names = tuple[str, str | None, bool]
"""The id and the key of a job, and whether it waits."""

NAMES: list[Names] = list(product(["H", "a", "b"], [None, "k", "m"], [False, True]))


async def sync_user(user_id: int) -> None: ...


@pytest.fixture
async def idle(make: Make) -> Scheduler:
    """Return a Scheduler that runs nothing."""
    scheduler = make()
    await scheduler.initialize_db()
    return scheduler


def specs_of(jobs: Sequence[Names]) -> list[JobSpec]:
    """Return jobs whose arguments tell their places in the call."""
    return [
        JobSpec(sync_user, START, args=(place,), job_id=job_id, unique=key, after=["p"] if waits else [])
        for place, (job_id, key, waits) in enumerate(jobs, 1)
    ]


async def add_holder(scheduler: Scheduler) -> None:
    """Add the job H with the key k, and the job p, for which others wait."""
    await scheduler.enqueue(sync_user, args=(0,), delay=HOUR, job_id="p")
    await scheduler.enqueue(sync_user, args=(0,), delay=HOUR, job_id="H", unique="k")


async def replace(scheduler: Scheduler, specs: Sequence[JobSpec]) -> list[str | None]:
    return await scheduler.schedule_bulk(specs, conflict_resolution=REPLACE)


async def rows_of(pool: asyncpg.Pool) -> list[tuple[object, ...]]:
    queries = (
        "SELECT job_id, unique_key, blocked_on, task_data FROM scheduled_jobs ORDER BY job_id",
        # A job keeps the edges of a former definition when its new one does not wait. They have no effect.
        """
        SELECT parent_id, child_id, outcome, definition FROM scheduler_after
        JOIN scheduled_jobs ON job_id = child_id AND blocked_on = 'after' ORDER BY 1, 2
        """,
    )
    return [tuple(row) for query in queries for row in await pool.fetch(query)]


def worlds() -> Iterator[list[Names]]:
    """Yield the jobs of some calls of two to four."""
    choice = random.Random(3)
    yield from (list(pair) for pair in product(NAMES[:12], repeat=2) if choice.random() < 0.25)
    yield from (choice.choices(NAMES, k=choice.choice([3, 4])) for _ in range(30))


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
async def test_bulk_replace_writes_what_single_calls_do(
    idle: Scheduler, pool: asyncpg.Pool, state: list[tuple[str, str | None]]
) -> None:
    async def outcome(jobs: Sequence[Names], *, in_bulk: bool) -> object:
        await pool.execute("DELETE FROM scheduled_jobs; DELETE FROM scheduler_after")
        existing = [JobSpec(sync_user, START, args=(0,), job_id=job_id, unique=key) for job_id, key in state]
        await idle.schedule_bulk([JobSpec(sync_user, START, args=(0,), job_id="p"), *existing])
        specs = specs_of(jobs)
        try:
            if in_bulk:
                job_ids = await replace(idle, specs)
            else:
                job_ids = [job_id for spec in specs for job_id in await replace(idle, [spec])]
        except JobConflictError:
            return "refused"
        return job_ids, await rows_of(pool)

    for jobs in worlds():
        assert await outcome(jobs, in_bulk=True) == await outcome(jobs, in_bulk=False), jobs


@pytest.mark.parametrize("after", [[], ["p"]], ids=["due", "waits"])
async def test_bulk_replace_of_a_row_by_its_id_and_by_its_key_loses_no_job(
    idle: Scheduler, pool: asyncpg.Pool, after: list[str]
) -> None:
    await add_holder(idle)
    by_id = JobSpec(sync_user, START, args=(1,), job_id="H", after=["p"])
    by_key = JobSpec(sync_user, START, args=(2,), unique="k", after=after)
    first, last = await replace(idle, [by_id, by_key])
    assert first == "H"
    assert last != "H"
    rows = await pool.fetch(
        "SELECT job_id, task_data -> 'args' ->> 0 FROM scheduled_jobs WHERE job_id <> 'p'"
    )
    assert {tuple(row) for row in rows} == {("H", "1"), (last, "2")}
    assert await pool.fetchval("SELECT job_id FROM scheduled_jobs WHERE unique_key = 'k'") == last


@pytest.mark.parametrize("after", [[], ["p"]], ids=["due", "waits"])
async def test_bulk_replace_of_a_row_by_its_key_and_by_its_id_gives_it_the_last_definition(
    idle: Scheduler, pool: asyncpg.Pool, after: list[str]
) -> None:
    await add_holder(idle)
    by_key = JobSpec(sync_user, START, args=(1,), unique="k", after=["p"])
    by_id = JobSpec(sync_user, START, args=(2,), job_id="H", after=after)
    assert await replace(idle, [by_key, by_id]) == ["H", "H"]
    query = "SELECT job_id, unique_key, task_data -> 'args' ->> 0 FROM scheduled_jobs WHERE job_id <> 'p'"
    assert [tuple(row) for row in await pool.fetch(query)] == [("H", None, "2")]


async def test_bulk_replace_waits_for_the_row_of_a_unique_job_by_the_id_of_its_call(
    idle: Scheduler, pool: asyncpg.Pool
) -> None:
    await idle.enqueue(sync_user, args=(0,), delay=HOUR, job_id="import:1", unique="import")
    specs = [
        JobSpec(sync_user, START, args=(1,), job_id="import:2", unique="import"),
        JobSpec(sync_user, START, args=(2,), job_id="report:2", after=["import:2"]),
    ]
    assert await replace(idle, specs) == ["import:1", "report:2"]
    edges = await pool.fetch("SELECT parent_id, child_id FROM scheduler_after")
    assert [tuple(edge) for edge in edges] == [("import:1", "report:2")]
