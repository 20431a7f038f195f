"""Alembic in a database with the tables of pg_scheduler, with the files of the documentation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from alembic import autogenerate, command
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import AsyncConnection

from pg_scheduler.integrations.alembic import ignore_scheduler_tables
from pg_scheduler.migrate import TABLES, migrate, verify
from tests.conftest import Connection, run_on
from tests.docs.test_files import FILES
from tests.integrations.conftest import url_of

PAGE = "docs/guides/sqlalchemy.md"
FILTER = "include_name=ignore_scheduler_tables(),"


# Alembic makes tables to drop of what SQLAlchemy reflects, storage settings included, which warns.
reflects_tables = pytest.mark.filterwarnings("ignore:.*dialect_options:sqlalchemy.exc.SAWarning")


class Project:
    """The files of an application that uses Alembic, as the page has them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = Config(folder / "alembic.ini")
        command.init(self.config, str(folder / "alembic"), template="async")
        for path in ("models.py", "alembic/env.py"):
            (folder / path).write_text(FILES[f"{PAGE} {Path(path).name}"].code, encoding="utf-8")

    def edit(self, path: str, old: str, new: str) -> None:
        """Replace text that a file has once."""
        file = self.folder / path
        code = file.read_text(encoding="utf-8")
        assert code.count(old) == 1
        file.write_text(code.replace(old, new), encoding="utf-8")

    def autogenerate(self) -> str:
        """Write a revision from the difference between models and database; return its ``upgrade()``."""
        script: Any = command.revision(self.config, "change", autogenerate=True)
        _, _, upgrade = Path(script.path).read_text(encoding="utf-8").partition("def upgrade()")
        return upgrade.partition("def downgrade()")[0]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """A project whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield Project(tmp_path)
    sys.modules.pop("models", None)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that sets the database of the project."""
    return lambda dsn: monkeypatch.setenv("DATABASE_URL", url_of(dsn))


@reflects_tables
def test_autogenerate_drops_all_tables_without_the_filter(
    project: Project, use: Callable[[str], None], dsn: str
) -> None:
    """The trap, for real: the other tests prove nothing unless this one passes."""
    use(dsn)
    project.edit("alembic/env.py", FILTER, "")
    upgrade = project.autogenerate()
    assert {name for name in TABLES if f"op.drop_table('{name}')" in upgrade} == set(TABLES)


def test_autogenerate_and_upgrade_keep_the_tables_and_see_those_of_the_application(
    project: Project, use: Callable[[str], None], dsn: str
) -> None:
    use(dsn)
    upgrade = project.autogenerate()
    assert "op.create_table('orders'" in upgrade
    assert "drop" not in upgrade
    command.upgrade(project.config, "head")
    command.check(project.config)
    run_on(dsn, verify)


def test_autogenerate_does_not_inspect_a_schema_of_its_own(
    project: Project, use: Callable[[str], None], empty_dsn: str
) -> None:
    use(empty_dsn)

    async def prepare(connection: Connection) -> None:
        await migrate(connection, schema="jobs")

    run_on(empty_dsn, prepare)
    project.edit("alembic/env.py", FILTER, "")
    assert "drop" not in project.autogenerate()


def removed(connection: AsyncConnection, **options: Any) -> Any:
    """Return the tables that autogenerate would drop with these options, with their schemas."""

    def compare(sync: Any) -> set[tuple[str | None, str]]:
        context = MigrationContext.configure(sync, opts=options)
        differences = autogenerate.compare_metadata(context, MetaData())
        return {(table.schema, table.name) for kind, table, *_ in differences if kind == "remove_table"}

    return connection.run_sync(compare)


@reflects_tables
async def test_filter_hides_the_tables_of_the_given_schema_and_of_the_default_one(
    dsn: str, connection: AsyncConnection
) -> None:
    owner = await asyncpg.connect(dsn)
    await migrate(owner, schema="jobs")
    await owner.execute("CREATE TABLE jobs.orders (); CREATE SCHEMA other CREATE TABLE vacuum_stats ()")
    await owner.close()
    ours = {("jobs", "orders")}
    theirs = {("other", "vacuum_stats")}

    async def left(schema: str | None) -> set[tuple[str | None, str]]:
        result: set[tuple[str | None, str]] = await removed(
            connection, include_schemas=True, include_name=ignore_scheduler_tables(schema)
        )
        return result

    assert await left("jobs") == ours | theirs
    assert await left(None) == ours
    assert await left("public") == ours | theirs | {("jobs", table) for table in TABLES}


async def test_filter_passes_other_names_to_the_own_function(connection: AsyncConnection) -> None:
    await connection.exec_driver_sql("CREATE TABLE mine ()")
    await connection.exec_driver_sql("CREATE TABLE yours ()")
    mine = ignore_scheduler_tables(then=lambda name, _type, _parents: name != "yours")
    assert await removed(connection, include_name=mine) == {(None, "mine")}
