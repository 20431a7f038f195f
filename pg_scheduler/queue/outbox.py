"""Collect notifications for other nodes, and merge them before sending.

A commit with a notification takes a database-wide lock, so not every insert sends one. Messages of a few
milliseconds are merged into one notification, and only jobs that are due soon require one: the timers of
other nodes find the rest. A separate notification is a commit that costs as much as an insert. So if another
insert follows in time, that insert sends the notification.

A commit of a caller that notifies holds that lock until the commit is on the disk, so such commits of an
application follow each other. Therefore the outbox notifies after the transaction has ended, unless the
setting ``notify`` decides otherwise. It asks the connection at growing intervals whether it has ended.

An outbox needs no running Scheduler. While a service is attached, that service sends; otherwise the outbox
sends its messages itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from types import MethodType
from typing import Final

from pg_scheduler.base.foreign import guarded
from pg_scheduler.base.messages import DUE, HEARTBEAT_REQUEST, PERIODIC, due_message
from pg_scheduler.base.meter import Meter
from pg_scheduler.base.settings import Notify
from pg_scheduler.database.session import Connection, transaction_of
from pg_scheduler.errors import ConfigurationError, DatabaseUnavailableError
from pg_scheduler.events import EventBus, ServiceRetrying
from pg_scheduler.events.background import start_in_background
from pg_scheduler.queue.store import QueueStore

MAX_NOTIFICATION_BYTES: Final = 7000
"""PostgreSQL takes less than 8,000."""


@dataclass(slots=True)
class Watch:
    """A transaction of a caller whose end the outbox looks for.

    Attributes:
        read: Returns the open transaction of the connection.
        transaction: What ``read`` returned when a job was inserted.
        due: When the first job of the transaction is due; None if that is unknown.
        wait_s: Seconds between the last look and the next one.
        timer: The next look.
    """

    read: Callable[[], object]
    transaction: object
    due: datetime | None
    wait_s: float
    timer: asyncio.TimerHandle | None = None


class Outbox:
    """Send notifications to other nodes."""

    gap_s = 0.005
    """Seconds between two notifications."""
    carrier_wait_s = 0.003
    """Seconds after the gap in which an insert may carry the next notification. Timers may be a millisecond
    early."""
    first_look_s = 0.001
    """Seconds after which the outbox first asks whether the transaction of a caller has ended."""

    def __init__(
        self,
        store: QueueStore,
        events: EventBus,
        *,
        horizon_s: float,
        mark: str = "",
        notify: Notify = "hint",
        meter: Meter | None = None,
    ) -> None:
        self._store = store
        self._events = events
        # A job that is due within so many seconds from now requires a notification.
        self._horizon_s = horizon_s
        # This identifies the sender in a message, since a process ignores its own messages.
        self.mark = mark
        self._notify = notify
        self._meter = meter
        # The messages to send, and when each was last added, by the monotonic clock.
        self._messages: dict[str, float] = {}
        # When the first of the jobs is due that the message DUE announces; None if that is unknown.
        self._due: datetime | None = None
        # No notification is sent before this time of the monotonic clock.
        self._next_send = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None
        # The newest watch of each connection, by the method of the connection that returns its transaction.
        self._watched: dict[Callable[[], object], Watch] = {}
        self._on_due: Callable[[datetime | None], None] | None = None
        self._on_message: Callable[[], None] | None = None

    def attach(self, *, on_due: Callable[[datetime | None], None], on_message: Callable[[], None]) -> None:
        """Let a service send, by calling ``flush()``, until ``detach()`` is called.

        The service is ``Notifier`` of ``worker/notifications.py``. It passes the signal ``due``, which wakes
        the claimer of this process, and its own ``wake()``.

        Args:
            on_due: Called at once when a job is due within the horizon, so that this process can claim it. It
                gets the due time, or None if that is unknown.
            on_message: Called when there is a message to send.
        """
        self._on_due, self._on_message = on_due, on_message

    def detach(self) -> None:
        """Stop relying on a service: the outbox sends its messages itself."""
        self._on_due = self._on_message = None

    @property
    def flush_in(self) -> float | None:
        """Seconds until the messages may be sent; None if the outbox is empty."""
        return max(self._next_send - time.monotonic(), 0.0) if self._messages else None

    def is_near(self, due: datetime, now: datetime | None = None) -> bool:
        """Return whether a job due at this time requires a notification: it is due within the horizon.

        ``now`` is the time to compare with; None for that of the server as far as this process knows it.

        Clocks may differ by the horizon. A process without heartbeats does not know how far its clock differs
        from the server's. If its clock is behind by more than the horizon, a notification may be missing; if
        it is ahead, some are superfluous.
        """
        return (due - (now or self._store.statements.server_now)).total_seconds() <= self._horizon_s

    def may_carry(self) -> bool:
        """Return whether an insert of a job that is due soon should send the notification itself.

        It should not if the last notification was sent a moment ago: the outbox merges those that follow.
        """
        return time.monotonic() >= self._next_send

    def message_to_carry(self, *times: datetime) -> str:
        """Return the message for an insert of jobs that are due at these times.

        It covers the jobs of the queued notification too, so that one needs no message of its own.
        """
        queued = [self._due] if DUE in self._messages else []
        return due_message(self.mark, *queued, *times)

    def carried(self, since: float, due: datetime | None) -> None:
        """Record that an insert sent a notification of jobs, the first of which is due at ``due``.

        The notification covers all jobs that were committed before ``since``, by the monotonic clock.
        """
        self._next_send = time.monotonic() + self.gap_s
        if self._meter is not None:
            self._meter.count("notifications_sent")
        queued_at = self._messages.get(DUE)
        # The queued notification is about jobs that this one covers too.
        if queued_at is not None and queued_at < since:
            del self._messages[DUE]
            if not self._messages:
                self._cancel_timer()
        if self._on_due is not None:
            self._on_due(due)

    def notify_due_later(self, due: datetime | None) -> None:
        """Notify workers of a due job with the next insert, or separately if none follows in time."""
        self._queue_due(due)
        self._set_timer()

    async def notify_due(
        self, due: datetime, connection: Connection | None = None, notify: Notify | None = None
    ) -> None:
        """Notify workers of a job that is due at this time, if it is due soon.

        In the transaction of a caller, ``notify`` decides how; None for the setting of the Scheduler.
        """
        if not self.is_near(due):
            return
        if connection is not None:
            if self.is_sent_by_commit(connection, notify):
                # A message in a transaction of a caller has no mark, so this process does not ignore it.
                await self._store.locks.notify([due_message("", due)], connection=connection)
            else:
                self.notify_due_after(connection, due, notify)
        elif self.may_carry():
            self._queue_due(due)
            await self._send_or_wake()
        else:
            self.notify_due_later(due)

    def is_sent_by_commit(self, connection: Connection, notify: Notify | None = None) -> bool:
        """Return whether the commit of a caller notifies workers, instead of the outbox afterwards.

        ``notify`` is the setting of the call; None for the setting of the Scheduler. Under ``hint``, the
        commit notifies only if the outbox cannot: it cannot see the end of the transaction, or it is called
        outside of the event loop of the pool, by which it sends.
        """
        notify = notify or self._notify
        if notify != "hint":
            return notify == "commit"
        return transaction_of(connection) is None or not self._store.connections.is_in_loop

    def notify_due_after(
        self, connection: Connection, due: datetime | None, notify: Notify | None = None
    ) -> None:
        """Notify workers of a due job once the transaction of the caller has ended, if ``notify`` is hint."""
        read = transaction_of(connection)
        if (notify or self._notify) != "hint" or read is None:
            return
        loop = asyncio.get_running_loop()
        # This calls code of another library or of the application. The result is None if that fails.
        transaction = guarded(read, lambda _: None)
        # A method belongs to one connection. Any other function may read the connection of the current
        # context, so its result may differ at the next call.
        of_one_connection = isinstance(read, MethodType)
        watch = self._watched.get(read) if of_one_connection else None
        if watch is None or watch.transaction is not transaction:
            watch = Watch(read, transaction, due, self.first_look_s)
            if of_one_connection:
                self._watched[read] = watch
        else:
            watch.due, watch.wait_s = _earliest(watch.due, due), self.first_look_s
            # If the next look comes soon, it stays, so that many calls in one transaction cost one timer.
            if watch.timer is None or watch.timer.when() - loop.time() <= 2 * self.first_look_s:
                return
            watch.timer.cancel()
        watch.timer = loop.call_later(watch.wait_s, self._look, watch)

    def _look(self, watch: Watch) -> None:
        """Notify workers if the transaction of a caller has ended, else ask once more after twice the wait.

        After a wait of the horizon, give up: then nodes find the job by polling.
        """
        current = guarded(watch.read, lambda _: None)  # a released or closed connection may raise anything
        # A library without an object for its transactions returns True while one is open. Any other object
        # than the first one stands for a later transaction of the connection.
        is_another = current is not watch.transaction and current is not True
        has_ended = not current or is_another
        if has_ended:
            self._queue_due(watch.due)
            self._announce_message(carrier_wait_s=0.0)
        elif watch.wait_s < self._horizon_s:
            watch.wait_s *= 2
            watch.timer = asyncio.get_running_loop().call_later(watch.wait_s, self._look, watch)
            return
        # A later transaction of the connection may have a watch of its own, which stays.
        if isinstance(watch.read, MethodType) and self._watched.get(watch.read) is watch:
            del self._watched[watch.read]

    def add_due(self, due: datetime | None = None) -> None:
        """Queue a notification of a job that is due at this time; None if it is unknown."""
        self._queue_due(due)
        self._announce_message()

    async def notify_worker(self, worker_id: str, connection: Connection | None = None) -> None:
        """Notify a worker that one of its running jobs was changed; with a connection, by its commit.

        The worker sends a heartbeat then, which finds the change.
        """
        for message in _heartbeat_requests([worker_id]):
            if connection is None:
                await self._send(message)
            else:
                await self._store.locks.notify([message], connection=connection)

    async def request_heartbeats(self, worker_ids: Collection[str]) -> None:
        """Request heartbeats now. The workers' time to respond starts when this method returns."""
        if messages := _heartbeat_requests(worker_ids):
            await self._store.locks.notify(messages)

    async def notify_schedules(self) -> None:
        """Notify other nodes that a schedule was enabled or disabled."""
        await self._send(PERIODIC)

    def add_schedules(self) -> None:
        """Queue a notification that a schedule was enabled or disabled."""
        self._add(PERIODIC)

    async def flush(self) -> None:
        """Send all messages now.

        Raises:
            DatabaseUnavailableError: The messages were not sent. They are sent with the next ones.
        """
        self._cancel_timer()
        # Messages that are added during the statement belong to the next one.
        messages, due = self._messages, self._due
        self._messages = {}
        if messages:
            texts = [due_message(self.mark, due) if message == DUE else message for message in messages]
            try:
                await self._store.locks.notify(texts)
            except BaseException:  # a cancellation too: the messages go with the next ones
                # Jobs may have been added meanwhile. The message covers them and those of the failed one.
                if DUE in messages and DUE in self._messages:
                    self._due = _earliest(due, self._due)
                elif DUE in messages:
                    self._due = due
                self._messages = messages | self._messages
                raise
            if self._meter is not None:
                self._meter.count("notifications_sent", by=len(messages))
            self._next_send = time.monotonic() + self.gap_s

    async def flush_or_report(self) -> None:
        """Send all messages now; if that fails, log a WARNING.

        What the messages announce is committed, and other nodes find it by polling. So neither a call nor a
        shutdown fails without them. They are sent with the next ones, whose time is unknown.
        """
        try:
            await self.flush()
        except (DatabaseUnavailableError, ConfigurationError) as fault:
            self._events.publish(ServiceRetrying("notifier", fault, float("inf")))

    def _queue_due(self, due: datetime | None) -> None:
        """Queue the notification of a due job, or merge it with the queued one; call ``on_due`` at once."""
        if self._on_due is not None:
            self._on_due(due)
        # Without a queued message, ``_due`` is the time of an earlier one that was sent.
        self._due = _earliest(self._due, due) if DUE in self._messages else due
        self._messages[DUE] = time.monotonic()

    def _add(self, message: str) -> None:
        """Queue a message, and let it be sent soon."""
        self._messages[message] = time.monotonic()
        self._announce_message()

    def _announce_message(self, carrier_wait_s: float = carrier_wait_s) -> None:
        """Wake the service that sends the messages; if none is attached, set the timer that sends them."""
        if self._on_message is not None:
            self._on_message()
        else:
            self._set_timer(carrier_wait_s)

    async def _send(self, message: str) -> None:
        """Queue a message, and send the queued ones or wake the service that sends them."""
        self._messages[message] = time.monotonic()
        await self._send_or_wake()

    async def _send_or_wake(self) -> None:
        """Wake the service that sends the messages, or send them now if none is attached."""
        if self._on_message is not None:
            self._on_message()
            return
        await self.flush_or_report()

    def _set_timer(self, carrier_wait_s: float = carrier_wait_s) -> None:
        """Let a timer send the messages, unless an insert carries them before."""
        if self._timer is None:
            wait = (self.flush_in or 0.0) + carrier_wait_s
            self._timer = asyncio.get_running_loop().call_later(wait, self._timer_fired)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _timer_fired(self) -> None:
        """Wake the service that sends the messages; if none is attached, start a task that sends them."""
        self._timer = None
        if self._on_message is not None:
            self._on_message()
        # While the pool closes, the event loop may be closing too, and could not run the task.
        elif not self._store.connections.pool.is_closing():
            self._sending = start_in_background(self._send_or_wake(), "pg_scheduler notify")


def _earliest(due: datetime | None, other_due: datetime | None) -> datetime | None:
    """Return the earlier of two due times; None if one of them is unknown."""
    return None if due is None or other_due is None else min(due, other_due)


def _heartbeat_requests(worker_ids: Collection[str]) -> list[str]:
    """Return the messages that request heartbeats of workers."""
    messages = (f"{HEARTBEAT_REQUEST} {worker_id}" for worker_id in worker_ids)
    # A message that is too long has a worker id that was written by hand: no worker listens for it.
    return [message for message in messages if len(message.encode()) <= MAX_NOTIFICATION_BYTES]
