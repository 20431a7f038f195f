"""The durable steps of an attempt: store them under its fencing token, and suspend it while its job waits.

A suspension is an outcome. When all code of the attempt waits for steps, its task is cancelled, and the
coroutine ends. Only then the row changes, in the batch of the other outcomes, so attempts never overlap.
Until then a step that ends continues the call that waits for it.
"""

from __future__ import annotations

import asyncio
import math
import threading
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
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import Context, ContextVar
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar
from weakref import WeakSet

from pg_scheduler.base.foreign import current_task, is_ctrl_c
from pg_scheduler.base.text.numbers import counted
from pg_scheduler.database.session import Connection
from pg_scheduler.errors import (
    DatabaseUnavailableError,
    DuplicateStepError,
    JobLostError,
    JobResult,
    PayloadError,
    PoolClosedError,
    SchedulerError,
)
from pg_scheduler.events.background import start_in_background
from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.jobs.model import UNSET, Call
from pg_scheduler.jobs.payload import value_from
from pg_scheduler.jobs.retry import Abort
from pg_scheduler.jobs.step_values import (
    CHILD,
    CURSOR,
    FIRST,
    MAX_STEP_BYTES,
    MAX_STEPS,
    NO_TIMEOUT,
    SIGNAL,
    SLEEP,
    STEP,
    ReturnType,
    SignalType,
    StoredStep,
    check_step_function,
    check_step_name,
    step_text,
    step_value,
    version_of,
)
from pg_scheduler.jobs.steps import Child, First, Sleep, StepCursor, Suspension, Wait, check_waits
from pg_scheduler.jobs.validation import check_delay, check_execution_time
from pg_scheduler.queue.passed_results import RESULTS_AT_ONCE
from pg_scheduler.steps.child_jobs import EnqueueChild
from pg_scheduler.steps.children import ChildJob, Children
from pg_scheduler.steps.statements import StepRepository
from pg_scheduler.worker.in_flight import Attempt, OpenSteps
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.waiting import (
    OWN_TASK_PREFIX,
    continues_after,
    describe_task,
    tasks_by_attempt,
    thread_waits,
    waits_for_steps,
)

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

RETRY_DELAY_S: Final = 0.2
"""Seconds between two attempts to reach the database."""

CURSOR_GAP_S: Final = 1.0
"""Seconds between two writes of a cursor."""

MIN_PAUSE_S: Final = 0.001
MAX_PAUSE_S: Final = 0.25
"""The shortest and the longest pause between two looks whether all code of an attempt waits."""

LOOK_INTERVAL_S: Final = 1.0
"""Seconds between two looks for the ends of steps for which an attempt waits in memory."""


@dataclass(slots=True)
class StepCall:
    """A call of the function of a step. Tasks that the function has begun may outlive it."""

    step: str
    is_running: bool = True


_called_by: Final[ContextVar[StepCall]] = ContextVar("pg_scheduler_step")
"""The call of a step's function in whose context this code runs."""


calling_thread: Final[ContextVar[threading.Thread]] = ContextVar("pg_scheduler_calling_thread")
"""The thread that calls a step from outside of the event loop."""


class OpenTransaction(NamedTuple):
    """A transaction of the caller that has locked the row of its job, by a step that commits with it."""

    step: str
    connection: Connection
    transaction_id: int
    caller: object


class CallersStep(NamedTuple):
    """A step that was stored or found in a transaction of the caller, whose end is not reported.

    Attributes:
        connection: That of the transaction.
        transaction_id: The transaction; of a cursor, the last one.
        size: The room that the step takes.
        has_failed: Whether it is a cursor whose block has raised an exception.
    """

    connection: Connection
    transaction_id: int
    size: int
    has_failed: bool = False


class WaitingCall(NamedTuple):
    """A call that waits for steps, and the task or thread that made it.

    Attributes:
        since: When it began, by the clock of the event loop.
    """

    suspensions: tuple[Suspension, ...]
    caller: object
    since: float


@dataclass(frozen=True)
class PendingWait:
    """A sleep, a signal or children that code of an attempt waits for."""

    name: str
    kind: str
    find: Callable[[], Awaitable[StoredStep]]
    """Returns the step, after it was stored if it is new."""
    take: Callable[[StoredStep], Awaitable[Any]]
    """Returns the value of the step, which has ended."""
    snapshots: list[StoredStep] = field(default_factory=list)

    @property
    def stored(self) -> StoredStep:
        """The step as it was seen last."""
        return self.snapshots[-1]

    async def look(self) -> None:
        """See whether the step has ended."""
        self.snapshots[:] = [await self.find()]

    async def value(self) -> Any:
        """Return the value, or raise the error that stands for it."""
        return await self.take(self.stored)


class AttemptSteps(OpenSteps):
    """The durable steps of one attempt.

    Those of earlier attempts are loaded by the first call, if the job is marked. A call that was cancelled
    may have stored one, so the next call loads them again.
    """

    def __init__(
        self, steps: StepRepository, enqueue_child: EnqueueChild, node: Node, attempt: Attempt
    ) -> None:
        claim = attempt.claim
        self._repository = steps
        self._results = node.store.results
        self._passed = node.store.passed_results
        self._connections = node.store.connections
        self._children = Children(node, steps, enqueue_child)
        self._codec = node.store.statements.codec
        self._max_value_bytes = node.config.max_result_bytes
        self._worker_id = node.worker_id
        self._lease = node.lease
        self._attempt = attempt
        self._claim = claim
        task = node.tasks.resolve(claim.function)
        mark = version_of(claim.options)
        self._version = mark or (1 if task is None else task.version)
        self._is_marked = mark is not None
        self._stored: dict[str, StoredStep] | None = None if self._is_marked else {}
        self._loading = asyncio.Lock()
        self._writes = 0
        self._bytes = 0
        self._names: set[str] = set()
        self._timeouts = Counter[str]()
        self._in_progress = 0
        self._waiting: dict[asyncio.Future[None], WaitingCall] = {}
        self._threads = WeakSet[threading.Thread]()
        self._pass = node.suspensions
        self._child_waits = node.child_waits
        self._is_kept = False
        self._timer: asyncio.Handle | None = None
        self._pause_s = MIN_PAUSE_S
        self._look_at = math.inf
        self._looking: asyncio.Task[None] | None = None
        self._is_closed = False
        self._open_transaction: OpenTransaction | None = None
        self._callers_steps: dict[str, CallersStep] = {}

    @property
    def version(self) -> int:
        """See `Steps`."""
        return self._version

    async def run(
        self, name: str, func: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """See `Steps`."""
        check_step_function(func)
        kind = ReturnType(func)
        async with self._step(name, STEP) as previous_step:
            if (stored := previous_step) is None:
                with self._calling(name, func):
                    value = await func(*args, **kwargs)
                stored = await self._store(name, STEP, kind.to_json(name, value))
            result: R = kind.from_json(name, step_value(name, stored.value, self._codec))
        return result

    async def transaction(
        self,
        name: str,
        func: Callable[..., Awaitable[R]],
        /,
        *args: Any,
        connection: Any = None,
        **kwargs: Any,
    ) -> R:
        """See `Steps`."""
        check_step_function(func)
        kind = ReturnType(func)
        async with self._step(name, STEP, connection) as previous_step:
            if (stored := previous_step) is not None:
                if connection is not None:
                    await self._note_step(stored, await self._connections.check_transaction(connection))
            else:
                async with self._transaction(connection) as (func_connection, session):
                    with self._calling(name, func):
                        value = await func(func_connection, *args, **kwargs)
                    stored = await self._store(name, STEP, kind.to_json(name, value), connection=session)
                    if connection is not None:
                        await self._note_transaction(stored, session)
                # With a connection of the caller, it is not yet known whether the transaction commits.
                if connection is None:
                    self._keep(stored)
            result: R = kind.from_json(name, step_value(name, stored.value, self._codec))
        return result

    @asynccontextmanager
    async def cursor(self, name: str, *, start: Any = None) -> AsyncIterator[StepCursor]:
        """See `Steps`."""
        async with self._step(name, CURSOR) as previous_step:
            value = start if previous_step is None else step_value(name, previous_step.value, self._codec)
        cursor = AttemptCursor(self, name, value)
        try:
            yield cursor
        except GeneratorExit:  # Python closes the coroutine, which cannot wait any more
            raise
        except BaseException:  # whatever it was
            # The value is that of work which was done, so it is stored although the attempt ends.
            with suppress(SchedulerError):
                await cursor.flush()
            if name in self._callers_steps:
                self._callers_steps[name] = self._callers_steps[name]._replace(has_failed=True)
            else:
                self._names.discard(name)
            raise
        finally:
            cursor.close()
        await cursor.flush()

    async def sleep(
        self, name: str, delay: float | timedelta | None = None, *, until: datetime | None = None
    ) -> None:
        """See `Steps`."""
        await self._alone(self._sleep(name, delay, until))

    async def wait(
        self, name: str, *, timeout: float | timedelta | None = None, kind: type[Any] | None = None
    ) -> Any:
        """See `Steps`."""
        return await self._alone(self._signal(name, timeout, kind))

    async def first(self, name: str, *waits: Wait | Sleep | Child) -> First:
        """See `Steps`."""
        begun = {wait.name: self._alternative(wait) for wait in check_waits(waits)}
        self._check_may_wait(name)
        pending = list(begun.values())
        async with self._step(name, FIRST) as previous_step:
            await self._take_names(begun)
            try:
                if previous_step is not None:
                    pending = [self._winner(previous_step, begun)]
                for wait in pending:
                    await wait.look()
            except BaseException:
                self._names -= begun.keys()
                raise
        try:
            winner = await self._first_of(pending)
            if previous_step is None:
                await self._store(name, FIRST, winner.name)
        except BaseException:
            self._names -= {name, *begun}
            raise
        # The job may wait again, by their names, for the ones that were not the first.
        self._names -= begun.keys() - {winner.name}
        with self._freed_if_cancelled({name, winner.name}):
            return First(winner.name, await winner.value())

    async def predecessors(self) -> AsyncIterator[JobResult]:
        """See `OpenSteps`."""
        if not self._is_marked:
            return
        job_id, passed = self._claim.job_id, self._passed
        names = await self._persistently(lambda: passed.names(job_id))
        for start in range(0, len(names), RESULTS_AT_ONCE):
            page = names[start : start + RESULTS_AT_ONCE]
            for result in await self._persistently(partial(passed.get, job_id, page)):
                yield result

    async def child(self, name: str, func: Call[R], /, **options: Any) -> R:
        """See `Steps`."""
        check_step_name(name)
        values = await self._values_of(name, [ChildJob.of(self._claim.job_id, name, None, func, options)])
        value: R = self._only_value(name, values)
        return value

    async def gather(self, name: str, calls: Sequence[Call[R]]) -> list[R]:
        """See `Steps`."""
        check_step_name(name)
        argument: Any = calls
        if not isinstance(argument, Iterable):
            kind = type(argument).__name__
            raise TypeError(f"gather() needs a list of calls, not {kind}; pass [call(function, argument)]")
        return await self._values_of(
            name,
            [ChildJob.of(self._claim.job_id, name, number, call) for number, call in enumerate(calls)],
        )

    async def _values_of(self, name: str, jobs: Sequence[ChildJob]) -> list[Any]:
        """Return the values of children, or raise the error of the first one that has none."""
        values: list[Any] = await self._alone(self._children_of(name, jobs))
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

    # -- what waits ------------------------------------------------------------------------------------

    def _alternative(self, wait: Wait | Sleep | Child) -> PendingWait:
        """Return one of several waits."""
        match wait:
            case Wait(name, kind):
                return self._signal(name, None, kind)
            case Sleep(name, delay, until):
                return self._sleep(name, delay, until)
            case Child(name, func, options):
                job = ChildJob.of(self._claim.job_id, name, None, func, options)
                children = self._children_of(name, [job])

                async def only(stored: StoredStep) -> Any:
                    return self._only_value(name, await children.take(stored))

                return replace(children, take=only)

    def _sleep(self, name: str, delay: float | timedelta | None, until: datetime | None) -> PendingWait:
        if (delay is None) == (until is None):
            raise TypeError(f"sleep {name!r} needs either a delay or until=, not both; pass one of them")
        seconds = None if delay is None else check_delay("delay", delay)
        end = None if until is None else check_execution_time(until, name="until")

        async def find() -> StoredStep:
            stored = await self._known(name, SLEEP)
            if stored is None:
                stored = await self._store(name, SLEEP, delay_s=seconds, until=end)
            return stored._replace(has_ended=await self._end_if_over(stored))

        async def take(_: StoredStep) -> None: ...

        return PendingWait(name, SLEEP, find, take)

    def _signal(self, name: str, timeout: float | timedelta | None, kind: type[Any] | None) -> PendingWait:
        seconds = None if timeout is None else check_delay("timeout", timeout)
        end = NO_TIMEOUT if seconds is None else None
        value_type = SignalType(kind)
        store = partial(self._store, name, SIGNAL, delay_s=seconds, until=end)

        async def find() -> StoredStep:
            stored = await self._known(name, SIGNAL)
            count = self._timeouts[name]
            if stored is None:
                stored = await store()
            elif seconds is None:
                # What times out is another wait for this name, which begins after this one was cancelled.
                if stored.has_ended and stored.value is None:
                    stored = await self._repeat_wait(name, len(stored.timeouts) + 1, None, end)
                return stored if stored.has_ended else stored._replace(until=NO_TIMEOUT, left_s=None)
            elif count < len(stored.timeouts):
                return stored._replace(value=None, has_ended=True, until=stored.timeouts[count])
            elif count > len(stored.timeouts) or (not stored.has_ended and stored.until == NO_TIMEOUT):
                stored = await self._repeat_wait(name, count, seconds, end)
            if not stored.has_ended and await self._end_if_over(stored):
                stored = await store()  # which finds a signal that came before the end of the wait
            return stored

        async def take(stored: StoredStep) -> Any:
            if stored.value is None:
                self._timeouts[name] += 1
                self._names.discard(name)
                raise TimeoutError(
                    f"no signal {name!r} came for job {self._claim.job_id!r} until {stored.until}"
                )
            return value_type.from_json(name, step_value(name, stored.value, self._codec))

        return PendingWait(name, SIGNAL, find, take)

    def _children_of(self, name: str, jobs: Sequence[ChildJob]) -> PendingWait:
        kinds = [ReturnType(job.call.func) for job in jobs]

        async def find() -> StoredStep:
            stored = await self._known(name, CHILD)
            if stored is None or not (stored.has_ended or stored.is_awaited):
                self._check_room(name, await self._load(), None, count=len(jobs))
                stored = await self._persistently(
                    partial(self._children.insert, self._claim, name, jobs, self._version)
                )
                self._keep(stored)
            return stored

        async def take(stored: StoredStep) -> list[Any]:
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
            # The stored children are those of the first attempt, which may have started more of them.
            return [*converted, *values[len(kinds) :]]

        return PendingWait(name, CHILD, find, take)

    async def _alone(self, wait: PendingWait) -> Any:
        """Wait for one step, and return its value."""
        self._check_may_wait(wait.name)
        async with self._step(wait.name, wait.kind):
            await wait.look()
        try:
            await self._first_of([wait])
        except BaseException:
            self._names.discard(wait.name)
            raise
        with self._freed_if_cancelled({wait.name}):
            return await wait.value()

    @contextmanager
    def _freed_if_cancelled(self, names: Collection[str]) -> Iterator[None]:
        """Free the names of waits that have ended if their caller is cancelled before it gets the value."""
        try:
            yield
        except asyncio.CancelledError:
            self._names.difference_update(names)
            raise

    async def _first_of(self, waits: Sequence[PendingWait]) -> PendingWait:
        """Return the first of several waits in their order that has ended, as soon as one has."""
        while (ended := next((wait for wait in waits if wait.stored.has_ended), None)) is None:
            await self._check_open()
            await self._suspended([wait.stored for wait in waits])
            with self._progressing():
                for wait in waits:
                    await wait.look()
        return ended

    def _winner(self, stored: StoredStep, waits: Mapping[str, PendingWait]) -> PendingWait:
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
        """Let a wait begin again that has timed out so many times, or that has another kind of end."""
        await self._check_transaction(name, None)
        repeat = partial(self._repository.repeat_wait, self._worker_id, self._claim, name, count)
        await self._persistently(partial(repeat, delay_s=seconds, until=end))
        steps = await self._persistently(lambda: self._repository.load(self._claim.job_id))
        self._refresh(steps, {name})
        return (await self._load())[name]

    def close(self) -> None:
        """See `OpenSteps`."""
        self._is_closed = True
        self._set_timer(None)
        self._release()

    # -- a step ----------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _step(self, name: str, kind: str, connection: Any = None) -> AsyncIterator[StoredStep | None]:
        """Use a name in a block, and yield the step that is stored under it; None if there is none.

        ``connection`` is that of the caller, if the step commits with its transaction. The attempt is not
        suspended within the block. A block that raises an exception may be repeated.
        """
        check_step_name(name)
        self._connections.check_loop()
        await self._check_open()
        if (thread := calling_thread.get(None)) is not None:
            self._threads.add(thread)
        if name in self._names and name in self._callers_steps:
            await self._free_rolled_back(name, connection)
        await self._take_names([name])
        try:
            with self._progressing():
                stored = await self._known(name, kind)
                if stored is None or not stored.has_ended:
                    await self._check_transaction(name, connection)
                yield stored
        except BaseException as error:
            self._names.discard(name)
            # The row of a step that was cancelled while it was written may be committed nevertheless.
            if isinstance(error, asyncio.CancelledError):
                self._forget_loaded()
            raise

    async def _take_names(self, names: Collection[str]) -> None:
        """Use names in this attempt."""
        if not self._names.isdisjoint(names):
            # A wait that has just been cancelled frees its name when its task runs.
            await asyncio.sleep(0)
        for name in names:
            if name in self._names:
                raise DuplicateStepError(
                    f"step {name!r} occurs twice in attempt {self._claim.attempt} of job "
                    f'{self._claim.job_id!r}; use names such as f"{name}-{{number}}"'
                )
        self._names.update(names)

    async def _known(self, name: str, kind: str) -> StoredStep | None:
        """Return the step that is stored under a name; None if there is none."""
        return self._checked(kind, (await self._load()).get(name))

    def _checked(self, kind: str, stored: StoredStep | None) -> StoredStep | None:
        """Return a step unless it is of another kind. Signals have names of their own."""
        if stored is None or stored.kind == kind:
            return stored
        if stored.is_early_signal:
            return None
        raise DuplicateStepError(
            f"step {stored.name!r} of job {self._claim.job_id!r} is stored as another kind of step, "
            f"{stored.kind!r} instead of {kind!r}; use another name"
        )

    async def _check_open(self) -> None:
        """Let the attempt end that is suspended or has ended."""
        if self.suspensions:
            await asyncio.sleep(0)  # a loop that swallows the exception must not block the event loop
            raise asyncio.CancelledError
        self._check_held()

    def _check_held(self) -> None:
        """Raise JobLostError if the attempt has ended, or its code completes the job.

        A step would wait for the job's row, which a transaction of the caller holds until its commit.
        """
        if self._is_closed:
            raise JobLostError(self._claim.job_id)
        if self._attempt.end is not None:
            error = JobLostError(self._claim.job_id)
            error.add_note("its block of completing() has ended; write steps before the end of the block")
            raise error

    @contextmanager
    def _progressing(self) -> Iterator[None]:
        """Delay suspensions until the end of the block."""
        self._in_progress += 1
        try:
            yield
        finally:
            self._in_progress -= 1
            self._look_soon()

    async def _load(self) -> dict[str, StoredStep]:
        """Return the steps that are stored, by name."""
        if self._stored is None:
            async with self._loading:
                while self._stored is None:
                    writes = self._writes
                    steps = await self._persistently(lambda: self._repository.load(self._claim.job_id))
                    # If a step was committed meanwhile, the rows may lack it, so they are read again.
                    if writes == self._writes:
                        self._bytes = sum(map(_size, steps))
                        self._stored = {step.name: step for step in steps}
        return self._stored

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
        """Store a step. A sleep or a wait has a length or an end, and no value.

        A step that commits with the transaction of a connection counts once that has committed.
        """
        text = None
        if delay_s is None and until is None:
            text = step_text(name, value, self._max_value_bytes, self._codec, self._claim.job_name)
        stored = await self._load()
        try:
            self._check_room(name, stored, text)
        except PayloadError:
            if not self._callers_steps:
                raise
            await self._count_callers_steps()
            stored = await self._load()
            self._check_room(name, stored, text)
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
        if connection is not None:
            return await store(connection=connection, must_be_new=kind == STEP)
        step = await self._persistently(store)
        if (previous_step := stored.get(name)) is not None:
            step = step._replace(timeouts=previous_step.timeouts)
        self._keep(step)
        return step

    def _keep(self, step: StoredStep) -> None:
        """Count a step that is committed."""
        self._writes += 1
        # As long as the steps are not loaded, this one will be loaded with the others.
        if self._stored is not None:
            self._bytes += _size(step) - _size(self._stored.get(step.name))
            self._stored[step.name] = step
        self.has_stored = True

    async def write_cursor(self, name: str, value: Any, connection: Any = None) -> None:
        """Store the value of a cursor, also while the attempt ends.

        Args:
            name: The name of the cursor.
            value: Its value.
            connection: That of a caller in a transaction; None to commit the value at once.
        """
        self._check_held()
        with self._progressing():
            session = None if connection is None else await self._connections.check_transaction(connection)
            await self._check_transaction(name, session)
            stored = await self._store(name, CURSOR, value, connection=session)
            if session is not None:
                await self._note_transaction(stored, session)

    def cursor_text(self, name: str, value: Any) -> str:
        """Return the value of a cursor as JSON, which it is compared by.

        Raises:
            PayloadError: JSON cannot represent it, or it is too large.
        """
        return step_text(name, value, self._max_value_bytes)

    @asynccontextmanager
    async def _transaction(self, connection: Any) -> AsyncIterator[tuple[Any, Connection]]:
        """Yield what the function of a step gets as a connection, and the connection that stores the step."""
        if connection is not None:
            yield connection, await self._connections.check_transaction(connection)
            return
        async with self._connections.transaction_of_job() as session:
            yield session, session

    async def _note_transaction(self, stored: StoredStep, connection: Connection) -> None:
        """Note that the transaction of the caller has locked the row of the job by a step."""
        step = await self._note_step(stored, connection)
        self._open_transaction = OpenTransaction(stored.name, connection, step.transaction_id, _caller())

    async def _note_step(self, stored: StoredStep, connection: Connection) -> CallersStep:
        """Note that a step was stored or found in the transaction of the caller, which may be rolled back."""
        transaction_id = await self._results.transaction_id(connection)
        step = CallersStep(connection, transaction_id, _size(stored))
        self._callers_steps[stored.name] = step
        return step

    async def _free_rolled_back(self, name: str, connection: Any) -> None:
        """Free the name of a step if the transaction of the caller in which it was used was rolled back.

        That of a cursor whose block has failed is free when the transaction has ended.

        Args:
            name: The name.
            connection: That of the caller now, on which a savepoint may have been rolled back.
        """
        step, job_id = self._callers_steps[name], self._claim.job_id
        session = None if connection is None else await self._connections.check_transaction(connection)
        if session is not step.connection:
            session = None
            if await self._repository.is_locked_by(job_id, step.transaction_id):
                return
        if not (step.has_failed or await self._repository.has_rolled_back(step.transaction_id)):
            steps = await self._persistently(partial(self._repository.load, job_id, connection=session))
            if name in {stored.name for stored in steps}:
                return
        self._names.discard(name)
        del self._callers_steps[name]
        self._forget_loaded()

    async def _count_callers_steps(self) -> None:
        """Load the steps that are committed by now, and forget those that were rolled back."""
        self._forget_loaded()
        stored = await self._load()
        for name, step in list(self._callers_steps.items()):
            size = _size(stored.get(name))
            if name in stored and size == step.size:
                continue
            if not await self._repository.is_locked_by(self._claim.job_id, step.transaction_id):
                if name in stored:
                    self._callers_steps[name] = step._replace(size=size)
                else:
                    del self._callers_steps[name]

    def _forget_loaded(self) -> None:
        """Let the next call load the steps again, of which others may have been committed meanwhile."""
        self._stored = None
        self._writes += 1

    async def _check_transaction(self, name: str, connection: Any) -> None:
        """Raise RuntimeError if a step would wait for a transaction whose caller waits for this step.

        Another task or thread of the job may commit it meanwhile. Then the step waits.
        """
        noted, caller = self._open_transaction, _caller()
        if noted is None or not (noted.caller is caller or continues_after(noted.caller, caller)):
            return
        session = None if connection is None else await self._connections.check_transaction(connection)
        if session is noted.connection:
            return
        if await self._repository.is_locked_by(self._claim.job_id, noted.transaction_id):
            raise RuntimeError(
                f"step {name!r} of job {self._claim.job_id!r} would wait for the transaction with which step "
                f"{noted.step!r} commits, and which is still open; commit it before, or pass the same "
                "connection= to this step"
            )
        self._open_transaction = None

    def _check_room(
        self, name: str, stored: dict[str, StoredStep], text: str | None, *, count: int = 1
    ) -> None:
        """Raise PayloadError if a step exceeds what one job may store; ``count`` is that of its children."""
        names = {key for key, step in stored.items() if not step.is_early_signal}
        count = max(len(names | self._callers_steps.keys() | {name}), count)
        if count > MAX_STEPS:
            raise PayloadError(
                f"step {name!r} is number {count} of job {self._claim.job_id!r}, more than {MAX_STEPS}; "
                "store the values of several steps in one, or divide the work among several jobs"
            )
        size = self._bytes + len(text or "") - _size(stored.get(name))
        size += sum(
            step.size - _size(stored.get(key)) for key, step in self._callers_steps.items() if key != name
        )
        if size > MAX_STEP_BYTES:
            raise PayloadError(
                f"with step {name!r} the values of job {self._claim.job_id!r} have {size} bytes of JSON, "
                f"more than {MAX_STEP_BYTES}; store them elsewhere and return ids or paths"
            )

    async def _end_if_over(self, stored: StoredStep) -> bool:
        """Store the end of a sleep or a wait that has reached it; return whether it has."""
        if stored.has_ended:
            return True
        if stored.left_s is None or stored.left_s > 0:
            return False
        await self._persistently(lambda: self._repository.end(self._worker_id, self._claim, stored.name))
        self._refresh([stored._replace(has_ended=True)], {stored.name})
        return True

    async def _persistently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call, and again while the database is unavailable and the lease is trusted."""
        while True:
            try:
                return await call()
            except DatabaseUnavailableError as fault:
                if isinstance(fault, PoolClosedError) or not self._lease.is_trusted:
                    raise
            await asyncio.sleep(RETRY_DELAY_S)

    @contextmanager
    def _calling(self, name: str, func: Callable[..., Any]) -> Iterator[None]:  # noqa: ARG002 - for a test kit
        """Note in the context which step calls its function."""
        call = StepCall(name)
        token = _called_by.set(call)
        try:
            yield
        except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
            # asyncio passes the first two on to the event loop, unless the task of the attempt raises them.
            if self._attempt.is_stepped or current_task() is None or is_ctrl_c(error):
                raise
            self._attempt.exit(error)
            raise asyncio.CancelledError from error
        finally:
            call.is_running = False
            _called_by.reset(token)

    # -- suspension ------------------------------------------------------------------------------------

    def _check_may_wait(self, name: str) -> None:
        call = _called_by.get(None)
        if call is not None and call.is_running:
            raise RuntimeError(
                f"step {name!r} waits within the function of step {call.step!r}, which would never end; "
                "wait between steps"
            )

    async def _suspended(self, steps: Sequence[StoredStep]) -> None:
        """Wait until one of several steps may have ended, or the attempt is suspended, which cancels this."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiting[waiter] = WaitingCall(tuple(map(_suspension, steps)), _caller(), loop.time())
        self._is_kept = False
        left_s = min(
            (step.left_s for step in steps if step.kind != CHILD and step.left_s is not None), default=0
        )
        self._look_at = min(self._look_at, loop.time() + min(max(left_s, MIN_PAUSE_S), LOOK_INTERVAL_S))
        self._look_soon()
        try:
            await waiter
        finally:
            del self._waiting[waiter]
            self._child_waits.discard(self.key)

    def _release(self) -> None:
        """Cancel the calls that wait."""
        for waiter in self._waiting:
            waiter.cancel()

    @property
    def _may_end(self) -> bool:
        """Whether the attempt may be suspended: some of its code waits, and no step is in progress."""
        return bool(self._waiting) and not (self._in_progress or self.suspensions or self._is_closed)

    def _look_soon(self) -> None:
        """Look whether all code waits, as soon as what runs now has come to its next wait."""
        self._pause_s = MIN_PAUSE_S
        if self._waiting:
            self._set_timer(asyncio.get_running_loop().call_soon(self._look, context=Context()))

    def _set_timer(self, timer: asyncio.Handle | None) -> None:
        previous_timer, self._timer = self._timer, timer
        if previous_timer is not None:
            previous_timer.cancel()

    def _look(self) -> None:
        """Suspend the attempt if all of its code waits; else find out what has ended, and look later."""
        if not self._waiting or self.suspensions or self._is_closed:
            return
        if self._may_end and self._attempt.call is None and self._function_waits():
            self._pass.request(self)
        elif self._may_end and self._attempt.call is not None and self._all_threads_wait():
            self._suspend()
            return
        else:
            self._is_kept = True
        loop = asyncio.get_running_loop()
        self._set_timer(loop.call_later(self._pause_s, self._look, context=Context()))
        self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)
        if loop.time() >= self._look_at and self._looking is None:
            if self._is_kept and self._has_awaited_children(loop.time() - LOOK_INTERVAL_S):
                self._child_waits.add(self.key, self._claim)
            self._looking = start_in_background(self._find_ends(), f"{OWN_TASK_PREFIX}waits", Context())

    def _has_awaited_children(self, since: float) -> bool:
        """Return whether a call has waited for children since an instant."""
        return any(
            call.since <= since and any(suspension.kind == CHILD for suspension in call.suspensions)
            for call in self._waiting.values()
        )

    @property
    def key(self) -> int:
        """See `Waiting`."""
        return id(self._attempt)

    def decide(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        """See `Waiting`."""
        if self._may_end and all(waits_for_steps(task, self._waiting) for task in tasks):
            self._suspend()
        else:
            self._is_kept = True

    def suspend_at_timeout(self) -> bool:
        """See `OpenSteps`."""
        if not self._may_end:
            return False
        if self._attempt.call is not None:
            function_thread = self._attempt.call.thread
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
            descriptions = [describe_task(task) for task in tasks if not waits_for_steps(task, self._waiting)]
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
        task = self._attempt.task
        return task is not None and waits_for_steps(task, self._waiting)

    def _waiting_threads(self) -> set[threading.Thread]:
        callers = (call.caller for call in self._waiting.values())
        return {caller for caller in callers if isinstance(caller, threading.Thread)}

    def _all_threads_wait(self) -> bool:
        function_thread = self._attempt.call and self._attempt.call.thread
        waiting = self._waiting_threads()
        threads = {*self._threads, *([function_thread] if function_thread else [])}
        return all(thread_waits(thread, waiting) for thread in threads)

    def _suspend(self) -> None:
        """End the attempt."""
        suspensions = {suspension for call in self._waiting.values() for suspension in call.suspensions}
        self.suspensions = tuple(sorted(suspensions, key=attrgetter("until", "kind", "name")))
        self._set_timer(None)
        self._attempt.interrupt()
        # The code of such an attempt runs in a thread, which waits for these calls and cannot be cancelled.
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
        names = {suspension.name for call in self._waiting.values() for suspension in call.suspensions}
        self._refresh(steps, names)
        over = {step.name for step in steps if _may_continue(step)}
        for waiter, call in self._waiting.items():
            if not waiter.done() and over & {suspension.name for suspension in call.suspensions}:
                waiter.set_result(None)
                self._set_timer(None)
        self._look_soon()

    def _refresh(self, steps: Sequence[StoredStep], names: Collection[str]) -> None:
        """Replace some of the steps that are loaded."""
        if self._stored is None:
            return
        for step in steps:
            if step.name in names:
                self._bytes += _size(step) - _size(self._stored.get(step.name))
                self._stored[step.name] = step


class AttemptCursor(StepCursor):
    """How far a loop has come in this attempt. Values are kept as JSON, since objects may change."""

    def __init__(self, steps: AttemptSteps, name: str, value: Any) -> None:
        self._steps = steps
        self._name = name
        self._text = steps.cursor_text(name, value)
        self._written: str | None = self._text
        self._is_pending = self._is_closed = False
        self._next_write = time.monotonic() + CURSOR_GAP_S

    @property
    def value(self) -> Any:
        """See `StepCursor`."""
        return value_from(self._text)

    async def set(self, value: Any) -> None:
        """See `StepCursor`."""
        self._check_open()
        self._text = self._steps.cursor_text(self._name, value)
        self._is_pending = True
        if time.monotonic() >= self._next_write:
            await self.flush()

    async def save(self, value: Any = UNSET, *, connection: Any = None) -> None:
        """See `StepCursor`."""
        self._check_open()
        text = self._text if value is UNSET else self._steps.cursor_text(self._name, value)
        if connection is None:
            self._text, self._is_pending = text, True
            await self.flush()
        else:
            # The caller may roll the value back. So flush() must not store it, and a repeated save() must
            # write it again although it is the same.
            await self._steps.write_cursor(self._name, value_from(text), connection)
            self._text, self._written, self._is_pending = text, None, False

    async def flush(self) -> None:
        """Write the value, unless it is written or belongs to a transaction of the caller."""
        text = self._text
        if self._is_pending and text != self._written:
            await self._steps.write_cursor(self._name, value_from(text))
            self._written = text
            self._next_write = time.monotonic() + CURSOR_GAP_S

    def close(self) -> None:
        """Refuse further values: the block ends, and nothing would write them."""
        self._is_closed = True

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError(
                f"the block of cursor {self._name!r} has ended; set its value within the block"
            )


def _suspension(step: StoredStep) -> Suspension:
    """Return why a job is suspended by a step. The end of children is no time."""
    assert step.until is not None  # noqa: S101 - of every step that waits
    return Suspension(step.kind, step.name, NO_TIMEOUT if step.kind == CHILD else step.until)


def _may_continue(step: StoredStep) -> bool:
    """Return whether a step that waited has ended, or has no more reason to wait."""
    if step.has_ended or step.kind == CHILD:
        return step.has_ended or not step.is_awaited
    return step.left_s is not None and step.left_s <= 0


def _caller() -> object:
    """Return the thread or the task that calls a step."""
    return calling_thread.get(None) or current_task()


def _size(step: StoredStep | None) -> int:
    """Return the room that a step takes."""
    return 0 if step is None or step.value is None or step.is_early_signal else len(step.value.encode())
