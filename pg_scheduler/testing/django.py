"""Run async jobs of Django in the transaction of a test: ``sync_to_async()`` finds the thread of the test."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from asgiref.sync import AsyncToSync, sync_to_async

from pg_scheduler.testing.calling_thread import CallingThread

T = TypeVar("T")


class DjangoThread(CallingThread):
    """A thread that waits for a coroutine as ``async_to_sync()`` does."""

    def post(self, call: Callable[[], T]) -> Awaitable[T]:
        """Let the waiting thread call a function. The coroutine awaits the result."""
        return sync_to_async(call)()

    def _run(self, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run the coroutine in a new event loop, and execute what ``sync_to_async()`` passes back."""
        return AsyncToSync(main, force_new_loop=True)()
