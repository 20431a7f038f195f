"""The context of an attempt, for unit tests that call a job function without an attempt."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn, cast

from pg_scheduler.errors import JobResult, NotRunningError
from pg_scheduler.jobs.context import CurrentJob, RunningJob, cancellation, current, current_job
from pg_scheduler.jobs.metadata import NO_METADATA, with_metadata
from pg_scheduler.jobs.model import DEFAULT_TIMEOUT
from pg_scheduler.jobs.payload import encode
from pg_scheduler.jobs.progress import JobProgress
from pg_scheduler.jobs.rows import Claim
from pg_scheduler.jobs.validation import check_count, check_execution_time, check_timeout
from pg_scheduler.worker.completing import begin
from pg_scheduler.worker.in_flight import Attempt, Durability, End

if TYPE_CHECKING:
    from pg_scheduler.scheduler import Scheduler
    from pg_scheduler.sync.scheduler import SyncScheduler


@contextmanager
def job_context(
    *,
    job_id: str = "test",
    job_name: str = "test",
    attempt: int = 1,
    retry_count: int = 0,
    max_retries: int = 0,
    execution_time: datetime | None = None,
    timeout: float | timedelta | None = DEFAULT_TIMEOUT,
    metadata: Mapping[str, Any] | None = None,
    schedule_id: str | None = None,
    fire_time: datetime | None = None,
    is_cancelled: bool = False,
    scheduler: Scheduler | SyncScheduler | None = None,
    predecessors: Iterable[JobResult] = (),
    report: Callable[[JobProgress], None] | None = None,
    complete: Callable[[object], None] | None = None,
) -> Iterator[CurrentJob]:
    """Let `current_job()` return an attempt in this block, for a unit test that calls a job function.

    No job is run, and no database is used. To test retries, timeouts and rows, use a `TestScheduler`.

    Args:
        job_id: The id of the job.
        job_name: The name of the job.
        attempt: The number of the attempt, at least 1.
        retry_count: The failed attempts that were retried.
        max_retries: The retries allowed.
        execution_time: When the attempt was due, timezone-aware; None for now.
        timeout: The time until ``deadline``, in seconds or as a timedelta; None for no timeout.
        metadata: A JSON object.
        schedule_id: The schedule that enqueued the job.
        fire_time: The fire time of that schedule, timezone-aware.
        is_cancelled: Whether the attempt should end.
        scheduler: What ``current_job().scheduler`` returns: a `Scheduler`, or a `SyncScheduler` for a plain
            function. It raises NotRunningError if None is given.
        predecessors: What ``current_job().predecessors()`` yields.
        report: Called with the `JobProgress` of each ``current_job().progress()``; None to discard it.
        complete: Called with the value of ``set_result()`` when a block of ``current_job().completing()``
            ends; None to discard it. Without ``connection=``, the block is a transaction on the pool of
            ``scheduler``, which is committed at the end. If ``scheduler`` has no pool or is None,
            NotRunningError is raised.

    Yields:
        The attempt.

    Raises:
        TypeError: A value has the wrong type.
        ValueError: A value is out of range, or a time has no time zone.
        PayloadError: JSON cannot represent the metadata.

    Example:
        >>> from pg_scheduler import current_job
        >>> from pg_scheduler.testing import job_context
        >>> async def idempotency_key(order: int) -> str:
        ...     return f"{order}:{current_job().job_id}"
        >>> import asyncio
        >>> with job_context(job_id="a"):
        ...     asyncio.run(idempotency_key(7))
        '7:a'
    """
    options: dict[str, str] = {} if schedule_id is None else {"schedule_id": schedule_id}
    if fire_time is not None:
        options["fire_time"] = check_execution_time(fire_time, name="fire_time").isoformat()
    claim = Claim(
        job_id=job_id,
        job_name=job_name,
        function=job_name,
        attempt=check_count("attempt", attempt, least=1),
        execution_time=datetime.now(UTC) if execution_time is None else check_execution_time(execution_time),
        task_data=with_metadata(encode((), {}), NO_METADATA, metadata),
        priority=0,
        retry_count=check_count("retry_count", retry_count),
        max_retries=check_count("max_retries", max_retries),
        timeout_seconds=check_timeout(timeout),
        lock_key=None,
        options=json.dumps(options),
    )

    def get_scheduler() -> Scheduler:
        """Return ``current_job().scheduler``."""
        if scheduler is None:
            raise NotRunningError("job_context() has no Scheduler; pass scheduler=")
        return cast("Scheduler", scheduler)

    def pass_on(_claim: Claim, progress: JobProgress) -> None:
        """Pass the progress that the function reports to the test."""
        if report is not None:
            report(progress)

    @asynccontextmanager
    async def completing(attempt: Attempt, connection: object) -> AsyncIterator[object]:
        """Provide the block of ``current_job().completing()``; without a connection, a new transaction."""
        completion = begin(attempt)
        try:
            if connection is not None:
                yield connection
            else:
                pool = _pool_of(get_scheduler())
                async with (
                    pool.acquire() as own_connection,
                    own_connection.transaction(isolation="read_committed"),
                ):
                    yield own_connection
        except BaseException:  # any error rolls the transaction back
            attempt.completion = None
            raise
        completion.end = End.WRITTEN
        if complete is not None:
            complete(completion.value)

    attempt_of_test = _AttemptOfTest(claim, predecessors)
    attempt_of_test.durability = Durability(completing, _no_steps, _no_streams)
    job_token = current.set(RunningJob(claim, time.time(), get_scheduler, pass_on, attempt_of_test))
    cancellation_token = cancellation.set(SimpleNamespace(is_cancelled=is_cancelled))
    try:
        yield current_job()
    finally:
        current.reset(job_token)
        cancellation.reset(cancellation_token)


class _AttemptOfTest(Attempt):
    """An attempt whose predecessors have the results that the test passes."""

    def __init__(self, claim: Claim, results: Iterable[JobResult]) -> None:
        super().__init__(claim)
        self._results = results

    async def predecessors(self) -> AsyncIterator[JobResult]:
        """Yield the results that the test passes. See `CurrentJob`."""
        for result in self._results:
            yield result


def _no_steps(attempt: Attempt) -> NoReturn:
    """Reject the use of durable steps, which need the row of a job."""
    raise NotRunningError(
        f"job_context() has no durable steps for job {attempt.claim.job_id!r}; use a TestScheduler"
    )


def _no_streams(attempt: Attempt) -> NoReturn:
    """Reject published values and streams, which need the row of a job."""
    raise NotRunningError(
        f"job_context() has no published values and no streams for job {attempt.claim.job_id!r}; "
        "use a TestScheduler"
    )


def _pool_of(scheduler: object) -> Any:
    """Return the pool of a Scheduler; raise NotRunningError if it has none."""
    pool = getattr(scheduler, "db_pool", None)
    if pool is None:
        raise NotRunningError(
            "the SyncScheduler of job_context() has no pool; pass connection= to completing()"
        )
    return pool
