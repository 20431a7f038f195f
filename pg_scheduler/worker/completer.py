"""Write outcomes in batches, each under its fencing token.

A batch contains the outcomes that arrived while the previous one was written, so a single outcome is written
at once and many are written in large statements. While too many outcomes are not written, no job is claimed.

Nearly all outcomes are plain completions, which ``ClaimRepository`` writes. While one claim follows another,
``exchange()`` writes them in the statement of a claim; at other times ``complete()`` does. All other
outcomes, and the completions that these two methods refuse, go through ``ResultRepository`` in
``outcome_statements.py``.

No outcome waits for a lock of the application that concerns another outcome. A batch that waits for a lock
for longer than ``LOCK_TIMEOUT_MS`` leaves out the outcomes whose rows ``lock_settled`` finds locked;
``late_outcomes`` holds these from then on. If many of them wait, an outcome is written without its
consequences, if only rows that the consequences change are locked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import ClassVar, Final, Protocol

from pg_scheduler.base.status import JobStatus
from pg_scheduler.database.faults import (
    REFUSALS,
    REFUSED_PAUSE_S,
    is_locked_out,
    is_refusal,
    is_transient,
    sqlstate_of,
)
from pg_scheduler.errors import DatabaseUnavailableError, PoolClosedError
from pg_scheduler.events import JobFailed, JobReleased, OutcomeRefused, OutcomesDelayed
from pg_scheduler.jobs.outcome import Outcome, describe, substitutes
from pg_scheduler.jobs.rows import Claim
from pg_scheduler.worker.late_outcomes import AttemptOutcome
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.progress_writer import ProgressWriter
from pg_scheduler.worker.result_buffer import OutcomeBatch
from pg_scheduler.worker.service import NEVER, Service

MAX_REFUSAL_LENGTH: Final = 500
"""Characters of the error of a trigger or a constraint that the row of the job keeps."""

LAST_TURNS_S: Final = 1.0
"""Seconds after the flush timeout for late outcomes to be written without their consequences."""

RETRY_DELAY_S: Final = 0.2
"""Seconds between two attempts to write the last outcomes at shutdown."""


class Successions(Protocol):
    """What completes jobs in sequences; see ``admission/hand_over.py``."""

    async def complete(self, completed: Sequence[Claim]) -> Collection[str]:
        """Complete jobs and start the next ones of their sequences; return the ids of the refused ones."""


class Completer(Service):
    """Write outcomes in batches.

    Attributes:
        successions: Completes jobs in sequences; None to complete them as others.
    """

    name: ClassVar[str] = "completer"
    report_after_s = 5.0
    """Seconds for which an outcome waits for a lock before its holder is reported."""
    report_interval_s = 60.0
    """Seconds between two such reports."""

    def __init__(self, node: Node, progress: ProgressWriter) -> None:
        super().__init__(node.events)
        self._store = node.store
        self._worker_id = node.worker_id
        self._result_buffer = node.result_buffer
        self._progress = progress
        self._flush_timeout = node.config.shutdown_timeout
        self._signals = node.signals
        self._failures = node.waiters.failures
        self._report_at = 0.0
        # Whether outcomes are written with the consequences of their jobs. Only a shutdown turns this off.
        self._with_consequences = True
        self.successions: Successions | None = None

    async def run_once(self) -> float:
        """Write a batch of completions, a batch of other outcomes, and the late outcomes whose turn it is.

        An outcome is late if a lock or the table kept it from being written with its batch. Return the
        seconds until the next turn of late outcomes; 0 if there are new outcomes.
        """
        buffer = self._result_buffer
        if buffer.has_completions:
            with buffer.completions() as completions:
                completions.refused = await self._store.claims.complete(
                    self._worker_id, completions.claims, keep=buffer.keeps_completed
                )
        if buffer.has_sequenced:
            with buffer.sequenced() as completions:
                if self.successions is None:
                    completions.refused = {claim.job_id for claim in completions.claims}
                else:
                    completions.refused = await self.successions.complete(completions.claims)
        if buffer.has_others:
            with buffer.others() as batch:
                await self._write(batch)
        if buffer.late.next_turn_in() == 0:
            with buffer.late_turn() as batch:
                await self._write(batch)
            await self._report_late()
        if buffer.has_new:
            return 0
        delay = buffer.late.next_turn_in()
        return NEVER if delay is None else delay

    async def _write(self, batch: OutcomeBatch) -> None:
        """Write the outcomes of a batch, and signal to the other parts of this worker what that changes."""
        await self._progress.write_last(claim for claim, _ in batch.outcomes)
        # The number of earlier crashes decides the outcome of a crash.
        if any(outcome.after_crashes for _, outcome in batch.outcomes):
            batch.outcomes = await self._store.results.count_crashes(batch.outcomes)
        # Late outcomes have a group. Their failures were announced before they were first written.
        if batch.last_group is None:
            self._announce_failures(batch.outcomes)
        try:
            await self._settle(batch)
        except DatabaseUnavailableError as fault:
            if not is_locked_out(fault):
                raise
            self._divide(batch)
        except REFUSALS as error:
            if not is_refusal(error):
                raise
            if len(batch.outcomes) > 1:
                self._divide(batch)
            else:
                await self._substitute(batch, error)
        # These outcomes are done with: they are written, or the attempt does not hold its job any more.
        settled = [(claim, outcome) for claim, outcome in batch.outcomes if claim.job_id not in batch.late]
        await self._find_cancelled(batch, settled)
        if settled:
            due_at = _earliest_due(settled, self._store.statements.server_now)
            if any(outcome.make_event is JobReleased for _, outcome in settled):
                self._signals.jobs_released(due_at)
            # The signal is sent even if all of the jobs have ended. A replacement may have taken the row of
            # one, and without LISTEN nothing else announces it to this worker.
            self._signals.due(due_at)

    async def _find_cancelled(self, batch: OutcomeBatch, settled: Sequence[AttemptOutcome]) -> None:
        """Find the attempts whose outcome was refused because their job was cancelled.

        Such an attempt ended before its worker learnt of the cancellation, so it is not lost.
        """
        # An outcome without an event is the end of a revoked attempt, whose reason is known already.
        refused = {
            claim.job_id: claim.attempt
            for claim, outcome in settled
            if claim.job_id not in batch.accepted and outcome.make_event is not None
        }
        if refused:
            # The other outcomes are written, so an error here is ignored. These attempts then count as lost.
            with suppress(DatabaseUnavailableError):
                batch.cancelled = await self._store.results.find_cancelled(refused)

    async def _settle(self, batch: OutcomeBatch) -> None:
        """Write outcomes together; if rows are locked, write those whose rows are free, and postpone others.

        Late outcomes have failed together with others before, so they are written in the second way at once.
        """
        repository, buffer = self._store.results, self._result_buffer
        # The counter of deleted jobs; None if completed jobs keep their rows.
        deleted = None if buffer.keeps_completed else buffer.deleted
        with_consequences = self._with_consequences
        if batch.last_group is not None:
            with_consequences = with_consequences and batch.last_group.with_consequences
        else:
            try:
                batch.accepted = await repository.settle(self._worker_id, batch.outcomes, deleted=deleted)
            except DatabaseUnavailableError as fault:
                if not is_locked_out(fault):
                    raise
            else:
                return
        settled = await repository.settle_unlocked(
            self._worker_id, batch.outcomes, deleted=deleted, with_consequences=with_consequences
        )
        locked_outcomes = [
            (claim, outcome) for claim, outcome in batch.outcomes if claim.job_id in settled.locked
        ]
        self._postpone(batch, locked_outcomes)
        batch.accepted, batch.late = settled.accepted, settled.locked
        # The deadline scanner applies the consequences that were left out.
        if not with_consequences and settled.accepted:
            self._signals.end_overlooked()

    def _postpone(
        self, batch: OutcomeBatch, outcomes: Sequence[AttemptOutcome], *, is_alone: bool = False
    ) -> None:
        """Let outcomes of a batch wait for a lock.

        If many outcomes are late, these get a turn at once instead, in which they are written without their
        consequences. So no backlog of them keeps the worker from claiming jobs. ``is_alone`` is whether it is
        one outcome that failed although no row of it was locked.
        """
        late_outcomes, group = self._result_buffer.late, batch.last_group
        late_count = len(outcomes) + len(late_outcomes.claims())
        if group is not None and group.may_omit_consequences(late_count):
            late_outcomes.put_without_consequences(outcomes, last_group=group)
        else:
            late_outcomes.postpone(outcomes, last_group=group, is_alone=is_alone)

    def _divide(self, batch: OutcomeBatch, *, pause_s: float | None = None) -> None:
        """Halve a batch that failed although no row of it is locked, or let the only outcome wait.

        ``pause_s`` is for how many seconds an outcome waits that the table refuses; None for one that meets a
        lock, which may be free at any time.
        """
        batch.late = {claim.job_id for claim, _ in batch.outcomes}
        if len(batch.outcomes) > 1:
            self._result_buffer.late.divide(batch.outcomes, last_group=batch.last_group)
        elif pause_s is None:
            self._postpone(batch, batch.outcomes, is_alone=True)
        else:
            self._result_buffer.late.postpone(
                batch.outcomes, last_group=batch.last_group, pause_s=pause_s, is_alone=True
            )

    async def _substitute(self, batch: OutcomeBatch, refusal: Exception) -> None:
        """Write a substitute for the only outcome of a batch, which the table refuses.

        Substitutes are the outcome without its consequences or texts, or in the end a failure of the job. If
        the table refuses these too, or if the refusal may pass, the outcome waits for ``REFUSED_PAUSE_S``.
        """
        [(claim, outcome)] = batch.outcomes
        error = describe(refusal)[:MAX_REFUSAL_LENGTH]
        # The refusal may pass, as after an outage of another server that a trigger calls.
        if is_transient(refusal):
            self._divide(batch, pause_s=REFUSED_PAUSE_S)
            self._publish_refusal(claim, error, "it waits, because the SQLSTATE is one of an outage")
            return
        reason = f"the table refused the outcome of this attempt: {error}"
        state = sqlstate_of(refusal) or "unknown"
        choices = substitutes(
            outcome, reason, state, refusal, deletes=not self._result_buffer.keeps_completed
        )
        # The first substitute that the table accepts is written.
        for substitute in choices:
            outcomes = [(claim, substitute.outcome)]
            try:
                settled = await self._store.results.settle_unlocked(
                    self._worker_id, outcomes, deleted=None, with_consequences=substitute.with_consequences
                )
            except REFUSALS as refusal_of_substitute:
                if not is_refusal(refusal_of_substitute):
                    raise
                continue
            except DatabaseUnavailableError as fault:
                if not is_locked_out(fault):
                    raise
                # After the wait for the lock, the outcome itself is tried once more, and not its substitute.
                self._divide(batch)
                return
            if settled.locked:
                self._divide(batch)
                return
            batch.outcomes, batch.accepted = outcomes, settled.accepted
            # The deadline scanner applies the consequences that were left out.
            if not substitute.with_consequences and settled.accepted:
                self._signals.end_overlooked()
            self._publish_refusal(claim, error, substitute.description)
            return
        self._divide(batch, pause_s=REFUSED_PAUSE_S)
        self._publish_refusal(claim, error, "nothing else was accepted either, so it waits")

    def _publish_refusal(self, claim: Claim, error: str, effect: str) -> None:
        """Publish that the table has refused the outcome of an attempt, and what follows from that."""
        event_args = (claim.job_id, claim.job_name, claim.attempt)
        self._events.publish(OutcomeRefused(*event_args, error=error, effect=effect))

    async def _report_late(self) -> None:
        """Publish, from time to time, which sessions hold the locks for which outcomes wait for long.

        They are looked up for the outcome that has waited longest.
        """
        now, late = time.monotonic(), self._result_buffer.late
        oldest = late.oldest_locked()
        if oldest is None or now < oldest.since + self.report_after_s or now < self._report_at:
            return
        self._report_at = now + self.report_interval_s
        claim, outcome = oldest.outcomes[0]
        blockers = await self._store.results.find_blockers(self._worker_id, claim, outcome)
        self._events.publish(
            OutcomesDelayed(
                claim.job_id,
                claim.job_name,
                claim.attempt,
                seconds=now - oldest.since,
                holders=tuple(map(str, blockers)),
                number=len(late.claims()),
            )
        )

    def _announce_failures(self, outcomes: Iterable[tuple[Claim, Outcome]]) -> None:
        """Publish final failures to those who wait for them in this process, before they are written."""
        if self._failures.wants(JobFailed):
            for claim, outcome in outcomes:
                event = outcome.event_of(claim)
                if isinstance(event, JobFailed):
                    self._failures.publish(event)

    async def drain(self) -> None:
        """Write the remaining outcomes, within the flush timeout.

        Raises:
            DatabaseUnavailableError: The database was unavailable for the whole time, or rows were locked.
                The jobs run again when their lease expires.
        """
        deadline = time.monotonic() + self._flush_timeout
        # Late outcomes do not wait for the ends of their pauses.
        self._result_buffer.late.hurry()
        self._with_consequences = True
        while self._result_buffer.has_results:
            fault: DatabaseUnavailableError | None = None
            delay = RETRY_DELAY_S
            try:
                delay = min(await self.run_once(), delay)
            except DatabaseUnavailableError as error:
                fault = error
            # Outcomes that were not tried yet are tried, even after the deadline: their number is limited,
            # while late outcomes could be tried without end. If no outcome is left, the loop ends.
            if fault is None and (self._result_buffer.has_new or not self._result_buffer.late.groups):
                continue
            # In the last turns, a delay means that each late outcome has had its turn, or that the database
            # is unavailable.
            are_last_turns = not self._with_consequences
            is_over = time.monotonic() >= deadline or (are_last_turns and delay > 0)
            if is_over and fault is None and not are_last_turns:
                # Late outcomes get last turns without their consequences. So a job whose own row is free does
                # not run again, even if rows are locked that its consequences change.
                self._with_consequences = False
                deadline = time.monotonic() + LAST_TURNS_S
                self._result_buffer.late.hurry()
                continue
            if is_over or isinstance(fault, PoolClosedError):
                raise await self.unwritten_error(fault) from fault
            if delay > 0:
                await asyncio.sleep(delay)

    async def unwritten_error(self, fault: DatabaseUnavailableError | None) -> DatabaseUnavailableError:
        """Return the error about outcomes that are not written when a shutdown ends.

        ``fault`` is the error of the database; None if rows are locked, or if the table refuses the outcomes.
        """
        jobs = ", ".join(self._result_buffer.unwritten())
        if fault is not None:
            return DatabaseUnavailableError(f"results could not be written before the shutdown ended: {jobs}")
        oldest = self._result_buffer.late.oldest_locked()
        if oldest is None:
            return DatabaseUnavailableError(
                "results could not be written before the shutdown ended, because the table refuses them: "
                f"{jobs}"
            )
        claim, outcome = oldest.outcomes[0]
        blockers = await self._store.results.find_blockers(self._worker_id, claim, outcome)
        holders = " and ".join(map(str, blockers)) or "see pg_locks"
        return DatabaseUnavailableError(
            f"results could not be written before the shutdown ended, because rows are locked ({holders}): "
            f"{jobs}"
        )


def _earliest_due(outcomes: Iterable[tuple[Claim, Outcome]], now: datetime) -> datetime:
    """Return the earliest due time of the jobs that are pending again with their old due times.

    Return ``now``, which is the server's time, if there are no such jobs. Jobs that are pending again after a
    delay or a suspension are due later than now, so they do not count. A replacement has a notification of
    its own.
    """
    due_times = (
        claim.execution_time
        for claim, outcome in outcomes
        if outcome.change.status is JobStatus.PENDING
        and not outcome.change.delay_s
        and not outcome.change.suspensions
    )
    return min(due_times, default=now)
