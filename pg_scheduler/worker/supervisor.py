"""Start the parts of a worker in order, and stop them in reverse order.

There is no leader: every part runs on every node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from pg_scheduler.errors import PoolClosedError
from pg_scheduler.worker.service import Service


class Part(Protocol):
    """A part that starts and stops."""

    async def start(self) -> None:
        """Start the part; return when it runs."""

    async def stop(self) -> None:
        """Stop the part and everything that it started."""


class Supervisor:
    """The parts of one Scheduler."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts

    async def start(self, before_last: Callable[[], None] = lambda: None) -> None:
        """Start all parts. If one fails, stop those that were started.

        Args:
            before_last: Called before the last part starts.
        """
        for index, part in enumerate(self._parts):
            if index == len(self._parts) - 1:
                before_last()
            try:
                await part.start()
            except BaseException:  # whatever it was, no started part may run on
                await self._stop(self._parts[: index + 1])
                raise

    def retry(self) -> None:
        """End the backoff of every service: the database is available."""
        for part in self._parts:
            if isinstance(part, Service):
                part.retry()

    async def stop(self) -> None:
        """Stop all parts, in reverse order.

        Raises:
            DatabaseUnavailableError: The database was unavailable and results could not be written. Every
                service has stopped.
        """
        await self._stop(self._parts)

    @staticmethod
    async def _stop(parts: Sequence[Part]) -> None:
        faults: list[BaseException] = []
        for part in reversed(parts):
            try:
                await part.stop()
            except BaseException as fault:  # noqa: BLE001 - whatever it was, the others must stop too
                faults.append(fault)
        # Other errors say more than that the pool is closed, such as which results are lost.
        faults.sort(key=lambda fault: isinstance(fault, PoolClosedError))
        if faults:
            for other in faults[1:]:
                faults[0].add_note(f"another part could not stop either: {other!r}")
            raise faults[0]
