"""Time limits of what runs, at almost no cost each.

Nearly all jobs have one of a few timeouts, so the limits of one timeout come due in the order they were
set: a dict per timeout keeps them in that order, and one timer per timeout watches the first. An
``asyncio.timeout()`` for each job would cost nearly as much as all the rest that is done for it here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Generic, TypeVar

__all__ = ["TimeoutQueue"]

FOR_EVER: Final = 1e9
"""Seconds; what is longer is no limit. A column can hold 1e308, infinity and NaN, which break event loops."""

IDLE_TIMERS: Final = 100
"""Timers that may go on with nothing to watch, in case the next item has the same timeout."""

T = TypeVar("T")


class TimeoutQueue(Generic[T]):
    """Calls back for each item that was not removed in time.

    Args:
        on_expired: Called with an item whose time is over.
    """

    def __init__(self, on_expired: Callable[[T], None]) -> None:
        self._on_expired = on_expired
        self._by_timeout: dict[float, dict[T, float]] = {}
        self._timers: dict[float, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        """Items whose time runs."""
        return sum(map(len, self._by_timeout.values()))

    def add(self, item: T, timeout: float) -> None:
        """Give an item so many seconds from now."""
        if not timeout < FOR_EVER:  # NaN is not
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        limits = self._by_timeout.get(timeout)
        if limits is None:
            limits = self._by_timeout[timeout] = {}
            self._timers[timeout] = loop.call_at(deadline, self._look, timeout)
        limits[item] = deadline

    def remove(self, item: T, timeout: float) -> None:
        """The item has ended. The timer stays, whoever is next keeps it, unless there are many such."""
        limits = self._by_timeout.get(timeout)
        if limits is not None:
            limits.pop(item, None)
            if not limits and len(self._timers) > IDLE_TIMERS:
                del self._by_timeout[timeout]
                self._timers.pop(timeout).cancel()

    def close(self) -> None:
        """Forget all limits."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._by_timeout.clear()

    def _look(self, timeout: float) -> None:
        loop = asyncio.get_running_loop()
        limits = self._by_timeout[timeout]
        expired = []
        for item, deadline in limits.items():
            if deadline > loop.time():
                self._timers[timeout] = loop.call_at(deadline, self._look, timeout)
                break
            expired.append(item)
        else:
            del self._by_timeout[timeout], self._timers[timeout]
        for item in expired:
            limits.pop(item, None)
            self._on_expired(item)
