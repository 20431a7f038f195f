"""Send events to the workers that subscribe to them, and receive theirs.

A worker writes the classes that it wants into its row and notifies the others, whose heartbeats read the
rows. While a worker wants a class, the events of that class are collected and sent with one statement per
10 ms, after the commit that they are about. Nothing is sent twice: if a statement fails, its events are lost.
The notifications of a node are numbered, so a receiver detects a gap.

Every role may send notifications. The relay ignores those that it cannot read.
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
"""Nodes whose last number is remembered."""

MAX_SENDER_LENGTH: Final = 32
MAX_NUMBER_LENGTH: Final = 15


class EventRelay(Service):
    """Connect the events of this process with those of other nodes."""

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
        codec = node.store.statements.codec
        self._hides_notes = codec is not None and codec.key_id is not None
        self._cluster = node.cluster_events
        self._worker_id = node.worker_id
        self._audience = node.audience
        self._is_attached = False
        self._unsubscribe: Callable[[], None] = lambda: None
        self._own_kinds: frozenset[str] = frozenset()
        self._announced: frozenset[str] = frozenset()
        self._withdraw_at = 0.0
        self._waiting: deque[Event] = deque()
        self._next_send = 0.0
        self._sender = secrets.token_hex(6)
        self._number = 0
        # The number and the time of the last notification of each node.
        self._last_received: OrderedDict[str, tuple[int, datetime]] = OrderedDict()

    async def prepare(self) -> None:
        """Attach to the subscribers and to the events of this process."""
        self._is_attached = True
        self._cluster.on_change = self._subscribers_changed
        self._own_kinds = names_of(self._cluster.kinds)
        self.follow()

    async def run_once(self) -> float:
        """Announce the classes that this worker wants, and send events."""
        announce_in = await self._announce()
        return min(announce_in, await self._send())

    async def drain(self) -> None:
        """Send the last events, and the end of this worker; end the iterations over events."""
        if self._is_attached:
            self.relay(WorkerStopped(self._worker_id))
            self._is_attached = False
            self._cluster.on_change = None
            self._unsubscribe()
            with suppress(DatabaseUnavailableError):  # events may be lost; results are written elsewhere
                while self._waiting:
                    await self._send(now=True)
        self._cluster.end_streams()

    def follow(self) -> None:
        """Relay the classes that are wanted now, and no others: they would cost every job."""
        if not self._is_attached:
            return
        self._unsubscribe()
        kinds = [
            kind for name, kind in carried_kinds().items() if name in self._own_kinds | self._audience.kinds
        ]
        self._unsubscribe = self._events.subscribe(self.relay, *kinds) if kinds else lambda: None
        if not self._audience.kinds:
            self._waiting.clear()

    def announce_again(self) -> None:
        """Write the wanted classes into the new row of this worker."""
        if self._announced:
            self._announced = frozenset()
            self.wake()

    def relay(self, event: Event) -> None:
        """Pass an event of this process on to the subscribers here and on other nodes."""
        name = type(event).__name__
        if name in self._audience.kinds:
            if len(self._waiting) >= self.max_waiting:
                self._waiting.popleft()
                # Its number is used up, so that receivers detect a gap.
                self._number += 1
            if self._hides_notes and isinstance(event, JobProgressed):
                event = replace(event, note=None)
            self._waiting.append(event)
            if len(self._waiting) == 1:
                self.wake()
        if name in self._own_kinds and (copy := without_details(event)) is not None:
            self._cluster.publish(copy)

    def receive(self, message: str) -> None:
        """Publish the events of a notification of another node."""
        if not self._own_kinds:
            return
        sender, _, remainder = message.partition(" ")
        number, _, text = remainder.partition(" ")
        is_valid = len(sender) <= MAX_SENDER_LENGTH and len(number) <= MAX_NUMBER_LENGTH
        if sender == self._sender or not is_valid or not (number.isascii() and number.isdigit()):
            return
        events = decode(text)
        if events:
            self._note_received(sender, int(number))
        for event in events:
            self._cluster.publish(event)

    def missed(self, since: datetime) -> None:
        """Report that notifications may have been lost since then."""
        self._last_received.clear()
        self._cluster.publish(EventsMissed(since))

    def _note_received(self, sender: str, number: int) -> None:
        now = datetime.now(UTC)
        previous_number, received_at = self._last_received.pop(sender, (number, now))
        self._last_received[sender] = (number, now)
        if len(self._last_received) > MAX_SENDERS:
            self._last_received.popitem(last=False)
        if number > previous_number + 1:
            self._cluster.publish(EventsMissed(received_at))

    def _subscribers_changed(self) -> None:
        kinds = names_of(self._cluster.kinds)
        if kinds != self._own_kinds or kinds != self._announced:
            self._own_kinds = kinds
            self._withdraw_at = time.monotonic() + self.linger_s
            self.follow()
            self.wake()

    async def _announce(self) -> float:
        kinds = self._own_kinds
        if kinds == self._announced:
            return NEVER
        if kinds < self._announced:
            wait_s = self._withdraw_at - time.monotonic()
            if wait_s > 0:
                return wait_s
        else:
            kinds |= self._announced
        message = f"{SUBSCRIPTIONS} {self._worker_id}"
        await self._store.workers.announce_subscriptions(self._worker_id, sorted(kinds), message)
        self._announced = kinds
        return 0 if kinds != self._own_kinds else NEVER

    async def _send(self, *, now: bool = False) -> float:
        if not self._waiting:
            return NEVER
        wait = self._next_send - time.monotonic()
        if wait > 0 and not now:
            return wait
        size = min(len(self._waiting), self.max_batch)
        messages = list(self._messages([self._waiting.popleft() for _ in range(size)]))
        if messages:
            await self._store.locks.notify(messages)
        self._next_send = time.monotonic() + self.gap_s
        return self.gap_s if self._waiting else NEVER

    def _messages(self, events: Iterable[Event]) -> Iterable[str]:
        """Yield notifications, none of which is longer than PostgreSQL takes."""
        parts: list[str] = []
        longest_head = f"{EVENTS} {self._sender} {'9' * MAX_NUMBER_LENGTH} []"
        size = 0
        for event in events:
            part = encode(event)
            if len(longest_head) + len(part) > MAX_NOTIFICATION_BYTES:
                # The number of this event is used up, so that receivers detect a gap.
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
        self._number += 1
        return f"{EVENTS} {self._sender} {self._number} [{','.join(parts)}]"
