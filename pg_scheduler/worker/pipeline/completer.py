"""Writes outcomes: buffered, in batches, each under its token, and never given up while there is time.

A batch is whatever gathered while the one before was being written, so a lone result is written at once
and a flood in large statements. While claims follow one another, the claimer takes completions along, in
the same statement. Executors that outrun the database wait (back-pressure).

What is being written is out of the buffer, so that the two writers cannot meet in one result. It comes
back if the write fails.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import ClassVar, Final

from pg_scheduler.errors import DatabaseUnavailableError, PoolClosedError
from pg_scheduler.events import (
    EventBus,
    JobCancelled,
    JobCompleted,
    JobEvent,
    JobFailed,
    JobLost,
    JobReleased,
    JobRetried,
)
from pg_scheduler.jobs.outcome import (
    CompleteOutcome,
    FailOutcome,
    Outcome,
    ReleaseOutcome,
    RetryOutcome,
    SkipOutcome,
)
from pg_scheduler.jobs.rows import Claim
from pg_scheduler.store.store import Store
from pg_scheduler.worker.service import NEVER, Service, Wakeup

__all__ = ["Completer"]

BATCH: Final = 500
HIGH_WATER: Final = 4 * BATCH
"""Results that may wait before executors have to."""

RETRY_PAUSE: Final = 0.2

_COMPLETED: Final = CompleteOutcome()


class Completer(Service):
    """Write outcomes as they come.

    Args:
        flush_timeout: Seconds for which results are still written after the last pass.
        on_written: Called after each batch that is not all plain completions: retried and replaced jobs
            are pending again by then. Says whether jobs were handed back, which other workers should hear of.
        keep: Whether the rows of completed jobs are kept, for the vacuum to delete.
    """

    name: ClassVar[str] = "completer"

    claims_follow: bool
    """Whether the claimer is about to claim, and takes completions along: it says so itself."""

    def __init__(
        self,
        store: Store,
        events: EventBus,
        worker_id: str,
        *,
        flush_timeout: float,
        on_written: Callable[[bool], None],
        keep: bool,
    ) -> None:
        super().__init__(events)
        self._store = store
        self._worker_id = worker_id
        self._flush_timeout = flush_timeout
        self._on_written = on_written
        self.claims_follow = False
        self.keep: Final = keep
        self._deleted = 0
        self._completed: dict[int, list[Claim]] = {}  # by attempt, as they are written
        self._others: deque[tuple[Claim, Outcome]] = deque()
        self._under_way: dict[int, list[Claim]] = {}  # by identity: two batches at most
        self._waiting = 0
        self._room = asyncio.Event()
        self._room.set()

    def put(self, claim: Claim, outcome: Outcome) -> None:
        """Hand an outcome over; while ``is_full``, wait for ``room()`` before the next."""
        if type(outcome) is CompleteOutcome:
            self.put_completed(claim)
        else:
            self._waiting += 1
            self._others.append((claim, outcome))
            self.wake()

    def put_completed(self, claim: Claim) -> None:
        """The same for a job that returned, as nearly all do."""
        self._waiting += 1
        same = self._completed.get(claim.attempt)
        if same is None:
            self._completed[claim.attempt] = [claim]
        else:
            same.append(claim)
        if not self.claims_follow:
            self.wake()

    @property
    def has_results(self) -> bool:
        """Whether outcomes wait."""
        return self._waiting > 0

    def unwritten(self) -> dict[str, int]:
        """What has ended and is not known to be in the table: attempts by job id. For any thread."""
        batches = [*list(self._under_way.values()), *list(self._completed.values())]
        claims = [claim for batch in batches for claim in list(batch)]
        return {claim.job_id: claim.attempt for claim in [*claims, *(each for each, _ in list(self._others))]}

    @property
    def is_full(self) -> bool:
        """Whether too many outcomes wait."""
        return self._waiting >= HIGH_WATER

    async def room(self) -> None:
        """Wait until fewer outcomes do."""
        self._room.clear()
        self.wake()
        await self._room.wait()

    def take_completed(self) -> list[Claim]:
        """Completions of one attempt number, to be written by who takes them.

        Either ``written()`` or ``put_back()`` has to follow.
        """
        if not self._completed:
            return []
        attempt = next(iter(self._completed))
        taken = self._completed.pop(attempt)
        if len(taken) > BATCH:
            self._completed[attempt] = taken[BATCH:]  # behind those of other numbers
            del taken[BATCH:]
        self._under_way[id(taken)] = taken
        self._waiting -= len(taken)
        if self._completed:
            self.wake()
        return taken

    def written(self, completed: Sequence[Claim], refused: Collection[str]) -> None:
        """They are in the database, but for those refused, which are tried again with everything else."""
        self._under_way.pop(id(completed), None)
        self._make_room()
        if not self.keep:
            self._deleted += len(completed) - len(refused)
        if self._events.wants(JobCompleted):
            for claim in completed:
                if claim.job_id not in refused:
                    self._events.publish(_event(claim, _COMPLETED, accepted=True))
        if refused:
            self._put_others_back([(claim, _COMPLETED) for claim in completed if claim.job_id in refused])

    def take_deleted(self) -> int:
        """How many rows were not kept since the last time, for the vacuum's book-keeping."""
        deleted, self._deleted = self._deleted, 0
        return deleted

    def put_back(self, completed: Sequence[Claim]) -> None:
        """They could not be written; a pass of our own tries again."""
        self._under_way.pop(id(completed), None)
        if completed:
            attempt = completed[0].attempt
            self._completed[attempt] = [*completed, *self._completed.pop(attempt, ())]
            self._waiting += len(completed)
        self.wake()

    async def run_once(self) -> float:
        """Write one batch of completions, and one of everything else."""
        if completed := self.take_completed():
            try:
                answer = await self._store.exchange(
                    self._worker_id, (), 0, completed=completed, keep=self.keep
                )
            except BaseException:  # whatever it was: results are not lost
                self.put_back(completed)
                raise
            self.written(completed, answer.refused)
        if self._others:
            await self._write_others()
        return 0 if self._waiting else NEVER

    async def _write_others(self) -> None:
        batch = self._take_others()
        self._under_way[id(batch)] = [claim for claim, _ in batch]
        try:
            accepted = await self._store.finish(self._worker_id, batch)
        except BaseException:  # the same
            self._put_others_back(batch)
            raise
        finally:
            del self._under_way[id(batch)]
        self._make_room()
        for claim, outcome in batch:
            self._events.publish(_event(claim, outcome, accepted=claim.job_id in accepted))
        self._on_written(any(isinstance(outcome, ReleaseOutcome) for _, outcome in batch))

    def _take_others(self) -> list[tuple[Claim, Outcome]]:
        batch: dict[str, tuple[Claim, Outcome]] = {}
        while self._others and len(batch) < BATCH:
            claim, outcome = self._others[0]
            if claim.job_id in batch:  # another try of the same job, whose turn comes after this one's
                break
            batch[claim.job_id] = (claim, outcome)
            self._others.popleft()
        self._waiting -= len(batch)
        return list(batch.values())

    def _put_others_back(self, batch: Sequence[tuple[Claim, Outcome]]) -> None:
        self._others.extendleft(reversed(batch))
        self._waiting += len(batch)
        self.wake()

    def _make_room(self) -> None:
        if not self.is_full:
            self._room.set()

    async def drain(self) -> None:
        """Write what is left, for as long as the flush timeout allows.

        Raises:
            DatabaseUnavailableError: The database was unavailable for the whole time. The jobs run again when
                their lease expires.
        """
        deadline = time.monotonic() + self._flush_timeout
        pause = Wakeup()
        while self._waiting:
            try:
                await self.run_once()
            except DatabaseUnavailableError as fault:
                if time.monotonic() > deadline or isinstance(fault, PoolClosedError):
                    self._room.set()
                    completed = [claim for claims in self._completed.values() for claim in claims]
                    lost = ", ".join(
                        claim.job_id for claim in [*completed, *(each for each, _ in self._others)]
                    )
                    raise DatabaseUnavailableError(
                        f"results could not be written before the shutdown ended: {lost}"
                    ) from fault
                await pause.wait(RETRY_PAUSE)


def _event(claim: Claim, outcome: Outcome, *, accepted: bool) -> JobEvent:
    about = (claim.job_id, claim.job_name, claim.attempt)
    if not accepted:
        return JobLost(*about)
    match outcome:
        case CompleteOutcome():
            return JobCompleted(*about)
        case FailOutcome(error, exception):
            return JobFailed(*about, error=error, exception=exception)
        case RetryOutcome(delay, error, exception):
            return JobRetried(*about, error=error, delay=delay, exception=exception)
        case SkipOutcome(reason):
            return JobCancelled(*about, reason=reason)
        case ReleaseOutcome():
            return JobReleased(*about)
