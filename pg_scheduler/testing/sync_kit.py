"""The test kit for plain tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import update_wrapper
from inspect import signature
from typing import Any, Concatenate, ParamSpec, TypeVar, cast, overload

from pg_scheduler.base.blocking import run_at_once
from pg_scheduler.database.callers.adapter import AnySyncConnection, adapter_for, library_of
from pg_scheduler.database.callers.connection import ForeignConnection
from pg_scheduler.jobs.model import Job, JobFunction
from pg_scheduler.scheduler import Scheduler
from pg_scheduler.sync.scheduler import SyncScheduler
from pg_scheduler.testing.async_kit import TAKERS, AsyncTestKit, TestKitBase, without_session
from pg_scheduler.testing.calling_thread import CallingThread, CallingThreadExecutor
from pg_scheduler.testing.sync_client import SyncClient
from pg_scheduler.testing.transaction import AnyScheduler, KitScheduler

P = ParamSpec("P")
R = TypeVar("R")


def _blocking(
    method: Callable[Concatenate[AsyncTestKit, P], Coroutine[Any, Any, R]], *, runs_jobs: bool = False
) -> Callable[Concatenate[TestKit, P], R]:
    """Return a method of the plain kit that calls a method of the async kit, and blocks until it returns."""

    def call(self: TestKit, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the method with the same arguments, and block until it returns."""
        # The methods use only what both kits have.
        kit = cast("AsyncTestKit", self)
        self._thread.check_caller()
        # Jobs may wait, so they need an event loop, which runs in another thread. Other methods only execute
        # statements, which block here, so that their coroutines never wait.
        if runs_jobs:
            return self._thread.run(lambda: method(kit, *args, **kwargs))
        return run_at_once(method(kit, *args, **kwargs))

    update_wrapper(call, method)
    # The result is a plain function. Code that inspects it must not find the coroutine function instead.
    del call.__dict__["__wrapped__"]
    call.__dict__["__signature__"] = signature(method)
    call.__module__, call.__qualname__ = __name__, f"TestKit.{method.__name__}"
    return call


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
        RuntimeError: The connection is one of Django, and the test is async.
        TypeError: The connection is not supported, or is asynchronous.

    Example:
        >>> kit = TestKit("default")  # in a TestCase of Django  # doctest: +SKIP
        >>> place_order(7)  # doctest: +SKIP
        >>> kit.assert_scheduled(send_invoice, args=(7,))  # doctest: +SKIP
        >>> assert kit.drain().completed == 1  # doctest: +SKIP
    """

    def __init__(self, connection: AnySyncConnection, *, scheduler: AnyScheduler | None = None) -> None:
        source = without_session(connection)
        adapter = adapter_for(source, is_async=False, takers=TAKERS)
        self._thread = _thread_for(source)
        self._thread.check_caller()
        foreign = ForeignConnection(self._thread.adapt(adapter))
        self._kit = KitScheduler(
            cast("Any", foreign), scheduler, CallingThreadExecutor(self._thread), self._scheduler_of_jobs
        )
        self._client = SyncClient(self._kit)

    @property
    def scheduler(self) -> SyncScheduler:
        """A client whose calls without ``connection=`` use that of the kit. It cannot start."""
        return self._client

    scheduled = _blocking(AsyncTestKit.scheduled)
    assert_scheduled = _blocking(AsyncTestKit.assert_scheduled)
    assert_not_scheduled = _blocking(AsyncTestKit.assert_not_scheduled)

    @contextmanager
    def scheduling(self) -> Iterator[list[Job]]:
        """Yield a list to which the jobs that the block has scheduled are added at its end.

        They are read from the table, in the order of their due time. So jobs of a savepoint that was rolled
        back are missing, and jobs that SQL statements have inserted are there.

        Example:
            >>> with kit.scheduling() as jobs:  # doctest: +SKIP
            ...     client.post("/orders", {"number": 7})
            >>> assert [job.job_name for job in jobs] == ["shop.send_invoice"]  # doctest: +SKIP
        """
        self._thread.check_caller()
        previous_ids = run_at_once(self._kit.ids())
        jobs: list[Job] = []
        yield jobs
        jobs += run_at_once(self._kit.new_jobs(previous_ids))

    run_due = _blocking(AsyncTestKit.run_due, runs_jobs=True)
    drain = _blocking(AsyncTestKit.drain, runs_jobs=True)

    @overload
    def run(self, func: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def run(self, func: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R: ...
    def run(self, func: JobFunction, *args: Any, **kwargs: Any) -> Any:
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
        self._thread.check_caller()
        return self._thread.run(lambda: self._kit.run_function(func, args, kwargs))

    def _scheduler_of_jobs(self) -> Scheduler:
        """Return ``current_job().scheduler``: a blocking one for plain functions, an async one for others."""
        return self._kit if self._thread.is_caller_in_loop else cast("Scheduler", self._client)


def _thread_for(connection: object) -> CallingThread:
    """Return the CallingThread for the library of a connection."""
    if library_of(connection) == "django":
        from pg_scheduler.testing.django import DjangoThread  # noqa: PLC0415 - Django is installed

        return DjangoThread()
    return CallingThread()
