"""Write outcomes in batches, each under its fencing token.

A batch contains the outcomes that arrived while the previous one was written, so a single outcome is written
at once and many are written in large statements. While one claim follows another, the claimer writes
completions in the statement of the claim. Executors that outrun the database wait (back-pressure).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import ClassVar, Final

from pg_scheduler.errors import DatabaseUnavailableError, PoolClosedError
from pg_scheduler.events import JobFailed, JobReleased
from pg_scheduler.jobs.outcome import Outcome
from pg_scheduler.jobs.rows import Claim
from pg_scheduler.status import JobStatus
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.pipeline.progress_writer import ProgressWriter
from pg_scheduler.worker.service import NEVER, Service, Wakeup

RETRY_DELAY_S: Final = 0.2
"""Seconds between two attempts to write the last outcomes at shutdown."""


class Completer(Service):
    """Write outcomes in batches."""

    name: ClassVar[str] = "completer"

    def __init__(self, node: Node, progress: ProgressWriter) -> None:
        super().__init__(node.events)
        self._store = node.store
        self._worker_id = node.worker_id
        self._results = node.results
        self._progress = progress
        self._flush_timeout = node.config.shutdown_timeout
        self._signals = node.signals
        self._failures = node.waiters.failures

    async def run_once(self) -> float:
        """Write one batch of completions, and one of all other outcomes."""
        results = self._results
        if results.has_completions:
            with results.completions() as completions:
                completions.refused = await self._store.claims.complete(
                    self._worker_id, completions.claims, keep=results.keeps_completed
                )
        if results.has_others:
            with results.others() as others:
                await self._progress.write_last(claim for claim, _ in others.outcomes)
                if any(outcome.after_crashes for _, outcome in others.outcomes):
                    others.outcomes = await self._store.results.count_crashes(others.outcomes)
                self._announce_failures(others.outcomes)
                others.accepted = await self._store.results.settle(
                    self._worker_id,
                    others.outcomes,
                    deleted=None if results.keeps_completed else results.deleted,
                )
            due = _due(others.outcomes)
            if any(outcome.make_event is JobReleased for _, outcome in others.outcomes):
                self._signals.jobs_released(due)
            # Also if all have ended: without LISTEN, nothing else announces a replacement that was applied.
            self._signals.due(due)
        return 0 if results.has_results else NEVER

    def _announce_failures(self, outcomes: Iterable[tuple[Claim, Outcome]]) -> None:
        if self._failures.wants(JobFailed):
            for claim, outcome in outcomes:
                event = outcome.event_of(claim)
                if isinstance(event, JobFailed):
                    self._failures.publish(event)

    async def drain(self) -> None:
        """Write the remaining outcomes, within the flush timeout.

        Raises:
            DatabaseUnavailableError: The database was unavailable for the whole time. The jobs run again when
                their lease expires.
        """
        deadline = time.monotonic() + self._flush_timeout
        pause = Wakeup()
        while self._results.has_results:
            try:
                await self.run_once()
            except DatabaseUnavailableError as fault:
                if time.monotonic() > deadline or isinstance(fault, PoolClosedError):
                    self._results.release_waiters()
                    raise DatabaseUnavailableError(
                        "results could not be written before the shutdown ended: "
                        + ", ".join(self._results.unwritten())
                    ) from fault
                await pause.wait(RETRY_DELAY_S)


def _due(outcomes: Iterable[tuple[Claim, Outcome]]) -> datetime:
    """Return when the first job is due that is pending again: at its old time, or later than now. Else now.

    A replacement has a notification of its own.
    """
    kept = (
        claim.execution_time
        for claim, outcome in outcomes
        if outcome.change.status is JobStatus.PENDING
        and not outcome.change.delay_s
        and not outcome.change.suspensions
    )
    return min(kept, default=datetime.now(UTC))
