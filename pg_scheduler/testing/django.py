"""Run async jobs of Django in the transaction of a test: ``sync_to_async()`` finds the thread of the test."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from asgiref.sync import AsyncToSync, sync_to_async

from pg_scheduler.testing.calling_thread import CallingThread

T = TypeVar("T")

ASYNC_TEST: Final = (
    "TestKit was used in an async test, where Django refuses queries and has another connection; write a "
    "plain test, or make the kit in setUp() and call it by sync_to_async(), as in "
    "await sync_to_async(kit.drain)()"
)


class DjangoThread(CallingThread):
    """A thread that waits for a coroutine as ``async_to_sync()`` does."""

    def check_caller(self) -> None:
        """Raise RuntimeError where Django refuses every query: in a thread with a running event loop."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        if not os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE"):
            raise RuntimeError(ASYNC_TEST)

    def post(self, call: Callable[[], T]) -> Awaitable[T]:
        """Let the waiting thread call a function. The coroutine awaits the result."""
        return sync_to_async(call)()

    def _run(self, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run the coroutine in a new event loop, and execute what ``sync_to_async()`` passes back."""
        return AsyncToSync(main, force_new_loop=True)()
