"""The blocking methods of a Scheduler whose connection is that of a plain test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from pg_scheduler.base.blocking import run_at_once
from pg_scheduler.scheduler import Scheduler
from pg_scheduler.sync.scheduler import SyncScheduler


class _CallerThread:
    """Stands for a portal, which calls functions in another thread, and calls them in the caller's own."""

    is_alive = is_own_thread = True
    is_inherited = False

    def __init__(self, scheduler: Scheduler) -> None:
        self.resource = scheduler

    def call(self, function: Callable[[], Any]) -> Any:
        """Call the function, and return the result of its coroutine, which never waits."""
        return run_at_once(_result_of(function))

    submit = call

    def close(self, timeout: float) -> bool:  # noqa: ARG002
        """Do nothing: nothing is open."""
        return True


class SyncClient(SyncScheduler):
    """A SyncScheduler without a thread and a DSN.

    Args:
        scheduler: A Scheduler whose statements block.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        # The base class takes the Scheduler of a call from one of these, by the kind of the call.
        self._draft = self._last_scheduler = scheduler
        self._current_portal = cast("Any", _CallerThread(scheduler))


async def _result_of(function: Callable[[], Any]) -> Any:
    """Call a function, and return its result; if that is awaitable, as of a coroutine function, await it."""
    result = function()
    return await result if hasattr(result, "__await__") else result
