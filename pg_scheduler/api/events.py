"""The methods of `Scheduler` that pass events on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from pg_scheduler.api.base import SchedulerParts
from pg_scheduler.errors import NotRunningError
from pg_scheduler.events import Event, EventStream, Subscriber
from pg_scheduler.jobs.validation import check_timeout

__all__ = ["SUBSCRIBER_TIMEOUT_S", "EventMethods"]

SUBSCRIBER_TIMEOUT_S: Final = 5.0
"""Seconds that async subscribers get at shutdown to handle their queued events."""


class EventMethods(SchedulerParts):
    """Subscribe to events, wait for one, and iterate over them."""

    def subscribe(
        self, subscriber: Subscriber, *kinds: type[Event], once: bool = False
    ) -> Callable[[], None]:
        """Call ``subscriber`` with events of these classes of ``pg_scheduler.events``, or with all events.

        A plain function is called in the event loop at once, so it must not block. An async function has a
        queue of 1,000 events and a task that awaits it with one event after the other. When the queue is
        full, the oldest events are dropped, and it receives ``EventsDropped`` with their number. Await
        ``asyncio.to_thread()`` in it to call blocking code. An exception that a subscriber raises is logged,
        and stops neither the next event nor another subscriber.

        ``shutdown()`` waits for up to 5 seconds until async subscribers have handled their queues. The
        subscription remains for the next ``start()``.

        Args:
            subscriber: The function.
            kinds: The classes; a base class stands for its subclasses. All events if none is given.
            once: End the subscription with the first event.

        Returns:
            A function that ends the subscription. An async function is not called with queued events then.

        Raises:
            TypeError: ``subscriber`` is not a function, or a kind is not an event class.

        Example::

            from pg_scheduler.events import JobFailed

            unsubscribe = scheduler.subscribe(print, JobFailed)
        """
        return self._events.subscribe(subscriber, *kinds, once=once)

    async def next_event(self, *kinds: type[Event], timeout: float | timedelta | None = None) -> Event:
        """Wait for the next event of these classes, or of any class, and return it.

        Args:
            kinds: The classes; a base class stands for its subclasses.
            timeout: Seconds or a timedelta; None to wait without limit.

        Raises:
            TypeError: A kind is not an event class.
            ValueError: The timeout is not a positive number.
            TimeoutError: There was no event in time.
            NotRunningError: The Scheduler stopped before there was one.

        Example::

            from pg_scheduler.events import JobFailed

            try:
                print(await scheduler.next_event(JobFailed, timeout=0.1))
            except TimeoutError:
                print("no job has failed meanwhile")
        """
        limit_s = check_timeout(timeout)
        stream = self._events.stream(*kinds, name="next_event()")
        try:
            async with asyncio.timeout(limit_s):
                return await anext(stream)
        except StopAsyncIteration:
            raise NotRunningError("the Scheduler stopped while next_event() waited") from None
        finally:
            await stream.aclose()

    def events(self, *kinds: type[Event]) -> EventStream:
        """Return an asynchronous iterator over the events of these classes, or over all events.

        It collects up to 1,000 events from the call on, also between two steps. If the loop falls further
        behind, the oldest events are dropped, and ``EventsDropped`` with their number takes their place. The
        iteration ends when the Scheduler has stopped.

        Args:
            kinds: The classes; a base class stands for its subclasses.

        Raises:
            TypeError: A kind is not an event class.

        Example::

            from pg_scheduler.events import JobCompleted

            completed = scheduler.events(JobCompleted)
            await scheduler.schedule(send_mail, execution_time=datetime.now(UTC))
            async for event in completed:
                print(event)
                break
        """
        return self._events.stream(*kinds)
