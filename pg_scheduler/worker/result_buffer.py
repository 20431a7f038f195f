"""Hold the outcomes of attempts until they are in the database.

Completer and claimer take batches out of the buffer with a ``with`` statement. When the block ends, its batch
is settled; when it raises, the batch returns to the buffer. So each outcome has one writer at a time, and an
error loses none.

An outcome that could not be written with the others of its batch moves to ``LateOutcomes``. That happens only
if a row is locked by another transaction, or if the table refuses an outcome.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Final

from pg_scheduler.base.batches import BatchRoom
from pg_scheduler.base.meter import Meter
from pg_scheduler.base.status import JobStatus
from pg_scheduler.events import (
    EventBus,
    JobCompleted,
)
from pg_scheduler.jobs.outcome import COMPLETE, Outcome
from pg_scheduler.jobs.rows import Claim
from pg_scheduler.worker.late_outcomes import AttemptOutcome, LateGroup, LateOutcomes, merge
from pg_scheduler.worker.signals import Signals


class ResultBuffer:
    """Outcomes that are not yet written, with completions kept apart from the others.

    The completions of jobs in sequences are a third kind, since they hand their sequence over to the next
    job.
    """

    batch_size = 500
    """The maximum number of outcomes of one batch. Large results make it smaller."""
    capacity = 2000
    """The number of unwritten outcomes from which the claimer claims no more jobs."""

    def __init__(
        self,
        events: EventBus,
        signals: Signals,
        *,
        keeps_completed: bool,
        meter: Meter | None = None,
    ) -> None:
        self._events = events
        self.keeps_completed: Final = keeps_completed
        self.deleted: Final[Counter[JobStatus]] = Counter()
        """The number of completed jobs whose rows were deleted at once, until the vacuum reports it."""
        self._signals = signals
        self._meter = meter
        self.claims_follow = False
        """Whether completions may wait for the next claim, which takes them along; set by the claimer."""
        self.on_settled: Callable[[Iterable[Claim]], None] | None = None
        """Called with the attempts of each batch that was written, while attempts within limits run."""
        # By attempt number, because one statement writes completions of one number.
        self._completed: dict[int, list[Claim]] = {}
        self._sequenced: dict[int, list[Claim]] = {}
        self._others: deque[AttemptOutcome] = deque()
        self.late: Final = LateOutcomes()
        """Outcomes that could not be written with the others of their batch."""
        self._in_batches: dict[CompletionBatch | OutcomeBatch, list[Claim]] = {}
        self._unwritten = 0

    def put(self, claim: Claim, outcome: Outcome, *, apart: bool = False) -> None:
        """Add an outcome.

        Args:
            claim: The attempt.
            outcome: Its outcome.
            apart: Whether only the completer may write it, even if it is a plain completion.
        """
        if outcome is COMPLETE and not apart:
            self.put_completed(claim)
        else:
            self._unwritten += 1
            self._others.append((claim, outcome))
            self._signals.results_waiting()

    def put_completed(self, claim: Claim) -> None:
        """Add a completion: a fast path, since nearly all jobs complete."""
        self._unwritten += 1
        claims = self._completed.get(claim.attempt)
        if claims is None:
            self._completed[claim.attempt] = [claim]
        else:
            claims.append(claim)
        if not self.claims_follow:
            self._signals.results_waiting()

    def put_sequenced(self, claim: Claim) -> None:
        """Add the completion of a job that is in a sequence.

        While one claim follows another, other due jobs wait for the slots. Then many are written together.
        """
        self._unwritten += 1
        claims = self._sequenced.setdefault(claim.attempt, [])
        claims.append(claim)
        if not self.claims_follow or len(claims) >= self.batch_size // 2:
            self._signals.results_waiting()

    @property
    def has_results(self) -> bool:
        """Whether any outcomes wait to be written. Batches in progress do not count."""
        return bool(self.has_new or self.late.groups)

    @property
    def has_new(self) -> bool:
        """Whether any outcomes were not yet tried."""
        return bool(self._completed or self._sequenced or self._others)

    @property
    def has_completions(self) -> bool:
        """Whether any completions are not yet in a batch."""
        return bool(self._completed)

    @property
    def has_sequenced(self) -> bool:
        """Whether any completions of jobs in sequences are not yet in a batch."""
        return bool(self._sequenced)

    @property
    def has_others(self) -> bool:
        """Whether any other outcomes are not yet in a batch."""
        return bool(self._others)

    @property
    def is_full(self) -> bool:
        """Whether the unwritten outcomes have reached the capacity. Batches in progress count too."""
        return self._unwritten >= self.capacity

    def unwritten(self) -> dict[str, int]:
        """Return the attempt numbers of all outcomes whose write is not confirmed, by job id.

        Any thread may call it. An outcome may move from the buffer into a batch meanwhile, or back. It is in
        both for a moment, and never in neither. So the buffer is read before the batches and after them, and
        one of the readings finds the outcome, whichever way it moves.
        """
        buffered = self._buffered()
        in_batches = [claim for claims in list(self._in_batches.values()) for claim in list(claims)]
        return {claim.job_id: claim.attempt for claim in (*buffered, *in_batches, *self._buffered())}

    def _buffered(self) -> list[Claim]:
        """Return the attempts whose outcomes are in no batch.

        Any thread may call it, so the collections are copied before they are iterated over.
        """
        lists = (*list(self._completed.values()), *list(self._sequenced.values()))
        completed = [claim for claims in lists for claim in list(claims)]
        # The late outcomes come first. If a job has two attempts here, the later attempt follows them, and it
        # is the one that unwritten() returns.
        others = [claim for claim, _ in list(self._others)]
        return self.late.claims() + completed + others

    def completions(self) -> AbstractContextManager[CompletionBatch]:
        """Yield a batch of completions of one attempt number, which the block has to write.

        The batch may be empty. The block sets ``refused`` to the ids whose completions the database refused.
        When it ends, the others count as written; when it raises, the batch returns to this buffer.
        """
        return self._batch_of(self._completed)

    def sequenced(self) -> AbstractContextManager[CompletionBatch]:
        """Yield a batch of completions of jobs in sequences, as ``completions()`` does for others."""
        return self._batch_of(self._sequenced)

    @contextmanager
    def _batch_of(self, completed: dict[int, list[Claim]]) -> Iterator[CompletionBatch]:
        """Yield a batch of one of the two kinds of completions."""
        batch = CompletionBatch()
        self._take_completions(batch, completed)
        try:
            yield batch
        except BaseException:  # whatever it was, no outcome is lost
            self._return_completions(batch, completed)
            raise
        self._settle_completions(batch)

    @contextmanager
    def others(self) -> Iterator[OutcomeBatch]:
        """Yield a batch of outcomes other than plain completions, which the block has to write.

        The block sets which of them were accepted, cancelled or postponed; all others count as lost. If the
        block raises, the batch returns to this buffer.
        """
        batch = OutcomeBatch()
        self._take_others(batch)
        try:
            yield batch
        except BaseException:  # whatever it was, no outcome is lost
            self._return_others(batch.outcomes)
            del self._in_batches[batch]
            raise
        self._settle_others(batch)

    @contextmanager
    def late_turn(self) -> Iterator[OutcomeBatch]:
        """Yield a batch of the late outcomes whose turn it is now, as ``others()`` does for new ones.

        Late outcomes are those that could not be written with the others of their batch.
        """
        groups = self.late.due_groups(self.batch_size)
        batch = OutcomeBatch()
        if groups:
            batch.last_group = merge(groups)
            batch.outcomes = list(batch.last_group.outcomes)
        # The outcomes are in the batch before they leave the groups, so unwritten() misses none.
        self._in_batches[batch] = [claim for claim, _ in batch.outcomes]
        self.late.remove(groups)
        try:
            yield batch
        except BaseException:  # whatever it was, no outcome is lost
            self.late.groups.extend(groups)
            del self._in_batches[batch]
            raise
        self._settle_others(batch)

    def _take_completions(self, batch: CompletionBatch, completed: dict[int, list[Claim]]) -> None:
        """Move completions of one attempt number into a batch, at most ``batch_size`` of them."""
        if not completed:
            return
        attempt, claims = next(iter(completed.items()))
        # The completions are in the batch before they leave the buffer, so unwritten() misses none.
        self._in_batches[batch] = claims
        del completed[attempt]
        if len(claims) > self.batch_size:
            # The rest becomes the last entry of the dict, so that other attempt numbers have their turn
            # first.
            completed[attempt] = claims[self.batch_size :]
            del claims[self.batch_size :]
        # A claim takes one batch. The signal makes the completer write what is left.
        if completed:
            self._signals.results_waiting()
        batch.claims = claims

    def _settle_completions(self, batch: CompletionBatch) -> None:
        """Publish accepted completions, and move refused ones to the other outcomes."""
        claims, refused = batch.claims, batch.refused
        if not claims:
            return
        if not self.keeps_completed:
            self.deleted[JobStatus.COMPLETED] += len(claims) - len(refused)
        # The completer writes refused completions once more, by a statement that decides about each of them.
        if refused:
            self._return_others([(claim, COMPLETE) for claim in claims if claim.job_id in refused])
        self._forget(batch, len(claims) - len(refused))
        if self.on_settled is not None:
            self.on_settled(claims)
        written_claims = claims if not refused else [claim for claim in claims if claim.job_id not in refused]
        self._report(written_claims)

    def end_written(self, claim: Claim) -> None:
        """Report a completion that the code of its job has written itself, so that it was in no buffer."""
        if self.on_settled is not None:
            self.on_settled((claim,))
        self._report((claim,))

    def _report(self, completed: Sequence[Claim]) -> None:
        """Count completions that are written, and publish events about them."""
        if self._meter is not None:
            self._meter.record_completions(completed)
        if self._events.wants(JobCompleted):
            for claim in completed:
                self._events.publish(JobCompleted(claim.job_id, claim.job_name, claim.attempt))

    def _return_completions(self, batch: CompletionBatch, completed: dict[int, list[Claim]]) -> None:
        """Move completions back from a batch that was not written; they precede those that came meanwhile."""
        claims = batch.claims
        if claims:
            attempt = claims[0].attempt
            newer_claims = completed.pop(attempt, ())
            completed[attempt] = [*claims, *newer_claims]
            del self._in_batches[batch]
        self._signals.results_waiting()

    def _take_others(self, batch: OutcomeBatch) -> None:
        """Move other outcomes into a batch, each job once."""
        outcomes: dict[str, AttemptOutcome] = {}
        room = BatchRoom(self.batch_size)
        for claim, outcome in self._others:
            # Another attempt of the same job has its turn after this one's.
            if claim.job_id in outcomes or not room.take(outcome.change.characters):
                break
            outcomes[claim.job_id] = (claim, outcome)
        # The outcomes are in the batch before they leave the buffer, so unwritten() misses none.
        self._in_batches[batch] = [claim for claim, _ in outcomes.values()]
        for _ in outcomes:
            self._others.popleft()
        batch.outcomes = list(outcomes.values())

    def _settle_others(self, batch: OutcomeBatch) -> None:
        """Publish accepted outcomes, and refused ones as cancelled or lost.

        Late ones are in the groups of ``late`` again, and follow when they are written.
        """
        outcomes = batch.outcomes
        if batch.late:
            outcomes = [(claim, outcome) for claim, outcome in outcomes if claim.job_id not in batch.late]
        self._forget(batch, len(self._in_batches[batch]) - len(batch.late))
        if self.on_settled is not None:
            self.on_settled(claim for claim, _ in outcomes)
        for claim, outcome in outcomes:
            event = outcome.event_of(
                claim,
                accepted=claim.job_id in batch.accepted,
                is_cancelled=claim.job_id in batch.cancelled,
            )
            # A completion is counted here. The statistics count all other outcomes by their events.
            if self._meter is not None and isinstance(event, JobCompleted):
                self._meter.record_end(claim.job_name, "completed")
            if event is not None:
                self._events.publish(event)

    def _return_others(self, outcomes: list[AttemptOutcome]) -> None:
        """Put outcomes that are not written before the others, in their order, and wake the completer."""
        self._others.extendleft(reversed(outcomes))
        self._signals.results_waiting()

    def _forget(self, batch: CompletionBatch | OutcomeBatch, settled_count: int) -> None:
        """Forget a batch of which so many outcomes are settled: written, or refused as lost.

        If this makes room for further outcomes, signal that jobs may be claimed again.
        """
        was_full = self.is_full
        del self._in_batches[batch]
        self._unwritten -= settled_count
        if was_full and not self.is_full:
            self._signals.slot_free()


@dataclass(eq=False, slots=True)
class CompletionBatch:
    """Completions of one attempt number that are being written.

    Attributes:
        claims: The completed attempts.
        refused: Ids of jobs whose completion the database refused; set within the block.
    """

    claims: list[Claim] = field(default_factory=list)
    refused: Collection[str] = ()


@dataclass(eq=False, slots=True)
class OutcomeBatch:
    """Outcomes other than completions that are being written.

    Attributes:
        outcomes: The attempts with their outcomes.
        last_group: The late group that consists of these outcomes; None if they were not tried before.
        accepted: Ids of jobs whose outcome the database accepted; set within the block.
        cancelled: Ids of the other jobs that were cancelled meanwhile; set within the block.
        late: Ids of jobs whose outcome the block has added to ``ResultBuffer.late``.
    """

    outcomes: list[AttemptOutcome] = field(default_factory=list)
    last_group: LateGroup | None = None
    accepted: Collection[str] = ()
    cancelled: Collection[str] = ()
    late: Collection[str] = ()
