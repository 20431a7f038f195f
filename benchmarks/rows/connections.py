"""Cost of a single call on a connection of the caller, against the INSERT that its driver executes."""

from __future__ import annotations

import json
import os
import statistics
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from inspect import isawaitable
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import asyncpg
import django
import psycopg
import psycopg2
from django.conf import settings
from django.db import connections
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import NullPool, create_engine

from benchmarks.bench import Bench, Database
from benchmarks.contestants import OURS, Contestant
from benchmarks.results import Goal
from pg_scheduler import Scheduler, job
from pg_scheduler.sync import SyncScheduler

TITLE: Final = "single calls with connection=: processor time of client and server, us"

TASKS: Final = "django.tasks" if find_spec("django.tasks") else "django_tasks"

KINDS: Final = ("asyncpg", "psycopg, async", "psycopg", "psycopg2", "SQLAlchemy", "Django")
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
        execute: Executes a statement with values, as the driver does, with a cursor of its own.
        rollback: Ends the transaction.
        pid: The process of the session.
    """

    connection: Any
    scheduler: Any
    execute: Callable[..., Any]
    rollback: Callable[[], Any]
    pid: int
    tasks: Mapping[str, Callable[[], Any]] = MappingProxyType({})
    """Other calls by name: of the backend of ``django.tasks``."""
    mark: str = "%s"
    """The placeholder of the driver."""


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
    insert, notify = _insert(caller.mark), _notify(caller.mark)

    async def insert_and_notify() -> None:
        await _settled(caller.execute(insert, _row()))
        await _settled(caller.execute(notify, ("bench", "due")))

    calls: dict[str, Callable[[], Any]] = {
        "INSERT": lambda: caller.execute(insert, _row()),
        "INSERT and NOTIFY": insert_and_notify,
        "schedule()": lambda: caller.scheduler.schedule(work, execution_time=DUE, **given),
        "enqueue()": lambda: caller.scheduler.enqueue(work, **given),
        **caller.tasks,
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
    return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="utf-8").split()[0]) / 1e9


async def _settled(value: Any) -> Any:
    return await value if isawaitable(value) else value


def _execute(connection: Any, statement: str, values: Sequence[Any]) -> None:
    """Execute a statement as applications do on connections that have no such method."""
    with connection.cursor() as cursor:
        cursor.execute(statement, values)


def _row() -> tuple[Any, ...]:
    task_data = json.dumps({"args": ARGUMENTS, "kwargs": {}})
    expiry = DUE + timedelta(seconds=300)
    return (str(uuid.uuid4()), task_data, DUE, "bench.connections", 5, 0, 300, 3600.0, expiry)


def _insert(mark: str) -> str:
    marks = ", ".join(mark.format(number) for number in range(1, len(_row()) + 1))
    return f"INSERT INTO scheduled_jobs ({COLUMNS}) VALUES ({marks})"  # noqa: S608 - constants


def _notify(mark: str) -> str:
    return f"SELECT pg_notify({mark.format(1)}, {mark.format(2)})"


@asynccontextmanager
async def _caller(kind: str, dsn: str) -> AsyncIterator[Caller]:
    """Open a connection of a kind. The libraries are those of the tests."""
    if kind == "asyncpg":
        async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool, pool.acquire() as one:
            await one.execute("BEGIN")

            async def run(statement: str, values: Sequence[Any]) -> None:
                await one.execute(statement, *values)

            async def rollback() -> None:
                await one.execute("ROLLBACK; BEGIN")

            yield Caller(one, Scheduler(pool), run, rollback, one.get_server_pid(), mark="${}")
            await one.execute("ROLLBACK")
    elif kind == "psycopg, async":
        async with (
            asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool,
            await psycopg.AsyncConnection.connect(dsn) as two,
        ):
            yield Caller(two, Scheduler(pool), two.execute, two.rollback, two.info.backend_pid)
    elif kind == "psycopg":
        with psycopg.connect(dsn) as three:
            yield Caller(three, SyncScheduler(), three.execute, three.rollback, three.info.backend_pid)
    elif kind == "psycopg2":
        with closing(psycopg2.connect(dsn)) as four:
            pid = four.get_backend_pid()
            yield Caller(four, SyncScheduler(), partial(_execute, four), four.rollback, pid)
    elif kind == "Django":
        connection, task = _django(dsn)
        connection.ensure_connection()
        pid = connection.connection.info.backend_pid
        tasks = {"Task.enqueue()": lambda: task.enqueue(*ARGUMENTS)}
        execute = partial(_execute, connection)
        yield Caller(connection, SyncScheduler(), execute, connection.rollback, pid, tasks)
        connection.close()
    else:
        engine = create_engine(dsn.replace("postgresql://", "postgresql+psycopg://", 1), poolclass=NullPool)
        with engine.connect() as five:
            pid = five.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
            yield Caller(five, SyncScheduler(), five.exec_driver_sql, five.rollback, pid)


def _django(dsn: str) -> tuple[Any, Any]:
    """Return a connection of Django in a transaction, and a task."""
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"  # the harness has an event loop
    if not settings.configured:
        backend = {"BACKEND": "pg_scheduler.integrations.django.Backend", "QUEUES": []}
        engine = {"ENGINE": "django.db.backends.postgresql"}
        settings.configure(
            DATABASES={"default": engine},
            INSTALLED_APPS=["pg_scheduler.integrations.django"],
            TASKS={"default": backend},
        )
        django.setup()
    given = connections["default"]
    given.close()
    address = conninfo_to_dict(dsn)
    given.settings_dict["NAME"] = address["dbname"]
    given.settings_dict.update({name: address.get(name.lower(), "") for name in ("USER", "HOST", "PORT")})
    given.set_autocommit(False)
    task: Any = import_module(TASKS).task(send)
    return given, task


def send(number: int, user: str) -> None:
    """Do nothing, as a task of Django."""
