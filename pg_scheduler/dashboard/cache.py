"""Cache reads across requests, so that many viewers cause no more queries than one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any, Final, TypeVar, TypeVarTuple

from asyncpg import QueryCanceledError

from pg_scheduler.errors import DatabaseUnavailableError

T = TypeVar("T")
RequestT = TypeVar("RequestT")
Arguments = TypeVarTuple("Arguments")

MAX_ENTRIES: Final = 500
"""The maximum number of values that are kept. The one that was used longest ago is dropped first."""

MINUTE_S: Final = 60.0

SLOWDOWN: Final = 10
"""A value is kept at least this many times as long as it took to read."""


async def in_time(read: Awaitable[T]) -> T | None:
    """Wait for a read, and return its result; None if the database did not answer in time.

    A page shows its other parts then, instead of an error.

    Raises:
        DatabaseUnavailableError: The database is unavailable for another reason.
    """
    try:
        return await read
    except DatabaseUnavailableError as error:
        # The server has cancelled the statement, or no answer came in time.
        if not isinstance(error.__cause__, QueryCanceledError | TimeoutError):
            raise
        return None


@dataclass(slots=True)
class _Entry:
    """A value, and the lock that its read holds. It has expired until it is read for the first time.

    Its times are those of the clock of the cache, in seconds (monotonic).
    """

    age_s: float
    """For how many seconds the call that created the entry wanted the value to be kept."""
    value: Any = None
    read_at: float = 0.0
    expires_at: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Cache:
    """Keeps values for seconds. Concurrent calls with the same key wait for one read."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._entries: dict[Hashable, _Entry] = {}

    async def get(self, key: Hashable, age_s: float, read: Callable[[], Awaitable[T]]) -> tuple[T, float]:
        """Return the value of a key, and its age in seconds. Read a value that has expired or is missing.

        An error is raised to the caller whose read failed, and is not kept. Callers that waited for that read
        then read the value themselves.
        """
        entry = self._entries.pop(key, None)
        if entry is None:
            self._make_room()
            entry = _Entry(age_s)
        # The entry goes to the end, so that the entries are in the order in which they were used.
        self._entries[key] = entry
        async with entry.lock:
            # Another call may have read the value while this one waited for the lock.
            started = self._clock()
            if started >= entry.expires_at:
                entry.value = await read()
                entry.read_at = now = self._clock()
                entry.expires_at = now + max(age_s, SLOWDOWN * (now - started))
            value: T = entry.value
            return value, self._clock() - entry.read_at

    def forget_recent(self) -> None:
        """Drop each value whose ``age_s`` is less than a minute, also if it is being read now.

        A call that is reading such a value still gets it, but later calls read the value again.
        """
        self._entries = {key: entry for key, entry in self._entries.items() if entry.age_s >= MINUTE_S}

    def _make_room(self) -> None:
        """Drop expired values. If there are still too many, drop those that were used longest ago."""
        now = self._clock()
        expired_keys = [key for key, entry in self._entries.items() if entry.expires_at <= now]
        for key in expired_keys:
            # While the lock is held, the value is being read for callers that wait for it.
            if not self._entries[key].lock.locked():
                del self._entries[key]
        while len(self._entries) >= MAX_ENTRIES:
            # The entries are in the order in which they were used.
            oldest_key = next(iter(self._entries))
            del self._entries[oldest_key]


class SharedReads:
    """The cache as one request uses it, which records the age of the values that it returned.

    Attributes:
        oldest_s: The age in seconds of the oldest data that the request has read; 0 if it has read none.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self.oldest_s = 0.0

    async def get(
        self,
        read: Callable[[RequestT, *Arguments], Awaitable[T]],
        request: RequestT,
        *arguments: *Arguments,
        age_s: float,
        is_age_shown: bool = True,
        depends_on: Hashable = None,
    ) -> T:
        """Return what a function returns, or has returned for another request with the same arguments.

        The function is part of the key, so the values of two functions cannot be confused.

        Args:
            read: A function of a module, not one that each call defines anew.
            request: The first argument of the function. It is no part of the key.
            arguments: The other arguments of the function, which are part of the key.
            age_s: For how many seconds a value is kept.
            is_age_shown: Whether the age of the value counts for ``oldest_s``, which the page shows. False
                if it does not matter to those who read the page.
            depends_on: What else the value depends on, such as the rights of the request.
        """
        key = read, arguments, depends_on
        value, age = await self._cache.get(key, age_s, partial(read, request, *arguments))
        if is_age_shown:
            self.oldest_s = max(self.oldest_s, age)
        return value

    def forget_recent(self) -> None:
        """Let the next page read again what a change may have affected.

        Values that are kept for a minute or longer are expensive to read, so they are not dropped.
        """
        self._cache.forget_recent()

    def renewed(self) -> SharedReads:
        """Return an object with the same cached values, on which the age of the oldest read is 0 again."""
        return SharedReads(self._cache)
