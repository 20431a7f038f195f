"""Care for the database connections of the jobs of a worker.

Django closes connections at the end of a request, and a worker has none. So each attempt does it: in a thread
before and after the function, and after an async function in the thread in which it has used the ORM. Such a
thread belongs to one attempt, not to all of the process, as it does by default. Middleware shares it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Executor
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext
from django.db import close_old_connections, connections, reset_queries

from pg_scheduler.integrations.django.runner import serving
from pg_scheduler.worker.runners.call import JobCall
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
        super().__init__(1 if threads is None else threads)
        if threads is None:
            self.capacity = None

    def invoke(self, call: JobCall) -> Any:
        """Call the function of an attempt in its thread."""
        with fresh_connections():
            return super().invoke(call)

    def leave(self) -> None:
        """Close the connections that persist, with their thread."""
        connections.close_all()


@contextmanager
def fresh_connections() -> Iterator[None]:
    """Close the connections of this thread before and after the block that are broken or too old."""
    reset_queries()
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()


async def close_connections(backend: str, _call: JobCall, call_next: Callable[[], Awaitable[Any]]) -> Any:
    """Surround an attempt with ``own_thread()``; a middleware."""
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
            thread = SyncToAsync.context_to_thread_executor.pop(context, None)
            if thread is not None:
                await _close(thread)


async def _close(thread: Executor) -> None:
    """End a thread as soon as its work ends, however often the attempt is cancelled meanwhile.

    Until then the job keeps its slot. The end of the context does not wait for the
    connections, and may block the event loop in former versions of asgiref.
    """
    closed = asyncio.get_running_loop().run_in_executor(thread, connections.close_all)
    thread.shutdown(wait=False)
    cancelled: asyncio.CancelledError | None = None
    while not closed.done():
        try:
            await asyncio.wait([closed])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
