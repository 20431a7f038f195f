"""Pause attempts that found no connection for their advisory lock.

Such a job is released. Without a pause it would be claimed again at once while the server rejects new
connections, since the claims use a connection that exists.
"""

from __future__ import annotations

import asyncio
import logging
import random
from time import monotonic
from typing import Final

from pg_scheduler.errors import ConnectionRejectedError, DatabaseUnavailableError
from pg_scheduler.events.log import logger, record_fields

REPORT_INTERVAL_S: Final = 60.0
"""Seconds between two log records of one outage."""


class LockPause:
    """One backoff for all attempts of a worker."""

    first_s = 0.1
    """Seconds of the first pause of an outage; each is twice the previous one."""
    longest_s = 10.0

    def __init__(self) -> None:
        self._next_s = self.first_s
        self._ends_at = self._report_at = 0.0
        self._is_outage = False

    async def wait(self, fault: DatabaseUnavailableError) -> None:
        """Wait until connections may be attempted again. Attempts that fail during a pause share it."""
        now = monotonic()
        if now >= self._ends_at:
            seconds = self._next_s * random.uniform(0.5, 1)  # noqa: S311 - jitter, no secret
            self._ends_at = now + seconds
            self._next_s = min(self._next_s * 2, self.longest_s)
            self._report(fault, seconds, now)
        await asyncio.sleep(self._ends_at - now)

    def reset(self) -> None:
        """Begin the next outage with the shortest pause: a connection was obtained."""
        self._next_s = self.first_s
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
