"""The measured processes, as the harness controls them."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import asdict
from types import TracebackType
from typing import Any, Self

from benchmarks.contestants import Contestant
from benchmarks.environments import command
from benchmarks.peers.protocol import Order

MAX_LINE_BYTES = 256 * 1024 * 1024
"""A result contains the samples of the whole run."""

EXIT_TIMEOUT_S = 5.0
"""A driver that has sent its result must end within this time."""


class DriverError(Exception):
    """A driver ended without a result or did not respond; the message contains its output."""


class Driver:
    """The process of a driver; a context manager that ends it.

    Args:
        timeout: Seconds to wait for each event.
    """

    def __init__(self, contestant: Contestant, order: Order, *, timeout: float = 120.0) -> None:
        self.contestant = contestant
        self.order = order
        self.events: dict[str, list[dict[str, Any]]] = {}
        self._timeout = timeout
        self._at_end = False
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        command_line, variables = command(self.contestant)
        self._process = await asyncio.create_subprocess_exec(
            *command_line,
            json.dumps(asdict(self.order)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables,
            limit=MAX_LINE_BYTES,
        )
        assert self._process.stderr is not None
        self._errors = asyncio.create_task(self._process.stderr.read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        process = self._running()
        try:
            # kill() would reap a process that has already ended, unnoticed by the event loop.
            async with asyncio.timeout(EXIT_TIMEOUT_S if "result" in self.events or self._at_end else 0):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        self._errors.cancel()

    async def ready(self) -> None:
        """Wait until the driver is ready to start."""
        if self.order.op != "install":
            await self.wait_for("ready")

    async def go(self) -> None:
        """Start the measurement."""
        await self._write()

    async def started(self) -> None:
        """Wait until the worker runs."""
        await self.wait_for("started")

    async def suspended(self) -> None:
        """Wait until all jobs of the worker wait or sleep, perhaps since before it reported its start."""
        if "suspended" not in self.events:
            await self.wait_for("suspended")

    async def stop(self) -> dict[str, Any]:
        """Stop the worker and return its result."""
        await self._write()
        return await self.wait_for("result")

    async def result(self) -> dict[str, Any]:
        """Wait for the end and return the result."""
        return await self.wait_for("result")

    async def wait_for(self, event: str) -> dict[str, Any]:
        """Wait for an event and return it; all received events are in ``events``."""
        stdout = self._running().stdout
        assert stdout is not None
        while True:
            try:
                async with asyncio.timeout(self._timeout):
                    line = await stdout.readline()
            except TimeoutError:
                raise DriverError(f"no {event!r} within {self._timeout:g} s") from None
            if not line:
                self._at_end = True
                output = (await self._errors).decode(errors="replace").strip().splitlines()
                raise DriverError(f"ended before {event!r}: {' | '.join(output[-3:])}")
            try:
                message: dict[str, Any] = json.loads(line)
            except json.JSONDecodeError:  # output of the scheduler
                continue
            self.events.setdefault(message["event"], []).append(message)
            if message["event"] == event:
                return message

    async def _write(self) -> None:
        stdin = self._running().stdin
        assert stdin is not None
        stdin.write(b"\n")
        await stdin.drain()

    def _running(self) -> asyncio.subprocess.Process:
        assert self._process is not None, "the driver is not running; use it as a context manager"
        return self._process
