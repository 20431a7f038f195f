"""Durable steps, as a job sees them: what it stores while it runs, so that later attempts continue there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple, ParamSpec, TypeVar, overload

from pg_scheduler.base.public import public
from pg_scheduler.errors import DuplicateStepError
from pg_scheduler.jobs.model import UNSET, Call, Unset
from pg_scheduler.jobs.retry import RetryPolicy
from pg_scheduler.jobs.step_values import check_step_name, step_of_row

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Suspension:
    """Why an attempt ends before its function has returned: the job waits, and meanwhile needs no worker."""

    kind: str
    """The kind of the step that waits."""
    name: str
    """The name of its row."""
    until: datetime
    """When the job is due at the latest."""

    @property
    def step(self) -> str:
        """The name of the step, also if its row has the failed attempts of the step."""
        return step_of_row(self.name)


@public
@dataclass(frozen=True, slots=True)
class Wait:
    """A signal that ``Steps.first()`` waits for, as ``Steps.wait()`` does. For a timeout, add a `Sleep`."""

    name: str
    """The name of the signal."""
    kind: type[Any] | None = None
    """The type of its value, for pydantic; None for the value as JSON carries it."""


@public
@dataclass(frozen=True, slots=True)
class Sleep:
    """A time that ``Steps.first()`` waits for, as ``Steps.sleep()`` does. Its value is None."""

    name: str
    """The name of the step."""
    delay: float | timedelta | None = None
    """Seconds or a timedelta; it begins when the first attempt comes here."""
    until: datetime | None = None
    """A time instead of a delay."""


@public
@dataclass(frozen=True, slots=True)
class Child:
    """A job that ``Steps.first()`` runs and waits for, as ``Steps.child()`` does."""

    name: str
    """The name of the step."""
    func: Call[Any]
    """The ``call()`` with the arguments of the child."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of ``enqueue()``, and ``detached``, as in ``Steps.child()``."""


@public
class First(NamedTuple):
    """Which of several waits has ended first."""

    name: str
    """Its name."""
    value: Any
    """The value of the signal or of the child; None for a sleep."""


def check_waits(waits: Sequence[object]) -> Sequence[Wait | Sleep | Child]:
    """Return what ``first()`` waits for.

    Raises:
        TypeError: It is something else.
        ValueError: There is none, or two have the same name.
    """
    checked_waits: list[Wait | Sleep | Child] = []
    for wait in waits:
        if not isinstance(wait, Wait | Sleep | Child):
            raise TypeError(
                f"first() needs Wait, Sleep and Child objects, not {wait!r}; pass Wait('approval')"
            )
        check_step_name(wait.name)
        if isinstance(wait, Child) and not isinstance(wait.options, Mapping):
            raise TypeError(
                f"the options of Child({wait.name!r}, ...) must be a dict, not {wait.options!r}; pass the "
                "arguments of the function to call()"
            )
        if any(wait.name == other.name for other in checked_waits):
            raise DuplicateStepError(f"first() has two waits named {wait.name!r}; give them two names")
        checked_waits.append(wait)
    if not checked_waits:
        raise ValueError("first() needs at least one Wait, Sleep or Child; pass what the job waits for")
    return checked_waits


@public
class StepCursor(ABC):
    """How far a loop of a job has come, yielded by ``Steps.cursor()``."""

    @property
    @abstractmethod
    def value(self) -> Any:
        """The last value as JSON carries it: that of this attempt or an earlier one; at first ``start``."""

    @abstractmethod
    async def set(self, value: Any) -> None:
        """Set the value. It is written at most once a second, and when the block is left.

        Args:
            value: A value that JSON can represent, at most ``max_result_bytes`` long.

        Raises:
            PayloadError: JSON cannot represent the value, or a bound of ``Steps.run()`` is exceeded.
            RuntimeError: The block of the cursor has ended.
            JobLostError: The attempt does not hold its job any more. Nothing was stored.
            DatabaseUnavailableError: As in ``Steps.run()``.
        """

    @abstractmethod
    async def save(self, value: Any = UNSET, *, connection: Any = None) -> None:
        """Write the value now.

        Args:
            value: A new value; if omitted, the last one.
            connection: Your connection in a transaction, as for ``Steps.transaction()``: the value commits
                with your writes, so a crash repeats nothing. Do not call ``set()`` for such a value. None to
                commit the value at once.

        Raises:
            PayloadError: As in ``set()``.
            RuntimeError: As in ``set()``.
            JobLostError: As in ``set()``.
            DatabaseUnavailableError: As in ``set()``.
            TypeError: The connection is of another kind.
            ValueError: The connection is not in a transaction, or its isolation level is not READ COMMITTED.
            ConfigurationError: The connection leads to another database.
        """


@public
class Steps(ABC):
    """The durable steps of a running job, as ``current_job().steps``.

    A step has a name that is unique in its job. Once it is stored, later attempts of the job skip it and get
    its stored value. Code outside of steps runs again in each attempt.
    """

    @property
    @abstractmethod
    def version(self) -> int:
        """The ``version=`` that the task had when the job stored its first step; until then, the current one.

        ``retry_job(from_step=)`` with the name of the first step deletes the stored version too.

        Example:
            >>> from pg_scheduler import current_job, job
            >>> async def check_stock(order: int) -> None: ...
            >>> @job(version=2)
            ... async def ship(order: int) -> None:
            ...     steps = current_job().steps
            ...     if steps.version >= 2:  # jobs of the former version continue without this step
            ...         await steps.run("check", check_stock, order)
        """

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
    @abstractmethod
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
        """Call a function and store its value; return the stored value if an earlier attempt has done so.

        The function is called at least once until its value is stored, and never afterwards. A function that
        raises an exception stores no value. If the database is unavailable, the value is kept in memory and
        written as soon as possible.

        With ``retry``, a function that fails is called again, without a retry of the job. Each failure is
        stored, so neither a crash nor a deploy begins the count again. A wait of at most 10 seconds passes in
        memory. A longer one suspends the job, as ``sleep()`` does. When the retries are used up, the call
        raises `StepFailedError` from the last error. If the job fails then and is retried, so is the step,
        with as many retries as at first. If the job catches the error and is suspended, the step raises it
        again in the next attempt, without a call of the function. A `Retry` that the function raises chooses
        the delay, `Abort` ends the retries, and `Snooze` postpones the job.

        Args:
            name: The name of the step, of 1 to 200 bytes; in a loop, for example ``f"page-{number}"``.
            func: A coroutine function.
            args: Its positional arguments, which are not stored.
            retry: Which errors are retried, and after which delays. None for no retries, as if it is omitted.
                If the function has a parameter of the name ``retry``, ``max_retries`` or ``timeout``, set it
                by ``functools.partial()``.
            max_retries: How often the function is called again after its first failure, at least 0; 5 if it
                is omitted. Needs ``retry``.
            timeout: Seconds or a timedelta, more than 0: a call of the function that takes longer is
                cancelled, and fails with TimeoutError. None for no limit, as if it is omitted. The
                ``timeout`` of the job is another one, which counts all calls and waits in memory.
            kwargs: Its keyword arguments, which are not stored.

        Returns:
            The value as JSON carries it, also the first time. With a return annotation, pydantic converts it
            to JSON and back.

        Raises:
            TypeError: ``func`` is not a coroutine function, ``name`` is not a str, ``max_retries`` is given
                without ``retry``, an option has the wrong type, or ``func`` has a parameter of its name.
            ValueError: ``name`` is empty or too long.
            TimeoutError: The function ran longer than ``timeout``, and the call has no ``retry``.
            StepFailedError: The call has ``retry``, and its retries are used up, or the policy permits none.
            RuntimeError: The call has ``retry``, and comes from the function of a step.
            ConfigurationError: ``max_retries`` or ``timeout`` is out of range. Or pydantic does not support
                the return annotation, or a name in it is not defined and the value is no JSON.
            DuplicateStepError: This attempt has used the name before, or another kind of step has.
            JobLostError: The attempt does not hold its job any more. Nothing was stored.
            PayloadError: JSON cannot represent the value, or it does not fit the annotation, would not arrive
                equal (such as a SecretStr), is longer than ``max_result_bytes``, or exceeds the 1,000 steps
                or 64 MiB of one job.
            Abort: The stored value does not fit the annotation any more, so the job fails.
            DatabaseUnavailableError: The database was unavailable until the lease was about to expire.

        Example:
            >>> from pg_scheduler import current_job
            >>> async def fetch_quote(order: int) -> float:
            ...     return 9.5 * order
            >>> async def place(order: int) -> None:
            ...     quote = await current_job().steps.run("quote", fetch_quote, order)

            With five retries after about 1, 2, 4, 8 and 16 seconds, and ten seconds for each call:

            >>> from datetime import timedelta
            >>> from pg_scheduler import RetryPolicy
            >>> async def place_patiently(order: int) -> None:
            ...     quote = await current_job().steps.run(
            ...         "quote",
            ...         fetch_quote,
            ...         order,
            ...         retry=RetryPolicy(base=timedelta(seconds=1)),
            ...         max_retries=5,
            ...         timeout=10,
            ...     )
        """

    @abstractmethod
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
        """Call a function in a transaction that also stores its value: its writes are made exactly once.

        Args:
            name: The name of the step, as in ``run()``.
            func: A coroutine function, whose first argument is the connection.
            args: Its other positional arguments, which are not stored.
            connection: Your connection, in a READ COMMITTED transaction that you commit afterwards: of
                asyncpg, or an ``AsyncSession`` or ``AsyncConnection`` of SQLAlchemy on asyncpg. None for a
                connection of the pool, whose transaction begins and ends with the step.
            retry: As in ``run()``; each call of the function has a new transaction. Not with ``connection``.
            max_retries: As in ``run()``.
            timeout: As in ``run()``; the transaction of a call that takes longer is rolled back.
            kwargs: Its keyword arguments, which are not stored.

        Returns:
            The value, as in ``run()``.

        Raises:
            TypeError: The connection is of another kind; or as in ``run()``.
            ValueError: The connection is not in a transaction, its isolation level is not READ COMMITTED, or
                ``retry`` is given too; or as in ``run()``.
            TimeoutError: As in ``run()``; the transaction is rolled back.
            StepFailedError: As in ``run()``; the transaction is rolled back.
            RuntimeError: As in ``run()``.
            ConfigurationError: The connection leads to another database; or as in ``run()``.
            DuplicateStepError: As in ``run()``; the transaction is rolled back.
            JobLostError: As in ``run()``; the transaction is rolled back.
            PayloadError: As in ``run()``; the transaction is rolled back.
            Abort: As in ``run()``.
            DatabaseUnavailableError: The transaction failed, or the answer of its commit was lost. A retry of
                the job continues with or without the step.

        Example:
            >>> from pg_scheduler import Connection, current_job
            >>> async def reserve(connection: Connection, order: int) -> None:
            ...     await connection.execute("UPDATE stock SET count = count - 1 WHERE item = $1", order)
            >>> async def place(order: int) -> None:
            ...     await current_job().steps.transaction("reserve", reserve, order)
        """

    @abstractmethod
    def cursor(self, name: str, *, start: Any = None) -> AbstractAsyncContextManager[StepCursor]:
        """Store how far a loop has come, in an ``async with`` block, so that later attempts continue there.

        The value is written at most once a second, and when the block is left, also by an exception or a
        shutdown. After a crash, what came after the last write is repeated. A block that raised an exception
        may be entered again. If the block is in a generator, close the generator when you leave its loop
        early, as by ``contextlib.aclosing()``, so that the block ends and writes its value.

        Args:
            name: The name of the step, as in ``run()``.
            start: The value of the first attempt, which JSON can represent.

        Raises:
            TypeError: ``name`` is not a str.
            ValueError: ``name`` is empty or too long.
            DuplicateStepError: As in ``run()``.
            JobLostError: As in ``run()``.
            PayloadError: JSON cannot represent ``start``.
            Abort: The stored value cannot be read, so the job fails.
            DatabaseUnavailableError: As in ``run()``.

        Example:
            >>> from pg_scheduler import current_job
            >>> async def ship(line: int) -> None: ...
            >>> async def ship_all(lines: int) -> None:
            ...     async with current_job().steps.cursor("lines", start=0) as cursor:
            ...         for line in range(cursor.value, lines):
            ...             await ship(line)
            ...             await cursor.set(line + 1)
        """

    @abstractmethod
    async def sleep(
        self, name: str, delay: float | timedelta | None = None, *, until: datetime | None = None
    ) -> None:
        """Continue later, in another attempt. Meanwhile the job is pending, and uses no worker and no memory.

        The attempt ends as at a shutdown: ``finally`` blocks run, and what they raise has no effect. It uses
        no retry. It ends as soon as everything that its function has begun waits for steps. While other code
        of the job still works, the attempt stays in memory, and the call returns in this attempt if the time
        passes meanwhile. In a later attempt, a sleep that is over returns at once.

        Args:
            name: The name of the step, as in ``run()``.
            delay: Seconds or a timedelta, at most 100 years. It begins when the first attempt comes here.
            until: Instead of ``delay``, the end of the sleep, timezone-aware. Both are measured by the clock
                of the database.

        Raises:
            TypeError: Not exactly one of ``delay`` and ``until`` is given, or a value has the wrong type.
            ValueError: A value is out of range, or ``until`` has no time zone.
            DuplicateStepError: As in ``run()``.
            JobLostError: As in ``run()``.
            PayloadError: The job has 1,000 steps.
            RuntimeError: The call comes from the function of a step.
            DatabaseUnavailableError: As in ``run()``.

        Example:
            >>> from datetime import timedelta
            >>> from pg_scheduler import current_job
            >>> async def remind(user: int) -> None:
            ...     await current_job().steps.sleep("trial", timedelta(days=14))
        """

    @overload
    async def wait(self, name: str, *, timeout: float | timedelta | None = None, kind: type[T]) -> T: ...
    @overload
    async def wait(
        self, name: str, *, timeout: float | timedelta | None = None, kind: None = None
    ) -> Any: ...
    @abstractmethod
    async def wait(
        self, name: str, *, timeout: float | timedelta | None = None, kind: type[Any] | None = None
    ) -> Any:
        """Return the value that ``signal()`` of a Scheduler sends to the job under this name.

        A signal that came before the wait is returned at once. Otherwise the attempt ends, as in ``sleep()``,
        and the job continues when the signal has come or the timeout is over.

        Args:
            name: The name of the signal, as in ``run()``.
            timeout: Seconds or a timedelta, at most 100 years, from the first time that the job waits for it;
                None for no limit.
            kind: The type of the value, for pydantic; None for the value as JSON carries it.

        Returns:
            The value, the same in each later attempt.

        Raises:
            TimeoutError: No signal came in time. From then on, a signal of this name is refused. After a
                timeout the job may wait for the name again: signals are accepted again, and the new timeout
                begins. Later attempts raise the error again at the first wait, and then reach the second one.
            Abort: The value does not fit ``kind``, so the job fails.
            ConfigurationError: pydantic does not support ``kind``.
            TypeError: A value has the wrong type.
            ValueError: The name or the timeout is out of range.
            DuplicateStepError: As in ``run()``.
            JobLostError: As in ``run()``.
            PayloadError: The job has 1,000 steps.
            RuntimeError: The call comes from the function of a step.
            DatabaseUnavailableError: As in ``run()``.

        Example:
            >>> from datetime import timedelta
            >>> from pg_scheduler import current_job
            >>> async def order(order_id: int) -> str:
            ...     try:
            ...         name = await current_job().steps.wait("approval", timeout=timedelta(days=7), kind=str)
            ...     except TimeoutError:
            ...         return "rejected"
            ...     return f"approved by {name}"
        """

    @overload
    async def receive(self, name: str, *, timeout: float | timedelta | None = None, kind: type[T]) -> T: ...
    @overload
    async def receive(
        self, name: str, *, timeout: float | timedelta | None = None, kind: None = None
    ) -> Any: ...
    @abstractmethod
    async def receive(
        self, name: str, *, timeout: float | timedelta | None = None, kind: type[Any] | None = None
    ) -> Any:
        """Return the next message that ``send()`` of a Scheduler has put into a mailbox of the job.

        The first call returns the first message of this name, the second call the second one, and so on. A
        message that has come is returned at once. Otherwise the attempt ends, as in ``sleep()``, and the job
        continues when the message has come or the timeout is over. Each later attempt gets the same messages
        in the same order, so call it where each attempt comes to it in the same order. One call at a time may
        wait for a mailbox, and several may wait for different ones.

        Args:
            name: The name of the mailbox, as in ``run()``. A step, a signal and a mailbox may have the same
                name.
            timeout: Seconds or a timedelta, at most 100 years, from the first time that the job waits for
                this message; None for no limit.
            kind: The type of the value, for pydantic; None for the value as JSON carries it.

        Returns:
            The value of the message, the same in each later attempt.

        Raises:
            TimeoutError: No message came in time. The next call waits for the same message. One that comes
                after the timeout is kept for that call. Later attempts raise the error again at this call.
            Abort: The value does not fit ``kind``, so the job fails. If the code catches it, the next call
                returns the message after this one.
            DuplicateStepError: Another call of this attempt waits for the same mailbox.
            ConfigurationError: pydantic does not support ``kind``.
            TypeError: A value has the wrong type.
            ValueError: The name or the timeout is out of range.
            JobLostError: As in ``run()``.
            PayloadError: The job has 1,000 steps. Each message that the job had to wait for is one.
            RuntimeError: The call comes from the function of a step.
            DatabaseUnavailableError: As in ``run()``.

        Example:
            >>> from pg_scheduler import current_job
            >>> async def pack(item: str) -> None: ...
            >>> async def fill_box(items: int) -> None:
            ...     steps = current_job().steps
            ...     for number in range(items):
            ...         item = await steps.receive("items", kind=str)
            ...         await steps.run(f"pack-{number}", pack, item)
        """

    @abstractmethod
    async def child(self, name: str, func: Call[R], /, **options: Any) -> R:
        """Run another job, wait until it has ended, and return its value. The wait is as in ``sleep()``.

        The child is a normal job with the id ``"<id of this job>:<name>"``, which runs on any worker, with
        retries of its own. If the child of another step has that id, a hash follows. It continues if this job
        is cancelled, but is cancelled with it by ``cancel_job(children=True)`` unless it is detached.

        Args:
            name: The name of the step, as in ``run()``.
            func: A ``call()`` with the arguments of the child.
            options: Arguments of ``enqueue()``, such as ``max_retries`` or ``delay``. The result is kept for
                an hour, unless ``keep_result`` is given; this job gets a copy. The deadline is that of this
                job, unless ``deadline`` is given. With ``detached=True`` the child and its own children
                continue if this job is cancelled with its children.

        Returns:
            The value that the child returned, as JSON carries it.

        Raises:
            JobFailedError: The child failed. It stays so in later attempts; see ``retry_job(from_step=)``.
            JobCancelledError: The child was cancelled.
            JobExpiredError: The child expired.
            ResultUnavailableError: The child completed, and its value is not available.
            JobNotFoundError: The child was deleted before it ended.
            JobConflictError: A job that is no child has the id, or has replaced the child.
            TypeError: ``func`` is no ``call()``, or an option is not for children; or as in ``enqueue()``.
            ValueError: The job would wait for itself, or the id of the child is too long; or as in
                ``enqueue()``.
            DuplicateStepError: As in ``run()``.
            JobLostError: As in ``run()``; the child was not inserted.
            PayloadError: The job has 1,000 steps, or as in ``enqueue()``.
            RuntimeError: The call comes from the function of a step.
            DatabaseUnavailableError: As in ``run()``.

        Example:
            >>> from pg_scheduler import call, current_job
            >>> async def print_label(order: int) -> str:
            ...     return f"label-{order}"
            >>> async def ship(order: int) -> None:
            ...     label = await current_job().steps.child("label", call(print_label, order), max_retries=3)
        """

    @abstractmethod
    async def first(self, name: str, *waits: Wait | Sleep | Child) -> First:
        """Wait for the first of several signals, times and children, and return which one it is.

        The winner is stored, so each later attempt gets the same one. If several have ended when the job
        looks, the first of them in the order of the arguments wins. The others continue. The job may wait
        for them again under the same names, also in another ``first()``. A `Sleep` then keeps its end.
        The job is suspended while it waits, as in ``sleep()``.

        Args:
            name: The name of the step that stores the winner; see ``run()``.
            waits: `Wait`, `Sleep` and `Child` objects, whose names are those of steps too.

        Returns:
            The name of the winner and its value, which is None for a `Sleep`.

        Raises:
            TypeError: One of ``waits`` is something else, or as in ``sleep()`` and ``child()``.
            ValueError: ``waits`` is empty, or as in ``sleep()`` and ``child()``.
            DuplicateStepError: Two of the waits have the same name, or as in ``run()``.
            JobEndedError: The winner is a child that has no value; see ``child()`` for the errors.
            Abort: The stored winner is not passed any more, or a value does not fit its type; the job fails.

        Example:
            >>> from datetime import timedelta
            >>> from pg_scheduler import Sleep, Wait, current_job
            >>> async def order(order_id: int) -> str:
            ...     steps = current_job().steps
            ...     limit = Sleep("limit", timedelta(days=7))
            ...     winner = await steps.first("decision", Wait("approved", str), Wait("withdrawn"), limit)
            ...     return f"approved by {winner.value}" if winner.name == "approved" else winner.name
        """

    @abstractmethod
    async def gather(self, name: str, calls: Sequence[Call[R]], *, detached: bool = False) -> list[R]:
        """Run other jobs at once, wait until all have ended, and return their values.

        Args:
            name: The name of the step, as in ``run()``. The ids of the children are
                ``"<id of this job>:<name>:<number>"``, from 0.
            calls: At most 1,000 values of ``call()``. The order and the arguments are those of the first
                attempt that comes here.
            detached: Whether the children continue if this job is cancelled with its children, as in
                ``child()``.

        Returns:
            The values, in the order of the calls.

        Raises:
            JobEndedError: A child has no value. If several have none, it is the error of the first of them in
                this order; see ``child()`` for its classes and for the other errors.
            PayloadError: There are more than 1,000 calls.

        Example:
            >>> from pg_scheduler import call, current_job
            >>> async def resize(photo: int, width: int) -> str:
            ...     return f"{photo}-{width}.jpg"
            >>> async def publish(photo: int) -> None:
            ...     sizes = [call(resize, photo, width) for width in (320, 1280)]
            ...     small, large = await current_job().steps.gather("sizes", sizes)
        """
