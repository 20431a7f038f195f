"""Open responses of the library do not hold back the end of a web server's process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import asyncpg
import pytest
from aiohttp import ClientSession

from pg_scheduler import Scheduler
from pg_scheduler.base.web_server import is_stopping, sleep_until_stop
from tests.docs.snippets import ROOT
from tests.support.patience import PATIENCE

Pool = asyncpg.Pool

APP = """
import os
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.routing import Mount

from pg_scheduler import Scheduler
from pg_scheduler.dashboard import Access, dashboard, export, live
from pg_scheduler.integrations.starlette import stream_route

live.MAX_SECONDS = float("inf")  # only the stop of the server ends the stream
export.PAGE_LENGTH = 1
schedulers = []


@asynccontextmanager
async def lifespan(app):
    async with Scheduler.connect(os.environ["DATABASE_URL"]) as scheduler:
        schedulers[:] = [scheduler]
        yield {"scheduler": scheduler}


async def everyone(*_):
    return True


def authorize(request):
    return Access("ada")


app = Starlette(
    lifespan=lifespan,
    routes=[
        Mount("/dashboard", dashboard(lambda: schedulers[0], authorize=authorize)),
        stream_route(access=everyone),
    ],
)
"""


class Server:
    """Handles signals as the server of uvicorn does."""

    should_exit = False

    def handle_exit(self, _number: int, _frame: FrameType | None) -> None:
        self.should_exit = True


@pytest.fixture
def web_server() -> Iterator[Server]:
    server = Server()
    previous = signal.signal(signal.SIGTERM, server.handle_exit)
    yield server
    signal.signal(signal.SIGTERM, previous)


async def test_stop_is_seen_by_the_handler_of_the_server(web_server: Server) -> None:
    assert not is_stopping()
    signal.raise_signal(signal.SIGTERM)
    assert is_stopping()
    async with asyncio.timeout(PATIENCE):
        await sleep_until_stop(1e9)


@pytest.mark.parametrize("handler", [signal.SIG_DFL, signal.SIG_IGN, lambda *_: None])
async def test_other_handlers_show_no_stop(web_server: Server, handler: Any) -> None:
    web_server.should_exit = True
    signal.signal(signal.SIGTERM, handler)
    assert not is_stopping()
    await sleep_until_stop(0.01)


@pytest.mark.slow
async def test_open_streams_end_when_uvicorn_stops(dsn: str, pool: Pool, tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    await Scheduler(pool).initialize_db()
    job_id = await Scheduler(pool).enqueue("elsewhere.work")
    (tmp_path / "shop.py").write_text(APP, encoding="utf-8")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "uvicorn", "--port", str(port), "shop:app"),
        cwd=tmp_path,
        env=os.environ | {"DATABASE_URL": dsn, "PYTHONPATH": str(ROOT)},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(2 * PATIENCE), ClientSession(f"http://127.0.0.1:{port}") as client:
            assert process.stderr
            while b"unning on http" not in await process.stderr.readline():
                pass
            live = await client.get("/dashboard/live?page=/workers")
            assert await live.content.readline() == b"retry: 1000\n"
            items = await client.get(f"/jobs/{job_id}/streams/words")
            assert await items.content.readline() == b": open\n"
            process.send_signal(signal.SIGTERM)
            remainder = await items.content.read()
            # Without an event "end", the browser connects again.
            assert b"event" not in remainder
            await live.content.read()
            assert await process.wait() in (0, -signal.SIGTERM)
        assert await pool.fetchval("SELECT count(*) FROM scheduler_workers") == 0, "the lifespan has ended"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
