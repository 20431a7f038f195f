"""The processes that are measured, seen from the harness."""

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

__all__ = ["Broken", "Driver"]

LINE = 256 * 1024 * 1024
"""Bytes of a result; a long run has many samples."""

GOODBYE = 5.0
"""Seconds in which a driver that has told its result has to end."""


class Broken(Exception):
    """A driver ended without a result, or did not end; the message carries what it said."""


class Driver:
    """A driver's process; a context manager that leaves none behind.

    Args:
        timeout: Seconds for each thing that is waited for.
    """

    def __init__(self, contestant: Contestant, order: Order, *, timeout: float = 120.0) -> None:
        self.contestant = contestant
        self.order = order
        self.events: dict[str, list[dict[str, Any]]] = {}
        self._timeout = timeout
        self._at_end = False
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        words, extra = command(self.contestant)
        self._process = await asyncio.create_subprocess_exec(
            *words,
            json.dumps(asdict(self.order)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | extra,
            limit=LINE,
        )
        assert self._process.stderr is not None
        self._errors = asyncio.create_task(self._process.stderr.read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        process = self._running()
        try:
            # kill() of a process that has ended by itself would reap it behind the back of the event loop.
            async with asyncio.timeout(GOODBYE if "result" in self.events or self._at_end else 0):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        self._errors.cancel()

    async def ready(self) -> None:
        """Wait until it only needs the word."""
        if self.order.op != "install":
            await self.hear("ready")

    async def go(self) -> None:
        """Give the word."""
        await self._write()

    async def started(self) -> None:
        """Wait until the worker runs."""
        await self.hear("started")

    async def stop(self) -> dict[str, Any]:
        """Stop the worker; its result."""
        await self._write()
        return await self.hear("result")

    async def result(self) -> dict[str, Any]:
        """Wait for the end; the result."""
        return await self.hear("result")

    async def hear(self, event: str) -> dict[str, Any]:
        """Wait for an event; others on the way are kept in ``events``."""
        stdout = self._running().stdout
        assert stdout is not None
        while True:
            try:
                async with asyncio.timeout(self._timeout):
                    line = await stdout.readline()
            except TimeoutError:
                raise Broken(f"no {event!r} within {self._timeout:g} s") from None
            if not line:
                self._at_end = True
                said = (await self._errors).decode(errors="replace").strip().splitlines()
                raise Broken(f"ended before {event!r}: {' | '.join(said[-3:])}")
            try:
                words: dict[str, Any] = json.loads(line)
            except json.JSONDecodeError:  # the scheduler itself talks
                continue
            self.events.setdefault(words["event"], []).append(words)
            if words["event"] == event:
                return words

    async def _write(self) -> None:
        stdin = self._running().stdin
        assert stdin is not None
        stdin.write(b"\n")
        await stdin.drain()

    def _running(self) -> asyncio.subprocess.Process:
        assert self._process is not None, "use it as a context manager"
        return self._process
