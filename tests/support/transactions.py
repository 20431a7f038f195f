"""Transactions of an application, on each kind of connection that the Scheduler accepts."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from inspect import isawaitable
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.sync import SyncScheduler

ASYNC_KINDS = ("asyncpg", "psycopg-async", "sqlalchemy-asyncpg", "sqlalchemy-psycopg-async")
SYNC_KINDS = ("psycopg", "psycopg2", "sqlalchemy", "django")
KINDS = (*ASYNC_KINDS, *SYNC_KINDS)

DATABASE_ALIAS = "jobs"


@dataclass
class Application:
    """An application with one connection, which begins a transaction when it needs one.

    Attributes:
        connection: What it passes as ``connection=``.
        scheduler: Its Scheduler, which is not started.
        run: Executes a statement, as the application does.
        commit: Commits, as the application does.
        rollback: Rolls back, as the application does.
    """

    connection: Any
    scheduler: Any
    run: Callable[[str], Any]
    commit: Callable[[], Any]
    rollback: Callable[[], Any]
    begin: Callable[[], Any] = field(default=lambda: None)

    async def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the Scheduler on the connection."""
        found = self.scheduler
        for part in name.split("."):
            found = getattr(found, part)
        return await settled(found(*args, **kwargs, connection=self.connection))

    async def execute(self, statement: str) -> None:
        await settled(self.run(statement))


async def settled(value: Any) -> Any:
    return await value if isawaitable(value) else value


UNPREPARED: dict[str, dict[str, Any]] = {
    "asyncpg": {"statement_cache_size": 0},
    "psycopg-async": {"prepare_threshold": None},
    "psycopg": {"prepare_threshold": None},
    "sqlalchemy-asyncpg": {
        "connect_args": {
            "prepared_statement_cache_size": 0,
            "prepared_statement_name_func": lambda: f"__asyncpg_{uuid4()}__",
            "statement_cache_size": 0,
        },
    },
    "sqlalchemy-psycopg-async": {"connect_args": {"prepare_threshold": None}},
}
"""The options by which libraries leave no prepared statements in a session, for PgBouncer."""


@asynccontextmanager
async def application(
    kind: str, dsn: str, pool: asyncpg.Pool, *, is_pooled: bool = False, **settings: Any
) -> AsyncIterator[Application]:
    """Yield an application with a connection of this kind, in a transaction where asyncpg needs that.

    Args:
        kind: One of ``KINDS``.
        dsn: Its database.
        pool: The pool of its Scheduler.
        is_pooled: Whether PgBouncer may give each transaction another session.
        settings: Settings of its Scheduler.
    """
    open_one = OPEN[kind]
    scheduler = Scheduler(pool, **settings) if kind in ASYNC_KINDS else SyncScheduler(**settings)
    options = UNPREPARED.get(kind, {}) if is_pooled else {}
    async with open_one(dsn, scheduler, **options) as opened:
        await settled(opened.begin())
        yield opened
    if isinstance(scheduler, Scheduler):
        await scheduler.shutdown()


@asynccontextmanager
async def _asyncpg(dsn: str, scheduler: Any, **options: Any) -> AsyncIterator[Application]:
    connection = await asyncpg.connect(dsn, **options)

    transactions: list[Any] = []

    async def begin() -> None:
        transactions.append(connection.transaction())
        await transactions[-1].start()

    async def commit() -> None:
        await transactions.pop().commit()
        await begin()

    async def rollback() -> None:
        await transactions.pop().rollback()
        await begin()

    try:
        yield Application(connection, scheduler, connection.execute, commit, rollback, begin)
    finally:
        await connection.close()


@asynccontextmanager
async def _psycopg_async(dsn: str, scheduler: Any, **options: Any) -> AsyncIterator[Application]:
    psycopg = pytest.importorskip("psycopg")
    connection = await psycopg.AsyncConnection.connect(dsn, **options)
    try:
        yield Application(connection, scheduler, connection.execute, connection.commit, connection.rollback)
    finally:
        await connection.close()


@asynccontextmanager
async def _psycopg(dsn: str, scheduler: Any, **options: Any) -> AsyncIterator[Application]:
    psycopg = pytest.importorskip("psycopg")
    connection = psycopg.connect(dsn, **options)
    try:
        yield Application(connection, scheduler, connection.execute, connection.commit, connection.rollback)
    finally:
        connection.close()


@asynccontextmanager
async def _psycopg2(dsn: str, scheduler: Any) -> AsyncIterator[Application]:
    psycopg2 = pytest.importorskip("psycopg2")
    connection = psycopg2.connect(dsn)
    run = connection.cursor().execute
    yield Application(connection, scheduler, run, connection.commit, connection.rollback)
    connection.close()


@asynccontextmanager
async def _sqlalchemy_async(
    driver: str, dsn: str, scheduler: Any, **options: Any
) -> AsyncIterator[Application]:
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    pytest.importorskip(driver)
    engine = create_async_engine(dsn.replace("postgresql://", f"postgresql+{driver}://"), **options)
    async with AsyncSession(engine) as session:

        def run(statement: str) -> Awaitable[Any]:
            return session.execute(text(statement))

        yield Application(session, scheduler, run, session.commit, session.rollback)
    await engine.dispose()


@asynccontextmanager
async def _sqlalchemy(dsn: str, scheduler: Any) -> AsyncIterator[Application]:
    from sqlalchemy import create_engine, text
    from sqlalchemy.orm import Session

    pytest.importorskip("psycopg2")
    engine = create_engine(dsn.replace("postgresql://", "postgresql+psycopg2://"))
    with Session(engine) as session:
        yield Application(
            session,
            scheduler,
            lambda statement: session.execute(text(statement)),
            session.commit,
            session.rollback,
        )
    engine.dispose()


@asynccontextmanager
async def _django(dsn: str, scheduler: Any) -> AsyncIterator[Application]:
    connection = django_connection(dsn)
    connection.set_autocommit(False)
    run = connection.cursor().execute
    yield Application(connection, scheduler, run, connection.commit, connection.rollback)
    connection.close()


def configure_django() -> None:
    """Configure Django in this process unless an earlier test has; skip the test where it is missing."""
    django = pytest.importorskip("django", reason="dev.py has not updated this environment")
    from django.apps import apps
    from django.conf import settings

    if not settings.configured:
        settings.configure(DATABASES={})
    if not apps.ready:
        django.setup()


def django_connection(dsn: str, alias: str = DATABASE_ALIAS) -> Any:
    """Return Django's connection of an alias, which leads to a database of this test."""
    configure_django()
    skip_where_django_rejects(dsn)
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"  # the loop of the test runs in this thread
    from django.db import connections

    connections.databases[alias] = connections.configure_settings(
        {"default": {}, alias: {"ENGINE": "django.db.backends.postgresql", **django_address(dsn)}}
    )[alias]
    if hasattr(connections._connections, alias):
        del connections[alias]
    return connections[alias]


def skip_where_django_rejects(dsn: str) -> None:
    """Skip the test if the server is older than Django supports: Django 6.1 requires PostgreSQL 15."""
    import django
    import psycopg
    from django.db.backends.postgresql.features import DatabaseFeatures

    (oldest,) = DatabaseFeatures.minimum_database_version
    with psycopg.connect(dsn) as connection:
        if connection.info.server_version < oldest * 10_000:
            pytest.skip(f"Django {django.get_version()} requires PostgreSQL {oldest}")


def django_address(dsn: str) -> dict[str, Any]:
    """Return the address of a database as Django has it in its settings."""
    from urllib.parse import parse_qs, unquote, urlsplit

    parts = urlsplit(dsn)
    options = parse_qs(parts.query)
    host = options.get("host", [parts.hostname or ""])[0]
    return {
        "NAME": parts.path.removeprefix("/"),
        "USER": unquote(parts.username or options.get("user", [""])[0]),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": host,
        "PORT": options.get("port", [str(parts.port or "")])[0],
    }


OPEN: dict[str, Any] = {
    "asyncpg": _asyncpg,
    "psycopg-async": _psycopg_async,
    "psycopg": _psycopg,
    "psycopg2": _psycopg2,
    "sqlalchemy-asyncpg": partial(_sqlalchemy_async, "asyncpg"),
    "sqlalchemy-psycopg-async": partial(_sqlalchemy_async, "psycopg"),
    "sqlalchemy": _sqlalchemy,
    "django": _django,
}
