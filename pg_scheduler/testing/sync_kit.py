"""The test kit for plain tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, ParamSpec, TypeVar, cast, overload

from pg_scheduler.blocking import run_at_once
from pg_scheduler.jobs.model import Job, JobFunction
from pg_scheduler.scheduler import Scheduler
from pg_scheduler.store.foreign.adapter import AnySyncConnection, adapter_for, library_of
from pg_scheduler.store.foreign.connection import ForeignConnection
from pg_scheduler.sync.scheduler import SyncScheduler
from pg_scheduler.testing.calling_thread import CallingThread, CallingThreadExecutor
from pg_scheduler.testing.kit_base import TAKERS, TOLERANCE_S, TestKitBase, owner_of
from pg_scheduler.testing.result import DrainResult
from pg_scheduler.testing.sync_client import SyncClient
from pg_scheduler.testing.transaction import AnyScheduler, KitScheduler

P = ParamSpec("P")
R = TypeVar("R")


class TestKit(TestKitBase):
    """Looks at jobs, and runs them, in the transaction of a plain test.

    Plain functions run in the thread and on the connection of the test, async ones in an event loop in
    another thread. Everything else is as in `AsyncTestKit`.

    Args:
        connection: What the code under test passes as ``connection=``: a connection or session of psycopg,
            psycopg2, SQLAlchemy or SQLModel, an alias or connection of Django, or a ConnectionAdapter. If a
            session is bound to a connection, the kit uses that.
        scheduler: The Scheduler of the application, whose settings, functions and middleware the kit uses;
            None for the defaults.

    Raises:
        TypeError: The connection is not supported, or is asynchronous.

    Example:
        >>> kit = TestKit("default")  # in a TestCase of Django  # doctest: +SKIP
        >>> place_order(7)  # doctest: +SKIP
        >>> kit.assert_scheduled(send_invoice, args=(7,))  # doctest: +SKIP
        >>> assert kit.drain().completed == 1  # doctest: +SKIP
    """

    def __init__(self, connection: AnySyncConnection, *, scheduler: AnyScheduler | None = None) -> None:
        source = owner_of(connection)
        adapter = adapter_for(source, is_async=False, takers=TAKERS)
        self._thread = _thread_for(source)
        foreign = ForeignConnection(self._thread.adapt(adapter))
        self._kit = KitScheduler(
            cast("Any", foreign), scheduler, CallingThreadExecutor(self._thread), self._scheduler_of_jobs
        )
        self._client = SyncClient(self._kit)

    @property
    def scheduler(self) -> SyncScheduler:
        """A client whose calls without ``connection=`` use that of the kit. It cannot start."""
        return self._client

    def scheduled(
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
        return run_at_once(self._kit.find(func, args, kwargs, after, at, tolerance=tolerance))

    def assert_scheduled(
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
            AssertionError: There is none; the message lists all jobs.
        """
        wanted = self._find_one(func, args, kwargs, after, at, tolerance=tolerance)
        return run_at_once(wanted)

    def assert_not_scheduled(
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
            AssertionError: There is one; the message lists them.
        """
        run_at_once(self._find_none(func, args, kwargs, after, at, tolerance=tolerance))

    @contextmanager
    def scheduling(self) -> Iterator[list[Job]]:
        """Yield a list that has the jobs that the block has scheduled, at its end.

        They are read from the table, in the order of their due time: those of a savepoint that was rolled
        back are missing, and those that SQL has inserted are there.

        Example:
            >>> with kit.scheduling() as jobs:  # doctest: +SKIP
            ...     client.post("/orders", {"number": 7})
            >>> assert [job.job_name for job in jobs] == ["shop.send_invoice"]  # doctest: +SKIP
        """
        before, jobs = run_at_once(self._kit.ids()), list[Job]()
        yield jobs
        jobs += run_at_once(self._new_jobs(before))

    def run_due(self, *, raises: bool = True) -> DrainResult:
        """Run each job that is due now once, in the order of priority, due time and id.

        Args:
            raises: Whether to raise the error of an attempt that fails, also if the job is retried. Its
                outcome is written before, and jobs after it stay pending.

        Raises:
            Exception: The error of a job, unless it is ``Retry``.
            RuntimeError: The caller is a job, or a job has rolled back the transaction of the kit.
        """
        return self._thread.run(lambda: self._run_due(raises=raises))

    def drain(self, *, raises: bool = True) -> DrainResult:
        """Run all jobs that are due now, and those that they make due.

        Args:
            raises: Whether to raise the error of an attempt that fails; see ``run_due()``.

        Raises:
            Exception: The error of a job, unless it is ``Retry``.
            RuntimeError: The caller is a job, or a job has rolled back the transaction of the kit.
        """
        return self._thread.run(lambda: self._kit.run_jobs(raises=raises))

    @overload
    def run(self, func: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def run(self, func: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R: ...
    def run(self, func: JobFunction, *args: Any, **kwargs: Any) -> Any:
        """Run a function as a job without a row; return its value, or raise its error.

        The arguments travel as JSON, the middleware runs, and ``current_job()`` works.

        Args:
            func: A coroutine function, or a plain one that is registered.
            args: Its positional arguments.
            kwargs: Its keyword arguments.

        Raises:
            Exception: The error of the job.
            PayloadError: JSON cannot represent an argument.
        """
        return self._thread.run(lambda: self._kit.run_function(func, args, kwargs))

    def _scheduler_of_jobs(self) -> Scheduler:
        return self._kit if self._thread.is_caller_in_loop else cast("Scheduler", self._client)


def _thread_for(connection: object) -> CallingThread:
    if library_of(connection) == "django":
        from pg_scheduler.testing.django import DjangoThread  # noqa: PLC0415 - Django is installed

        return DjangoThread()
    return CallingThread()
