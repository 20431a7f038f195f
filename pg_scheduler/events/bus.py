"""The event bus passes each event to the subscribers of its class.

Subscribers are called in the event loop's thread and must not block it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Protocol

from pg_scheduler.events.log import event_fields, logger, message_of
from pg_scheduler.events.types import Event

__all__ = ["EventBus", "Sink", "Subscriber"]

Subscriber = Callable[[Event], None]


class Sink(Protocol):
    """Receives every event before the subscribers do, as the log does."""

    def wants(self, kind: type[Event]) -> bool:
        """Return whether the sink handles events of this class now."""

    def __call__(self, event: Event) -> None:
        """Handle an event."""


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
        self._subscriptions: list[tuple[Subscriber, tuple[type[Event], ...]]] = []
        self._routes: dict[type[Event], tuple[Subscriber, ...]] = {}

    def subscribe(self, subscriber: Subscriber, *kinds: type[Event]) -> Callable[[], None]:
        """Call ``subscriber`` with every event of these classes, or with all events if none is given.

        Returns:
            A function that ends the subscription.

        Raises:
            TypeError: The subscriber is not a plain function, or a kind is not an event class.
        """
        _check_subscription(subscriber, kinds)
        entry = (subscriber, kinds or (Event,))
        self._subscriptions.append(entry)
        self._routes.clear()

        def unsubscribe() -> None:
            if entry in self._subscriptions:
                self._subscriptions.remove(entry)
                self._routes.clear()

        return unsubscribe

    def wants(self, kind: type[Event]) -> bool:
        """Return whether an event of this class has a receiver. Otherwise it need not be created."""
        return bool(self._route(kind)) or (self._sink is not None and self._sink.wants(kind))

    def publish(self, event: Event) -> None:
        """Pass the event on. If a subscriber raises, log the error and call the others."""
        if self._sink is not None:
            self._sink(event)
        for subscriber in self._route(type(event)):
            try:
                subscriber(event)
            except (Exception, asyncio.CancelledError):  # must not end the service that published
                template, values = message_of(event)
                logger.exception(
                    f"event subscriber %(subscriber)s raised an exception on: {template}",  # noqa: G004 - a constant
                    {**values, "subscriber": _name_of(subscriber)},
                    extra=event_fields(event, self._worker_id()),
                )

    def _route(self, kind: type[Event]) -> tuple[Subscriber, ...]:
        route = self._routes.get(kind)
        if route is None:
            route = tuple(subscriber for subscriber, kinds in self._subscriptions if issubclass(kind, kinds))
            self._routes[kind] = route
        return route


def _check_subscription(subscriber: object, kinds: tuple[object, ...]) -> None:
    if not callable(subscriber) or inspect.iscoroutinefunction(subscriber):
        raise TypeError(
            f"subscriber must be a plain function, not {subscriber!r}; a coroutine would not be awaited"
        )
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, Event)):
            raise TypeError(f"kinds must be event classes of pg_scheduler.events, not {kind!r}")


def _name_of(subscriber: Subscriber) -> str:
    return getattr(subscriber, "__qualname__", type(subscriber).__name__)
