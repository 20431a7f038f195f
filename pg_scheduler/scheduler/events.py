"""The methods of `Scheduler` that pass events on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from pg_scheduler.cluster_events.wire import names_of
from pg_scheduler.errors import ConfigurationError, NotRunningError
from pg_scheduler.events import Event, EventBus, EventsDropped, EventsMissed, EventStream, Subscriber
from pg_scheduler.events.bus import check_kinds
from pg_scheduler.jobs.validation import check_kind, check_timeout
from pg_scheduler.scheduler.parts import SchedulerMethods

SUBSCRIBER_TIMEOUT_S: Final = 5.0
"""Seconds that async subscribers get at shutdown to handle their queued events."""

OF_EVERYONE: Final = (EventsDropped, EventsMissed)
"""Classes that a subscriber receives whatever its classes."""


class EventMethods(SchedulerMethods):
    """Subscribe to events, wait for one, and iterate over them."""

    def subscribe(
        self, subscriber: Subscriber, *kinds: type[Event], once: bool = False, cluster: bool = False
    ) -> Callable[[], None]:
        """Call ``subscriber`` with events of these classes of ``pg_scheduler.events``, or with all events.

        A plain function is called in the event loop at once, so it must not block. An async function has a
        queue of 1,000 events and a task that awaits it with one event after the other. When the queue is
        full, the oldest events are dropped, and it receives ``EventsDropped`` with their number. Await
        ``asyncio.to_thread()`` in it to call blocking code. An exception that a subscriber raises is logged,
        and stops neither the next event nor another subscriber.

        With ``cluster=True``, the subscriber receives the events of every started Scheduler of the database:
        at most once, in the order of each node, and without exceptions and stacks; an error has at most 200
        characters. Nodes send a class only while a worker subscribes to it, from some milliseconds after the
        call on. When events may have been lost, the subscriber receives ``EventsMissed`` and must read the
        rows. Every role that may NOTIFY in the database can forge such events.

        ``shutdown()`` waits for up to 5 seconds until async subscribers have handled their queues. The
        subscription remains for the next ``start()``.

        Args:
            subscriber: The function.
            kinds: The classes; a base class stands for its subclasses. All events if none is given.
            once: End the subscription with the first event.
            cluster: Receive the events of all nodes. Requires a started Scheduler with a LISTEN connection.

        Returns:
            A function that ends the subscription. An async function is not called with queued events then.

        Raises:
            TypeError: ``subscriber`` is not a function, a kind is not an event class, or ``once`` or
                ``cluster`` is not a bool.
            ValueError: ``cluster=True``, and a class concerns one process only, such as PassFinished.
            NotRunningError: ``cluster=True``, and the Scheduler is not running.
            ConfigurationError: ``cluster=True``, and notifications do not arrive: the pool is too small, or a
                pooler is in between and there is no ``direct_dsn``. A ValueError.

        Example::

            from pg_scheduler.events import JobFailed

            unsubscribe = scheduler.subscribe(print, JobFailed)
        """
        check_kind("once", once, bool)
        bus, kinds = self._source(kinds, cluster=cluster)
        return bus.subscribe(subscriber, *kinds, once=once)

    async def next_event(
        self, *kinds: type[Event], cluster: bool = False, timeout: float | timedelta | None = None
    ) -> Event:
        """Wait for the next event of these classes, or of any class, and return it.

        Args:
            kinds: The classes; a base class stands for its subclasses.
            cluster: Wait for an event of any node, or for EventsMissed; see ``subscribe()``.
            timeout: Seconds or a timedelta; None to wait without limit.

        Raises:
            TypeError: A kind is not an event class, or ``cluster`` is not a bool.
            ValueError: The timeout is not a positive number, or a class is not sent to other nodes.
            TimeoutError: There was no event in time.
            NotRunningError: The Scheduler stopped before there was one, or ``cluster=True`` and it is not
                running.
            ConfigurationError: ``cluster=True``, and notifications do not arrive.

        Example::

            from pg_scheduler.events import JobFailed

            try:
                print(await scheduler.next_event(JobFailed, timeout=0.1))
            except TimeoutError:
                print("no job has failed meanwhile")
        """
        self._parts.store.connections.check_loop()
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

    def events(self, *kinds: type[Event], cluster: bool = False) -> EventStream:
        """Return an asynchronous iterator over the events of these classes, or over all events.

        It collects up to 1,000 events from the call on, also between two steps. If the loop falls further
        behind, the oldest events are dropped, and ``EventsDropped`` with their number takes their place. The
        iteration ends when the Scheduler has stopped.

        Args:
            kinds: The classes; a base class stands for its subclasses.
            cluster: Iterate over the events of all nodes, and EventsMissed; see ``subscribe()``.

        Raises:
            TypeError: A kind is not an event class, or ``cluster`` is not a bool.
            ValueError: ``cluster=True``, and a class is not sent to other nodes.
            NotRunningError: ``cluster=True``, and the Scheduler is not running.
            ConfigurationError: ``cluster=True``, and notifications do not arrive.

        Example::

            from pg_scheduler.events import JobCompleted

            completed = scheduler.events(JobCompleted)
            await scheduler.schedule(send_mail, execution_time=datetime.now(UTC))
            async for event in completed:
                print(event)
                break
        """
        bus, kinds = self._source(kinds, cluster=cluster)
        return bus.stream(*kinds)

    def _source(
        self, kinds: tuple[type[Event], ...], *, cluster: bool
    ) -> tuple[EventBus, tuple[type[Event], ...]]:
        """Return the bus to subscribe to, and the classes."""
        check_kinds(kinds)
        if not check_kind("cluster", cluster, bool):
            return self._parts.events, kinds
        refusal = self._parts.running().listener.refusal
        if refusal is not None:
            raise ConfigurationError(f"cluster=True requires notifications: {refusal}")
        if local := [kind.__name__ for kind in kinds if kind not in OF_EVERYONE and not names_of([kind])]:
            raise ValueError(
                f"{', '.join(local)} concerns one process only and is not sent to other nodes; subscribe "
                "to it without cluster=True"
            )
        return self._parts.cluster_events, (*kinds, EventsMissed) if kinds else ()
