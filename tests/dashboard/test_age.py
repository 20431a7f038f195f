"""Pages state when they were read, how old their oldest part is, and how far a standby is behind."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.dashboard import dashboard
from pg_scheduler.dashboard.cache import Cache
from tests.cluster.outages import primary_and_standby
from tests.conftest import FAST
from tests.dashboard.client import JSON, App, Page, request, stream
from tests.dashboard.conftest import read_all
from tests.dashboard.test_live import parts_of
from tests.support import inside
from tests.support.patience import PATIENCE


def read_of(html: str) -> str:
    """Return what a page states about when it was read, beside its heading or at its end."""
    (found,) = re.findall(r'<span id="read"[^>]*>(.*?)</span>', html, re.DOTALL)
    return " ".join(Page(found).text.split())


async def test_page_states_the_age_of_its_oldest_part(
    build: Callable[..., App], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    inside.replace(monkeypatch, dashboard_cache=lambda: Cache(lambda: now))
    app = build()
    assert "older" not in read_of((await request(app, "/")).text)
    now = 7.0
    assert "updated just now, some parts are up to 7 s older" in read_of((await request(app, "/")).text)
    read = json.loads((await request(app, "/", headers=JSON)).body)["read"]
    assert (read["oldest_s"], read["standby_lag_s"]) == (7.0, None)
    for path in ("/audit", "/schedules", "/schedules"):
        assert "older" not in read_of((await request(app, path)).text), path
    await request(app, "/doctor")
    now = 47.0
    assert "up to 40 s older" in read_of((await request(app, "/doctor")).text)
    now = 68.0
    assert "older" not in read_of((await request(app, "/doctor")).text)


async def test_stream_sends_when_its_parts_were_read(app: App) -> None:
    async with asyncio.timeout(PATIENCE), stream(app, "/live?page=/workers") as read:
        await read()
        parts = parts_of(await read())
    assert re.search(r"read\s+<time datetime", parts["read"])


async def test_read_pool_on_the_primary_is_no_standby(build: Callable[..., App], pool: asyncpg.Pool) -> None:
    assert "standby" not in read_of((await request(build(read_pool=pool), "/jobs")).text)


@pytest.mark.slow
async def test_page_states_how_far_a_standby_is_behind(scratch: Path | None) -> None:
    with primary_and_standby(FAST, scratch) as (primary, standby):
        async with (
            asyncpg.create_pool(primary.dsn(), min_size=1, max_size=4) as pool,
            asyncpg.create_pool(standby.dsn(), min_size=1, max_size=4) as copy,
        ):
            scheduler = Scheduler(pool)
            await scheduler.initialize_db()
            written = await pool.fetchval("SELECT pg_current_wal_lsn()")
            await replayed(copy, written)
            app = dashboard(scheduler, authorize=read_all, read_pool=copy)
            for path in ("/", "/jobs", "/doctor"):
                answer = await request(app, path)
                assert answer.status == 200, answer.text
                assert re.search(r"(UTC|just now).*, from a standby, .* behind", read_of(answer.text)), path
            read = json.loads((await request(app, "/jobs", headers=JSON)).body)["read"]
            assert 0 <= read["standby_lag_s"] < PATIENCE


async def replayed(pool: asyncpg.Pool, position: Any) -> None:
    """Wait until a standby has replayed what the primary wrote."""
    async with asyncio.timeout(PATIENCE):
        while not await pool.fetchval(  # noqa: ASYNC110 - the server reports no event
            "SELECT pg_last_wal_replay_lsn() >= $1::pg_lsn", position
        ):
            await asyncio.sleep(0.05)
