"""Queues between the publisher of events and those who handle them later: async functions and iterators.

A publisher never waits. A queue keeps the newest 1,000 events; ``EventsDropped`` takes the place of the
dropped ones.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, MutableMapping
from contextvars import copy_context
from typing import Any, Final, Self

from pg_scheduler.base.foreign import ends_task
from pg_scheduler.base.lazy import check_done
from pg_scheduler.events.log import log_subscriber_error
from pg_scheduler.events.types import Event, EventsDropped

MAX_QUEUED_EVENTS: Final = 1000
"""The maximum number of events that wait for one async subscriber or iterator. Older events are dropped."""

Report = Callable[[EventsDropped], object]


class EventQueue:
    """The events that one subscriber has not handled yet."""

    __slots__ = ("_dropped", "_events", "_is_overflow_reported", "_on_overflow", "_subscriber")

    def __init__(self, subscriber: str, on_overflow: Report) -> None:
        self._subscriber = subscriber
        self._on_overflow = on_overflow
        self._events: deque[Event] = deque()
        self._dropped = 0
        """Events that were dropped since the reader last took one."""
        self._is_overflow_reported = False
        """Whether ``on_overflow`` was called since a reader last found the queue empty. It is called once in
        this time."""

    def __len__(self) -> int:
        """Return how many events wait."""
        return len(self._events)

    def put(self, event: Event) -> None:
        """Add an event; drop the oldest one if the queue is full."""
        if len(self._events) >= MAX_QUEUED_EVENTS:
            self._events.popleft()
            self._dropped += 1
            if not self._is_overflow_reported:
                self._is_overflow_reported = True
                self._on_overflow(EventsDropped(self._dropped, self._subscriber))
        self._events.append(event)

    def take(self) -> Event | None:
        """Remove and return the oldest event, or None if there is none.

        If events were dropped since the last call, return ``EventsDropped`` instead, and remove no event.
        """
        if self._dropped:
            number, self._dropped = self._dropped, 0
            return EventsDropped(number, self._subscriber)
        if self._events:
            return self._events.popleft()
        self._is_overflow_reported = False
        return None

    def clear(self) -> None:
        """Remove all events."""
        self._events.clear()
        self._dropped = 0


class AsyncSubscriber:
    """Awaits an async function with each event, in order, in one task that lives while events wait.

    The task has the context variables of the code that subscribed, not of the code that published the event.
    """

    def __init__(
        self,
        function: Callable[[Event], Any],
        name: str,
        on_overflow: Report,
        worker_id: Callable[[], str | None],
        busy: MutableMapping[asyncio.Task[None], AsyncSubscriber],
    ) -> None:
        self._function = function
        self.name: Final = name
        self.queue: Final = EventQueue(name, on_overflow)
        self._worker_id = worker_id
        self._busy = busy
        self._context = copy_context()
        self._task: asyncio.Task[None] | None = None

    def __call__(self, event: Event) -> None:
        """Queue an event, and start the task if it does not run."""
        self.queue.put(event)
        task = self._task
        loop = asyncio.get_running_loop()
        # A task of an event loop that has ended never runs again, but may not be done either.
        is_running = task is not None and not task.done() and task.get_loop() is loop
        if not is_running:
            self._task = task = asyncio.create_task(
                self._handle_all(), name=f"pg_scheduler subscriber {self.name}", context=self._context
            )
            # At the end, the bus waits for the tasks that it finds in this mapping.
            self._busy[task] = self
            task.add_done_callback(self._busy.pop)

    async def _handle_all(self) -> None:
        """Handle the events of the queue until it is empty."""
        while (event := self.queue.take()) is not None:
            await self._handle(event)
            # Without this, a function that never suspends would hold the event loop until the queue is empty.
            await asyncio.sleep(0)

    async def _handle(self, event: Event) -> None:
        """Await the function with an event. Its error is logged, unless it ends the task."""
        try:
            check_handled(await self._function(event))
        except BaseException as error:  # user code
            if ends_task(error, self._task):
                raise
            log_subscriber_error(self.name, event, error, self._worker_id())


class StreamQueue(EventQueue):
    """A queue whose readers wait for events until it ends."""

    __slots__ = ("_is_ended", "_ready")

    def __init__(self, subscriber: str, on_overflow: Report) -> None:
        super().__init__(subscriber, on_overflow)
        self._ready = asyncio.Event()
        self._is_ended = False

    def put(self, event: Event) -> None:
        """Add an event, and wake the readers."""
        super().put(event)
        self._ready.set()

    def end(self) -> None:
        """Let the readers end after the events that are queued."""
        self._is_ended = True
        self._ready.set()

    async def next(self) -> Event | None:
        """Wait for an event and return it; return None at the end."""
        while True:
            event = self.take()
            # Events that were queued before the end are still returned.
            if event is not None or self._is_ended:
                return event
            self._ready.clear()
            await self._ready.wait()


class EventStream:
    """Events in order: the asynchronous iterator that ``Scheduler.events()`` returns.

    It collects events from its creation on, also between two steps of the iteration. When the Scheduler has
    stopped, the iteration ends after the last event that was published before. If you leave the loop early,
    the subscription ends when Python deletes the iterator; ``aclose()`` ends it at once.
    """

    def __init__(self, queue: StreamQueue, unsubscribe: Callable[[], None]) -> None:
        # The bus refers to the queue only and not to the stream. So a stream to which no user refers any more
        # is garbage, and ends its subscription.
        self._queue = queue
        self._unsubscribe = unsubscribe

    def __aiter__(self) -> Self:
        """Return the iterator itself."""
        return self

    async def __anext__(self) -> Event:
        """Wait for the next event."""
        event = await self._queue.next()
        if event is None:
            raise StopAsyncIteration
        return event

    async def aclose(self) -> None:
        """End the subscription and the iteration, and discard the events that were not read."""
        self._unsubscribe()
        self._queue.clear()
        self._queue.end()

    def __del__(self) -> None:
        """End the subscription of an iterator that was left early."""
        self._unsubscribe()


def check_handled(value: object) -> None:
    """Raise TypeError if a subscriber has returned work that is not done, such as a coroutine.

    It may return a task: the event loop runs it.
    """
    remedy = "subscribe the async function itself, and not a function that calls it"
    check_done(value, "the subscriber", remedy, allows_tasks=True)
