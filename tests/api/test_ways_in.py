"""A job enters in many ways, such as a call, a name, an alert and a fire time. Each makes the same row.

What a way decides itself is listed in ``DIFFERENCES``, with the reason. Everything else of the row follows
from the options of the task and from the arguments.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

import asyncpg
import hypothesis
import pytest
from hypothesis import strategies as st

from pg_scheduler import (
    ConflictResolution,
    JobCall,
    JobPriority,
    JobSpec,
    ScheduledCall,
    Scheduler,
    Share,
    Unique,
    call,
    current_job,
)
from pg_scheduler.sync import SyncScheduler
from pg_scheduler.triggers import Every
from tests.support.patience import PATIENCE

YEAR: Final = timedelta(days=366)
TARGET: Final = "ways.target"

Row: TypeAlias = dict[str, Any]

COLUMNS: Final = (
    *("job_name", "function", "priority", "max_retries", "misfire_grace_time", "timeout_seconds"),
    *("lock_key", "unique_key", "blocked_on"),
)
"""The columns in which the options of a job are. Others are in ``options``, ``on_end`` and ``task_data``."""

HEADERS: Final = "metadata.trace"

DIFFERENCES: Final[Mapping[str, Mapping[str, object]]] = {
    "alert": {
        "on_end.failed_tasks": "the tasks that failed before it, so that alerts end",
        HEADERS: "middleware is not asked while a failure is written",
    },
    "child": {
        "options.child_of": "whose child it is",
        "on_end.child": "its end wakes the parent",
        "job_id": "that of its step, not of a time span",
        "options.keep_result": "an hour unless the task gives a time: the parent reads the result",
    },
    "fire time": {
        "options.schedule_id": "whose job it is",
        "options.fire_time": "for which time it runs",
        "misfire_grace_time": "by how much it is late already is added",
    },
    "manual run": {"options.schedule_id": "whose job it is"},
    "schedule()": {"misfire_grace_time": "that of the Scheduler, since it has a due time"},
}
"""What of a row a way decides itself, and why."""

OPTIONS: Final = st.fixed_dictionaries(
    {},
    optional={
        "priority": st.sampled_from(JobPriority),
        "max_retries": st.integers(0, 9),
        "timeout": st.one_of(st.none(), st.integers(1, 9_000)),
        "misfire_grace_time": st.one_of(st.none(), st.integers(0, 9_000)),
        "keep_result": st.one_of(st.none(), st.integers(1, 900).map(lambda days: timedelta(days=days))),
        "metadata": st.dictionaries(st.sampled_from(("team", "cost")), st.integers(), min_size=1),
        "on_failure": st.just("ways.page"),
        "share": st.just(Share("ways", key=lambda job_name, **_: job_name)),
        "unique": st.sampled_from(
            ("ways", Unique(), Unique(args=("job_name",)), Unique(per=YEAR), Unique(args=(), per=YEAR))
        ),
    },
)
"""The options of a task, each given or not."""


async def target(job_id: str, job_name: str, error: str, attempts: int) -> None:
    """Take what an alert is called with, so that all ways can call it with the same arguments."""


class Headers:
    """Gives each job a header, which shows how often it was asked."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    async def __call__(self, attempt: JobCall, call_next: Callable[[], Awaitable[Any]]) -> Any:
        return await call_next()

    def headers(self, scheduled: ScheduledCall) -> Mapping[str, str]:
        self.calls[scheduled.job_id] += 1
        return {"asked": str(self.calls[scheduled.job_id])}


@asynccontextmanager
async def opened(dsn: str, headers: Headers | None) -> AsyncIterator[Ways]:
    """Run a worker that leaves the jobs of the task where they are."""
    middleware: list[Any] = [] if headers is None else [headers]
    async with (
        asyncpg.create_pool(dsn, min_size=1, max_size=4) as pool,
        Scheduler(pool, only=["ways.fails", "ways.parent"], middleware=middleware) as scheduler,
    ):
        sync = SyncScheduler(dsn, middleware=middleware)
        try:
            yield Ways(pool, scheduler, sync, headers)
        finally:
            await asyncio.to_thread(sync.close)


class Ways:
    """Puts a job of one task into the table in each way."""

    def __init__(
        self, pool: asyncpg.Pool, scheduler: Scheduler, sync: SyncScheduler, headers: Headers | None
    ) -> None:
        self.pool = pool
        self.scheduler = scheduler
        self.sync = sync
        self.headers = headers
        self.arguments: dict[str, Any] = {}

    def register(self, options: Mapping[str, Any]) -> None:
        """Register the task with options, a task whose alert it is, and one whose child it is."""

        # A child has the id of its step, and none of a time span.
        is_once_in_a_span = isinstance(unique := options.get("unique"), Unique) and unique.per is not None
        child_options = {"unique": None} if is_once_in_a_span else {}

        async def fails() -> None:
            raise ValueError("the error of the alert")

        async def parent() -> None:
            await current_job().steps.child("child", call(target, **self.arguments), **child_options)

        for scheduler in (self.scheduler, self.sync):
            scheduler.register(target, name=TARGET, **options)
        self.scheduler.register(fails, name="ways.fails", on_failure=TARGET)
        self.scheduler.register(parent, name="ways.parent")

    async def rows(self) -> dict[str, Row]:
        """Return the row that each way makes. The first one gives the others their arguments."""
        ways: dict[str, Callable[[], Awaitable[object]]] = {
            "alert": lambda: self.scheduler.enqueue("ways.fails"),
            "call": lambda: self.scheduler.enqueue(target, kwargs=self.arguments),
            "call()": lambda: self.scheduler.enqueue(call(target, **self.arguments)),
            "name": lambda: self.scheduler.enqueue(TARGET, kwargs=self.arguments),
            "one of many": lambda: self.scheduler.schedule_bulk([JobSpec(target, kwargs=self.arguments)]),
            "REPLACE": lambda: self.scheduler.enqueue(
                target, kwargs=self.arguments, conflict_resolution=ConflictResolution.REPLACE
            ),
            "transaction": self.in_a_transaction,
            "blocking call": lambda: asyncio.to_thread(self.sync.enqueue, target, kwargs=self.arguments),
            "schedule()": lambda: self.scheduler.schedule(
                target, execution_time=datetime.now(UTC), kwargs=self.arguments
            ),
            "child": lambda: self.scheduler.enqueue("ways.parent"),
            "manual run": self.run_manually,
            "fire time": self.add_schedule,
        }
        rows = {}
        for way, enter in ways.items():
            if self.headers is not None:
                self.headers.calls.clear()  # the ids of a time span are those of the way before
            await enter()
            rows[way] = await self.take()
            self.arguments = self.arguments or rows[way]["task_data.kwargs"]
        return rows

    async def in_a_transaction(self) -> None:
        async with self.pool.acquire() as connection, connection.transaction():
            await self.scheduler.enqueue(target, kwargs=self.arguments, connection=connection)

    async def run_manually(self) -> None:
        schedule = await self.scheduler.schedules.add(
            TARGET, Every(timedelta(hours=1)), kwargs=self.arguments, paused=True
        )
        await self.scheduler.schedules.trigger(schedule.schedule_id)

    async def add_schedule(self) -> None:
        await self.scheduler.schedules.add(
            TARGET,
            Every(timedelta(hours=1)),
            kwargs=self.arguments,
            start=datetime.now(UTC) - timedelta(seconds=5),
        )

    async def take(self) -> Row:
        """Wait for the row of the task, and return it as one level of values. Then delete all rows."""
        stored = None
        async with asyncio.timeout(PATIENCE):
            while stored is None:
                stored = await self.pool.fetchrow("SELECT * FROM scheduled_jobs WHERE job_name = $1", TARGET)
                await asyncio.sleep(0.01)
        await self.pool.execute("DELETE FROM scheduler_schedules")
        await self.pool.execute("DELETE FROM scheduled_jobs")
        return flat_row(stored)


def flat_row(stored: asyncpg.Record) -> Row:
    """Return the row of a job as one level of values, without those that are NULL."""
    row = {column: stored[column] for column in COLUMNS}
    documents = {column: json.loads(stored[column] or "{}") for column in ("options", "on_end", "task_data")}
    documents["metadata"] = documents["task_data"].pop("metadata", {})
    for name, document in documents.items():
        row |= {f"{name}.{key}": value for key, value in document.items()}
    if stored["job_id"].startswith("unique:"):  # without the time span
        row["job_id"] = stored["job_id"].split(":")[:3]
    return {key: value for key, value in row.items() if value is not None}


def expected_row(way: str, row: Row, call_row: Row) -> Row:
    """Return the row that a way must make: that of the call, and what the way decides itself."""
    decided = DIFFERENCES.get(way, {})
    return {key: value for key, value in call_row.items() if key not in decided} | {
        key: value for key, value in row.items() if key in decided
    }


@pytest.mark.timeout(600)
@pytest.mark.parametrize("has_middleware", [False, True], ids=["plain", "middleware"])
def test_each_way_makes_the_same_row(dsn: str, *, has_middleware: bool) -> None:
    decided: dict[str, set[str]] = {way: set() for way in DIFFERENCES}

    async def compare(options: Mapping[str, Any]) -> None:
        async with opened(dsn, Headers() if has_middleware else None) as ways:
            ways.register(options)
            rows = await ways.rows()
        call_row = rows["call"]
        for way, row in rows.items():
            assert row == expected_row(way, row, call_row), (way, options)
            for key in DIFFERENCES.get(way, ()):
                if row.get(key) != call_row.get(key):
                    decided[way].add(key)

    @hypothesis.settings(
        max_examples=3 if has_middleware else 9,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(OPTIONS)
    @hypothesis.example({"misfire_grace_time": 60})
    @hypothesis.example({"on_failure": "ways.page", "unique": Unique(per=YEAR), "keep_result": YEAR})
    def compare_in_a_loop(options: Mapping[str, Any]) -> None:
        asyncio.run(compare(options))

    compare_in_a_loop()
    is_decided = {way: set(keys) for way, keys in DIFFERENCES.items()}
    if not has_middleware:
        is_decided["alert"].remove(HEADERS)
    assert decided == is_decided, "a difference that no row shows"
