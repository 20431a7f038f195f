"""Events of this node and of all nodes, for subscribers, iterators and callers that wait for one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from pg_scheduler.base.lazy_imports import LazyModule
from pg_scheduler.errors import ConfigurationError, NotRunningError
from pg_scheduler.events import Event, EventBus, EventsDropped, EventsMissed, EventStream, Subscriber
from pg_scheduler.events.bus import check_kinds
from pg_scheduler.jobs.validation import check_kind, check_timeout
from pg_scheduler.scheduler.parts import Parts

if TYPE_CHECKING:
    from pg_scheduler.cluster_events import wire
else:
    wire = LazyModule("pg_scheduler.cluster_events.wire")


SUBSCRIBER_TIMEOUT_S: Final = 5.0
"""Seconds that async subscribers get at shutdown to handle their queued events."""

OF_EVERYONE: Final = (EventsDropped, EventsMissed)
"""Classes whose events every subscriber receives, whichever classes it subscribes to."""

Kinds = tuple[type[Event], ...]


class Events:
    """The events of a Scheduler, or with ``cluster=True`` the events of all nodes."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def subscribe(
        self, subscriber: Subscriber, kinds: Kinds, *, once: bool, cluster: bool
    ) -> Callable[[], None]:
        """Call the subscriber with events of these classes; return a function that ends the subscription."""
        check_kind("once", once, bool)
        bus, kinds = self._source(kinds, cluster=cluster)
        return bus.subscribe(subscriber, *kinds, once=once)

    async def next(self, kinds: Kinds, *, cluster: bool, timeout: float | timedelta | None) -> Event:
        """Wait for the next event of these classes, and return it."""
        self._parts.store.connections.check_loop()
        # None is no limit.
        limit_s = check_timeout(timeout)
        bus, kinds = self._source(kinds, cluster=cluster)
        stream = bus.stream(*kinds, name="next_event()")
        try:
            async with asyncio.timeout(limit_s):
                return await anext(stream)
        except TimeoutError:
            names = " or ".join(kind.__name__ for kind in kinds) or "event"
            raise TimeoutError(f"no {names} within {limit_s:g} s; pass a longer timeout=") from None
        except StopAsyncIteration:
            raise NotRunningError("the Scheduler stopped while next_event() waited") from None
        finally:
            await stream.aclose()

    def stream(self, kinds: Kinds, *, cluster: bool) -> EventStream:
        """Return an iterator over the events of these classes."""
        # The events arrive in the event loop of the Scheduler, and would not wake a reader in another one.
        self._parts.store.connections.check_thread()
        bus, kinds = self._source(kinds, cluster=cluster)
        return bus.stream(*kinds)

    async def drain(self) -> None:
        """Wait until async subscribers have handled their queues, for a few seconds."""
        for bus in (self._parts.events, self._parts.cluster_events):
            await bus.drain(SUBSCRIBER_TIMEOUT_S)

    def _source(self, kinds: Kinds, *, cluster: bool) -> tuple[EventBus, Kinds]:
        """Return the event bus to subscribe to, and the classes of events to receive from it.

        The bus is that of this process, or with ``cluster`` the one for the events of all nodes. An empty
        tuple stands for all classes.

        Raises:
            ConfigurationError: ``cluster`` is True, and notifications do not arrive.
            NotRunningError: ``cluster`` is True, and the Scheduler is not running.
            ValueError: ``cluster`` is True, and a class is not sent to other nodes.
        """
        check_kinds(kinds)
        if not check_kind("cluster", cluster, bool):
            return self._parts.events, kinds
        refusal = self._parts.running().listener.refusal
        if refusal is not None:
            raise ConfigurationError(f"cluster=True requires notifications: {refusal}")
        # names_of() returns the names under which events of a class are sent; none for a class that is not.
        sent_kinds = [kind for kind in kinds if kind in OF_EVERYONE or wire.names_of([kind])]
        local_names = [kind.__name__ for kind in kinds if kind not in sent_kinds]
        if local_names:
            raise ValueError(
                f"{', '.join(local_names)} concerns one process only and is not sent to other nodes; "
                "subscribe to it without cluster=True"
            )
        # A subscriber of some classes must also learn that it has missed events. Without any class, it
        # receives all events anyway.
        kinds_to_receive = (*kinds, EventsMissed) if kinds else ()
        return self._parts.cluster_events, kinds_to_receive
