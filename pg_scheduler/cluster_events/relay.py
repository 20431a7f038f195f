"""Send events to the workers that subscribe to them, and receive the events of other workers.

A worker writes the event classes that it wants into its row, and notifies the other workers. Their heartbeats
read the rows. While any worker wants a class, the other workers collect the events of that class, and send
them with one statement per 10 ms. An event is published after the commit of the change that it reports, so it
is sent after that commit too. Nothing is sent twice: if a statement fails, its events are lost. The
notifications of a node are numbered, so a receiver detects a gap.

Every database role may send notifications. The relay ignores the notifications that it cannot read.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import ClassVar, Final

from pg_scheduler.base.messages import EVENTS, SUBSCRIPTIONS
from pg_scheduler.cluster_events.wire import carried_kinds, decode, encode, names_of, without_details
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.events import Event, EventsMissed, JobProgressed, WorkerStopped
from pg_scheduler.queue.outbox import MAX_NOTIFICATION_BYTES
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.service import NEVER, Service

MAX_SENDERS: Final = 1000
"""The maximum number of nodes for which the number of their last notification is remembered."""

MAX_SENDER_LENGTH: Final = 32
MAX_NUMBER_LENGTH: Final = 15


class EventRelay(Service):
    """Send events of this process to other nodes, and publish events of other nodes in this process."""

    name: ClassVar[str] = "event_relay"
    gap_s = 0.01
    """Seconds between two notifications."""
    linger_s = 10.0
    """Seconds for which a class without subscribers remains announced: the next call often wants it."""
    max_waiting = 5_000
    """Events that wait to be sent; older ones are dropped."""
    max_batch = 500
    """Events sent by one statement."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.events)
        self._store = node.store
        # If a codec encrypts the progress notes in the tables, notifications must not carry them readable.
        codec = node.store.statements.codec
        self._hides_notes = codec is not None and codec.key_id is not None
        self._cluster = node.cluster_events
        self._worker_id = node.worker_id
        self._audience = node.audience
        self._is_attached = False
        self._unsubscribe: Callable[[], None] = lambda: None
        # The names of the classes that subscribers of this process want, and those that the row of this
        # worker has.
        self._own_names: frozenset[str] = frozenset()
        self._announced: frozenset[str] = frozenset()
        # When the classes without subscribers are removed from the row, by the monotonic clock.
        self._withdraw_at = 0.0
        self._waiting: deque[Event] = deque()
        # When the next notification may be sent, by the monotonic clock.
        self._next_send = 0.0
        # What identifies this process in its notifications, and the number of the last one.
        self._sender = secrets.token_hex(6)
        self._number = 0
        # The number and the time of the last notification of each node.
        self._last_received: OrderedDict[str, tuple[int, datetime]] = OrderedDict()

    async def prepare(self) -> None:
        """Begin to follow the subscribers and the events of this process."""
        self._is_attached = True
        self._cluster.on_change = self._subscribers_changed
        self._own_names = names_of(self._cluster.kinds)
        self.follow()

    async def run_once(self) -> float:
        """Announce the classes that this worker wants, and send events.

        Returns:
            The seconds until the next pass.
        """
        announce_in_s = await self._announce()
        send_in_s = await self._send()
        return min(announce_in_s, send_in_s)

    async def drain(self) -> None:
        """Send the last events and the end of this worker, then end the iterations over events."""
        if self._is_attached:
            # The lifecycle publishes this event only after all parts have stopped, when nothing can be sent.
            self.relay(WorkerStopped(self._worker_id))
            self._is_attached = False
            self._cluster.on_change = None
            self._unsubscribe()
            # A shutdown does not fail because events are lost.
            with suppress(DatabaseUnavailableError):
                while self._waiting:
                    await self._send(at_once=True)
        self._cluster.end_streams()

    def follow(self) -> None:
        """Subscribe to the classes that subscribers here or other workers want now, and to no other class.

        A subscription to a class costs time for every job that has such an event.
        """
        if not self._is_attached:
            return
        self._unsubscribe()
        wanted_names = self._own_names | self._audience.kinds
        classes = [event_class for name, event_class in carried_kinds().items() if name in wanted_names]
        # A subscription without classes would be one to all events.
        if classes:
            self._unsubscribe = self._events.subscribe(self.relay, *classes)
        else:
            self._unsubscribe = lambda: None
        # No other worker wants the events that wait to be sent.
        if not self._audience.kinds:
            self._waiting.clear()

    def announce_again(self) -> None:
        """Write the wanted classes again, since the row of this worker is new and has none."""
        if self._announced:
            self._announced = frozenset()
            self.wake()

    def relay(self, event: Event) -> None:
        """Pass an event of this process on to subscribers to events of all nodes, here and elsewhere."""
        name = type(event).__name__
        # Another node wants the class, so the event is queued for a notification.
        if name in self._audience.kinds:
            if len(self._waiting) >= self.max_waiting:
                self._waiting.popleft()
                # A number is skipped for the dropped event, so that receivers detect a gap.
                self._number += 1
            if self._hides_notes and isinstance(event, JobProgressed):
                event = replace(event, note=None)
            self._waiting.append(event)
            # A pass is planned already if other events wait.
            if len(self._waiting) == 1:
                self.wake()
        # Subscribers of this process get the event as those of other nodes do.
        if name in self._own_names:
            copy = without_details(event)
            if copy is not None:
                self._cluster.publish(copy)

    def receive(self, message: str) -> None:
        """Publish the events of a notification of another node.

        The text is the sender, a number, and a JSON array of events. ``relay()`` has published the events of
        this process already, so its own notifications are ignored.
        """
        # No subscriber of this process wants events.
        if not self._own_names:
            return
        sender, _, remainder = message.partition(" ")
        number, _, text = remainder.partition(" ")
        is_number = number.isascii() and number.isdigit() and len(number) <= MAX_NUMBER_LENGTH
        is_valid = is_number and len(sender) <= MAX_SENDER_LENGTH
        if not is_valid or sender == self._sender:
            return
        events = decode(text)
        if events:
            self._note_received(sender, int(number))
        for event in events:
            self._cluster.publish(event)

    def missed(self, since: datetime) -> None:
        """Report that notifications may have been lost since this time."""
        self._last_received.clear()
        self._cluster.publish(EventsMissed(since))

    def _note_received(self, sender: str, number: int) -> None:
        """Remember the number of a notification, and report a gap after the sender's previous number.

        The first notification of a sender leaves no gap.
        """
        now = datetime.now(UTC)
        # The entry is removed and added, so that the first one is that of the sender who has sent nothing for
        # the longest time.
        previous_number, previous_at = self._last_received.pop(sender, (number, now))
        self._last_received[sender] = (number, now)
        if len(self._last_received) > MAX_SENDERS:
            self._last_received.popitem(last=False)
        if number > previous_number + 1:
            self._cluster.publish(EventsMissed(previous_at))

    def _subscribers_changed(self) -> None:
        """Follow and announce the classes that the subscribers of this process want now."""
        names = names_of(self._cluster.kinds)
        # While a class without subscribers is still announced, each change begins its time to linger again.
        if names != self._own_names or names != self._announced:
            self._own_names = names
            self._withdraw_at = time.monotonic() + self.linger_s
            self.follow()
            self.wake()

    async def _announce(self) -> float:
        """Write the wanted classes into the row of this worker if the row has others.

        A new class is written at once. A class without subscribers remains in the row until its time to
        linger is over. Return the seconds until the next call.
        """
        names = self._own_names
        if names == self._announced:
            return NEVER
        # If the wanted classes are only a part of the announced ones, none of them is new.
        has_new_names = not names < self._announced
        if has_new_names:
            # A new class is announced now. Classes without subscribers stay until their time is over.
            names |= self._announced
        else:
            wait_s = self._withdraw_at - time.monotonic()
            if wait_s > 0:
                return wait_s
        message = f"{SUBSCRIPTIONS} {self._worker_id}"
        await self._store.workers.announce_subscriptions(self._worker_id, sorted(names), message)
        self._announced = names
        # The next call removes classes without subscribers, or finds how long they remain.
        return 0 if names != self._own_names else NEVER

    async def _send(self, *, at_once: bool = False) -> float:
        """Send a batch of events if the last one was sent long enough ago.

        Return the seconds until the next call.

        Args:
            at_once: Whether to send without a pause after the last batch.
        """
        if not self._waiting:
            return NEVER
        wait_s = self._next_send - time.monotonic()
        if wait_s > 0 and not at_once:
            return wait_s
        size = min(len(self._waiting), self.max_batch)
        batch = [self._waiting.popleft() for _ in range(size)]
        messages = list(self._messages(batch))
        if messages:
            await self._store.locks.notify(messages)
        self._next_send = time.monotonic() + self.gap_s
        return self.gap_s if self._waiting else NEVER

    def _messages(self, events: Iterable[Event]) -> Iterable[str]:
        """Yield notifications that are short enough for PostgreSQL; events that are too long are left out."""
        parts: list[str] = []
        # The part of a notification that is not events, with the longest possible number.
        longest_head = f"{EVENTS} {self._sender} {'9' * MAX_NUMBER_LENGTH} []"
        # The length of the parts with their commas. The text is ASCII, so characters are bytes.
        size = 0
        for event in events:
            part = encode(event)
            if len(longest_head) + len(part) > MAX_NOTIFICATION_BYTES:
                # A number is skipped for the event that is too long, so that receivers detect a gap.
                self._number += 1
                continue
            if parts and len(longest_head) + size + len(part) > MAX_NOTIFICATION_BYTES:
                yield self._message(parts)
                parts, size = [], 0
            parts.append(part)
            size += len(part) + 1
        if parts:
            yield self._message(parts)

    def _message(self, parts: Iterable[str]) -> str:
        """Return a notification with the next number."""
        self._number += 1
        return f"{EVENTS} {self._sender} {self._number} [{','.join(parts)}]"
