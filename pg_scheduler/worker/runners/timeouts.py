"""Time limits of attempts, with few timers.

Nearly all jobs have one of a few timeouts, so the limits of one timeout expire in the order in which they
were set: a dict per timeout keeps that order, and one timer per timeout watches the first. An
``asyncio.timeout()`` for each job would cost nearly as much as all other Python code of a job.

The timers run in the context in which the queue was created. A timer in the context of the attempt that set
it would keep the arguments and the exception of that attempt alive after its end.

The deadlines use the clock that this module imported, not that of the event loop: a job that replaces
``time.monotonic`` must not time out its neighbours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from time import monotonic
from typing import Final, Generic, TypeVar

MAX_TIMEOUT_S: Final = 1e9
"""The longest timeout with an effect. A column can hold 1e308, infinity and NaN, which event loops cannot."""

MAX_IDLE_TIMERS: Final = 100
"""Timers that stay although they watch nothing, in case the next item has the same timeout."""

T = TypeVar("T")


class TimeoutQueue(Generic[T]):
    """Call back for each item that is not removed within the timeout with which it was added."""

    def __init__(self, on_expired: Callable[[T], None]) -> None:
        self._on_expired = on_expired
        # The deadlines of the items by the monotonic clock, in the order in which they expire, by timeout.
        self._by_timeout: dict[float, dict[T, float]] = {}
        self._timers: dict[float, asyncio.TimerHandle] = {}
        self._context = copy_context()

    def __len__(self) -> int:
        """Return the number of items with a time limit."""
        return sum(map(len, self._by_timeout.values()))

    def add(self, item: T, timeout: float, since: float | None = None) -> None:
        """Set a time limit for an item, in seconds from now, or from a moment that was just read."""
        # The condition is not ">=", which would be false for NaN.
        if not timeout < MAX_TIMEOUT_S:
            return
        limits = self._by_timeout.get(timeout)
        # The first item of this timeout starts its timer, which also serves those that follow.
        if limits is None:
            limits = self._by_timeout[timeout] = {}
            self._set_timer(timeout, timeout)
        limits[item] = (monotonic() if since is None else since) + timeout

    def remove(self, item: T, timeout: float) -> None:
        """Remove the time limit of an item. Unused timers are cancelled only when there are many."""
        limits = self._by_timeout.get(timeout)
        if limits is not None:
            limits.pop(item, None)
            # The timer stays otherwise: the next item with this timeout mostly comes soon, and uses it.
            if not limits and len(self._timers) > MAX_IDLE_TIMERS:
                del self._by_timeout[timeout]
                self._timers.pop(timeout).cancel()

    def close(self) -> None:
        """Remove all time limits."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._by_timeout.clear()

    def _set_timer(self, timeout: float, delay: float) -> None:
        """Let ``_expire()`` be called for a timeout after so many seconds."""
        self._timers[timeout] = asyncio.get_running_loop().call_later(
            delay, self._expire, timeout, context=self._context
        )

    def _expire(self, timeout: float) -> None:
        """Call back for the items of a timeout that have expired, and set its timer for the next one."""
        limits = self._by_timeout[timeout]
        expired = []
        # The items are in the order of their deadlines, so the first one that has not expired ends the loop.
        for item, deadline in limits.items():
            if (remaining_s := deadline - monotonic()) > 0:
                self._set_timer(timeout, remaining_s)
                break
            expired.append(item)
        else:
            # All items have expired, so nothing is left to watch.
            del self._by_timeout[timeout], self._timers[timeout]
        for item in expired:
            limits.pop(item, None)
            self._on_expired(item)
