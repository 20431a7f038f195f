"""The worker processes: each has a seat with an address of its own, and a successor when it is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tools.chaos.clock import Clock
from tools.chaos.proxy import Proxy

ROOT: Final = Path(__file__).resolve().parents[2]
STOP_TIMEOUT_S: Final = 75.0
"""Seconds within which a worker stops, even if it waits on two half-open connections in turn."""


class Seat:
    """The place of a worker, with its network address and clock."""

    def __init__(self, name: str, proxy: Proxy, clock: Clock | None = None) -> None:
        self.name = name
        self.proxy = proxy
        self.clock = clock
        self.dsn = ""
        self.process: Process | None = None

    def send(self, command: str) -> None:
        """Send a command to the process, if there is one."""
        if self.process is not None and self.process.stdin is not None and self.process.returncode is None:
            self.process.stdin.write(f"{command}\n".encode())

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if there is a process."""
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)


class Fleet:
    """All worker processes.

    Args:
        folder: The folder of ledgers and logs.
        dsn: The DSN of the database; each seat gets a proxy to it.
        lease: The lease in seconds.
        library: The path of libfaketime, if it is installed.

    Attributes:
        deaths: When processes ended, by process id.
        unexpected_exits: Processes that stopped by themselves, or did not stop when asked to.
    """

    def __init__(
        self, folder: Path, dsn: str, lease: float, names: Sequence[str], *, library: Path | None = None
    ) -> None:
        self._folder = folder
        self._lease = lease
        self.seats = [Seat(name, Proxy(dsn), Clock(library) if library else None) for name in names]
        self.deaths: dict[int, float] = {}
        self.unexpected_exits: list[str] = []
        self._watchers: list[asyncio.Task[None]] = []
        self._expected_exits: set[int] = set()

    async def start(self) -> None:
        """Start all processes."""
        for seat in self.seats:
            seat.dsn = await seat.proxy.start()
            await self.fill(seat)

    async def fill(self, seat: Seat) -> None:
        """Start a process in this seat."""
        log = os.open(self._folder / f"{seat.name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            command = ("-m", "tools.chaos.worker", seat.dsn, str(self._folder), seat.name, str(self._lease))
            seat.process = process = await asyncio.create_subprocess_exec(
                *(sys.executable, *command),
                cwd=ROOT,
                env=os.environ | (seat.clock.environment if seat.clock else {}),
                stdin=PIPE,
                stderr=log,
                start_new_session=True,
            )
        finally:
            os.close(log)
        self._watchers.append(asyncio.create_task(self._watch(seat, process)))

    async def kill(self, seat: Seat) -> None:
        """Send SIGKILL and wait for the end."""
        if seat.process is not None and seat.process.returncode is None:
            self._expected_exits.add(seat.process.pid)
            seat.process.kill()
            await seat.process.wait()

    async def shut_down(self, seat: Seat) -> None:
        """Shut a process down gracefully, as a deployment does; kill it if it does not end in time."""
        self._close_input(seat)
        if seat.process is not None:
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await seat.process.wait()
            except TimeoutError:
                self.unexpected_exits.append(f"{seat.name} did not stop within {STOP_TIMEOUT_S:g} s")
                await self.kill(seat)

    def _close_input(self, seat: Seat) -> None:
        if seat.process is not None and seat.process.stdin is not None:
            self._expected_exits.add(seat.process.pid)
            seat.process.stdin.close()

    async def stop(self) -> None:
        """Shut all processes down gracefully."""
        for seat in self.seats:
            seat.signal(signal.SIGCONT)
        await asyncio.gather(*map(self.shut_down, self.seats))
        await self.close()
        await asyncio.wait(self._watchers)

    async def close(self) -> None:
        """Kill the remaining processes and close proxies and clocks."""
        for seat in self.seats:
            await self.kill(seat)
            seat.proxy.close()
            if seat.clock is not None:
                seat.clock.close()

    async def _watch(self, seat: Seat, process: Process) -> None:
        code = await process.wait()
        self.deaths[process.pid] = time.monotonic()
        if process.pid not in self._expected_exits:
            self.unexpected_exits.append(
                f"{seat.name} (process {process.pid}) stopped by itself with exit code {code}"
            )
