"""A dashboard behind a real HTTP server, beside a worker that runs jobs."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.requests import Request

from pg_scheduler import Scheduler
from pg_scheduler.dashboard import Access, dashboard
from tests.dashboard.hosts import HOSTS
from tests.support.patience import PATIENCE


class QuietServer(uvicorn.Server):
    """A server that leaves the signals of pytest alone."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Site:
    """The dashboard of a Scheduler, mounted in an application.

    Args:
        scheduler: The Scheduler.
        path: The path of the mount; empty or ``"/"`` for the root.
        framework: The web framework of the application.
        options: Options of ``dashboard()``.

    Attributes:
        access: The rights of every viewer from now on.
        streams: The number of open streams.
    """

    def __init__(
        self, scheduler: Scheduler, path: str = "", framework: str = "starlette", **options: Any
    ) -> None:
        self.scheduler = scheduler
        self.access = Access("ada", "admin")
        self.streams = 0
        self._path = path.rstrip("/")
        self._app = HOSTS[framework](
            path or "/", dashboard(scheduler, authorize=self._authorize, refresh=0.5, **options)
        )
        self._port = 0
        self._server: QuietServer | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """The address of the overview, without the slash at its end."""
        return f"http://127.0.0.1:{self._port}{self._path}"

    async def start(self) -> None:
        """Serve, at the same address as before."""
        listening = socket.create_server(("127.0.0.1", self._port))
        self._port = listening.getsockname()[1]
        config = uvicorn.Config(
            self._count,
            interface="asgi3",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=0,
        )
        self._server = QuietServer(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[listening]))

    async def stop(self) -> None:
        """End the server with all of its connections."""
        assert self._server is not None
        assert self._task is not None
        self._server.should_exit = True
        await self._task

    def _authorize(self, _request: Request) -> Access:
        return self.access

    async def _count(self, scope: Any, receive: Any, send: Any) -> None:
        is_stream = scope.get("path", "").endswith("/live")
        self.streams += is_stream
        try:
            await self._app(scope, receive, send)
        finally:
            self.streams -= is_stream


async def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - browser and server report no event
            await asyncio.sleep(0.01)
