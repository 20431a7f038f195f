"""A TCP proxy in front of the server's socket that behaves like a faulty network.

It never changes or reorders bytes. It delivers them late, all at once after a stall, or never, and closes
connections in order, with a reset, or without notice to either side.
"""

from __future__ import annotations

import asyncio
import math
import socket
import struct
from collections import deque
from contextlib import suppress
from typing import Final
from urllib.parse import parse_qs, urlsplit

KEEPALIVE_S: Final = 60.0
"""Seconds after which TCP itself detects a half-open connection; often it takes much longer."""

RESET_AT_CLOSE: Final = struct.pack("ii", 1, 0)


class Proxy:
    """One address of a server, for one client.

    Args:
        dsn: The server's DSN; a Unix socket.

    Attributes:
        delay: Seconds by which all data is delayed.
        bytes_per_s: What each direction of a connection transmits in a second, inf by default.
        sent: The pieces of data that clients have sent: one for each round trip.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = urlsplit(dsn)
        (folder,) = parse_qs(self._dsn.query)["host"]
        self.path = f"{folder}/.s.PGSQL.5432"
        self.delay = 0.0
        self.bytes_per_s = math.inf
        self.sent = 0
        self.is_stalled = False
        self.is_refusing = False
        self.is_dropping = False
        self.sides: set[_Side] = set()
        self.connecting: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        """Listen, and return the DSN of the proxy."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Side(self), "127.0.0.1", 0)
        _, port = self._server.sockets[0].getsockname()
        return self._dsn._replace(netloc=f"postgres@127.0.0.1:{port}", query="sslmode=disable").geturl()

    def close(self) -> None:
        """Stop listening and reset every connection."""
        if self._server is not None:
            self._server.close()
        for side in list(self.sides):
            side.reset()

    def sever(self) -> None:
        """Close every connection in order."""
        for side in list(self.sides):
            side.finish()

    def reset(self) -> None:
        """Close every connection with a reset."""
        for side in list(self.sides):
            side.reset()

    def refuse(self) -> None:
        """Reset every connection, and each new one until ``heal()``."""
        self.is_refusing = True
        self.reset()

    def stall(self) -> None:
        """Hold all data back until ``heal()``."""
        self.is_stalled = True

    def drop(self) -> None:
        """Lose all data without notice: on open connections permanently, on new ones until ``heal()``."""
        self.is_dropping = True
        for side in list(self.sides):
            side.vanish()

    def heal(self) -> None:
        """Work without faults again."""
        self.is_stalled = self.is_refusing = self.is_dropping = False
        self.delay = 0.0
        self.bytes_per_s = math.inf
        for side in list(self.sides):
            side.flush()


class _Side(asyncio.Protocol):
    """One end of a connection: the client's, or the server's if ``other`` is given."""

    def __init__(self, proxy: Proxy, other: _Side | None = None) -> None:
        self._proxy = proxy
        self._other = other
        self._is_ours = other is None
        self._is_dropped = False
        self._held: deque[tuple[float, bytes]] = deque()  # b"" = the end
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def peer_port(self) -> int | None:
        """The client's own port, which identifies it."""
        peer = self._transport.get_extra_info("peername") if self._transport and self._is_ours else None
        return peer[1] if peer else None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._proxy.sides.add(self)
        if self._other is not None:
            self._other._other = self  # noqa: SLF001 - two of a kind
            self._other.flush()
        elif self._proxy.is_refusing:
            self.reset()
        elif self._proxy.is_dropping:
            self.vanish()
        else:
            task = self._loop.create_task(self._connect())
            self._proxy.connecting.add(task)
            task.add_done_callback(self._proxy.connecting.discard)

    async def _connect(self) -> None:
        try:
            await self._loop.create_unix_connection(lambda: _Side(self._proxy, self), self._proxy.path)
        except OSError:  # no server is listening
            self.reset()

    def data_received(self, data: bytes) -> None:
        self._proxy.sent += self._is_ours
        if self._transport is not None and self._proxy.bytes_per_s < math.inf:
            self._transport.pause_reading()  # the sender notices a slow network as it does a real one
            self._loop.call_later(len(data) / self._proxy.bytes_per_s, self._transport.resume_reading)
        if not self._is_dropped:
            self._held.append((self._loop.time() + self._proxy.delay, data))
            self.flush()

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = None
        if self._is_dropped:
            self._proxy.sides.discard(self)
        else:
            self._held.append((self._loop.time() + self._proxy.delay, b""))
            self.flush()

    def flush(self) -> None:
        """Pass on the data that is due."""
        other = self._other
        while self._held and other is not None and not self._proxy.is_stalled and not self._is_dropped:
            ready_at, data = self._held[0]
            if ready_at > self._loop.time():
                self._loop.call_at(ready_at, self.flush)
                return
            self._held.popleft()
            if data:
                other.send(data)
            else:
                self._proxy.sides.discard(self)
                other.finish()

    def send(self, data: bytes) -> None:
        """Send data to the program at this end."""
        if self._transport is not None and not self._is_dropped:
            self._transport.write(data)

    def finish(self) -> None:
        """Close this end in order."""
        if self._transport is not None:
            self._transport.close()

    def reset(self) -> None:
        """Close this end at once; a client receives a reset."""
        if self._transport is None:
            return
        if self._is_ours:
            with suppress(OSError):
                self._transport.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE
                )
        self._transport.abort()

    def vanish(self) -> None:
        """Stop delivering in both directions; the sockets stay open until TCP gives them up."""
        self._is_dropped = True
        self._held.clear()
        self._loop.call_later(KEEPALIVE_S, self.reset)
