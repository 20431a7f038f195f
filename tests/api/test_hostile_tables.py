"""Nonsense in each column of each table that the services read, as far as the table accepts it.

The types and the columns are read from the catalogue, so a column that a migration adds is covered too. The
rows of one table are written at once, before the start and again while the services run. Then a plain job and
a plain schedule must run, a limit and a dependency must work, and every service must make its passes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta

import asyncpg
import pytest

from pg_scheduler import JobNotFoundError, JobStatus, Limit, PollingConfig, Scheduler
from pg_scheduler.events import Event, JobCompleted, JobFailed, ServiceFaulted
from pg_scheduler.inspect import Inspector
from pg_scheduler.triggers import Every
from tests.api.conftest import Make
from tests.support.hostile import EARLIEST, LATEST
from tests.support.inside import Service, fault_of, store_of, worker_of
from tests.support.stories import NIGHTLY
from tests.support.worker import PATIENCE, Recorder

HOUR = timedelta(hours=1)
DEEP = "[" * 1000 + "]" * 1000
ACCEPTED = ["ended", "code", "skip", "earliest", "running"]
"""Ordinary values of columns that accept few."""
TEXTS = ["", "'", "\x01\x1f\x7f\u202e\ufeff", "x" * 100_000, "🦉" * 600, "limit:slow:", "after", *ACCEPTED]
JSON = [
    *("null", "true", "7", '"text"', "[]", "{}", "1e400", '[{"kind": 7}]', '"\\u0001\\uffff"'),
    *(DEEP, '{"a":' * 1000 + "1" + "}" * 1000, '{"kind": "or", "triggers": ' + DEEP + "}"),
    *('{"args": 7, "kwargs": []}', '{"kind": "every", "every": "PT0S"}', '{"": "' + "x" * 60_000 + '"}'),
    *('{"kind": ' * 1000 + "1" + "}" * 1000, '{"kind": "cron", "expression": [], "timezone": {}}'),
    *('{"timeout": "x", "priority": {}, "max_retries": 1e99, "misfire_grace_time": -1}',),
    *('{"timeout": 1e308, "max_retries": -5, "misfire_grace_time": 1e308, "priority": 1e99}', "9" * 5000),
    *('{"keep_result": 1e308}', '{"keep_result": -1e400}'),
]
INSTANTS = ["infinity", "-infinity", EARLIEST, LATEST, "0001-01-01 00:00:00Z", "9999-12-31 23:59:59.999999Z"]
ARRAYS = ["{}", "{NULL}", "{{1,2},{3,4}}", "[5:6]={1,2}", "{" + "1," * 999 + "1}"]
FLOATS = ["NaN", "Infinity", "-Infinity", "1e308", "-1e308", "5e-324", "-1", "0"]
VALUES: dict[str, list[str]] = {
    "text": TEXTS,
    "jsonb": JSON,
    "timestamp with time zone": [*INSTANTS, "now"],
    "double precision": FLOATS,
    "integer": ["0", "-1", "1", str(2**31 - 1), str(-(2**31))],
    "bigint": ["0", "-1", "1", str(2**63 - 1), str(-(2**63))],
    "boolean": ["true", "false"],
    "uuid": ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"],
    "integer[]": [*ARRAYS, "{2147483647,-2147483648}"],
    "bigint[]": [*ARRAYS, "{9223372036854775807,-9223372036854775808}"],
    "double precision[]": [*ARRAYS, "{NaN,Infinity,-Infinity,1e308,1e308}"],
    "text[]": ["{}", "{NULL}", '{"",x}', "{{a,b},{c,d}}", "{every}", '{"\x01"}', "{" + "a," * 5000 + "b}"],
}
TABLES: dict[str, dict[str, str]] = {
    "scheduler_schedules": {
        **dict.fromkeys(("task_data", "options", "metadata"), "{}"),
        "owner": "api",
        "task": "victim",
        "kinds": "{every}",
        "described": "",
        "overlap": "queue_one",
        "trigger": '{"kind": "every", "every": "PT1H"}',
        "catch_up": "latest",
        "schedule_id": "odd-#",
        **dict.fromkeys(("anchor", "next_fire_at", "created_at", "updated_at"), "now"),
    },
    "scheduler_results": {
        "job_id": "kept-#",
        "status": "completed",
        "attempts": "1",
        "finished_at": "now",
        "expires_at": "2100-01-01",
    },
    "scheduler_starts": {"key": "limit:slow:", "job_id": "start-#", "attempt": "1", "at": "now"},
    "scheduler_after": {"parent_id": "parent-#", "child_id": "child-#", "outcome": "ended"},
    "scheduler_stats": {
        "bucket": "now",
        "span": "60",
        "job_name": "other-#",
        **dict.fromkeys(("counts", "sums", "run_hist", "late_hist"), "{1}"),
    },
    "scheduler_totals": {
        "job_name": "other-#",
        **dict.fromkeys(("counts", "sums", "run_hist", "late_hist"), "{1}"),
        "updated_at": "now",
    },
    "scheduler_failures": {
        "fingerprint": "f-#",
        "job_name": "other-#",
        "text": "x",
        "status": "failed",
        "jobs": "1",
        "at": "now",
        "job_id": "failed-#",
    },
    "scheduler_error_groups": {
        "fingerprint": "f-#",
        "job_name": "other-#",
        "text": "x",
        "status": "failed",
        "jobs": "1",
        **dict.fromkeys(("first_at", "last_at"), "now"),
        "last_job_id": "failed-#",
    },
    "scheduler_error_counts": {"fingerprint": "f-#", "span": "60", "bucket": "now", "jobs": "1"},
    "scheduler_audit": {"at": "now", "actor": "x", "via": "api", "action": "x"},
    "scheduler_bulk_runs": {
        "run_id": "run-#",
        "created_by": "x",
        "actor": "x",
        **dict.fromkeys(("created_at", "started_at", "last_at", "answered_at"), "now"),
    },
    "scheduler_tasks": {"name": "other-#", "paused_at": "now", "actor": "x"},
    "scheduler_workers": {
        "worker_id": "worker-#",
        "hostname": "x",
        "pid": "1",
        "version": "1",
        "running_jobs": "0",
        "max_concurrent_jobs": "10",
        **dict.fromkeys(("started_at", "last_beat", "lease_until"), "now"),
    },
}
NEEDED = {"paused_until": {"paused_at": "now"}}
"""What a column needs in others."""

POLLING = PollingConfig(max_interval=0.2)


async def victim() -> None: ...


async def failing() -> None:
    raise ValueError("always")


async def columns_of(pool: asyncpg.Pool, table: str) -> dict[str, str]:
    rows = await pool.fetch(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped AND attidentity = ''",
        table,
    )
    return {row[0]: row[1] for row in rows}


def rows_of(table: str, types: dict[str, str]) -> Iterator[dict[str, str]]:
    """Return a row for each value of each column, with ordinary values in the others."""
    number = 0
    for column, kind in types.items():
        for value in VALUES[kind]:
            number += 1
            row = {name: text.replace("-#", f"-{number}") for name, text in TABLES[table].items()}
            yield row | NEEDED.get(column, {}) | {column: value}


async def write(pool: asyncpg.Pool, table: str) -> dict[str, int]:
    """Write what the table accepts; return the number of values that it accepted, by column."""
    types = await columns_of(pool, table)
    accepted = dict.fromkeys(types, 0)
    async with pool.acquire() as connection:
        for row, column in zip(
            rows_of(table, types), [name for name in types for _ in VALUES[types[name]]], strict=True
        ):
            values = ", ".join(f"${n}::text::{types[name]}" for n, name in enumerate(row, 1))
            try:
                await connection.execute(
                    f"INSERT INTO {table} ({', '.join(row)}) VALUES ({values})"
                    + (" ON CONFLICT DO NOTHING" if table != "scheduler_after" else ""),
                    *row.values(),
                )
            except (
                asyncpg.CheckViolationError,
                asyncpg.ProgramLimitExceededError,
                asyncpg.DatetimeFieldOverflowError,
                asyncpg.NumericValueOutOfRangeError,
            ):
                continue
            accepted[column] += 1
    return accepted


class Harness:
    """A running Scheduler and what must still work on it."""

    def __init__(self, scheduler: Scheduler, pool: asyncpg.Pool) -> None:
        self.scheduler = scheduler
        self.pool = pool
        self.seen = Recorder(scheduler)

    async def pass_all(self) -> None:
        """Make passes of every service by hand."""
        runtime = worker_of(self.scheduler)
        runtime.rescuer.scan_locks()
        for _ in range(2):
            for part in runtime.parts:
                if isinstance(part, Service):
                    await part.run_once()

    async def check(self) -> None:
        """Verify that jobs and schedules run."""
        await self.pass_all()
        scheduler = self.scheduler
        async with asyncio.timeout(PATIENCE):
            assert await scheduler.run_job("victim") is None
            first = await scheduler.enqueue("victim")
            await self.ended(first)
            limited = [await scheduler.enqueue("slow") for _ in range(3)]
            after = await scheduler.enqueue("victim", after=limited)
            for job_id in (*limited, after):
                await self.ended(job_id)
            schedule = await scheduler.schedules.add("victim", Every(hours=1), run_now=True)
            assert await scheduler.schedules.remove(schedule.schedule_id)
            due = await scheduler.schedules.add("victim", Every(hours=1))
            await self.pool.execute(
                "UPDATE scheduler_schedules SET next_fire_at = anchor WHERE schedule_id = $1", due.schedule_id
            )
            while (found := await scheduler.schedules.get(due.schedule_id)) and not found.runs:
                await self.pass_all()
            assert found is not None
            assert await scheduler.schedules.remove(due.schedule_id)
        await scheduler.workers()
        await scheduler.tasks.list()
        await self.list_schedules()
        for group in (await Inspector(scheduler).error_groups()).items:
            assert await Inspector(scheduler).error_group(group.fingerprint) is not None
        await self.pass_all()
        await scheduler.run_vacuum()
        await self.count_failures()
        assert not self.seen.of(ServiceFaulted)
        assert scheduler.is_running

    async def count_failures(self) -> None:
        """Fail a job, after which every failure in the table is counted."""
        failed = await self.scheduler.enqueue("failing")
        await self.seen.until(JobFailed, job_id=failed)
        async with asyncio.timeout(PATIENCE):
            while await self.pool.fetchval("SELECT count(*) FROM scheduler_failures"):
                await self.pass_all()
                await asyncio.sleep(0.05)  # the counter waits for further failures

    async def list_schedules(self) -> None:
        after = None
        while True:
            page = await self.scheduler.schedules.list(after=after)
            for each in page:
                assert str(each)
            if page.next is None:
                return
            after = page.next

    async def ended(self, job_id: str) -> None:
        await self.seen.until(JobCompleted, job_id=job_id)


@NIGHTLY
@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES)
async def test_jobs_and_schedules_run_when_a_table_has_nonsense_in_every_column(
    make: Make, pool: asyncpg.Pool, table: str
) -> None:
    accepted = await write(pool, table)
    assert {column for column, number in accepted.items() if not number} <= {"catch_up_limit"}
    ids = [row[0] for row in await pool.fetch("SELECT job_id FROM scheduler_results")]
    scheduler = make(polling_config=POLLING)
    scheduler.register(victim, name="victim")
    scheduler.register(failing, name="failing", max_retries=0)
    limits = [Limit(max_running=2), Limit(max_starts=1000, per=timedelta(seconds=1))]
    scheduler.register(victim, name="slow", limits=limits)
    harness = Harness(scheduler, pool)
    await scheduler.start()
    for job_id in ids:
        with suppress(ValueError, JobNotFoundError):  # no id of a job; expired
            result = await scheduler.get_job_result(job_id, wait=False)
            assert result is None or result.status in JobStatus
    await harness.check()
    await pool.execute(f"DELETE FROM {table}" + (" WHERE pid = 1" if table == "scheduler_workers" else ""))
    await write(pool, table)
    await harness.check()
    await scheduler.shutdown()
    assert fault_of(scheduler) is None


def hostile_notifications(worker_id: str) -> list[str]:
    events = [
        *(
            "",
            " ",
            "x",
            "x y",
            "other 1",
            "other one []",
            "other -1 []",
            "other 1 [",
            "other 1 {}",
            "other 1 7",
        ),
        *("other " + "9" * 5000 + " []", f"{worker_id} 1 []", "other 1 " + "[" * 3500),
        *(f"other {number} {text}" for number, text in enumerate(HOSTILE_EVENTS)),
    ]
    return [
        *(
            "",
            " ",
            "\x01",
            "due",
            "due ",
            "check",
            "check ",
            f"check {worker_id}",
            "hello",
            "x" * 7999,
            "🦉" * 1999,
        ),
        *(
            "periodic",
            "periodic x",
            "tasks",
            "tasks x",
            "subscriptions",
            "subscriptions x",
            "result",
            "result x",
        ),
        *("events" if not each else f"events {each}" for each in events),
    ]


HOSTILE_EVENTS = [
    *('[["JobFailed"]]', '[["JobFailed", {}]]', '[["JobFailed", []]]', '[["JobFailed", {"job_id": 7}]]'),
    *('[["os.system", {"command": "x"}]]', "[[]]", "[null]", '[[["JobFailed"], {}]]', '[["__class__", {}]]'),
    *('[["JobFailed", {"job_id": "x", "job_name": [], "attempt": 1e999, "error": {}}]]', "[NaN]", "[1e999]"),
    *(
        '[["JobFailed", {"job_id": "x", "job_name": "x", "attempt": "1", "error": 1}]]',
        "[" + "9" * 5000 + "]",
    ),
]


async def test_jobs_and_events_arrive_when_notifications_are_nonsense(make: Make, pool: asyncpg.Pool) -> None:
    scheduler, sender = make(), make()
    scheduler.register(victim, name="victim")
    await scheduler.start()
    received: list[Event] = []
    scheduler.subscribe(received.append, JobCompleted, JobFailed, cluster=True)
    seen = Recorder(scheduler)
    channel = await store_of(scheduler).locks.channel()
    for text in hostile_notifications(scheduler.worker_id):
        await pool.execute("SELECT pg_notify($1, $2)", channel, text)
    job_id = await sender.enqueue("victim")  # its notification follows the others
    await seen.until(JobCompleted, job_id=job_id)
    assert [event.job_id for event in received if isinstance(event, JobCompleted)] == [job_id]
    assert not seen.of(ServiceFaulted)
    await scheduler.shutdown()
    assert fault_of(scheduler) is None
