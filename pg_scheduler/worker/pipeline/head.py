"""Find jobs in front of the position from which jobs are claimed; see ``ClaimCursor``.

A search reads the claim index from its start, on another connection than the claims. So no claim waits for
it, however many dead rows the snapshots of other sessions keep. A search of t seconds is followed by a pause
of 4 t, and of ``max_age_s`` at least unless a job was announced whose due time is unknown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import ClassVar, Final

from pg_scheduler.events import EventBus
from pg_scheduler.store.claims import ClaimRepository
from pg_scheduler.worker.in_flight import InFlight
from pg_scheduler.worker.pipeline.cursor import ClaimCursor
from pg_scheduler.worker.service import NEVER, Service
from pg_scheduler.worker.signals import Signals

PAUSE_RATIO: Final = 4
"""The least pause after a search, as a multiple of its duration."""


class HeadScanner(Service):
    """Search for claimable jobs from the start of the claim index, while claims do not begin there."""

    name: ClassVar[str] = "head_scanner"

    def __init__(  # noqa: PLR0917 - each is another collaborator, wired once
        self,
        claims: ClaimRepository,
        events: EventBus,
        cursor: ClaimCursor,
        in_flight: InFlight,
        names: Callable[[], Sequence[str]],
        signals: Signals,
        *,
        isolated_from: int,
    ) -> None:
        super().__init__(events)
        self._claims = claims
        self._cursor = cursor
        self._in_flight = in_flight
        self._names = names
        self._signals = signals
        self._isolated_from = isolated_from
        self._is_requested = False
        self._ended_at = self._pause_s = 0.0

    def announce(self, due: datetime | None = None) -> None:
        """Search soon if a job was announced without its due time."""
        if due is None:
            self._is_requested = True
            self.wake()

    def begin(self) -> None:
        """Begin to search at intervals: claims do not begin at the start of the index any more."""
        self._ended_at, self._pause_s = time.monotonic(), 0.0
        self.wake()

    async def run_once(self) -> float:
        """Search once, if it is time to; return the seconds until the next search."""
        if not self._cursor.is_kept:
            self._is_requested = False
            return NEVER
        pause = self._pause_s if self._is_requested else max(self._pause_s, self._cursor.max_age_s)
        if (left := self._ended_at + pause - time.monotonic()) > 0:
            return left
        self._is_requested = False
        began = time.monotonic()
        try:
            found = await self._claims.find_claimable(
                self._names(),
                *self._cursor.position,
                crashed=not self._in_flight.has_crashed_job,
                isolated_from=self._isolated_from,
            )
        finally:  # a search that took too long is not repeated at once
            self._ended_at = time.monotonic()
            self._pause_s = PAUSE_RATIO * (self._ended_at - began)
        if found.due is not None:
            self._signals.due(found.due)
        elif not self._cursor.is_crowded(found.read):
            self._cursor.reset()
        return max(self._pause_s, self._cursor.max_age_s)
