"""The pytest plugin works in the project of a user, with any asyncio plugin."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import asyncpg
import pytest

from pg_scheduler import embedded
from tests.docs.snippets import ROOT

pytestmark = pytest.mark.slow

OWN_PLUGIN = ("-p", "no:pg_scheduler", "-p", "pg_scheduler_plugins.pytest")

USER_TESTS = """
import asyncio
import os
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

sent = []


async def welcome(to):
    sent.append(to)


def test_sync_test_has_a_migrated_database(scheduler_dsn):
    async def count():
        connection = await asyncpg.connect(scheduler_dsn)
        try:
            return await connection.fetchval("SELECT count(*) FROM scheduled_jobs")
        finally:
            await connection.close()

    assert asyncio.run(count()) == 0


@pytest.mark.parametrize("number", range(2))
async def test_each_test_has_a_database_of_its_own(test_scheduler, number):
    async with test_scheduler(now=datetime(2030, 1, 1, tzinfo=UTC), concurrency=2) as t:
        assert t.jobs() == []
        await t.scheduler.enqueue(welcome, args=("ada",), delay=timedelta(days=1))
        t.assert_scheduled(welcome, args=("ada",), after=timedelta(days=1))
        await t.run_until(timedelta(days=30))
        assert t.ran(welcome) == 1
    async with test_scheduler(now=t.now, vacuum_enabled=False) as later:
        assert later.now == datetime(2030, 1, 31, tzinfo=UTC)


async def test_crashes_have_databases_of_their_own(crash_everywhere, test_scheduler):
    report = await crash_everywhere(welcome, args=("bob",))
    assert (report.points, report.most(welcome), sent.count("bob")) == (4, 2, 7)
    async with test_scheduler() as t:
        assert t.jobs() == []


def test_clock_begins_at_the_present_and_stands_still(scheduler_clock):
    began = scheduler_clock.now
    assert abs(datetime.now(UTC) - began) < timedelta(minutes=1)
    scheduler_clock.advance(timedelta(days=1))
    assert scheduler_clock.override() == began + timedelta(days=1)


async def test_databases_are_on_the_server_of_the_session(scheduler_server, scheduler_dsn):
    assert scheduler_dsn == scheduler_server.dsn(scheduler_dsn.partition("?")[0].rpartition("/")[2])
    connection = await asyncpg.connect(scheduler_server.dsn("postgres"))
    assert await connection.fetchval("SELECT to_regclass('scheduled_jobs')") is None
    await connection.close()


async def test_fixture_can_be_requested_inside_of_an_event_loop(request):
    assert request.getfixturevalue("scheduler_dsn")
"""

INTERRUPTED_TEST = """
import asyncio
import os
import signal


async def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.Event().wait()


async def test_interruption(crash_everywhere):
    await crash_everywhere(interrupt)
"""


def run_pytest(folder: Path, *options: str, dsn: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PG_SCHEDULER_TEST_DSN": dsn, "PYTHONPATH": str(ROOT)}
    command = (sys.executable, "-m", "pytest", "-q", "-W", "error", *OWN_PLUGIN, *options)
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=50, check=False
    )


@pytest.mark.parametrize(
    ("configuration", "options"),
    [
        ("[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n", ()),
        ("[pytest]\nanyio_mode = auto\n", ("-p", "no:asyncio")),
    ],
    ids=["pytest-asyncio", "anyio"],
)
async def test_plugin_gives_each_test_a_database_and_a_scheduler(
    server: embedded.Server, tmp_path: Path, configuration: str, options: tuple[str, ...]
) -> None:
    tests = USER_TESTS
    if "anyio" in configuration:
        tests += "\n\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n"
    (tmp_path / "pytest.ini").write_text(configuration, encoding="utf-8")
    (tmp_path / "test_user.py").write_text(tests, encoding="utf-8")
    done = run_pytest(tmp_path, *options, dsn=server.dsn())
    assert "7 passed" in done.stdout, done.stdout + done.stderr
    assert await databases_of_plugin(server) == []


async def test_interruption_of_crash_everywhere_drops_its_databases(
    server: embedded.Server, tmp_path: Path
) -> None:
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n", encoding="utf-8"
    )
    (tmp_path / "test_user.py").write_text(INTERRUPTED_TEST, encoding="utf-8")
    done = run_pytest(tmp_path, dsn=server.dsn())
    assert done.returncode == pytest.ExitCode.INTERRUPTED, done.stdout + done.stderr
    assert await databases_of_plugin(server) == []


async def databases_of_plugin(server: embedded.Server) -> list[str]:
    connection = await asyncpg.connect(server.dsn())
    try:
        rows = await connection.fetch("SELECT datname FROM pg_database WHERE datname LIKE 'scheduler\\_%'")
    finally:
        await connection.close()
    return [row["datname"] for row in rows]


def test_plugin_starts_a_private_server_without_the_variable(tmp_path: Path) -> None:
    (tmp_path / "test_user.py").write_text(
        "def test_server_is_embedded(scheduler_dsn):\n    assert 'host=' in scheduler_dsn\n", encoding="utf-8"
    )
    done = run_pytest(tmp_path, "-p", "no:asyncio", dsn="")
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_plugin_imports_nothing_but_pytest_until_a_fixture_is_used() -> None:
    count = "before = {*sys.modules}; import pg_scheduler_plugins.pytest; print(len({*sys.modules} - before))"
    ran = subprocess.run(
        [sys.executable, "-c", f"import sys, pytest; {count}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == "2\n"  # its package and itself


def test_entry_point_names_the_plugin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (module,) = project["entry-points"]["pytest11"].values()
    fixtures = {"crash_everywhere", "scheduler_clock", "scheduler_dsn", "scheduler_server", "test_scheduler"}
    assert fixtures <= set(vars(import_module(module)))
