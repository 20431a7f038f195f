"""Cost of a single call on a connection of the caller, against the INSERT that its driver executes."""

from __future__ import annotations

import json
import statistics
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from inspect import isawaitable
from pathlib import Path
from typing import Any, Final, NamedTuple

import asyncpg
import psycopg
import psycopg2
from sqlalchemy import NullPool, create_engine

from benchmarks.bench import Bench, Database
from benchmarks.contestants import OURS, Contestant
from benchmarks.results import Goal
from pg_scheduler import Scheduler, job
from pg_scheduler.sync import SyncScheduler

TITLE: Final = "single calls with connection=: processor time of client and server, us"

KINDS: Final = ("asyncpg", "psycopg, async", "psycopg", "psycopg2", "SQLAlchemy")
CALLS: Final = ("schedule()", "enqueue()")
GOALS: Final = tuple(
    Goal(call, of=kind, than=kind, than_measure="INSERT", most=1.3) for kind in KINDS for call in CALLS
)

COLUMNS: Final = (
    "job_id, task_data, execution_time, job_name, priority, max_retries, misfire_grace_time, "
    "timeout_seconds, expires_at"
)
DUE: Final = datetime.now(UTC) + timedelta(days=1)
ARGUMENTS: Final = (1, "user@example.org")
BATCH: Final = 20
"""Calls in a row."""


@job(name="bench.connections")
async def work(number: int, user: str) -> None:
    """Do nothing; no worker runs."""


class Caller(NamedTuple):
    """A connection with what runs on it.

    Attributes:
        insert: Executes the INSERT of one row.
        rollback: Ends the transaction.
        pid: The process of the session.
    """

    connection: Any
    scheduler: Any
    insert: Callable[[], Any]
    rollback: Callable[[], Any]
    pid: int


async def measure(bench: Bench) -> None:
    """Let the calls take turns on one connection of each kind, in transactions that are rolled back."""
    batches = bench.scale(100, 20)

    async def one(_contestant: Contestant, database: Database) -> None:
        for kind in KINDS:
            async with _caller(kind, database.dsn) as caller:
                for name, seconds in (await _compare(caller, batches)).items():
                    bench.outcome.add(kind, name, 1e6 * seconds)

    await bench.alternate([OURS], one)


async def _compare(caller: Caller, batches: int) -> dict[str, float]:
    """Return the median of the processor time of each call. Batches are short, since the load changes."""
    given = {"args": ARGUMENTS, "connection": caller.connection}
    calls: dict[str, Callable[[], Any]] = {
        "INSERT": caller.insert,
        "schedule()": lambda: caller.scheduler.schedule(work, execution_time=DUE, **given),
        "enqueue()": lambda: caller.scheduler.enqueue(work, **given),
    }
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(batches):
        for name, call in calls.items():
            began = time.process_time() + _server_seconds(caller.pid)
            for _ in range(BATCH):
                await _settled(call())
            ended = time.process_time() + _server_seconds(caller.pid)
            spent[name].append((ended - began) / BATCH)
        await _settled(caller.rollback())
    return {name: statistics.median(each) for name, each in spent.items()}


def _server_seconds(pid: int) -> float:
    """Return the processor time of a session of the server, on the same Linux machine."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


async def _settled(value: Any) -> Any:
    return await value if isawaitable(value) else value


def _row() -> tuple[Any, ...]:
    task_data = json.dumps({"args": ARGUMENTS, "kwargs": {}})
    expiry = DUE + timedelta(seconds=300)
    return (str(uuid.uuid4()), task_data, DUE, "bench.connections", 5, 0, 300, 3600.0, expiry)


def _insert(mark: str) -> str:
    marks = ", ".join(mark.format(number) for number in range(1, len(_row()) + 1))
    return f"INSERT INTO scheduled_jobs ({COLUMNS}) VALUES ({marks})"  # noqa: S608 - constants


@asynccontextmanager
async def _caller(kind: str, dsn: str) -> AsyncIterator[Caller]:
    """Open a connection of a kind. The libraries are those of the tests."""
    if kind == "asyncpg":
        async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool, pool.acquire() as one:
            statement = _insert("${}")
            await one.execute("BEGIN")

            async def insert() -> None:
                await one.execute(statement, *_row())

            async def rollback() -> None:
                await one.execute("ROLLBACK; BEGIN")

            yield Caller(one, Scheduler(pool), insert, rollback, one.get_server_pid())
            await one.execute("ROLLBACK")
    elif kind == "psycopg, async":
        async with (
            asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool,
            await psycopg.AsyncConnection.connect(dsn) as two,
        ):
            execute: Callable[..., Any] = two.execute
            yield Caller(two, Scheduler(pool), _inserting(execute), two.rollback, two.info.backend_pid)
    elif kind == "psycopg":
        with psycopg.connect(dsn) as three:
            execute = three.execute
            yield Caller(three, SyncScheduler(), _inserting(execute), three.rollback, three.info.backend_pid)
    elif kind == "psycopg2":
        with closing(psycopg2.connect(dsn)) as four, four.cursor() as cursor:
            pid = four.get_backend_pid()
            yield Caller(four, SyncScheduler(), _inserting(cursor.execute), four.rollback, pid)
    else:
        engine = create_engine(dsn.replace("postgresql://", "postgresql+psycopg://", 1), poolclass=NullPool)
        with engine.connect() as five:
            pid = five.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
            yield Caller(five, SyncScheduler(), _inserting(five.exec_driver_sql), five.rollback, pid)


def _inserting(execute: Callable[..., Any]) -> Callable[[], Any]:
    statement = _insert("%s")
    return lambda: execute(statement, _row())
