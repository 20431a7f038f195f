"""Whether what a worker knows about pauses may be out of date, and the read that ends that.

A worker reads the pauses when a notification announces a change. It receives none while it is cut off from
the database, while its process is frozen, and while a job blocks its event loop. So after each of these, what
it knows is stale. A service that acts on pauses calls ``refresh()`` at the beginning of its pass, which reads
them again if they are stale. If they cannot be read, the pass fails, as every pass without a database does.

The services that wake after an outage do so at once and in any order. So it is not enough that the
`PauseWatcher` wakes as well.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from pg_scheduler.worker.signals import Condition

Reader: TypeAlias = Callable[[], Awaitable[None]]
"""Reads the pauses, and applies them to this worker."""

MAX_GAP_S: Final = 1.0
"""Seconds within which a pause takes effect. A worker that could receive nothing for longer has to read."""

TICK_S: Final = 0.25
"""Seconds between two readings of the clock. If a reading comes much later, the event loop was blocked, or
the process was frozen: that is a gap."""

MAX_READS: Final = 3
"""How often one call reads, if each read meets another gap. A job that blocks the event loop again and again
delays claims, but does not end them."""

# It continues while the machine sleeps, which the monotonic clock of Linux does not. It never runs slower.
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", None)


def read_clock() -> float:
    """Return the seconds since the machine started, with its sleep if the system counts that."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


class KnownPauses:
    """What makes the pauses that a worker has read stale, and fresh again.

    Without a reader, as before the start of the `PauseWatcher`, they are never stale.
    """

    def __init__(self, notifications_up: Condition) -> None:
        self._notifications_up = notifications_up
        self._reader: Reader | None = None
        # Reads follow one another. Otherwise an older answer could replace a newer one.
        self._turn = asyncio.Lock()
        self._tick: asyncio.TimerHandle | None = None
        # When the clock was last read to find a gap, and when the last read of the pauses began, by
        # read_clock().
        self._ticked_at = self._read_at = 0.0
        # How often the pauses were marked as stale, until now and until the last read began. What was read is
        # stale while these two differ.
        self._marks = 1
        self._marks_at_read = 0

    def begin(self, reader: Reader) -> None:
        """Let ``refresh()`` read by this function from now on, the first time in any case; watch for gaps.

        A gap is a time in which this process stood still or its event loop was blocked.
        """
        self.end()
        self._reader = reader
        self._marks += 1
        self._watch_for_gaps()

    def end(self) -> None:
        """Let ``refresh()`` read no more, and watch for no gaps: what ``begin()`` has begun ends."""
        self._reader = None
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None

    def mark_stale(self) -> None:
        """Note that changes of the pauses may have been missed, so that ``refresh()`` reads them again."""
        self._marks += 1

    def mark_stale_since(self, instant: float) -> None:
        """Mark the pauses as stale if an instant of the monotonic clock is more than a second ago."""
        if time.monotonic() - instant > MAX_GAP_S:
            self.mark_stale()

    def is_fresh(self) -> bool:
        """Return whether this worker may act on the pauses that it has read."""
        if self._reader is None:
            return True
        self._note_gap()
        if self._marks_at_read != self._marks:
            return False
        # Without notifications, the PauseWatcher reads at intervals, unless something delays it.
        return self._notifications_up.is_set or read_clock() - self._read_at <= MAX_GAP_S

    async def refresh(self) -> None:
        """Read the pauses if they are stale; callers share one read.

        Raises:
            DatabaseUnavailableError: They cannot be read.
        """
        if self.is_fresh():
            return
        async with self._turn:
            # Another caller may have read them by now. And what was read is stale if the process stood still
            # during the read, so it may have to be repeated.
            for _ in range(MAX_READS):
                if self._reader is None or self.is_fresh():
                    return
                await self._read(self._reader)

    async def read(self, reader: Reader) -> None:
        """Read the pauses by this function, also if they are fresh."""
        async with self._turn:
            await self._read(reader)

    async def _read(self, reader: Reader) -> None:
        """Read the pauses, and note up to which mark they are fresh."""
        self._note_gap()
        # A mark that comes during the read makes its answer stale, because the answer may be older than the
        # change. So the marks are counted before the read.
        marks, read_at = self._marks, read_clock()
        await reader()
        self._marks_at_read, self._read_at = marks, read_at

    def _note_gap(self) -> None:
        """Note that changes may have been missed if the clock was last read more than a second ago."""
        now = read_clock()
        if now - self._ticked_at > MAX_GAP_S:
            self._marks += 1
        self._ticked_at = now

    def _watch_for_gaps(self) -> None:
        """Read the clock now and every ``TICK_S`` seconds from now on, to find gaps between two readings."""
        self._note_gap()
        self._tick = asyncio.get_running_loop().call_later(TICK_S, self._watch_for_gaps)
