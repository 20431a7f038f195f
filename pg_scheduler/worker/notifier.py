"""Sends what the outbox collects, while a worker runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from pg_scheduler.enqueue.outbox import Outbox
from pg_scheduler.events import EventBus
from pg_scheduler.worker.service import NEVER, Service

__all__ = ["Notifier"]


class Notifier(Service):
    """Flush the outbox.

    Args:
        on_due: Called when a job is due within the outbox's horizon, for this process.
    """

    name: ClassVar[str] = "notifier"

    def __init__(self, events: EventBus, outbox: Outbox, *, on_due: Callable[[], None]) -> None:
        super().__init__(events)
        self._outbox = outbox
        self._on_due = on_due

    async def prepare(self) -> None:
        """Take over from the outbox, which sends by itself otherwise."""
        self._outbox.attach(on_due=self._on_due, on_message=self.wake)

    async def run_once(self) -> float:
        """Send the messages that gathered, once the gap after the last ones is over."""
        wait = self._outbox.flush_in
        if wait is None:
            return NEVER
        if wait > 0:
            return wait
        await self._outbox.flush()
        return self._outbox.options.gap_s

    async def drain(self) -> None:
        """Send what is left, and return the duty to the outbox."""
        self._outbox.detach()
        await self._outbox.flush()
