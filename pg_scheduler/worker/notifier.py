"""Sends what the outbox collects, while a worker runs."""

from __future__ import annotations

from typing import ClassVar

from pg_scheduler.enqueue.outbox import Outbox
from pg_scheduler.events import EventBus
from pg_scheduler.worker.service import NEVER, Service
from pg_scheduler.worker.signals import Signals

__all__ = ["Notifier"]


class Notifier(Service):
    """Flush the outbox."""

    name: ClassVar[str] = "notifier"

    def __init__(self, events: EventBus, outbox: Outbox, signals: Signals) -> None:
        super().__init__(events)
        self._outbox = outbox
        self._signals = signals

    async def prepare(self) -> None:
        """Take over from the outbox, which sends by itself otherwise."""
        self._outbox.attach(on_due=self._signals.due, on_message=self.wake)

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
