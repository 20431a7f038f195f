"""Run claimed jobs with the parts of a worker, and count their outcomes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NoReturn

from pg_scheduler.base.foreign import is_a
from pg_scheduler.events import (
    Event,
    JobCancelled,
    JobCompleted,
    JobDeadlineExceeded,
    JobEvent,
    JobExpired,
    JobFailed,
    JobLost,
    JobRetried,
    JobSnoozed,
    JobSuspended,
)
from pg_scheduler.jobs.outcome import Outcome, describe
from pg_scheduler.jobs.retry import is_mistake
from pg_scheduler.jobs.rows import AnyJob, Claim, ExtendedJob
from pg_scheduler.testing.attempt_bound import AttemptBound
from pg_scheduler.worker.completer import Completer
from pg_scheduler.worker.executor import Executor
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.progress_writer import ProgressWriter

OUTCOMES: Final[Mapping[type[Event], str]] = {
    JobCompleted: "completed",
    JobFailed: "failed",
    JobDeadlineExceeded: "failed",
    JobRetried: "retried",
    JobSnoozed: "snoozed",
    JobSuspended: "snoozed",
    JobCancelled: "cancelled",
    JobExpired: "expired",
}
"""The fields of ``DrainResult`` by event."""

NO_OPTIONS: Final = "{}"
"""The options of a job that has none, as JSON."""


@dataclass(slots=True)
class Tally:
    """Counts the outcomes of attempts.

    Attributes:
        counts: By field of ``DrainResult``.
        error: The first error of an attempt, other than a ``Retry`` without a cause; None if there is none.
        lost: The attempts whose outcome was refused.
    """

    counts: Counter[str] = field(default_factory=Counter)
    error: BaseException | None = None
    lost: list[JobEvent] = field(default_factory=list)

    def record(self, event: Event) -> None:
        """Count the outcome that an event reports, and keep the first error of an attempt."""
        if isinstance(event, JobLost):
            self.lost.append(event)
        elif type(event) in OUTCOMES:
            self.counts[OUTCOMES[type(event)]] += 1
        if self.error is None and isinstance(event, JobFailed | JobRetried):
            error = event.exception or RuntimeError(f"job {event.job_id!r} failed: {event.error}")
            if is_mistake(error):
                self.error = error


class Bench:
    """The parts of a worker that run claimed jobs and write their outcomes. They have no loops."""

    def __init__(self, node: Node) -> None:
        self.node = node
        progress = ProgressWriter(node)
        self._completer = Completer(node, progress)
        self._executor = Executor(node, self._completer, progress)
        self._executor.has_jitter = False
        # Jobs run one by one, so no other job would join a chunk.
        self._executor.chunks.longest_wait_s = 0.0

    async def run(self, claim: Claim, bound: AttemptBound | None = None) -> None:
        """Run a claimed job until its end.

        Raises:
            TimeoutError: The job has not ended within the bound. The attempt is cancelled.
        """
        task = self._executor.submit(claim)
        ended_tasks, _ = await asyncio.wait([task], timeout=None if bound is None else bound.timeout_s)
        if bound is not None and not ended_tasks:
            await self.stop()
            raise bound.timeout_error([claim])
        task.result()

    async def settle(self) -> None:
        """Write the outcomes of the attempts that have ended, also if that has to wait for a lock."""
        while self.node.result_buffer.has_results:
            delay = await self._completer.run_once()
            # A result that remains is that of a locked row.
            if self.node.result_buffer.has_results:
                await asyncio.sleep(delay)

    def take_outcome(self) -> Outcome | None:
        """Return the outcome of the only attempt instead of writing it; None for a plain completion."""
        buffer = self.node.result_buffer
        # The buffer keeps plain completions apart from the other outcomes.
        if buffer.has_completions:
            return None
        with buffer.others() as batch:
            ((_, outcome),) = batch.outcomes  # one pair of a claim and its outcome
            # At the end of the block, the buffer publishes the events of the outcomes in the batch. This one
            # was not written, so it gets no event.
            batch.outcomes = []
        return outcome

    async def stop(self) -> None:
        """Cancel the attempt that runs, if there is one, and stop the executors.

        An attempt runs only if its time was up or the caller was cancelled.
        """
        self._executor.hurry()
        await self._executor.stop()


def claim_of(job: AnyJob) -> Claim:
    """Return the claim for the first attempt of a job that was prepared, but has no row in the table."""
    if isinstance(job, ExtendedJob):
        row, options = job.row, job.extras.options
    else:
        row, options = job, None
    return Claim(
        job_id=row.job_id,
        job_name=row.job_name,
        function=row.function or row.job_name,
        attempt=1,
        execution_time=row.execution_time,
        task_data=row.task_data,
        priority=row.priority,
        retry_count=0,
        max_retries=row.max_retries,
        timeout_seconds=row.timeout_seconds,
        lock_key=None,
        options=options or NO_OPTIONS,
    )


def raise_job_error(error: BaseException) -> NoReturn:
    """Raise the error of a job in a test.

    A job may raise what would end the task of the test, such as a CancelledError. This becomes the cause of a
    RuntimeError.
    """
    if is_a(error, Exception):
        raise error
    raise RuntimeError(f"a job raised {describe(error)}") from error
