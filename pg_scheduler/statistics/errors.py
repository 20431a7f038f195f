"""Add counted failures to the groups of errors.

The statement that fails or expires jobs appends a row for each error to ``scheduler_failures``; see the
fragment ``counted_failures``. If it wrote the row of the group instead, workers whose jobs fail for one cause
would wait for one another. So a second later, one worker adds the new rows of all workers to the groups. The
rows of a worker that was killed are added by the worker that declares it dead, or with those of other
workers. The vacuum deletes old counts with old statistics.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar, Final

from pg_scheduler.database.author import report_refused
from pg_scheduler.database.faults import RECORD_REFUSALS
from pg_scheduler.database.statements import Repository
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.events import JobExpired, JobFailed
from pg_scheduler.jobs.error_text import OTHER_ERRORS
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.service import NEVER, Service

MAX_GROUPS_OF_NAME: Final = 1000
"""Groups of one name. Its further errors count as one more group."""


class ErrorRepository(Repository):
    """The statements that write the groups of errors."""

    async def fold(self, limit: int) -> int:
        """Add at most ``limit`` rows of failures to their groups; return how many were added."""
        return await self._statements.number("fold_failures", limit, MAX_GROUPS_OF_NAME, OTHER_ERRORS)


class ErrorCounter(Service):
    """Add the failures of this worker, and those that others have left, to the groups of errors."""

    name: ClassVar[str] = "error_counter"
    gap_s = 1.0
    """Seconds from a failure to the pass that adds it, with the failures that have followed it."""
    batch_size = 1000
    """Rows that one statement adds."""
    retry_delay_s = 60.0
    """Seconds until the next pass after the server has refused the rows."""

    def __init__(self, node: Node, errors: ErrorRepository) -> None:
        super().__init__(node.events)
        self._errors = errors
        self._uncounted_jobs = node.store.uncounted
        # When failures are to be added, by the monotonic clock; None if there are none.
        self._due_at: float | None = None
        # Whether the server has refused the last rows, which is logged once.
        self._is_refused = False
        self._unsubscribe: Callable[[], None] = lambda: None

    async def prepare(self) -> None:
        """Follow the failures of this worker until the service stops."""
        self._unsubscribe = self._events.subscribe(lambda _: self.begin(), JobFailed, JobExpired)

    def begin(self) -> None:
        """Add failures in a moment: this worker has written some, or has found a dead worker."""
        if self._due_at is None:
            self._due_at = time.monotonic() + self.gap_s
            self.wake()

    async def run_once(self) -> float:
        """Add one batch of failures, a moment after the first of them; return the seconds until the next."""
        due_in_s = self._due_in_s()
        if due_in_s > 0:
            return due_in_s
        # A failure that is written during this pass needs another one, whether or not this one sees it.
        due_at, self._due_at = self._due_at, None
        try:
            await self._uncounted_jobs.count()
            added_count = await self._errors.fold(self.batch_size)
        except RECORD_REFUSALS as refusal:
            # The counts are for people, so a refusal never stops a worker.
            if not self._is_refused:
                report_refused("counts of errors", refusal)
            self._is_refused, self._due_at = True, due_at
            return self.retry_delay_s
        except DatabaseUnavailableError:
            self._due_at = due_at
            raise
        self._is_refused = False
        # After a full batch, more rows may be left.
        if added_count == self.batch_size:
            self._due_at = due_at
            return 0
        return self._due_in_s()

    def _due_in_s(self) -> float:
        """Return the seconds until failures are to be added; ``NEVER`` if there are none."""
        if self._due_at is None:
            return NEVER
        return max(self._due_at - time.monotonic(), 0)

    async def drain(self) -> None:
        """Add the last failures. If the database is unavailable, other workers add them later."""
        self._unsubscribe()
        if self._due_at is None or self.outage is not None:
            return
        self._due_at = 0.0  # so that the pass does not wait
        try:
            await self.run_once()
        except DatabaseUnavailableError:
            return
