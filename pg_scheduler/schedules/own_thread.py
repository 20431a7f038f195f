"""Search for fire times in a thread of its own, for a limited time.

A trigger of the application may take any time, never return, or raise what would end the process. The thread
of a search that never returns cannot be ended: it is left behind as a daemon, which delays neither a shutdown
nor the exit, and further searches of the same trigger are rejected until it returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, Final, TypeVar, cast

from pg_scheduler.base.blocking import is_without_loop
from pg_scheduler.base.foreign import Returned, call_in_daemon, is_a
from pg_scheduler.base.fork import inheritance
from pg_scheduler.jobs.outcome import describe
from pg_scheduler.triggers.search import SearchLimitError

R = TypeVar("R")

WAITS: Final = 10
"""Waits for the end of a search. There are several short ones, because a process that is suspended, or whose
loop is blocked, then loses only one of them."""

WAIT_S: Final = 0.5
"""Seconds of one wait."""

REMEDY: Final = "next_after() must compute its result from its arguments alone, in milliseconds"

_left_behind: Final[dict[str, Future[Any]]] = {}
"""Searches that have not returned in time, by trigger."""

# A forked process has none of the threads of its parent, so no search runs there whose end could be awaited.
inheritance.call_in_children(_left_behind.clear)


async def search_in_own_thread(trigger: str, search: Callable[[], R], *, waits: int = WAITS) -> R:
    """Call a function in a thread of its own, because it calls a trigger; return its result.

    ``asyncio.to_thread()`` would wait for a thread of the event loop, and all of these may be waiting for
    this call: they may call blocking methods of the Scheduler.

    Args:
        trigger: The trigger as JSON.
        search: The function.
        waits: Its time limit, in half seconds.

    Raises:
        SearchLimitError: It has not returned in time, or an earlier one with this trigger still runs.
        ValueError: It raised StopIteration, or a BaseException that is no Exception, such as SystemExit.
        Exception: It raised this exception.
    """
    if trigger in _left_behind:
        raise SearchLimitError(f"an earlier search with {trigger[:200]} has not returned yet; {REMEDY}")
    future = call_in_daemon(search, "pg_scheduler search")
    # A call with the blocking connection of its caller runs this coroutine without an event loop.
    if is_without_loop():
        has_ended = _block_for(future, waits)
    else:
        has_ended = await _wait_for(future, waits)
    if has_ended:
        return _result_of(trigger, future.result())
    # The thread cannot be ended. Until it returns, further searches of this trigger are rejected above.
    _left_behind[trigger] = future
    future.add_done_callback(lambda _: _left_behind.pop(trigger, None))
    raise SearchLimitError(
        f"the search for a fire time with {trigger[:200]} has not returned after {waits * WAIT_S:g} s; "
        f"{REMEDY}"
    )


async def _wait_for(search: Future[Any], waits: int) -> bool:
    """Wait for the end of a search, this number of times for `WAIT_S`; return whether it has ended."""
    future_in_loop = asyncio.wrap_future(search)
    try:
        for _ in range(waits):
            await asyncio.wait([future_in_loop], timeout=WAIT_S)
            if future_in_loop.done():
                return True
    finally:
        # This cancels the wrapper only, because a search that runs cannot be cancelled. Otherwise a search
        # that returns after the event loop was closed would call into that loop.
        future_in_loop.cancel()
    return False


def _block_for(search: Future[Any], waits: int) -> bool:
    """Block until a search has ended, but only this number of times for `WAIT_S`; return whether it has.

    This is ``_wait_for()`` for a caller without an event loop.
    """
    return any(wait([search], timeout=WAIT_S).done for _ in range(waits))


def _result_of(trigger: str, returned: Returned[R]) -> R:
    """Return what a search returned, or raise its error, wrapped if a coroutine must not raise it."""
    value, error = returned
    if error is None:
        return cast("R", value)
    # A coroutine cannot raise StopIteration. An error such as SystemExit would end the process.
    if is_a(error, Exception) and not is_a(error, StopIteration):
        raise error
    raise ValueError(f"{trigger[:200]} raised {describe(error)}; raise a ValueError instead") from error
