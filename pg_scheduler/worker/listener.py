"""Hears what other nodes say, and keeps on hearing.

A LISTEN connection can be deaf without an error: behind PgBouncer in transaction mode it listens on a
server connection that is not ours, and half-open it waits for ever. So there is no LISTEN where a pooler
answers, and each new connection must hear a message of its own before it counts. Then it is lent to upkeep,
whose answers show that it lives; when there was none for a while, it is asked for one.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar, Final

from pg_scheduler.events import EventBus, ListenerConnected, ListenerLost
from pg_scheduler.store.connections.listen import CHECK, DUE, PERIODIC, Subscription
from pg_scheduler.store.store import Store
from pg_scheduler.worker.service import NEVER, Service
from pg_scheduler.worker.signals import Signals

__all__ = ["Listener"]

CHECK_INTERVAL: Final = 30.0
"""Seconds without an answer after which one is asked for; beats, every 20 seconds, are answered too."""
HELLO_TIMEOUT: Final = 5.0
DEAF_INTERVAL: Final = 60.0
HELLO: Final = "hello"

TOO_SMALL: Final = (
    "the pool is too small to spare a connection for LISTEN: polling alone. "
    "Give it max_size of 4 or more, or pass direct_dsn="
)
DEAF: Final = (
    "notifications do not arrive, as behind PgBouncer in transaction mode: polling alone. Pass direct_dsn="
)


class Listener(Service):
    """Receive notifications.

    Args:
        own_mark: The mark of this process's own notifications about due jobs, which are ignored.
    """

    name: ClassVar[str] = "listener"

    def __init__(
        self,
        store: Store,
        events: EventBus,
        worker_id: str,
        signals: Signals,
        *,
        own_mark: str,
    ) -> None:
        super().__init__(events)
        self._store = store
        self._hello = f"{HELLO} {worker_id}"
        self._worker_id = worker_id
        self._own_mark = own_mark
        self._signals = signals
        self._heard = asyncio.Event()
        self._subscription: Subscription | None = None

    @property
    def is_receiving(self) -> bool:
        """Whether notifications arrive, as far as is known."""
        is_up = self._signals.notifications_up.is_set
        return is_up and self._subscription is not None and self._subscription.is_open

    async def run_once(self) -> float:
        """Connect, or check the connection."""
        if self._subscription is not None and self.is_receiving:
            return await self._subscription.check(CHECK_INTERVAL)
        await self.drain()
        if not self._store.connections.can_spare_one:
            self._events.publish(ListenerLost(TOO_SMALL))
            return NEVER
        self._subscription = Subscription(self._store, self._received, self._broken)
        if not await self._subscription.open() or not await self._hears_itself():
            await self.drain()
            self._events.publish(ListenerLost(DEAF))
            return DEAF_INTERVAL
        self._subscription.lend()
        self._events.publish(ListenerConnected(self._subscription.channel))
        self._signals.notifications_up()
        return CHECK_INTERVAL

    async def _hears_itself(self) -> bool:
        await self._store.locks.notify([self._hello])
        try:
            async with asyncio.timeout(HELLO_TIMEOUT):
                return await self._heard.wait()
        except TimeoutError:
            return False

    async def drain(self) -> None:
        """Stop listening."""
        self._heard.clear()
        self._signals.notifications_up.clear()
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.close()

    def _received(self, message: str) -> None:
        if message == self._hello:
            self._heard.set()
            return
        kind, _, about = message.partition(" ")
        if kind == DUE and about != self._own_mark:
            self._signals.due()
        elif kind == CHECK and about == self._worker_id:
            self._signals.heartbeat_requested()
        elif kind == PERIODIC:
            self._signals.schedules_changed()

    def _broken(self) -> None:
        self._signals.notifications_up.clear()
        self._events.publish(ListenerLost("the connection ended"))
        self.wake()
