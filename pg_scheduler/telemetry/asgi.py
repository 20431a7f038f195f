"""An ASGI application of a single function, with the standard library only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NamedTuple, TypeAlias

Message: TypeAlias = MutableMapping[str, Any]
App: TypeAlias = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]


class Request(NamedTuple):
    """The parts of a request that these applications read. The path is that within the application."""

    method: str
    path: str
    query: str
    accept: str


class Answer(NamedTuple):
    """The status, media type and body of an answer that nothing may store."""

    status: int
    kind: str
    body: bytes

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The headers of the answer."""
        return [
            (b"content-type", self.kind.encode()),
            (b"content-length", b"%d" % len(self.body)),
            (b"cache-control", b"no-store"),
            (b"x-content-type-options", b"nosniff"),
        ]


def text_answer(status: int, text: str) -> Answer:
    """Return an answer of plain text."""
    return Answer(status, "text/plain; charset=utf-8", text.encode())


def answering(answer: Callable[[Request], Awaitable[Answer]]) -> App:
    """Return an application that answers each request by this function, and accepts no websocket."""

    async def app(
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        if scope["type"] == "lifespan":
            for phase in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{phase}.complete"})
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close"})
        else:
            accept = b",".join(value for name, value in scope["headers"] if name == b"accept")
            query = scope.get("query_string", b"").decode("latin-1")
            request = Request(scope["method"], _path_of(scope), query, accept.decode("latin-1"))
            found = await answer(request)
            await send({"type": "http.response.start", "status": found.status, "headers": found.headers})
            body = b"" if scope["method"] == "HEAD" else found.body
            await send({"type": "http.response.body", "body": body})

    return app


def _path_of(scope: Message) -> str:
    """Return the path within the application. ``path`` contains the ``root_path`` or not."""
    path, root = str(scope["path"]), str(scope.get("root_path", "")).rstrip("/")
    return path[len(root) :] if path == root or path.startswith(f"{root}/") else path
