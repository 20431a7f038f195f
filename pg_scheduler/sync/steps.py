"""The durable steps of a job in a thread: the methods of `Steps`, blocking.

Each call runs in the event loop of the worker. The thread of the job waits until the call has ended. While it
waits, it calls the function of the step.
"""

from __future__ import annotations

import functools
import threading
from asyncio import Future
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from contextvars import copy_context
from datetime import datetime, timedelta
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar, overload

from pg_scheduler.base.blocking import Crossing, call_in_loop, check_may_block
from pg_scheduler.base.foreign import Returned
from pg_scheduler.database.callers.adapter import ConnectionAdapter
from pg_scheduler.errors import JobResult
from pg_scheduler.jobs.call import RaisedError
from pg_scheduler.jobs.context import current_attempt
from pg_scheduler.jobs.model import UNSET, Call, Unset
from pg_scheduler.jobs.retry import RetryPolicy
from pg_scheduler.jobs.step_retries import accepts_keyword
from pg_scheduler.jobs.step_values import is_coroutine_function
from pg_scheduler.jobs.steps import Child, First, Sleep, StepCursor, Wait
from pg_scheduler.steps.waits import calling_thread
from pg_scheduler.worker.runners.jobs_view import CHECK_INTERVAL_S, AttemptInThread, Watch

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class AttemptEnded(BaseException):
    """The attempt ends: it is suspended, timed out, was cancelled, or its worker shuts down.

    A step of a job in a thread raises it where one of an async job raises ``asyncio.CancelledError``. It is
    no ``Exception``, so ``except Exception`` does not catch it. Even if code catches it, the attempt ends.
    """


class StepConnection(ConnectionAdapter):
    """A connection of the pool in the transaction of a step, with blocking methods.

    The methods return and raise what those of asyncpg do. The methods of `current_scheduler()` take this
    connection as ``connection=``, for jobs that exist if and only if the step is stored.
    """

    # A frozen dataclass with slots refuses to set attributes, also those of a subclass.
    __setattr__ = object.__setattr__

    def __init__(self, attempt: AttemptInThread, connection: Any) -> None:
        super().__init__(self._texts, is_async=False)
        self._attempt = attempt
        self._connection = connection

    def execute(self, query: str, *args: Any, timeout: float | None = None) -> str:
        """Execute a statement, or several without arguments; return the status of the last one."""
        status: str = self._call("execute", query, *args, timeout=timeout)
        return status

    def executemany(
        self, command: str, args: Iterable[Sequence[Any]], *, timeout: float | None = None
    ) -> None:
        """Execute a statement once for each sequence of arguments."""
        self._call("executemany", command, args, timeout=timeout)

    def fetch(self, query: str, *args: Any, timeout: float | None = None) -> list[Any]:
        """Execute a statement, and return its rows."""
        rows: list[Any] = self._call("fetch", query, *args, timeout=timeout)
        return rows

    def fetchrow(self, query: str, *args: Any, timeout: float | None = None) -> Any:
        """Execute a statement, and return its first row; None if there is none."""
        return self._call("fetchrow", query, *args, timeout=timeout)

    def fetchval(self, query: str, *args: Any, column: int = 0, timeout: float | None = None) -> Any:
        """Execute a statement, and return a value of its first row; None if there is none."""
        return self._call("fetchval", query, *args, column=column, timeout=timeout)

    def _texts(self, statement: str, texts: Sequence[str]) -> list[str]:
        """Execute a statement of the Scheduler with texts as arguments; return the first column of its rows.

        By this function, `ConnectionAdapter` runs the statements of calls with ``connection=``.
        """
        return [row[0] for row in self.fetch(statement, *texts)]

    def _call(self, name: str, *args: Any, **options: Any) -> Any:
        """Call a method of the asyncpg connection in the event loop, and block until it has returned."""
        method = getattr(self._connection, name)
        return LoopCall(self._attempt, name, "connection").run(method, *args, **options)


class BlockingCursor:
    """How far a loop of a job in a thread has come, yielded by ``BlockingSteps.cursor()``."""

    def __init__(self, attempt: AttemptInThread, cursor: StepCursor) -> None:
        self._attempt = attempt
        self._cursor = cursor

    @property
    def value(self) -> Any:
        """The last value of this or an earlier attempt, as JSON carries it; ``start`` before the first."""
        return self._cursor.value

    def set(self, value: Any) -> None:
        """Set the value, as ``StepCursor.set()``.

        If the attempt should end, this raises `AttemptEnded`. The error leaves the block of the cursor, whose
        end writes the value that was set last.
        """
        # The cursor belongs to the event loop, so its method is called there.
        LoopCall(self._attempt, "set", "cursor").run(self._cursor.set, value)
        # The check follows the call, so that the cursor has the value of the work that is done.
        check_attempt(self._attempt)

    def save(self, value: Any = UNSET, *, connection: StepConnection | None = None) -> None:
        """Write the value now, as ``StepCursor.save()``.

        Args:
            value: A new value; if omitted, the last one.
            connection: The connection of a step in a transaction, with which the value commits; None to
                commit it at once.
        """
        asyncpg_connection = _asyncpg_of(connection)
        LoopCall(self._attempt, "save", "cursor").run(self._cursor.save, value, connection=asyncpg_connection)


class BlockingSteps:
    """The durable steps of a job in a thread, as `current_steps()`.

    The functions of steps are plain ones, and are called in the thread of the caller. Parameters, values and
    errors are those of `Steps`. Each method raises `AttemptEnded` if the attempt ends.
    """

    def __init__(self, attempt: AttemptInThread) -> None:
        self._attempt = attempt

    @property
    def version(self) -> int:
        """The ``version=`` of the task when the job stored its first step; until then, the current one."""
        call = LoopCall(self._attempt, "version")
        # Steps are used in the event loop only, and so is this property of them.
        version: int = call.run(lambda: self._attempt.steps_in_loop().version)
        return version

    @overload
    def run(
        self,
        name: str,
        func: Callable[..., R],
        /,
        *args: Any,
        retry: RetryPolicy | None,
        max_retries: int = ...,
        **kwargs: Any,
    ) -> R: ...
    @overload
    def run(self, name: str, func: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def run(
        self,
        name: str,
        func: Callable[..., R],
        /,
        *args: Any,
        retry: Any = UNSET,
        max_retries: Any = UNSET,
        **kwargs: Any,
    ) -> R:
        """Call a function and store its value; return the stored value if an earlier attempt has done so.

        If the attempt is cancelled while the function runs, its value is stored nevertheless. Python cannot
        stop a function in a thread, so there is no option ``timeout``: an argument of this name is one of the
        function, as for those of most clients.

        Example:
            >>> from pg_scheduler import RetryPolicy
            >>> from pg_scheduler.sync import current_steps
            >>> def fetch_quote(order: int, timeout: float) -> float:
            ...     return 9.5 * order
            >>> def place(order: int) -> None:
            ...     quote = current_steps().run("quote", fetch_quote, order, timeout=10, retry=RetryPolicy())
        """
        call = LoopCall(self._attempt, "run")
        func_in_thread = _bound(call.in_thread(func), func, kwargs)
        value: R = call.run_method(name, func_in_thread, *args, retry=retry, max_retries=max_retries)
        return value

    def transaction(
        self,
        name: str,
        func: Callable[..., R],
        /,
        *args: Any,
        connection: StepConnection | None = None,
        retry: RetryPolicy | Unset | None = UNSET,
        max_retries: int | Unset = UNSET,
        **kwargs: Any,
    ) -> R:
        """Call a function in a transaction that also stores its value: its writes are made exactly once.

        Args:
            name: The name of the step.
            func: A plain function, whose first argument is a `StepConnection`.
            args: Its other positional arguments, which are not stored.
            connection: The connection of another step, if this is called within the function of that step:
                both steps then commit together. None for a connection of the pool. Connections of other
                libraries are refused.
            retry: As in ``run()``; each call of the function has a new transaction. Not with ``connection``.
            max_retries: As in ``run()``.
            kwargs: Its keyword arguments, which are not stored.

        Example:
            >>> from pg_scheduler.sync import StepConnection, current_steps
            >>> def reserve(connection: StepConnection, order: int) -> None:
            ...     connection.execute("UPDATE stock SET count = count - 1 WHERE item = $1", order)
            >>> def place(order: int) -> None:
            ...     current_steps().transaction("reserve", reserve, order)
        """
        call = LoopCall(self._attempt, "transaction")

        def with_connection(connection: Any, *args: Any, **kwargs: Any) -> R:
            """Call the function with blocking methods for the asyncpg connection of the step."""
            return func(StepConnection(self._attempt, connection), *args, **kwargs)

        func_in_thread = _bound(call.in_thread(func, with_connection), func, kwargs)
        value: R = call.run_method(
            name,
            func_in_thread,
            *args,
            connection=_asyncpg_of(connection),
            retry=retry,
            max_retries=max_retries,
        )
        return value

    @contextmanager
    def cursor(self, name: str, *, start: Any = None) -> Iterator[BlockingCursor]:
        """Store how far a loop has come, in a ``with`` block, so that later attempts continue there.

        Example:
            >>> from pg_scheduler.sync import current_steps
            >>> def ship(line: int) -> None: ...
            >>> def ship_all(lines: int) -> None:
            ...     with current_steps().cursor("lines", start=0) as cursor:
            ...         for line in range(cursor.value, lines):
            ...             ship(line)
            ...             cursor.set(line + 1)
        """
        call = LoopCall(self._attempt, "cursor")
        # The block of the cursor is an asynchronous one, so the event loop enters and leaves it.
        block = call.run_method(name, start=start)
        cursor = BlockingCursor(self._attempt, call.run(block.__aenter__))
        try:
            yield cursor
        except BaseException as error:
            # Whatever the error is, the work up to the last value is done, so the cursor writes this value.
            call.run(block.__aexit__, type(error), error, error.__traceback__)
            raise
        call.run(block.__aexit__, None, None, None)

    def sleep(
        self, name: str, delay: float | timedelta | None = None, *, until: datetime | None = None
    ) -> None:
        """Continue later, in another attempt: this one ends by `AttemptEnded`. See ``Steps.sleep()``."""
        LoopCall(self._attempt, "sleep").run_method(name, delay, until=until)

    @overload
    def wait(self, name: str, *, timeout: float | timedelta | None = None, kind: type[T]) -> T: ...
    @overload
    def wait(self, name: str, *, timeout: float | timedelta | None = None, kind: None = None) -> Any: ...
    def wait(
        self, name: str, *, timeout: float | timedelta | None = None, kind: type[Any] | None = None
    ) -> Any:
        """Return the value that ``signal()`` of a Scheduler sends to the job under this name.

        If the value has not come yet, the attempt ends by `AttemptEnded`, as in ``sleep()``, and a later
        attempt continues. See ``Steps.wait()``.
        """
        return LoopCall(self._attempt, "wait").run_method(name, timeout=timeout, kind=kind)

    @overload
    def receive(self, name: str, *, timeout: float | timedelta | None = None, kind: type[T]) -> T: ...
    @overload
    def receive(self, name: str, *, timeout: float | timedelta | None = None, kind: None = None) -> Any: ...
    def receive(
        self, name: str, *, timeout: float | timedelta | None = None, kind: type[Any] | None = None
    ) -> Any:
        """Return the next message that ``send()`` of a Scheduler has put into a mailbox of the job.

        If it has not come yet, the attempt ends by `AttemptEnded`, as in ``sleep()``, and a later attempt
        continues. One thread at a time may wait for a mailbox. See ``Steps.receive()``.
        """
        return LoopCall(self._attempt, "receive").run_method(name, timeout=timeout, kind=kind)

    def child(self, name: str, func: Call[R], /, **options: Any) -> R:
        """Run another job, and return its value when it has ended. See ``Steps.child()``."""
        value: R = LoopCall(self._attempt, "child").run_method(name, func, **options)
        return value

    def first(self, name: str, *waits: Wait | Sleep | Child) -> First:
        """Wait for the first of several signals, times and children. See ``Steps.first()``.

        Example:
            >>> from datetime import timedelta
            >>> from pg_scheduler import Sleep, Wait
            >>> from pg_scheduler.sync import current_steps
            >>> def order(order_id: int) -> str:
            ...     limit = Sleep("limit", timedelta(days=7))
            ...     return current_steps().first("decision", Wait("approved"), limit).name
        """
        winner: First = LoopCall(self._attempt, "first").run_method(name, *waits)
        return winner

    def gather(self, name: str, calls: Sequence[Call[R]], *, detached: bool = False) -> list[R]:
        """Run several jobs, and return their values when all have ended. See ``Steps.gather()``."""
        values: list[R] = LoopCall(self._attempt, "gather").run_method(name, calls, detached=detached)
        return values

    def predecessors(self) -> Iterator[JobResult]:
        """Iterate over the results that were passed to the job, as ``CurrentJob.predecessors()``.

        Example:
            >>> from pg_scheduler.sync import current_steps
            >>> def total() -> int:
            ...     return sum(result.unwrap(int) for result in current_steps().predecessors())
        """
        call = LoopCall(self._attempt, "predecessors")
        # This is an asynchronous iterator, so each step of it is a call in the event loop.
        results = call.run_method()
        while (result := call.run(anext, results, None)) is not None:
            yield result


class LoopCall:
    """A call of a method in the event loop of the worker, and the thread that waits for it.

    Args:
        attempt: The attempt whose code makes the call.
        method: The name of the method.
        path: How the code of a job reaches the object that has the method, for an error.
    """

    def __init__(self, attempt: AttemptInThread, method: str, path: str = "steps") -> None:
        self._attempt = attempt
        self._method = method
        self._path = path
        # What the waiting thread has to call next: the function of a step, or _do_nothing(), which wakes the
        # thread when the call has ended.
        self._thread_calls: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def run_method(self, *args: Any, **options: Any) -> Any:
        """Call the method of `Steps` in the event loop; raise AttemptEnded if the attempt should end."""
        check_attempt(self._attempt)
        return self.run(lambda: getattr(self._attempt.steps_in_loop(), self._method)(*args, **options))

    def run(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call a function in the event loop, and block until its coroutine has ended; return the result.

        While this thread waits, it calls the plain functions that the coroutine sends to it by `in_thread()`.

        Raises:
            AttemptEnded: The attempt was cancelled during the call, or the event loop has ended.
            BaseException: The error of the function.
        """
        check_may_block(self._method, "a job in a thread", self._path)
        loop = self._attempt.loop
        # Finds out whether the attempt was cancelled, or the event loop has ended, since this moment.
        watch = Watch(loop, self._attempt.flag)
        # The call has the context variables of this thread, so the step knows which thread calls it.
        token = calling_thread.set(threading.current_thread())
        try:
            crossing = Crossing(
                loop,
                function=lambda: function(*args, **options),
                on_end=lambda: self._thread_calls.put(_do_nothing),
            )
        except RuntimeError:
            # The event loop is closed.
            raise _ended(self._attempt) from None
        finally:
            calling_thread.reset(token)
        try:
            while not crossing.has_ended:
                try:
                    thread_call = self._thread_calls.get(timeout=CHECK_INTERVAL_S)
                # There is nothing to call yet. At intervals the thread checks whether to wait any longer.
                except Empty:
                    if watch.is_interrupted or watch.loop_has_ended():
                        raise _ended(self._attempt) from None
                    continue
                thread_call()
                # The value of a function that has returned is stored, even if the attempt was cancelled while
                # the function ran. So only a later cancellation interrupts the wait until it is stored.
                watch.renew()
            return crossing.result()
        except CancelledError:
            raise _ended(self._attempt) from None
        # The function of the step has raised this error in this thread, as in_thread() passed it on.
        except RaisedError as raised:
            error = raised.error
        finally:
            # This has no effect on a call that has ended.
            crossing.cancel()
            # The traceback of an error of the call refers to this frame. If the frame kept the call, there
            # would be a cycle of references.
            del crossing
        # Raised here, the error does not have RaisedError as its context. Its traceback refers to this frame,
        # so the frame must not keep the error either.
        try:
            raise error
        finally:
            del error

    def in_thread(
        self, func: Callable[..., Any], wrapper: Callable[..., Any] | None = None
    ) -> Callable[..., Coroutine[Any, Any, Any]]:
        """Return a coroutine function that calls a plain function in the thread that waits in `run()`.

        `Steps` awaits coroutine functions in the event loop, but the function of a step may block, and
        belongs to the thread of the job.

        Args:
            func: The plain function of a step.
            wrapper: The function that the thread calls in its place, which calls ``func`` with other
                arguments; None to call ``func`` itself.
        """
        if is_coroutine_function(func) or not callable(func):
            raise TypeError(
                f"a step of a job in a thread needs a plain function, not {func!r}; pass a function without "
                "async, and its arguments: steps.run(name, function, argument)"
            )

        @functools.wraps(func)
        async def call(*args: Any, **kwargs: Any) -> Any:
            """Let the waiting thread call the function; return its value, or raise its error wrapped."""
            context, loop = copy_context(), self._attempt.loop
            returned: Future[Returned[Any]] = loop.create_future()

            def execute() -> None:
                """Call the function in the waiting thread, and pass its result to the event loop."""
                # A pair of the value and the error, one of which is None.
                outcome: Returned[Any]
                try:
                    outcome = context.run(wrapper or func, *args, **kwargs), None
                except BaseException as error:  # noqa: BLE001 - user code; it is raised in this thread again
                    outcome = None, error
                call_in_loop(loop, _set_result, returned, outcome)

            self._thread_calls.put(execute)
            value, error = await returned
            if error is not None:
                raise RaisedError(error)
            return value

        return call


def current_steps() -> BlockingSteps:
    """Return the durable steps of a job that runs in a thread, or in an executor of its own.

    Raises:
        LookupError: The caller is not part of a running job.
        NotRunningError: The job runs in a process or in a `job_context()`.
        RuntimeError: The caller is an async job, which awaits the methods of ``current_job().steps``.

    Example:
        >>> from datetime import timedelta
        >>> from pg_scheduler import job
        >>> from pg_scheduler.sync import current_steps
        >>> def charge(order: int) -> str:
        ...     return f"payment-{order}"
        >>> @job(max_retries=5)
        ... def process(order: int) -> None:
        ...     steps = current_steps()
        ...     payment = steps.run("charge", charge, order)
        ...     steps.sleep("delivery", timedelta(days=14))
    """
    attempt = current_attempt()
    if isinstance(attempt, AttemptInThread):
        return BlockingSteps(attempt)
    # This raises NotRunningError if the job has no steps here. If it has, the job is an async one.
    attempt.open_steps()
    raise RuntimeError(
        "current_steps() is for jobs in threads; an async job awaits the methods of current_job().steps"
    )


def _bound(
    in_thread: Callable[..., Coroutine[Any, Any, Any]], func: Callable[..., Any], kwargs: dict[str, Any]
) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Bind the keyword arguments of a plain function to its coroutine function: they are no options."""
    if not kwargs:
        return in_thread
    if "timeout" in kwargs and not accepts_keyword(func, "timeout"):
        raise TypeError(
            f"a step of a job in a thread has no timeout=, since {func!r} cannot be stopped; give a time "
            "limit to what it calls, such as requests.get(timeout=10)"
        )
    return functools.partial(in_thread, **kwargs)


def check_attempt(attempt: AttemptInThread) -> None:
    """Raise AttemptEnded if the attempt should end."""
    if attempt.flag is not None and attempt.flag.is_cancelled:
        raise _ended(attempt)


def _ended(attempt: AttemptInThread) -> AttemptEnded:
    """Return the error by which an attempt ends."""
    return AttemptEnded(
        f"this attempt of job {attempt.job_id!r} ends: it is suspended, timed out, was cancelled, or its "
        "worker shuts down; let the exception end the function"
    )


def _asyncpg_of(connection: StepConnection | None) -> Any:
    """Check the ``connection=`` of a call, and return the connection of asyncpg in it; None without one."""
    if connection is None:
        return None
    if not isinstance(connection, StepConnection):
        raise TypeError(
            f"connection must be the one that the function of a step in a transaction is called with, not of "
            f"the type {type(connection).__name__}; other connections cannot commit together with a step"
        )
    return connection._connection  # noqa: SLF001 - of the same module


def _set_result(future: Future[Returned[Any]], returned: Returned[Any]) -> None:
    """Set the result of a future, unless the step that waits for it was cancelled meanwhile."""
    if not future.done():
        future.set_result(returned)


def _do_nothing() -> None:
    """Do nothing: this only wakes a thread that waits for something to call."""
