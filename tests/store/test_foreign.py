"""Statements on connections of other libraries."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from enum import IntEnum, StrEnum
from typing import Any

import asyncpg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from pg_scheduler import (
    ConflictResolution,
    ConnectionAdapter,
    DatabaseUnavailableError,
    JobSpec,
    PayloadError,
    Scheduler,
    SchemaForbiddenError,
    SchemaMissingError,
)
from pg_scheduler.database.callers.adapter import has_rows, with_percent
from pg_scheduler.database.callers.connection import TIME_COLUMNS, ForeignConnection, rewrite
from pg_scheduler.database.faults import constraint_of, is_transient, sqlstate_of
from pg_scheduler.sync import SyncScheduler
from pg_scheduler.triggers import Every
from tests.docs.snippets import ROOT
from tests.support.inside import load_queries, load_query
from tests.support.transactions import KINDS, application, django_connection, settled
from tests.support.worker import now

RAISE = ConflictResolution.RAISE
HOUR = timedelta(hours=1)

CALLED_FILES = (
    "admission/tasks",
    "database/audit",
    "database/testing",
    "queue/consequences",
    "queue/dependencies",
    "queue/inserts",
    "queue/jobs",
    "queue/kept_results",
    "queue/locks",
    "queue/names",
    "queue/passed_results",
    "queue/unique_keys",
    "schedules/statements",
    "steps/statements",
    "worker/outcome_statements",
    "worker/progress",
    "worker/retention",
    "worker/worker_rows",
)
"""The files with statements that run on connections of callers, or of tests."""

SERVICES = {
    "blocked_jobs",
    "find_blockers",
    "find_holders",
    "find_late",
    "find_lost",
    "renew_worker",
    "try_claim",
    "last_chained_run",
    "lock_declarations",
    "lock_free_schedules",
    "overdue_names",
    "suspect_workers",
}
"""Statements among them that only services run."""

OPTIONAL = re.compile(r"\$(\d+)(?:::[\w.]+(?:\[\])?)? IS (?:NOT )?NULL\b")
"""A placeholder that a statement compares with NULL, which is therefore written out without a type."""


async def work(number: int = 0) -> None: ...


# -- statements ------------------------------------------------------------------------------------------


async def test_every_statement_can_be_prepared_when_rewritten(pool: asyncpg.Pool) -> None:
    async with pool.acquire() as connection:
        for query in load_queries("public").values():
            if re.search(r"^(LOCK|SET CONSTRAINTS) ", query.text, re.MULTILINE):
                continue
            statement = await connection.prepare(query.text)
            kinds = tuple(each.name for each in statement.get_parameters())
            await connection.prepare(rewrite(query.text, kinds).text)
            optional = {int(place) for place in OPTIONAL.findall(query.text)}
            absent = tuple(None if n in optional else kind for n, kind in enumerate(kinds, start=1))
            await connection.prepare(rewrite(query.text, absent).text)


async def test_columns_with_times_are_known_by_their_names(pool: asyncpg.Pool) -> None:
    wrong = []
    files = [ROOT / "pg_scheduler" / f"{name}.sql" for name in CALLED_FILES]
    names = [name for file in files for name in re.findall("-- name: (.+)", file.read_text("utf-8"))]
    async with pool.acquire() as connection:
        for name in set(names) - SERVICES:
            for column in (await connection.prepare(load_query("public", name).text)).get_attributes():
                is_known = column.name in TIME_COLUMNS or column.name.endswith("_at")
                if is_known is not (column.type.name in {"timestamptz", "timestamptz[]"}):
                    wrong.append((name, column.name, column.type.name))
    assert wrong == []


@pytest.mark.parametrize(
    ("statement", "kinds", "expected"),
    [
        ("DELETE FROM t WHERE a = $1;", ("int4",), "DELETE FROM t WHERE a = CAST($1 AS pg_catalog.text)"),
        ("UPDATE t SET a = '$1', b = $1", (None,), "UPDATE t SET a = '$1', b = NULL RETURNING"),
        ("UPDATE t SET a = coalesce($1, now())", (None,), "SET a = now() RETURNING"),
        ('-- it\'s (\nDELETE FROM "a)""(" RETURNING b, c', (), 'DELETE FROM "a)""(" RETURNING (SELECT'),
        (
            "DELETE FROM t\nRETURNING b;",
            (),
            "t RETURNING pg_catalog.json_build_object('b', b)::pg_catalog.text",
        ),
        (
            "DELETE FROM t WHERE ($1::pg_catalog.text)::pg_catalog.jsonb = f($2::pg_catalog.text)",
            ("text", "text"),
            "WHERE CAST($1 AS pg_catalog.text)::pg_catalog.jsonb = f(CAST($2 AS",
        ),
        (
            "WITH x AS (DELETE FROM t RETURNING a) SELECT a FROM x",
            (),
            "RETURNING a), pg_scheduler_row AS (SELECT",
        ),
    ],
)
def test_statement_is_rewritten(statement: str, kinds: Any, expected: str) -> None:
    assert expected in rewrite(statement, kinds).text


def test_repeated_value_has_a_placeholder_of_its_own() -> None:
    rewritten = rewrite("SELECT $2, $1, $2", ("text", "int4"))
    assert [rewritten.text.count(f"${number} ") for number in (1, 2, 3)] == [1, 1, 1]
    assert rewritten.places == (1, 0, 1)


@pytest.mark.parametrize("kind", KINDS[1:])
async def test_values_arrive_unchanged(kind: str, dsn: str, pool: asyncpg.Pool) -> None:
    text, number, due = "a'\"\\{},NULL ü%s $1 :x", 2**40, datetime(2030, 2, 28, 23, 59, 59, 999999, UTC)
    columns = "$1 AS a, $2 AS b, $3 AS now, $4 AS d, $5 AS e, $6::text[] AS f, $7::bigint[] AS g, $8 AS h"
    values = text, True, due, number, -5, [text, None, ""], [1, None, number], None
    async with application(kind, dsn, pool) as app:
        connection = ForeignConnection(_adapter_of(app.connection))
        for setting in ("TIME ZONE 'Asia/Kathmandu'", "DateStyle = 'SQL, DMY'", "bytea_output = escape"):
            await settled(app.run(f"SET {setting}"))
        (row,) = await connection.fetch(f"SELECT {columns}", *values)
        assert list(row) == list(values)
        assert row["now"] == row[2] == due
        assert row.get("none") is None


class Number(IntEnum):
    SEVEN = 7


class Letter(StrEnum):
    A = "a"


class Instant(datetime):
    pass


async def test_values_of_subclasses_arrive_as_those_of_their_bases(dsn: str, pool: asyncpg.Pool) -> None:
    values = Number.SEVEN, Letter.A, Instant(2030, 2, 28, tzinfo=UTC), (Number.SEVEN, None)
    async with application("psycopg", dsn, pool) as app:
        connection = ForeignConnection(_adapter_of(app.connection))
        (row,) = await connection.fetch("SELECT $1 AS a, $2 AS b, $3 AS now, $4::int[] AS c", *values)
    assert list(row) == [7, "a", datetime(2030, 2, 28, tzinfo=UTC), [7, None]]


@pytest.mark.parametrize("kind", KINDS)
async def test_last_hours_of_the_last_year_are_read_in_any_time_zone(
    kind: str, dsn: str, pool: asyncpg.Pool
) -> None:
    last = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    async with application(kind, dsn, pool) as app:
        await app.execute("SET LOCAL timezone = 'Asia/Kolkata'")
        job_id = await app.call("schedule", work, execution_time=last)
        assert (await app.call("get_job", job_id)).execution_time == last


@pytest.mark.parametrize("kind", KINDS[1:])
async def test_statement_without_columns_returns_no_rows(kind: str, dsn: str, pool: asyncpg.Pool) -> None:
    async with application(kind, dsn, pool) as app:
        await settled(app.run("CREATE TEMP TABLE t AS SELECT 1 AS a"))
        connection = ForeignConnection(_adapter_of(app.connection))
        assert await connection.fetch("UPDATE t SET a = $1", 2) == []
        assert await connection.fetchval("SELECT a FROM t") == 2


def _adapter_of(connection: object) -> ConnectionAdapter:
    from pg_scheduler.database.callers.adapter import adapter_for

    try:
        return adapter_for(connection, is_async=True)
    except TypeError:
        return adapter_for(connection, is_async=False)


# -- settings of the owner of a connection ----------------------------------------------------------------


def test_row_factory_and_adapters_of_psycopg_change_nothing(dsn: str) -> None:
    psycopg = pytest.importorskip("psycopg")
    from psycopg.rows import dict_row
    from psycopg.types.json import set_json_loads

    with psycopg.connect(dsn, row_factory=dict_row, cursor_factory=psycopg.ClientCursor) as connection:
        set_json_loads(lambda _: "changed", connection)
        connection.execute("SET client_encoding = 'LATIN1'")
        job_id = SyncScheduler().schedule(work, execution_time=now(), args=(7,), connection=connection)
        found = SyncScheduler().get_job(job_id, connection=connection)
        assert found is not None
        assert found.args == (7,)


@pytest.mark.parametrize("kind", ["psycopg-async", "psycopg"])
async def test_adapters_of_texts_of_psycopg_change_nothing(kind: str, dsn: str, pool: asyncpg.Pool) -> None:
    pytest.importorskip("psycopg")
    from psycopg.adapt import Dumper, Loader

    class Changing(Loader):
        def load(self, data: object) -> str:
            return "changed"

    class Nulling(Dumper):
        def dump(self, obj: str) -> None:
            return None

    async with application(kind, dsn, pool) as app:
        app.connection.adapters.register_loader("text", Changing)
        app.connection.adapters.register_dumper(str, Nulling)
        job_id = await app.call("enqueue", work, args=(7,), job_id="seven")
        assert (await app.call("get_job", job_id)).args == (7,)


def test_cursor_factory_and_types_of_psycopg2_change_nothing(dsn: str) -> None:
    psycopg2 = pytest.importorskip("psycopg2")
    from psycopg2.extensions import UNICODE, new_type, register_type
    from psycopg2.extras import RealDictCursor

    connection = psycopg2.connect(dsn, cursor_factory=RealDictCursor)
    register_type(new_type(UNICODE.values, "changed", lambda *_: "changed"), connection)
    job_id = SyncScheduler().schedule(work, execution_time=now(), args=(7,), connection=connection)
    found = SyncScheduler().get_job(job_id, connection=connection)
    assert found is not None
    assert found.args == (7,)
    connection.close()


def test_pipeline_of_psycopg_is_left_open(dsn: str) -> None:
    psycopg = pytest.importorskip("psycopg")
    scheduler = SyncScheduler()
    with psycopg.connect(dsn) as connection, connection.pipeline():
        connection.execute("CREATE TABLE orders ()")
        first = scheduler.enqueue(work, connection=connection)
        scheduler.enqueue(work, after=[first], connection=connection)
        specs = [JobSpec(work, now()) for _ in range(3)]
        scheduler.schedule_bulk(specs, conflict_resolution=RAISE, connection=connection)
        assert connection.execute("SELECT count(*) FROM scheduled_jobs").fetchone() == (5,)


@pytest.mark.parametrize("option", [{"stream_results": True}, {"yield_per": 10}])
def test_streams_of_sqlalchemy_are_turned_off(option: dict[str, Any], dsn: str) -> None:
    engine = sqlalchemy.create_engine(
        dsn.replace("postgresql://", "postgresql+psycopg2://"), execution_options=option
    )
    with engine.begin() as connection:
        job_id = SyncScheduler().enqueue(work, connection=connection)
        assert SyncScheduler().cancel_job(job_id, connection=connection)
    engine.dispose()


# -- connections without a transaction ---------------------------------------------------------------------


def test_single_job_is_committed_at_once_on_an_autocommit_connection(dsn: str) -> None:
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(dsn, autocommit=True) as connection, psycopg.connect(dsn) as other:
        job_id = SyncScheduler().enqueue(work, connection=connection)
        assert SyncScheduler().get_job(job_id, connection=other) is not None


def test_call_that_needs_a_transaction_is_rejected_on_an_autocommit_connection(dsn: str) -> None:
    psycopg = pytest.importorskip("psycopg")
    scheduler = SyncScheduler()
    with psycopg.connect(dsn, autocommit=True) as connection:
        first = scheduler.enqueue(work, connection=connection)
        with pytest.raises(ValueError, match="turn autocommit off"):
            scheduler.schedule_bulk([JobSpec(work, now())], conflict_resolution=RAISE, connection=connection)
        with pytest.raises(ValueError, match="turn autocommit off"):
            scheduler.enqueue(work, after=[first], connection=connection)
        with pytest.raises(ValueError, match="turn autocommit off"):
            scheduler.schedules.add(work, Every(HOUR), schedule_id="hourly", connection=connection)
        assert connection.execute("SELECT count(*) FROM scheduled_jobs").fetchone() == (1,)
        # What follows from the end of a job, or from its retry, is more rows than its own.
        with psycopg.connect(dsn) as other:
            scheduler.enqueue(work, after=[first], connection=other)
        with pytest.raises(ValueError, match="needs to write all of its rows or none"):
            scheduler.cancel_job(first, connection=connection)
        assert connection.execute("SELECT DISTINCT status FROM scheduled_jobs").fetchall() == [("pending",)]


# -- interruptions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_lost", [False, True])
async def test_cancelled_call_leaves_none_of_its_jobs_to_a_caller_that_commits(
    is_lost: bool, dsn: str, pool: asyncpg.Pool
) -> None:
    psycopg = pytest.importorskip("psycopg")
    connection = await psycopg.AsyncConnection.connect(dsn)
    run = _adapter_of(connection).run

    async def run_interrupted(statement: str, texts: Any) -> Any:
        rows = await settled(run(statement, texts))
        if "INSERT" in statement:
            if is_lost:
                await connection.close()
            raise asyncio.CancelledError
        return rows

    specs = [JobSpec(work, now(), job_id=job_id) for job_id in ("one", "two")]
    with pytest.raises(asyncio.CancelledError):
        await Scheduler(pool).schedule_bulk(
            specs, conflict_resolution=RAISE, connection=ConnectionAdapter(run_interrupted)
        )
    if not is_lost:
        await connection.commit()
        await connection.close()
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 0


# -- errors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_errors_of_the_schema_have_one_class(kind: str, empty_dsn: str) -> None:
    async with (
        asyncpg.create_pool(empty_dsn, min_size=0, max_size=1) as pool,
        application(kind, empty_dsn, pool, schema="public") as app,
    ):
        with pytest.raises(SchemaMissingError, match="scheduled_jobs") as raised:
            await app.call("enqueue", work)
        assert sqlstate_of(raised.value.__cause__) == "42P01"


@pytest.mark.parametrize("kind", KINDS)
async def test_missing_privilege_has_one_class(kind: str, dsn: str, pool: asyncpg.Pool) -> None:
    async with application(kind, dsn, pool) as app:
        await settled(app.run("SET LOCAL ROLE pg_monitor"))
        with pytest.raises(SchemaForbiddenError, match="privilege"):
            await app.call("enqueue", work)


@pytest.mark.parametrize("autocommit", [False, True], ids=["savepoint", "transaction"])
async def test_failure_to_undo_does_not_replace_the_error_of_a_call(
    autocommit: bool, dsn: str, pool: asyncpg.Pool
) -> None:
    psycopg = pytest.importorskip("psycopg")
    connection = await psycopg.AsyncConnection.connect(dsn, autocommit=autocommit)
    run = _adapter_of(connection).run

    async def run_once(statement: str, texts: Any) -> Any:
        if statement.startswith("ROLLBACK"):
            raise OSError("the connection is lost")
        return await settled(run(statement, texts))

    foreign = ForeignConnection(ConnectionAdapter(run_once))
    with pytest.raises(LookupError, match="the block"):
        async with foreign.savepoint(begins=True):
            raise LookupError("the block")
    await connection.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_lost_connection_has_one_class(kind: str, dsn: str, pool: asyncpg.Pool) -> None:
    async with application(kind, dsn, pool) as app:
        await app.call("enqueue", work)
        await pool.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND datname = current_database() AND state LIKE 'idle in%'"
        )
        with pytest.raises(DatabaseUnavailableError) as raised:
            await app.call("enqueue", work, args=(7_777_777,))
        assert "7777777" not in str(raised.value)
        if kind == "asyncpg":
            return
        app.commit = app.rollback = lambda: None


@pytest.mark.parametrize("kind", KINDS)
async def test_values_of_a_rejected_row_are_in_no_error(kind: str, dsn: str, pool: asyncpg.Pool) -> None:
    await pool.execute("ALTER TABLE scheduled_jobs ADD CHECK (task_data -> 'args' ->> 0 <> 'secret')")
    async with application(kind, dsn, pool) as app:
        with pytest.raises(Exception, match="scheduled_jobs_task_data_check") as raised:
            await app.call("enqueue", work, args=("secret",))
        assert sqlstate_of(raised.value) == "23514"
        assert constraint_of(raised.value) == "scheduled_jobs_task_data_check"
        assert not is_transient(raised.value)
        assert "secret" not in str(raised.value)


@pytest.mark.parametrize("kind", KINDS)
async def test_aborted_transaction_raises_the_error_of_the_driver(
    kind: str, dsn: str, pool: asyncpg.Pool
) -> None:
    async with application(kind, dsn, pool) as app:
        with pytest.raises(Exception, match="division"):
            await settled(app.run("SELECT 1 / 0"))
        with pytest.raises(Exception, match="aborted") as raised:
            await app.call("enqueue", work)
        assert sqlstate_of(raised.value) == "25P02"
        await settled(app.rollback())
        await app.call("enqueue", work)


@pytest.mark.parametrize("kind", KINDS)
async def test_too_large_payload_is_a_payload_error(kind: str, dsn: str, pool: asyncpg.Pool) -> None:
    async with application(kind, dsn, pool, max_payload_bytes=None) as app:
        with pytest.raises(PayloadError, match="16 MiB"):
            await app.call("enqueue", work, args=("x" * 2**24,))


# -- detection ---------------------------------------------------------------------------------------------


class Proxy:
    """An object that passes for another one, such as those of wrapt and werkzeug."""

    def __init__(self, target: Any) -> None:
        self._target = target

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return self._target.__class__

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)


class ApplicationSession(AsyncSession):
    """A session of an application."""


@pytest.fixture
def engine(dsn: str) -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine(dsn.replace("postgresql://", "postgresql+psycopg2://"))
    yield engine
    engine.dispose()


async def test_async_sessions_of_every_class_are_accepted(dsn: str, pool: asyncpg.Pool) -> None:
    scheduler = Scheduler(pool)
    engine = create_async_engine(dsn.replace("postgresql://", "postgresql+asyncpg://"), poolclass=NullPool)
    scoped = async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: 1)
    async with engine.begin() as connection:
        await scheduler.enqueue(work, connection=connection)
        await scheduler.enqueue(work, connection=Proxy(connection))
    async with ApplicationSession(engine) as session, session.begin():
        await scheduler.enqueue(work, connection=session)
    await scheduler.enqueue(work, connection=scoped)
    await scoped.commit()
    await scoped.remove()
    assert (await scheduler.count_jobs()).pending == 4


def test_blocking_sessions_of_every_class_are_accepted(engine: sqlalchemy.Engine, dsn: str) -> None:
    scheduler = SyncScheduler()
    scoped = scoped_session(sessionmaker(engine))
    with engine.begin() as connection:
        scheduler.enqueue(work, connection=connection)
    with Session(engine) as session, session.begin():
        scheduler.enqueue(work, connection=Proxy(session))
    scheduler.enqueue(work, connection=scoped)
    scoped.commit()
    scoped.remove()
    with SyncScheduler(dsn) as other:
        assert other.count_jobs().pending == 3


@pytest.mark.slow
def test_blocking_sessions_need_no_greenlet(dsn: str) -> None:
    program = (
        "import sys; sys.modules['greenlet'] = None\n"
        "from sqlalchemy import create_engine\n"
        "from sqlalchemy.orm import Session\n"
        "from pg_scheduler.sync import SyncScheduler\n"
        "engine = create_engine(sys.argv[1])\n"
        "with Session(engine) as session:\n"
        "    SyncScheduler().enqueue('a', connection=session)\n"
        "    session.commit()\n"
        "try:\n"
        "    SyncScheduler().enqueue('a', connection=engine)\n"
        "except TypeError as error:\n"
        "    print(error)\n"
    )
    command = [sys.executable, "-c", program, dsn.replace("postgresql:", "postgresql+psycopg:")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "connection must not be of the type Engine" in done.stdout


def test_aliases_and_proxies_of_django_are_accepted(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = django_connection(dsn, "default")
    from django.db import connection as proxy
    from django.db import transaction

    scheduler = SyncScheduler()
    with transaction.atomic():
        scheduler.enqueue(work, connection="default")
        scheduler.enqueue(work, connection=proxy)
    with transaction.atomic():
        scheduler.enqueue(work, connection="default")
        transaction.set_rollback(True)
    with SyncScheduler(dsn) as other:
        assert other.count_jobs().pending == 2
    connection.close()


async def test_connection_of_the_other_class_is_rejected_with_its_name(
    pool: asyncpg.Pool, dsn: str, engine: sqlalchemy.Engine
) -> None:
    scheduler: Any = Scheduler(pool)
    blocking: Any = SyncScheduler()
    with (
        Session(engine) as session,
        pytest.raises(TypeError, match=r"type Session blocks; use SyncSch"),
    ):
        await scheduler.enqueue(work, connection=session)
    with pytest.raises(TypeError, match="use SyncScheduler for it, not Scheduler"):
        await scheduler.enqueue(work, connection=ConnectionAdapter(lambda *_: [], is_async=False))
    async with pool.acquire() as connection, connection.transaction():
        with pytest.raises(TypeError, match="is asynchronous; use Scheduler for it, not SyncSch"):
            blocking.enqueue(work, connection=connection)
    assert (await scheduler.count_jobs()).total == 0


async def test_other_object_is_rejected_with_the_list_of_connections(
    pool: asyncpg.Pool, engine: sqlalchemy.Engine
) -> None:
    scheduler: Any = Scheduler(pool)
    blocking: Any = SyncScheduler()
    for connection in (object(), pool, engine, sessionmaker(engine), 7, scheduler):
        with pytest.raises(TypeError, match=r"psycopg2, a session .* open one first"):
            await scheduler.enqueue(work, connection=connection)
        with pytest.raises(TypeError, match="alias or connection of Django"):
            blocking.enqueue(work, connection=connection)


async def test_connection_of_the_driver_is_rejected_before_sqlalchemy_begins(
    pool: asyncpg.Pool, dsn: str
) -> None:
    scheduler: Any = Scheduler(pool)
    engine = create_async_engine(dsn.replace("postgresql://", "postgresql+asyncpg://"))
    async with engine.connect() as connection:
        raw = await connection.get_raw_connection()
        with pytest.raises(ValueError, match="SQLAlchemy, owns the connection, pass its session"):
            await scheduler.enqueue(work, connection=raw.driver_connection)
        with pytest.raises(TypeError, match="a session or connection of SQLAlchemy"):
            await scheduler.enqueue(work, connection=raw.dbapi_connection)
    await engine.dispose()


def test_another_database_system_is_rejected() -> None:
    engine = sqlalchemy.create_engine("sqlite://")
    with engine.connect() as connection, pytest.raises(TypeError, match="leads to sqlite"):
        SyncScheduler().enqueue(work, connection=connection)
    # Python 3.13 reports a connection of SQLite that stays open.
    engine.dispose()


async def test_adapter_runs_the_statements_of_any_library(pool: asyncpg.Pool) -> None:
    scheduler = Scheduler(pool)
    async with pool.acquire() as connection:

        async def run(statement: str, texts: Any) -> list[str]:
            return [row[0] for row in await connection.fetch(statement, *texts)]

        adapter = ConnectionAdapter(run)
        await connection.execute("BEGIN")
        job_id = await scheduler.enqueue(work, connection=adapter)
        await scheduler.schedule_bulk([JobSpec(work, now())], conflict_resolution=RAISE, connection=adapter)
        await connection.execute("COMMIT")
    assert (await scheduler.count_jobs()).pending == 2
    assert await scheduler.get_job(job_id) is not None


async def test_due_job_is_one_statement_that_returns_nothing(pool: asyncpg.Pool) -> None:
    """Each driver spends more on a row that is returned than on the statement."""
    statements: list[str] = []
    async with pool.acquire() as connection:

        async def run(statement: str, texts: Any) -> list[str]:
            statements.append(statement)
            return [row[0] for row in await connection.fetch(statement, *texts)]

        scheduler = Scheduler(pool, schema="public")
        await scheduler.enqueue(work, keep_result=timedelta(days=1), connection=ConnectionAdapter(run))
        await scheduler.schedule(
            work, execution_time=datetime(2030, 1, 1, tzinfo=UTC), connection=ConnectionAdapter(run)
        )
    assert [with_percent(each).partition("INSERT")[1] for each in statements] == ["INSERT"] * 2
    assert not [each for each in statements if "RETURNING" in with_percent(each) or has_rows(each)]


def test_importing_the_package_imports_no_library_of_callers() -> None:
    program = (
        "import sys, pg_scheduler, pg_scheduler.sync; "
        "print({'django', 'psycopg', 'psycopg2', 'sqlalchemy'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
