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

__all__ = ["Fleet", "Seat"]

ROOT: Final = Path(__file__).resolve().parents[2]


class Seat:
    """A worker's place."""

    def __init__(self, name: str, proxy: Proxy, clock: Clock | None = None) -> None:
        self.name = name
        self.proxy = proxy
        self.clock = clock
        self.dsn = ""
        self.process: Process | None = None

    def say(self, word: str) -> None:
        """Tell the process something; it may not be there."""
        if self.process is not None and self.process.stdin is not None and self.process.returncode is None:
            self.process.stdin.write(f"{word}\n".encode())

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if there is a process."""
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)


class Fleet:
    """All of them.

    Args:
        folder: Where the ledgers and logs lie.
        dsn: The database's, to which each seat gets a proxy.
        lease: Seconds.
        library: What moves clocks, if it is here.

    Attributes:
        deaths: When processes ended, by process id.
        mutinies: Processes that ended by themselves.
    """

    def __init__(
        self, folder: Path, dsn: str, lease: float, names: Sequence[str], *, library: Path | None = None
    ) -> None:
        self._folder = folder
        self._lease = lease
        self.seats = [Seat(name, Proxy(dsn), Clock(library) if library else None) for name in names]
        self.deaths: dict[int, float] = {}
        self.mutinies: list[str] = []
        self._watchers: list[asyncio.Task[None]] = []
        self._doomed: set[int] = set()

    async def start(self) -> None:
        """Start all."""
        for seat in self.seats:
            seat.dsn = await seat.proxy.start()
            await self.fill(seat)

    async def fill(self, seat: Seat) -> None:
        """Start a process in this seat."""
        log = os.open(self._folder / f"{seat.name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            words = ("-m", "tools.chaos.worker", seat.dsn, str(self._folder), seat.name, str(self._lease))
            seat.process = process = await asyncio.create_subprocess_exec(
                *(sys.executable, *words),
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
        """SIGKILL."""
        if seat.process is not None and seat.process.returncode is None:
            self._doomed.add(seat.process.pid)
            seat.process.kill()
            await seat.process.wait()

    async def stop(self, patience: float) -> list[str]:
        """End all in peace; who had to be killed after so many seconds."""
        for seat in self.seats:
            seat.signal(signal.SIGCONT)
            if seat.process is not None and seat.process.stdin is not None:
                self._doomed.add(seat.process.pid)
                seat.process.stdin.close()
        _, late = await asyncio.wait(self._watchers, timeout=patience)
        stubborn = [seat.name for seat in self.seats if seat.process and seat.process.returncode is None]
        await self.close()
        if late:
            await asyncio.wait(late)
        return stubborn

    async def close(self) -> None:
        """Leave nothing behind."""
        for seat in self.seats:
            await self.kill(seat)
            seat.proxy.close()
            if seat.clock is not None:
                seat.clock.close()

    async def _watch(self, seat: Seat, process: Process) -> None:
        code = await process.wait()
        self.deaths[process.pid] = time.monotonic()
        if process.pid not in self._doomed:
            self.mutinies.append(f"{seat.name} (process {process.pid}) ended by itself with code {code}")
