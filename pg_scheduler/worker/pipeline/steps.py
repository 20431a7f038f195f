"""The durable steps of an attempt: store them under its fencing token, and suspend it while its job waits.

A suspension is an outcome. The attempt waits until its other steps are stored, its task is cancelled, and the
coroutine ends. Only then the row changes, in the batch of the other outcomes, so attempts never overlap.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, NamedTuple, NoReturn, ParamSpec, TypeVar

from pg_scheduler.errors import (
    DatabaseUnavailableError,
    DuplicateStepError,
    JobLostError,
    JobResult,
    PayloadError,
    PoolClosedError,
    SchedulerError,
)
from pg_scheduler.foreign import current_task, is_ctrl_c
from pg_scheduler.jobs.model import UNSET, Call
from pg_scheduler.jobs.payload import value_from
from pg_scheduler.jobs.step_values import (
    CHILD,
    CURSOR,
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
from pg_scheduler.jobs.steps import StepCursor, Suspension
from pg_scheduler.jobs.validation import check_delay, check_execution_time
from pg_scheduler.store.connections.session import Connection
from pg_scheduler.store.passed_results import RESULTS_AT_ONCE
from pg_scheduler.worker.in_flight import Attempt, OpenSteps
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.pipeline.children import ChildJob, Children

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

RETRY_DELAY_S: Final = 0.2
"""Seconds between two attempts to reach the database."""

CURSOR_GAP_S: Final = 1.0
"""Seconds between two writes of a cursor."""

ERROR_GRACE_S: Final = 1.0
"""Seconds in which an attempt may end after an error of one of several steps, before it is suspended."""

IDLE_ITERATIONS: Final = 10
"""Iterations of the event loop in which code may continue after a step, also through gather() or wait()."""

_called_by: Final[ContextVar[str]] = ContextVar("pg_scheduler_step")
"""The name of the step whose function runs."""


calling_thread: Final[ContextVar[threading.Thread]] = ContextVar("pg_scheduler_calling_thread")
"""The thread that calls a step from outside of the event loop."""


class OpenTransaction(NamedTuple):
    """A transaction of the caller that has locked the row of its job, by a step that commits with it."""

    step: str
    connection: Connection
    transaction_id: int
    caller: object


class AttemptSteps(OpenSteps):
    """The durable steps of one attempt.

    Those of earlier attempts are loaded by the first call, if the job is marked. A call that was cancelled
    may have stored one, so the next call loads them again.
    """

    def __init__(self, node: Node, attempt: Attempt) -> None:
        claim = attempt.claim
        self._repository = node.store.steps
        self._results = node.store.results
        self._passed = node.store.passed_results
        self._connections = node.store.connections
        self._children = Children(node)
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
        self._bytes = 0
        self._names: set[str] = set()
        self._in_progress = self._ended_steps = 0
        self._has_failed = False
        self._waiting: dict[asyncio.Future[NoReturn], Suspension] = {}
        self._is_closed = False
        self._open_transaction: OpenTransaction | None = None

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
        async with self._step(name, STEP) as former:
            if (stored := former) is None:
                with self._calling(name, func):
                    value = await func(*args, **kwargs)
                stored = await self._store(name, STEP, kind.to_json(name, value))
            found: R = kind.from_json(name, step_value(name, stored.value, self._codec))
        return found

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
        async with self._step(name, STEP, connection) as former:
            if (stored := former) is None:
                async with self._transaction(connection) as (given, own):
                    with self._calling(name, func):
                        value = await func(given, *args, **kwargs)
                    stored = await self._store(name, STEP, kind.to_json(name, value), connection=own)
                    if connection is not None:
                        await self._note_transaction(name, own)
                if connection is None:  # else it is unknown whether the transaction commits
                    self._keep(stored)
            found: R = kind.from_json(name, step_value(name, stored.value, self._codec))
        return found

    @asynccontextmanager
    async def cursor(self, name: str, *, start: Any = None) -> AsyncIterator[StepCursor]:
        """See `Steps`."""
        async with self._step(name, CURSOR) as former:
            value = start if former is None else step_value(name, former.value, self._codec)
        cursor = AttemptCursor(self, name, value)
        try:
            yield cursor
        except GeneratorExit:  # Python closes the coroutine, which cannot wait any more
            raise
        except BaseException:  # whatever it was, the value is that of work that was done
            with suppress(SchedulerError):
                await cursor.flush()
            raise
        finally:
            cursor.close()
        await cursor.flush()

    async def sleep(
        self, name: str, delay: float | timedelta | None = None, *, until: datetime | None = None
    ) -> None:
        """See `Steps`."""
        if (delay is None) == (until is None):
            raise TypeError(f"sleep {name!r} needs either a delay or until=, not both; pass one of them")
        seconds = None if delay is None else check_delay("delay", delay)
        end = None if until is None else check_execution_time(until, name="until")
        self._check_may_wait(name)
        async with self._step(name, SLEEP) as former:
            if (stored := former) is None:
                stored = await self._store(name, SLEEP, delay_s=seconds, until=end)
            if await self._is_over(stored):
                return
            waiter = self._wait_for(stored)
        await self._suspended(waiter)

    async def wait(
        self, name: str, *, timeout: float | timedelta | None = None, kind: type[Any] | None = None
    ) -> Any:
        """See `Steps`."""
        seconds = None if timeout is None else check_delay("timeout", timeout)
        store = partial(
            self._store, name, SIGNAL, delay_s=seconds, until=NO_TIMEOUT if seconds is None else None
        )
        value_type, waiter = SignalType(kind), None
        self._check_may_wait(name)
        async with self._step(name, SIGNAL) as former:
            stored = former or await store()
            if not stored.has_ended and await self._is_over(stored):
                stored = await store()  # which finds a signal that came before the end of the wait
            if not stored.has_ended:
                waiter = self._wait_for(stored)
        if waiter is not None:
            await self._suspended(waiter)
        if stored.value is None:
            raise TimeoutError(f"no signal {name!r} came for job {self._claim.job_id!r} until {stored.until}")
        return value_type.from_json(name, step_value(name, stored.value, self._codec))

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
        value: R
        (value,) = await self._values_of(name, [ChildJob.of(f"{self._claim.job_id}:{name}", func, options)])
        return value

    async def gather(self, name: str, calls: Sequence[Call[R]]) -> list[R]:
        """See `Steps`."""
        check_step_name(name)
        given: Any = calls
        if not isinstance(given, Iterable):
            kind = type(given).__name__
            raise TypeError(f"gather() needs a list of calls, not {kind}; pass [call(function, argument)]")
        prefix = f"{self._claim.job_id}:{name}"
        return await self._values_of(
            name, [ChildJob.of(f"{prefix}:{number}", each) for number, each in enumerate(calls)]
        )

    async def _values_of(self, name: str, jobs: Sequence[ChildJob]) -> list[Any]:
        """Return the values of children, or raise the error of the first one that has none."""
        self._check_may_wait(name)
        kinds = [ReturnType(job.call.func) for job in jobs]
        waiter, results = None, list[JobResult]()
        async with self._step(name, CHILD) as former:
            if (stored := former) is None or not (stored.has_ended or stored.is_awaited):
                self._check_room(name, await self._load(), None, count=len(jobs))
                stored = await self._persistently(
                    partial(self._children.insert, self._claim, name, jobs, self._version)
                )
                self._keep(stored)
            if stored.has_ended:
                results = await self._persistently(partial(self._children.results, self._claim, stored))
            else:
                waiter = self._wait_for(stored)
        if waiter is not None:
            await self._suspended(waiter)
        values = [result.unwrap() for result in results]
        converted = [kind.from_json(name, value) for kind, value in zip(kinds, values, strict=False)]
        return [*converted, *values[len(kinds) :]]  # the calls are those of the first attempt

    def close(self) -> None:
        """See `OpenSteps`."""
        self._is_closed = True
        self._release()

    # -- a step ----------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _step(self, name: str, kind: str, connection: Any = None) -> AsyncIterator[StoredStep | None]:
        """Use a name in a block, and yield the step that is stored under it; None if there is none.

        ``connection`` is that of the caller, if the step commits with its transaction. The attempt is not
        suspended within the block. A block that raises an exception may be repeated.
        """
        check_step_name(name)
        await self._check_open()
        if name in self._names:
            raise DuplicateStepError(
                f"step {name!r} occurs twice in attempt {self._claim.attempt} of job {self._claim.job_id!r}; "
                f'use names such as f"{name}-{{number}}"'
            )
        self._names.add(name)
        try:
            with self._progressing():
                stored = self._checked(kind, (await self._load()).get(name))
                if stored is None or not stored.has_ended:
                    await self._check_transaction(name, connection)
                yield stored
        except BaseException as error:
            self._names.discard(name)
            if isinstance(error, asyncio.CancelledError):  # its row may be committed nevertheless
                self._stored = None
            raise

    def _checked(self, kind: str, stored: StoredStep | None) -> StoredStep | None:
        """Return a step unless it is of another kind."""
        if stored is None or stored.kind == kind:
            return stored
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
        except BaseException:  # whatever it was, it may be the end of the attempt
            self._has_failed = self._has_failed or bool(self._waiting) or self._in_progress > 1
            raise
        finally:
            self._in_progress -= 1
            if self._has_failed:
                asyncio.get_running_loop().call_later(ERROR_GRACE_S, self._end_if_idle)
            else:
                self._ended_steps += 1
                self._end_soon(IDLE_ITERATIONS, self._ended_steps)

    async def _load(self) -> dict[str, StoredStep]:
        """Return the steps that are stored, by name."""
        if self._stored is None:
            async with self._loading:
                if self._stored is None:
                    found = await self._persistently(lambda: self._repository.load(self._claim.job_id))
                    self._bytes = sum(map(_size, found))
                    self._stored = {step.name: step for step in found}
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
        self._keep(step)
        return step

    def _keep(self, step: StoredStep) -> None:
        """Count a step that is committed."""
        if self._stored is not None:  # else it is loaded with the others
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
            own = None if connection is None else await self._connections.check_transaction(connection)
            await self._check_transaction(name, own)
            await self._store(name, CURSOR, value, connection=own)
            if own is not None:
                await self._note_transaction(name, own)

    def cursor_text(self, name: str, value: Any) -> str:
        """Return the value of a cursor as JSON, which it is compared by.

        Raises:
            PayloadError: JSON cannot represent it, or it is too large.
        """
        return step_text(name, value, self._max_value_bytes)

    @asynccontextmanager
    async def _transaction(self, given: Any) -> AsyncIterator[tuple[Any, Connection]]:
        """Yield what the function of a step gets as a connection, and the connection that stores the step."""
        if given is not None:
            yield given, await self._connections.check_transaction(given)
            return
        async with self._connections.transaction_of_job() as connection:
            yield connection, connection

    async def _note_transaction(self, name: str, connection: Connection) -> None:
        """Note that the transaction of the caller has locked the row of the job by a step."""
        transaction = await self._results.transaction_id(connection)
        self._open_transaction = OpenTransaction(name, connection, transaction, _caller())

    async def _check_transaction(self, name: str, given: Any) -> None:
        """Raise RuntimeError if a step would wait for the transaction of its own caller.

        Another task or thread of the job may commit it meanwhile, so a step of those waits.
        """
        noted = self._open_transaction
        if noted is None or noted.caller is not _caller():
            return
        own = None if given is None else await self._connections.check_transaction(given)
        if own is noted.connection:
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
        count = max(len(stored) + (name not in stored), count)
        if count > MAX_STEPS:
            raise PayloadError(
                f"step {name!r} is number {count} of job {self._claim.job_id!r}, more than {MAX_STEPS}; "
                "store the values of several steps in one, or divide the work among several jobs"
            )
        size = self._bytes + len(text or "") - _size(stored.get(name))
        if size > MAX_STEP_BYTES:
            raise PayloadError(
                f"with step {name!r} the values of job {self._claim.job_id!r} have {size} bytes of JSON, "
                f"more than {MAX_STEP_BYTES}; store them elsewhere and return ids or paths"
            )

    async def _is_over(self, stored: StoredStep) -> bool:
        """Return whether a sleep or a wait has reached its end, and store that."""
        if stored.has_ended:
            return True
        if stored.left_s is None or stored.left_s > 0:
            return False
        await self._persistently(lambda: self._repository.end(self._worker_id, self._claim, stored.name))
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
        token = _called_by.set(name)
        try:
            yield
        except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
            # asyncio passes the first two on to the event loop, unless the task of the attempt raises them.
            if self._attempt.is_stepped or current_task() is None or is_ctrl_c(error):
                raise
            self._attempt.exit(error)
            raise asyncio.CancelledError from error
        finally:
            _called_by.reset(token)

    # -- suspension ------------------------------------------------------------------------------------

    def _check_may_wait(self, name: str) -> None:
        if (step := _called_by.get(None)) is not None:
            raise RuntimeError(
                f"step {name!r} waits within the function of step {step!r}, which would never end; "
                "wait between steps"
            )

    def _wait_for(self, stored: StoredStep) -> asyncio.Future[NoReturn]:
        """End the attempt after the block of this step, unless others are in progress then."""
        assert stored.until is not None  # noqa: S101 - of every sleep and wait
        waiter: asyncio.Future[NoReturn] = asyncio.get_running_loop().create_future()
        # The end of children is not a time: that of their row is when the job was due before.
        until = NO_TIMEOUT if stored.kind == CHILD else stored.until
        self._waiting[waiter] = Suspension(stored.kind, stored.name, until)
        return waiter

    async def _suspended(self, waiter: asyncio.Future[NoReturn]) -> NoReturn:
        """Wait until the task is cancelled, or the attempt has ended otherwise."""
        try:
            await waiter
        finally:
            del self._waiting[waiter]

    def _release(self) -> None:
        """Cancel the calls that wait."""
        for waiter in self._waiting:
            waiter.cancel()

    def _end_soon(self, iterations: int, ended_steps: int) -> None:
        """End the attempt, unless its code comes to another step or to its end within some iterations."""
        if ended_steps != self._ended_steps:  # the code after a later one continues as long
            return
        if self._waiting and iterations:
            asyncio.get_running_loop().call_soon(self._end_soon, iterations - 1, ended_steps)
        elif not self._has_failed:  # else a timer does
            self._end_if_idle()

    def _end_if_idle(self) -> None:
        """End the attempt if it waits and no other step is in progress."""
        if self._waiting and not self._in_progress and not self.suspensions and not self._is_closed:
            self.suspensions = tuple(sorted(self._waiting.values(), key=lambda each: each.until))
            self._attempt.interrupt()
            if self._attempt.is_unstoppable:  # its threads wait for the calls, which no task awaits
                self._release()


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
        else:  # it may be rolled back: flush() must not store this value, nor a repetition leave it out
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


def _caller() -> object:
    """Return the thread or the task that calls a step."""
    return calling_thread.get(None) or current_task()


def _size(step: StoredStep | None) -> int:
    return 0 if step is None or step.value is None else len(step.value.encode())
