"""A setting whose DSN leads to another database, where locks and notifications reach no worker."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from pg_scheduler import ConfigurationError, Scheduler, embedded
from pg_scheduler.events import Event, JobCompleted, KeeperConnected, ListenerConnected
from pg_scheduler.inspect import Inspector
from tests.api.conftest import Make
from tests.conftest import FAST, run_on
from tests.support.inside import address_parts
from tests.support.worker import PATIENCE, Recorder
from tools.chaos.proxy import Proxy

SETTINGS = ("direct_dsn", "keeper_dsn")

pytestmark = pytest.mark.timeout(240)


async def work() -> None: ...


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("method", ["start", "initialize_db"])
async def test_setting_that_leads_to_another_database_is_refused_at_the_start(
    setting: str,
    method: str,
    make: Make,
    dsn: str,
    other_dsn: str,
) -> None:
    scheduler = make(**{setting: other_dsn})
    names = [address_parts(address)["database"] for address in (other_dsn, dsn)]
    with pytest.raises(
        ConfigurationError, match="{} leads to .*'{}'.* and the pool to .*'{}'".format(setting, *names)
    ):
        await getattr(scheduler, method)()


async def test_tables_are_not_created_in_either_database(
    empty_dsn: str,
    other_dsn: str,
) -> None:
    async with asyncpg.create_pool(empty_dsn, min_size=1, max_size=5) as pool:
        with pytest.raises(ConfigurationError, match="direct_dsn leads to"):
            await Scheduler(pool, direct_dsn=other_dsn).initialize_db()
        assert await pool.fetchval("SELECT to_regclass('scheduled_jobs')") is None


async def test_doctor_names_a_setting_that_leads_to_another_database(
    pool: asyncpg.Pool,
    other_dsn: str,
) -> None:
    with pytest.raises(ConfigurationError, match="direct_dsn leads to"):
        await Inspector(Scheduler(pool, direct_dsn=other_dsn)).doctor()


@pytest.mark.parametrize("setting", SETTINGS)
async def test_server_that_takes_the_place_of_another_one_is_left_alone(
    setting: str, make: Make, dsn: str, proxied: tuple[Proxy, str], scratch: Path | None
) -> None:
    """The worker keeps its jobs without the lock and notifications, and has both again afterwards."""
    proxy, address = proxied
    connected: Any = ListenerConnected if setting == "direct_dsn" else KeeperConnected
    scheduler = make(**{setting: address})
    scheduler.register(work, name="app.work")
    seen = Recorder(scheduler)
    is_named = asyncio.Event()

    def look_for_the_reason(event: Event) -> None:
        if f"{setting} leads to" in str(event):
            is_named.set()

    scheduler.subscribe(look_for_the_reason)
    await scheduler.start()
    await seen.until(KeeperConnected, has_lock=True)
    await seen.until(ListenerConnected)
    own_path = proxy.path

    async def create(connection: Any) -> None:
        await connection.execute(f'CREATE DATABASE "{address_parts(dsn)["database"]}"')

    with embedded.EmbeddedPostgres(settings=FAST, scratch=scratch) as second:
        await asyncio.to_thread(run_on, second.dsn(), create)
        proxy.path = f"{address_parts(second.dsn())['host']}/.s.PGSQL.5432"
        proxy.reset()
        async with asyncio.timeout(PATIENCE):
            await is_named.wait()
        await seen.until(JobCompleted, job_id=await scheduler.enqueue("app.work"))
        count = len(seen.of(connected))
        proxy.path = own_path
        await seen.until(connected, count + 1)
    assert scheduler.is_running
