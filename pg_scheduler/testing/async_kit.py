"""The test kit for async tests, and what it shares with the kit for plain tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final, ParamSpec, TypeVar, cast, overload

from pg_scheduler.database.callers.adapter import AnyConnection, adapter_for, library_of
from pg_scheduler.database.session import Connection, check_connection
from pg_scheduler.jobs.model import Job, JobFunction
from pg_scheduler.jobs.validation import check_delay
from pg_scheduler.scheduler import Scheduler
from pg_scheduler.testing.attempt_bound import MAX_ATTEMPTS, TIMEOUT_S, AttemptBound
from pg_scheduler.testing.expected import listed
from pg_scheduler.testing.transaction import AnyScheduler, DrainResult, KitScheduler
from pg_scheduler.worker.runners.thread import ThreadExecutor

TOLERANCE_S: Final = 10.0
"""Seconds by which a due time may differ from that of an assertion, since time passes in a test."""

TAKERS: Final = ("AsyncTestKit", "TestKit")
"""The classes that take asynchronous and blocking connections, for errors."""


class TestKitBase:
    """What the test kits share."""

    __test__: ClassVar[bool] = False
    """pytest does not collect this class."""

    _kit: KitScheduler

    @property
    def now(self) -> datetime:
        """The current time of the kit: that of this machine, ahead by what ``advance()`` has added."""
        return self._kit.now

    def advance(
        self, by: timedelta | float = 0, *, days: float = 0, hours: float = 0, minutes: float = 0
    ) -> None:
        """Move the clock of the kit forward and do nothing else.

        Jobs that become due are late then: they may be past their misfire grace time.

        Args:
            by: A timedelta, or seconds.
            days: Days to add.
            hours: Hours to add.
            minutes: Minutes to add.

        Raises:
            ValueError: A duration is negative.
        """
        durations = {
            "by": by,
            "days": timedelta(days=days),
            "hours": timedelta(hours=hours),
            "minutes": timedelta(minutes=minutes),
        }
        for name, duration in durations.items():
            self._kit.advance(timedelta(seconds=check_delay(name, duration)))


def without_session(connection: object) -> object:
    """Return the connection that a session of SQLAlchemy is bound to; any other object as it is.

    Statements on the session would be part of a savepoint, which the session ends at each commit and
    rollback.
    """
    if library_of(connection) != "sqlalchemy":
        return connection
    bind = getattr(connection, "bind", None)
    # A session may also be bound to an engine, which has no such method. Then the session is used itself.
    return bind if hasattr(bind, "exec_driver_sql") else connection


P = ParamSpec("P")
R = TypeVar("R")


class AsyncTestKit(TestKitBase):
    """Looks at jobs, and runs them, in the transaction of an async test.

    Jobs that the code under test schedules on the connection are rows of its transaction: the kit finds them
    and runs them there, and the rollback of the test removes them. It does not see jobs that are committed,
    unless the transaction has changed them. On a connection with autocommit, it sees all jobs. Statements and
    outcomes are those of a worker; schedules do not fire, limits do not apply, and tenants of a share have no
    turns. Plain functions run in threads.

    Args:
        connection: What the code under test passes as ``connection=``: a connection or session of asyncpg,
            psycopg, SQLAlchemy or SQLModel, or a ConnectionAdapter. If a session is bound to a connection,
            the kit uses that.
        scheduler: The Scheduler of the application, whose settings, functions and middleware the kit uses;
            None for the defaults.

    Raises:
        TypeError: The connection is not supported, or blocks.
        ValueError: It is an asyncpg connection that is not in a transaction.

    Example:
        >>> kit = AsyncTestKit(session, scheduler=app_scheduler)  # doctest: +SKIP
        >>> await place_order(session, kit.scheduler, 7)  # doctest: +SKIP
        >>> await kit.assert_scheduled(send_invoice, kwargs={"order": 7}, after=86400)  # doctest: +SKIP
        >>> kit.advance(days=1)  # doctest: +SKIP
        >>> assert (await kit.drain()).completed == 1  # doctest: +SKIP
    """

    def __init__(self, connection: AnyConnection, *, scheduler: AnyScheduler | None = None) -> None:
        source = without_session(connection)
        # This call only checks the connection: its error names the kits.
        adapter_for(source, is_async=True, takers=TAKERS)
        self._kit = KitScheduler(cast("Connection", check_connection(source)), scheduler, ThreadExecutor())

    @property
    def scheduler(self) -> Scheduler:
        """A client whose calls without ``connection=`` use that of the kit. It cannot start."""
        return self._kit

    async def scheduled(
        self,
        func: JobFunction | str | None = None,
        *,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        after: timedelta | float | None = None,
        at: datetime | None = None,
        tolerance: timedelta | float = TOLERANCE_S,
    ) -> list[Job]:
        """Return the pending jobs that match, in the order of their due time.

        Args:
            func: The function, or the name of its jobs; None for all.
            args: The positional arguments; None for any. Values may be matchers, such as ``mock.ANY``.
            kwargs: Some of the keyword arguments; None for any.
            after: The time from now to the due time, a timedelta or seconds; None for any.
            at: The due time; None for any.
            tolerance: By how much the due time may differ, a timedelta or seconds.

        Raises:
            TypeError: Both ``after`` and ``at`` are given.
        """
        return await self._kit.find(func, args, kwargs, after, at, tolerance=tolerance)

    async def assert_scheduled(
        self,
        func: JobFunction | str,
        *,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        after: timedelta | float | None = None,
        at: datetime | None = None,
        tolerance: timedelta | float = TOLERANCE_S,
    ) -> Job:
        """Assert that a job is pending, and return it; if there are several, the one that is due first.

        Args:
            func: The function, or the name of its jobs.
            args: The positional arguments; None for any. Values may be matchers, such as ``mock.ANY``.
            kwargs: Some of the keyword arguments; None for any.
            after: The time from now to the due time, a timedelta or seconds; None for any.
            at: The due time; None for any.
            tolerance: By how much the due time may differ, a timedelta or seconds.

        Raises:
            AssertionError: No such job is pending; the message lists all jobs that the kit sees.
        """
        matches = await self._kit.find(func, args, kwargs, after, at, tolerance=tolerance)
        if not matches:
            raise AssertionError(
                f"no such job of {self._kit.name_of(func)} is pending at {self._kit.now}; all jobs:"
                f"{listed(await self._kit.jobs())}{await self._kit.hint_of_missing(func)}"
            )
        return matches[0]

    async def assert_not_scheduled(
        self,
        func: JobFunction | str | None = None,
        *,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        after: timedelta | float | None = None,
        at: datetime | None = None,
        tolerance: timedelta | float = TOLERANCE_S,
    ) -> None:
        """Assert that no such job is pending; see ``assert_scheduled()``.

        Args:
            func: The function, or the name of its jobs; None for all.
            args: The positional arguments; None for any. Values may be matchers, such as ``mock.ANY``.
            kwargs: Some of the keyword arguments; None for any.
            after: The time from now to the due time, a timedelta or seconds; None for any.
            at: The due time; None for any.
            tolerance: By how much the due time may differ, a timedelta or seconds.

        Raises:
            AssertionError: Such jobs are pending; the message lists them.
        """
        matches = await self._kit.find(func, args, kwargs, after, at, tolerance=tolerance)
        if matches:
            name = "any task" if func is None else self._kit.name_of(func)
            raise AssertionError(f"jobs of {name} are pending at {self._kit.now}:{listed(matches)}")

    @asynccontextmanager
    async def scheduling(self) -> AsyncIterator[list[Job]]:
        """Yield a list to which the jobs that the block has scheduled are added at its end.

        They are read from the table, in the order of their due time. So jobs of a savepoint that was rolled
        back are missing, and jobs that SQL statements have inserted are there.

        Example:
            >>> async with kit.scheduling() as jobs:  # doctest: +SKIP
            ...     await client.post("/orders", json={"number": 7})
            >>> assert [job.job_name for job in jobs] == ["shop.send_invoice"]  # doctest: +SKIP
        """
        previous_ids = await self._kit.ids()
        jobs: list[Job] = []
        yield jobs
        jobs += await self._kit.new_jobs(previous_ids)

    async def run_due(
        self, *, raises: bool = True, timeout: float | timedelta | None = TIMEOUT_S
    ) -> DrainResult:
        """Run each job that is due now once, in the order of priority, due time and id.

        Args:
            raises: Whether to raise the error of an attempt that fails, also if the job is retried. The
                outcome of the attempt is written before that, and the jobs after it stay pending.
            timeout: Seconds of real time, or a timedelta, within which a job must end, as in ``drain()``.

        Raises:
            Exception: The error of a job, unless it is ``Retry``.
            RuntimeError: The caller is a job, or a job has rolled back the transaction of the kit.
            TimeoutError: A job has not ended in time; the message names it.
            ValueError: ``timeout`` is negative.
        """
        due_ids = await self._kit.ids(due=True)
        # A bound must allow an attempt, even if no job is due.
        bound = AttemptBound(max(len(due_ids), 1), timeout)
        return await self._kit.run_jobs(only=due_ids, raises=raises, bound=bound)

    async def drain(
        self,
        *,
        raises: bool = True,
        max_attempts: int = MAX_ATTEMPTS,
        timeout: float | timedelta | None = TIMEOUT_S,
    ) -> DrainResult:
        """Run all jobs that are due now, and those that they make due.

        Args:
            raises: Whether to raise the error of an attempt that fails; see ``run_due()``.
            max_attempts: The maximum number of attempts, since a job that enqueues itself without a delay
                never ends.
            timeout: Seconds of real time, or a timedelta, within which a job must end; None for no limit. A
                plain function cannot be interrupted.

        Raises:
            Exception: The error of a job, unless it is ``Retry``.
            RuntimeError: The caller is a job, a job has rolled back the transaction of the kit, or more than
                ``max_attempts`` have run; the message names the jobs.
            TimeoutError: A job has not ended in time; the message names it.
            ValueError: A value is out of range.
        """
        return await self._kit.run_jobs(raises=raises, bound=AttemptBound(max_attempts, timeout))

    @overload
    async def run(self, func: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    async def run(self, func: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R: ...
    async def run(self, func: JobFunction, *args: Any, **kwargs: Any) -> Any:
        """Run a function as a job without a row; return its value, or raise its error.

        The arguments travel as JSON, the middleware runs, and ``current_job()`` works. Durable steps and
        ``completing()`` raise JobLostError, since they need a row: enqueue such a job, and call ``drain()``.

        Args:
            func: A coroutine function, or a plain one that is registered.
            args: Its positional arguments.
            kwargs: Its keyword arguments.

        Raises:
            Exception: The error of the job.
            PayloadError: JSON cannot represent an argument.
        """
        return await self._kit.run_function(func, args, kwargs)
