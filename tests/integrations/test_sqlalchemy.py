"""The tables as objects of SQLAlchemy, with the files of the documentation."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy import MetaData, Table, inspect, select
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine

from pg_scheduler import Scheduler
from pg_scheduler.integrations.sqlalchemy import tables
from pg_scheduler.migrate import TABLES, migrate
from tests.docs.test_files import FILES
from tests.integrations.conftest import url_of

PAGE = "docs/guides/sqlalchemy.md"
DIALECT: Any = postgresql.dialect()  # type: ignore[no-untyped-call]

# Alembic and reflection warn about the storage settings of the tables.
reflects_tables = pytest.mark.filterwarnings("ignore:.*dialect_options:sqlalchemy.exc.SAWarning")


def columns_of(table: Table) -> dict[str, tuple[str, bool | None, bool]]:
    return {
        column.name: (column.type.compile(DIALECT), column.nullable, column.primary_key)
        for column in table.columns
    }


@reflects_tables
async def test_tables_equal_those_of_the_migrations(connection: AsyncConnection) -> None:
    def reflect(sync: Any) -> dict[str, Table]:
        metadata = MetaData()
        metadata.reflect(sync)
        return dict(metadata.tables)

    reflected = await connection.run_sync(reflect)
    ours = tables()
    assert set(ours) == set(TABLES) == set(reflected)
    for name, table in ours.items():
        assert columns_of(table) == columns_of(reflected[name]), name
    assert len({table.metadata for table in ours.values()}) == 1


async def test_tables_of_a_schema_are_queried_there(dsn: str, connection: AsyncConnection) -> None:
    owner = await asyncpg.connect(dsn)
    await migrate(owner, schema="the jobs")
    await owner.execute('SELECT "the jobs".scheduler_add_job($1)', "shop.work")
    await owner.close()
    for schema, expected in (("the jobs", ["shop.work"]), (None, [])):
        jobs = tables(schema)["scheduled_jobs"]
        query = select(jobs.c.job_name).where(jobs.c.execution_time <= datetime(2100, 1, 1, tzinfo=UTC))
        assert list((await connection.execute(query)).scalars()) == expected


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the files of the page, whose modules are forgotten afterwards."""
    for name in ("models", "queries"):
        (tmp_path / f"{name}.py").write_text(FILES[f"{PAGE} {name}.py"].code, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path
    for name in ("models", "queries"):
        sys.modules.pop(name, None)


async def work() -> None: ...


@pytest.mark.usefixtures("modules")
async def test_class_of_the_page_joins_jobs_and_writes_nothing(
    dsn: str, pool: asyncpg.Pool[asyncpg.Record]
) -> None:
    import queries  # type: ignore[import-not-found]

    scheduler = Scheduler(pool)
    scheduler.register(work, name="shop.work")
    engine = create_async_engine(url_of(dsn))
    async with engine.begin() as connection:
        await connection.run_sync(queries.Base.metadata.create_all)
        assert await connection.run_sync(lambda sync: inspect(sync).has_table("orders"))
    async with AsyncSession(engine) as session:
        ids = [await scheduler.enqueue("shop.work", connection=session) for _ in range(2)]
        session.add_all(queries.Order(number=number, job_id=job_id) for number, job_id in enumerate(ids))
        await session.commit()
        assert await queries.orders_with_failed_jobs(session) == []
        await pool.execute(
            "UPDATE scheduled_jobs SET status = 'failed', finished_at = now() WHERE job_id = $1", ids[1]
        )
        (order,) = await queries.orders_with_failed_jobs(session)
        assert order.number == 1
        await session.refresh(order, ["job"])
        order.job = None  # viewonly: neither the job nor the order changes
        await session.commit()
    async with AsyncSession(engine) as session:
        assert (await session.get_one(queries.Order, 1)).job_id == ids[1]
        assert (await session.get_one(queries.Job, ids[1])).status == "failed"
    await engine.dispose()
