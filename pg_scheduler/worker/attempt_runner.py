"""Run one attempt: find its function, decode its arguments, and call it within its time limit.

Coroutine functions run in the task of the attempt, all others in the executor that they name. A claimed
attempt waits while its executor is full. The timeout of the attempt does not count this wait, because it
begins with the code of the job.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextvars import Context, copy_context
from datetime import datetime
from functools import partial
from math import inf
from time import monotonic
from typing import Any, Final

from pg_scheduler.base.backoff import Backoff
from pg_scheduler.base.foreign import message_of
from pg_scheduler.base.fork import end_child, inheritance
from pg_scheduler.base.text.numbers import exact, plural
from pg_scheduler.database.faults import ENDED_WHILE_IDLE
from pg_scheduler.errors import (
    ConfigurationError,
    ConnectionRejectedError,
    DatabaseUnavailableError,
    PayloadError,
)
from pg_scheduler.events import JobStarted, ThreadAbandoned
from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.events.types import LOCK_TAKEN
from pg_scheduler.jobs.call import CrashedError, JobCall, JobExecutor, RaisedError, check_returned
from pg_scheduler.jobs.chunks import ChunkOptions
from pg_scheduler.jobs.context import RunningAttempt, RunningJob, cancellation, current
from pg_scheduler.jobs.deadlines import deadline_of, error_at
from pg_scheduler.jobs.executors import ASYNC
from pg_scheduler.jobs.model import DEFAULT_TIMEOUT
from pg_scheduler.jobs.outcome import (
    CrashResult,
    DeadlineResult,
    ErrorResult,
    InterruptResult,
    Result,
    ReturnResult,
    SkippedResult,
    UnrunnableResult,
)
from pg_scheduler.jobs.payload import decode, object_from
from pg_scheduler.jobs.rows import Claim
from pg_scheduler.jobs.step_values import MARK
from pg_scheduler.jobs.task import Task
from pg_scheduler.worker.chunks import Chunks, Slots
from pg_scheduler.worker.completing import Completions
from pg_scheduler.worker.in_flight import Attempt, Durability, GatheredJobs
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.progress_writer import ProgressWriter
from pg_scheduler.worker.runners.executors import LazyExecutor, Place, fault_of_chunks
from pg_scheduler.worker.runners.jobs_view import AttemptInThread
from pg_scheduler.worker.runners.middleware import run_in_executor, run_in_loop
from pg_scheduler.worker.runners.timeouts import TimeoutQueue
from pg_scheduler.worker.stuck_threads import StuckThreads

FIRST_LOCK_PAUSE_S: Final = 0.1
LONGEST_LOCK_PAUSE_S: Final = 10.0

LONGER: Final = ", the default; pass timeout= if its attempts may take longer"
"""The end of the error of an attempt that reached the default timeout."""

LOCK_REPORT_INTERVAL_S: Final = 60.0
"""Seconds between two log records of one outage in which no advisory lock can be taken."""

RETURNED: Final = ReturnResult()
"""The result of a job that keeps none, whatever its function returned."""


class LockPause:
    """Pauses attempts that found no connection for their advisory lock; all attempts of a worker share it.

    After the pause the job of such an attempt is released. Without the pause the worker would claim the job
    again at once, because claims use a connection that is open, while the server rejects new ones.
    """

    def __init__(self) -> None:
        self._backoff = Backoff(FIRST_LOCK_PAUSE_S, LONGEST_LOCK_PAUSE_S)
        self._ends_at = self._report_at = 0.0
        self._is_outage = False

    async def wait(self, fault: DatabaseUnavailableError) -> None:
        """Wait until connections may be attempted again. Attempts that fail during a pause share it.

        ``fault`` is the error of the attempt that found no connection; it is logged from time to time.
        """
        now = monotonic()
        # The last pause is over, so this attempt begins the next one.
        if now >= self._ends_at:
            seconds = self._backoff.next_delay_s()
            self._ends_at = now + seconds
            self._report(fault, seconds, now)
        await asyncio.sleep(self._ends_at - now)

    def reset(self) -> None:
        """Begin the next outage with the shortest pause: a connection was obtained."""
        self._backoff.reset()
        self._is_outage = False

    def _report(self, fault: DatabaseUnavailableError, seconds: float, now: float) -> None:
        """Log the outage from time to time; the first record is an ERROR if the server refused to connect.

        ``seconds`` is the length of the pause that begins at the monotonic time ``now``.
        """
        if self._is_outage and now < self._report_at:
            return
        is_error = isinstance(fault, ConnectionRejectedError) and not self._is_outage
        self._is_outage, self._report_at = True, now + LOCK_REPORT_INTERVAL_S
        level = logging.ERROR if is_error else logging.WARNING
        logger.log(
            level,
            "no connection for the advisory lock of a job, retry in %.1f s: %s: %s",
            seconds,
            type(fault).__name__,
            fault,
            extra=record_fields(),
        )


CLOCK_CHECK_S: Final = 10.0
"""Seconds after which a timer of a deadline compares the clock again, since it may have been set forward."""


class DeadlineTimer:
    """Ends an attempt at the deadline of its job, by a clock that may be set meanwhile.

    Args:
        seconds_left: Returns the seconds until the deadline, by that clock.
        end: Ends the attempt.
        context: The context of the timer.
        check_s: The longest time between two comparisons, by which an attempt may end late if the clock was
            set forward.
    """

    def __init__(
        self,
        seconds_left: Callable[[], float],
        end: Callable[[], None],
        context: Context | None = None,
        *,
        check_s: float = CLOCK_CHECK_S,
    ) -> None:
        self._check_s = check_s
        self.seconds_left = seconds_left
        self._end = end
        self._context = context
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Wait for the deadline."""
        self._timer = asyncio.get_running_loop().call_later(
            min(self.seconds_left(), self._check_s), self._check, context=self._context
        )

    def cancel(self) -> None:
        """Wait no longer."""
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        """End the attempt; wait again if time is left by now, also because the clock was set back."""
        if self.seconds_left() > 0:
            self.start()
        else:
            self._end()


class AttemptRunner:
    """Runs attempts in the event loop and in the executors of the worker."""

    def __init__(
        self, node: Node, progress: ProgressWriter, stuck_threads: StuckThreads, slots: Slots
    ) -> None:
        self._stuck_threads = stuck_threads
        self._locks = node.store.locks
        self._codec = node.store.statements.codec
        self._events = node.events
        self._tasks = node.tasks
        self._meter = node.meter
        self._get_scheduler = node.get_scheduler
        self._report_progress = progress.report
        self._middleware = tuple(node.middleware)
        self._executors = {name: LazyExecutor(name, executor) for name, executor in node.executors.items()}
        self._stop_grace = node.config.stop_grace
        self._max_crashes = node.config.max_crashes
        self._lock_pause = LockPause()
        self._clock = node.clock
        self.durability = Durability(
            Completions(node, progress).block, partial(node.new_steps, node), partial(node.new_streams, node)
        )
        self._timeouts: TimeoutQueue[Attempt] = TimeoutQueue(self.time_out)
        self._statements = node.store.statements
        self.chunks: Final = Chunks(
            slots,
            self._executors,
            slot_count=node.config.max_concurrent_jobs,
            stop_grace=self._stop_grace,
            get_scheduler=self._get_scheduler,
            start=self._start,
            report_abandoned=self._abandon,
            forget_abandoned=stuck_threads.remove,
            seconds_left=self._seconds_left,
            in_flight=node.in_flight,
        )
        """The chunks in which attempts of this worker wait."""
        # As in TimeoutQueue, a timer in the context of the attempt would keep its arguments alive.
        self._timer_context = copy_context()

    async def run(self, attempt: Attempt) -> Result:
        """Run an attempt, and return its result: how its code ended.

        Raises:
            asyncio.CancelledError: The attempt was cancelled.
        """
        claim = attempt.claim
        task = self._tasks.resolve(claim.function)
        if task is None:
            return UnrunnableResult(
                LookupError(f"no function is registered under the name {claim.function!r}")
            )
        try:
            args, kwargs = decode(claim.task_data, self._codec, claim.job_name)
            if task.typed is not None:
                args, kwargs = task.typed.bind(args, kwargs)
        except (PayloadError, ConfigurationError) as error:
            return UnrunnableResult(error)
        except BaseException as error:  # noqa: BLE001 - user code: a validator
            return error_result(attempt, error)
        if task.executor != ASYNC or task.chunk is not None:
            return await self._run_elsewhere(attempt, task, args, kwargs)
        func = task.func
        func = partial(run_in_loop, self._middleware, attempt, task, func) if self._middleware else func
        generation = inheritance.generation
        running = self._enter(attempt, view=attempt)
        try:
            try:
                value = await func(*args, **kwargs)
            except BaseException as error:
                if inheritance.generation != generation:
                    end_child(error)
                raise
            finally:
                # If Python closes this coroutine, as at the end of the event loop, no task runs it, and it
                # cannot wait.
                if attempt.has_writes and attempt.is_stepped:
                    await attempt.write_at_end()
        except BaseException as error:  # noqa: BLE001 - user code; sys.exit() and the like end the job only
            return error_result(attempt, error)
        finally:
            self._leave(attempt, running)
        if inheritance.generation != generation:
            end_child()
        return result_of(attempt, value)

    async def run_with_options(self, attempt: Attempt) -> Result:
        """Run an attempt of a job that may have a deadline or an advisory lock."""
        key = _advisory_lock_of(attempt.claim)
        deadline = deadline_of(attempt.claim.options)
        if deadline is not None:
            return await self.run_until(attempt, deadline, key)
        if key is not None:
            return await self.run_under_lock(attempt, key)
        return await self.run(attempt)

    async def run_under_lock(self, attempt: Attempt, key: int) -> Result:
        """Run an attempt while it holds its advisory lock; skip the attempt if another one holds the lock.

        An attempt that loses its lock continues: what it has done could not be undone.
        """
        result: Result | None = None
        try:
            async with self._locks.advisory_lock(key, partial(report_lock_loss, attempt.claim)) as has_lock:
                self._lock_pause.reset()
                result = await self.run(attempt) if has_lock else SkippedResult(LOCK_TAKEN)
        except DatabaseUnavailableError as fault:
            # With a result, the attempt has ended, and only the release of its lock failed. The server frees
            # the lock at the end of the session.
            if result is not None:
                return result
            await self._lock_pause.wait(fault)
            return InterruptResult()  # its code has not begun
        except ConfigurationError as error:  # this pool cannot hold a lock
            return UnrunnableResult(error)
        return result

    async def run_until(self, attempt: Attempt, deadline: datetime, key: int | None) -> Result:
        """Run an attempt until the deadline of its job; do not begin if the deadline has passed.

        Other than for a timeout, the time counts that the attempt waits for its executor or its lock. The
        clock of the server decides: a clock of this host that is wrong neither ends a job early nor late. If
        another session has changed the row meanwhile, the fence refuses the outcome, whatever it is.

        Args:
            attempt: The attempt.
            deadline: The deadline.
            key: The key of its advisory lock; None for none.
        """
        timer = DeadlineTimer(
            partial(self._seconds_until, deadline),
            partial(self.end_at_deadline, attempt),
            self._timer_context,
        )
        if timer.seconds_left() <= 0:
            return DeadlineResult(error_at(deadline))
        timer.start()
        try:
            result = await (self.run(attempt) if key is None else self.run_under_lock(attempt, key))
        finally:
            timer.cancel()
        # The code was stopped, and has raised something else while it ended, such as the error of a cleanup,
        # or Retry. There is no retry after the deadline.
        if attempt.has_passed_deadline and isinstance(result, ErrorResult):
            error = error_at(deadline)
            error.__cause__ = result.error
            return DeadlineResult(error)
        return result

    async def stop(self) -> None:
        """Stop watching time limits, and stop the executors."""
        self._timeouts.close()
        for lazy_executor in self._executors.values():
            await lazy_executor.stop(self._stop_grace)

    @staticmethod
    def time_out(attempt: Attempt) -> None:
        """Interrupt an attempt whose time limit has expired."""
        # A function that only waits for steps is suspended instead. It was not suspended before, because
        # tasks or threads that it has begun were at work.
        if attempt.steps is not None and attempt.steps.suspend_at_timeout():
            return
        attempt.has_timed_out = True
        attempt.interrupt()

    def _seconds_until(self, deadline: datetime) -> float:
        """Return the seconds until a deadline: by the clock of a test, or else by that of the server."""
        left_s = self._clock.seconds_until(deadline) if self._statements.now is None else None
        if left_s is None:
            return (deadline - self._statements.local_now).total_seconds()
        return left_s

    def _seconds_left(self, attempt: Attempt) -> float:
        """Return the seconds until the deadline of a job; infinity without one."""
        deadline = deadline_of(attempt.claim.options)
        return inf if deadline is None else self._seconds_until(deadline)

    @staticmethod
    def end_at_deadline(attempt: Attempt) -> None:
        """Interrupt an attempt whose job has passed its deadline."""
        attempt.has_passed_deadline = True
        attempt.interrupt()

    async def _run_elsewhere(
        self, attempt: Attempt, task: Task, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Result:
        """Run an attempt whose function is called in an executor, or for a chunk of jobs."""
        if task.chunk is not None:
            return await self._run_in_chunk(attempt, task, task.chunk, args, kwargs)
        return await self._run_outside_loop(attempt, task, args, kwargs)

    async def _run_in_chunk(
        self,
        attempt: Attempt,
        task: Task,
        options: ChunkOptions,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Result:
        """Run an attempt that waits in a chunk for the outcome of its job instead of calling its function."""
        fault = self._fault_of_executor(task)
        if fault is not None:
            return UnrunnableResult(fault)
        # The context for the call is copied before this one gets the job.
        func: Callable[..., Awaitable[Any]] = partial(
            self.chunks.join, attempt, task, options, copy_context()
        )
        if self._middleware:
            func = partial(run_in_loop, self._middleware, attempt, task, func)
        running = self._make_current(attempt, view=attempt)
        try:
            try:
                value = await func(*args, **kwargs)
            finally:
                # The middleware may have used steps or streams.
                if attempt.has_writes and attempt.is_stepped:
                    await attempt.write_at_end()
        except CrashedError as crash:
            return CrashResult(message_of(crash), self._max_crashes)
        except RaisedError as raised:
            return ErrorResult(raised.error)
        except BaseException as error:  # noqa: BLE001 - user code; sys.exit() and the like end the job only
            return error_result(attempt, error)
        finally:
            self._leave(attempt, running)
        return result_of(attempt, value)

    async def _run_outside_loop(
        self, attempt: Attempt, task: Task, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Result:
        """Run an attempt in its executor, as soon as that has room."""
        lazy_executor = self._executors.get(task.executor)
        if lazy_executor is None:
            error = ConfigurationError(f"this Scheduler has no executor {task.executor!r}; pass executors=")
            return UnrunnableResult(error)
        # While the executor runs as many jobs as it may, the attempt waits here, with its slot.
        async with lazy_executor.place() as place:
            try:
                await lazy_executor.start()
                return await self._call(
                    attempt, task, args, kwargs, executor=lazy_executor.executor, place=place
                )
            except BaseException as error:  # noqa: BLE001 - user code; sys.exit() and the like end the job only
                return error_result(attempt, error)

    async def _call(
        self,
        attempt: Attempt,
        task: Task,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        executor: JobExecutor,
        place: Place,
    ) -> Result:
        """Call the function of an attempt in an executor, and return how it ended."""
        claim = attempt.claim
        attempt.runs_in_executor = True
        attempt.call = call = JobCall(
            claim,
            task.func,
            args,
            kwargs,
            codec=self._codec,
            is_typed=task.typed is not None,
            stop_grace=self._stop_grace,
            report_abandoned=partial(self._abandon, attempt, place),
        )
        # The code of the job finds its cancellation flag by this context variable.
        cancellation.set(call)
        running = self._enter(attempt, view=AttemptInThread(attempt))
        # The first use of "call.job" finds the job by the current context, and remembers it. An executor may
        # use "call.job" in another context, so the first use is here.
        _ = call.job
        result: Result
        try:
            try:
                if self._middleware:
                    value = await run_in_executor(self._middleware, executor, call)
                else:
                    value = await executor.run(call)
            finally:
                if attempt.streams is not None and attempt.is_stepped:
                    await attempt.streams.write_at_end()
            result = result_of(attempt, value)
        except RaisedError as raised:
            result = ErrorResult(raised.error)
        except CrashedError as crash:
            result = CrashResult(message_of(crash), self._max_crashes)
        finally:
            self._leave(attempt, running)
        call._end()  # noqa: SLF001 - not for executors and middleware
        # A function that saw its cancellation may have returned or raised because of it. So neither the value
        # nor the error is the result of a cancelled call.
        if call.was_cancelled:
            return stopped_result(attempt)
        return result

    def _abandon(self, attempt: Attempt, place: Place, stack: str, chunk: GatheredJobs | None = None) -> None:
        """Report that the thread of an attempt, or of its chunk, runs on; it may release its slot."""
        is_replaced = self._stuck_threads.add(attempt if chunk is None else chunk, place)
        claim = attempt.claim
        self._events.publish(
            ThreadAbandoned(
                claim.job_id, claim.job_name, claim.attempt, stack=stack, has_slot=not is_replaced
            )
        )

    def _fault_of_executor(self, task: Task) -> ConfigurationError | None:
        """Return why the function of a chunk cannot be called here; None if it can."""
        if task.executor == ASYNC:
            return None
        lazy_executor = self._executors.get(task.executor)
        if lazy_executor is None:
            return ConfigurationError(f"this Scheduler has no executor {task.executor!r}; pass executors=")
        return fault_of_chunks(task.executor, lazy_executor.executor)

    def _enter(self, attempt: Attempt, view: RunningAttempt) -> RunningJob:
        """Make an attempt the current job of this context, announce it, and begin its time limit.

        The caller passes the returned job to ``_leave()`` when the code of the attempt has ended.

        Args:
            attempt: The attempt.
            view: The object by which its code reaches the attempt: the attempt itself in the event loop, else
                one that rejects what only works there.
        """
        running = self._make_current(attempt, view)
        self._start(attempt)
        return running

    def _make_current(self, attempt: Attempt, view: RunningAttempt) -> RunningJob:
        """Make an attempt the current job of this context; see ``_enter()``."""
        attempt.durability = self.durability
        running = RunningJob(attempt.claim, time.time(), self._get_scheduler, self._report_progress, view)
        current.set(running)
        return running

    def _start(self, attempt: Attempt, since: float | None = None) -> None:
        """Announce an attempt whose code begins, and begin its time limit and the measure of its duration.

        The jobs of a chunk begin at one moment, ``since``, so that those of one time limit end together.
        """
        claim = attempt.claim
        if self._events.wants(JobStarted):
            self._events.publish(
                JobStarted(claim.job_id, claim.job_name, claim.attempt, execution_time=claim.execution_time)
            )
        if claim.timeout_seconds is not None:
            self._timeouts.add(attempt, claim.timeout_seconds, since)
        if attempt.measured_for:
            attempt.measured_from = monotonic()

    def _leave(self, attempt: Attempt, running: RunningJob) -> None:
        """End what ``_enter()`` has begun: the code of the attempt has ended."""
        claim = attempt.claim
        if attempt.steps is not None:
            attempt.steps.close()
        if attempt.streams is not None:
            attempt.streams.close()
        # The context of the task keeps a copy that does not refer to the attempt. With that reference, the
        # context, the attempt and its task would form a circle, which only the garbage collector frees.
        current.set(running.without_attempt())
        # An attempt that has left its chunk before the call has no duration.
        if attempt.measured_for and attempt.measured_from and self._meter is not None:
            seconds = monotonic() - attempt.measured_from
            self._meter.record_duration(claim.job_name, seconds, attempt.measured_for)
        if claim.timeout_seconds is not None:
            self._timeouts.remove(attempt, claim.timeout_seconds)


def result_of(attempt: Attempt, value: object) -> Result:
    """Return the result of an attempt whose function returned a value.

    If something that it has published is not written, the attempt has failed.
    """
    fault = None if attempt.streams is None else attempt.streams.fault
    return return_result(attempt.claim, value) if fault is None else ErrorResult(fault)


def return_result(claim: Claim, value: object) -> Result:
    """Return the result of an attempt whose function returned a value; ``RETURNED`` if it is not kept."""
    # A function that returns what it should have awaited or raised has not done its work.
    if value is not None:
        try:
            check_returned(value)
        except TypeError as error:
            return ErrorResult(error)
    if claim.options is None or _completes_plainly(claim.options):
        return RETURNED
    return ReturnResult(value)


def report_lock_loss(claim: Claim) -> None:
    """Log that an attempt continues without its advisory lock."""
    logger.warning(
        "job %r continues without its advisory lock, so the next job of its schedule may run at the same "
        "time: %s",
        claim.job_id,
        ENDED_WHILE_IDLE,
        extra=record_fields(job_id=claim.job_id, job_name=claim.job_name, attempt=claim.attempt),
    )


def _completes_plainly(options: str) -> bool:
    """Return whether a job with these options, such as one of a schedule, completes as a plain job does.

    Such a job keeps no result, and has no steps. The JSON is searched as text, without parsing. If one of the
    two words occurs elsewhere in the JSON, the job only takes a longer way to the same outcome.
    """
    return "keep_result" not in options and MARK not in options


def error_result(attempt: Attempt, error: BaseException) -> ErrorResult:
    """Return the result of an attempt whose code raised an exception.

    Raises:
        BaseException: The exception itself, if it came from outside of the code, such as a cancellation.
    """
    if attempt.is_stopped_by(error):
        raise error
    return ErrorResult(error)


def stopped_result(attempt: Attempt) -> Result:
    """Return the result of an attempt that a revocation, a deadline or its timeout has stopped."""
    if attempt.revocation is not None:
        return InterruptResult()
    deadline = deadline_of(attempt.claim.options) if attempt.has_passed_deadline else None
    if deadline is not None:
        return DeadlineResult(error_at(deadline))
    return timeout_result(attempt.claim)


def timeout_result(claim: Claim) -> ErrorResult:
    """Return the result of an attempt that its timeout has stopped."""
    seconds = claim.timeout_seconds or 0.0
    message = f"the job ran longer than its timeout of {exact(seconds)} {plural(seconds, 'second')}"
    if seconds == DEFAULT_TIMEOUT.total_seconds():
        message += LONGER
    return ErrorResult(TimeoutError(message), timed_out=True)


def _advisory_lock_of(claim: Claim) -> int | None:
    """Return the key of the advisory lock under which an attempt runs; None if it runs without a lock.

    Only jobs of schedules have one. A role that may insert plain jobs alone can write the key, but not the
    schedule, so it cannot hold the lock of a schedule and have its jobs skipped.
    """
    if claim.lock_key is None or object_from(claim.options).get("schedule_id") is None:
        return None
    return claim.lock_key
