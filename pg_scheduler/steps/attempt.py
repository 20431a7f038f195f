"""The durable steps of an attempt, as the code of the job calls them.

`LoadedSteps` has the steps that are stored, `CallersTransactions` those that transactions of the caller will
store, and `AttemptWaits` suspends the attempt while its job waits. This module decides what each call does
with these three, and stores steps under the fencing token of the attempt.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from contextvars import Context, ContextVar
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, ClassVar, Final, ParamSpec, TypeVar, overload

from pg_scheduler.base.foreign import current_task, is_a, is_ctrl_c
from pg_scheduler.base.text.numbers import counted
from pg_scheduler.database.session import Connection, open_transaction_of
from pg_scheduler.database.statements import Transaction
from pg_scheduler.errors import (
    DuplicateStepError,
    JobLostError,
    JobResult,
    PayloadError,
    SchedulerError,
    StepFailedError,
)
from pg_scheduler.events.background import start_in_background
from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.jobs.history import note_step
from pg_scheduler.jobs.model import UNSET, Call, Unset
from pg_scheduler.jobs.outcome import describe, is_retryable, retry_delay
from pg_scheduler.jobs.payload import value_from
from pg_scheduler.jobs.retry import DEFAULT_RETRY_POLICY, Abort, RetryPolicy, may_repeat, reason_of
from pg_scheduler.jobs.step_retries import (
    IN_PLACE_WAIT_S,
    StepError,
    StepFailures,
    StepRules,
    cause_of_failure,
    failures_from,
    shortened,
)
from pg_scheduler.jobs.step_values import (
    CHILD,
    CURSOR,
    DETACHED,
    FIRST,
    NO_TIMEOUT,
    RETRY,
    SIGNAL,
    SLEEP,
    STEP,
    ReturnType,
    SignalType,
    StoredStep,
    check_step_function,
    check_step_name,
    described_signal,
    message_name,
    row_of_retries,
    shown_name,
    step_text,
    step_value,
    version_of,
)
from pg_scheduler.jobs.steps import Child, First, Sleep, StepCursor, Suspension, Wait, check_waits
from pg_scheduler.jobs.validation import check_delay, check_execution_time
from pg_scheduler.queue.passed_results import RESULTS_AT_ONCE
from pg_scheduler.steps.callers_transactions import CallersTransactions
from pg_scheduler.steps.child_jobs import ChildEnqueuer
from pg_scheduler.steps.children import ChildJob, Children
from pg_scheduler.steps.loaded import LoadedSteps
from pg_scheduler.steps.statements import StepRepository
from pg_scheduler.steps.waits import AttemptWaits, calling_thread
from pg_scheduler.worker.in_flight import Attempt, OpenSteps
from pg_scheduler.worker.lease import persistently
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.waiting import OWN_TASK_PREFIX, StandsStill

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

CURSOR_GAP_S: Final = 1.0
"""Seconds between two writes of a cursor."""


@dataclass(slots=True)
class StepCall:
    """A call of the function of a step. Tasks that the function has begun have it too, and may outlive it."""

    step: str
    is_running: bool = True


_called_by: Final[ContextVar[StepCall]] = ContextVar("pg_scheduler_step")
"""The call of a step's function in whose context this code runs."""


@dataclass(frozen=True)
class PendingWait:
    """A sleep, a signal or children that code of an attempt waits for."""

    name: str
    kind: str
    find: Callable[[], Awaitable[StoredStep]]
    """Stores the step if it is new, and returns it."""
    value_of: Callable[[StoredStep], Awaitable[Any]]
    """Returns the value of the step, which has ended."""
    snapshots: list[StoredStep] = field(default_factory=list)
    """The step as the last ``update()`` found it; empty before the first one."""

    @property
    def stored(self) -> StoredStep:
        """The step as it was seen last."""
        return self.snapshots[-1]

    async def update(self) -> None:
        """Find out whether the step has ended. The first update stores the step if it is new."""
        step = await self.find()
        # This dataclass is frozen, so the snapshot takes the place of the one before it in the list.
        self.snapshots[:] = [step]

    async def value(self) -> Any:
        """Return the value of the step, or raise its error, such as a timeout or the failure of a child."""
        return await self.value_of(self.stored)


class AttemptSteps(OpenSteps):
    """The durable steps of one attempt."""

    in_place_wait_s: ClassVar[float] = IN_PLACE_WAIT_S
    """The longest wait before an attempt of a step for which this attempt of the job stays in memory."""

    def __init__(
        self, steps: StepRepository, child_enqueuer: ChildEnqueuer, node: Node, attempt: Attempt
    ) -> None:
        claim = attempt.claim
        self._repository = steps
        self._results = node.store.results
        self._passed = node.store.passed_results
        self._connections = node.store.connections
        self._children = Children(node, steps, child_enqueuer)
        self._statements = node.store.statements
        self._codec = node.store.statements.codec
        self._max_value_bytes = node.config.max_result_bytes
        self._worker_id = node.worker_id
        self._lease = node.lease
        self._attempt = attempt
        self._claim = claim
        task = node.tasks.resolve(claim.function)
        # The mark is the version of the task when the job stored its first step. It is 0 while only others
        # have stored anything for the job, such as a signal, and None if nothing was stored for it. In both
        # of these cases the version that the task has now counts.
        mark = version_of(claim.options)
        current_version = 1 if task is None else task.version
        self._version = mark or current_version
        self._is_marked = mark is not None
        self._loaded = LoadedSteps(claim, steps, node.lease, is_marked=self._is_marked)
        self._callers = CallersTransactions(node, steps, claim, self._loaded)
        self._waits = AttemptWaits(node, steps, attempt, self._loaded.refresh)
        # The names that this attempt has used, because it may not use a name twice.
        self._names: set[str] = set()
        # The steps whose retries were used up in this attempt or an earlier one. Code may not call one again
        # under its name: each of its calls raises the stored error in a later attempt, which would belong to
        # the first one.
        self._used_up: set[str] = set()
        # How often the waits for each signal have timed out in this attempt, by the name of the step.
        self._timeouts = Counter[str]()
        # By mailbox the number of the message that the next receive() of this attempt returns.
        self._next_numbers: dict[str, int] = {}
        # The mailboxes from which a call of this attempt receives now.
        self._receiving: set[str] = set()
        # By the names of cursors whose blocks Python has closed: set when the value of the cursor is written.
        self._closed_cursors: dict[str, asyncio.Event] = {}
        self._is_closed = False

    @property
    def suspensions(self) -> tuple[Suspension, ...]:
        """What a suspended attempt waits for; empty if it is not suspended. See `OpenSteps`."""
        return self._waits.suspensions

    @property
    def has_stored(self) -> bool:
        """Whether the attempt has stored a step. See `OpenSteps`."""
        return self._loaded.has_stored

    @property
    def version(self) -> int:
        """The version of the task when the job stored its first step. See `Steps`."""
        return self._version

    @overload
    async def run(
        self,
        name: str,
        func: Callable[..., Awaitable[R]],
        /,
        *args: Any,
        retry: RetryPolicy | None,
        max_retries: int = ...,
        timeout: float | timedelta | None = ...,
        **kwargs: Any,
    ) -> R: ...
    @overload
    async def run(
        self,
        name: str,
        func: Callable[..., Awaitable[R]],
        /,
        *args: Any,
        timeout: float | timedelta | None,
        **kwargs: Any,
    ) -> R: ...
    @overload
    async def run(
        self, name: str, func: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    async def run(
        self,
        name: str,
        func: Callable[..., Awaitable[R]],
        /,
        *args: Any,
        retry: Any = UNSET,
        max_retries: Any = UNSET,
        timeout: Any = UNSET,
        **kwargs: Any,
    ) -> R:
        """Call a function once for all attempts of the job, and store its value as a step. See `Steps`."""
        check_step_function(func)
        rules = StepRules.of(func, retry, max_retries, timeout)
        return_type = ReturnType(func)

        async def execute() -> StoredStep | None:
            """Call the function and store its value; return None if it is called again."""
            try:
                with self._calling(name, func):
                    async with rules.time_limit(name):
                        value = await func(*args, **kwargs)
            except Exception as error:
                failure = await self._failure_of(name, rules, error)
                if failure is error:
                    raise
                if failure is not None:
                    raise failure  # noqa: B904 - it has its cause
                return None
            # The function is not called again for an error of this, because it has done its work.
            return await self._store(name, STEP, return_type.to_json(name, value))

        result: R = await self._value_of_step(name, rules, execute, return_type)
        return result

    async def transaction(
        self,
        name: str,
        func: Callable[..., Awaitable[R]],
        /,
        *args: Any,
        connection: Any = None,
        retry: RetryPolicy | Unset | None = UNSET,
        max_retries: int | Unset = UNSET,
        timeout: float | timedelta | Unset | None = UNSET,
        **kwargs: Any,
    ) -> R:
        """Call a function in the transaction that also stores its value as a step. See `Steps`.

        The transaction is that of the caller's ``connection``, or one of its own if that is None.
        """
        check_step_function(func)
        rules = StepRules.of(func, retry, max_retries, timeout)
        if connection is not None and rules.retry is not None:
            raise ValueError(
                f"step {name!r} cannot be retried in your transaction, which its error may have ended; "
                "omit connection=, or retry the job"
            )
        return_type = ReturnType(func)

        async def execute() -> StoredStep | None:
            """Call the function and store its value in one transaction; return None if it is called again."""
            try:
                async with self._transaction(connection) as (func_connection, session):
                    first_transaction = open_transaction_of(session)
                    with self._calling(name, func):
                        async with rules.time_limit(name):
                            value = await func(func_connection, *args, **kwargs)
                    _check_is_open(first_transaction, session, name)
                    text = return_type.to_json(name, value)
                    write = partial(self._store, name, STEP, text, connection=session)
                    if connection is None:
                        transaction = Transaction(session, [])
                        stored = await self._statements.write_before_commit("a step", transaction, write)
                    else:
                        stored = await write()
                        await self._callers.note_write(stored, session)
            except Exception as error:
                failure = await self._failure_of(name, rules, error)
                if failure is error:
                    raise
                if failure is not None:
                    raise failure  # noqa: B904 - it has its cause
                # The answer of a commit may have been lost. The row of the failure had to wait for the end of
                # that commit, so the steps that are loaded now show whether the step was stored.
                self._loaded.forget()
                return None
            # A step on a connection of the caller does not count yet: its transaction may be rolled back.
            if connection is None:
                self._loaded.add(stored)
            return stored

        result: R = await self._value_of_step(name, rules, execute, return_type, connection)
        return result

    @asynccontextmanager
    async def cursor(self, name: str, *, start: Any = None) -> AsyncIterator[StepCursor]:
        """Yield a cursor, which stores how far the loop in the block has come. See `Steps`."""
        # The value of an earlier block of this name may still be written by a background task.
        if name in self._closed_cursors:
            await self._callers.check_step(name, None)
            await self._closed_cursors[name].wait()
        async with self._step(name, CURSOR) as previous_step:
            value = start if previous_step is None else step_value(name, previous_step.value, self._codec)
        cursor = AttemptCursor(self, name, value)
        # Code that Python closes may be in another thread, where the running loop cannot be found.
        loop = asyncio.get_running_loop()
        try:
            yield cursor
        except BaseException as error:  # whatever it was
            # The value is that of work which was done, so it is stored although the attempt ends. But in a
            # coroutine that Python closes (GeneratorExit), nothing can be awaited, so a background task
            # stores the value. The block of a synchronous job is in a thread, which waits until the event
            # loop has run this code to its end, so there the value can be stored here.
            if is_a(error, GeneratorExit) and calling_thread.get(None) is None:
                self._write_later(name, cursor, loop)
            else:
                await cursor.flush_at_end()
            # The code may repeat the block. If a transaction of the caller has written the value, the code
            # may do so only after the end of that transaction.
            if name in self._callers:
                self._callers.note_failure(name)
            else:
                self._names.discard(name)
            raise
        finally:
            cursor.close()
        await cursor.flush()

    def _write_later(self, name: str, cursor: AttemptCursor, loop: asyncio.AbstractEventLoop) -> None:
        """Write the value of a cursor in a background task, because the code of its block cannot wait.

        The garbage collector may destroy this code in any thread, and also after the end of the event loop.
        """
        # A later block of this cursor waits for this event.
        end_of_write = asyncio.Event()

        async def write() -> None:
            """Write the value, and let a later block of this cursor begin."""
            try:
                await cursor.flush_at_end()
            finally:
                self._closed_cursors.pop(name, None)
                end_of_write.set()

        if not loop.is_closed():
            self._closed_cursors[name] = end_of_write
            name_of_task = f"{OWN_TASK_PREFIX}cursor"
            # A task belongs to the attempt that its context has, and an attempt is not suspended while its
            # tasks work. In an empty context, this one belongs to no attempt.
            loop.call_soon_threadsafe(
                lambda: start_in_background(write(), name_of_task, Context()), context=Context()
            )

    async def stored_values(self, beginning: str) -> list[Any]:
        """Return the values of the stored steps whose names have this beginning."""
        steps = (await self._loaded.get()).values()
        return [
            step_value(step.name, step.value, self._codec)
            for step in steps
            if step.kind == STEP and step.name.startswith(beginning)
        ]

    def free_failed(self, name: str) -> None:
        """Let this attempt store a value for a step whose retries are used up.

        An integration may have handled the failure. Then every attempt has to find what came of it.
        """
        self._used_up.discard(name)
        self._names.discard(name)

    def standing_still(self, stands_still: StandsStill) -> AbstractContextManager[None]:
        """Let tasks of a library count as waiting within the block. See `AttemptWaits`."""
        return self._waits.standing_still(stands_still)

    async def check_may_write(self, what: str, connection: object = None) -> None:
        """Raise RuntimeError if a write would wait for a transaction of its caller. See `OpenSteps`."""
        await self._callers.check(
            what, connection, "make this call before that step, or when the transaction has ended"
        )

    def check_outside_of_step(self, what: str) -> None:
        """Raise RuntimeError if the function of a step makes a call that ends the job. See `OpenSteps`."""
        call = _called_by.get(None)
        # A task that the function has begun may outlive it.
        if call is not None and call.is_running:
            raise RuntimeError(
                f"{what} within the function of step {call.step!r} would end the job before the step is "
                "stored; make this call when the step has returned"
            )

    async def wait_for_cursors(self) -> None:
        """Wait until the values of cursors are written whose blocks Python has closed. See `OpenSteps`."""
        # Each write removes its entry when it ends.
        while self._closed_cursors:
            await next(iter(self._closed_cursors.values())).wait()

    async def sleep(
        self, name: str, delay: float | timedelta | None = None, *, until: datetime | None = None
    ) -> None:
        """Wait until a delay or a time is over; meanwhile the job uses no worker. See `Steps`."""
        await self._wait_for(self._sleep(name, delay, until))

    async def wait(
        self, name: str, *, timeout: float | timedelta | None = None, kind: type[Any] | None = None
    ) -> Any:
        """Wait for a signal to the job, and return its value. See `Steps`."""
        check_step_name(name)
        return await self._wait_for(self._signal(name, timeout, kind))

    async def receive(
        self, name: str, *, timeout: float | timedelta | None = None, kind: type[Any] | None = None
    ) -> Any:
        """Return the next message of a mailbox; wait until it comes. See `Steps`.

        A message is the signal of a name that contains its number, and its wait is a wait for that signal.
        So each attempt gets the messages in the same order, without a write for those that have come before.

        One call at a time waits for a mailbox, for the lowest number that has no value. Senders and
        broadcasts give a value to this number only, so no message is stored behind one that has not come.
        """
        check_step_name(name, noun="mailbox")
        await self._check_open()
        if name in self._receiving:
            # A call that has just been cancelled ends when its task runs.
            await asyncio.sleep(0)
        # Of two waits, the first could end without a message. The next message would have its number, and the
        # other wait would not get it.
        if name in self._receiving:
            raise DuplicateStepError(
                f"receive({name!r}) is called while another call waits for this mailbox, in attempt "
                f"{self._claim.attempt} of job {self._claim.job_id!r}; receive one message after the other, "
                "or use several mailboxes"
            )
        self._receiving.add(name)
        try:
            # If two tasks call at once, the second one is refused also where both messages have come, so that
            # a test finds it. It looks twice, and this call lasts as long.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            number = self._next_numbers.setdefault(name, 1)
            # A message whose value did not fit ``kind`` was received nevertheless, so it is passed over. One
            # whose wait has timed out or was cancelled is free again, so this call waits for it.
            while (message := message_name(name, number)) in self._names:
                number += 1
            value = await self._wait_for(self._signal(message, timeout, kind))
            self._next_numbers[name] = number + 1
            return value
        finally:
            self._receiving.discard(name)

    async def first(self, name: str, *waits: Wait | Sleep | Child) -> First:
        """Wait until one of several waits has ended, and return its name and value. See `Steps`.

        The name of the winner is stored, so that later attempts of the job find the same one.
        """
        waits_by_name = {wait.name: self._alternative(wait) for wait in check_waits(waits)}
        self._check_may_wait(name)
        pending = list(waits_by_name.values())
        async with self._step(name, FIRST) as previous_step:
            # The waits are steps too, so their names are used as well.
            await self._take_names(waits_by_name)
            try:
                # An earlier attempt has stored which of the waits ended first, so only that one counts.
                if previous_step is not None:
                    pending = [self._winner(previous_step, waits_by_name)]
                for wait in pending:
                    await wait.update()
            # After an error, the code may use the names of the waits again.
            except BaseException:
                self._names -= waits_by_name.keys()
                raise
        try:
            winner = await self._first_of(pending)
            if previous_step is None:
                await self._store(name, FIRST, winner.name)
        except BaseException:
            self._names -= {name, *waits_by_name}
            raise
        # The job may use the names of the other waits again, to wait for these later.
        losers = waits_by_name.keys() - {winner.name}
        self._names -= losers
        with self._freed_if_cancelled({name, winner.name}):
            return First(winner.name, await winner.value())

    async def predecessors(self) -> AsyncIterator[JobResult]:
        """Yield the results of the jobs after which this job runs. See `OpenSteps`."""
        # Results that are passed to a job mark it, so an unmarked job has none.
        if not self._is_marked:
            return
        job_id, passed = self._claim.job_id, self._passed
        names = await self._persistently(lambda: passed.names(job_id))
        for start in range(0, len(names), RESULTS_AT_ONCE):
            page = names[start : start + RESULTS_AT_ONCE]
            for result in await self._persistently(partial(passed.get, job_id, page)):
                yield result

    async def child(self, name: str, func: Call[R], /, **options: Any) -> R:
        """Run a call as a job of its own, wait for its end, and return its value. See `Steps`."""
        check_step_name(name)
        job = ChildJob.of(self._claim.job_id, name, None, func, options)
        values = await self._values_of(name, [job])
        value: R = self._only_value(name, values)
        return value

    async def gather(self, name: str, calls: Sequence[Call[R]], *, detached: bool = False) -> list[R]:
        """Run calls as jobs, wait for the ends of all, and return their values in order. See `Steps`."""
        check_step_name(name)
        argument: Any = calls  # which may have any type, whatever the annotation is
        if not isinstance(argument, Iterable):
            kind = type(argument).__name__
            raise TypeError(f"gather() needs a list of calls, not {kind}; pass [call(function, argument)]")
        options = {DETACHED: detached}
        jobs = [
            ChildJob.of(self._claim.job_id, name, number, call, options) for number, call in enumerate(calls)
        ]
        return await self._values_of(name, jobs)

    async def _values_of(self, name: str, jobs: Sequence[ChildJob]) -> list[Any]:
        """Return the values of children, or raise the error of the first child that has no value."""
        values: list[Any] = await self._wait_for(self._children_of(name, jobs))
        return values

    def _only_value(self, name: str, values: Sequence[Any]) -> Any:
        """Return the value of the only child of a step, or raise ``Abort`` if it has stored several."""
        if len(values) != 1:
            raise Abort(
                f"step {name!r} of job {self._claim.job_id!r} was stored by gather() with "
                f"{counted(len(values), 'call')}, and child() has one; keep gather(), or give the step "
                "another name"
            )
        return values[0]

    # -- a call that may be repeated -------------------------------------------------------------------

    async def _value_of_step(
        self,
        name: str,
        rules: StepRules,
        execute: Callable[[], Awaitable[StoredStep | None]],
        return_type: ReturnType,
        connection: Any = None,
    ) -> Any:
        """Return the value of a step: that which an earlier attempt has stored, or that of its function.

        Args:
            name: The name of the step.
            rules: Whether its function is called again after an error.
            execute: Calls the function and stores its value; returns None if the function is called again.
            return_type: Converts the stored value.
            connection: The connection of the caller with whose transaction the step commits; None for none.
        """
        if rules.retry is not None:
            self._check_may_wait(name)
        is_held = False
        while True:
            async with self._step(name, STEP, connection, is_held=is_held) as previous_step:
                # The function is not called again if an earlier attempt has stored the step.
                stored = previous_step
                if stored is None and (rules.retry is None or await self._is_due(name)):
                    stored = await execute()
                    if stored is not None and rules.retry is not None:
                        await self._end_failures(name)
                elif stored is not None and connection is not None:
                    # It may have been stored in this open transaction, which may still be rolled back.
                    session = await self._connections.check_transaction(connection)
                    await self._callers.note(stored, session)
                if stored is not None:
                    return return_type.from_json(name, step_value(name, stored.value, self._codec))
            # The wait is outside of the block, because the attempt cannot be suspended within it.
            await self._wait_until_due(name)
            is_held = True

    async def _is_due(self, name: str) -> bool:
        """Return whether the function of a step may be called now: it has not failed, or its wait is over.

        Raise its failure if its retries were used up in an earlier attempt, and the job has not failed
        since. Otherwise a job that catches the error of one step, and is suspended by another, would call the
        function in each of its attempts, and never end.
        """
        failed = await self._find_stored(row_of_retries(name), RETRY)
        if failed is not None and failed.is_used_up and not failed.is_renewed:
            raise self._end_of_retries(name, failures_from(failed.value))
        return failed is None or _is_over(failed)

    async def _end_failures(self, name: str) -> None:
        """End the row with the failed attempts of a step that is stored now, if it has failed before.

        A crash before this statement leaves the row open. That changes nothing for the job, since the step is
        not called again.
        """
        row_name = row_of_retries(name)
        failed = await self._find_stored(row_name, RETRY)
        if failed is not None and not failed.has_ended:
            await self._persistently(lambda: self._repository.end(self._worker_id, self._claim, row_name))
            self._loaded.refresh([failed._replace(has_ended=True)], {row_name})

    async def _failure_of(self, name: str, rules: StepRules, error: Exception) -> Exception | None:
        """Store that an attempt of a step has failed; return what the call raises, or None if it is repeated.

        For a step without retries, and for errors that are no failures of the step, nothing is stored, and
        the call raises the error itself.
        """
        cause = cause_of_failure(error)
        if rules.retry is None or cause is None:
            return error
        claim = self._claim
        row_name = row_of_retries(name)
        failed = await self._find_stored(row_name, RETRY)
        earlier_failures = StepFailures() if failed is None else failures_from(failed.value)
        # The retries of the step were used up, and the job has failed or was retried by a caller since. So
        # they begin again.
        if failed is not None and failed.is_renewed:
            earlier_failures = replace(earlier_failures, count=0)
        delay: timedelta | None = None
        retry_count = earlier_failures.count
        if retry_count < rules.max_retries and is_retryable(claim, cause, rules.retry):
            spread = random.uniform(-1, 1)  # noqa: S311 - no secret
            delay = retry_delay(claim, cause, rules.retry, retry_count=retry_count, spread=spread)
        text = describe(reason_of(cause))
        now = self._statements.local_now
        # Only an Abort forbids a retry under the default policy.
        is_aborted = not may_repeat(cause, DEFAULT_RETRY_POLICY)
        step_error = StepError(now, claim.attempt, shortened(text))
        failures = earlier_failures.after(step_error, is_aborted=is_aborted)
        # The count is stored as a number, not added to the one in the row. So it is right also if the answer
        # of the statement is lost, and the statement repeated. No other call writes this row: the fencing
        # token excludes other attempts of the job, and the name of the step other calls of this one.
        store = partial(
            self._repository.store,
            self._worker_id,
            claim,
            row_name,
            RETRY,
            version=self._version,
            delay_s=None if delay is None else delay.total_seconds(),
        )
        try:
            stored = await self._persistently(partial(store, value=failures.to_json()))
        except PayloadError:
            # The encoding of the database lacks a character of the error.
            stored = await self._persistently(partial(store, value=failures.to_json(in_ascii=True)))
        self._loaded.add(stored, is_progress=False)
        retry = "no retry"
        if delay is not None:
            retry = f"retry {retry_count + 1} of {rules.max_retries} in {delay.total_seconds():.1f} s"
        logger.warning(
            "step %r of job %s (id %s, attempt %s) failed, %s: %s",
            name,
            claim.job_name,
            claim.job_id,
            claim.attempt,
            retry,
            text,
            extra=record_fields(job_id=claim.job_id, job_name=claim.job_name, attempt=claim.attempt),
        )
        return self._end_of_retries(name, failures, cause) if delay is None else None

    def _end_of_retries(
        self, name: str, failures: StepFailures, cause: Exception | None = None
    ) -> Abort | StepFailedError:
        """Return what every attempt of the job raises whose call of a step has no further attempt.

        It has the same class and message in the attempt in which the retries were used up and in those after
        a crash or a suspension, where only the stored failures are known. So code that catches it takes the
        same way each time.
        """
        self._used_up.add(name)
        error = failures.error_of(name)
        error.__cause__ = cause
        note_step(error, name)
        return error

    async def _wait_until_due(self, name: str) -> None:
        """Wait for the next attempt of a step: in memory for a short time, suspended for a long one."""

        async def find() -> StoredStep:
            """Return the row with the failed attempts, which has ended for the wait when its time is over."""
            row = (await self._loaded.get())[row_of_retries(name)]
            return row._replace(has_ended=_is_over(row))

        async def value_of(_: StoredStep) -> None:
            """Return None, the value of every such wait."""

        wait = PendingWait(row_of_retries(name), RETRY, find, value_of)
        try:
            with self._waits.progressing():
                await wait.update()
                left_s = wait.stored.left_s or 0.0
                if 0 < left_s <= self.in_place_wait_s:
                    await asyncio.sleep(left_s)
                    self._loaded.refresh([wait.stored._replace(has_ended=False, left_s=0.0)], {wait.name})
                    return
            await self._first_of([wait])
        except BaseException:
            self._names.discard(name)
            raise

    # -- what waits ------------------------------------------------------------------------------------

    def _alternative(self, wait: Wait | Sleep | Child) -> PendingWait:
        """Return the wait that carries out one of the arguments of ``first()``."""
        match wait:
            case Wait(name, kind):
                return self._signal(name, None, kind)
            case Sleep(name, delay, until):
                return self._sleep(name, delay, until)
            case Child(name, func, options):
                job = ChildJob.of(self._claim.job_id, name, None, func, options)
                children = self._children_of(name, [job])

                async def only_value(stored: StoredStep) -> Any:
                    """Return the value of the only child of the step."""
                    return self._only_value(name, await children.value_of(stored))

                # The children of a step have a list of values, and this one has a single value.
                return replace(children, value_of=only_value)

    def _sleep(self, name: str, delay: float | timedelta | None, until: datetime | None) -> PendingWait:
        """Return the wait for the end of a sleep."""
        check_step_name(name)
        if delay is None and until is None:
            raise TypeError(f"sleep {name!r} has no end; pass a delay or until=")
        if delay is not None and until is not None:
            raise TypeError(f"sleep {name!r} has both a delay and until=; pass one of them")
        seconds = None if delay is None else check_delay("delay", delay)
        end = None if until is None else check_execution_time(until, name="until")

        async def find() -> StoredStep:
            """Return the step of the sleep as it is now; store it, so that its time begins, if it is new."""
            stored = await self._find_stored(name, SLEEP)
            if stored is None:
                stored = await self._store(name, SLEEP, delay_s=seconds, until=end)
            has_ended = await self._end_if_over(stored)
            return stored._replace(has_ended=has_ended)

        async def value_of(_: StoredStep) -> None:
            """Return None, the value of every sleep."""

        return PendingWait(name, SLEEP, find, value_of)

    def _signal(self, name: str, timeout: float | timedelta | None, kind: type[Any] | None) -> PendingWait:
        """Return the wait for a signal.

        A wait that has timed out frees its name, so code may wait for the same name again. These waits share
        one row, which has a list of the ends of those that timed out. The first wait for the name in an
        attempt belongs to the first end in this list, and so on.
        """
        # A wait has a length in seconds, or, without a timeout, an end that never comes.
        seconds = None if timeout is None else check_delay("timeout", timeout)
        end = NO_TIMEOUT if seconds is None else None
        value_type = SignalType(kind)
        store = partial(self._store, name, SIGNAL, delay_s=seconds, until=end)

        async def find() -> StoredStep:
            """Return the step of this wait as it is now; store it, or let it begin again, if it has to."""
            stored = await self._find_stored(name, SIGNAL)
            # How many waits for this name have timed out in this attempt, before this one.
            count = self._timeouts[name]
            if stored is None:
                stored = await store()
            elif seconds is None:
                # This wait has no timeout, so a stored timeout is that of another wait for the same name,
                # which followed this one after its cancellation. So this wait begins again.
                has_timed_out = stored.has_ended and stored.value is None
                if has_timed_out:
                    stored = await self._repeat_wait(name, len(stored.timeouts) + 1, None, end)
                if stored.has_ended:
                    return stored
                # The stored end may be that of another wait, so it does not count for this one.
                return stored._replace(until=NO_TIMEOUT, left_s=None)
            elif count < len(stored.timeouts):
                # This wait timed out in an earlier attempt, and another one or a message followed.
                return _timed_out(stored, count)
            else:
                # The wait begins again if the one before it timed out in this attempt, or if the stored wait
                # has no timeout and this one has.
                last_timed_out_here = count > len(stored.timeouts)
                gets_timeout = not stored.has_ended and stored.until == NO_TIMEOUT
                if last_timed_out_here or gets_timeout:
                    stored = await self._repeat_wait(name, count, seconds, end)
            if not stored.has_ended and await self._end_if_over(stored):
                # A value may have come just before the end of the wait, and a message also just after it.
                stored = await self._read_again(name)
                if count < len(stored.timeouts):
                    return _timed_out(stored, count)
            return stored

        async def value_of(stored: StoredStep) -> Any:
            """Return the value of the signal; raise TimeoutError if none came in time."""
            if stored.value is None:
                # Code may catch the error, and wait for the same name again.
                self._timeouts[name] += 1
                self._names.discard(name)
                raise TimeoutError(
                    f"no {described_signal(name)} came for job {self._claim.job_id!r} until {stored.until}"
                )
            return value_type.from_json(name, step_value(shown_name(name), stored.value, self._codec))

        return PendingWait(name, SIGNAL, find, value_of)

    def _children_of(self, name: str, jobs: Sequence[ChildJob]) -> PendingWait:
        """Return the wait for the ends of children. Its first update inserts them if they do not exist."""
        kinds = [ReturnType(job.call.func) for job in jobs]

        async def find() -> StoredStep:
            """Return the step of the children as it is now; insert the children if they do not exist."""
            stored = await self._find_stored(name, CHILD)
            # A step that is neither over nor awaited has lost its children: they were deleted by hand, or
            # ended by an older release. They are inserted again.
            has_lost_children = stored is not None and not stored.has_ended and not stored.is_awaited
            if stored is None or has_lost_children:
                await self._loaded.check_room(name, None, self._callers.sizes, count=len(jobs))
                stored = await self._persistently(
                    partial(self._children.insert, self._claim, name, jobs, self._version)
                )
                self._loaded.add(stored)
            return stored

        async def value_of(stored: StoredStep) -> list[Any]:
            """Return the values of the children in order; raise the error of the first one that has none."""
            results = await self._persistently(partial(self._children.results, self._claim, stored, jobs))
            values = [result.unwrap() for result in results]
            if len(values) != len(kinds):
                claim = self._claim
                logger.warning(
                    "step %r of job %s (id %s) was stored with %s, and the code has %d now; the values are "
                    "those of the stored ones: let a step return the list of what to call",
                    name,
                    claim.job_name,
                    claim.job_id,
                    counted(len(values), "call"),
                    len(kinds),
                    extra=record_fields(job_id=claim.job_id, job_name=claim.job_name, attempt=claim.attempt),
                )
            converted = [kind.from_json(name, value) for kind, value in zip(kinds, values, strict=False)]
            # The stored children are those of the first attempt, which may have started more of them than the
            # code has now. For these there is no type, so their values stay as JSON carries them.
            further_values = values[len(kinds) :]
            return [*converted, *further_values]

        return PendingWait(name, CHILD, find, value_of)

    async def _wait_for(self, wait: PendingWait) -> Any:
        """Wait for one step, whose name is checked, and return its value."""
        self._check_may_wait(wait.name)
        async with self._checked_step(wait.name, wait.kind):
            await wait.update()
        # The wait is outside of the block, because the attempt cannot be suspended within it.
        try:
            await self._first_of([wait])
        except BaseException:
            self._names.discard(wait.name)
            raise
        with self._freed_if_cancelled({wait.name}):
            return await wait.value()

    @contextmanager
    def _freed_if_cancelled(self, names: Collection[str]) -> Iterator[None]:
        """Free the names of waits if the block, which reads a value, is cancelled.

        The waits have ended, but their caller has not got the value, so it may wait for these names again.
        """
        try:
            yield
        except asyncio.CancelledError:
            self._names.difference_update(names)
            raise

    async def _first_of(self, waits: Sequence[PendingWait]) -> PendingWait:
        """Wait until one of several waits has ended, and return it. If several have, return the first one."""
        while True:
            for wait in waits:
                if wait.stored.has_ended:
                    return wait
            await self._check_open()
            await self._waits.until_one_ends([wait.stored for wait in waits])
            # The attempt is not suspended while the steps are read.
            with self._waits.progressing():
                for wait in waits:
                    await wait.update()

    def _winner(self, stored: StoredStep, waits: Mapping[str, PendingWait]) -> PendingWait:
        """Return the wait that ended first in an earlier attempt; raise ``Abort`` if the code has it no more.

        ``stored`` is the step of ``first()``, whose value is the name of this wait.
        """
        name = step_value(stored.name, stored.value, self._codec)
        if name not in waits:
            raise Abort(
                f"the stored winner of step {stored.name!r}, {name!r}, is none of its waits any more; keep "
                "that wait, or give the step another name"
            )
        return waits[name]

    async def _repeat_wait(
        self, name: str, count: int, seconds: float | None, end: datetime | None
    ) -> StoredStep:
        """Let a stored wait for a signal begin again with a length or an end, and return the changed step.

        ``count`` is how often waits for this name have timed out before.
        """
        await self._callers.check_step(name, None, may_join=False)
        repeat = partial(self._repository.repeat_wait, self._worker_id, self._claim, name, count)
        await self._persistently(partial(repeat, delay_s=seconds, until=end))
        # The statement does not return the step, and a signal may have ended it meanwhile.
        return await self._read_again(name)

    async def _read_again(self, name: str) -> StoredStep:
        """Return a step that is stored as it is now."""
        steps = await self._persistently(lambda: self._repository.load(self._claim.job_id))
        self._loaded.refresh(steps, {name})
        return (await self._loaded.get())[name]

    def close(self) -> None:
        """Refuse further steps, and cancel those that wait: the attempt has ended. See `OpenSteps`."""
        self._is_closed = True
        self._waits.close()

    def suspend_at_timeout(self) -> bool:
        """Suspend the attempt if its function only waits for steps; return whether it is. See `OpenSteps`."""
        return self._waits.suspend_at_timeout()

    # -- a step ----------------------------------------------------------------------------------------

    def _step(
        self, name: str, kind: str, connection: Any = None, *, is_held: bool = False
    ) -> AbstractAsyncContextManager[StoredStep | None]:
        """Check the name of a step, and use it in a block. See ``_checked_step()``."""
        check_step_name(name)
        return self._checked_step(name, kind, connection, is_held=is_held)

    @asynccontextmanager
    async def _checked_step(
        self, name: str, kind: str, connection: Any = None, *, is_held: bool = False
    ) -> AsyncIterator[StoredStep | None]:
        """Use the name of a step in a block, and yield the step that an earlier attempt has stored under it.

        If there is none, yield None. ``connection`` is the caller's connection, if the step commits with its
        transaction. The attempt is not suspended within the block. If the block raises an exception, its name
        may be used again. ``is_held`` is whether the caller has used the name for this step before.
        """
        self._connections.check_loop()
        await self._check_open(connection)
        self._waits.note_thread()
        # A name may be used once in an attempt. A step that this attempt has stored in a transaction of the
        # caller may be repeated, though, if that was rolled back.
        is_callers = name in self._names and name in self._callers
        if is_callers and await self._callers.forget_rolled_back(name, connection):
            self._names.discard(name)
        if not is_held:
            await self._take_names([name])
        try:
            with self._waits.progressing():
                stored = await self._find_stored(name, kind)
                # Such a step is going to be written, and would wait for an open transaction that has locked
                # the row of the job.
                if stored is None or not stored.has_ended:
                    await self._callers.check_step(name, connection, may_join=kind in {STEP, CURSOR})
                yield stored
        except BaseException as error:
            if name not in self._used_up:
                self._names.discard(name)
            # The row of a step that was cancelled while it was written may be committed nevertheless.
            if isinstance(error, asyncio.CancelledError):
                self._loaded.forget()
            raise

    async def _take_names(self, names: Collection[str]) -> None:
        """Note that this attempt uses names; raise DuplicateStepError if it has used one of them before."""
        if not self._names.isdisjoint(names):
            # A wait that has just been cancelled frees its name when its task runs.
            await asyncio.sleep(0)
        for name in names:
            if name in self._names:
                raise DuplicateStepError(
                    f"step {name!r} occurs twice in attempt {self._claim.attempt} of job "
                    f'{self._claim.job_id!r}; use names such as f"{name}-{{number}}", or the value that the '
                    "first call has returned"
                )
        self._names.update(names)

    async def _find_stored(self, name: str, kind: str) -> StoredStep | None:
        """Return the step that is stored under a name; None if there is none. Raise if its kind differs."""
        steps = await self._loaded.get()
        return self._of_kind(kind, steps.get(name))

    def _of_kind(self, kind: str, stored: StoredStep | None) -> StoredStep | None:
        """Return a stored step of this kind; None if there is none. Raise if it is a step of another kind.

        A signal that came before its wait counts as none for other kinds of steps, which may have its name.
        """
        if stored is None or stored.kind == kind:
            return stored
        if stored.is_early_signal:
            return None
        raise DuplicateStepError(
            f"step {stored.name!r} of job {self._claim.job_id!r} is stored as another kind of step, "
            f"{stored.kind!r} instead of {kind!r}; use another name"
        )

    async def _check_open(self, connection: Any = None) -> None:
        """Raise what ends the code of an attempt that is suspended, has ended, or completes the job.

        ``connection`` is the caller's connection, if the step commits with its transaction.
        """
        # A suspended attempt was cancelled. If its code has caught the exception and calls a step, it is
        # cancelled once more.
        if self.suspensions:
            await asyncio.sleep(0)  # a loop that swallows the exception must not block the event loop
            raise asyncio.CancelledError
        # The code may complete its job in its own transaction. After a rollback the attempt continues.
        await self._attempt.forget_rolled_back(connection)
        self._check_held()

    def _check_held(self) -> None:
        """Raise JobLostError if the attempt has ended, or its block of ``completing()`` has."""
        if self._is_closed:
            raise JobLostError(self._claim.job_id)
        # The code has left its block of completing(), but its own transaction may still be open. It holds the
        # job's row, so a step would wait for that row until the transaction commits.
        if self._attempt.end is not None:
            error = JobLostError(self._claim.job_id)
            error.add_note("its block of completing() has ended; write steps before the end of the block")
            raise error

    async def _store(
        self,
        name: str,
        kind: str,
        value: Any = None,
        *,
        delay_s: float | None = None,
        until: datetime | None = None,
        connection: Connection | None = None,
    ) -> StoredStep:
        """Store a step, and return it as it is stored.

        A sleep or a wait has a length or an end, and no value; other steps have a value. A step that commits
        with the transaction of a connection counts only after that has committed.
        """
        text = None
        is_sleep_or_wait = delay_s is not None or until is not None
        if not is_sleep_or_wait:
            text = step_text(name, value, self._max_value_bytes, self._codec, self._claim.job_name)
        try:
            await self._loaded.check_room(name, text, self._callers.sizes)
        except PayloadError:
            if not self._callers.sizes:
                raise
            # Steps in open transactions of the caller count in addition to the stored ones. Such a
            # transaction may have been rolled back since, so they are counted again.
            await self._callers.count_ended()
            await self._loaded.check_room(name, text, self._callers.sizes)
        stored_steps = await self._loaded.get()
        store = partial(
            self._repository.store,
            self._worker_id,
            self._claim,
            name,
            kind,
            text,
            version=self._version,
            delay_s=delay_s,
            until=until,
        )
        # A reader that sees the step also sees what the job has published before it.
        if self._attempt.streams is not None:
            await self._attempt.streams.write(connection)
        if connection is not None:
            # The step exists already if the answer to an earlier commit was lost. Then the writes of the
            # caller must not be committed once more. A cursor, however, is stored many times.
            must_be_new = kind == STEP
            return await store(connection=connection, must_be_new=must_be_new)
        step = await self._persistently(store)
        # The statement does not return the timeouts of earlier waits for a signal, so they are added here.
        previous_step = stored_steps.get(name)
        if previous_step is not None:
            step = step._replace(timeouts=previous_step.timeouts)
        self._loaded.add(step)
        return step

    async def write_cursor(self, name: str, value: Any, connection: Any = None) -> None:
        """Store the value of a cursor, also while the attempt ends.

        Args:
            name: The name of the cursor.
            value: Its value.
            connection: The connection of a caller in a transaction; None to commit the value at once.
        """
        await self._attempt.forget_rolled_back(connection)
        self._check_held()
        with self._waits.progressing():
            session = None if connection is None else await self._connections.check_transaction(connection)
            await self._callers.check_step(name, session)
            stored = await self._store(name, CURSOR, value, connection=session)
            if session is not None:
                await self._callers.note_write(stored, session)

    async def has_open_transaction(self, connection: Any) -> bool:
        """Return whether a step has locked the row of the job in the open transaction of a connection."""
        session = await self._connections.check_transaction(connection)
        return await self._callers.has_locked(session)

    def cursor_text(self, name: str, value: Any) -> str:
        """Return the value of a cursor as JSON. Two values are the same if their JSON is.

        Raises:
            PayloadError: JSON cannot represent it, or it is too large.
        """
        return step_text(name, value, self._max_value_bytes)

    @asynccontextmanager
    async def _transaction(self, connection: Any) -> AsyncIterator[tuple[Any, Connection]]:
        """Yield the connection that the function of a step gets, and the session that stores the step.

        The first one is the object that the caller has passed, of whatever library. Without it, both are a
        connection of the pool in a new transaction.
        """
        if connection is not None:
            yield connection, await self._connections.check_transaction(connection)
            return
        async with self._connections.transaction_of_job() as session:
            yield session, session

    async def _end_if_over(self, stored: StoredStep) -> bool:
        """Store the end of a sleep or a wait if its time is over; return whether the step has ended."""
        if stored.has_ended:
            return True
        if stored.left_s is None or stored.left_s > 0:
            return False
        await self._persistently(lambda: self._repository.end(self._worker_id, self._claim, stored.name))
        self._loaded.refresh([stored._replace(has_ended=True)], {stored.name})
        return True

    async def _persistently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a call; repeat it while the database is unavailable and the lease is valid."""
        return await persistently(self._lease, call)

    @contextmanager
    def _calling(self, name: str, func: Callable[..., Any]) -> Iterator[None]:  # noqa: ARG002 - for a test kit
        """Call the function of a step in this block: note the step in the context, and in its exception."""
        call = StepCall(name)
        token = _called_by.set(call)
        try:
            yield
        except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
            # In the task of the attempt (``is_stepped``), the error is the result of the job. Without a task,
            # Python closes the coroutine. A Ctrl-C is to end the program. But in a task that the job has
            # begun, asyncio would raise a SystemExit or KeyboardInterrupt in the event loop, and so end the
            # worker. So the attempt ends with the error, and this task is cancelled.
            if self._attempt.is_stepped or current_task() is None or is_ctrl_c(error):
                raise
            self._attempt.exit(error)
            raise asyncio.CancelledError from error
        except BaseException as error:
            note_step(error, name)
            raise
        finally:
            call.is_running = False
            _called_by.reset(token)

    # -- suspension ------------------------------------------------------------------------------------

    def _check_may_wait(self, name: str) -> None:
        """Raise RuntimeError if a step that waits is called by the function of another step.

        The attempt is not suspended while the other step is in progress, so the wait would never end.
        """
        call = _called_by.get(None)
        # A task that the function has begun may outlive it, and may wait then.
        if call is not None and call.is_running:
            raise RuntimeError(
                f"step {shown_name(name)!r} waits within the function of step {call.step!r}, which would "
                "never end; wait between steps"
            )


def _check_is_open(first_transaction: object, session: Connection, name: str) -> None:
    """Raise ValueError if the function of a step has ended the transaction that stores the step.

    ``first_transaction`` is the one that was open when the function was called, by ``open_transaction_of()``.
    """
    if open_transaction_of(session) != first_transaction:
        raise ValueError(
            f"the transaction of step {name!r} has ended within its function; leave its COMMIT or ROLLBACK "
            "to the code that has opened it"
        )


def _is_over(failed: StoredStep) -> bool:
    """Return whether a step that has failed may be called: its wait is over, or its retries were used up."""
    return failed.has_ended or failed.left_s is None or failed.left_s <= 0


def _timed_out(stored: StoredStep, count: int) -> StoredStep:
    """Return a wait for a signal as it was when it had timed out, after ``count`` earlier timeouts."""
    return stored._replace(value=None, has_ended=True, until=stored.timeouts[count])


class AttemptCursor(StepCursor):
    """How far a loop has come in this attempt. Values are kept as JSON, since objects may change."""

    def __init__(self, steps: AttemptSteps, name: str, value: Any) -> None:
        self._steps = steps
        self._name = name
        # The newest value, as JSON.
        self._text = steps.cursor_text(name, value)
        # The value that need not be written again, as JSON; None for none.
        self._written: str | None = self._text
        # Whether flush() has to write the newest value, unless it is written. A value that was saved in a
        # transaction of the caller is left to this transaction.
        self._is_pending = False
        self._is_closed = False
        # When the value may be written again, by the monotonic clock.
        self._next_write = time.monotonic() + CURSOR_GAP_S

    @property
    def value(self) -> Any:
        """The last value, as JSON carries it. See `StepCursor`."""
        return value_from(self._text)

    async def set(self, value: Any) -> None:
        """Set the value, and write it if that is due: at most once a second. See `StepCursor`."""
        self._check_open()
        self._text = self._steps.cursor_text(self._name, value)
        self._is_pending = True
        if time.monotonic() >= self._next_write:
            await self.flush()

    async def save(self, value: Any = UNSET, *, connection: Any = None) -> None:
        """Write the value now, alone or with the transaction of a connection. See `StepCursor`."""
        self._check_open()
        text = self._text if value is UNSET else self._steps.cursor_text(self._name, value)
        if connection is None:
            self._text, self._is_pending = text, True
            await self.flush()
        else:
            # The caller may roll this value back. A value that was set before the transaction must be stored
            # then, so it is written first. But if the transaction has stored a step already, it has locked
            # the row of the job, and a value that was set since is rolled back with it.
            if self._is_pending and not await self._steps.has_open_transaction(connection):
                await self.flush()
            await self._steps.write_cursor(self._name, value_from(text), connection)
            # If the caller rolls this value back, flush() must not store it, so it is not pending. A repeated
            # save() must write it again although it is the same, so it does not count as written either.
            self._text, self._written, self._is_pending = text, None, False

    async def flush(self) -> None:
        """Write the value, unless it is written or belongs to a transaction of the caller."""
        # Another task may set a new value during the write, which then still has to be written.
        text = self._text
        if self._is_pending and text != self._written:
            await self._steps.write_cursor(self._name, value_from(text))
            self._written = text
            self._next_write = time.monotonic() + CURSOR_GAP_S

    async def flush_at_end(self) -> None:
        """Write the value when an exception ends the block. An error of the write is not raised."""
        with suppress(SchedulerError):
            await self.flush()

    def close(self) -> None:
        """Refuse further values: the block ends, and nothing would write them."""
        self._is_closed = True

    def _check_open(self) -> None:
        """Raise RuntimeError if the block of the cursor has ended."""
        if self._is_closed:
            raise RuntimeError(
                f"the block of cursor {self._name!r} has ended; set its value within the block"
            )
