"""The job that is running in the current context."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

from pg_scheduler.base.foreign import class_name, is_a
from pg_scheduler.base.public import public
from pg_scheduler.base.text.times import read_timestamp
from pg_scheduler.errors import JobCancelledError, JobResult, NotRunningError
from pg_scheduler.jobs.metadata import metadata_of
from pg_scheduler.jobs.payload import object_from
from pg_scheduler.jobs.progress import JobProgress, checked_progress
from pg_scheduler.jobs.rows import Claim

if TYPE_CHECKING:
    import asyncpg

    from pg_scheduler.jobs.steps import Steps
    from pg_scheduler.jobs.streams import JobStream, Streams
    from pg_scheduler.scheduler import Scheduler

MAX_DEADLINE_S: Final = 1e9
"""The longest time until a deadline. Python cannot represent deadlines after the year 9999.

It has to be the first argument of ``min()``, which then returns it if the other one is NaN.
"""


T = TypeVar("T")

GetScheduler: TypeAlias = "Callable[[], Scheduler]"
"""Returns the Scheduler to the thread that calls it."""

Report: TypeAlias = Callable[[Claim, JobProgress], None]
"""Takes the progress of an attempt, from any thread."""


class RunningAttempt(Protocol):
    """The attempt of a job, as its own code reaches it in its worker."""

    def predecessors(self) -> AsyncIterator[JobResult]:
        """Yield the results that were passed to the job."""

    def open_steps(self) -> Steps:
        """Return its durable steps."""

    def open_streams(self) -> Streams:
        """Return its values and streams."""

    def completing(self, connection: Any) -> AbstractAsyncContextManager[Any]:
        """Complete the job at the end of a block, in the transaction of the block."""

    def set_result(self, value: object) -> None:
        """Set the value that the completion keeps."""


class Cancellation(Protocol):
    """The flag by which a job outside of the event loop is cancelled."""

    @property
    def is_cancelled(self) -> bool:
        """Whether the job should end."""


@public
@dataclass(frozen=True, slots=True)
class CurrentJob:
    """The attempt that is running."""

    job_id: str
    """The id of the job."""
    job_name: str
    """The name of the job."""
    attempt: int
    """1 for the first claim of the job, larger for each later one."""
    execution_time: datetime
    """When this attempt was due."""
    deadline: datetime | None
    """When the timeout of the attempt expires; None for no timeout."""
    _get_scheduler: GetScheduler = field(repr=False, compare=False)
    schedule_id: str | None = field(default=None, kw_only=True)
    """The schedule that enqueued the job; None for other jobs."""
    fire_time: datetime | None = field(default=None, kw_only=True)
    """The nominal fire time, in UTC; None unless the job belongs to a fire time of a schedule."""
    retry_count: int = field(default=0, kw_only=True)
    """The number of failed attempts that were retried: 0 in the first attempt."""
    max_retries: int = field(default=0, kw_only=True)
    """The number of retries allowed. When ``retry_count`` has reached it, this attempt is the last one."""
    _cancellation: Cancellation | None = field(default=None, repr=False, compare=False)
    _task_data: str = field(default="{}", repr=False, compare=False)
    _report: Callable[[JobProgress], None] | None = field(default=None, repr=False, compare=False)
    _attempt: RunningAttempt | None = field(default=None, repr=False, compare=False, kw_only=True)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata of the task, the schedule and the job; empty if there is none."""
        return metadata_of(self._task_data)

    @property
    def scheduler(self) -> Scheduler:
        """The Scheduler that runs the attempt, so that jobs can schedule jobs.

        In a thread its methods block, as those of `SyncScheduler` do. Type checkers do not know that, so call
        `current_scheduler()` of ``pg_scheduler.sync`` there: it returns the same object with these types.

        Raises:
            NotRunningError: The job runs in a process.
        """
        return self._get_scheduler()

    @property
    def pool(self) -> asyncpg.Pool[Any]:
        """The asyncpg pool of that Scheduler, which only the event loop of the worker can use.

        Raises:
            NotRunningError: The job runs in a process.
        """
        return self.scheduler.db_pool

    @property
    def steps(self) -> Steps:
        """The durable steps of the job: work that later attempts skip, and sleeps without a worker.

        Raises:
            NotRunningError: The job runs in a process, in a `job_context()` or in a thread. In a thread, call
                `current_steps()` of ``pg_scheduler.sync`` instead.
        """
        return self._running().open_steps()

    def predecessors(self) -> AsyncIterator[JobResult]:
        """Iterate over the results of the jobs in ``after=``, if ``pass_results=True`` was given with it.

        They are copies, which live as long as this job. So a retry reads the same results, even if the other
        jobs were deleted or retried meanwhile. Without ``pass_results=`` there are none.

        Yields:
            A `JobResult` for each of the other jobs, in the order of their ids. Generated ids are in the
            order of the calls that scheduled the jobs. One statement reads 100 results.

        Raises:
            NotRunningError: The job runs in a process or in a thread. In a thread, call ``predecessors()`` of
                ``current_steps()`` instead.
            DatabaseUnavailableError: The worker lost its lease while the database was unavailable.

        Example:
            >>> from pg_scheduler import current_job
            >>> async def total() -> int:
            ...     return sum([result.unwrap(int) async for result in current_job().predecessors()])
        """
        return self._running().predecessors()

    async def publish(self, name: str, value: Any) -> None:
        """Publish a value under a name, which other processes read by ``Scheduler.get_value()``.

        It is committed when the call returns, with all items that the attempt has appended to streams before.
        A later value of the name replaces it. It is kept as long as the row of the job, also if an attempt
        fails and another one follows.

        Args:
            name: The name, at most 200 bytes of UTF-8. A stream may have the same name.
            value: A value that pydantic serializes to JSON, at most 64 KiB long.

        Raises:
            PayloadError: JSON cannot represent the value, it is too long, or the job has 100 other names.
            ValueError: The name is empty or too long.
            JobLostError: The attempt does not hold its job any more. Nothing was published.
            DatabaseUnavailableError: The worker lost its lease while the database was unavailable.
            NotRunningError: The job runs in a process, in a `job_context()` or in a thread. In a thread, call
                `current_streams()` of ``pg_scheduler.sync`` instead.

        Example:
            >>> from pg_scheduler import current_job
            >>> async def pay(order_id: int) -> None:
            ...     await current_job().publish("payment_url", f"https://pay.example.org/{order_id}")
        """
        await self._running().open_streams().publish(name, value)

    def stream(self, name: str) -> JobStream:
        """Return a stream of the job, to which it appends items while it runs.

        Other processes read the items by ``Scheduler.stream()``, from the first one on or behind one that
        they have. The stream ends when the job has ended, and is kept as long as the row of the job.

        Args:
            name: The name of the stream, at most 200 bytes of UTF-8.

        Raises:
            ValueError: The name is empty or too long.
            NotRunningError: As in ``publish()``.

        Example:
            >>> from pg_scheduler import current_job
            >>> async def answer(question: str) -> None:
            ...     stream = current_job().stream("words")
            ...     for word in question.split():
            ...         await stream.append(word)
        """
        return self._running().open_streams().stream(name)

    @property
    def is_cancelled(self) -> bool:
        """Whether this attempt should end: it timed out, was suspended or cancelled, or its worker stops.

        For jobs in threads and processes. Always False in an async job, which receives ``CancelledError``.
        """
        return self._cancellation is not None and self._cancellation.is_cancelled

    def raise_if_cancelled(self) -> None:
        """Raise JobCancelledError if ``is_cancelled``; call it between the steps of a long job in a thread.

        Raises:
            JobCancelledError: The attempt should end.
        """
        if self.is_cancelled:
            raise JobCancelledError(
                f"job {self.job_id!r} should end: it timed out, was cancelled, or its worker shuts down"
            )

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Report the progress of this attempt, which other processes read as ``Job.progress``.

        It is a plain call in jobs of any kind, and it does not wait, so call it as often as there is
        progress. The worker writes the last report of each job at most once a second, and before the attempt
        ends.

        Args:
            done: The amount of work that is done, in any unit.
            total: The amount of all work, in the same unit; None if it is unknown.
            note: A text for people, such as the current step; cut to 200 characters. None for no text.

        Raises:
            TypeError: A number is not an int or a float, or the note is not a str.
            ValueError: A number is not finite, or beyond 1e300.

        Example:
            >>> from pg_scheduler import current_job
            >>> async def import_rows(rows: list[str]) -> None:
            ...     for number, row in enumerate(rows, 1):
            ...         current_job().progress(number, len(rows), note=f"row {row}")
        """
        progress = checked_progress(done, total, note)
        if self._report is not None:
            self._report(progress)

    def completing(self, *, connection: Any = None) -> AbstractAsyncContextManager[Any]:
        """Complete the job at the end of this block, in one commit with what the block writes.

        The commit has the writes of the block, the completion with its consequences, the value of
        ``set_result()``, and jobs that the block schedules with ``connection=``. If the job was cancelled or
        lost, or the block raises an exception, all of it is rolled back. After the block the job has ended:
        the function may continue, but it is not repeated, and its value is ignored.

        Args:
            connection: Your connection, in a READ COMMITTED transaction that you commit after the block: of
                asyncpg, or an ``AsyncSession`` or ``AsyncConnection`` of SQLAlchemy on asyncpg. None for a
                connection of the pool, whose transaction begins and ends with the block.

        Returns:
            An async context manager, which yields the connection.

        Raises:
            JobLostError: At the end of the block: the attempt does not hold its job any more.
            CancelledError: The attempt is suspended, as in a ``finally`` that a sleep runs.
            DatabaseUnavailableError: The commit failed, or its answer was lost. Let it end the attempt: a
                retry follows, unless the commit has succeeded.
            NotRunningError: The job does not run in the event loop of a worker, but in a thread or process.
            RuntimeError: The block is not the first one: another one is open, has completed the job, or
                completes it with your transaction, which you have not rolled back.
            TypeError: The connection is of another kind.
            ValueError: The connection is not in a transaction, or its isolation level is not READ COMMITTED.
                A block that has set another isolation level raises it at its end.
            ConfigurationError: The connection leads to another database.

        Example:
            >>> from pg_scheduler import current_job
            >>> async def charge(account: int, amount: int) -> None:
            ...     async with current_job().completing() as connection:
            ...         await connection.execute("INSERT INTO charges VALUES ($1, $2)", account, amount)
        """
        return self._running().completing(connection)

    def set_result(self, value: object) -> None:
        """Set the value that ``keep_result=`` keeps; call it within a block of ``completing()``.

        Without a call, the value is None.

        Raises:
            NotRunningError: The job does not run in the event loop of a worker.
            RuntimeError: No block of ``completing()`` is open.
        """
        self._running().set_result(value)

    def _running(self) -> RunningAttempt:
        """Return the attempt, which only the process of the worker has."""
        return _check_is_running(self._attempt, self.job_id)


@dataclass(slots=True)
class RunningJob:
    """What the context of a job holds. ``current_job()`` makes a new `CurrentJob` of it at each call.

    It is not frozen, because each attempt makes two of them, and to make a frozen one takes three times as
    long.
    """

    claim: Claim
    """The job, as it was claimed."""
    began_at: float
    """When its attempt began, in seconds since 1970."""
    get_scheduler: GetScheduler
    """Returns the Scheduler that runs it."""
    report_progress: Report
    """Takes its progress."""
    attempt: RunningAttempt | None
    """The attempt; None outside of the process of the worker, and after its end."""

    def without_attempt(self) -> RunningJob:
        """Return what the context of the job holds after its attempt."""
        return RunningJob(self.claim, self.began_at, self.get_scheduler, self.report_progress, None)


current: Final[ContextVar[RunningJob]] = ContextVar("pg_scheduler_current_job")
"""The job that runs in this context."""

cancellation: Final[ContextVar[Cancellation]] = ContextVar("pg_scheduler_cancellation")
"""The flag of a job outside of the event loop."""

chunk_scheduler: Final[ContextVar[GetScheduler | None]] = ContextVar("pg_scheduler_chunk", default=None)
"""Returns the Scheduler in the function of a chunk, where many jobs run; None elsewhere."""


def current_job() -> CurrentJob:
    """Return the running job, also in the coroutines and tasks that it awaits or starts.

    Raises:
        LookupError: The caller is not part of a running job, or is the function of a chunk, which has many.

    Example:
        >>> from pg_scheduler import current_job
        >>> async def charge(order_id: int) -> None:
        ...     key = f"{current_job().job_id}"  # the same for every attempt: an idempotency key
    """
    try:
        running_job = current.get()
    except LookupError:
        if chunk_scheduler.get() is not None:
            raise LookupError(
                "current_job() was called in the function of a chunk, which has many jobs; use those over "
                "which the chunk iterates, and chunk.scheduler"
            ) from None
        raise LookupError(
            "current_job() was called outside of a running job; call it in a job function, and in a thread "
            "of that within contextvars.copy_context().run() or asyncio.to_thread()"
        ) from None
    claim = running_job.claim
    seconds = claim.timeout_seconds
    deadline = None
    if seconds is not None:
        began_at = datetime.fromtimestamp(running_job.began_at, UTC)
        deadline = began_at + timedelta(seconds=min(MAX_DEADLINE_S, seconds))
    schedule_id, fire_time = _origin(claim.options)
    return CurrentJob(
        job_id=claim.job_id,
        job_name=claim.job_name,
        attempt=claim.attempt,
        execution_time=claim.execution_time,
        deadline=deadline,
        _get_scheduler=running_job.get_scheduler,
        _cancellation=cancellation.get(None),
        _task_data=claim.task_data,
        _report=partial(running_job.report_progress, claim),
        schedule_id=schedule_id,
        fire_time=fire_time,
        retry_count=claim.retry_count,
        max_retries=claim.max_retries,
        _attempt=running_job.attempt,
    )


public(current_job)


def current_attempt() -> RunningAttempt:
    """Return the attempt of the running job.

    Raises:
        LookupError: The caller is not part of a running job.
        NotRunningError: The job runs in a process.
    """
    job = current_job()
    return _check_is_running(current.get().attempt, job.job_id)


def _check_is_running(attempt: RunningAttempt | None, job_id: str) -> RunningAttempt:
    """Return the attempt. A job in a process has none there, so this raises NotRunningError for None."""
    if attempt is None:
        raise NotRunningError(
            f"job {job_id!r} runs in a process, where it has no durable steps, no streams, no predecessors() "
            "and cannot complete in a transaction; make it an async function without executor="
        )
    return attempt


def job_state(kind: type[T]) -> T:
    """Return ``Scheduler.state`` of the Scheduler that runs the attempt, in a job or in middleware.

    Args:
        kind: The class of the state.

    Raises:
        LookupError: The state is no object of that class, or the caller is not part of a running job.
        NotRunningError: The job runs in a process, to which objects cannot go.

    Example:
        >>> from pg_scheduler import job_state
        >>> class AppState:
        ...     def __init__(self, rate: float) -> None:
        ...         self.rate = rate
        >>> async def convert(amount: float) -> float:
        ...     return amount * job_state(AppState).rate
    """
    get_scheduler = chunk_scheduler.get()
    state = (current_job().scheduler if get_scheduler is None else get_scheduler()).state
    if is_a(state, kind):
        return state
    description = "not set" if state is None else f"a {class_name(state)}"
    raise LookupError(
        f"scheduler.state is {description}, and job_state() was called for {kind.__qualname__}; set "
        "scheduler.state to an object of that class before start()"
    )


public(job_state)


def _origin(options: str | None) -> tuple[str | None, datetime | None]:
    """Return the id of the schedule of a job and the fire time in UTC; None for what its options lack."""
    values = object_from(options)
    schedule_id, fire_time = values.get("schedule_id"), values.get("fire_time")
    instant = None
    if isinstance(fire_time, str):
        # The options may have been written by hand, and contain any text.
        with suppress(ValueError):
            instant = read_timestamp(fire_time)
    return schedule_id if isinstance(schedule_id, str) else None, instant
