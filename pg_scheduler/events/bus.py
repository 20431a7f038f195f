"""The event bus passes each event to the subscribers of its class.

Plain functions are called at once, in the event loop's thread, and must not block it. Async functions and
iterators have queues.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from pg_scheduler.base.foreign import class_name, guarded, is_a, is_ctrl_c
from pg_scheduler.events.log import log_subscriber_error, logger, record_fields
from pg_scheduler.events.queues import AsyncSubscriber, EventStream, StreamQueue, check_handled
from pg_scheduler.events.types import LEVELS, Event, EventsDropped

Subscriber = Callable[[Event], object]

CANCELLATION_TIMEOUT_S: Final = 1.0
"""Seconds that a cancelled subscriber gets to end; then it is left alone."""


class Sink(Protocol):
    """Receives every event before the subscribers do. The log is a sink."""

    def __call__(self, event: Event) -> None:
        """Handle an event, or ignore it."""


@dataclass(frozen=True, slots=True, eq=False)
class _Subscription:
    """A receiver and the classes of its events. With ``once``, the first of these events ends it."""

    receiver: Subscriber | AsyncSubscriber | StreamQueue
    kinds: tuple[type[Event], ...]
    once: bool


class EventBus:
    """Passes each event to the subscribers of its class.

    Args:
        sink: Receives every event before the subscribers.
        worker_id: Returns the id of the worker whose events these are.
    """

    def __init__(
        self, sink: Sink | None = None, *, worker_id: Callable[[], str | None] = lambda: None
    ) -> None:
        self._sink = sink
        self._worker_id = worker_id
        self._subscriptions: list[_Subscription] = []
        self._routes: dict[type[Event], tuple[_Subscription, ...]] = {}
        self.on_change: Callable[[], None] | None = None
        """Called when a subscription begins or ends."""
        self._busy: dict[asyncio.Task[None], AsyncSubscriber] = {}
        """The tasks of async subscribers that are handling events."""

    def subscribe(
        self, subscriber: Subscriber, *kinds: type[Event], once: bool = False
    ) -> Callable[[], None]:
        """Call ``subscriber`` with every event of these classes, or with all events if none is given.

        Args:
            subscriber: A function. An async one is awaited in a task of its own.
            kinds: The classes.
            once: End the subscription with the first event.

        Returns:
            A function that ends the subscription. It also discards the events that are queued for an async
            function.

        Raises:
            TypeError: The subscriber is not a function, or a kind is not an event class.
        """
        if not callable(subscriber):
            raise TypeError(f"subscriber must be a function or an async function, not {subscriber!r}")
        check_kinds(kinds)
        if not _is_async(subscriber):
            return self._add(subscriber, kinds, once=once)
        async_subscriber = AsyncSubscriber(
            subscriber,
            _name_of(subscriber),
            on_overflow=self._log_overflow,
            worker_id=self._worker_id,
            busy=self._busy,
        )
        remove = self._add(async_subscriber, kinds, once=once)

        def unsubscribe() -> None:
            """End the subscription, and discard the events that wait for the function."""
            remove()
            async_subscriber.queue.clear()

        return unsubscribe

    def stream(self, *kinds: type[Event], name: str = "events()") -> EventStream:
        """Return an iterator over the events of these classes from now on.

        Args:
            kinds: The classes; all events if none is given.
            name: The name of the iterator in ``EventsDropped``.

        Raises:
            TypeError: A kind is not an event class.
        """
        check_kinds(kinds)
        queue = StreamQueue(name, self._log_overflow)
        return EventStream(queue, self._add(queue, kinds))

    @property
    def kinds(self) -> frozenset[type[Event]]:
        """The classes that have subscribers. A subscriber to all events adds the base class `Event`."""
        return frozenset(kind for subscription in self._subscriptions for kind in subscription.kinds)

    def wants(self, kind: type[Event]) -> bool:
        """Return whether an event of this class has a receiver. Without one, the event need not be created.

        The sink is a receiver if the log level of the class is enabled.
        """
        route = self._routes.get(kind)
        if route is None:
            route = self._route(kind)
        return bool(route) or (self._sink is not None and logger.isEnabledFor(LEVELS[kind]))

    def publish(self, event: Event) -> None:
        """Pass an event to its receivers. If a subscriber raises an error, log it and call the other ones."""
        if self._sink is not None:
            self._sink(event)
        kind = type(event)
        route = self._routes.get(kind)
        if route is None:
            route = self._route(kind)
        for subscription in route:
            if subscription.once:
                # A subscriber before this one may have published an event, which ended this subscription.
                if subscription not in self._subscriptions:
                    continue
                self._remove(subscription)
            receiver = subscription.receiver
            if isinstance(receiver, StreamQueue):
                receiver.put(event)
                continue
            try:
                check_handled(receiver(event))
            except BaseException as error:  # user code, which must not end the publisher
                if is_ctrl_c(error):
                    raise
                log_subscriber_error(_name_of(receiver), event, error, self._worker_id())

    def end_streams(self) -> None:
        """End every iteration after the events that are queued now, because the Scheduler has stopped."""
        for subscription in list(self._subscriptions):
            if isinstance(subscription.receiver, StreamQueue):
                self._remove(subscription)
                subscription.receiver.end()

    async def drain(self, timeout_s: float) -> None:
        """Wait until async subscribers have handled the queued events; cancel those that take longer.

        This waits neither for tasks of other event loops nor for the task of the caller, which may be that of
        a subscriber.
        """
        # One bus may be used in several event loops after each other, and `asyncio.wait()` takes tasks of the
        # running one only.
        current_task, loop = asyncio.current_task(), asyncio.get_running_loop()
        busy_tasks = [task for task in self._busy if task is not current_task and task.get_loop() is loop]
        if not busy_tasks:
            return
        _, late_tasks = await asyncio.wait(busy_tasks, timeout=timeout_s)
        for task in late_tasks:
            subscriber = self._busy[task]
            logger.warning(
                "event subscriber %s cancelled: it did not handle its events within %g s after the shutdown, "
                "%d more are discarded",
                subscriber.name,
                timeout_s,
                len(subscriber.queue),
                extra=record_fields(worker_id=self._worker_id()),
            )
            subscriber.queue.clear()
            task.cancel()
        # A cancelled subscriber may still clean up, for a short time.
        if late_tasks:
            await asyncio.wait(late_tasks, timeout=CANCELLATION_TIMEOUT_S)

    def _add(
        self, receiver: Subscriber | StreamQueue, kinds: tuple[type[Event], ...], *, once: bool = False
    ) -> Callable[[], None]:
        """Begin a subscription, to all events if there are no classes; return a function that ends it."""
        subscription = _Subscription(receiver, kinds or (Event,), once)
        self._subscriptions.append(subscription)
        self._changed()

        def remove() -> None:
            """End the subscription, unless it has ended."""
            # The subscription may have ended before: with its first event, or with the Scheduler.
            with suppress(ValueError):
                self._remove(subscription)

        return remove

    def _remove(self, subscription: _Subscription) -> None:
        """End a subscription; raise ValueError if it has ended before."""
        self._subscriptions.remove(subscription)
        self._changed()

    def _changed(self) -> None:
        """Forget the routes, which depend on the subscriptions, and report the change."""
        self._routes.clear()
        if self.on_change is not None:
            self.on_change()

    def _log_overflow(self, event: EventsDropped) -> None:
        """Log that a queue has dropped events. Of all subscribers, only that of the queue gets this event."""
        if self._sink is not None:
            self._sink(event)

    def _route(self, kind: type[Event]) -> tuple[_Subscription, ...]:
        """Find out, and remember, which subscriptions receive the events of this class."""
        route = tuple(
            subscription for subscription in self._subscriptions if issubclass(kind, subscription.kinds)
        )
        self._routes[kind] = route
        return route


def check_kinds(kinds: tuple[object, ...]) -> None:
    """Raise TypeError unless all of them are event classes."""
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, Event)):
            raise TypeError(f"kinds must be event classes of pg_scheduler.events, not {kind!r}")


def _is_async(subscriber: Subscriber) -> bool:
    """Return whether a subscriber is an async function, or an object that is called as one."""
    call = getattr(subscriber, "__call__", None)  # noqa: B004 - an object may have an async __call__
    return inspect.iscoroutinefunction(subscriber) or inspect.iscoroutinefunction(call)


def _name_of(subscriber: object) -> str:
    """Return the qualified name of a subscriber; if it has no such text, the name of its class."""
    # Objects of the user may raise any error when they are asked, or return a subclass of str.
    fallback = class_name(subscriber).rpartition(".")[2]
    name = guarded(lambda: getattr(subscriber, "__qualname__", fallback), lambda _: fallback)
    return str.__str__(name) if is_a(name, str) else fallback
