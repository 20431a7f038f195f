"""Runs claimed jobs: one asyncio task each, under a slot, a timeout and a context.

A task can be stopped for three reasons, and only one of them has an outcome to write: shutdown
(the job is handed back). When a caller cancelled the job, or the lease was lost, the row is somebody
else's by then, so the task is cancelled and nothing is written.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from pg_scheduler.errors import ConfigurationError, DatabaseUnavailableError, NotRunningError, PayloadError
from pg_scheduler.events import (
    EventBus,
    JobCancelled,
    JobEvent,
    JobLost,
    JobStarted,
    ServiceFaulted,
)
from pg_scheduler.events.types import BY_CALLER
from pg_scheduler.jobs.context import current
from pg_scheduler.jobs.outcome import (
    ErrorResult,
    InterruptResult,
    Result,
    ReturnResult,
    SkippedResult,
    UnrunnableResult,
    decide,
)
from pg_scheduler.jobs.payload import decode
from pg_scheduler.jobs.registry import TaskRegistry
from pg_scheduler.jobs.retry import RetryPolicy
from pg_scheduler.jobs.rows import Claim
from pg_scheduler.store.store import Store
from pg_scheduler.worker.pipeline.completer import Completer
from pg_scheduler.worker.runners.asyncio import start_task
from pg_scheduler.worker.runners.timeouts import TimeoutQueue

__all__ = ["Executor"]

TASK_NAME: Final = "job "
LOCK_TAKEN: Final = "skipped: another run holds the advisory lock"
GOODBYE: Final = 10.0
"""Seconds that cancelled tasks get to clean up before shutdown goes on without them."""


_RETURNED: Final = ReturnResult()


class _Run:
    __slots__ = ("begun", "claim", "stop", "task", "timed_out")

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.task: asyncio.Task[None] | None = None
        self.begun = False
        self.timed_out = False
        self.stop: type[InterruptResult] | JobEvent | None = None


class Executor:
    """The slots of a worker and what runs in them.

    Args:
        slots: Jobs that may run at once.
        shutdown_timeout: Seconds that jobs get to end by themselves.
        on_free: Called when a slot becomes free and none was.
        on_lost: Called when a try has ended that was not ours any more.
        on_fault: Called when running a job failed in a way that is not the job's.
    """

    def __init__(
        self,
        store: Store,
        events: EventBus,
        tasks: TaskRegistry,
        completer: Completer,
        policy: RetryPolicy,
        *,
        slots: int,
        shutdown_timeout: float,
        on_free: Callable[[], None],
        on_lost: Callable[[], None],
        on_fault: Callable[[ServiceFaulted], None],
    ) -> None:
        self._store = store
        self._events = events
        self._tasks = tasks
        self._completer = completer
        self._policy = policy
        self._slots = slots
        self._shutdown_timeout = shutdown_timeout
        self._on_free = on_free
        self._on_lost = on_lost
        self._on_fault = on_fault
        self._runs: dict[str, _Run] = {}
        self._to_begin: list[_Run] = []
        self._slot_freed = asyncio.Event()
        self._timeouts: TimeoutQueue[_Run] = TimeoutQueue(self._time_out)
        self._closed = False

    @property
    def free(self) -> int:
        """Slots that are not taken."""
        return max(self._slots - len(self._runs), 0)

    def held(self) -> dict[str, int]:
        """What runs now: attempts by job id."""
        return {run.claim.job_id: run.claim.attempt for run in list(self._runs.values())}  # by any thread

    def ended(self) -> dict[str, int]:
        """What has ended and is not written yet: its rows need their lease as much."""
        return self._completer.unwritten()

    def claim_of(self, task: asyncio.Task[Any]) -> Claim | None:
        """The try that a task is, if it is one; a run that starts eagerly does not know its task yet."""
        _, is_job, job_id = task.get_name().partition(TASK_NAME)
        run = self._runs.get(job_id) if is_job else None
        return run.claim if run else None

    def submit(self, claim: Claim) -> asyncio.Task[None]:
        """Start a claimed job."""
        return self._begin(self._take_slot(claim))

    def submit_all(self, claims: Sequence[Claim]) -> None:
        """Give claimed jobs their slots, and start them as soon as the caller waits for something."""
        if not self._to_begin:
            asyncio.get_running_loop().call_soon(self._begin_all)
        self._to_begin += [self._take_slot(claim) for claim in claims]

    def _take_slot(self, claim: Claim) -> _Run:
        if old := self._runs.get(claim.job_id):  # taken away and ours again before we noticed
            self.cancel(claim.job_id, old.claim.attempt, by_caller=False)
        self._runs[claim.job_id] = run = _Run(claim)
        return run

    def _begin_all(self) -> None:
        runs, self._to_begin = self._to_begin, []
        for run in runs:
            self._begin(run)

    def _begin(self, run: _Run) -> asyncio.Task[None]:
        run.task = start_task(self._run(run), name=TASK_NAME + run.claim.job_id)
        return run.task

    async def submit_when_free(self, claim: Claim) -> asyncio.Task[None]:
        """Start a claimed job as soon as there is a slot."""
        while not self.free and not self._closed:
            self._slot_freed.clear()
            await self._slot_freed.wait()
        if self._closed:
            raise NotRunningError(f"the Scheduler shut down before a slot was free for job {claim.job_id!r}")
        return self.submit(claim)

    def cancel(self, job_id: str, attempt: int, *, by_caller: bool) -> None:
        """Stop a job that is not ours any more; nothing is written for it."""
        run = self._runs.get(job_id)
        if run and run.claim.attempt == attempt and run.stop is None:
            about = (job_id, run.claim.job_name, attempt)
            self._stop(run, JobCancelled(*about, reason=BY_CALLER) if by_caller else JobLost(*about))

    def cancel_all(self) -> None:
        """Stop everything: the lease is lost."""
        for job_id, attempt in self.held().items():
            self.cancel(job_id, attempt, by_caller=False)

    async def start(self) -> None:
        """Nothing has to be there."""

    async def stop(self) -> None:
        """Let what runs end within the shutdown timeout, then interrupt the rest and hand it back."""
        self._closed = True
        self._slot_freed.set()
        self._begin_all()
        tasks = [run.task for run in self._runs.values() if run.task]
        if tasks:
            _, pending = await asyncio.wait(tasks, timeout=self._shutdown_timeout)
            for run in list(self._runs.values()):
                if run.stop is None:
                    self._stop(run, InterruptResult)
            if pending:
                await asyncio.wait(pending, timeout=GOODBYE)
        # A job that fights its cancellation is handed back all the same: the fence refuses its result.
        for run in list(self._runs.values()):
            if run.stop is InterruptResult:
                del self._runs[run.claim.job_id]
                self._complete(run.claim, InterruptResult())
        self._timeouts.close()

    def _stop(self, run: _Run, why: type[InterruptResult] | JobEvent) -> None:
        run.stop = why
        if run.task and run.begun:  # a task that is cancelled before its first step would not clean up
            run.task.cancel()

    async def _run(self, run: _Run) -> None:
        run.begun = True
        try:
            try:
                if run.stop is not None:
                    result: Result = InterruptResult()
                elif (key := run.claim.lock_key) is None:
                    result = await self._attempt(run)
                else:
                    result = await self._attempt_under_lock(run, key)
            except asyncio.CancelledError as error:
                result = self._cancelled(run, error)
            await self._end(run, result)
        except (asyncio.CancelledError, GeneratorExit):  # all ends, the event loop perhaps too
            raise
        except BaseException as error:  # ours: what a job raises is a result
            fault = ServiceFaulted("executor", error)
            self._on_fault(fault)
            self._events.publish(fault)
            raise

    async def _end(self, run: _Run, result: Result) -> None:
        job_id = run.claim.job_id
        if run.stop is not None:
            if isinstance(run.stop, JobEvent):
                self._events.publish(run.stop)
            elif isinstance(result, ErrorResult):
                result = InterruptResult()  # how it takes the interruption is not held against it
        if self._runs.get(job_id) is not run:
            return  # it fought its cancellation too long and was handed back, or a new try took its place
        was_full = len(self._runs) >= self._slots
        del self._runs[job_id]
        if isinstance(run.stop, JobLost):
            self._on_lost()
        try:
            if not isinstance(run.stop, JobEvent):
                self._complete(run.claim, result)
                if self._completer.is_full:
                    await self._completer.room()
        finally:
            self._slot_freed.set()
            if was_full:
                self._on_free()

    def _cancelled(self, run: _Run, error: asyncio.CancelledError) -> Result:
        if run.timed_out and run.stop is None:
            seconds = run.claim.timeout_seconds
            return ErrorResult(TimeoutError(f"the job ran longer than its timeout of {seconds:g} seconds"))
        # If not by us, then perhaps by somebody who cancels all tasks, as asyncio.run() does at its end.
        if run.stop is not None or self._completer.is_cancelled:
            return InterruptResult()
        return ErrorResult(error)  # the job cancelled itself, or let the cancellation of something through

    @staticmethod
    def _time_out(run: _Run) -> None:
        run.timed_out = True
        if run.task:
            run.task.cancel()

    async def _attempt_under_lock(self, run: _Run, key: int) -> Result:
        result: Result | None = None
        try:
            async with self._store.advisory_lock(key) as taken:
                result = await self._attempt(run) if taken else SkippedResult(LOCK_TAKEN)
        except DatabaseUnavailableError:
            # Not taken: the job has not run, so nothing counts. Or not given back: then it is gone anyway.
            return result or InterruptResult()
        except ConfigurationError as error:  # no lock can be had here at all
            return UnrunnableResult(error)
        return result

    async def _attempt(self, run: _Run) -> Result:
        claim = run.claim
        task = self._tasks.resolve(claim.function)
        if task is None:
            return UnrunnableResult(
                LookupError(f"no function is registered here under the name {claim.function!r}")
            )
        try:
            args, kwargs = decode(claim.task_data)
        except PayloadError as error:
            return UnrunnableResult(error)
        current.set((claim, time.time()))
        if self._events.wants(JobStarted):
            self._events.publish(
                JobStarted(claim.job_id, claim.job_name, claim.attempt, execution_time=claim.execution_time)
            )
        seconds = claim.timeout_seconds
        if seconds is not None:
            self._timeouts.add(run, seconds)
        try:
            await task.func(*args, **kwargs)
        except (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - user code; sys.exit() and the like end the job only
            return ErrorResult(error)
        finally:
            if seconds is not None:
                self._timeouts.remove(run, seconds)
        return _RETURNED

    def _complete(self, claim: Claim, result: Result) -> None:
        if result is _RETURNED:
            self._completer.put_completed(claim)
        else:
            spread = random.uniform(-1, 1)  # noqa: S311 - jitter, no secret
            self._completer.put(claim, decide(claim, result, self._policy, spread=spread))
