"""Pause attempts that found no connection for their advisory lock.

Such a job is released. Without a pause it would be claimed again at once while the server rejects new
connections, since the claims use a connection that exists.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass
from time import monotonic
from typing import Final

from pg_scheduler.errors import ConnectionRejectedError, DatabaseUnavailableError
from pg_scheduler.events.log import logger, record_fields

REPORT_INTERVAL_S: Final = 60.0
"""Seconds between two log records of one outage."""


@dataclass(frozen=True, slots=True)
class LockPauseOptions:
    """Pauses after failed connections; each is twice the previous one."""

    first_s: float = 0.1
    longest_s: float = 10.0


class LockPause:
    """One backoff for all attempts of a worker."""

    def __init__(self, options: LockPauseOptions = LockPauseOptions()) -> None:
        self._options = options
        self._next_s = options.first_s
        self._ends_at = self._report_at = 0.0
        self._is_outage = False

    async def wait(self, fault: DatabaseUnavailableError) -> None:
        """Wait until connections may be attempted again. Attempts that fail during a pause share it."""
        now = monotonic()
        if now >= self._ends_at:
            seconds = self._next_s * random.uniform(0.5, 1)  # noqa: S311 - jitter, no secret
            self._ends_at = now + seconds
            self._next_s = min(self._next_s * 2, self._options.longest_s)
            self._report(fault, seconds, now)
        await asyncio.sleep(self._ends_at - now)

    def reset(self) -> None:
        """Begin the next outage with the shortest pause: a connection was obtained."""
        self._next_s = self._options.first_s
        self._is_outage = False

    def _report(self, fault: DatabaseUnavailableError, seconds: float, now: float) -> None:
        if self._is_outage and now < self._report_at:
            return
        is_error = isinstance(fault, ConnectionRejectedError) and not self._is_outage
        self._is_outage, self._report_at = True, now + REPORT_INTERVAL_S
        logger.log(
            logging.ERROR if is_error else logging.WARNING,
            "no connection for the advisory lock of a job, retry in %.1f s: %s: %s",
            seconds,
            type(fault).__name__,
            fault,
            extra=record_fields(),
        )
