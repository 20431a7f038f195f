"""A statement that sends many values is bounded by their size, and a value that fits into none is refused.

The server ends the connection of a statement of more than a gigabyte, so one would be repeated for ever.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final

import asyncpg
import pytest

from pg_scheduler import CatchUp, ConflictResolution, JobSpec, Overlap, PayloadError, Scheduler
from pg_scheduler.jobs.result import kept_value
from pg_scheduler.testing import TestScheduler
from pg_scheduler.triggers import Every
from tests.api.conftest import Make
from tests.support import inside
from tests.support.inside import load_queries
from tests.support.worker import now

MAX_JSON_BYTES = inside.internal_setting("bytes_of_json_value")

COUNT: Final = 120
"""Jobs of each case: enough for COPY."""
LENGTH: Final = 3000
BOUND: Final = 100_000
"""Characters per batch in these tests."""
MOST: Final = BOUND // LENGTH

HOUR: Final = timedelta(hours=1)
TEXT: Final = "x" * LENGTH

Door = Callable[[Scheduler], Awaitable[object]]


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make batches small."""
    inside.replace(monkeypatch, batch_characters=BOUND)


async def count_rows(pool: asyncpg.Pool, table: str) -> None:
    """Record how many rows each statement inserts into a table."""
    await pool.execute(
        f"""
        CREATE TABLE statement_sizes (rows integer);
        CREATE FUNCTION count_rows() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO statement_sizes SELECT count(*) FROM inserted;
            RETURN NULL;
        END $$;
        CREATE TRIGGER count_rows AFTER INSERT ON {table} REFERENCING NEW TABLE AS inserted
            FOR EACH STATEMENT EXECUTE FUNCTION count_rows();
        """
    )


async def counted(pool: asyncpg.Pool) -> list[int]:
    return [row[0] for row in await pool.fetch("SELECT rows FROM statement_sizes WHERE rows > 0")]


async def work(*args: str) -> None: ...


def specs(**values: object) -> list[JobSpec]:
    return [JobSpec(work, now() + HOUR, (TEXT,), **values) for _ in range(COUNT)]  # type: ignore[arg-type]


async def enqueue_at_once(scheduler: Scheduler) -> None:
    await asyncio.gather(*(scheduler.enqueue(work, args=(TEXT,)) for _ in range(COUNT)))


async def schedule_at_once(scheduler: Scheduler) -> None:
    await asyncio.gather(
        *(
            scheduler.schedule(work, execution_time=now() + HOUR, args=(TEXT,), metadata={"n": n})
            for n in range(COUNT)
        )
    )


async def copy(scheduler: Scheduler) -> None:
    await scheduler.schedule_bulk(specs())


async def insert_with_ids(scheduler: Scheduler) -> None:
    jobs = [JobSpec(work, now() + HOUR, (TEXT,), job_id=f"{n}") for n in range(COUNT)]
    await scheduler.schedule_bulk(jobs)


async def insert_with_metadata(scheduler: Scheduler) -> None:
    jobs = [JobSpec(work, now() + HOUR, metadata={"text": TEXT}, keep_result=HOUR) for _ in range(COUNT)]
    await scheduler.schedule_bulk(jobs)


async def replace(scheduler: Scheduler) -> None:
    jobs = [JobSpec(work, now() + HOUR, (TEXT,), job_id=f"{n}") for n in range(COUNT)]
    await scheduler.schedule_bulk(jobs, conflict_resolution=ConflictResolution.REPLACE)


async def replace_unique(scheduler: Scheduler) -> None:
    jobs = [JobSpec(work, now() + HOUR, (TEXT,), unique=f"{n}") for n in range(COUNT)]
    await scheduler.schedule_bulk(jobs, conflict_resolution=ConflictResolution.REPLACE)


async def insert_dependents(scheduler: Scheduler) -> None:
    parent = await scheduler.schedule(work, execution_time=now() + HOUR)
    await scheduler.schedule_bulk(specs(after=[parent]))


async def backfill(scheduler: Scheduler) -> None:
    await scheduler.schedules.add(
        work, Every(hours=1), schedule_id="s", args=(TEXT,), overlap=Overlap.ALLOW, paused=True
    )
    await scheduler.schedules.backfill("s", now() - (COUNT - 0.5) * HOUR, now() + HOUR / 2, limit=2 * COUNT)


DOORS: Final[list[Door]] = [
    enqueue_at_once,
    schedule_at_once,
    copy,
    insert_with_ids,
    insert_with_metadata,
    replace,
    replace_unique,
    insert_dependents,
    backfill,
]


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
async def test_jobs_with_large_arguments_are_inserted_by_several_statements(
    make: Make, pool: asyncpg.Pool, door: Door
) -> None:
    scheduler = make(misfire_grace_time=None)
    await count_rows(pool, "scheduled_jobs")
    await door(scheduler)
    rows = await counted(pool)
    assert sum(rows) >= COUNT
    assert max(rows) <= MOST


@pytest.mark.parametrize("schedules", [1, 12])
async def test_catch_up_with_large_arguments_is_inserted_by_several_statements(
    pool: asyncpg.Pool, schedules: int
) -> None:
    async with TestScheduler(pool) as t:
        t.scheduler.register(work)
        for n in range(schedules):
            await t.scheduler.schedules.add(
                work,
                Every(hours=1),
                schedule_id=f"s{n}",
                args=(TEXT,),
                overlap=Overlap.ALLOW,
                catch_up=CatchUp.all(limit=COUNT // schedules),
            )
        t.advance((COUNT // schedules + 0.5) * HOUR)
        await count_rows(pool, "scheduled_jobs")
        await t.drain()
        assert sum(rows := await counted(pool)) == COUNT
        assert max(rows) <= MOST


async def test_schedules_with_large_arguments_are_planned_by_several_transactions(
    pool: asyncpg.Pool,
) -> None:
    async with TestScheduler(pool) as t:
        t.scheduler.register(work, name="work")
        await t.scheduler.tasks.pause("work")
        for n in range(COUNT):
            await t.scheduler.schedules.add(work, Every(hours=1), schedule_id=f"s{n}", args=(TEXT,))
        t.advance(1.5 * HOUR)
        await t.drain()
        rows = await pool.fetch("SELECT count(*) AS jobs FROM scheduled_jobs GROUP BY xmin::text")
        assert sum(row["jobs"] for row in rows) == COUNT
        # The transaction ends after the schedule that exceeds the bound.
        assert max(row["jobs"] for row in rows) <= MOST + 1


async def test_large_results_are_written_by_several_statements(make: Make, pool: asyncpg.Pool) -> None:
    scheduler = make(max_concurrent_jobs=COUNT)
    all_begun = asyncio.Barrier(COUNT)

    async def give() -> str:
        await all_begun.wait()
        return TEXT

    await count_rows(pool, "scheduler_results")
    await scheduler.start()
    job_ids = [await scheduler.enqueue(give, keep_result=HOUR) for _ in range(COUNT)]
    for job_id in job_ids:
        assert (await scheduler.get_job_result(job_id)).unwrap() == TEXT
    assert sum(rows := await counted(pool)) == COUNT
    assert max(rows) <= MOST


BOUNDED: Final = {
    *(
        "insert_jobs",
        "insert_generated_jobs",
        "insert_extended_jobs",
        "replace_jobs",
        "replace_extended_jobs",
        "replace_debounced_jobs",
    ),
    *("enqueue_jobs", "enqueue_extended_jobs", "keep_results"),
    # The items that wait in a stream are bounded by BATCH_BYTES, and a broadcast has one value.
    *("append_items", "store_broadcast"),
}
"""The statements that send values whose size callers and jobs decide. A `BatchRoom` or a bound limits it."""

SHORT: Final = {
    *("admit_attempts", "advance_schedules", "apply_replacements", "await_jobs", "block_waiting"),
    "release_revoked",
    *("cancel_blocked", "cancel_jobs", "exchange_jobs", "feed_shares", "find_children", "find_claimable"),
    *(
        "insert_edges",
        "lock_held",
        "lock_sequences",
        "look_at_waits",
        "note_deadlines",
        "note_last_jobs",
        "pass_results",
        "pause_task",
        "renew_lease",
    ),
    "resume_tasks",
    "report_ends",
    *("count_failures", "settle_failed", "settle_jobs", "settle_suspended", "unblock_forgotten"),
    *("unblock_late", "unblock_limited", "unblock_unclaimed", "vacuum_surplus"),
    *("wake_broadcast", "write_progress"),
}
"""The statements that send ids, names, and texts that are cut, such as errors and the notes of progress."""


def test_each_statement_that_sends_texts_for_many_rows_is_bounded_or_sends_short_ones() -> None:
    arrays = re.compile(r"unnest\(\$\d+::(\w+\.)?text\[\]|\$\d+::(\w+\.)?text\[\]\)\[")
    sending = {
        name
        for name, query in load_queries("public").items()
        if re.search("INSERT INTO|UPDATE ", query.text) and arrays.search(query.text)
    }
    assert sending - BOUNDED - SHORT == set()
    assert sending >= BOUNDED


async def test_value_that_postgresql_cannot_store_is_left_out_without_a_limit() -> None:
    result = kept_value(1.0, "x" * MAX_JSON_BYTES, None)
    assert result.value is None
    assert result.no_value_reason is not None
    assert f"more than the {MAX_JSON_BYTES} that PostgreSQL stores" in result.no_value_reason


async def test_arguments_that_postgresql_cannot_store_are_refused_without_a_limit(make: Make) -> None:
    scheduler = make(max_payload_bytes=None)
    with pytest.raises(PayloadError, match=f"more than the {MAX_JSON_BYTES} that PostgreSQL stores"):
        await scheduler.enqueue(work, args=("x" * MAX_JSON_BYTES,))
