"""Codecs and reset callables of the user's pool that change or break the Scheduler's statements."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import asyncpg
import pytest

from pg_scheduler import ConfigurationError, Scheduler
from pg_scheduler.events import JobCompleted, ServiceFaulted
from tests.api.conftest import NEEDS_RESET
from tests.support.worker import Recorder, now


async def note() -> None: ...


async def discard(connection: asyncpg.Connection) -> None:
    await connection.execute("DISCARD ALL")


def reject(value: object) -> str:
    raise ValueError(value)


@pytest.mark.parametrize(
    ("kind", "encoder", "decoder"),
    [
        ("timestamptz", str, str),
        ("float8", str, Decimal),
        ("int8", str, str),
        ("int4", str, float),
        ("interval", str, str),
        ("date", str, str),
        ("text", reject, str),
    ],
)
async def test_start_raises_when_a_codec_of_the_pool_changes_values(
    dsn: str, kind: str, encoder: Callable[[Any], str], decoder: Callable[[str], Any]
) -> None:
    async def init(connection: asyncpg.Connection) -> None:
        await connection.set_type_codec(
            kind, schema="pg_catalog", format="text", encoder=encoder, decoder=decoder
        )

    async with asyncpg.create_pool(dsn, min_size=1, max_size=5, init=init) as pool:
        scheduler = Scheduler(pool)
        with pytest.raises(ConfigurationError, match=rf"a codec for {kind} .*set_type_codec\('{kind}'\)"):
            await scheduler.start()
        assert not scheduler.is_running


@NEEDS_RESET
@pytest.mark.parametrize("size", [2, 5])
async def test_start_raises_when_the_reset_of_the_pool_drops_prepared_statements(dsn: str, size: int) -> None:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=size, reset=discard) as pool:
        with pytest.raises(ConfigurationError, match=r"26000.*reset= .*DISCARD ALL.*statement_cache_size=0"):
            await Scheduler(pool).start()


@NEEDS_RESET
@pytest.mark.parametrize("size", [2, 5])
async def test_jobs_run_when_the_reset_of_the_pool_discards_all_and_no_statement_is_cached(
    dsn: str, size: int
) -> None:
    pool = asyncpg.create_pool(dsn, min_size=1, max_size=size, reset=discard, statement_cache_size=0)
    async with pool, Scheduler(pool, shutdown_timeout=1) as scheduler:
        seen = Recorder(scheduler)
        await seen.until(JobCompleted, job_id=await scheduler.schedule(note, execution_time=now()))
        assert not seen.of(ServiceFaulted)
