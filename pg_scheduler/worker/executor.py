"""Give claimed jobs slots and tasks, and pass on how their attempts ended.

The life of an attempt, in the order of its methods:

1. ``take_slot()`` makes its record, an `Attempt`, which lives until the outcome is handed over.
2. ``_begin()`` makes its task, which is ``_run()``.
3. ``AttemptRunner.run()`` finds the function, decodes the arguments, makes the attempt the current job,
   and calls the function. It returns a result: how the code ended.
4. ``_run()`` replaces the result if the attempt suspended itself, or if a step raised SystemExit.
5. ``_end()`` frees the slot, and drops the result if the row belongs to another worker by now.
6. ``_put()`` decides the outcome, which is the change of the row, and hands it over to the completer.

An attempt can be revoked for three reasons. At shutdown the job is released. If a caller cancelled the job,
or it was lost, its row is no longer this worker's: the task is cancelled and its outcome is dropped. Only its
end is reported, if consequences of the job wait for this end.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from pg_scheduler.base.fork import inheritance
from pg_scheduler.base.status import JobStatus
from pg_scheduler.errors import NotRunningError
from pg_scheduler.events import (
    JobCancelled,
    JobLost,
    ServiceFaulted,
)
from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.events.types import BY_CALLER
from pg_scheduler.jobs.executors import PROCESS
from pg_scheduler.jobs.history import kept_lines, kept_log, note_step, step_of
from pg_scheduler.jobs.outcome import (
    NOT_RETRIED,
    REVOKED,
    CrashResult,
    ErrorResult,
    InterruptResult,
    Outcome,
    Result,
    ReturnResult,
    SuspendResult,
    UnrunnableResult,
    decide,
    lacks_retries,
)
from pg_scheduler.jobs.result import keep_seconds
from pg_scheduler.jobs.retry import RetryPolicy
from pg_scheduler.jobs.rows import Claim
from pg_scheduler.jobs.sequences import has_place
from pg_scheduler.jobs.step_values import version_of
from pg_scheduler.jobs.task import Task
from pg_scheduler.worker.attempt_runner import RETURNED, AttemptRunner, stopped_result
from pg_scheduler.worker.completer import Completer
from pg_scheduler.worker.in_flight import (
    TASK_NAME_PREFIX,
    Attempt,
    Completion,
    End,
    GatheredJobs,
    OpenSteps,
    Revocation,
)
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.progress_writer import ProgressWriter
from pg_scheduler.worker.stuck_threads import StuckThreads

LOOP_ENDED: Final = "the event loop of the worker ended, or all of its tasks were cancelled"
"""The reason of a crash without the death of a process."""

OPEN_BLOCK: Final = (
    "the function returned before its block of completing() had ended, so the block completes nothing; await "
    "the task that opened it, and run the loop of a generator that has it to the end"
)

KILL_MARGIN_S: Final = 0.5
"""Seconds after ``stop_grace`` in which the attempts of killed processes end."""


class Executor:
    """The slots of a worker, and the attempts in them.

    Attributes:
        chunks: The chunks in which attempts wait.
        has_jitter: Whether the jitter of retry policies applies. The test kit turns it off.
        expected: The free slots for which jobs are being claimed now.
    """

    def __init__(self, node: Node, completer: Completer, progress: ProgressWriter) -> None:
        config = node.config
        self._stuck_threads = StuckThreads(config.max_stuck_threads, self._signal_free_slot)
        self._runner = AttemptRunner(node, progress, self._stuck_threads, self)
        self.chunks: Final = self._runner.chunks
        # A process that claims no other jobs, as for "jobs run --here", does not wait for any.
        if not config.runs_jobs:
            self.chunks.longest_wait_s = 0.0
        self._events = node.events
        self._tasks = node.tasks
        self._result_buffer = node.result_buffer
        self._completer = completer
        self._progress = progress
        self.in_flight = node.in_flight
        self._policy = node.retry_policy
        self._slots = config.max_concurrent_jobs
        self._shutdown_timeout = config.shutdown_timeout
        self._shutdown_timer: asyncio.Timeout | None = None
        self._max_result_bytes = config.max_result_bytes
        self._codec = node.store.statements.codec
        self._stop_grace = config.stop_grace
        self._max_crashes = config.max_crashes
        self._call_timeout = node.store.statements.call_timeout_s
        self._signals = node.signals
        self._meter = node.meter
        self._attempts = node.in_flight.attempts
        self._submitted: list[Attempt] = []
        self._slot_freed = asyncio.Event()
        self._is_closed = False
        # The tasks, by identity, of which a job has failed with a hint.
        self._hinted: set[str] = set()
        self.has_jitter = True
        self.expected = 0

    @property
    def free(self) -> int:
        """The number of free slots."""
        return max(self._slots - self._taken, 0)

    @property
    def _taken(self) -> int:
        """The number of slots that are taken. A stuck thread that was replaced has none.

        Attempts that wait in a chunk have none either, but each chunk whose function is to be called has one.
        """
        used_slots = len(self._attempts) + self.chunks.balance
        replaced = self._stuck_threads.replaced
        # A newer attempt of the same job may have the place of an older one, which counts no more then.
        return used_slots - (sum(map(self._keeps_slot, replaced)) if replaced else 0)

    @property
    def is_full(self) -> bool:
        """Whether no slot is free."""
        return self._taken >= self._slots

    @property
    def has_slot_for_chunk(self) -> bool:
        """Whether a slot is free for the next chunk whose function is to be called.

        Claims leave free the slots for which chunks wait, so none of these counts here. But the jobs of a
        claim that is under way get the slots that were free when it began.
        """
        return self._taken - self.chunks.queued + self.expected < self._slots

    @property
    def room(self) -> int:
        """The number of jobs that may be claimed: none while too many outcomes wait to be written."""
        return 0 if self._result_buffer.is_full else self.free

    def expect_fewer(self, count: int) -> None:
        """Expect fewer jobs: a claim for so many slots has ended, and its jobs take theirs now."""
        self.expected -= count
        # The caller gives its jobs their slots without awaiting anything before, and so before this callback.
        if self.chunks.queued:
            asyncio.get_running_loop().call_soon(self.chunks.call_queued)

    def submit(self, claim: Claim) -> asyncio.Task[None]:
        """Start a claimed job, even if no slot is free; return the task that runs it."""
        return self.begin(self.take_slot(claim))

    def submit_all(self, claims: Sequence[Claim], *, soon: bool = False) -> None:
        """Start claimed jobs, even if no slots are free.

        Args:
            claims: The jobs.
            soon: Whether they only get slots now, and start as soon as the caller awaits something.
        """
        # The durations of a sample of the attempts are measured. A weight is the number of attempts that one
        # measured attempt stands for in the statistics; 0 for an attempt that is not measured.
        weights = [0] * len(claims) if self._meter is None else self._meter.record_starts(claims)
        attempts = [self.take_slot(claim, weight) for claim, weight in zip(claims, weights, strict=True)]
        if soon:
            # One callback begins all attempts that are submitted before it runs.
            if not self._submitted:
                asyncio.get_running_loop().call_soon(self._begin_all)
            self._submitted += attempts
        else:
            for attempt in attempts:
                self._begin(attempt)

    def begin(self, attempt: Attempt) -> asyncio.Task[None]:
        """Start a claimed job that has a slot; return the task that runs it."""
        if self._meter is not None:
            # The number of attempts that this one stands for in the statistics of durations.
            [attempt.measured_for] = self._meter.record_starts((attempt.claim,))
        return self._begin(attempt)

    async def refuse(self, attempt: Attempt, error: Exception) -> None:
        """End an attempt that cannot run: its job fails, without retries."""
        await self._end(attempt, UnrunnableResult(error))

    def withdraw(self, attempt: Attempt) -> bool:
        """Free the slot of an attempt whose outcome is not to be written; return whether it had a slot."""
        if not self._has_slot(attempt):
            return False  # a newer attempt of the same job has taken its place
        was_full = self.is_full
        del self._attempts[attempt.claim.job_id]
        self._free_slot(attempt, was_full=was_full)
        return True

    def take_slot(self, claim: Claim, measured_for: int = 0) -> Attempt:
        """Reserve a slot for a claimed job, and return the attempt that runs it there.

        ``measured_for`` is how many attempts its duration stands for in the statistics; 0 if it is not
        measured.
        """
        # If there is an older attempt of the job, this worker lost the job and has claimed it again, before a
        # heartbeat noticed the loss.
        if older_attempt := self._attempts.get(claim.job_id):
            self.chunks.rise(older_attempt)
            if older_attempt.end is None:
                older_attempt.revoke(Revocation.LOST)
            else:
                # Its code has written the end of the job by completing(), and continues.
                self.in_flight.outlived.add(older_attempt)
        self._attempts[claim.job_id] = attempt = Attempt(claim, measured_for)
        return attempt

    def _begin_all(self) -> None:
        """Start the attempts that were submitted to start soon."""
        attempts, self._submitted = self._submitted, []
        for attempt in attempts:
            self._begin(attempt)

    def _begin(self, attempt: Attempt) -> asyncio.Task[None]:
        """Create the task of an attempt, eagerly on Python 3.12 and later.

        An eager task runs up to its first suspension within this call, so a job that never suspends ends
        without an iteration of the event loop. If the application has set a task factory, that creates it.
        """
        name = TASK_NAME_PREFIX + attempt.claim.job_id
        loop = asyncio.get_running_loop()
        if sys.version_info >= (3, 12) and loop.get_task_factory() is None:
            attempt.task = asyncio.Task(self._run(attempt), loop=loop, name=name, eager_start=True)
        else:
            attempt.task = loop.create_task(self._run(attempt), name=name)
        return attempt.task

    async def submit_when_free(self, claim: Claim) -> asyncio.Task[None]:
        """Start a claimed job as soon as a slot is free."""
        # Others may take the slot before this continues, so the number is read again after each wait.
        while not self.free and not self._is_closed:
            self._slot_freed.clear()
            await self._slot_freed.wait()
        if self._is_closed:
            raise NotRunningError(
                f"job {claim.job_id!r} not started: the Scheduler shut down before a slot was free"
            )
        return self.submit(claim)

    async def start(self) -> None:
        """Let processes that jobs fork end when they return to the event loop; jobs are submitted later."""
        inheritance.leave_in_children(asyncio.get_running_loop())

    async def stop(self) -> None:
        """Wait for running jobs until the shutdown timeout, then cancel and release the rest."""
        self._is_closed = True
        # submit_when_free() waits for this event, and raises an error now.
        self._slot_freed.set()
        # Attempts that were to begin soon begin now, so that they have tasks.
        self._begin_all()
        self.chunks.close()
        attempts = [*self._attempts.values(), *self.in_flight.outlived]
        tasks = [attempt.task for attempt in attempts if attempt.task]
        if tasks or self.chunks.calls():
            await self._wait(tasks)
            # Attempts that have ended are not affected.
            self.in_flight.revoke_all(Revocation.SHUTDOWN)
            self.chunks.cancel_settled()
            if pending := self._unfinished(tasks):
                grace = self._stop_grace + KILL_MARGIN_S
                # While an attempt writes its completion, it is interrupted only at the deadline of the write.
                if any(attempt.end is End.WRITING for attempt in attempts):
                    grace += self._call_timeout
                await asyncio.wait(pending, timeout=grace)
        self.chunks.is_over = True
        # Another worker must not run a job whose code still runs here, in a thread or because the code
        # ignores its cancellation. So the job of such an attempt is not released.
        for attempt in list(self._attempts.values()):
            # The task of such an attempt waits for its thread, which runs on. So the task is ended alone.
            if attempt.task and attempt.is_unstoppable:
                attempt.task.cancel()
                await asyncio.wait([attempt.task], timeout=KILL_MARGIN_S)
            if attempt.runs_on:
                self._leave_running(attempt)
            # The attempt has not begun, or its task ended without an outcome, so the job is released here.
            elif attempt.revocation is Revocation.SHUTDOWN and self._has_slot(attempt):
                del self._attempts[attempt.claim.job_id]
                self._put(attempt.claim, InterruptResult())
        await self._runner.stop()

    def _leave_running(self, attempt: Attempt) -> None:
        """Leave an attempt in flight whose code runs on after the shutdown, and log that it does."""
        self.in_flight.leave_running(attempt)
        # An attempt that cannot be stopped is in a thread, which ThreadAbandoned reports.
        if not attempt.is_unstoppable:
            claim = attempt.claim
            logger.warning(
                "job %s (id %s, attempt %s) ignores its cancellation; other workers get it when it ends, "
                "or this process",
                claim.job_name,
                claim.job_id,
                claim.attempt,
                extra=record_fields(job_id=claim.job_id, job_name=claim.job_name, attempt=claim.attempt),
            )

    def _has_slot(self, attempt: Attempt) -> bool:
        """Return whether an attempt has the slot of its job, and not a newer attempt of the same job."""
        return self._attempts.get(attempt.claim.job_id) is attempt

    def _keeps_slot(self, replaced: Attempt | GatheredJobs) -> bool:
        """Return whether the slot of a stuck thread is counted, so that it is to be subtracted."""
        return isinstance(replaced, GatheredJobs) or self._has_slot(replaced)

    def hurry(self) -> None:
        """Give running jobs no more time to finish at shutdown: a shutdown in progress cancels them now."""
        self._shutdown_timeout = 0
        if self._shutdown_timer is not None:
            self._shutdown_timer.reschedule(asyncio.get_running_loop().time())

    async def _wait(self, tasks: Collection[asyncio.Task[None]]) -> None:
        """Wait until attempts and calls of chunks have finished, at most until the shutdown timeout.

        ``tasks`` are those of the attempts.
        """
        # hurry() may end the timeout early, while this waits.
        try:
            async with asyncio.timeout(self._shutdown_timeout) as self._shutdown_timer:
                # The call of a chunk may begin meanwhile, and outlast the attempts of its jobs.
                while unfinished := self._unfinished(tasks):
                    await asyncio.wait(unfinished)
        except TimeoutError:
            pass
        finally:
            self._shutdown_timer = None

    def _unfinished(self, tasks: Collection[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
        """Return those of these tasks that have not finished, and the tasks of the calls of chunks."""
        return {task for task in (*tasks, *self.chunks.calls()) if not task.done()}

    async def _run(self, attempt: Attempt) -> None:
        """Run an attempt, and end it with its result. This is the main function of the task of an attempt."""
        attempt.has_begun = True
        # No lines are kept unless a log handler adds them.
        if kept_log.is_used:
            attempt.log = kept_log.begin()
        try:
            try:
                if attempt.revocation is not None:
                    result: Result = InterruptResult()
                # A plain job has no options, and so neither a deadline nor an advisory lock.
                elif attempt.claim.options is None:
                    result = await self._runner.run(attempt)
                else:
                    result = await self._runner.run_with_options(attempt)
            except asyncio.CancelledError as error:
                # stop() has cancelled this task, but the thread of the attempt runs on after the shutdown. So
                # there is no outcome yet.
                if attempt.is_unstoppable:
                    self.in_flight.leave_running(attempt)
                    return
                result = self._cancellation_result(attempt, error)
            # sys.exit() and a suspension end the function by an exception. The function may have caught it,
            # and have returned a value or raised another error, which does not count.
            if attempt.exit_error is not None:
                result = ErrorResult(attempt.exit_error)
            elif attempt.steps is not None and attempt.steps.suspensions and not attempt.has_passed_deadline:
                result = SuspendResult(attempt.steps.suspensions)
            await self._end(attempt, result)
        except (asyncio.CancelledError, GeneratorExit):  # the event loop may be ending
            raise
        except BaseException as error:  # a bug: an exception of the job is a result
            self._events.publish(ServiceFaulted("executor", error))
            raise
        finally:
            # Only a call in an executor can have been reported as one that runs on.
            if attempt.call is not None:
                self._stuck_threads.remove(attempt)

    async def _end(self, attempt: Attempt, result: Result) -> None:
        """Free the slot of an attempt, and put its outcome into the result buffer if it holds its job."""
        completion = attempt.completion
        if completion is not None:
            final_result = await self._end_completion(attempt, completion, result)
            if final_result is None:
                return
            result = final_result
        job_id = attempt.claim.job_id
        revocation = attempt.revocation
        # The row of a cancelled or lost job is no longer this worker's, so it must not write the outcome.
        has_lost_row = revocation is Revocation.CANCELLED or revocation is Revocation.LOST
        if has_lost_row:
            self._events.publish(_event_of_revocation(attempt))
        # Without its slot, the attempt was left at the shutdown, or another attempt of the job replaced it.
        if not self._has_slot(attempt):
            return
        was_full = self.is_full
        del self._attempts[job_id]
        if revocation is Revocation.LOST:
            self._signals.attempt_lost()
        try:
            # Consequences of a job may wait until this attempt of it has ended. REVOKED reports that end.
            if has_lost_row and attempt.is_awaited:
                self._result_buffer.put(attempt.claim, REVOKED)
            elif not has_lost_row:
                # The result of nearly all jobs is RETURNED, so it is excluded first.
                if result is not RETURNED:
                    result = _with_evidence(attempt, result)
                self._put(attempt.claim, result, attempt.steps, apart=completion is not None)
        finally:
            self._free_slot(attempt, was_full=was_full)

    async def _end_completion(
        self, attempt: Attempt, completion: Completion, result: Result
    ) -> Result | None:
        """End an attempt whose code has opened a block of completing(), which completes the job at its end.

        Return the result that the caller has to write: what the function returned or raised, unless the block
        decides otherwise. Return None if nothing is left to write: the code has completed the job, or the job
        runs here once more. In the second case this method writes the result.
        """
        claim = attempt.claim
        if completion.end is End.WRITING and completion.find_end is None:
            # A block in another task is being written now, or commits. What becomes of it decides how the
            # job ends.
            await completion.wait_for_write()
        # The code has written the completion in a transaction of its own, so the database is asked whether
        # this was committed. If so, this sets "completion.end".
        if completion.find_end is not None:
            await completion.find_end()
        # From now on a block that is still open, in another task of the job, finds that it is too late.
        attempt.completion = None
        if completion.end is not End.WRITTEN:
            if isinstance(result, ReturnResult):
                if completion.fault is not None:
                    # If the commit has failed, the effects of the block are lost, so the job must run again.
                    result = ErrorResult(completion.fault)
                elif completion.find_end is not None:
                    # The caller has not committed, and may roll back: the completion is written once more.
                    result = ReturnResult(completion.value)
                else:
                    # The block was rolled back, or will be, so the job must run again.
                    result = ErrorResult(RuntimeError(OPEN_BLOCK))
            if attempt not in self.in_flight.outlived:
                return result
            # The job runs here once more, and the newer attempt has the place of this one. So the result of
            # this one is written apart from it.
            self._put(claim, result, apart=True)
        elif isinstance(result, ErrorResult):
            logger.error(
                "job %s (id %s, attempt %s) had completed when its function failed, so it is not repeated",
                claim.job_name,
                claim.job_id,
                claim.attempt,
                extra=record_fields(job_id=claim.job_id, job_name=claim.job_name, attempt=claim.attempt),
                exc_info=result.error,
            )
        self.in_flight.outlived.discard(attempt)
        self.withdraw(attempt)
        return None

    def _free_slot(self, attempt: Attempt, *, was_full: bool) -> None:
        """Signal what the end of an attempt makes possible, after its slot was freed.

        ``was_full`` is whether no slot was free before: then claims have stopped, and begin again.
        """
        self.note_free_slot(was_full=was_full)
        if attempt.claim is self.in_flight.crashed_claim:
            self._signals.crashed_job_ended()
        # The row of this worker may name the attempt as one that runs on. The next heartbeat corrects that.
        if attempt.stopped_at and attempt.is_abandoned:
            self._signals.heartbeat_requested()

    def note_free_slot(self, *, was_full: bool) -> None:
        """Give a free slot to a chunk that waits for one, else signal that it is free.

        ``was_full`` is whether no slot was free before: then claims have stopped, and begin again.
        """
        if self.chunks.queued:
            self.chunks.call_queued()
        self._slot_freed.set()
        if was_full:
            self._signals.slot_free()

    def _signal_free_slot(self) -> None:
        """Signal that an attempt has released its slot although its thread runs on."""
        self.note_free_slot(was_full=True)
        # The row of this worker names the attempts that run on, and whether they have slots.
        self._signals.heartbeat_requested()

    def _cancellation_result(self, attempt: Attempt, error: asyncio.CancelledError) -> Result:
        """Return the result of an attempt whose task ended by a cancellation."""
        # The library has cancelled the task.
        if attempt.has_timed_out or attempt.has_passed_deadline or attempt.revocation is not None:
            result = stopped_result(attempt)
            # If the cancellation met the function of a step, it has the name of that step. The error of the
            # timeout gets the name too, for the history of the job.
            if isinstance(result, ErrorResult) and (step := step_of(error)) is not None:
                note_step(result.error, step)
            return result
        # asyncio.run() cancels all tasks at its end, that of the completer too. The code of the job may be
        # the reason, as by sys.exit() in a task of its own. It would end each worker that gets the job, so
        # this counts as a crash.
        if self._completer.is_cancelled:
            return CrashResult(LOOP_ENDED, self._max_crashes)
        return ErrorResult(error)  # the job cancelled itself, or awaited something that was cancelled

    def _put(
        self, claim: Claim, result: Result, steps: OpenSteps | None = None, *, apart: bool = False
    ) -> None:
        """Decide the outcome of an attempt, and put it into the result buffer.

        Args:
            claim: The attempt.
            result: Its result.
            steps: Its durable steps; None if it has none.
            apart: Whether only the completer may write the outcome; see ``ResultBuffer.put()``.
        """
        has_stored = steps is not None and steps.has_stored
        # The completer writes the last progress of an attempt before its outcome.
        has_progress = bool(self._progress.reports) and self._progress.has(claim)
        apart = apart or has_stored or has_progress
        if result is RETURNED and not apart:
            # A plain completion, as of nearly all jobs, is written from the claim alone: it needs no outcome.
            if claim.options is not None and has_place(claim.options):
                self._result_buffer.put_sequenced(claim)
            else:
                self._result_buffer.put_completed(claim)
            return
        outcome = self._outcome_of(claim, result, has_stored=has_stored)
        # Only the completer deletes the steps of a job with its row. So a job that may have steps, which its
        # options show, is kept apart from the completions that a claim writes.
        apart = apart or version_of(claim.options) is not None
        self._result_buffer.put(claim, outcome, apart=apart)

    def _outcome_of(self, claim: Claim, result: Result, *, has_stored: bool) -> Outcome:
        """Return the outcome of an attempt. If the attempt stored a step, its job has all retries again."""
        task = self._tasks.resolve(claim.function)

        if isinstance(result, ReturnResult) and task is not None and task.typed is not None:
            result = _in_stored_form(claim, task, result)
        decided_claim = claim._replace(retry_count=0) if has_stored else claim
        policy = self._policy if task is None or task.retry is None else task.retry
        spread = random.uniform(-1, 1) if self.has_jitter else 0.0  # noqa: S311 - jitter, no secret
        outcome = decide(
            decided_claim,
            result,
            policy,
            spread=spread,
            max_result_bytes=self._max_result_bytes,
            codec=self._codec,
        )
        if outcome.change.status is JobStatus.FAILED and task is not None:
            outcome = self._hinted_outcome(outcome, claim, result, policy, task)
        return outcome.after_progress(claim) if has_stored else outcome

    def _hinted_outcome(
        self, outcome: Outcome, claim: Claim, result: Result, policy: RetryPolicy, task: Task
    ) -> Outcome:
        """Return the outcome of a failed job, with a hint if no retry follows because of the default.

        Only the first such job of each task has it, because the hint is about the code of the task.
        """
        if task.declares_retries or task.identity in self._hinted:
            return outcome
        if not lacks_retries(claim, result, policy):
            return outcome
        self._hinted.add(task.identity)
        return outcome.with_hint(NOT_RETRIED)


def _with_evidence(attempt: Attempt, result: Result) -> Result:
    """Return a result with the log and the trace of its attempt, for people, if the attempt failed.

    An attempt that failed during a shutdown counts as interrupted instead. Other results do not change.
    """
    if not isinstance(result, ErrorResult | CrashResult):
        return result
    if isinstance(result, ErrorResult):
        if attempt.revocation is Revocation.SHUTDOWN:
            # The interruption may have caused the error, so the job has no failed attempt because of it.
            return InterruptResult()
        if attempt.log:
            result = replace(result, log=tuple(kept_lines(attempt.log)))
    trace = None if attempt.call is None else attempt.call.trace
    return result if trace is None else replace(result, trace=trace)


def _in_stored_form(claim: Claim, task: Task, result: ReturnResult) -> ReturnResult:
    """Return the result of a typed task with its value in the form in which it is stored.

    A child process returns that form already. If the job does not keep its result, no form is needed.
    """
    if task.executor == PROCESS or keep_seconds(claim.options) is None:
        return result
    return ReturnResult(task.form_of_result(result.value))


def _event_of_revocation(attempt: Attempt) -> JobCancelled | JobLost:
    """Return the event about an attempt whose job was cancelled, or whose row belongs to another worker."""
    event_args = (attempt.claim.job_id, attempt.claim.job_name, attempt.claim.attempt)
    if attempt.revocation is Revocation.CANCELLED:
        return JobCancelled(*event_args, reason=BY_CALLER)
    return JobLost(*event_args)
