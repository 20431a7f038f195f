"""Calls in a thread of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

__all__ = ["call_in_own_thread"]

P = ParamSpec("P")
R = TypeVar("R")


async def call_in_own_thread(func: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function in a new thread.

    ``asyncio.to_thread()`` would wait for a thread of the event loop, and all of these may be waiting for
    this call: they may call blocking methods of the Scheduler.
    """
    executor = ThreadPoolExecutor(1, thread_name_prefix="pg_scheduler search")
    try:
        return await asyncio.get_running_loop().run_in_executor(executor, partial(func, *args, **kwargs))
    finally:
        executor.shutdown(wait=False)
