"""Worker statements and jit, with pools of any size: the server explains each statement that it runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from pg_scheduler import PollingConfig, Scheduler, embedded, periodic
from pg_scheduler.database.queries import names_by_text
from pg_scheduler.embedded.binaries import SYSTEM_FOLDER
from pg_scheduler.events import JobCompleted, PassFinished
from tests.cluster.bouncer import bouncer, find_program
from tests.conftest import FAST, database, migrate_on, run_on
from tests.support.stories import LONG
from tests.support.worker import Recorder, now

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.* is being released to the pool but has 1 active log listener"),
]

JIT_ABOVE_COST = 100_000
"""The default of the server's setting."""

MOST = JIT_ABOVE_COST / 10
"""A statement without ``jit = off`` must stay far below the setting."""

JOBS = 50
POLLING = PollingConfig(min_interval=0.02, idle_start_interval=0.02, max_interval=0.05)
NAMES = names_by_text("public")
IDLE = {"exchange_jobs", "next_fire", "read_schedules", "renew_lease", "scan_deadlines"}
SETTINGS = {
    "session_preload_libraries": "'auto_explain'",
    "auto_explain.log_min_duration": "0",
    "auto_explain.log_settings": "on",
    "auto_explain.log_format": "'json'",
    "auto_explain.log_level": "'notice'",
    "jit": "on",
}


@dataclass(frozen=True)
class Explained:
    """A statement as the server ran it."""

    name: str
    cost: float
    jit: str
    is_compiled: bool


class Plans(list[Explained]):
    """The plans that the server sends as notices."""

    def __init__(self, default: str) -> None:
        super().__init__()
        self._default = default

    async def listen(self, connection: Any) -> None:
        """Record the plans of a connection; the ``setup`` of a pool, which forgets it at each release."""
        connection.add_log_listener(self._receive)

    def _receive(self, _connection: object, message: asyncpg.PostgresLogMessage) -> None:
        _, mark, text = str(message.message).partition("plan:\n")
        if mark:
            plan = json.loads(text)
            jit = plan.get("Settings", {}).get("jit", self._default)
            text = plan["Query Text"]
            self.append(Explained(NAMES.get(text, text), plan["Plan"]["Total Cost"], jit, "JIT" in plan))


@pytest.fixture(scope="module")
def server(scratch: Path | None) -> Iterator[embedded.Server]:
    """The system's server if it can explain statements, which that of a wheel cannot; else the usual one."""
    found = sorted(SYSTEM_FOLDER.glob("*/lib/auto_explain.so"))
    if found and embedded.server_dsn() is None:
        binaries = found[-1].parents[1] / "bin"
        with embedded.EmbeddedPostgres(binaries=binaries, settings=FAST, scratch=scratch) as running:
            yield running
    else:
        with embedded.server(settings=FAST, scratch=scratch) as running:
            yield running


@pytest.fixture
def dsn(server: embedded.Server) -> Iterator[str]:
    """The DSN of a migrated database on that server."""
    with database(partial(run_on, server.dsn())) as name:
        run_on(server.dsn(name), migrate_on)
        yield server.dsn(name)


@pytest.fixture(params=["analyzed", "never analyzed"])
async def plans(dsn: str, request: pytest.FixtureRequest) -> Plans:
    """A table with future rows, in a database whose server explains every statement."""
    connection = await asyncpg.connect(dsn)
    try:
        return await prepare(connection, analyze=request.param == "analyzed")
    except asyncpg.UndefinedFileError:
        pytest.skip("the server has no auto_explain")
    finally:
        await connection.close()


async def prepare(connection: asyncpg.Connection, *, analyze: bool) -> Plans:
    await connection.execute("LOAD 'auto_explain'")
    await connection.execute("ALTER TABLE scheduled_jobs SET (autovacuum_enabled = off)")
    await connection.execute(
        "INSERT INTO scheduled_jobs (job_id, job_name, execution_time, status)"
        " SELECT n, 'elsewhere', now() + interval '1 day', 'pending' FROM generate_series(1, 50000) AS n"
    )
    if analyze:
        await connection.execute("ANALYZE")
    database = await connection.fetchval("SELECT quote_ident(current_database())")
    for name, value in SETTINGS.items():
        await connection.execute(f"ALTER DATABASE {database} SET {name} = {value}")
    return Plans(await connection.fetchval("SELECT boot_val FROM pg_settings WHERE name = 'jit'"))


async def note() -> None: ...


async def often() -> None: ...


async def work_and_idle(pool: asyncpg.Pool, plans: Plans) -> None:
    """Drain plain jobs, then poll, send heartbeats and read schedules without any; check every plan."""
    periodic(every=timedelta(days=1), dedup_key="often")(often)
    scheduler = Scheduler(pool, polling_config=POLLING, lease=timedelta(seconds=1))
    scheduler.register(note)
    seen = Recorder(scheduler)
    async with scheduler:
        for _ in range(JOBS):
            await scheduler.schedule(note, execution_time=now())
        await seen.until(JobCompleted, JOBS)
        for service in ("claimer", "heartbeat", "deadline_scanner"):
            passes = len(seen.of(PassFinished, service=service))
            await seen.until(PassFinished, passes + 1, service=service)


def check(plans: Plans) -> None:
    """Every plan is cheap or made with ``jit = off``."""
    assert {plan.name for plan in plans} >= IDLE
    assert not [plan for plan in plans if plan.is_compiled]
    assert not [plan for plan in plans if plan.jit == "on" and plan.cost > MOST]


@pytest.mark.parametrize("size", [1, 2, 4, 10] if LONG else [1, 10])
async def test_worker_statements_run_without_jit_on_a_pool_of_any_size(
    dsn: str, plans: Plans, size: int
) -> None:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=size, setup=plans.listen) as pool:
        await work_and_idle(pool, plans)
    check(plans)


async def test_worker_statements_run_without_jit_behind_pgbouncer(dsn: str, plans: Plans) -> None:
    program = find_program("trixie")
    if program is None:
        pytest.skip("PgBouncer is missing; dev.py test fetches it if apt can read Debian's archive")
    with bouncer(program, dsn) as through:
        async with asyncpg.create_pool(
            through, min_size=1, max_size=6, setup=plans.listen, statement_cache_size=0
        ) as pool:
            await work_and_idle(pool, plans)
    check(plans)
