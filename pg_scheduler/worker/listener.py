"""Hears what other nodes say, and keeps on hearing.

A LISTEN connection can be deaf without an error: behind PgBouncer in transaction mode it listens on a
server connection that is not ours, and half-open it waits for ever. So there is no LISTEN where a pooler
answers, and each new connection must hear a message of its own before it counts. Then it is lent to upkeep,
whose answers show that it lives; when there was none for a while, it is asked for one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ClassVar, Final

from pg_scheduler.events import EventBus, ListenerConnected, ListenerLost
from pg_scheduler.store.connections.listen import Subscription
from pg_scheduler.store.store import Store
from pg_scheduler.worker.service import NEVER, Service

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
    """Hear notifications.

    Args:
        on_message: Called with each message.
        on_connected: Called when messages may have been missed and are heard from now on.
    """

    name: ClassVar[str] = "listener"

    def __init__(
        self,
        store: Store,
        events: EventBus,
        worker_id: str,
        *,
        on_message: Callable[[str], None],
        on_connected: Callable[[], None],
    ) -> None:
        super().__init__(events)
        self._store = store
        self._hello = f"{HELLO} {worker_id}"
        self._on_message = on_message
        self._on_connected = on_connected
        self._heard = asyncio.Event()
        self._subscription: Subscription | None = None

    @property
    def hears(self) -> bool:
        """Whether messages arrive, as far as is known."""
        return self._heard.is_set() and self._subscription is not None and self._subscription.is_open

    async def run_once(self) -> float:
        """Connect, or check the connection."""
        if self._subscription is not None and self.hears:
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
        self._on_connected()
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
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.close()

    def _received(self, message: str) -> None:
        if message == self._hello:
            self._heard.set()
        elif not message.startswith(HELLO):
            self._on_message(message)

    def _broken(self) -> None:
        self._events.publish(ListenerLost("the connection ended"))
        self.wake()
