"""A schedule comes about in many ways: declared, added, replaced, changed. Each makes the same row.

What a way decides itself is listed in ``DIFFERENCES``, with the reason. The clock stands still, so even the
anchor and the next fire time are the same. For jobs, see ``test_ways_in``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

import asyncpg
import hypothesis
import pytest
from hypothesis import strategies as st

from pg_scheduler import CatchUp, ConflictResolution, JobPriority, Overlap, Scheduler, job, periodic
from pg_scheduler.testing import TestScheduler
from pg_scheduler.triggers import CalendarInterval, Cron, During, Every, FixedDelay
from tests.support.catalogues import own_registrations
from tests.support.inside import declarations_of

NOW: Final = datetime(2030, 1, 1, 0, 30, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
TASK: Final = "ways.scheduled"
ID: Final = "ways"

Row: TypeAlias = dict[str, Any]
Options: TypeAlias = Mapping[str, Any]

OF_CODE: Final = {
    "owner": "a process of this code may change it, and callers may not",
    "module": "its module decides which processes may retire it",
    "names": "the names of its function tell which schedule it was under another key",
}
OF_CHANGE: Final = {"version": "it counts the edits"}
OF_CHANGED_TIMES: Final = OF_CHANGE | {
    "next_fire_at": "a start in the past is the first fire time of new schedules only",
    "searched_from": "an edited schedule fires after the edit",
}

OF_LATER_SEARCH: Final = {
    "resume_from": "a process declares many schedules: the planner searches for fire times that take long",
    "next_fire_at": "it is due, so that the planner does",
    "searched_from": "the search follows",
}

DIFFERENCES: Final[Mapping[str, Mapping[str, str]]] = {
    "declared": OF_CODE,
    "declared otherwise before": OF_CODE | OF_CHANGED_TIMES,
    "declared under another key before": OF_CODE | OF_CHANGED_TIMES,
    "added in place of another": OF_CHANGED_TIMES,
    "added after another has finished": OF_CHANGE,
    "updated": OF_CHANGED_TIMES,
}
"""What of a row a way decides itself, and why."""

BEFORE: Final[Options] = {
    "trigger": Every(7 * DAY),
    "start": None,
    "end": None,
    "jitter": 9,
    "overlap": Overlap.CANCEL,
    "catch_up": CatchUp.none(),
    "pause_after_failures": 7,
    "priority": JobPriority.LOW,
    "max_retries": 7,
}
"""What a schedule is before it is changed."""

OPTIONS: Final = st.fixed_dictionaries(
    {
        "trigger": st.sampled_from(
            (
                *(Every(HOUR), Every(timedelta(minutes=7)), Cron("15 3 * * MON-FRI", "Europe/Berlin")),
                *(CalendarInterval(months=1), FixedDelay(HOUR), Every(HOUR) & During(weekdays="SAT")),
            )
        ),
        "start": st.sampled_from((None, NOW - 3 * DAY, NOW, NOW + 3 * HOUR)),
        "end": st.sampled_from((None, NOW + 366 * DAY)),
        "jitter": st.sampled_from((0, 60, timedelta(minutes=2))),
        "overlap": st.sampled_from((Overlap.ALLOW, Overlap.SKIP, Overlap.QUEUE_ALL)),
        "catch_up": st.sampled_from((CatchUp.latest(), CatchUp.none(), CatchUp.latest(within=HOUR))),
        "pause_after_failures": st.one_of(st.none(), st.integers(1, 9)),
        "priority": st.sampled_from(JobPriority),
        "max_retries": st.integers(0, 9),
    }
)


@asynccontextmanager
async def opened(
    pool: asyncpg.Pool, declared: Options | None, key: str | None = ID
) -> AsyncIterator[Scheduler]:
    """Start a process whose code has the function, and declares the schedule if it has options."""
    with own_registrations():

        @job(name=TASK)
        async def scheduled() -> None: ...

        if declared is not None:
            periodic(**declared, dedup_key=key)(scheduled)
        async with TestScheduler(pool, now=NOW) as t:
            await declarations_of(t.scheduler).sync()  # as the planner, which would also let it fire
            yield t.scheduler


class Ways:
    """Stores one schedule in each way."""

    def __init__(self, pool: asyncpg.Pool, options: Options) -> None:
        self.pool = pool
        self.options = options

    async def rows(self) -> dict[str, Row]:
        """Return the row that each way makes."""
        ways: dict[str, Callable[[], Awaitable[None]]] = {
            "added": self.add,
            "added in place of another": self.replace,
            "added after another has finished": self.add_again,
            "updated": self.update,
            "declared": self.declare,
            "declared otherwise before": self.declare_otherwise_before,
            "declared under another key before": self.declare_under_another_key_before,
        }
        rows = {}
        for way, store in ways.items():
            await store()
            rows[way] = await self.take()
        return rows

    async def add(self) -> None:
        async with opened(self.pool, None) as scheduler:
            await scheduler.schedules.add(TASK, schedule_id=ID, **self.options)

    async def replace(self) -> None:
        async with opened(self.pool, None) as scheduler:
            await scheduler.schedules.add(TASK, schedule_id=ID, **BEFORE)
            await scheduler.schedules.add(
                TASK, schedule_id=ID, conflict_resolution=ConflictResolution.REPLACE, **self.options
            )

    async def add_again(self) -> None:
        async with opened(self.pool, None) as scheduler:
            await scheduler.schedules.add(TASK, schedule_id=ID, **BEFORE)
            await self.pool.execute("UPDATE scheduler_schedules SET finished_at = $1", NOW)
            await scheduler.schedules.add(TASK, schedule_id=ID, **self.options)

    async def update(self) -> None:
        async with opened(self.pool, None) as scheduler:
            await scheduler.schedules.add(TASK, schedule_id=ID, **BEFORE)
            await scheduler.schedules.update(ID, **self.options)

    async def declare(self) -> None:
        async with opened(self.pool, self.options):
            pass

    async def declare_otherwise_before(self) -> None:
        async with opened(self.pool, BEFORE):
            pass
        await self.declare()

    async def declare_under_another_key_before(self) -> None:
        async with opened(self.pool, BEFORE, key=None):
            pass
        await self.declare()

    async def take(self) -> Row:
        """Return the row, with JSON as values, and delete it."""
        (stored,) = await self.pool.fetch("SELECT * FROM scheduler_schedules")
        await self.pool.execute("DELETE FROM scheduler_schedules")
        row = dict(stored)
        for column in ("trigger", "task_data", "options", "metadata"):
            row[column] = json.loads(row[column])
        return row


def differing(way: str, row: Row, added: Row) -> set[str]:
    """Return the columns of a row that differ from those of the schedule that was added."""
    differences = {column for column in row if row[column] != added[column]}
    if row["owner"] == "code" and row["resume_from"] is not None:
        differences -= OF_LATER_SEARCH.keys()
    unlisted = differences - DIFFERENCES.get(way, {}).keys()
    assert not unlisted, (way, {column: (row[column], added[column]) for column in unlisted})
    return differences


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_each_way_makes_the_same_row(dsn: str) -> None:
    decided: dict[str, set[str]] = {way: set() for way in DIFFERENCES}

    async def compare(options: Options) -> None:
        async with asyncpg.create_pool(dsn, min_size=1, max_size=4) as pool:
            rows = await Ways(pool, options).rows()
        for way, row in rows.items():
            differences = differing(way, row, rows["added"])
            if way in decided:
                decided[way] |= differences

    @hypothesis.settings(
        max_examples=9,
        deadline=None,
        derandomize=True,
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(OPTIONS)
    @hypothesis.example({**BEFORE, "start": NOW - 3 * DAY, "trigger": Every(HOUR)})
    def compare_in_a_loop(options: Options) -> None:
        asyncio.run(compare(options))

    compare_in_a_loop()
    assert decided == {way: set(columns) for way, columns in DIFFERENCES.items()}, "a difference of no row"
