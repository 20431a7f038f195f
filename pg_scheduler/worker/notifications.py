"""Send notifications to other nodes, receive theirs, and check that they arrive.

A LISTEN connection can stop receiving without an error: behind PgBouncer in transaction mode it listens on a
server connection that others use, and a half-open one waits without end. So the listener does not listen
behind a pooler, whose mode it cannot know, and each new connection must receive a notification of its own
first. Then other services share the connection, and the answers to their statements show that it works. If
there is no answer for a while, the listener makes a query itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import ClassVar, Final, Protocol

from pg_scheduler.base.messages import (
    DUE,
    ENDED,
    EVENTS,
    HEARTBEAT_REQUEST,
    LOOK,
    PERIODIC,
    PROBE,
    RESULT,
    SUBSCRIPTIONS,
    TASKS,
    Look,
    earliest_due,
)
from pg_scheduler.database.faults import translated
from pg_scheduler.database.pool_share import ListenSession
from pg_scheduler.database.session import Connection, is_open, terminate
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.events import ListenerConnected, ListenerLost
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.service import NEVER, Service
from pg_scheduler.worker.store import WorkerStore

TOO_SMALL: Final = (
    "the pool is too small to spare a connection for LISTEN: polling alone. "
    "Give it max_size of 4 or more, or pass direct_dsn="
)
NOT_RECEIVING: Final = (
    "notifications do not arrive, as behind PgBouncer in any mode: polling alone. "
    "Pass direct_dsn= or --direct-dsn"
)


class NodeEvents(Protocol):
    """What receives the events of other nodes; see ``cluster_events/relay.py``."""

    def receive(self, message: str) -> None:
        """Read the message of another node, without the kind at its beginning."""

    def missed(self, since: datetime) -> None:
        """Report that messages since then may have been lost."""


class Subscription:
    """Receive the messages of the schema on one connection."""

    def __init__(
        self, store: WorkerStore, on_message: Callable[[str], None], on_broken: Callable[[], None]
    ) -> None:
        self._store = store
        self._on_message = on_message
        self._on_broken = on_broken
        self._call_timeout_s = store.connections.options.call_timeout_s
        self._session: ListenSession | None = None
        # The connection of the session once it listens on the channel.
        self._connection: Connection | None = None
        self._is_lent = False
        self._lost_at: float | None = None
        self.channel = ""

    @property
    def is_open(self) -> bool:
        """Whether the connection is open. A half-open one is detected by ``check()``."""
        return self._connection is not None and is_open(self._connection)

    @property
    def answered_at(self) -> float | None:
        """When the server last responded here, by the monotonic clock; None before ``lend()``."""
        if not self._is_lent:
            return None
        return self._store.shared.answered_at if self._lost_at is None else self._lost_at

    async def open(self) -> bool:
        """LISTEN on the channel of the schema, in the session of the pool, which the first Scheduler opens.

        Returns:
            False behind a pooler: LISTEN would stay in a session that others use.
        """
        self.channel = await self._store.locks.channel()
        connections = self._store.connections
        hold = partial(connections.hold_session, connections.options.shared_settings)
        self._session = session = await connections.share.listening.join(hold)
        if session is None:
            return False
        connection = session.connection
        # Statements of another Scheduler may run on the connection, which executes one at a time.
        with translated():
            async with self._store.shared.turn:
                connection.add_termination_listener(self._terminated)
                await asyncio.wait_for(
                    connection.add_listener(self.channel, self._received), self._call_timeout_s
                )
        self._connection = connection
        return True

    def lend(self) -> None:
        """Share the connection with statements of other services.

        Call this only after a message has arrived, which shows that the connection works.
        """
        if self._connection is not None:
            self._store.shared.lend(self._connection, has_settings=True)
            self._is_lent = True

    async def check(self, silence_s: float) -> float:
        """Query the server if it has sent nothing for so many seconds.

        A half-open connection reports no error, so only a query without an answer shows that it is broken.

        Returns:
            Seconds until the next check.
        """
        shared = self._store.shared
        if self._connection is not None and shared.silent_for >= silence_s:
            await shared.fetch("SELECT 1")
        return silence_s - shared.silent_for

    async def close(self) -> None:
        """Stop listening and release the connection."""
        # Both are taken out first, so that a second call finds nothing to close.
        connection, self._connection = self._connection, None
        session, self._session = self._session, None
        if session is None:
            return
        try:
            if connection is not None and is_open(connection):
                connection.remove_termination_listener(self._terminated)
                # Statements of other services, and of other Schedulers, use this connection too.
                with translated():
                    async with self._store.shared.turn:
                        await asyncio.wait_for(
                            connection.remove_listener(self.channel, self._received), self._call_timeout_s
                        )
            elif connection is not None:
                terminate(connection)
        except BaseException as error:
            # Whatever it was, the connection may still listen. Such a connection must not return to the pool.
            if connection is not None:
                terminate(connection)
            if not isinstance(error, DatabaseUnavailableError):
                raise
        finally:
            await self._store.connections.share.listening.leave(session)

    def _received(self, _connection: object, _pid: int, _channel: str, message: object) -> None:
        """Pass on a message; called by asyncpg."""
        self._on_message(str(message))

    def _terminated(self, _connection: object) -> None:
        """Report that the connection has ended; called by asyncpg."""
        # Another Scheduler may open the next connection of the pool before this one does.
        self._lost_at = self._store.shared.answered_at
        self._on_broken()


class Listener(Service):
    """Receive notifications."""

    name: ClassVar[str] = "listener"
    check_interval_s = 30.0
    """Seconds without an answer after which one is requested; heartbeats get one every 20 seconds."""
    probe_timeout_s = 5.0
    """Seconds in which a new connection must receive a notification of its own."""
    retry_interval_s = 60.0
    """Seconds until the next connection if no notification arrived."""

    def __init__(self, node: Node, relay: NodeEvents) -> None:
        super().__init__(node.events)
        self._node = node
        self._probe = f"{PROBE} {node.worker_id}"
        self._relay = relay
        # When the server last responded on the previous connection, by the monotonic clock; None before the
        # first connection.
        self._answered_at: float | None = None
        self.refusal: str | None = None
        """Why this worker does not listen; None while it does, or reconnects."""
        self._probed = asyncio.Event()
        self._subscription: Subscription | None = None

    @property
    def is_receiving(self) -> bool:
        """Whether notifications arrived when they were last checked."""
        is_up = self._node.signals.notifications_up.is_set
        return is_up and self._subscription is not None and self._subscription.is_open

    async def run_once(self) -> float:
        """Open the LISTEN connection, or check it if it is open; return the seconds until the next check."""
        if self._subscription is not None and self.is_receiving:
            return await self._subscription.check(self.check_interval_s)
        # The last connection, if there was one, is broken.
        await self.drain()
        if not self._node.store.connections.can_spare_one:
            self._refuse(TOO_SMALL)
            return NEVER
        self._subscription = Subscription(self._node.store, self._received, self._broken)
        is_receiving = await self._subscription.open() and await self._receives_probe()
        if not is_receiving:
            await self.drain()
            self._refuse(NOT_RECEIVING)
            return self.retry_interval_s
        self._subscription.lend()
        self.refusal = None
        self._events.publish(ListenerConnected(self._subscription.channel))
        self._node.signals.notifications_up()
        # The first connection of this worker has missed nothing. A later one may have missed messages since
        # the last answer on the previous one.
        if self._answered_at is not None:
            silence_s = time.monotonic() - self._answered_at
            self._relay.missed(datetime.now(UTC) - timedelta(seconds=silence_s))
        return self.check_interval_s

    def _refuse(self, reason: str) -> None:
        """Note why this worker does not listen, and report it."""
        self.refusal = reason
        self._report_loss(reason)

    def _report_loss(self, reason: str) -> None:
        """Publish that no notifications arrive, and let services that rely on them read more often."""
        self._events.publish(ListenerLost(reason))
        self._node.signals.notifications_lost()

    async def _receives_probe(self) -> bool:
        """Send a notification to this worker itself; return whether it arrives in time."""
        await self._node.store.locks.notify_once(self._probe)
        try:
            async with asyncio.timeout(self.probe_timeout_s):
                return await self._probed.wait()
        except TimeoutError:
            return False

    async def drain(self) -> None:
        """Stop listening."""
        # The next connection has to receive a notification of its own again.
        self._probed.clear()
        self._node.signals.notifications_up.clear()
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            self._answered_at = subscription.answered_at or self._answered_at
            await subscription.close()

    def _received(self, message: str) -> None:
        """Send the signal of a message: its first word is the kind, and the content depends on that."""
        if message == self._probe:
            self._probed.set()
            return
        if self._node.meter is not None:
            self._node.meter.count("notifications_received")
        kind, _, content = message.partition(" ")
        if kind == DUE:
            # The mark is that of the process that sent the message. The times are due times of jobs.
            mark, _, times = content.partition(" ")
            # The signals of this process have announced its own jobs already.
            if mark != self._node.outbox.mark:
                self._node.signals.due(earliest_due(times))
        elif kind == HEARTBEAT_REQUEST and content == self._node.worker_id:
            self._node.signals.heartbeat_requested()
        elif kind == PERIODIC:
            self._node.signals.schedules_changed()
        elif kind == TASKS:
            self._node.signals.tasks_changed()
        elif kind == EVENTS:
            self._relay.receive(content)
        elif kind == SUBSCRIPTIONS and content != self._node.worker_id:
            # The next heartbeat reads the subscriptions of other workers.
            self._node.signals.heartbeat_requested()
        else:
            self._received_about_job(kind, content)

    def _received_about_job(self, kind: str, content: str) -> None:
        """Send the signal of a message about one job. Messages of unknown kinds have no effect."""
        if kind == ENDED:
            self._node.signals.end_overlooked()
        elif kind == RESULT:
            self._node.waiters.announce(content)
        elif kind == LOOK:
            # A person looks at a running job on a page, so its worker is to show more of it.
            look = Look.of(content)
            if look is not None and look.worker_id == self._node.worker_id:
                self._node.looks.append(look)
                self._node.signals.look_requested()

    def _broken(self) -> None:
        """Note that the connection ended, and connect again."""
        self._node.signals.notifications_up.clear()
        self._node.signals.connection_lost()
        self._report_loss("the connection ended")
        self.wake()


class Notifier(Service):
    """Send the messages of the outbox."""

    name: ClassVar[str] = "notifier"

    def __init__(self, node: Node) -> None:
        super().__init__(node.events)
        self._node = node

    async def prepare(self) -> None:
        """Attach to the outbox, which otherwise sends its messages itself."""
        self._node.outbox.attach(on_due=self._node.signals.due, on_message=self.wake)

    async def run_once(self) -> float:
        """Send the collected messages, after the minimum delay since the previous ones.

        Return the seconds until the next pass.
        """
        wait = self._node.outbox.flush_in
        if wait is None:  # there are no messages
            return NEVER
        if wait > 0:
            return wait
        await self._node.outbox.flush()
        return self._node.outbox.gap_s

    async def drain(self) -> None:
        """Send the remaining messages, and detach from the outbox."""
        self._node.outbox.detach()
        await self._node.outbox.flush_or_report()
