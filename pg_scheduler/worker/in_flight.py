"""The attempts and results that this worker is responsible for.

An attempt is in flight from its claim until its result is in the table. Heartbeats renew all of them, so no
row is reclaimed while its result waits to be written. The event loop writes; any thread may read, as the
lease keeper does while the event loop is blocked.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from pg_scheduler.base.foreign import current_task, is_a, is_ctrl_c
from pg_scheduler.database.session import Connection
from pg_scheduler.errors import JobResult
from pg_scheduler.jobs.call import JobCall
from pg_scheduler.jobs.chunk import Chunk
from pg_scheduler.jobs.rows import Claim
from pg_scheduler.jobs.steps import Steps, Suspension
from pg_scheduler.jobs.streams import Streams

TASK_NAME_PREFIX: Final = "job "

ABANDONED_AFTER_S: Final = 2.0
"""An attempt that was to stop is reported if its code still runs after this many seconds."""


class Revocation(Enum):
    """Why an attempt is stopped before its end."""

    CANCELLED = auto()
    """A caller cancelled the job."""
    LOST = auto()
    """The row belongs to another worker or was changed manually, or the lease expired."""
    SHUTDOWN = auto()
    """This worker shuts down."""


class End(Enum):
    """How far the code of an attempt has come with the completion of its job."""

    WRITING = auto()
    """The completion is being written. Its commit may have succeeded without an answer."""
    WRITTEN = auto()
    """The job has ended. The code may continue."""


class Completion:
    """The completion of a job in a transaction of its own code.

    Attributes:
        end: None until the block of the transaction ends.
        value: The value to keep.
        deadline: Until when an interruption waits for the write, by the clock of the event loop.
        find_end: Finds out whether the code has committed its own transaction, and notes the end of the job;
            None if the block opened the transaction, or has not ended.
        find_rollback: Finds out whether the code has rolled back its own transaction, and forgets the
            completion then; set with ``find_end``. Its argument is the connection that the code passes now.
        fault: The error that came instead of an answer to the commit, which may have succeeded; None if there
            was an answer, or no commit.
        interruption: Interrupts the attempt at the deadline; None if nothing has tried to.
        write_ended: Is set when the block has ended, or has failed.
    """

    __slots__ = (
        "deadline",
        "end",
        "fault",
        "find_end",
        "find_rollback",
        "interruption",
        "value",
        "write_ended",
    )

    def __init__(self) -> None:
        self.end: End | None = None
        self.value: object = None
        self.deadline = 0.0
        self.fault: BaseException | None = None
        self.interruption: asyncio.TimerHandle | None = None
        self.find_end: Callable[[], Awaitable[None]] | None = None
        self.find_rollback: Callable[[object], Awaitable[None]] | None = None
        self.write_ended: Final = asyncio.Event()

    async def wait_for_write(self) -> None:
        """Wait for the end of the write, at most until the deadline, or until the attempt is interrupted."""
        # A cancellation ends only this wait. The caller then decides by the state that the write has reached.
        with suppress(TimeoutError, asyncio.CancelledError):
            async with asyncio.timeout_at(self.deadline):
                await self.write_ended.wait()


class OpenSteps(Steps):
    """The durable steps of a running attempt, as its worker sees them."""

    @property
    @abstractmethod
    def suspensions(self) -> tuple[Suspension, ...]:
        """What a suspended attempt waits for, the earliest end first; empty if it is not suspended."""

    @property
    @abstractmethod
    def has_stored(self) -> bool:
        """Whether the attempt has stored a step."""

    @abstractmethod
    def predecessors(self) -> AsyncIterator[JobResult]:
        """Yield the results of other jobs that were passed to this one, in the order of the others' ids."""

    @abstractmethod
    def suspend_at_timeout(self) -> bool:
        """Suspend the attempt if its function only waits for steps; return whether it is suspended.

        Tasks or threads that the function has begun may still work. They have kept the attempt in memory.
        """

    @abstractmethod
    async def check_may_write(self, what: str, connection: object = None) -> None:
        """Raise RuntimeError if a write to the rows of the job would wait for a transaction of its caller.

        ``what`` is the call that writes, and ``connection`` what it writes on; None for one of the pool.
        """

    @abstractmethod
    def check_outside_of_step(self, what: str) -> None:
        """Raise RuntimeError if the function of a step makes the call ``what``, which ends the job."""

    @abstractmethod
    async def wait_for_cursors(self) -> None:
        """Wait until the values of all cursors are written whose blocks Python has closed.

        A cursor is how far a step has come. It is stored at the end of the block of the step.
        """

    @abstractmethod
    def close(self) -> None:
        """Refuse further steps: the attempt has ended."""


class OpenStreams(Streams):
    """What a running attempt publishes, as its worker sees it."""

    @abstractmethod
    async def write(self, connection: Connection | None = None) -> None:
        """Write what the attempt has published.

        With the connection of a transaction, it is written there, and once more after a rollback.
        """

    @abstractmethod
    async def write_at_end(self) -> None:
        """Write what is left when the code of the attempt has ended. An error becomes the ``fault``."""

    @property
    @abstractmethod
    def fault(self) -> BaseException | None:
        """The error because of which something that the attempt has published is not written; else None."""

    @abstractmethod
    def close(self) -> None:
        """Refuse further items: the attempt has ended."""


@dataclass(frozen=True, slots=True)
class Durability:
    """Makes the objects by which the code of an attempt completes its job, and stores what later code reads.

    All attempts of a worker share it.
    """

    new_completion: Callable[[Attempt, object], AbstractAsyncContextManager[Any]]
    """Makes the block in which an attempt completes its job, for a connection of its code or None."""
    new_steps: Callable[[Attempt], OpenSteps]
    """Makes the durable steps of an attempt."""
    new_streams: Callable[[Attempt], OpenStreams]
    """Makes the values and streams of an attempt."""


class GatheredJobs(Chunk[Any]):
    """A chunk in which attempts of this worker wait, as people look at it."""

    log: deque[str] | None
    """The lines that its function logged; None if they are not kept."""
    executor_call: JobCall | None
    """Its call in an executor; None in the event loop, and before the call."""
    call_task: asyncio.Task[None] | None
    """The task of its call; None before the call."""
    is_replaced: bool
    """Whether its thread runs on, and another attempt or chunk may have its slot."""

    @property
    @abstractmethod
    def runs_on(self) -> bool:
        """Whether its call has not ended."""

    @property
    @abstractmethod
    def state(self) -> str | None:
        """For people, what it waits for; None once its function was called."""


class Attempt:
    """One attempt that runs in this process.

    Attributes:
        completion: The completion of the job in a transaction of its code. It is set while the block is open,
            and after the block if its commit may have succeeded; else None.
        log: The last lines that it logged; None if they are not kept.
        is_awaited: Whether consequences of the job, which was ended, wait for the end of the attempt.
        measured_for: How many attempts its duration stands for in the statistics; 0 if it is not measured.
        measured_from: When its code began, by the monotonic clock; 0 if its duration is not measured.
        durability: Makes its completion and its steps; set before its code begins.
        steps: Its durable steps; None until its code asks for them.
        streams: What it publishes; None until its code publishes something.
        stopped_at: When it was first to stop, by the monotonic clock; 0 if it was not.
        is_replaced: Whether its thread runs on, and another attempt may have its slot.
        runs_in_executor: Whether its function is called outside of the event loop. With middleware, a
            coroutine function has a ``call`` too.
        chunk: The chunk in which it waits for the outcome of its job; None if it is in none.
        exit_error: The SystemExit or KeyboardInterrupt that a step raised in another task of the attempt, and
            that ends the attempt; else None.
    """

    __slots__ = (
        "call",
        "chunk",
        "claim",
        "completion",
        "durability",
        "exit_error",
        "has_begun",
        "has_passed_deadline",
        "has_timed_out",
        "is_awaited",
        "is_replaced",
        "log",
        "measured_for",
        "measured_from",
        "revocation",
        "runs_in_executor",
        "steps",
        "stopped_at",
        "streams",
        "task",
    )

    def __init__(self, claim: Claim, measured_for: int = 0) -> None:
        self.claim = claim
        self.measured_for = measured_for
        self.measured_from = self.stopped_at = 0.0
        self.task: asyncio.Task[None] | None = None
        self.call: JobCall | None = None
        self.chunk: GatheredJobs | None = None
        self.log: deque[str] | None = None
        self.has_begun = False
        self.has_timed_out = self.has_passed_deadline = False
        self.is_awaited = False
        self.is_replaced = False
        self.runs_in_executor = False
        self.revocation: Revocation | None = None
        self.completion: Completion | None = None
        self.exit_error: BaseException | None = None
        self.durability: Durability
        self.steps: OpenSteps | None = None
        self.streams: OpenStreams | None = None

    @property
    def end(self) -> End | None:
        """How far its code has come with the completion of the job; callable from any thread."""
        completion = self.completion
        return None if completion is None else completion.end

    def completing(self, connection: object) -> AbstractAsyncContextManager[Any]:
        """Return the block whose end completes the job; called by the code of the job."""
        return self.durability.new_completion(self, connection)

    async def forget_rolled_back(self, connection: object = None) -> None:
        """Forget the completion if the code has rolled back the transaction of its own that has it.

        Args:
            connection: The connection that the code passes now; None for none.
        """
        completion = self.completion
        if completion is not None and completion.find_rollback is not None:
            await completion.find_rollback(connection)

    def set_result(self, value: object) -> None:
        """Set the value that the completion keeps; called by the code of the job."""
        completion = self.completion
        if completion is None or completion.end is not None or completion.fault is not None:
            raise RuntimeError(
                "set_result() was called outside of a block of completing(); call it within the block, or "
                "return the value of a job that does not use completing()"
            )
        completion.value = value

    def predecessors(self) -> AsyncIterator[JobResult]:
        """Yield the results of other jobs that were passed to this one; called by the code of the job."""
        return self.open_steps().predecessors()

    def open_steps(self) -> OpenSteps:
        """Return the durable steps; called by the code of the job."""
        if self.steps is None:
            self.steps = self.durability.new_steps(self)
        return self.steps

    @property
    def has_writes(self) -> bool:
        """Whether its code has used steps or streams, of which some may not be written yet."""
        return self.steps is not None or self.streams is not None

    async def write_at_end(self) -> None:
        """Write what is left when its code has ended: values of cursors, and what it has published."""
        # A cursor is how far a step has come, which is stored at the end of its block. If Python has closed
        # such a block, the value is still being written.
        if self.steps is not None:
            await self.steps.wait_for_cursors()
        if self.streams is not None:
            await self.streams.write_at_end()

    def open_streams(self) -> OpenStreams:
        """Return the values and streams; called by the code of the job."""
        if self.streams is None:
            self.streams = self.durability.new_streams(self)
        return self.streams

    def revoke(self, reason: Revocation) -> None:
        """Stop the attempt. A second call does not change the reason.

        Once its code writes the completion, only a shutdown stops the attempt: the answer of the database
        decides whether the job was lost.
        """
        if self.revocation is None and (self.end is None or reason is Revocation.SHUTDOWN):
            self.revocation = reason
            # A task that is cancelled before its first step does not run, and would not free its slot. So an
            # attempt that has not begun sees the revocation when it begins.
            if self.has_begun:
                self.interrupt()

    def exit(self, error: BaseException) -> None:
        """End the attempt by a SystemExit or KeyboardInterrupt of another task of the job.

        If that task raised the error itself, asyncio would raise it in the event loop too, and end the
        worker.
        """
        self.exit_error = self.exit_error or error
        self.interrupt()

    def interrupt(self) -> None:
        """Cancel the task of the attempt, or the call in an executor that the task waits for.

        While the code of the attempt writes the completion of the job, the cancellation is postponed until
        the deadline of that write.
        """
        self.stopped_at = self.stopped_at or time.monotonic()
        completion = self.completion
        if completion is not None and completion.end is End.WRITING:
            loop = asyncio.get_running_loop()
            if loop.time() < completion.deadline:
                # One timer is enough, however often this is called.
                if completion.interruption is None:
                    completion.interruption = loop.call_at(completion.deadline, self._interrupt)
                return
        self._interrupt()

    def _interrupt(self) -> None:
        """Cancel the task of the attempt, or the call that it waits for, without delay."""
        # An attempt that starts eagerly does not know its task in its first step.
        if self.task is None:
            return
        reason = self.stop_reason or "suspended"
        # The task is not cancelled if the call stops by its own callback; see ``JobCall.cancel()``.
        is_call_cancelled = self.call is not None and self.call.cancel(reason)
        if not is_call_cancelled:
            self.task.cancel()

    def is_stopped_by(self, error: BaseException) -> bool:
        """Return whether an exception that ended the code came from outside of the code.

        Any other exception is the result of the attempt. A GeneratorExit comes from outside only if Python
        closes the coroutine of the attempt. No task runs that coroutine at such a moment.
        """
        if is_a(error, GeneratorExit):
            return not self.is_stepped
        return is_a(error, asyncio.CancelledError) or is_ctrl_c(error)

    @property
    def is_stepped(self) -> bool:
        """Whether the event loop now runs the task of the attempt, not another task that its code began."""
        task = current_task()
        if task is None:
            return False
        if self.task is not None:
            return task is self.task
        # A task that starts eagerly runs before the attempt knows it, so its name decides.
        return task.get_name() == TASK_NAME_PREFIX + self.claim.job_id

    @property
    def is_unstoppable(self) -> bool:
        """Whether its code runs in a thread, which cannot be stopped; callable from any thread."""
        return self.call is not None and self.call.is_unstoppable

    @property
    def has_released_slot(self) -> bool:
        """Whether its thread runs on, or that of its chunk, while another attempt may have the slot."""
        return self.is_replaced or (self.chunk is not None and self.chunk.is_replaced)

    @property
    def stop_reason(self) -> str | None:
        """Why it was to stop; None if it was not.

        It is ``cancelled``, ``lost``, ``shutdown``, ``deadline`` or ``timeout``.
        """
        if self.revocation is not None:
            return self.revocation.name.lower()
        if self.has_passed_deadline:
            return "deadline"
        return "timeout" if self.has_timed_out else None

    @property
    def is_abandoned(self) -> bool:
        """Whether it was to stop ``ABANDONED_AFTER_S`` seconds ago; its code may have ended since."""
        return self.seconds_until_abandoned == 0

    @property
    def seconds_until_abandoned(self) -> float | None:
        """The seconds until its code is reported to people if it still runs; None if it was not to stop."""
        # An attempt that was suspended, or that exits, was interrupted too, but has no reason to be reported.
        if not self.stopped_at or self.stop_reason is None:
            return None
        return max(self.stopped_at + ABANDONED_AFTER_S - time.monotonic(), 0.0)

    @property
    def runs_on(self) -> bool:
        """Whether its code has not ended; callable from any thread."""
        task = self.task
        # A task of a closed event loop never continues, although it is not done.
        is_pending = task is not None and not task.done() and not task.get_loop().is_closed()
        return is_pending or self.is_unstoppable


class InFlight:
    """Running attempts, and results that are not yet written."""

    def __init__(self, unwritten: Callable[[], dict[str, int]]) -> None:
        self.attempts: Final[dict[str, Attempt]] = {}
        """Running attempts by job id. Only the executor adds and removes them."""
        self.outlived: Final[set[Attempt]] = set()
        """Attempts that have completed their job and run on, while the same job runs here once more."""
        self.crashed_claim: Claim | None = None
        """The last claim of a crashed job, which runs alone among its kind; see ``exchange_jobs``."""
        self.unwritten: Final = unwritten
        """Returns the attempt numbers of results whose write is not confirmed, by job id, in any thread."""
        self.chunk_tasks: Final[dict[asyncio.Task[None], str]] = {}
        """The name of the jobs of each chunk whose function runs, by the task of the call."""
        self._left_attempts: dict[str, Attempt] = {}

    @property
    def runs_crashed_job(self) -> bool:
        """Whether a crashed job runs."""
        claim = self.crashed_claim
        return claim is not None and self.holds(claim.job_id, claim.attempt)

    @property
    def has_crashed_job(self) -> bool:
        """Whether a crashed job runs, or its result is not yet written. Otherwise its claim is forgotten."""
        claim = self.crashed_claim
        if claim is None:
            return False
        if self.runs_crashed_job or self.unwritten().get(claim.job_id) == claim.attempt:
            return True
        # It has ended for good, so the next call need not compare it again.
        self.crashed_claim = None
        return False

    def held(self) -> dict[str, int]:
        """Return the attempt numbers of all running attempts by job id, without those whose job has ended.

        Callable from any thread.
        """
        attempts = list(self.attempts.values())
        if self._left_attempts:
            attempts += self._still_running()
        return {
            attempt.claim.job_id: attempt.claim.attempt
            for attempt in attempts
            if attempt.end is not End.WRITTEN
        }

    def leave_running(self, attempt: Attempt) -> None:
        """Leave an attempt in flight that could not be stopped, and runs on after the end of the executor."""
        self._left_attempts[attempt.claim.job_id] = attempt
        self.attempts.pop(attempt.claim.job_id, None)

    @property
    def has_left(self) -> bool:
        """Whether attempts run on that the executor has left running; callable from any thread."""
        return bool(self._still_running())

    def stopping(self) -> list[Attempt]:
        """Return the attempts that were to stop and run on, in the order in which they were to stop."""
        attempts = [*self.attempts.values(), *self.outlived, *self._left_attempts.values()]
        # A set, because an attempt may be in two of these collections.
        stopping_attempts = {
            attempt for attempt in attempts if attempt.stop_reason is not None and attempt.runs_on
        }
        return sorted(stopping_attempts, key=lambda attempt: attempt.stopped_at)

    def _still_running(self) -> list[Attempt]:
        """Return the attempts that were left running, still run, and have not completed their jobs."""
        return [
            attempt
            for attempt in list(self._left_attempts.values())
            if attempt.runs_on and attempt.end is not End.WRITTEN
        ]

    def unreported(self) -> dict[str, int]:
        """Return the attempt numbers of all attempts that this worker has not finished, by job id.

        These are the attempts that run, and those with results whose write is not confirmed. If a job has two
        attempts here, the number is that of the running one.
        """
        # The running attempts are read first. So an attempt that ends in between is in both, not in neither.
        held = self.held()
        return self.unwritten() | held

    def holds(self, job_id: str, attempt: int) -> bool:
        """Return whether the attempt with this number of the job runs in this process."""
        running = self.attempts.get(job_id)
        return running is not None and running.claim.attempt == attempt

    def can_be_revoked(self, job_id: str, attempt: int) -> bool:
        """Return whether an attempt runs here, was not revoked, and has not begun to complete its job."""
        if not self.holds(job_id, attempt):
            return False
        running = self.attempts[job_id]
        return running.revocation is None and running.end is None

    def revoke(self, job_id: str, attempt: int, reason: Revocation, *, is_awaited: bool = False) -> None:
        """Revoke an attempt; a no-op if it does not run in this process.

        Args:
            job_id: The job.
            attempt: The number of the attempt.
            reason: Why it is revoked.
            is_awaited: Whether consequences of the job wait for the end of the attempt.
        """
        running = self.attempts.get(job_id)
        if running is not None and running.claim.attempt == attempt:
            running.is_awaited = is_awaited
            running.revoke(reason)

    def revoke_all(self, reason: Revocation) -> None:
        """Revoke every attempt."""
        for running in [*self.attempts.values(), *self.outlived]:
            running.revoke(reason)

    def claim_of(self, task: asyncio.Task[Any]) -> Claim | None:
        """Return the claim that a task executes, or None if the task is not an attempt.

        The name decides: an attempt that starts eagerly does not know its task yet.
        """
        # Without the prefix in the name, "prefix" is empty.
        _, prefix, job_id = task.get_name().partition(TASK_NAME_PREFIX)
        running = self.attempts.get(job_id) if prefix else None
        return running.claim if running else None

    def name_of_chunk(self, task: asyncio.Task[Any]) -> str | None:
        """Return the name of the jobs of a chunk whose function a task calls, or None if it calls none."""
        return self.chunk_tasks.get(task)
