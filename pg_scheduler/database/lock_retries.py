"""Repeat a call that meets the lock of another transaction, so that it holds no connection while it waits.

An open transaction of the application may hold a lock for minutes. A call that waited for it in the server
would keep its connection meanwhile, and a few such calls would take the whole pool. So its statements have a
short lock timeout. After that the call gives its connection back and pauses, until its own time limit.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from pg_scheduler.database.blockers import Blocker, Fetch, watching
from pg_scheduler.database.options import DIVIDED_LOCK_TIMEOUT_MS, LOCK_TIMEOUT_MS
from pg_scheduler.database.session import Connection
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.events.log import logger, record_fields

MIN_PAUSE_S: Final = 0.05
MAX_PAUSE_S: Final = 1.0
"""The shortest and the longest pause between two attempts to get a lock."""

LOOK_AFTER_S: Final = 2.0
"""Seconds after which a call that waits finds out what it waits for."""

REPORT_AFTER_S: Final = 5.0
"""Seconds after which a WARNING names the transaction that a call waits for."""

REPORT_INTERVAL_S: Final = 60.0
"""Seconds between two records about one transaction."""


def describe_holders(blockers: Sequence[Blocker]) -> str:
    """Return the sessions that a call waits for, for a message."""
    return " and ".join(map(str, blockers)) or "one that pg_locks and pg_stat_activity may show"


class LockReports:
    """Logs which transactions calls wait for: each one once a minute, however many calls wait for it."""

    def __init__(self) -> None:
        self.report_after_s = REPORT_AFTER_S
        self._next_at: dict[str, float] = {}

    def report(self, name: str, seconds: float, holders: str) -> None:
        """Log that a call waits, unless a record has named these holders in the last minute."""
        now = time.monotonic()
        self._next_at = {text: at for text, at in self._next_at.items() if at > now}
        if holders in self._next_at:
            return
        self._next_at[holders] = now + REPORT_INTERVAL_S
        logger.warning(
            "a call has waited %.0f s for a lock of another transaction (%s): %s; end that "
            "transaction, or shorten those of your application",
            seconds,
            name,
            holders,
            extra=record_fields(),
        )


class LockRetries:
    """The attempts of one call to get the locks that it needs.

    Attributes:
        lock_timeout_ms: The longest wait for a lock in the next attempt.
    """

    def __init__(self, fetch: Fetch, reports: LockReports, name: str, timeout_s: float) -> None:
        self._fetch = fetch
        self._reports = reports
        self._name = name
        self._timeout_s = timeout_s
        self._began = time.monotonic()
        self._pause_s = MIN_PAUSE_S
        self._blockers: list[Blocker] = []
        self._is_reported = False
        self.lock_timeout_ms = LOCK_TIMEOUT_MS

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._began

    @asynccontextmanager
    async def watching(self, connection: Connection) -> AsyncIterator[None]:
        """Find out what the transaction of an attempt waits for, if the call has waited for some time."""
        look_after_s = min(LOOK_AFTER_S, self._reports.report_after_s)
        if self._is_reported or self._blockers or self._seconds < look_after_s:
            yield
            return
        async with watching(self._fetch, connection, self._blockers):
            yield

    async def pause(self, fault: DatabaseUnavailableError) -> None:
        """Wait until the next attempt.

        Raises:
            DatabaseUnavailableError: The time limit of the call is over.
        """
        seconds = self._seconds
        holders = describe_holders(self._blockers)
        if seconds >= self._timeout_s:
            raise DatabaseUnavailableError(
                f"the call needs a lock that another transaction has held for {self._timeout_s:g} s "
                f"({self._name}): {holders}; end that transaction, or repeat the call"
            ) from fault.__cause__
        # The holder may not be found at the first look.
        report_after_s = self._reports.report_after_s * (1 if self._blockers else 2)
        if seconds >= report_after_s and not self._is_reported:
            self._is_reported = True
            self._reports.report(self._name, seconds, holders)
        pause_s = self._pause_s * random.uniform(0.5, 1)  # noqa: S311 - it only keeps calls apart
        await asyncio.sleep(min(pause_s, self._timeout_s - seconds))
        self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)
        # An attempt that looks for the holder must wait until that is found.
        is_to_look = not self._blockers and self._seconds >= min(LOOK_AFTER_S, self._reports.report_after_s)
        self.lock_timeout_ms = LOCK_TIMEOUT_MS if is_to_look else DIVIDED_LOCK_TIMEOUT_MS
