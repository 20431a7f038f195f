"""Compute due times again that the server's clock gave before it was set back.

Suppose that the clock is ten years ahead for five seconds. A retry, a suspended job and the job of a schedule
that got their due times then would wait for ten years, and the next jobs of the schedule with them.

A transaction that began in those seconds may be committed later, and another one may lock a row meanwhile. So
passes are repeated until every transaction has ended that was open at the first one, and no such row is left.
"""

from __future__ import annotations

from typing import ClassVar

from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.service import NEVER, Service


class DueTimeCorrector(Service):
    """Correct due times once the server's clock was set back, also if that was before the worker started."""

    name: ClassVar[str] = "due_time_corrector"
    batch_size = 1000
    """Jobs that one statement corrects."""
    first_pause_s = 1.0
    """Seconds until the next pass if rows are left or transactions are open; each pause is twice as long."""
    longest_pause_s = 300.0
    """The longest such pause."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.events)
        self._jobs = node.store.jobs
        self._signals = node.signals
        self._must_correct = False
        self._pause_s = self.first_pause_s
        self._first_xid: int | None = None
        """The id of the newest transaction at the first pass; None before it. All older ones have to end."""

    def correct(self) -> None:
        """Correct due times soon, because the server's clock was set back."""
        self._must_correct = True
        self._first_xid = None
        self._pause_s = self.first_pause_s
        self.wake()

    async def run_once(self) -> float:
        """Correct a batch of due times; return the seconds until the next pass, 0 if there may be more."""
        if not self._must_correct:
            return NEVER
        self._must_correct = False
        # After a pass that has corrected some, another one follows at once. A pass that finds none to correct
        # is the last one, unless it finds locked rows or an open transaction.
        try:
            corrected = await self._jobs.correct_due_times(self.batch_size)
            uncorrected = None if corrected else await self._jobs.find_uncorrected()
        except BaseException:  # whatever it was, some due times may not be corrected
            self._must_correct = True
            raise
        if uncorrected is None:
            logger.warning(
                "the server's clock was set back; due times that it had given in the future are corrected: "
                "%d",
                corrected,
                extra=record_fields(),
            )
            self._signals.due()
            self._must_correct = True
            return 0
        if self._first_xid is None:
            self._first_xid = uncorrected.newest
        # A transaction that was open at the first pass may still commit due times that have to be corrected.
        # Ids of transactions grow, so all of these have ended if the oldest open one is newer.
        has_older_transaction = uncorrected.is_open or uncorrected.oldest < self._first_xid
        if not uncorrected.is_left and not has_older_transaction:
            return NEVER
        self._must_correct = True
        pause_s = self._pause_s
        self._pause_s = min(2 * pause_s, self.longest_pause_s)
        return pause_s
