"""Repeat a call that meets the lock of another transaction, so that it holds no connection while it waits.

An open transaction of the application may hold a lock for minutes. A call that waited for it in the server
would keep its connection meanwhile, and a few such calls would take the whole pool. So its statements have a
short lock timeout. After that the call gives its connection back and pauses, until its own time limit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from pg_scheduler.base.backoff import Backoff
from pg_scheduler.database.blockers import Blocker, Fetch, take_turns, watching
from pg_scheduler.database.options import DIVIDED_LOCK_TIMEOUT_MS, LOCK_TIMEOUT_MS
from pg_scheduler.database.session import Connection
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.events.log import logger, record_fields

MIN_PAUSE_S: Final = 0.05
MAX_PAUSE_S: Final = 1.0
"""The shortest and the longest pause between two attempts to get a lock."""

REPORT_AFTER_S: Final = 5.0
"""Seconds after which a WARNING names the transaction that a call waits for."""

REPORT_INTERVAL_S: Final = 60.0
"""Seconds between two records about one transaction."""


def describe_holders(blockers: Sequence[Blocker]) -> str:
    """Return a text that names the sessions that a call waits for, for a message."""
    return " and ".join(map(str, blockers)) or "one that pg_locks and pg_stat_activity may show"


class LockReports:
    """Logs which transactions calls wait for: each one once a minute, however many calls wait for it.

    If transactions hold a lock one after the other, one record a minute names one of them as an example.
    """

    def __init__(self) -> None:
        self.report_after_s = REPORT_AFTER_S
        # When there may be another record about holders or the calls of a name, by the monotonic clock.
        self._next_at: dict[str, float] = {}

    def report(self, name: str, seconds: float, blockers: Sequence[Blocker]) -> None:
        """Log that a call waits, unless a record has named these holders in the last minute.

        Args:
            name: What the call does, for the message.
            seconds: How long it has waited.
            blockers: The sessions that hold the lock.
        """
        now, holders = time.monotonic(), describe_holders(blockers)
        are_turns = take_turns(blockers, seconds)
        self._next_at = {subject: next_at for subject, next_at in self._next_at.items() if next_at > now}
        # If transactions hold the lock in turns, the holders differ each time, so calls of a name count.
        subject = name if are_turns else holders
        if subject in self._next_at:
            return
        self._next_at[subject] = now + REPORT_INTERVAL_S
        message = (
            "a call has waited %.0f s for a lock of another transaction (%s): %s; end that "
            "transaction, or shorten those of your application"
        )
        if are_turns:
            message = (
                "a call has waited %.0f s for a lock that transactions hold one after the other (%s), "
                "such as %s; let fewer jobs or calls change the same row at once, for example by a limit"
            )
        logger.warning(message, seconds, name, holders, extra=record_fields())


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
        self._backoff = Backoff(MIN_PAUSE_S, MAX_PAUSE_S)
        self._blockers: list[Blocker] = []
        self._is_reported = False
        self.lock_timeout_ms = LOCK_TIMEOUT_MS

    @property
    def _seconds(self) -> float:
        """The seconds since the call began."""
        return time.monotonic() - self._began

    @property
    def _must_find_holder(self) -> bool:
        """Whether an attempt that begins now has to find out which transaction holds the lock.

        The record in the log names the holder, so this is True once that is due. The error of the last
        attempt names it too, so this is also True for an attempt that may be the last one.
        """
        seconds = self._seconds
        is_due = not self._is_reported and seconds >= self._reports.report_after_s
        return is_due or seconds >= self._timeout_s - MAX_PAUSE_S

    @asynccontextmanager
    async def watching(self, connection: Connection) -> AsyncIterator[None]:
        """Find out within the block which sessions hold the lock that a transaction waits for.

        This takes further statements, so it is only done when a record or an error is to name the sessions.
        """
        if not self._must_find_holder:
            yield
            return
        async with watching(self._fetch, connection, self._blockers):
            yield

    async def pause(self, fault: DatabaseUnavailableError) -> None:
        """Wait until the next attempt.

        Raises:
            DatabaseUnavailableError: The time limit of the call is over.
        """
        # How long the call has waited, and after which time it is logged.
        seconds, report_after_s = self._seconds, self._reports.report_after_s
        if seconds >= self._timeout_s:
            waited, holders = f"for {self._timeout_s:g} s ({self._name})", describe_holders(self._blockers)
            problem = (
                f"the call has waited {waited} for a lock of another transaction: {holders}; end that "
                "transaction, or repeat the call"
            )
            if take_turns(self._blockers, seconds):
                problem = (
                    f"the call has waited {waited} for a lock that transactions hold one after the other, "
                    f"such as {holders}; let fewer jobs or calls change the same row at once, or repeat the "
                    "call"
                )
            raise DatabaseUnavailableError(problem) from fault.__cause__
        # If no attempt has found the holder of the lock yet, the record is delayed until twice this time.
        if not self._blockers:
            report_after_s *= 2
        if not self._is_reported and seconds >= report_after_s:
            self._is_reported = True
            self._reports.report(self._name, seconds, self._blockers)
        await asyncio.sleep(min(self._backoff.next_delay_s(), self._timeout_s - seconds))
        # An attempt that looks for the holder has to wait for the lock until the holder is found.
        self.lock_timeout_ms = LOCK_TIMEOUT_MS if self._must_find_holder else DIVIDED_LOCK_TIMEOUT_MS
