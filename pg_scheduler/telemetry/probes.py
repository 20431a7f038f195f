"""Answer the probes of a supervisor: ``/livez``, ``/readyz`` and ``/startupz``.

``health_app()`` is an ASGI application for a web application that has a server. ``serve_health()`` answers
from a thread with an event loop of its own, so a blocked event loop yields an answer that names the job. Both
import the standard library only.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from http import HTTPStatus
from typing import Final, Protocol
from urllib.parse import parse_qs

from pg_scheduler.telemetry.asgi import Answer, App, Request, answering, text_answer
from pg_scheduler.telemetry.health import Health, HealthCheck, Probe

__all__ = ["HealthServer", "HealthSource", "health_app", "serve_health"]

PROBES: Final[dict[str, Probe]] = {"livez": "live", "readyz": "ready", "startupz": "started"}

REQUEST_TIMEOUT_S: Final = 5.0
"""Seconds in which a client must have sent its request and read the answer."""

MAX_REQUEST_BYTES: Final = 16_384
"""Bytes of the first line and the headers of a request."""


class HealthSource(Protocol):
    """A Scheduler, or anything else that has a health."""

    def health(self) -> Health:
        """Return the health; called in the thread that answers."""


def health_app(source: HealthSource) -> App:
    """Return an ASGI application that answers the probes, to be mounted in a web application.

    A blocked event loop blocks this application too; ``serve_health()`` answers then.

    Args:
        source: The Scheduler.
    """

    async def answer(request: Request) -> Answer:
        return _answer(source, request)

    return answering(answer)


def _answer(source: HealthSource, request: Request) -> Answer:
    probe = PROBES.get(request.path.rstrip("/").rpartition("/")[2])
    if probe is None:
        return text_answer(404, "not found: the probes are /livez, /readyz and /startupz\n")
    if request.method not in {"GET", "HEAD"}:
        return text_answer(405, "the probes are read by GET\n")
    options = parse_qs(request.query, keep_blank_values=True)
    exclude = {name for each in options.get("exclude", ()) for name in each.split(",") if name}
    health = source.health()
    passes = health.passes(probe, exclude=exclude)
    status = 200 if passes else 503
    if "application/json" in request.accept:
        return Answer(status, "application/json", _json(health, passes=passes))
    if passes and "verbose" not in options:
        return text_answer(status, "ok\n")
    return text_answer(status, _verbose(health, probe, exclude, passes=passes))


def _json(health: Health, *, passes: bool) -> bytes:
    found = {
        "ok": passes,
        "live": health.live,
        "ready": health.ready,
        "started": health.started,
        **asdict(health),
    }
    return json.dumps(found).encode() + b"\n"


def _verbose(health: Health, probe: Probe, exclude: set[str], *, passes: bool) -> str:
    """Return a line for each check of the probe, and for those that fail no probe."""
    shown = [each for each in health.checks if probe in each.probes or not each.probes]
    lines = [_line(each, is_excluded=each.name in exclude) for each in shown]
    unknown = exclude - {each.name for each in health.checks}
    lines += [f"[!]{name!r} is excluded, but no check has this name" for name in sorted(unknown)]
    return "\n".join([*lines, f"{probe}: {'yes' if passes else 'no'}\n"])


def _line(check: HealthCheck, *, is_excluded: bool) -> str:
    if is_excluded:
        return f"[+]{check.name} excluded: {check.text}"
    if check.is_ok:
        return f"[+]{check.name} ok: {check.text}"
    return f"[{'-' if check.probes else '!'}]{check.name} failed: {check.text}"


# -- the server ----------------------------------------------------------------------------------------


class HealthServer:
    """A server that answers the probes from its own thread."""

    def __init__(self, source: HealthSource, listening: socket.socket) -> None:
        self._source = source
        self._socket = listening
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._main, name="pg_scheduler health", daemon=True)

    @property
    def port(self) -> int:
        """The port on which it listens."""
        port: int = self._socket.getsockname()[1]
        return port

    def _start(self) -> None:
        self._thread.start()

    def _stop(self) -> None:
        with suppress(RuntimeError):  # its event loop has ended
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def _main(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._handle, sock=self._socket, limit=MAX_REQUEST_BYTES)
        try:
            await self._stopping.wait()
        finally:
            server.close()  # the Runner ends open connections: the caller does not wait for slow clients

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request and close the connection."""
        try:
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._respond(head.decode("latin-1")))
                    await writer.drain()
        finally:
            writer.close()

    def _respond(self, head: str) -> bytes:
        first, *lines = head.split("\r\n")
        method, _, rest = first.partition(" ")
        target = rest.partition(" ")[0]
        path, _, query = target.partition("?")
        headers = [line.partition(":") for line in lines]
        accept = ",".join(value.strip() for name, _, value in headers if name.lower() == "accept")
        answer = _answer(self._source, Request(method, path, query, accept))
        fields = [*answer.headers, (b"connection", b"close")]
        start = f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}\r\n".encode()
        body = b"" if method == "HEAD" else answer.body
        return start + b"".join(b"%s: %s\r\n" % each for each in fields) + b"\r\n" + body


@contextmanager
def serve_health(source: HealthSource, host: str = "127.0.0.1", port: int = 8080) -> Iterator[HealthServer]:
    """Answer the probes over HTTP, from a thread with an event loop of its own, within a ``with`` block.

    Args:
        source: The Scheduler.
        host: The address to listen on; ``"0.0.0.0"`` for every interface, as a kubelet requires.
        port: The port; 0 for a free one, which ``port`` of the server then has.

    Raises:
        OSError: The address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as listening:
        server = HealthServer(source, listening)
        server._start()  # noqa: SLF001 - private to the users of this function
        try:
            yield server
        finally:
            server._stop()  # noqa: SLF001
