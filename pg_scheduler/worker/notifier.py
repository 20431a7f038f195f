"""Send the messages of the outbox while a worker runs."""

from __future__ import annotations

from typing import ClassVar

from pg_scheduler.worker.node import Node
from pg_scheduler.worker.service import NEVER, Service


class Notifier(Service):
    """Send the messages of the outbox."""

    name: ClassVar[str] = "notifier"

    def __init__(self, node: Node) -> None:
        super().__init__(node.events)
        self._outbox = node.outbox
        self._signals = node.signals

    async def prepare(self) -> None:
        """Attach to the outbox, which otherwise sends its messages itself."""
        self._outbox.attach(on_due=self._signals.due, on_message=self.wake)

    async def run_once(self) -> float:
        """Send the collected messages, after the minimum delay since the previous ones."""
        wait = self._outbox.flush_in
        if wait is None:
            return NEVER
        if wait > 0:
            return wait
        await self._outbox.flush()
        return self._outbox.gap_s

    async def drain(self) -> None:
        """Send the remaining messages, and detach from the outbox."""
        self._outbox.detach()
        await self._outbox.flush()
