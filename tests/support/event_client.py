"""A client of server-sent events, for ASGI applications."""

from __future__ import annotations

import asyncio
from typing import Any

from pg_scheduler import Scheduler
from tests.support.patience import PATIENCE


class Client:
    """A client of one GET request, which reads the response part by part."""

    def __init__(self, app: Any, url: str, scheduler: Scheduler, **headers: str) -> None:
        path, _, query = url.partition("?")
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 1),
            "server": ("test", 80),
            "state": {"scheduler": scheduler},
        }
        self._app = app
        self._parts: asyncio.Queue[Any] = asyncio.Queue()
        self._gone = asyncio.Event()
        self.status = 0
        self.headers: dict[str, str] = {}

    async def _receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        elif message.get("body"):
            self._parts.put_nowait(message["body"].decode())

    async def part(self) -> str:
        async with asyncio.timeout(PATIENCE):
            part: str = await self._parts.get()
        return part

    async def rest(self) -> list[str]:
        """Wait for the end of the response; return the parts that were not read."""
        async with asyncio.timeout(PATIENCE):
            await self.task
        return [self._parts.get_nowait() for _ in range(self._parts.qsize())]

    def leave(self) -> None:
        self._gone.set()

    async def __aenter__(self) -> Client:
        self.task = asyncio.create_task(self._app(self._scope, self._receive, self._send))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.leave()
        async with asyncio.timeout(PATIENCE):
            await self.task
