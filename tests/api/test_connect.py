"""A Scheduler with a pool of its own."""

from __future__ import annotations

import os
from typing import Any

import asyncpg
import pytest

from pg_scheduler import ConfigurationError, ConnectionRejectedError, Scheduler
from pg_scheduler.events import JobCompleted
from tests.api.conftest import SLOW_POLLING
from tests.support.worker import Recorder


async def work() -> None: ...


@pytest.mark.parametrize("scheme", ["postgresql://", "postgres://", "postgresql+asyncpg://"])
async def test_connect_starts_and_closes_its_pool(empty_dsn: str, scheme: str) -> None:
    url = empty_dsn.replace("postgresql://", scheme)
    async with Scheduler.connect(url, pool_size=4, identity="here") as scheduler:
        assert scheduler.db_pool.get_max_size() == 4
        seen = Recorder(scheduler)
        await scheduler.enqueue(work)
        await seen.until(JobCompleted)
    assert not scheduler.is_running
    assert scheduler.db_pool.is_closing()


async def test_connecting_made_once_opens_a_scheduler_for_each_block(dsn: str) -> None:
    connecting = Scheduler.connect(dsn)
    pools = []
    for _ in range(2):
        async with connecting as scheduler:
            pools.append(scheduler.db_pool)
            assert scheduler.is_running
            with pytest.raises(
                RuntimeError, match=r"open already; write another async with Scheduler\.connect"
            ):
                await connecting.__aenter__()
        assert scheduler.db_pool.is_closing()
    assert pools[0] is not pools[1]
    with pytest.raises(RuntimeError, match="no block of this object is open"):
        await connecting.__aexit__(None, None, None)
    failing = Scheduler.connect(dsn, pool_size=0)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="pool_size"):
            await failing.__aenter__()


async def test_connect_without_start_is_a_client_that_sends_its_notifications(
    dsn: str, pool: asyncpg.Pool
) -> None:
    async with Scheduler(pool, polling_config=SLOW_POLLING) as worker:
        seen = Recorder(worker)
        worker.register(work, name="test.work")
        async with Scheduler.connect(dsn, start=False) as client:
            job_id = await client.enqueue("test.work")
            assert not client.is_running
        await seen.until(JobCompleted, job_id=job_id)


async def test_connect_rejects_an_invalid_url_or_role_without_showing_the_password(dsn: str) -> None:
    for url, error in (
        ("mysql://app:secret@db/shop", ConfigurationError),
        (f"{dsn.replace('postgresql://', 'postgresql://nobody:secret')}", ConnectionRejectedError),
    ):
        with pytest.raises(error) as raised:
            async with Scheduler.connect(url):
                pass
        assert "secret" not in str(raised.value)
    with pytest.raises(TypeError, match=r"url must be a str such as postgresql://.*, not NoneType"):
        async with Scheduler.connect(os.environ.get("NOT_SET")):  # type: ignore[arg-type]
            pass
    with pytest.raises(ConfigurationError, match="pool_size"):
        async with Scheduler.connect(dsn, pool_size=0):
            pass
    with pytest.raises(TypeError, match="start must be a bool, not str: 'no'"):
        async with Scheduler.connect(dsn, start="no"):  # type: ignore[arg-type]
            pass


async def test_connect_outside_of_an_async_with_block_names_the_remedy(dsn: str) -> None:
    opening: Any = Scheduler.connect(dsn)
    with pytest.raises(AttributeError, match=r"write async with Scheduler\.connect\(url\) as scheduler:"):
        await opening.enqueue(work)
    with pytest.raises(TypeError, match="AsyncWithOnly"):
        await opening
    async with opening as scheduler:
        assert isinstance(scheduler, Scheduler)
