"""Alembic in a database with the tables of pg_scheduler, with the files of the documentation."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import alembic
import asyncpg
import pytest
from alembic import autogenerate, command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.operations import Operations
from packaging.version import Version
from sqlalchemy import MetaData, create_engine
from sqlalchemy.ext.asyncio import AsyncConnection

from pg_scheduler.errors import ConfigurationError, SchemaMissingError
from pg_scheduler.integrations.alembic import SchedulerMigrateOp, ignore_scheduler_tables
from pg_scheduler.migrate import TABLES, migrate, script, shipped_migrations, steps_between, verify
from pg_scheduler_plugins import alembic as alembic_plugin
from tests.conftest import Connection, run_on
from tests.docs.snippets import ROOT
from tests.docs.test_files import FILES
from tests.integrations.conftest import url_of

PAGE = "docs/guides/sqlalchemy.md"
HEAD = shipped_migrations()[-1].version
TABLES_OF_0_2 = {"scheduled_jobs", "vacuum_stats"}
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

    def add_revision(self) -> None:
        """Add the revision of the page."""
        file = self.folder / "alembic" / "versions" / "revision.py"
        file.write_text(FILES[f"{PAGE} revision.py"].code, encoding="utf-8")

    def print_sql(self, revisions: str, run: Callable[..., None] = command.upgrade) -> str:
        """Return what ``--sql`` prints."""
        self.config.output_buffer = io.StringIO()
        run(self.config, revisions, sql=True)
        return self.config.output_buffer.getvalue()

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


# -- tables that Alembic owns ----------------------------------------------------------------------------


def tables_of(dsn: str) -> set[str]:
    async def read(connection: Connection) -> None:
        rows = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        found.update(row[0] for row in rows)

    found: set[str] = set()
    run_on(dsn, read)
    return found - {"alembic_version"}


def test_revision_creates_the_tables_and_reverts_them(
    project: Project, use: Callable[[str], None], empty_dsn: str
) -> None:
    use(empty_dsn)
    project.add_revision()
    command.upgrade(project.config, "head")
    run_on(empty_dsn, verify)
    upgrade = project.autogenerate()
    assert "op.create_table('orders'" in upgrade
    assert "drop" not in upgrade
    command.upgrade(project.config, "head")
    command.check(project.config)
    assert tables_of(empty_dsn) == {*TABLES, "orders"}
    command.downgrade(project.config, "base")
    assert tables_of(empty_dsn) == {*TABLES_OF_0_2, "scheduler_migrations"}
    command.upgrade(project.config, "head")  # both revisions in one transaction, with one search path
    run_on(empty_dsn, verify)
    assert tables_of(empty_dsn) == {*TABLES, "orders"}


def test_revision_takes_over_a_database_that_a_worker_has_migrated(
    project: Project, use: Callable[[str], None], empty_dsn: str
) -> None:
    async def add_job(connection: Connection) -> None:
        await migrate(connection)
        await connection.execute("SELECT scheduler_add_job('shop.work')")

    async def has_job(connection: Connection) -> None:
        assert await connection.fetchval("SELECT count(*) FROM scheduled_jobs") == 1

    use(empty_dsn)
    run_on(empty_dsn, add_job)
    project.add_revision()
    command.upgrade(project.config, "head")
    run_on(empty_dsn, has_job)
    run_on(empty_dsn, verify)


def test_revision_that_fails_leaves_nothing_behind(
    project: Project, use: Callable[[str], None], empty_dsn: str
) -> None:
    use(empty_dsn)
    project.add_revision()
    project.edit(
        "alembic/versions/revision.py",
        "op.scheduler_migrate(6)\n",
        "op.scheduler_migrate(6)\n    op.scheduler_migrate(0)\n",
    )
    with pytest.raises(ConfigurationError, match=r"\(0, start=0\) changes nothing; pass .* start="):
        command.upgrade(project.config, "head")
    assert tables_of(empty_dsn) == set()


def test_revision_outside_of_a_transaction_is_refused(
    project: Project, use: Callable[[str], None], empty_dsn: str
) -> None:
    use(empty_dsn)
    project.add_revision()
    project.edit(
        "alembic/versions/revision.py",
        "    op.scheduler_migrate(6)\n",
        "    with op.get_context().autocommit_block():\n        op.scheduler_migrate(6)\n",
    )
    with pytest.raises(ConfigurationError, match="must be in a transaction"):
        command.upgrade(project.config, "head")
    assert tables_of(empty_dsn) == set()


def test_printed_sql_of_a_revision_is_the_script_and_makes_the_tables(
    project: Project, use: Callable[[str], None], empty_dsn: str
) -> None:
    use("postgresql://nobody@localhost:1/none")
    project.add_revision()
    for revisions, run, start, target in (
        ("head", command.upgrade, 0, HEAD),
        ("head:base", command.downgrade, HEAD, 0),
    ):
        text = project.print_sql(revisions, run)
        assert "\n\n".join(script(steps_between(start, target), "public")) in text

        async def execute(connection: Connection, text: str = text) -> None:
            await connection.execute(text)

        run_on(empty_dsn, execute)
        if target:
            run_on(empty_dsn, verify)
    assert tables_of(empty_dsn) == {*TABLES_OF_0_2, "scheduler_migrations"}


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_operation_runs_on_synchronous_drivers(empty_dsn: str, driver: str) -> None:
    async def check(connection: Connection) -> None:
        await verify(connection, schema="the jobs")

    engine = create_engine(empty_dsn.replace("postgresql", f"postgresql+{driver}", 1))
    up = SchedulerMigrateOp(HEAD, schema="the jobs")
    with engine.begin() as connection:
        Operations(MigrationContext.configure(connection)).invoke(up)
    run_on(empty_dsn, check)
    with engine.begin() as connection:
        Operations(MigrationContext.configure(connection)).invoke(up.reverse())
    with pytest.raises(SchemaMissingError, match="lack the migrations"):
        run_on(empty_dsn, check)
    engine.dispose()


ENTRY = """
import sys
from alembic import op
from alembic.migration import MigrationContext
from alembic.operations import Operations

loaded = [name for name in sys.modules if name.startswith(("pg_scheduler", "asyncpg", "pydantic"))]
assert {imports!r} or loaded == ["pg_scheduler_plugins", "pg_scheduler_plugins.alembic"], loaded
options = {{"as_sql": True, "output_buffer": sys.stdout}}
with Operations.context(MigrationContext.configure(dialect_name="postgresql", opts=options)):
    op.scheduler_migrate(6, schema="jobs")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "imports",
    ["", "import pg_scheduler.integrations.alembic", "import pg_scheduler_plugins.alembic"],
)
def test_alembic_finds_the_operation_by_the_entry_point(tmp_path: Path, imports: str) -> None:
    """The entry points of an installed wheel, in the place of those that the environment may have."""
    if "integrations" not in imports and Version(alembic.__version__) < Version("1.18"):
        pytest.skip(f"Alembic {alembic.__version__} has no entry points for plugins")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (point,) = project["entry-points"]["alembic.plugins"].items()
    folder = tmp_path / "pg_scheduler-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: pg-scheduler\nVersion: 1\n", encoding="utf-8"
    )
    (folder / "entry_points.txt").write_text("[alembic.plugins]\n{} = {}\n".format(*point), encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", imports + ENTRY.format(imports=imports)],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT), *sys.path])},
    )
    printed = [statement.strip() for statement in script(steps_between(0, 6), "jobs")]
    assert all(statement in ran.stdout for statement in printed)


def test_plugin_fits_both_ways_in_which_versions_of_alembic_load_it() -> None:
    """Alembic 1.18.0 to 1.20.0 iterate over what the entry point refers to; 1.20.1 requires a module."""
    assert isinstance(alembic_plugin, ModuleType)
    iterated: Any = alembic_plugin
    assert list(iterated) == [iterated]
