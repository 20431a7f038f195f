"""Read what jobs publish, with one query for all readers of a process.

A reader waits until its job has published something behind what the reader has, or has ended. The query runs
50 ms after it found something for a reader, and then for this reader at growing intervals. While readers wait
in a started Scheduler, the workers send the event ``JobPublished``, which lets the query run at once. So an
event that is lost, and a process that receives none, only delay a reader.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from pg_scheduler.errors import DatabaseUnavailableError, JobNotFoundError, PoolClosedError
from pg_scheduler.events import Event, EventBus, JobPublished
from pg_scheduler.jobs.codec import PayloadCodec
from pg_scheduler.jobs.streams import MAX_ITEMS, StreamItem, published_value
from pg_scheduler.queue.answers import start_answering
from pg_scheduler.streams.statements import PAGE_SIZE, VALUE, Page, StreamRepository, Wanted

FIRST_INTERVAL_S: Final = 0.05
"""Seconds until the next query for a reader whose last query found something."""

GROWTH: Final = 1.5
"""Factor by which the interval of a reader grows with each query that found nothing for it."""

MAX_INTERVAL_S: Final = 1.0
"""Seconds after which a reader asks again at the latest. So long may the end of a stream stay unseen."""

MAX_BATCH: Final = 100
"""Readers of one query."""

NOT_PUBLISHED: Final = "job {!r} has not published {!r} within {} s; see pg-scheduler jobs explain"
"""The message of a wait that timed out."""


@dataclass(eq=False, slots=True)
class Reader:
    """A caller that waits for items.

    Attributes:
        definition: What the items that it has belong to; None if it has none.
        page: Gets what is found for it.
        due_at: When to query for it, by the clock of the event loop.
        interval_s: Seconds until the query after that.
    """

    wanted: Wanted
    definition: str | None
    page: asyncio.Future[Page]
    due_at: float
    interval_s: float = FIRST_INTERVAL_S

    def is_news(self, page: Page) -> bool:
        """Return whether the reader waits for this page: it has items, or no more will come."""
        is_replaced = self.definition is not None and page.definition != self.definition
        return bool(page.items) or page.has_ended or not page.has_row or is_replaced


class StreamReaders:
    """The readers of one process.

    Args:
        streams: The statements.
        events: The events of all nodes.
        codec: Decodes what is stored; None for none.
    """

    def __init__(self, streams: StreamRepository, events: EventBus, codec: PayloadCodec | None) -> None:
        self._repository = streams
        self._events = events
        self._codec = codec
        self._waiting: set[Reader] = set()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        # How many callers iterate over streams or wait for values, and what ends the subscription for them.
        self._listeners = 0
        self._unsubscribe: Callable[[], None] = lambda: None

    @property
    def count(self) -> int:
        """The number of callers that iterate over a stream or wait for a value."""
        return self._listeners

    async def items(self, job_id: str, name: str, after: int) -> AsyncIterator[StreamItem]:
        """Yield the items of a stream behind a number until its job has ended. See ``Scheduler.stream()``."""
        definition: str | None = None
        with self._listening():
            while True:
                page = await self._read(Wanted(job_id, name, after, MAX_ITEMS), definition)
                if not page.has_row:
                    # Once items were read, a job without a row is one that has ended and was deleted.
                    if definition is None:
                        raise JobNotFoundError(job_id)
                    return
                # Another definition has replaced the job, and its stream is another one.
                if definition is not None and page.definition != definition:
                    return
                definition = page.definition
                for number, text in page.items:
                    yield StreamItem(number, published_value(job_id, name, text, self._codec))
                    after = number
                if page.has_ended and len(page.items) < PAGE_SIZE:
                    return

    async def value(self, job_id: str, name: str, *, wait: bool, timeout_s: float | None) -> Any:
        """Return the value that a job has published under a name. See ``Scheduler.get_value()``."""
        wanted = Wanted(job_id, name, VALUE - 1, VALUE)
        if wait and timeout_s != 0:
            limit = asyncio.timeout(timeout_s)
            try:
                async with limit:
                    with self._listening():
                        page = await self._read(wanted)
            except TimeoutError as error:
                # The query may have failed with a TimeoutError, too, which is raised unchanged.
                if limit.expired():
                    raise TimeoutError(NOT_PUBLISHED.format(job_id, name, timeout_s)) from error
                raise
        else:
            (page,) = await self._repository.read([wanted])
        if not page.has_row:
            raise JobNotFoundError(job_id)
        if page.items:
            ((_, text),) = page.items
            return published_value(job_id, name, text, self._codec)
        if wait and not page.has_ended:
            raise TimeoutError(NOT_PUBLISHED.format(job_id, name, timeout_s))
        return None

    async def _read(self, wanted: Wanted, definition: str | None = None) -> Page:
        """Return a page as soon as it has items, or no more will come.

        ``definition`` is what the items that the caller has belong to; None if it has none.
        """
        loop = asyncio.get_running_loop()
        reader = Reader(wanted, definition, loop.create_future(), loop.time())
        self._waiting.add(reader)
        self._wake.set()
        if self._task is None or self._task.done():
            self._task = start_answering(self._run(), "pg_scheduler stream readers", self._failed)
        try:
            return await reader.page
        finally:
            self._waiting.discard(reader)

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Receive the events of workers that publish something in this block."""
        if not self._listeners:
            self._unsubscribe = self._events.subscribe(self._announce, JobPublished)
        self._listeners += 1
        try:
            yield
        finally:
            self._listeners -= 1
            if not self._listeners:
                self._unsubscribe()

    def _announce(self, event: Event) -> None:
        """Query now for the readers of a job, because it has published something."""
        if isinstance(event, JobPublished):
            for reader in self._waiting:
                if reader.wanted.job_id == event.job_id:
                    reader.due_at, reader.interval_s = 0.0, FIRST_INTERVAL_S
                    self._wake.set()

    async def _run(self) -> None:
        """Query until no caller waits: when a reader is due, and after each event for one."""
        loop = asyncio.get_running_loop()
        while self._waiting:
            self._wake.clear()
            try:
                await self._query([reader for reader in self._waiting if reader.due_at <= loop.time()])
            # A closed pool is a DatabaseUnavailableError too, but it never opens again. After any other error
            # of this class, the next query may succeed.
            except PoolClosedError:
                raise
            except DatabaseUnavailableError:
                pass
            next_due_at = min((reader.due_at for reader in self._waiting), default=loop.time())
            with suppress(TimeoutError):
                async with asyncio.timeout_at(next_due_at):
                    await self._wake.wait()

    async def _query(self, readers: list[Reader]) -> None:
        """Answer the readers for which there is something. The others continue to wait."""
        loop = asyncio.get_running_loop()
        for reader in readers:
            reader.due_at = loop.time() + reader.interval_s
            reader.interval_s = min(reader.interval_s * GROWTH, MAX_INTERVAL_S)
        for start in range(0, len(readers), MAX_BATCH):
            batch = readers[start : start + MAX_BATCH]
            pages = await self._repository.read([reader.wanted for reader in batch])
            for reader, page in zip(batch, pages, strict=True):
                # The caller may have stopped waiting during the query.
                if reader.is_news(page) and not reader.page.done():
                    self._waiting.discard(reader)
                    reader.page.set_result(page)

    def _failed(self, _: asyncio.Task[None]) -> list[asyncio.Future[Page]]:
        """Forget all readers that wait; return their futures, which get the error of the failed task."""
        waiting, self._waiting = self._waiting, set()
        return [reader.page for reader in waiting]
