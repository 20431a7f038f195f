"""Migrations of a Django project and of the library, in either order, with Django's own commands."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.migrate import TABLES, migrate, shipped_migrations, verify
from tests.conftest import Connection, run_on
from tests.docs.snippets import ROOT
from tests.docs.test_files import FILES
from tests.migrations.dump import CHECKED_IN, describe
from tests.support.django import BACKEND, has_tasks
from tests.support.stories import NIGHTLY
from tests.support.transactions import django_address

pytestmark = pytest.mark.slow  # programs start and end

pytest.importorskip("django")

SITE = "tests.integrations.django_site"
PACKAGE = ROOT / "pg_scheduler" / "integrations" / "django"
HEAD = shipped_migrations()[-1].version


def environment(dsn: str, *, folder: Path = ROOT, **settings: Any) -> dict[str, str]:
    """Return the environment of a command of the project, with modules and settings of its own."""
    return os.environ | {
        "DATABASE_URL": dsn,
        "DJANGO_SETTINGS_MODULE": f"{SITE}.settings",
        "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
        "PYTHONWARNINGS": "error",
        "SITE_SETTINGS": json.dumps(settings),
    }


def manage(dsn: str, *arguments: str, status: int = 0, **project: Any) -> str:
    """Run a command of the project, and return its output."""
    command = [sys.executable, "-m", "django", *arguments]
    done = subprocess.run(
        command, env=environment(dsn, **project), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def on(dsn: str, *statements: str) -> list[list[Any]]:
    """Execute statements, and return the rows of the last one."""
    rows: list[list[Any]] = []

    async def work(connection: Connection) -> None:
        for statement in statements:
            rows[:] = [list(row) for row in await connection.fetch(statement)]

    run_on(dsn, work)
    return rows


def shape(dsn: str) -> str:
    """Return the tables, as ``migrations/schema.txt`` has them."""
    texts: list[str] = []

    async def work(connection: Connection) -> None:
        await verify(connection)
        texts.append(await describe(connection, "public"))

    run_on(dsn, work)
    lines = re.split(r"^(?=table |function )", texts[0], flags=re.MULTILINE)
    return "".join(each for each in lines if not re.match(r"table (auth|django)_", each))


def applied(dsn: str) -> int:
    """Return how many migrations of pg_scheduler Django has recorded."""
    ((count,),) = on(dsn, "SELECT count(*) FROM django_migrations WHERE app = 'pg_scheduler'")
    return int(count)


def test_each_sql_file_has_a_migration_of_its_name() -> None:
    names = {path.stem for path in (PACKAGE / "migrations").glob("[0-9]*.py")}
    assert names == {f"{each.version:04}_{each.name}" for each in shipped_migrations()}


def test_makemigrations_finds_no_difference_between_models_and_migrations(dsn: str) -> None:
    assert "No changes detected" in manage(dsn, "makemigrations", "--check", "--dry-run")
    assert "no issues" in manage(dsn, "check", "--database", "default")


def test_worker_starts_on_the_tables_of_migrate(empty_dsn: str) -> None:
    assert "from_0_2" in manage(empty_dsn, "migrate", "pg_scheduler")

    async def work() -> None:
        async with asyncpg.create_pool(empty_dsn, min_size=1) as pool:
            async with pool.acquire() as connection:
                assert await migrate(connection) == []
            async with Scheduler(pool):
                pass

    asyncio.run(work())
    assert on(empty_dsn, "SELECT count(*) FROM scheduler_migrations") == [[HEAD]]
    assert applied(empty_dsn) == HEAD
    assert shape(empty_dsn) == CHECKED_IN.read_text(encoding="utf-8")


def test_migrate_keeps_the_tables_and_jobs_of_a_running_worker(empty_dsn: str) -> None:
    async def work() -> None:
        async with asyncpg.create_pool(empty_dsn, min_size=1) as pool, Scheduler(pool) as scheduler:
            due = await pool.fetchval("SELECT now()")
            job_id = await scheduler.schedule_job("unknown", due, {}, job_id="one")
            await asyncio.to_thread(manage, empty_dsn, "migrate")
            assert await scheduler.get_job(job_id) is not None

    asyncio.run(work())
    assert applied(empty_dsn) == HEAD
    assert shape(empty_dsn) == CHECKED_IN.read_text(encoding="utf-8")


def test_migrate_waits_for_a_node_that_is_migrating(empty_dsn: str) -> None:
    async def work(node: Connection) -> None:
        async with node.transaction():
            await migrate(node)
            command = asyncio.create_task(asyncio.to_thread(manage, empty_dsn, "migrate"))
            waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            while not await node.fetchval(waiting):
                assert not command.done()
        await command

    run_on(empty_dsn, work)
    assert applied(empty_dsn) == HEAD
    assert shape(empty_dsn) == CHECKED_IN.read_text(encoding="utf-8")


def test_migrate_upgrades_and_restores_the_tables_of_0_2(empty_dsn: str) -> None:
    manage(empty_dsn, "migrate")
    manage(empty_dsn, "migrate", "pg_scheduler", "zero")
    tables = on(empty_dsn, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    left = {name for (name,) in tables} & set(TABLES)
    assert left == {"scheduled_jobs", "scheduler_migrations", "vacuum_stats"}
    assert applied(empty_dsn) == 0
    on(empty_dsn, "INSERT INTO scheduled_jobs (job_id, job_name, execution_time) VALUES ('a', 'b', now())")
    manage(empty_dsn, "migrate")
    assert on(empty_dsn, "SELECT status FROM scheduled_jobs") == [["pending"]]
    assert shape(empty_dsn) == CHECKED_IN.read_text(encoding="utf-8")


def test_reverting_skips_what_the_library_has_reverted(empty_dsn: str) -> None:
    manage(empty_dsn, "migrate")

    async def revert(node: Connection) -> None:
        await migrate(node, target=0)

    run_on(empty_dsn, revert)
    manage(empty_dsn, "migrate", "pg_scheduler", "zero")
    assert applied(empty_dsn) == 0


def test_failed_migration_leaves_nothing_behind(empty_dsn: str) -> None:
    on(empty_dsn, "CREATE TABLE scheduler_workers ()")
    assert 'relation "scheduler_workers" already exists' in manage(empty_dsn, "migrate", status=1)
    assert applied(empty_dsn) == 0
    assert on(empty_dsn, "SELECT to_regclass('scheduled_jobs'), to_regclass('scheduler_migrations')") == [
        [None, None]
    ]


@NIGHTLY
@pytest.mark.parametrize("direction", [[], ["--backwards"]])
def test_sqlmigrate_prints_what_migrate_executes(empty_dsn: str, dsn: str, direction: list[str]) -> None:
    names = ["0001", "0002", "0003", "0004", "0005", "0006"][:: -1 if direction else 1]
    printed = "\n".join(manage(dsn, "sqlmigrate", "pg_scheduler", name, *direction) for name in names)
    target = dsn if direction else empty_dsn

    async def execute(connection: Connection) -> None:
        await connection.execute(printed)

    run_on(target, execute)
    if direction:
        assert on(dsn, "SELECT to_regclass('scheduler_workers')") == [[None]]
        run_on(dsn, _migrate)
    assert shape(target) == CHECKED_IN.read_text(encoding="utf-8")


async def _migrate(connection: Connection) -> None:
    await migrate(connection)


def test_tables_lie_on_the_search_path_of_the_connection(empty_dsn: str) -> None:
    on(empty_dsn, "CREATE SCHEMA tenant")
    database = {
        "ENGINE": "django.db.backends.postgresql",
        **django_address(empty_dsn),
        "OPTIONS": {"options": "-c search_path=tenant"},
    }
    manage(empty_dsn, "migrate", DATABASES={"default": database})
    schemas = on(
        empty_dsn, "SELECT DISTINCT relnamespace::regnamespace::text FROM pg_class WHERE oid > 16383"
    )
    assert [name for (name,) in schemas if not name.startswith("pg_toast")] == ["tenant"]


def test_router_keeps_the_tables_out_of_a_database(empty_dsn: str) -> None:
    router = [f"{SITE}.routers.NotHere"]
    manage(empty_dsn, "migrate", DATABASE_ROUTERS=router)
    assert on(empty_dsn, "SELECT to_regclass('scheduled_jobs')") == [[None]]
    manage(empty_dsn, "migrate", "--run-syncdb", DATABASE_ROUTERS=router, MIGRATION_MODULES=WITHOUT)
    assert on(empty_dsn, "SELECT to_regclass('scheduled_jobs')") == [[None]]


def test_another_database_system_is_left_without_tables(empty_dsn: str, tmp_path: Path) -> None:
    databases = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "site.db")}}
    manage(empty_dsn, "migrate", DATABASES=databases)


WITHOUT = {"pg_scheduler": None}


def test_tables_are_complete_where_migrations_are_switched_off(empty_dsn: str) -> None:
    manage(empty_dsn, "migrate", "--run-syncdb", MIGRATION_MODULES=WITHOUT)
    assert shape(empty_dsn) == CHECKED_IN.read_text(encoding="utf-8")


def test_rows_disappear_after_each_test_of_a_project_without_migrations(dsn: str) -> None:
    tests = f"{SITE}.model_tests.FlushTest"
    assert "Ran 2 tests" in manage(dsn, "test", tests, "--noinput", MIGRATION_MODULES=WITHOUT)


@pytest.mark.parametrize("tests", ["model_tests", "admin_tests"])
def test_suite_of_the_project_passes(dsn: str, tests: str) -> None:
    """Run tests with Django's runner, which creates a database for them."""
    manage(dsn, "test", f"{SITE}.{tests}", "--noinput", "--shuffle")


@pytest.mark.skipif(not has_tasks(), reason="dev.py has not updated this environment")
@pytest.mark.parametrize("tests", ["jobs", "routed"])
def test_admin_shows_the_database_of_the_backend_unless_a_router_chooses(dsn: str, tests: str) -> None:
    engine = "django.db.backends"
    jobs = {"ENGINE": f"{engine}.postgresql", **django_address(dsn)}
    default = {"ENGINE": f"{engine}.sqlite3", "NAME": ":memory:"}
    settings: dict[str, Any] = {"DATABASES": {"default": default, "jobs": jobs}}
    if tests == "jobs":
        settings["TASKS"] = {"default": {"BACKEND": BACKEND, "OPTIONS": {"DATABASE": "jobs"}}}
    else:
        settings["DATABASE_ROUTERS"] = [f"{SITE}.routers.Jobs"]
    manage(dsn, "test", f"{SITE}.elsewhere_tests", "--noinput", **settings)


def test_tests_of_the_page_pass(dsn: str, tmp_path: Path) -> None:
    code = FILES["docs/guides/django-admin.md tests.py"].code
    (tmp_path / "order_tests.py").write_text(code, encoding="utf-8")
    assert "Ran 2 tests" in manage(dsn, "test", "order_tests", "--noinput", folder=tmp_path)


# -- models ----------------------------------------------------------------------------------------------


def test_shell_imports_every_model_by_its_name(dsn: str) -> None:
    manage(dsn, "migrate")
    printed = manage(dsn, "shell", "--command", "print(Job.objects.count(), AuditRecord.objects.count())")
    assert printed.splitlines()[-1] == "0 0"
    assert "could not be" not in printed


TYPES = {
    "bigint": "BigIntegerField",
    "boolean": "BooleanField",
    "date": "DateField",
    "double precision": "FloatField",
    "integer": "IntegerField",
    "jsonb": "JSONField",
    "text": "TextField",
    "text[]": "TextArrayField",
    "timestamp with time zone": "DateTimeField",
    "uuid": "UUIDField",
}
PROGRAM = """
import json, django
django.setup()
from django.apps import apps
models = apps.get_app_config("pg_scheduler").get_models()
print(json.dumps({
    model._meta.db_table: [
        [field.column, type(field).__name__, field.null] for field in model._meta.concrete_fields
    ]
    for model in models
}))
"""


def test_models_have_the_columns_of_the_tables(dsn: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment(dsn), capture_output=True, text=True, check=True
    )
    columns: dict[str, list[list[Any]]] = {}
    for line in CHECKED_IN.read_text(encoding="utf-8").splitlines():
        if table := re.fullmatch(r"table (\w+)", line):
            columns[table[1]] = []
        elif column := re.fullmatch(
            r"    column (\w+) (.+?)( NOT NULL)?(?: DEFAULT .+| GENERATED .+)?", line
        ):
            field = TYPES.get(column[2], column[2])
            columns[list(columns)[-1]].append([column[1], field, column[3] is None])
    found = {
        table: [field for field in fields if field[0] is not None]
        for table, fields in json.loads(done.stdout).items()
    }
    assert set(found) == set(TABLES) - {"scheduler_migrations"}
    for table, fields in found.items():
        assert all(field in columns[table] for field in fields), table
    whole = ("scheduled_jobs", "scheduler_results", "scheduler_schedules", "scheduler_workers")
    assert {table: found[table] for table in whole} == {table: columns[table] for table in whole}
