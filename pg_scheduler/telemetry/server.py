"""ASGI applications of a single function, and an HTTP server in a thread, with the standard library only.

The server has an event loop of its own. It shares the file descriptors of the process with the jobs and the
connections to the database, so it has a bounded number of connections. When all of them are in use, it ends
the connection whose client has kept it waiting longest. A probe or a scrape sends its request at once, so it
gets its answer even if slow clients hold connections.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any, Final, NamedTuple, Self, TypeAlias, cast

from pg_scheduler.base.foreign import call_in_daemon
from pg_scheduler.base.fork import inheritance

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


def request_of(head: str) -> Request:
    """Return the request of a first line and headers, which clients may have written in any way."""
    # The first line is such as "GET /livez?verbose HTTP/1.1".
    request_line, *lines = head.split("\r\n")
    method, _, remainder = request_line.partition(" ")
    target = remainder.partition(" ")[0]
    path, _, query = target.partition("?")
    headers = [line.partition(":") for line in lines]
    accept = ",".join(value.strip() for name, _, value in headers if name.lower() == "accept")
    return Request(method, path, query, accept)


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
        """Handle one connection of ASGI, as a server calls it."""
        # The server announces its start and its end, and waits for the answers.
        if scope["type"] == "lifespan":
            for phase in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{phase}.complete"})
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close"})
        else:
            # A header may occur several times, which means the same as one with commas.
            accept = b",".join(value for name, value in scope["headers"] if name == b"accept")
            query = scope.get("query_string", b"").decode("latin-1")
            request = Request(scope["method"], _path_of(scope), query, accept.decode("latin-1"))
            response = await answer(request)
            await send(
                {"type": "http.response.start", "status": response.status, "headers": response.headers}
            )
            body = b"" if scope["method"] == "HEAD" else response.body
            await send({"type": "http.response.body", "body": body})

    return app


def _path_of(scope: Message) -> str:
    """Return the path within the application, which may be mounted below another path, the ``root_path``.

    It depends on the server and the host application whether ``path`` contains the ``root_path``.
    """
    path = str(scope["path"])
    root = str(scope.get("root_path", "")).rstrip("/")
    contains_root = path == root or path.startswith(f"{root}/")
    return path[len(root) :] if contains_root else path


MAX_CONNECTIONS: Final = 32
"""The maximum number of open connections."""

CLIENT_TIMEOUT_S: Final = 5.0
"""Seconds in which a client must have sent its request, and in which it must have read the answer."""

MIN_CLIENT_TIME_S: Final = 0.1
"""Seconds that each client has at least, even while all connections are in use."""

MAX_REQUEST_BYTES: Final = 16_384
"""Bytes of the first line and the headers of a request."""

ACCEPT_DELAY_S: Final = 1.0
"""Seconds to wait after a connection could not be accepted."""


MAX_PORT: Final = 65_535


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens in this process, not in forked children.

    Raises:
        OSError: The address cannot be used.
        TypeError: ``host`` or ``port`` has the wrong type.
        ValueError: There is no such port.
    """
    if not isinstance(host, str):
        raise TypeError(
            f'host must be a str, not {type(host).__name__}; pass an address such as "127.0.0.1", or '
            '"0.0.0.0" for every interface'
        )
    if isinstance(port, bool) or not isinstance(port, int):
        raise TypeError(f"port must be an int, not {type(port).__name__}: {port!r}; pass 0 for a free one")
    if not 0 <= port <= MAX_PORT:
        raise ValueError(f"port must be between 0 and {MAX_PORT:,}, not {port:,}; pass 0 for a free one")
    # Only addresses of IPv6 have a colon.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family)
    inheritance.close_in_children(listening)
    return listening


class ThreadServer:
    """A server that answers each request by a function, within a ``with`` block."""

    def __init__(self, answer: Callable[[Request], Answer], listening: socket.socket, name: str) -> None:
        self._answer = answer
        self._socket = listening
        self._name = name
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()
        self._waiting: dict[asyncio.Task[Any], float] = {}
        """The tasks that wait for their clients, and since when. The one that waits longest is the first."""
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)

    @property
    def port(self) -> int:
        """The port on which it listens."""
        port: int = self._socket.getsockname()[1]
        return port

    def __enter__(self) -> Self:
        """Start the thread that accepts connections."""
        self._socket.setblocking(False)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the thread, and wait for its end."""
        with suppress(RuntimeError):  # its event loop has ended
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def _main(self) -> None:
        """Run the event loop of the thread until the server is stopped."""
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        """Accept connections until the server is stopped."""
        accepting = asyncio.create_task(self._accept())
        await self._stopping.wait()
        accepting.cancel()  # the Runner ends open connections: the caller does not wait for slow clients

    async def _accept(self) -> None:
        """Accept connections, and answer each in a task, until this task is cancelled."""
        while True:
            try:
                client, _ = await self._loop.sock_accept(self._socket)
            except OSError:  # the client has gone, or the process has no file descriptor left
                await asyncio.sleep(ACCEPT_DELAY_S)
                continue
            inheritance.close_in_children(client)
            task = asyncio.create_task(self._handle(client))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
            await self._make_room()

    async def _make_room(self) -> None:
        """Wait until there is room for another connection.

        A connection is ended only while it waits for its client, not while its request is answered.
        """
        while len(self._connections) >= MAX_CONNECTIONS:
            # Look once more after this time, or as soon as a connection has ended.
            delay_s = MIN_CLIENT_TIME_S
            if self._waiting:
                longest_waiting, since = next(iter(self._waiting.items()))
                # What is left of the time that each client has at least.
                delay_s += since - self._loop.time()
                if delay_s <= 0:
                    longest_waiting.cancel()
            await asyncio.wait(
                self._connections, timeout=max(delay_s, 0), return_when=asyncio.FIRST_COMPLETED
            )

    async def _handle(self, client: socket.socket) -> None:
        """Answer one request and close the connection."""
        reader, writer = await asyncio.open_connection(sock=client, limit=MAX_REQUEST_BYTES)
        writer.transport.set_write_buffer_limits(0)  # drain() waits until all is sent
        try:
            # A client that leaves, is too slow or sends too much gets no response.
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                async with self._client():
                    head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._respond(head.decode("latin-1")))
                async with self._client():
                    await writer.drain()
        finally:
            # Nothing is left to send, or the client has not read it in time.
            writer.transport.abort()

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[None]:
        """Surround a wait for the client, which ends if the client takes too long.

        `_make_room()` may cancel the task meanwhile, because a new client needs the connection.
        """
        # Each connection has a task of its own, so there is a current task.
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._waiting[task] = self._loop.time()
        try:
            async with asyncio.timeout(CLIENT_TIMEOUT_S):
                yield
        finally:
            del self._waiting[task]

    async def _respond(self, head: str) -> bytes:
        """Return the response, as bytes, to a request whose first line and headers are ``head``."""
        request = request_of(head)
        answer = await self._call(request)
        fields = [*answer.headers, (b"connection", b"close")]
        status_line = f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}\r\n".encode()
        header_lines = b"".join(b"%s: %s\r\n" % field for field in fields)
        body = b"" if request.method == "HEAD" else answer.body
        return status_line + header_lines + b"\r\n" + body

    async def _call(self, request: Request) -> Answer:
        """Call the function in a thread. If it raises an error, log the error and return status 500."""
        future = call_in_daemon(lambda: self._answer(request), self._name)
        answer, error = await asyncio.wrap_future(future)
        if answer is not None:
            return answer
        # The event loop logs the error.
        text = "the answer could not be made; the log has the reason"
        self._loop.call_exception_handler({"message": text, "exception": error})
        return text_answer(500, f"{text}\n")
