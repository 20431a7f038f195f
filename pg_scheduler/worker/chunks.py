"""Gather the jobs of a task with ``@job(chunk=...)``, and call its function once for many of them.

Each job has an attempt as any other job has. Where that attempt would call its function, it joins the open
chunk of its task and key, and waits there for the outcome of its own job. What follows the outcome, such as a
retry, is that of any other attempt.

A chunk has three states:

1. It is open: jobs may join. It runs no code, so it takes no slot, and a job that joins gives its slot back.
   The number of open chunks, and that of their jobs, is bounded, because they are in memory.
2. It is closed: it is full, its wait has ended, or the worker shuts down. It waits for a free slot, which no
   claim gets before it.
3. It is called, in a task of its own, and has that slot until the call ends.

So a worker calls no more functions at once than it has slots. A crashed job runs alone: its chunk is closed
at once, so that a function that ends the process takes no other job with it once more.

An attempt that is cancelled or times out leaves its chunk. If the chunk was called, the attempt waits for
the end of the call, as any other attempt waits for its own function: its job is not repeated, and nothing
cleans up after it, while the function works on it. When no job without an outcome is left, the call is
cancelled.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import Context, copy_context
from copy import deepcopy
from functools import partial
from math import inf
from time import monotonic
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol

from pg_scheduler.base.foreign import class_name, is_a, is_ctrl_c
from pg_scheduler.base.fork import end_child, inheritance
from pg_scheduler.base.text.numbers import counted
from pg_scheduler.errors import JobCancelledError
from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.jobs.call import JobCall, RaisedError, check_returned
from pg_scheduler.jobs.chunk import ChunkJob
from pg_scheduler.jobs.chunks import ITEM, MAX_SIZE, ChunkOptions
from pg_scheduler.jobs.context import GetScheduler, chunk_scheduler
from pg_scheduler.jobs.executors import ASYNC
from pg_scheduler.jobs.history import kept_log
from pg_scheduler.jobs.result import keep_seconds
from pg_scheduler.jobs.task import Task
from pg_scheduler.worker.in_flight import Attempt, GatheredJobs, InFlight
from pg_scheduler.worker.runners.executors import LazyExecutor, Place
from pg_scheduler.worker.runners.timeouts import MAX_TIMEOUT_S

RETURNED_VALUE: Final = (
    "the function of a chunk returned {kind}, which belongs to none of its jobs; return nothing, and call "
    "chunk.complete(job, value) for the value of a job"
)


MIN_OPEN: Final = 10
"""Chunks that may be open at once in a worker with fewer slots."""

MAX_GATHERED: Final = MAX_SIZE
"""Jobs in the open chunks of a worker, beyond which the oldest chunk is closed."""

DEADLINE_SHARE: Final = 0.5
"""The part of the time until its deadline for which a job may wait for others."""


class Slots(Protocol):
    """The slots of a worker."""

    @property
    def is_full(self) -> bool:
        """Whether no slot is free."""

    @property
    def has_slot_for_chunk(self) -> bool:
        """Whether a slot is free for a closed chunk."""

    def note_free_slot(self, *, was_full: bool) -> None:
        """Signal that a slot may have become free; ``was_full`` is whether none was free before."""


class Seat:
    """A job in a chunk, whose attempt waits for its outcome.

    Attributes:
        settled: Has a result when the attempt may continue with the outcome.
        is_settled: Whether the job has an outcome.
        value: The value of the job.
        error: The exception with which the job ends; None for a value.
        traceback: Where the exception was raised. Several jobs may end with one exception, and each raises it
            with this traceback, which would become longer each time.
    """

    __slots__ = ("attempt", "error", "is_settled", "job", "settled", "traceback", "value")

    def __init__(self, attempt: Attempt, job: ChunkJob[Any], settled: asyncio.Future[None]) -> None:
        self.attempt = attempt
        self.job = job
        self.settled = settled
        self.is_settled = False
        self.value: object = None
        self.error: BaseException | None = None
        self.traceback: TracebackType | None = None

    def outcome(self) -> object:
        """Return the value of the job, or raise its exception."""
        if self.error is not None:
            # The worker would end by the error itself, as by Ctrl-C. No Ctrl-C interrupts a thread.
            if is_a(self.error, KeyboardInterrupt):
                raise RaisedError(self.error)
            # A class of the application may override the method.
            raise BaseException.with_traceback(self.error, self.traceback)
        return self.value


class GatheredChunk(GatheredJobs):
    """A chunk, as its function and its worker see it.

    Attributes:
        task: The task of its jobs.
        options: The options of chunks of that task, when the chunk was opened.
        key: The key of its jobs.
        context: The context of the call. It has nothing that middleware has set for a single job.
        present: The jobs that have no outcome and have not left, in the order in which they joined.
        timer: Closes it; None if it is closed.
        executor_call: Its call in an executor; None in the event loop, and before the call.
        call_task: The task of the call; None before the call.
        leavers: The attempts that have left during the call, and wait for its end.
        is_stopped: Whether the worker has cancelled the call.
        closes_at: When its wait ends, by the clock of the event loop.
        log: The lines that its function logged; None if they are not kept.
        is_closed: Whether no further job may join.
        has_ended: Whether the call has ended, so that every job has its outcome.
    """

    def __init__(
        self, task: Task, options: ChunkOptions, key: str | int, context: Context, get_scheduler: GetScheduler
    ) -> None:
        self.task = task
        self.options = options
        self.key = key
        self.context = context
        self.present: dict[ChunkJob[Any], Seat] = {}
        self.timer: asyncio.Handle | None = None
        self.executor_call: JobCall | None = None
        self.call_task: asyncio.Task[None] | None = None
        self.leavers: list[Attempt] = []
        self.is_stopped = self.is_replaced = False
        self.closes_at = inf
        self.log: deque[str] | None = None
        self.is_closed = False
        self._get_scheduler = get_scheduler
        # The jobs of the call, which are those that are present when it begins.
        self._seats: dict[ChunkJob[Any], Seat] = {}
        self._jobs: tuple[ChunkJob[Any], ...] = ()
        self.has_ended = False
        # The function may give jobs their outcomes in another thread, while attempts leave in the event loop.
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()

    @property
    def jobs(self) -> tuple[ChunkJob[Any], ...]:
        """The jobs of the call."""
        return self._jobs

    @property
    def scheduler(self) -> Any:
        """The Scheduler, for the thread of the caller."""
        return self._get_scheduler()

    @property
    def is_cancelled(self) -> bool:
        """Whether a call in a thread should end."""
        return self.executor_call is not None and self.executor_call.is_cancelled

    @property
    def runs_on(self) -> bool:
        """Whether the call has not ended."""
        return self.call_task is not None and not self.call_task.done()

    @property
    def state(self) -> str | None:
        """For people, what it waits for; None once its function was called."""
        if self._jobs:
            return None
        number = f"{counted(len(self.present), 'job')} of at most {self.options.size:,}"
        if self.is_closed:
            return f"waits in a chunk of {number}, for a free slot or a place in the executor"
        return f"waits in a chunk of {number}, up to {self.options.wait_s:g} s for further jobs"

    def complete(self, job: ChunkJob[Any], value: object = None) -> None:
        """Complete a job; see ``Chunk``."""
        self._check(job)
        # The function may change the value before it is written, for example if all jobs share one dict.
        seat = self._seats.get(job)
        if value is not None and seat is not None and keep_seconds(seat.attempt.claim.options) is not None:
            with suppress(Exception):
                value = deepcopy(value)
        self._settle(job, value, None)

    def fail(self, job: ChunkJob[Any], error: BaseException) -> None:
        """Fail a job; see ``Chunk``."""
        self._check(job)
        if not is_a(error, BaseException):
            raise TypeError(
                f"error must be an exception, not {class_name(error)}: {error!r}; pass an object such as "
                'ValueError("the document is empty")'
            )
        self._settle(job, None, error)

    def add(self, attempt: Attempt, item: object) -> Seat:
        """Add a job, which waits for its outcome."""
        job = ChunkJob(attempt.claim, item)
        seat = self.present[job] = Seat(attempt, job, self._loop.create_future())
        return seat

    def begin(self) -> list[Attempt]:
        """Begin the call with the jobs that are present, and return their attempts."""
        with self._lock:
            self._seats = dict(self.present)
            self._jobs = tuple(self._seats)
            return [seat.attempt for seat in self._seats.values()]

    def has_begun_with(self, seat: Seat) -> bool:
        """Return whether the call has begun, and the job is one of its jobs."""
        return seat.job in self._seats

    def leave(self, seat: Seat) -> bool:
        """Remove a job whose attempt was stopped; return whether the job had no outcome before."""
        with self._lock:
            if seat.is_settled:
                return False
            seat.job.has_left = True
            self.present.pop(seat.job, None)
            return True

    def end(self, value: object, error: BaseException | None) -> None:
        """Give all jobs without an outcome that of the call, and deliver every outcome."""
        with self._lock:
            self.has_ended = True
            seats = list(self.present.values())
            if error is None and value is not None:
                error = _mistake_of(value)
            for seat in seats:
                _give(seat, None, error)
            self.present.clear()
        if error is not None and not seats:
            self._report(error)
        # What a thread has given its job may not have been delivered yet. A call that did not begin has no
        # jobs, but leaves some without an outcome.
        for seat in (*self._seats.values(), *seats):
            _deliver(seat)

    def _report(self, error: BaseException) -> None:
        """Log an error of the function that no job has, because each has its outcome or has left."""
        # The worker has caused it.
        if self.is_stopped and (is_a(error, asyncio.CancelledError) or is_a(error, JobCancelledError)):
            return
        logger.error(
            "the function of a chunk of %s raised an exception that fails no job, since each of its %s "
            "has an outcome or has left; call chunk.complete() after the last statement that may fail",
            self.task.name,
            counted(len(self._jobs), "job"),
            extra=record_fields(job_name=self.task.name),
            exc_info=error,
        )

    @staticmethod
    def _check(job: object) -> None:
        """Raise TypeError unless this is a job of a chunk."""
        if not isinstance(job, ChunkJob):
            raise TypeError(
                f"job must be one of the jobs over which the chunk iterates, not {class_name(job)}: {job!r}"
            )

    def _settle(self, job: ChunkJob[Any], value: object, error: BaseException | None) -> None:
        """Give a job its outcome, and let its attempt continue."""
        with self._lock:
            seat = self._seats.get(job)
            if seat is None:
                raise ValueError(
                    f"{job!r} is not in this chunk; pass one of the jobs over which the chunk iterates"
                )
            if self.has_ended:
                raise RuntimeError(
                    f"the call for job {job.job_id!r} has ended, and with it the job; call complete() and "
                    "fail() before the function returns"
                )
            if job.has_outcome:
                raise RuntimeError(
                    f"job {job.job_id!r} has an outcome already, which counts; give it only one"
                )
            job.has_outcome = True
            # The attempt has ended already, and the row of the job may be that of another one.
            if job.has_left:
                return
            _give(seat, value, error)
            self.present.pop(job, None)
        if threading.get_ident() == self._loop_thread:
            _deliver(seat)
        else:
            # A thread may outlive the event loop of its worker.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(_deliver, seat)


def _give(seat: Seat, value: object, error: BaseException | None) -> None:
    """Note the outcome of a job."""
    seat.is_settled = seat.job.has_outcome = True
    seat.value, seat.error = value, error
    seat.traceback = None if error is None else error.__traceback__


def _deliver(seat: Seat) -> None:
    """Let the attempt of a job continue, unless it was stopped at the same moment."""
    if seat.is_settled and not seat.settled.done():
        seat.settled.set_result(None)


def _mistake_of(value: object) -> TypeError:
    """Return the error of a call that returned a value."""
    try:
        check_returned(value)
    except TypeError as error:
        return error
    return TypeError(RETURNED_VALUE.format(kind=class_name(value)))


class ChunkPlace(NamedTuple):
    """What identifies an open chunk."""

    task_id: int
    """The identity of the task object. A function that is registered again has another one."""
    key: str | int


class Chunks:
    """The chunks of a worker.

    Attributes:
        balance: How many more slots are taken because of chunks than there are attempts. Each closed chunk
            takes one until its end, and each job in a chunk gives its own back.
        queued: How many closed chunks wait for a slot.
        longest_wait_s: The maximum of ``chunk_wait`` here; 0 in a process that claims no other jobs.
        closes_by_itself: Whether chunks close when their waits end, or when many jobs wait in them. With
            the virtual clock of a test kit, they wait until they are full, or until ``call_open()``.
        is_over: Whether the time of the attempts is over after a shutdown, so that those whose chunk runs in
            a thread leave their jobs to it.
    """

    def __init__(
        self,
        slots: Slots,
        executors: Mapping[str, LazyExecutor],
        *,
        slot_count: int,
        stop_grace: float,
        get_scheduler: GetScheduler,
        start: Callable[[Attempt, float], None],
        report_abandoned: Callable[[Attempt, Place, str, GatheredJobs], None],
        forget_abandoned: Callable[[GatheredJobs], None],
        seconds_left: Callable[[Attempt], float],
        in_flight: InFlight,
    ) -> None:
        self._slots = slots
        self._executors = executors
        self._max_open = max(MIN_OPEN, slot_count)
        self._gathered = 0
        self._stop_grace = stop_grace
        self._get_scheduler = get_scheduler
        self._start = start
        self._report_abandoned = report_abandoned
        self._forget_abandoned = forget_abandoned
        self._seconds_left = seconds_left
        self._in_flight = in_flight
        self.balance = self.queued = 0
        self.longest_wait_s = inf
        self.closes_by_itself = True
        self.is_over = self._is_closing = False
        # The open chunks, the oldest first, and the closed ones that wait for a slot.
        self._open: dict[ChunkPlace, GatheredChunk] = {}
        self._queue: deque[GatheredChunk] = deque()
        self._called: set[GatheredChunk] = set()
        # The attempts that wait in chunks, and have given their slots back.
        self._seated: set[Attempt] = set()
        # As in TimeoutQueue, a timer in the context of an attempt would keep its arguments alive.
        self._timer_context = copy_context()

    async def join(
        self, attempt: Attempt, task: Task, options: ChunkOptions, context: Context, *args: Any, **kwargs: Any
    ) -> object:
        """Join a chunk, and return the value of the job, or raise its exception.

        Args:
            attempt: The attempt.
            task: Its task.
            options: The options of chunks of that task.
            context: A context for the call, in case that the attempt opens the chunk.
            args: The positional arguments of the job.
            kwargs: Its keyword arguments.

        Raises:
            asyncio.CancelledError: The attempt was stopped before the job had an outcome.
        """
        item = _item_of(task, args, kwargs)
        key = options.key_of(item, task.name)
        is_crashed = attempt.claim is self._in_flight.crashed_claim
        if is_crashed:
            chunk = GatheredChunk(task, options, key, context, self._get_scheduler)
        else:
            chunk = self._chunk_for(task, options, key, context)
            self._set_timer(chunk, attempt)
        seat = chunk.add(attempt, item)
        self._gathered += 1
        was_full = self._slots.is_full
        attempt.chunk = chunk
        self._seated.add(attempt)
        self.balance -= 1
        if is_crashed or len(chunk.present) >= options.size:
            self._close(chunk)
        elif self._gathered > MAX_GATHERED and self.closes_by_itself:
            self._close(next(iter(self._open.values())))
        self._slots.note_free_slot(was_full=was_full)
        try:
            await seat.settled
        except asyncio.CancelledError:
            if chunk.leave(seat):
                await self._leave(chunk, seat)
                raise
            # The outcome came before the cancellation, so it counts.
            task_of_attempt = asyncio.current_task()
            if task_of_attempt is not None:
                task_of_attempt.uncancel()
        finally:
            self.rise(attempt)
            attempt.chunk = None
        # What the function has logged is part of the history of each job that it fails.
        if seat.error is not None and chunk.log and attempt.log is not None:
            attempt.log.extend(chunk.log)
        return seat.outcome()

    def rise(self, attempt: Attempt) -> None:
        """Count the slot of an attempt again, which has its outcome, has left, or was replaced."""
        if attempt in self._seated:
            self._seated.remove(attempt)
            self.balance += 1

    def call_open(self) -> None:
        """Close every open chunk."""
        for chunk in list(self._open.values()):
            self._close(chunk)

    def close(self) -> None:
        """Close every open chunk, and let no later one wait for further jobs: the worker shuts down."""
        self._is_closing = True
        self.call_open()

    def call_queued(self) -> None:
        """Call the closed chunks for which slots are free."""
        while self._queue and self._slots.has_slot_for_chunk:
            chunk = self._queue.popleft()
            self.queued -= 1
            self._called.add(chunk)
            loop = asyncio.get_running_loop()
            # A task factory of the application may not accept the argument "context", so the task gets a copy
            # of the current context, which is that of the chunk here.
            chunk.call_task = chunk.context.run(
                loop.create_task, self._call(chunk), name=f"chunk of {chunk.task.name}"
            )
            self._in_flight.chunk_tasks[chunk.call_task] = chunk.task.name
            chunk.call_task.add_done_callback(partial(self._end_call, chunk), context=self._timer_context)

    def calls(self) -> list[asyncio.Task[None]]:
        """Return the tasks of all calls that have not ended."""
        return [chunk.call_task for chunk in self._called if chunk.call_task is not None]

    def cancel_settled(self) -> None:
        """Cancel the calls that continue although each of their jobs has its outcome."""
        for chunk in list(self._called):
            if not chunk.present:
                self._cancel(chunk, "shutdown")

    def _chunk_for(
        self, task: Task, options: ChunkOptions, key: str | int, context: Context
    ) -> GatheredChunk:
        """Return the open chunk of a task and key. If there is none, open one."""
        place = ChunkPlace(id(task), key)
        chunk = self._open.get(place)
        if chunk is not None:
            return chunk
        # Many keys could keep any number of chunks open, so the oldest one makes way.
        if len(self._open) >= self._max_open and self.closes_by_itself:
            self._close(next(iter(self._open.values())))
        chunk = self._open[place] = GatheredChunk(task, options, key, context, self._get_scheduler)
        return chunk

    def _set_timer(self, chunk: GatheredChunk, attempt: Attempt) -> None:
        """Let a chunk close when its wait ends, or early enough for the deadline of a job that joins."""
        loop = asyncio.get_running_loop()
        wait_s = inf
        if chunk.timer is None:
            wait_s = 0.0 if self._is_closing else min(chunk.options.wait_s, self.longest_wait_s)
        if self.closes_by_itself:
            wait_s = min(wait_s, max(self._seconds_left(attempt) * DEADLINE_SHARE, 0.0))
        elif wait_s:
            return
        closes_at = loop.time() + wait_s
        if closes_at >= chunk.closes_at:
            return
        if chunk.timer is not None:
            chunk.timer.cancel()
        chunk.closes_at = closes_at
        # All jobs of a claim join before the event loop calls what it was given during that.
        if not wait_s:
            chunk.timer = loop.call_soon(self._close, chunk, context=self._timer_context)
        else:
            chunk.timer = loop.call_later(wait_s, self._close, chunk, context=self._timer_context)

    def _close(self, chunk: GatheredChunk) -> None:
        """Let no further job join a chunk, and call it when a slot is free; drop it if all jobs have left."""
        if chunk.is_closed:
            return
        chunk.is_closed = True
        if chunk.timer is not None:
            chunk.timer.cancel()
            chunk.timer = None
        self._gathered -= len(chunk.present)
        place = ChunkPlace(id(chunk.task), chunk.key)
        # A crashed job has a chunk of its own, which no other job may join.
        if self._open.get(place) is chunk:
            del self._open[place]
        if not chunk.present:
            return
        self._queue.append(chunk)
        self.queued += 1
        self.balance += 1
        self.call_queued()

    async def _leave(self, chunk: GatheredChunk, seat: Seat) -> None:
        """End the part of an attempt in a chunk that it has left.

        If no job is left that waits for an outcome, cancel the call. Wait for the end of a call that has the
        job, whether it is cancelled or not.
        """
        if chunk.call_task is None:
            if not chunk.is_closed:
                self._gathered -= 1
            if not chunk.present:
                self._drop(chunk)
            return
        if chunk.has_begun_with(seat):
            await self._wait_for_end(chunk, chunk.call_task, seat.attempt)
        elif not chunk.present:
            self._cancel(chunk, seat.attempt.stop_reason or "cancelled")

    async def _wait_for_end(
        self, chunk: GatheredChunk, call_task: asyncio.Task[None], attempt: Attempt
    ) -> None:
        """Wait until the call of a chunk has ended, and cancel it if no job is left.

        While a cancelled call runs in a thread, its attempts count as attempts in that thread, so that they
        keep their jobs after a shutdown.
        """
        call_of_middleware, runs_in_executor = attempt.call, attempt.runs_in_executor
        chunk.leavers.append(attempt)
        if not chunk.present:
            self._cancel(chunk, attempt.stop_reason or "cancelled")
        while not call_task.done():
            try:
                await asyncio.wait([call_task])
            except asyncio.CancelledError:
                # The job stays with a thread that runs on after the shutdown.
                if self.is_over and attempt.is_unstoppable:
                    raise
                # The call also belongs to the other jobs. Without any, a further cancellation interrupts its
                # cleanup, as in a function of its own.
                if not chunk.present:
                    self._cancel(chunk, attempt.stop_reason or "cancelled")
        if not attempt.is_unstoppable:
            attempt.call, attempt.runs_in_executor = call_of_middleware, runs_in_executor

    def _drop(self, chunk: GatheredChunk) -> None:
        """Forget a chunk whose jobs have left before its call."""
        if not chunk.is_closed:
            self._close(chunk)
        elif chunk in self._queue:
            was_full = self._slots.is_full
            self._queue.remove(chunk)
            self.queued -= 1
            self.balance -= 1
            self._slots.note_free_slot(was_full=was_full)

    def _cancel(self, chunk: GatheredChunk, reason: str) -> None:
        """Cancel the call of a chunk."""
        chunk.is_stopped = True
        if chunk.executor_call is not None:
            for leaver in chunk.leavers:
                leaver.call, leaver.runs_in_executor = chunk.executor_call, True
        # A thread is not interrupted: its function can see that it is cancelled, and return.
        if chunk.executor_call is not None and chunk.executor_call.cancel(reason):
            return
        if chunk.call_task is not None:
            chunk.call_task.cancel()

    async def _call(self, chunk: GatheredChunk) -> None:
        """Call the function of a chunk. This is the main function of the task of a call."""
        chunk_scheduler.set(self._get_scheduler)
        if kept_log.is_used:
            chunk.log = kept_log.begin()
        timer: asyncio.Handle | None = None
        generation = inheritance.generation
        value: object = None
        error: BaseException | None = None
        try:
            if chunk.task.executor == ASYNC:
                timer = self._begin(chunk)
                # All jobs may have left since the chunk was called.
                if chunk.jobs:
                    value = await chunk.task.func(chunk)
            else:
                # While the executor runs as many jobs as it may, the chunk waits here, with its slot.
                async with self._executors[chunk.task.executor].place() as place:
                    await self._executors[chunk.task.executor].start()
                    timer = self._begin(chunk)
                    value = await self._execute(chunk, place)
        except BaseException as raised:  # user code; sys.exit() and the like end its jobs only
            if inheritance.generation != generation:
                end_child(raised)
            if is_ctrl_c(raised):
                raise
            error = raised.error if isinstance(raised, RaisedError) else raised
        finally:
            if timer is not None:
                timer.cancel()
        if inheritance.generation != generation:
            end_child()
        chunk.end(value, error)

    def _end_call(self, chunk: GatheredChunk, call_task: asyncio.Task[None]) -> None:
        """Free the slot of a chunk, however its call has ended."""
        # A task that is cancelled before its first step does not run, and has given no job its outcome.
        if not chunk.has_ended:
            error = None if call_task.cancelled() else call_task.exception()
            chunk.end(None, asyncio.CancelledError() if error is None else error)
        was_full = self._slots.is_full
        self._called.remove(chunk)
        self._in_flight.chunk_tasks.pop(call_task, None)
        self._forget_abandoned(chunk)
        self.balance -= 1
        self._slots.note_free_slot(was_full=was_full)

    def _begin(self, chunk: GatheredChunk) -> asyncio.Handle | None:
        """Begin the attempts of the jobs of a chunk, and with them their time limits.

        Return a timer that cancels the call after the longest of these limits; None if one job has none. It
        is for a call that continues after each of its jobs has an outcome.
        """
        attempts = chunk.begin()
        since = monotonic()
        for attempt in attempts:
            self._start(attempt, since)
        limits = [attempt.claim.timeout_seconds for attempt in attempts]
        longest_s = max((inf if limit is None else limit for limit in limits), default=inf)
        # The condition is not ">=", which would be false for NaN.
        if not longest_s < MAX_TIMEOUT_S:
            return None
        return asyncio.get_running_loop().call_later(longest_s, self._end_settled, chunk)

    def _end_settled(self, chunk: GatheredChunk) -> None:
        """Cancel a call that continues after the time limits of its jobs, all of which have outcomes.

        If the last job has left because it was stopped, the call is cancelled already.
        """
        if not chunk.present and not chunk.is_stopped:
            logger.error(
                "the function of a chunk of %s is cancelled: it continues after the time limits of its jobs, "
                "each of which has an outcome or has left; end it soon after the last chunk.complete()",
                chunk.task.name,
                extra=record_fields(job_name=chunk.task.name),
            )
            self._cancel(chunk, "timeout")

    async def _execute(self, chunk: GatheredChunk, place: Place) -> object:
        """Call the function of a chunk in its executor, and return what it returns."""
        # All jobs may have left while the chunk waited for its place.
        if not chunk.present:
            return None
        first_attempt = next(iter(chunk.present.values())).attempt
        chunk.executor_call = call = JobCall(
            first_attempt.claim,
            chunk.task.func,
            (chunk,),
            {},
            stop_grace=self._stop_grace,
            report_abandoned=partial(self._abandon, chunk, first_attempt, place),
        )
        try:
            return await self._executors[chunk.task.executor].executor.run(call)
        finally:
            # If this task was cancelled instead, the call keeps its callbacks, because its thread may run on.
            if not call.is_unstoppable:
                call.detach()

    def _abandon(self, chunk: GatheredChunk, first_attempt: Attempt, place: Place, stack: str) -> None:
        """Report that the thread of a chunk runs on after it was cancelled."""
        attempt = chunk.leavers[0] if chunk.leavers else first_attempt
        self._report_abandoned(attempt, place, stack, chunk)


def _item_of(task: Task, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
    """Return the only argument of a job.

    Raises:
        TypeError: The job has other arguments, as one that another program has inserted.
    """
    if len(args) == 1 and not kwargs:
        return args[0]
    task.arity.check(args, kwargs)
    return kwargs[ITEM]
