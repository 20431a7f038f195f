"""Care for the database connections of the jobs of a worker.

Django closes connections at the end of a request, and a worker has none. So each attempt does it: in a thread
before and after the function, and after an async function in the thread in which it has used the ORM. Such a
thread belongs to one attempt, not to all of the process, as it does by default.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.db import close_old_connections, connections, reset_queries

from pg_scheduler.integrations.django.runner import serving
from pg_scheduler.worker.runners.call import JobCall
from pg_scheduler.worker.runners.thread import ThreadExecutor


class DjangoThreads(ThreadExecutor):
    """Runs plain functions in as many threads as there are slots, without stale connections."""

    def __init__(self) -> None:
        super().__init__()
        self.capacity = None

    def invoke(self, call: JobCall) -> Any:
        """Call the function of an attempt in its thread."""
        reset_queries()
        close_old_connections()
        try:
            return super().invoke(call)
        finally:
            close_old_connections()

    def leave(self) -> None:
        """Close the connections that persist, with their thread."""
        connections.close_all()


async def close_connections(backend: str, call: JobCall, call_next: Callable[[], Awaitable[Any]]) -> Any:
    """Give an async function a thread of its own for the ORM, and close its connections; a middleware."""
    serving.set(backend)
    if not inspect.iscoroutinefunction(call.func):
        return await call_next()
    async with ThreadSensitiveContext() as context:
        try:
            return await call_next()
        finally:
            if context in SyncToAsync.context_to_thread_executor:  # the thread, which ends with the context
                await sync_to_async(connections.close_all)()
