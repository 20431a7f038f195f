"""Suspend an attempt while its job waits: find out when all of its code waits, and what has ended meanwhile.

A suspension is an outcome. When all code of the attempt waits for steps, its task is cancelled, and the
coroutine ends. Only then the row changes, in the batch of the other outcomes, so attempts never overlap.
Until then a step that ends continues the call that waits for it.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context, ContextVar
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias
from weakref import WeakSet

from pg_scheduler.base.foreign import current_task
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.events.background import start_in_background
from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.jobs.step_values import CHILD, NO_TIMEOUT, StoredStep
from pg_scheduler.jobs.steps import Suspension
from pg_scheduler.steps.statements import StepRepository
from pg_scheduler.worker.in_flight import Attempt
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.waiting import (
    OWN_TASK_PREFIX,
    StandsStill,
    describe_task,
    tasks_by_attempt,
    thread_waits,
    waits_for_steps,
)

MIN_PAUSE_S: Final = 0.001
MAX_PAUSE_S: Final = 0.25
"""The shortest and the longest pause between two looks whether all code of an attempt waits."""

LOOK_INTERVAL_S: Final = 1.0
"""Seconds between two looks for the ends of steps for which an attempt waits in memory."""

Refresh: TypeAlias = Callable[[Sequence[StoredStep], Collection[str]], None]
"""Replaces those of the loaded steps whose names are given."""

calling_thread: Final[ContextVar[threading.Thread]] = ContextVar("pg_scheduler_calling_thread")
"""The thread that calls a step from outside of the event loop."""


def caller() -> object:
    """Return the thread that calls a step, if the job runs in a thread; else the task that calls it."""
    return calling_thread.get(None) or current_task()


class WaitingCall(NamedTuple):
    """A call that waits for steps, and the task or thread that made it.

    Attributes:
        since: When it began, by the clock of the event loop.
    """

    suspensions: tuple[Suspension, ...]
    caller: object
    since: float


class AttemptWaits:
    """The calls of one attempt that wait for steps.

    Attributes:
        suspensions: What the suspended attempt waits for, the earliest end first; empty if it is not
            suspended.
    """

    def __init__(self, node: Node, steps: StepRepository, attempt: Attempt, refresh: Refresh) -> None:
        self._repository = steps
        self._pass = node.suspensions
        self._child_waits = node.child_waits
        self._attempt = attempt
        self._claim = attempt.claim
        self._refresh = refresh
        self.suspensions: tuple[Suspension, ...] = ()
        # The calls that wait, by the futures that end their waits.
        self._calls: dict[asyncio.Future[None], WaitingCall] = {}
        # The threads that have called steps.
        self._threads = WeakSet[threading.Thread]()
        # Each returns whether a task only waits for other tasks, although Python does not know which.
        self._standing: list[StandsStill] = []
        # The number of blocks of progressing() that are open.
        self._in_progress = 0
        # Whether other code of the attempt was found at work, which keeps the attempt in memory.
        self._is_kept = False
        self._is_closed = False
        self._timer: asyncio.Handle | None = None
        self._pause_s = MIN_PAUSE_S
        # When to look for the ends of steps, by the clock of the event loop.
        self._look_at = math.inf
        self._looking: asyncio.Task[None] | None = None

    def note_thread(self) -> None:
        """Note the thread that calls a step, if one does: the attempt is not suspended while it works."""
        if (thread := calling_thread.get(None)) is not None:
            self._threads.add(thread)

    def close(self) -> None:
        """Cancel the calls that wait: the attempt has ended."""
        self._is_closed = True
        self._set_timer(None)
        self._release()

    @contextmanager
    def standing_still(self, stands_still: StandsStill) -> Iterator[None]:
        """Let tasks of a library count as waiting within the block, although they wait for no step.

        A library may coordinate its tasks by events, and Python does not know who sets an event. Such a task
        does no work, so it does not keep the attempt in memory. What the tasks that do work wait for is found
        out as everywhere.

        Args:
            stands_still: Returns whether a task is one of these.
        """
        self._standing.append(stands_still)
        try:
            yield
        finally:
            self._standing.remove(stands_still)

    def _waits(self, task: asyncio.Task[Any]) -> bool:
        """Return whether a task waits for steps only, or stands still until steps have ended."""
        return waits_for_steps(task, self._calls, self._standing)

    @contextmanager
    def progressing(self) -> Iterator[None]:
        """Delay suspensions until the end of the block."""
        self._in_progress += 1
        try:
            yield
        finally:
            self._in_progress -= 1
            self._look_soon()

    async def until_one_ends(self, steps: Sequence[StoredStep]) -> None:
        """Wait until one of several steps may have ended. A suspension of the attempt cancels the wait."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        suspensions = tuple(_suspension(step) for step in steps)
        self._calls[waiter] = WaitingCall(suspensions, caller(), loop.time())
        self._is_kept = False
        # The first look for ends comes when the earliest of these times is over, or after `LOOK_INTERVAL_S`
        # if that is sooner. Without such a time, it comes at once.
        times_left_s = [step.left_s for step in steps if step.kind != CHILD and step.left_s is not None]
        left_s = min(times_left_s, default=0)
        delay_s = min(max(left_s, MIN_PAUSE_S), LOOK_INTERVAL_S)
        self._look_at = min(self._look_at, loop.time() + delay_s)
        self._look_soon()
        try:
            await waiter
        finally:
            del self._calls[waiter]
            self._child_waits.discard(self.key)

    def _release(self) -> None:
        """Cancel the calls that wait."""
        for waiter in self._calls:
            waiter.cancel()

    @property
    def _may_end(self) -> bool:
        """Whether the attempt may be suspended: some of its code waits, and no step is in progress."""
        if self._in_progress or self.suspensions or self._is_closed:
            return False
        return bool(self._calls)

    def _look_soon(self) -> None:
        """Look whether all code waits, as soon as what runs now has come to its next wait."""
        self._pause_s = MIN_PAUSE_S
        if self._calls:
            self._set_timer(asyncio.get_running_loop().call_soon(self._look, context=Context()))

    def _set_timer(self, timer: asyncio.Handle | None) -> None:
        """Plan the next look, and cancel the one that was planned before; None plans no other one."""
        previous_timer, self._timer = self._timer, timer
        if previous_timer is not None:
            previous_timer.cancel()

    def _look(self) -> None:
        """Suspend the attempt if all of its code waits; else find out what has ended, and look later."""
        if not self._calls or self.suspensions or self._is_closed:
            return
        runs_in_loop = not self._attempt.runs_in_executor
        if self._may_end and runs_in_loop and self._function_waits():
            # Other tasks of the attempt may be at work. To list tasks is expensive, so one pass does it for
            # all attempts, and calls decide() of each with its tasks.
            self._pass.request(self)
        elif self._may_end and not runs_in_loop and self._all_threads_wait():
            self._suspend()
            return
        else:
            # Other code of the attempt is at work, which keeps the attempt in memory.
            self._is_kept = True
        loop = asyncio.get_running_loop()
        self._set_timer(loop.call_later(self._pause_s, self._look, context=Context()))
        self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)
        if loop.time() >= self._look_at and self._looking is None:
            # A job that waits in memory has a slot, which its children may need. If this lasts, a warning may
            # be due.
            if self._is_kept and self._has_awaited_children(loop.time() - LOOK_INTERVAL_S):
                self._child_waits.add(self.key, self._claim)
            self._looking = start_in_background(self._find_ends(), f"{OWN_TASK_PREFIX}waits", Context())

    def _has_awaited_children(self, since: float) -> bool:
        """Return whether a call has waited for children since this instant of the loop's clock, or longer."""
        early_calls = [call for call in self._calls.values() if call.since <= since]
        return any(suspension.kind == CHILD for call in early_calls for suspension in call.suspensions)

    @property
    def key(self) -> int:
        """What identifies the attempt among those of this process. See `Waiting`."""
        return id(self._attempt)

    def decide(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        """Suspend the attempt if all of its tasks, which are given, wait for steps. See `Waiting`."""
        # The state may have changed between the request and the pass, so it is checked again.
        if self._may_end and all(map(self._waits, tasks)):
            self._suspend()
        else:
            # A task of the attempt is at work, which keeps the attempt in memory.
            self._is_kept = True

    def suspend_at_timeout(self) -> bool:
        """Suspend the attempt, whose timeout is over, if its function only waits; return whether it did so.

        The function itself must wait for steps. Its other tasks or threads may work, and a warning names
        them.
        """
        if not self._may_end:
            return False
        if self._attempt.runs_in_executor:
            call = self._attempt.call
            function_thread = None if call is None else call.thread
            if function_thread is None or not thread_waits(function_thread, self._waiting_threads()):
                return False
            descriptions = [
                repr(thread.name)
                for thread in self._threads
                if thread is not function_thread and thread.is_alive()
            ]
        else:
            if not self._function_waits():
                return False
            tasks = tasks_by_attempt(asyncio.get_running_loop())[self.key]
            descriptions = [describe_task(task) for task in tasks if not self._waits(task)]
        claim = self._claim
        logger.warning(
            "job %s (id %s, attempt %s) is suspended at its timeout, since its function only waits; these "
            "tasks or threads that it has begun were at work, which kept it in memory: %s; let the job await "
            "or cancel them before it waits",
            claim.job_name,
            claim.job_id,
            claim.attempt,
            ", ".join(descriptions) or "unknown",
            extra=record_fields(job_id=claim.job_id, job_name=claim.job_name, attempt=claim.attempt),
        )
        self._suspend()
        return True

    def _function_waits(self) -> bool:
        """Return whether the task that runs the function of the job waits for steps only."""
        task = self._attempt.task
        return task is not None and self._waits(task)

    def _waiting_threads(self) -> set[threading.Thread]:
        """Return the threads whose calls of steps wait."""
        callers = (call.caller for call in self._calls.values())
        return {caller for caller in callers if isinstance(caller, threading.Thread)}

    def _all_threads_wait(self) -> bool:
        """Return whether the threads in which code of the attempt runs all wait for steps."""
        call = self._attempt.call
        # There is no thread before the executor has begun to run the function.
        function_thread = None if call is None else call.thread
        waiting = self._waiting_threads()
        threads = set(self._threads)
        if function_thread:
            threads.add(function_thread)
        return all(thread_waits(thread, waiting) for thread in threads)

    def _suspend(self) -> None:
        """Note what the attempt waits for, and cancel its code."""
        suspensions = {suspension for call in self._calls.values() for suspension in call.suspensions}
        self.suspensions = tuple(sorted(suspensions, key=attrgetter("until", "kind", "name")))
        self._set_timer(None)
        self._attempt.interrupt()
        # Code in a thread cannot be cancelled. It waits for these calls, so they are cancelled instead.
        if self._attempt.is_unstoppable:
            self._release()

    async def _find_ends(self) -> None:
        """Let those calls continue whose steps have ended, while other code keeps the attempt in memory."""
        try:
            steps = await self._repository.load(self._claim.job_id)
        except DatabaseUnavailableError:
            return
        finally:
            self._looking = None
            self._look_at = asyncio.get_running_loop().time() + LOOK_INTERVAL_S
        names = {suspension.name for call in self._calls.values() for suspension in call.suspensions}
        self._refresh(steps, names)
        ended_names = {step.name for step in steps if _may_continue(step)}
        for waiter, call in self._calls.items():
            awaited_names = {suspension.name for suspension in call.suspensions}
            if not waiter.done() and ended_names & awaited_names:
                waiter.set_result(None)
                self._set_timer(None)
        self._look_soon()


def _suspension(step: StoredStep) -> Suspension:
    """Return how long a step suspends its job: until a time, or for children without a timeout."""
    assert step.until is not None  # noqa: S101 - of every step that waits
    # The ends of the children wake the job, whatever the row of the step has.
    return Suspension(step.kind, step.name, NO_TIMEOUT if step.kind == CHILD else step.until)


def _may_continue(step: StoredStep) -> bool:
    """Return whether a step that waited has ended, or has nothing left to wait for.

    The time of the step may be over, or its children may be lost.
    """
    if step.has_ended:
        return True
    if step.kind == CHILD:
        return not step.is_awaited
    return step.left_s is not None and step.left_s <= 0
