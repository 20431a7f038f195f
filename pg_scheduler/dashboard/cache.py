"""Share what was read among requests, so that many viewers cost as much as one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final, TypeVar

__all__ = ["Cache"]

T = TypeVar("T")

MAX_ENTRIES: Final = 500
"""Values that are kept at most: those that were used last."""

SLOWDOWN: Final = 10
"""A value is kept at least this many times as long as it took to read."""


@dataclass(slots=True)
class _Entry:
    value: Any = None
    expires_at: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Cache:
    """Keeps values for seconds. Concurrent calls with the same key wait for one read.

    Args:
        clock: Returns seconds; tests replace it.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._entries: dict[Hashable, _Entry] = {}

    async def get(self, key: Hashable, age_s: float, read: Callable[[], Awaitable[T]]) -> T:
        """Return the value of a key, and read it if it is older than these seconds.

        An error is raised to the caller whose read failed, and is not kept.
        """
        entry = self._entries.pop(key, None)
        if entry is None:
            self._make_room()
            entry = _Entry()
        self._entries[key] = entry  # the last place: in the order of use
        async with entry.lock:
            started = self._clock()
            if started >= entry.expires_at:
                entry.value = await read()
                now = self._clock()
                entry.expires_at = now + max(age_s, SLOWDOWN * (now - started))
            found: T = entry.value
            return found

    def _make_room(self) -> None:
        """Drop expired values, and the one that was used longest ago while there are too many."""
        now = self._clock()
        for key in [key for key, entry in self._entries.items() if entry.expires_at <= now]:
            if not self._entries[key].lock.locked():  # it is read
                del self._entries[key]
        while len(self._entries) >= MAX_ENTRIES:
            del self._entries[next(iter(self._entries))]
