"""Writes outcomes: buffered, in batches, each under its token, and never given up while there is time.

A batch is whatever gathered while the one before was being written, so a lone result is written at once
and a flood in large statements. Executors that outrun the database wait (back-pressure).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import ClassVar, Final

from pg_scheduler.domain.job import Claim
from pg_scheduler.domain.outcome import Completed, Failed, Outcome, Release, Retry, Skip
from pg_scheduler.errors import TransientFault
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
from pg_scheduler.services.base import NEVER, Service, Wakeup
from pg_scheduler.store.store import Store

__all__ = ["Completer"]

BATCH: Final = 500
HIGH_WATER: Final = 4 * BATCH
"""Results that may wait before executors have to."""

RETRY_PAUSE: Final = 0.2


class Completer(Service):
    """Write outcomes as they come.

    Args:
        flush_timeout: Seconds for which results are still written after the last pass.
        on_written: Called after each batch: retried and replaced jobs are pending again by then. Says
            whether jobs were handed back, which other workers should hear of.
    """

    name: ClassVar[str] = "completer"

    def __init__(
        self,
        store: Store,
        events: EventBus,
        worker_id: str,
        *,
        flush_timeout: float,
        on_written: Callable[[bool], None],
    ) -> None:
        super().__init__(events)
        self._store = store
        self._worker_id = worker_id
        self._flush_timeout = flush_timeout
        self._on_written = on_written
        self._buffer: deque[tuple[Claim, Outcome]] = deque()
        self._room = asyncio.Event()
        self._room.set()

    async def put(self, claim: Claim, outcome: Outcome) -> None:
        """Hand an outcome over; waits while too many do."""
        self._buffer.append((claim, outcome))
        self.wake()
        if len(self._buffer) >= HIGH_WATER:
            self._room.clear()
            await self._room.wait()

    async def run_once(self) -> float:
        """Write one batch."""
        if not self._buffer:
            return NEVER
        batch = self._next_batch()
        accepted = await self._store.finish(self._worker_id, batch)
        for _ in batch:
            self._buffer.popleft()
        if len(self._buffer) < HIGH_WATER:
            self._room.set()
        for claim, outcome in batch:
            self._events.publish(_event(claim, outcome, accepted=claim.job_id in accepted))
        self._on_written(any(isinstance(outcome, Release) for _, outcome in batch))
        return 0 if self._buffer else NEVER

    def _next_batch(self) -> list[tuple[Claim, Outcome]]:
        batch: dict[str, tuple[Claim, Outcome]] = {}
        for claim, outcome in islice(self._buffer, BATCH):
            if claim.job_id in batch:  # another try of the same job, whose turn comes after this one's
                break
            batch[claim.job_id] = (claim, outcome)
        return list(batch.values())

    async def drain(self) -> None:
        """Write what is left, for as long as the flush timeout allows.

        Raises:
            TransientFault: The database was away for all that time. The jobs are run again when their
                lease is over.
        """
        deadline = time.monotonic() + self._flush_timeout
        pause = Wakeup()
        while self._buffer:
            try:
                await self.run_once()
            except TransientFault as fault:
                if time.monotonic() > deadline:
                    lost = ", ".join(claim.job_id for claim, _ in self._buffer)
                    raise TransientFault(
                        f"results could not be written before the shutdown ended: {lost}"
                    ) from fault
                await pause.wait(RETRY_PAUSE)


def _event(claim: Claim, outcome: Outcome, *, accepted: bool) -> JobEvent:
    about = (claim.job_id, claim.job_name, claim.attempt)
    if not accepted:
        return JobLost(*about)
    match outcome:
        case Completed():
            return JobCompleted(*about)
        case Failed(error, exception):
            return JobFailed(*about, error=error, exception=exception)
        case Retry(delay, error, exception):
            return JobRetried(*about, error=error, delay=delay, exception=exception)
        case Skip(reason):
            return JobCancelled(*about, reason=reason)
        case Release():
            return JobReleased(*about)
