"""A chunk: several jobs of one task, as the function that is called once for all of them receives them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pg_scheduler.base.public import public
from pg_scheduler.errors import JobCancelledError
from pg_scheduler.jobs.metadata import metadata_of
from pg_scheduler.jobs.model import Call
from pg_scheduler.jobs.rows import Claim

if TYPE_CHECKING:
    import asyncpg

    from pg_scheduler.scheduler import Scheduler

T = TypeVar("T")


@public
class ChunkJob(Generic[T]):
    """A job in a `Chunk`."""

    __slots__ = ("_claim", "has_left", "has_outcome", "item")

    def __init__(self, claim: Claim, item: T) -> None:
        self._claim = claim
        self.item = item
        """The argument of the job."""
        self.has_outcome = False
        """Whether ``complete()`` or ``fail()`` of the chunk was called for it."""
        self.has_left = False
        """Whether its attempt was stopped before it had an outcome: the job was cancelled, it has timed out
        or passed its deadline, or its worker lost the lease or shuts down. Its outcome is ignored from then
        on, and work on it need not continue. The attempt ends with the call of the function."""

    @property
    def job_id(self) -> str:
        """The id of the job."""
        return self._claim.job_id

    @property
    def attempt(self) -> int:
        """1 for the first claim of the job, larger for each later one."""
        return self._claim.attempt

    @property
    def retry_count(self) -> int:
        """The number of failed attempts that were retried: 0 in the first attempt."""
        return self._claim.retry_count

    @property
    def max_retries(self) -> int:
        """The number of retries allowed. This attempt is the last one when ``retry_count`` has reached it."""
        return self._claim.max_retries

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata of the task, the schedule and the job; empty if there is none."""
        return metadata_of(self._claim.task_data)

    def __repr__(self) -> str:
        return f"<ChunkJob {self.job_id!r}, attempt {self.attempt}>"


@public
class Chunk(ABC, Generic[T]):
    """Several jobs of a task with ``@job(chunk=...)``, for one call of its function.

    Iterate over it for its jobs, each of which has its argument as ``item``. Each job has an outcome of its
    own: that of ``fail()`` or ``complete()``, which counts at once. When the function returns, all other jobs
    complete. When it raises an exception, they fail with it. Any thread may call the methods.

    Example:
        >>> from pg_scheduler import Chunk, job
        >>> @job(chunk=100, max_retries=5)
        ... async def index(chunk: Chunk[str]) -> None:
        ...     rejected = {""}  # what the bulk call of a search engine returns
        ...     for job in chunk:
        ...         if job.item in rejected:
        ...             chunk.fail(job, ValueError("an empty document"))
    """

    @staticmethod
    def call(func: Callable[[Chunk[T]], Any], item: T, /) -> Call[None]:
        """Return the call of a function of chunks for one job, as `call()` does for other functions.

        So mypy and pyright check the item. Nothing is called.

        Args:
            func: The function, whose parameter is a ``Chunk[T]``.
            item: The argument of the job.

        Example:
            >>> from pg_scheduler import Chunk
            >>> async def index(chunk: Chunk[str]) -> None: ...
            >>> Chunk.call(index, "a document").args
            ('a document',)
        """
        return Call(func, (item,), {})

    @property
    @abstractmethod
    def jobs(self) -> tuple[ChunkJob[T], ...]:
        """The jobs, in the order in which they were claimed."""

    def __iter__(self) -> Iterator[ChunkJob[T]]:
        return iter(self.jobs)

    def __len__(self) -> int:
        return len(self.jobs)

    def __repr__(self) -> str:
        return f"<Chunk of {len(self.jobs)}>"

    @abstractmethod
    def complete(self, job: ChunkJob[T], value: object = None) -> None:
        """Complete a job of the chunk, as if the function had returned a value for it.

        The outcome is written as that of any other attempt, while the function continues. Once it is written,
        the job is not repeated, even if the worker dies.

        Args:
            job: The job.
            value: The value, which ``keep_result=`` keeps. It is copied then, so you may change the object
                afterwards.

        Raises:
            TypeError: ``job`` is not a job of a chunk.
            ValueError: The job is not in this chunk.
            RuntimeError: The job has an outcome, or the call of the function has ended.
        """

    @abstractmethod
    def fail(self, job: ChunkJob[T], error: BaseException) -> None:
        """Fail a job of the chunk, as if the function had raised an exception for it.

        A retry follows by the options of the task. `Abort` prevents it, `Retry` chooses its delay, and
        `Snooze` postpones the job.

        Args:
            job: The job.
            error: The exception.

        Raises:
            TypeError: ``error`` is not an exception, or ``job`` is not a job of a chunk.
            ValueError: The job is not in this chunk.
            RuntimeError: The job has an outcome, or the call of the function has ended.
        """

    @property
    @abstractmethod
    def scheduler(self) -> Scheduler:
        """The Scheduler that makes the call, so that it can schedule jobs. In a thread its methods block."""

    @property
    def pool(self) -> asyncpg.Pool[Any]:
        """The asyncpg pool of that Scheduler, which only the event loop of the worker can use."""
        return self.scheduler.db_pool

    @property
    @abstractmethod
    def is_cancelled(self) -> bool:
        """Whether a function in a thread should end, since no job is left that waits for an outcome.

        Always False in an async function, which receives ``CancelledError``.
        """

    def raise_if_cancelled(self) -> None:
        """Raise JobCancelledError if ``is_cancelled``; call it between the jobs in a thread.

        Raises:
            JobCancelledError: The call should end.
        """
        if self.is_cancelled:
            raise JobCancelledError("the call should end: no job of its chunk waits for an outcome any more")
