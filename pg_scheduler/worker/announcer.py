"""Tells the other nodes what they should look at: few messages, each about much.

A notification makes the commit that carries it take a database-wide lock, so there is none per insert:
what gathers within a few milliseconds goes out as one, and only jobs that are due soon are worth a word.
The rest is found by each node's own timer. Alone, a notification is a commit like an insert's. So it goes
along with an insert whenever one comes at the right time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from typing import ClassVar, Final

from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.events import EventBus, ServiceRetrying
from pg_scheduler.store.connections.listen import CHECK, DUE, PERIODIC
from pg_scheduler.store.store import Store
from pg_scheduler.worker.service import NEVER, Service

__all__ = ["Announcer"]

GAP: Final = 0.005
"""Seconds between two notifications."""

LONGEST: Final = 7000
"""Bytes of a message; PostgreSQL takes no more than 8,000."""

PATIENCE: Final = 0.003
"""Seconds more in which an insert may come that takes it along; timers may be a millisecond early."""


class Announcer(Service):
    """Send word to other nodes.

    Args:
        horizon: Seconds; what is due later than that is not announced.
        on_due: Called at once when a job is due within the horizon, for this process.
        mark: Tells our own words that something is due from others': this process need not hear them.
    """

    name: ClassVar[str] = "announcer"

    def __init__(
        self, store: Store, events: EventBus, *, horizon: float, on_due: Callable[[], None], mark: str = ""
    ) -> None:
        super().__init__(events)
        self._store = store
        self._horizon = horizon
        self._on_due = on_due
        self.mark = mark
        self.due_message = f"{DUE} {mark}".strip()
        self._messages: dict[str, float] = {}  # when each was last added
        self._next_send = 0.0
        self._trailing: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None

    def is_near(self, due: datetime) -> bool:
        """Whether a job due then is worth a word. Both clocks need only agree within the horizon."""
        return (due - datetime.now(UTC)).total_seconds() <= self._horizon

    def has_room(self) -> bool:
        """Whether an insert of something that is due soon shall say so itself."""
        return time.monotonic() >= self._next_send

    def said(self, since: float) -> None:
        """An insert has said it; what else was committed before that moment, it was said for too."""
        self._next_send = time.monotonic() + GAP
        if self._messages.get(self.due_message, since) < since:
            del self._messages[self.due_message]
        if self._trailing is not None and not self._messages:
            self._trailing.cancel()
            self._trailing = None
        self._on_due()

    def unsaid(self) -> None:
        """An insert of something that is due soon has not said it: the next one does, or a message."""
        self._on_due()
        self._messages[self.due_message] = now = time.monotonic()
        if self._trailing is None:
            wait = max(self._next_send - now, 0) + PATIENCE
            self._trailing = asyncio.get_running_loop().call_later(wait, self._send_soon)

    async def due(self, due: datetime) -> None:
        """A job is due then."""
        if not self.is_near(due):
            return
        if self.has_room():
            self._on_due()
            await self._say(self.due_message)
        else:
            self.unsaid()

    def due_soon(self) -> None:
        """A job is due; send word with the next pass."""
        self._on_due()
        self._add(self.due_message)

    async def check(self, worker_id: str) -> None:
        """A job that this worker runs was changed."""
        for message in _checks([worker_id]):
            await self._say(message)

    async def ask(self, worker_ids: Collection[str]) -> None:
        """Ask workers for a heartbeat, now: by when they have to answer counts from when this returns."""
        if messages := _checks(worker_ids):
            await self._store.notify(messages)

    async def periodic(self) -> None:
        """A schedule was switched on or off."""
        await self._say(PERIODIC)

    def periodic_soon(self) -> None:
        """The same, with the next pass."""
        self._add(PERIODIC)

    async def run_once(self) -> float:
        """Send what gathered."""
        if not self._messages:
            return NEVER
        wait = self._next_send - time.monotonic()
        if wait > 0:
            return wait
        await self.drain()
        return GAP

    async def drain(self) -> None:
        """Send what gathered, now."""
        messages, self._messages = self._messages, {}
        if messages:
            try:
                await self._store.notify(list(messages))
            except BaseException:  # not sent, so it goes with the next ones
                self._messages = messages | self._messages
                raise
            self._next_send = time.monotonic() + GAP

    async def _say(self, message: str) -> None:
        self._add(message)
        await self._send_unless_running()

    def _send_soon(self) -> None:
        self._trailing = None
        if self.is_running:
            self.wake()
            return
        self._sending = asyncio.create_task(self._send_unless_running(), name="pg_scheduler notify")

    async def _send_unless_running(self) -> None:
        if self.is_running:  # the next pass does it
            return
        try:
            await self.drain()
        except (
            DatabaseUnavailableError
        ) as fault:  # what it is about is committed, and others find it by polling
            self._events.publish(ServiceRetrying(self.name, fault, NEVER))

    def _add(self, message: str) -> None:
        self._messages[message] = time.monotonic()
        self.wake()


def _checks(worker_ids: Collection[str]) -> list[str]:
    messages = (f"{CHECK} {worker_id}" for worker_id in worker_ids)
    # An id that is longer was written by hand: nobody listens for it.
    return [message for message in messages if len(message.encode()) <= LONGEST]
