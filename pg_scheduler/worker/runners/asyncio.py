"""Starts tasks, at once where Python can.

From Python 3.12 on a task may take its first step within the call that makes it. A job that waits for nothing
has ended by then, and never had to wait for a turn of the event loop. A task factory of the application's
own is respected, and decides for itself.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["start_task"]

T = TypeVar("T")


def start_task(coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
    """A task that runs it."""
    loop = asyncio.get_running_loop()
    if sys.version_info >= (3, 12) and loop.get_task_factory() is None:
        return asyncio.Task(coroutine, loop=loop, name=name, eager_start=True)
    return loop.create_task(coroutine, name=name)
