"""The event bus: pass each event to the subscribers of its class.

Subscribers are called in the event loop's thread and must not block it.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Protocol

from pg_scheduler.events.types import Event

__all__ = ["EventBus", "Sink", "Subscriber"]

logger = logging.getLogger("pg_scheduler")


Subscriber = Callable[[Event], None]


class Sink(Protocol):
    """Where every event goes that it wants at the moment; the log."""

    def wants(self, kind: type[Event]) -> bool:
        """Whether it would do anything with an event of this class now."""

    def __call__(self, event: Event) -> None:
        """Take an event."""


class EventBus:
    """Hands each event to the subscribers of its class.

    Args:
        sink: Gets every event that it wants, before the subscribers.
    """

    def __init__(self, sink: Sink | None = None) -> None:
        self._sink = sink
        self._subscriptions: list[tuple[Subscriber, tuple[type[Event], ...]]] = []
        self._routes: dict[type[Event], tuple[Subscriber, ...]] = {}

    def subscribe(self, subscriber: Subscriber, *kinds: type[Event]) -> Callable[[], None]:
        """Call ``subscriber`` with every event of these classes (of all, when none is named).

        Returns:
            A function that ends the subscription.

        Raises:
            TypeError: The subscriber is no plain function, or a kind is no class of events.
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
        """Whether anybody would see an event of this class now; if not, it need not be made."""
        return bool(self._route(kind)) or (self._sink is not None and self._sink.wants(kind))

    def publish(self, event: Event) -> None:
        """Hand the event on. A subscriber that raises is logged and does not stop the others."""
        if self._sink is not None:
            self._sink(event)
        for subscriber in self._route(type(event)):
            try:
                subscriber(event)
            except Exception:  # a subscriber's mistake must not end the service that published
                logger.exception("an event subscriber failed on %r", event)

    def _route(self, kind: type[Event]) -> tuple[Subscriber, ...]:
        route = self._routes.get(kind)
        if route is None:
            route = tuple(subscriber for subscriber, kinds in self._subscriptions if issubclass(kind, kinds))
            self._routes[kind] = route
        return route


def _check_subscription(subscriber: object, kinds: tuple[object, ...]) -> None:
    if not callable(subscriber) or inspect.iscoroutinefunction(subscriber):
        raise TypeError(f"a subscriber is a plain function, called in the event loop, not {subscriber!r}")
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, Event)):
            raise TypeError(f"the kinds of events to subscribe to are classes of Event, not {kind!r}")
