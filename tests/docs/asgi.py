"""A driver for ASGI applications: the snippets that use FastAPI run under FastAPI itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager, suppress
from typing import Any

__all__ = ["get", "lifespan", "post", "request", "websocket"]

Message = MutableMapping[str, Any]
App = Callable[..., Awaitable[None]]


@asynccontextmanager
async def lifespan(app: App) -> AsyncIterator[Message]:
    """Start the application up and shut it down at the end; yield its lifespan state."""
    to_app: asyncio.Queue[Message] = asyncio.Queue()
    from_app: asyncio.Queue[Message] = asyncio.Queue()
    state: Message = {}
    scope: Message = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": state}
    running = asyncio.create_task(_until_done(app, scope, to_app, from_app))
    for kind in ("startup", "shutdown"):
        to_app.put_nowait({"type": f"lifespan.{kind}"})
        answer = await from_app.get()
        assert answer["type"] == f"lifespan.{kind}.complete", answer
        if kind == "startup":
            yield state
    await running


async def _until_done(
    app: App, scope: Message, to_app: asyncio.Queue[Message], from_app: asyncio.Queue[Message]
) -> None:
    await app(scope, to_app.get, from_app.put)


async def post(app: App, url: str, *, state: Message | None = None) -> Any:
    """Return the JSON that the application answers a POST with; fail on any status but 200."""
    return await _successful(app, "POST", url, state)


async def get(app: App, url: str, *, state: Message | None = None) -> Any:
    """Return the JSON that the application answers a GET with; fail on any status but 200."""
    return await _successful(app, "GET", url, state)


async def _successful(app: App, method: str, url: str, state: Message | None) -> Any:
    status, body = await request(app, method, url, state=state)
    assert status == 200, (status, body)
    return body


async def request(
    app: App, method: str, url: str, content: Any = None, *, state: Message | None = None
) -> tuple[int, Any]:
    """Send a request with JSON content; return the status and the JSON of the answer."""
    path, _, query = url.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": [(b"host", b"test"), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
        "server": ("test", 80),
        "state": dict(state or {}),
    }
    content = b"" if content is None else json.dumps(content).encode()
    requests: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]
    answers: list[Message] = []

    async def receive() -> Message:
        return requests.pop() if requests else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        answers.append(message)

    await app(scope, receive, send)
    return answers[0]["status"], json.loads(b"".join(each.get("body", b"") for each in answers))


@asynccontextmanager
async def websocket(
    app: App, path: str, *, state: Message | None = None
) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    """Open a websocket; yield a function that returns the JSON of the next message."""
    from_app: asyncio.Queue[Message] = asyncio.Queue()
    to_app: asyncio.Queue[Message] = asyncio.Queue()
    to_app.put_nowait({"type": "websocket.connect"})
    scope: Message = {
        "type": "websocket",
        "asgi": {"version": "3.0"},
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"host", b"test")],
        "subprotocols": [],
        "state": dict(state or {}),
    }
    running = asyncio.create_task(_until_done(app, scope, to_app, from_app))
    assert (await from_app.get())["type"] == "websocket.accept"

    async def receive() -> Any:
        return json.loads((await from_app.get())["text"])

    try:
        yield receive
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
