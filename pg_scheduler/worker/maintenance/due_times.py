"""Compute due times again that the server's clock gave before it was set back.

Suppose that the clock is ten years ahead for five seconds. A retry, a suspended job and the job of a schedule
that got their due times then would wait for ten years, and the next jobs of the schedule with them.
"""

from __future__ import annotations

from typing import ClassVar

from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.service import NEVER, Service


class DueTimeCorrector(Service):
    """Correct due times once the server's clock was set, also if that was before the worker started."""

    name: ClassVar[str] = "due_time_corrector"
    batch_size = 1000
    """Jobs that one statement corrects."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.events)
        self._jobs = node.store.jobs
        self._signals = node.signals
        self._must_correct = False

    def correct(self) -> None:
        """Let the next pass correct due times."""
        self._must_correct = True
        self.wake()

    async def run_once(self) -> float:
        """Correct a batch of due times; return 0 if there may be more."""
        if not self._must_correct:
            return NEVER
        self._must_correct = False
        try:
            corrected = await self._jobs.correct_due_times(self.batch_size)
        except BaseException:  # whatever it was, some may not be corrected
            self._must_correct = True
            raise
        if not corrected:
            return NEVER
        logger.warning(
            "the server's clock was set back; due times that it had given in the future are corrected: %d",
            corrected,
            extra=record_fields(),
        )
        self._signals.due()
        self._must_correct = True
        return 0
