"""The one contract of everything that runs in the background.

A service makes bounded passes; ``run_once()`` returns the seconds until the next. This module has the
only loop: it sleeps between passes unless woken, waits longer and longer while the database is away, and
stops between two passes, never in the middle of one. A fault that is not transient is a mistake: it ends
the loop and is handed to whoever supervises.
"""

from __future__ import annotations

import asyncio
import random
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import ClassVar, Final

from pg_scheduler.errors import DatabaseUnavailableError, PoolClosedError
from pg_scheduler.events import EventBus, PassFinished, ServiceFaulted, ServiceRetrying

__all__ = ["NEVER", "Service", "Wakeup"]

NEVER: Final = float("inf")
"""What a pass returns when only a wake-up can bring the next one."""

FIRST_BACKOFF: Final = 0.1
LONGEST_BACKOFF: Final = 10.0


class Wakeup:
    """A sleep that can be ended early. A wake-up that comes before the sleep ends it at once."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        """End the sleep, or the next one."""
        self._event.set()

    async def wait(self, seconds: float) -> None:
        """Sleep for so long at most."""
        try:
            async with asyncio.timeout(None if seconds == NEVER else max(seconds, 0)):
                await self._event.wait()
        except TimeoutError:
            pass
        self._event.clear()


class Service(ABC):
    """A part of the Scheduler with a loop of its own.

    Args:
        events: Where passes and faults are published.
    """

    name: ClassVar[str]
    jitter: ClassVar[float] = 0.0
    """The part of each sleep that is left to chance, so that nodes do not work in step."""
    gives_way: ClassVar[bool] = True
    """Whether other tasks run before a pass that follows at once. If not, each pass must await something."""

    def __init__(self, events: EventBus) -> None:
        self._events = events
        self._wakeup = Wakeup()
        self._halt = Wakeup()
        self._backs_off = False
        self._task: asyncio.Task[None] | None = None
        self._lifecycle = asyncio.Lock()
        self._stopping = False

    @abstractmethod
    async def run_once(self) -> float:
        """Do one bounded round; seconds until the next, 0 = more waits, NEVER = until woken."""

    async def prepare(self) -> None:  # noqa: B027 - most have nothing to do here
        """What has to be there before the first pass."""

    async def drain(self) -> None:  # noqa: B027 - nor here
        """What has to be done after the last pass."""

    @property
    def is_running(self) -> bool:
        """Whether the loop goes round."""
        return self._task is not None and not self._task.done()

    @property
    def is_cancelled(self) -> bool:
        """Whether the loop was ended from outside, as everything is at the end of ``asyncio.run()``."""
        return self._task is not None and (self._task.cancelled() or self._task.cancelling() > 0)

    def wake(self) -> None:
        """Make the next pass now, or right after the one that is under way."""
        self._wakeup.set()

    def retry(self) -> None:
        """End the wait for a database that was away: it answers somebody."""
        if self._backs_off:
            self._halt.set()

    async def start(self) -> None:
        """Begin; returns after the first pass that was no transient fault. Twice is a no-op.

        Raises:
            BaseException: What ended the first pass, if it was a mistake.
        """
        async with self._lifecycle:
            if self._stopping and self._task is not None:  # left by a stop() that was cancelled
                await asyncio.wait([self._task])
            if self.is_running:
                return
            self._stopping = False
            self._halt, self._backs_off = Wakeup(), False
            try:
                await self.prepare()
            except BaseException:
                with suppress(DatabaseUnavailableError):  # the first one says it all
                    await self.drain()  # it may have got half-way
                raise
            first_pass = asyncio.Event()
            self._task = asyncio.create_task(self._loop(first_pass), name=f"pg_scheduler {self.name}")
            began = asyncio.create_task(first_pass.wait())
            try:
                await asyncio.wait([self._task, began], return_when=asyncio.FIRST_COMPLETED)
            finally:
                began.cancel()
                if not self._task.done():
                    self._task.add_done_callback(self._ended)
            if self._task.done():
                self._task.result()

    async def stop(self) -> None:
        """End after the pass that is under way, and drain. Twice is a no-op."""
        async with self._lifecycle:
            if self._task is None:
                return
            self._stopping = True
            self._halt.set()
            self.wake()
            await asyncio.wait([self._task])
            self._task = None
            await self.drain()

    async def _loop(self, first_pass: asyncio.Event) -> None:
        backoff = FIRST_BACKOFF
        while not self._stopping:
            began = time.monotonic()
            sleep = self._wakeup
            try:
                delay = await self.run_once()
            except PoolClosedError:
                raise
            except DatabaseUnavailableError as fault:
                delay = backoff * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, no secret
                backoff = min(backoff * 2, LONGEST_BACKOFF)
                self._events.publish(ServiceRetrying(self.name, fault, delay))
                self._backs_off = True
                sleep = self._halt  # work that comes in does not make the database come back
            else:
                first_pass.set()
                self._backs_off, backoff = False, FIRST_BACKOFF
                delay *= 1 + random.uniform(-self.jitter, self.jitter)  # noqa: S311 - jitter, no secret
                self._events.publish(PassFinished(self.name, time.monotonic() - began, delay))
            if (delay > 0 or self.gives_way) and not self._stopping:
                await sleep.wait(delay)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self._events.publish(ServiceFaulted(self.name, error))
