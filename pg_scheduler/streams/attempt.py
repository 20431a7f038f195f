"""What an attempt publishes, as the code of the job calls it.

Items wait for up to 50 ms, so that one statement writes many of them under the fencing token of the attempt.
Each item gets its number when it is appended: only one attempt at a time holds the job, so no other writer
exists. So a batch whose commit had no answer can be written again, without a further effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Any, Final

from pg_scheduler.database.session import Connection
from pg_scheduler.errors import JobLostError, PayloadError, SchedulerError
from pg_scheduler.events import JobPublished
from pg_scheduler.events.background import start_in_background
from pg_scheduler.jobs.step_values import check_step_name, new_definition
from pg_scheduler.jobs.streams import (
    MAX_BYTES,
    MAX_ITEMS,
    MAX_NAMES,
    JobStream,
    check_number,
    definition_of,
    published_text,
)
from pg_scheduler.streams.statements import VALUE, NewItem, StreamRepository
from pg_scheduler.worker.in_flight import Attempt, OpenStreams
from pg_scheduler.worker.lease import persistently
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.waiting import OWN_TASK_PREFIX

BATCH_GAP_S: Final = 0.05
"""Seconds between two batches of an attempt, unless one is full."""

BATCH_ITEMS: Final = 500
BATCH_BYTES: Final = 256 * 2**10
"""The items and bytes of JSON that wait at most. ``append()`` waits while there are more."""


class AttemptStreams(OpenStreams):
    """The values and streams of one attempt."""

    def __init__(self, streams: StreamRepository, node: Node, attempt: Attempt) -> None:
        self._repository = streams
        self._events = node.events
        self._codec = node.store.statements.codec
        self._worker_id = node.worker_id
        self._lease = node.lease
        self._attempt = attempt
        self._claim = attempt.claim
        definition = definition_of(self._claim.options)
        # A job that has published nothing gets this definition with its first item.
        self._definition = definition or new_definition()
        # The number of the last item of each name, with those that wait; None until they are loaded. Nothing
        # has to be loaded if no attempt before this one has published anything.
        self._counts: dict[str, int] | None = {} if definition is None else None
        # The bytes of all items, with those that wait.
        self._size = 0
        self._loading = asyncio.Lock()
        # The items that wait to be written, in their order, and the values by their names.
        self._items: list[NewItem] = []
        self._values: dict[str, NewItem] = {}
        self._waiting_bytes = 0
        self._writing = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        # When the next batch may be written, by the clock of the event loop.
        self._next_write = 0.0
        # Why something could not be written.
        self._fault: SchedulerError | None = None
        self._is_closed = False

    async def publish(self, name: str, value: Any) -> None:
        """Publish a value under a name. See `Streams`."""
        check_step_name(name, noun="published value")
        text = self._text_of(name, value)
        await self.check_may_write("publish()")
        counts = await self._load()
        self._check_room(counts, name)
        counts.setdefault(name, VALUE)
        self._values[name] = NewItem(name, VALUE, text)
        await self.write()

    def stream(self, name: str) -> AttemptStream:
        """Return a stream of the job. See `Streams`."""
        return AttemptStream(self, check_step_name(name, noun="stream"))

    async def append(self, name: str, value: Any, number: int | None) -> int:
        """Append an item to a stream. See `JobStream`."""
        if number is not None:
            check_number(number)
        text = self._text_of(name, value)
        counts = await self._load()
        next_number = counts.get(name, VALUE) + 1
        if number is not None and number != next_number:
            if number < next_number:
                return number
            raise ValueError(
                f"number={number} would leave a gap in the stream {name!r} of job {self._claim.job_id!r}, "
                f"whose next number is {next_number}; append the items in order"
            )
        size = len(text.encode())
        self._check_room(counts, name, size)
        is_full = len(self._items) + 1 >= BATCH_ITEMS or self._waiting_bytes + size >= BATCH_BYTES
        if is_full:
            await self.check_may_write("append()")
        counts[name] = next_number
        self._size += size
        self._waiting_bytes += size
        self._items.append(NewItem(name, next_number, text))
        if is_full:
            await self.write()
        else:
            self._plan_write()
        return next_number

    async def count(self, name: str) -> int:
        """Return the number of the last item of a stream. See `JobStream`."""
        return (await self._load()).get(name, VALUE)

    async def check_may_write(self, what: str) -> None:
        """Raise RuntimeError if the call ``what`` would wait for a transaction of its own caller."""
        steps = self._attempt.steps
        if steps is not None:
            await steps.check_may_write(what)

    async def write(self, connection: Connection | None = None) -> None:
        """Write what waits. See `OpenStreams`."""
        if connection is None:
            async with self._writing:
                while batch := self._next_batch():
                    await self._write_batch(batch)
                # The next item plans a write of its own, a while after this one.
                self._cancel_timer()
        else:
            # The transaction may be rolled back, so everything waits until it is written without one. If the
            # transaction has committed, that has no effect.
            for batch in self._batches():
                await self._store(batch, connection)
        self._raise_fault()

    async def write_at_end(self) -> None:
        """Write what is left. See `OpenStreams`."""
        # The code may have completed its job, also in its own transaction, with all that it had published.
        await self._attempt.forget_rolled_back()
        if self._attempt.end is None:
            # The attempt fails by this error, unless the function has failed by itself.
            with suppress(SchedulerError):
                await self.write()

    @property
    def fault(self) -> SchedulerError | None:
        """The error because of which something is not written. See `OpenStreams`."""
        return self._fault

    def close(self) -> None:
        """Refuse further items. See `OpenStreams`."""
        self._is_closed = True
        self._cancel_timer()

    def _text_of(self, name: str, value: Any) -> str:
        """Return a value as it is stored."""
        return published_text(name, value, self._codec, self._claim.job_name)

    async def _load(self) -> dict[str, int]:
        """Return the number of the last item by name, or raise if the attempt may publish nothing now.

        An attempt is claimed after the last write of each earlier one, so the numbers are final.
        """
        await self._check_open()
        if self._counts is None:
            async with self._loading:
                # Another call may have loaded them while this one waited for the lock.
                if self._counts is None:
                    sizes = await persistently(
                        self._lease, partial(self._repository.sizes, self._claim.job_id)
                    )
                    self._size = sum(stored.size for stored in sizes)
                    self._counts = {stored.name: stored.last for stored in sizes}
        return self._counts

    async def _check_open(self) -> None:
        """Raise what ends the code of an attempt that has ended or completes its job, or a former fault."""
        await self._attempt.forget_rolled_back()
        if self._is_closed:
            raise JobLostError(self._claim.job_id)
        if self._attempt.end is not None:
            error = JobLostError(self._claim.job_id)
            error.add_note("its block of completing() has ended; publish before the end of the block")
            raise error
        self._raise_fault()

    def _raise_fault(self) -> None:
        """Raise the error because of which something is not written."""
        if self._fault is not None:
            raise self._fault

    def _check_room(self, counts: dict[str, int], name: str, size: int | None = None) -> None:
        """Raise PayloadError if the job would have too many names, items or bytes.

        ``size`` is that of a new item; None for a value.
        """
        job_id = self._claim.job_id
        if name not in counts and len(counts) >= MAX_NAMES:
            raise PayloadError(
                f"{name!r} is number {len(counts) + 1} of the names that job {job_id!r} has published, more "
                f"than {MAX_NAMES}; use one stream whose items have a name"
            )
        if size is None:
            return
        if sum(counts.values()) >= MAX_ITEMS:
            raise PayloadError(
                f"the streams of job {job_id!r} have {MAX_ITEMS} items, which is the most; append several "
                "values as one item, or store them elsewhere"
            )
        if self._size + size > MAX_BYTES:
            raise PayloadError(
                f"with this item of {name!r} the streams of job {job_id!r} have {self._size + size} bytes of "
                f"JSON, more than {MAX_BYTES}; store them elsewhere and append ids or paths"
            )

    def _batches(self) -> list[list[NewItem]]:
        """Return all that waits, divided into batches. The values are in the last one, after all items."""
        batches = [self._items[at : at + BATCH_ITEMS] for at in range(0, len(self._items), BATCH_ITEMS)]
        if self._values:
            batches.append([*(batches.pop() if batches else []), *self._values.values()])
        return batches

    def _next_batch(self) -> list[NewItem]:
        """Return the first batch; empty if nothing waits."""
        batches = self._batches()
        return batches[0] if batches else []

    async def _write_batch(self, batch: Sequence[NewItem]) -> None:
        """Write a batch in a transaction of its own, and remove it from what waits."""
        loop = asyncio.get_running_loop()
        try:
            await persistently(self._lease, partial(self._store, batch))
        except SchedulerError as error:
            # The database has refused it, or has no answer, which no repetition changes.
            self._fault = self._fault or error
            self._items.clear()
            self._values.clear()
            self._waiting_bytes = 0
            return
        finally:
            self._next_write = loop.time() + BATCH_GAP_S
        # Another task may have appended items behind the batch, or published a newer value, meanwhile.
        items = [item for item in batch if item.number != VALUE]
        del self._items[: len(items)]
        self._waiting_bytes -= sum(len(item.text.encode()) for item in items)
        for value in batch[len(items) :]:
            if self._values.get(value.name) is value:
                del self._values[value.name]
        if self._events.wants(JobPublished):
            claim = self._claim
            self._events.publish(JobPublished(claim.job_id, claim.job_name, claim.attempt))

    async def _store(self, batch: Sequence[NewItem], connection: Connection | None = None) -> None:
        """Run the statement that stores a batch."""
        await self._repository.append(
            self._worker_id, self._claim, self._definition, batch, connection=connection
        )

    def _plan_write(self) -> None:
        """Begin a write in the background when the next batch may be written, unless one is planned."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            # In an empty context the task belongs to no attempt: an attempt is not suspended while its tasks
            # work.
            self._timer = loop.call_at(
                max(self._next_write, loop.time()), self._begin_write, context=Context()
            )

    def _cancel_timer(self) -> None:
        """Cancel the write that is planned."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin_write(self) -> None:
        """Write what waits in a background task."""
        self._timer = None
        # A write in progress continues until nothing waits. A block of completing() that has ended has
        # written all itself, and holds the row of the job.
        if not self._is_closed and self._attempt.end is None and not self._writing.locked():
            start_in_background(self._write_later(), f"{OWN_TASK_PREFIX}streams", Context())

    async def _write_later(self) -> None:
        """Write what waits. The next call, or the end of the attempt, raises the error."""
        with suppress(SchedulerError):
            await self.write()


class AttemptStream(JobStream):
    """A stream of this attempt."""

    def __init__(self, streams: AttemptStreams, name: str) -> None:
        self._streams = streams
        self._name = name

    @property
    def name(self) -> str:
        """The name of the stream. See `JobStream`."""
        return self._name

    async def append(self, value: Any, *, number: int | None = None) -> int:
        """Append an item. See `JobStream`."""
        return await self._streams.append(self._name, value, number)

    async def count(self) -> int:
        """Return how many items the stream has. See `JobStream`."""
        return await self._streams.count(self._name)

    async def flush(self) -> None:
        """Write what is collected. See `JobStream`."""
        await self._streams.check_may_write("flush()")
        await self._streams.write()
