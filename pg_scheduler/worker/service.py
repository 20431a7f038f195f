"""The lifecycle of background services.

A service makes bounded passes; ``run_once()`` returns the seconds until the next. This module has the
only loop: it sleeps between passes unless woken, backs off while the database is unavailable, and stops
between two passes, never in the middle of one. A trigger or a constraint of the application that refuses a
row of a pass is no reason to stop either: services leave such a row out where they can, and what is left
delays the passes of this service only. Any other error is a bug: it ends the loop, and ``ServiceFaulted``
ends the Scheduler.
"""

from __future__ import annotations

import asyncio
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, Final

from pg_scheduler.base.backoff import Backoff
from pg_scheduler.database.faults import REFUSALS, is_refusal, is_timeout
from pg_scheduler.errors import (
    ConnectionRejectedError,
    DatabaseUnavailableError,
    PayloadError,
    PoolClosedError,
    ServiceCancelledError,
)
from pg_scheduler.events import EventBus, PassFinished, ServiceFaulted, ServiceRetrying
from pg_scheduler.events.log import is_lock_wait

NEVER: Final = float("inf")
"""The delay of a pass, in seconds, after which only a wake-up starts the next."""

CANCELLATION_GRACE_S: Final = 0.1
"""Seconds after which a cancelled task is reported. At the end of ``asyncio.run()``, which cancels every
task, the event loop is closed by then."""


CANCELLATION_TIMEOUT_S: Final = 1.0
"""Seconds that ``stop()`` waits for the end of a pass that it has cancelled."""


@dataclass(frozen=True, slots=True)
class BackoffOptions:
    """Delays between passes while the database is unavailable; each is twice the previous one.

    Attributes:
        first_s: The first delay.
        longest_s: The longest delay.
        longest_for_lock_s: The longest delay while a lock is waited for. It is shorter, so that a pass
            follows soon after the lock is released.
    """

    first_s: float = 0.1
    longest_s: float = 10.0
    longest_for_lock_s: float = 1.0


class Wakeup:
    """A sleep that can be ended early. A wake-up that comes before the sleep ends it at once.

    It is made of a future and a timer alone, to be fast: every job that wakes an idle worker passes here.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        """End the sleep, or the next one."""
        self._is_set = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def is_set(self) -> bool:
        """Whether the next sleep ends at once."""
        return self._is_set

    def clear(self) -> None:
        """Forget a wake-up that has ended no sleep yet."""
        self._is_set = False

    async def wait(self, seconds: float) -> None:
        """Sleep for so many seconds, or until ``set()`` is called; return at once if it was called before."""
        if not self._is_set:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = None if seconds == NEVER else loop.call_later(max(seconds, 0), self.set)
            try:
                await self._waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        self._is_set = False


class Service(ABC):
    """A part of a worker that runs passes in a background task."""

    name: ClassVar[str]
    jitter: ClassVar[float] = 0.0
    """The share of each sleep that is random, so that nodes do not work in step."""
    yields_between_passes: ClassVar[bool] = True
    """Whether other tasks run before a pass that follows at once. If not, each pass must await something."""
    begins_asleep: bool = False
    """Whether the first pass waits until the service is woken. If it was woken before its start, it begins as
    any other service."""
    backoff = BackoffOptions()
    find_holders: Callable[[], Awaitable[Sequence[str]]] | None = None
    """Returns the sessions that hold locks on the tables, for the record of a pass that waited for one."""
    on_outage: Callable[[], None] | None = None
    """Called when a pass fails because the database does not answer."""
    stop_timeout_s = 3.0
    """Seconds that ``stop()`` gives a pass in progress before it cancels it, which rolls it back."""

    def __init__(self, events: EventBus) -> None:
        self._events = events
        self._wakeup = Wakeup()
        self._backoff_ended = Wakeup()
        self.outage: DatabaseUnavailableError | None = None
        """The error of the last pass if the database was unavailable."""
        self.ended_at = time.monotonic()
        """When the last pass ended, by the monotonic clock."""
        self._task: asyncio.Task[None] | None = None
        self._lifecycle = asyncio.Lock()
        self._is_stopping = False

    @abstractmethod
    async def run_once(self) -> float:
        """Do one bounded pass; return the seconds until the next, or NEVER to sleep until woken."""

    async def prepare(self) -> None:  # noqa: B027 - optional
        """Set up what the first pass needs."""

    async def run_first(self) -> float:
        """Do the first pass after ``prepare()``, as any other unless that has done a part of it."""
        return await self.run_once()

    async def drain(self) -> None:  # noqa: B027 - optional
        """Finish the work of the service after the last pass."""

    @property
    def is_running(self) -> bool:
        """Whether the loop runs."""
        return self._task is not None and not self._task.done()

    @property
    def is_cancelled(self) -> bool:
        """Whether the loop was cancelled from outside, as all tasks are at the end of ``asyncio.run()``."""
        # The loop may have ended by the cancellation, or may not have noticed it yet.
        return self._task is not None and (self._task.cancelled() or self._task.cancelling() > 0)

    def wake(self) -> None:
        """Start the next pass now, or right after the current one."""
        self._wakeup.set()

    def retry(self) -> None:
        """End the pause after an outage, because the database is available again."""
        if self.outage is not None:
            self._backoff_ended.set()

    async def start(self) -> None:
        """Start the loop; return after the first pass that succeeds. A no-op if it runs.

        Raises:
            BaseException: An error other than an unavailable database ended the first pass.
        """
        async with self._lifecycle:
            # A call of stop() that was cancelled may have left a loop that is about to end.
            if self._is_stopping and self._task is not None:
                await asyncio.wait([self._task])
            if self.is_running:
                return
            self._is_stopping = False
            self._backoff_ended, self.outage = Wakeup(), None
            try:
                await self.prepare()
            except BaseException:  # a cancellation too
                # Some of the preparation may be done, which drain() undoes. The first error counts.
                with suppress(DatabaseUnavailableError):
                    await self.drain()
                raise
            # It is set when the first pass has succeeded.
            first_pass = asyncio.Event()
            self._task = asyncio.create_task(self._loop(first_pass), name=f"pg_scheduler {self.name}")
            succeeded = asyncio.create_task(first_pass.wait())
            try:
                await asyncio.wait([self._task, succeeded], return_when=asyncio.FIRST_COMPLETED)
            finally:
                succeeded.cancel()
                # An error of the first pass is raised below. _ended() publishes an error of a later one.
                if not self._task.done():
                    self._task.add_done_callback(self._ended)
            # The first pass has failed, and this raises its error.
            if self._task.done():
                self._task.result()

    async def stop(self) -> None:
        """End the loop after the current pass, and drain. A no-op if it has ended."""
        async with self._lifecycle:
            if self._task is None:
                return
            self._is_stopping = True
            # The loop sleeps either until the end of a backoff or until it is woken.
            self._backoff_ended.set()
            self.wake()
            _, pending = await asyncio.wait([self._task], timeout=self.stop_timeout_s)
            # The statement of the pass waits for a lock, or for a server that does not answer.
            for task in pending:
                task.cancel()
                await asyncio.wait([task], timeout=CANCELLATION_TIMEOUT_S)
            self._task = None
            await self.drain()

    async def _loop(self, first_pass: asyncio.Event) -> None:
        """Make passes until the service stops; set ``first_pass`` when the first one has succeeded."""
        backoff = Backoff(self.backoff.first_s, self.backoff.longest_s)
        if self.begins_asleep and not self._wakeup.is_set:
            first_pass.set()  # start() does not wait for a pass
            await self._wakeup.wait(NEVER)
        else:
            # The first pass attends to what has woken the service before its start. It needs no second one.
            self._wakeup.clear()
        is_first = True
        while not self._is_stopping:
            began = time.monotonic()
            # What may end the sleep after this pass early.
            wakeup = self._wakeup
            try:
                run_pass, is_first = self.run_first if is_first else self.run_once, False
                delay = await run_pass()
            except PoolClosedError:
                # A closed pool stays closed, so this error ends the loop, and the Scheduler with it.
                raise
            except DatabaseUnavailableError as fault:
                # A server that rejects the first connection means wrong settings, which no retry corrects.
                if isinstance(fault, ConnectionRejectedError) and not first_pass.is_set():
                    raise
                delay = await self._report_outage(fault, backoff)
                wakeup = self._backoff_ended  # new work does not end an outage
            except REFUSALS as error:
                # In the first pass, a PayloadError means that what the code declares cannot be stored.
                is_mistake = isinstance(error, PayloadError) and not first_pass.is_set()
                # Any other rejection, as of a wrong statement, is a bug.
                if is_mistake or not is_refusal(error):
                    raise
                # A refused row does not keep the Scheduler from starting.
                first_pass.set()
                delay = backoff.next_delay_s()
                self._events.publish(ServiceRetrying(self.name, error, delay))
                self.ended_at = time.monotonic()
                wakeup = self._backoff_ended  # new work would meet the same refusal
            else:
                first_pass.set()
                self.outage = None
                backoff.reset()
                delay *= 1 + random.uniform(-self.jitter, self.jitter)  # noqa: S311 - jitter, no secret
                self.ended_at = time.monotonic()
                self._events.publish(PassFinished(self.name, self.ended_at - began, delay))
            if (delay > 0 or self.yields_between_passes) and not self._is_stopping:
                await wakeup.wait(delay)

    async def _report_outage(self, fault: DatabaseUnavailableError, backoff: Backoff) -> float:
        """Report a pass that failed because the database did not answer, or because of a lock.

        Return the seconds until the next pass.
        """
        waits_for_lock = is_lock_wait(fault)
        # A server that reports a lock has answered, so this is no outage.
        if self.on_outage is not None and not waits_for_lock:
            self.on_outage()
        longest_s = self.backoff.longest_for_lock_s if waits_for_lock else None
        delay = backoff.next_delay_s(longest_s)
        holders = await self._holders_of(fault)
        self._events.publish(ServiceRetrying(self.name, fault, delay, holders))
        self.outage, self.ended_at = fault, time.monotonic()
        return delay

    async def _holders_of(self, fault: DatabaseUnavailableError) -> tuple[str, ...]:
        """Return the sessions for whose locks a pass may have waited; none after another fault."""
        if self.find_holders is None or not (is_lock_wait(fault) or is_timeout(fault)):
            return ()
        return tuple(await self.find_holders())

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Publish the error that has ended the loop after its first pass.

        A cancellation is published only if the event loop still runs a moment later: at its end,
        ``asyncio.run()`` cancels all tasks, which is no error.
        """
        if task.cancelled():
            task.get_loop().call_later(CANCELLATION_GRACE_S, self._report_cancellation, task)
        elif error := task.exception():
            self._events.publish(ServiceFaulted(self.name, error))

    def _report_cancellation(self, task: asyncio.Task[None]) -> None:
        """Publish that code of the application has cancelled the loop, unless the service was stopped."""
        if self._task is task and not self._is_stopping:
            error = ServiceCancelledError(
                f"the task of the {self.name} was cancelled, but not by the Scheduler; cancel only tasks of "
                "your own, not all of asyncio.all_tasks()"
            )
            self._events.publish(ServiceFaulted(self.name, error))
