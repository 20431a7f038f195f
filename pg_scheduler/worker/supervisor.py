"""Starts the parts in order, stops them backwards, and stops all when one of them breaks.

No part is a leader of other nodes' parts: every one of them runs on every node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pg_scheduler.errors import PoolClosedError
from pg_scheduler.worker.service import Service

__all__ = ["Part", "Supervisor"]


class Part(Protocol):
    """What can be started and stopped."""

    async def start(self) -> None:
        """Begin; return when it really runs."""

    async def stop(self) -> None:
        """End, with everything it began."""


class Supervisor:
    """The parts of one Scheduler.

    Args:
        parts: In the order of their start: what others need comes first, and is stopped last.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts

    async def start(self) -> None:
        """Start all, or none."""
        for index, part in enumerate(self._parts):
            try:
                await part.start()
            except BaseException:  # whatever it was, the parts already started must not go on alone
                await self._stop(self._parts[: index + 1])
                raise

    def retry(self) -> None:
        """End the backoff of every service: the database is available."""
        for part in self._parts:
            if isinstance(part, Service):
                part.retry()

    async def stop(self) -> None:
        """Stop all, the last one started first.

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
            except BaseException as fault:  # noqa: BLE001 - whatever it was, the others must not go on alone
                faults.append(fault)
        # That the pool is closed is told already; which results are lost for that is not.
        faults.sort(key=lambda fault: isinstance(fault, PoolClosedError))
        if faults:
            for other in faults[1:]:
                faults[0].add_note(f"another part could not stop either: {other!r}")
            raise faults[0]
