"""Care for the database connections of the jobs of a worker.

Django closes connections at the end of a request, and a worker has no requests. So each attempt closes them.
A plain function runs in a thread, which closes them before and after the function. For an async function, the
thread in which it has used the ORM closes them at the end. By default, asgiref has one such thread for the
whole process. Here each attempt has one of its own, which its middleware uses too.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import asynccontextmanager, contextmanager
from typing import Any, ClassVar

import django
from asgiref.sync import SyncToAsync, ThreadSensitiveContext
from django.conf import settings
from django.db import close_old_connections, connections, reset_queries

from pg_scheduler.integrations.django.runner import serving
from pg_scheduler.jobs.call import JobCall, invoke
from pg_scheduler.jobs.model import JobFunction
from pg_scheduler.worker.runners.process import ProcessExecutor
from pg_scheduler.worker.runners.thread import ThreadExecutor


class DjangoThreads(ThreadExecutor):
    """Runs plain functions in threads, without stale connections.

    Args:
        threads: Jobs that run at once in each Scheduler; None for as many as there are slots.

    Raises:
        ConfigurationError: ``threads`` is not a positive int.

    Example::

        OPTIONS = {"EXECUTORS": {"reports": DjangoThreads(threads=2)}}  # for @job(executor="reports")
    """

    def __init__(self, threads: int | None = None) -> None:
        # The base class requires a number. Without a capacity, only the slots of the Scheduler limit the
        # threads.
        super().__init__(1 if threads is None else threads)
        if threads is None:
            self.capacity = None

    def invoke(self, call: JobCall) -> Any:
        """Call the function of an attempt in its thread."""
        with fresh_connections():
            return super().invoke(call)

    def leave(self) -> None:
        """Close the persistent connections of a thread before it ends."""
        connections.close_all()


@contextmanager
def fresh_connections() -> Iterator[None]:
    """Before and after the block, close the connections of this thread that are broken or too old."""
    reset_queries()
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()


async def close_connections(backend: str, _call: JobCall, call_next: Callable[[], Awaitable[Any]]) -> Any:
    """Surround an attempt with ``own_thread()``, and note the backend of its worker; a middleware."""
    serving.set(backend)
    async with own_thread():
        return await call_next()


@asynccontextmanager
async def own_thread() -> AsyncIterator[None]:
    """Give the asynchronous code of the block a thread of its own for the ORM, and close its connections."""
    async with ThreadSensitiveContext() as context:
        try:
            yield
        finally:
            # The context would end the thread without waiting for it, so the thread is taken out before.
            thread = SyncToAsync.context_to_thread_executor.pop(context, None)
            if thread is not None:
                await _close(thread)


async def _close(thread: Executor) -> None:
    """Wait until the executor's thread has ended its work and closed its connections, and end the thread.

    The attempt may be cancelled several times meanwhile: the job keeps its slot until the thread has ended.
    The end of the context is not enough, because it does not wait for the connections, and because it may
    block the event loop in former versions of asgiref.
    """
    # The thread does one thing after the other, so this comes after its work.
    closing = asyncio.get_running_loop().run_in_executor(thread, connections.close_all)
    thread.shutdown(wait=False)
    # A cancellation is raised only after the thread has ended.
    cancellation: asyncio.CancelledError | None = None
    while not closing.done():
        try:
            await asyncio.wait([closing])
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is not None:
        raise cancellation


class DjangoProcesses(ProcessExecutor):
    """Runs functions in processes of its own, which import models and close stale connections.

    Each process sets up the project that ``DJANGO_SETTINGS_MODULE`` names before its first job, and uses the
    databases of this one, also in a test run.

    Args:
        processes: Jobs that run at once in each Scheduler.
        jobs_per_process: Jobs after which a process is replaced, which returns its memory; None for no limit.

    Raises:
        ConfigurationError: A number is not a positive int.

    Example::

        OPTIONS = {"EXECUTORS": {"process": DjangoProcesses(processes=2)}}  # for @job(executor="process")
    """

    preparation: ClassVar[str | None] = f"{__name__}:prepare"

    def parameters(self) -> dict[str, str]:
        """Return the names of the databases by alias, which a new process passes to ``prepare()``.

        The names of a test run are not in the settings that the process reads.
        """
        return {
            alias: str(parameters["NAME"])
            for alias, parameters in connections.settings.items()
            if parameters["NAME"]
        }


def prepare(names: Mapping[str, str]) -> Callable[..., Any]:
    """Set up the project in a new process, and return the function that calls the functions of jobs.

    ``names`` has the names of the databases by alias.
    """
    # Log records go to the handlers of the worker, so Django must not set up its own.
    settings.LOGGING_CONFIG = None
    django.setup()
    for alias, name in names.items():
        connections.settings[alias]["NAME"] = name
    return _invoke


def _invoke(func: JobFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call the function of a job in a process of its own, and take care of its connections."""

    # A coroutine function uses the ORM in the thread that own_thread() gives to it.
    async def call_in_thread() -> Any:
        async with own_thread():
            return await func(*args, **kwargs)

    if inspect.iscoroutinefunction(func):
        return invoke(call_in_thread, (), {})
    with fresh_connections():
        return invoke(func, args, kwargs)
