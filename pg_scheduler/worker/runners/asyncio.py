"""Start tasks, eagerly on Python 3.12 and later.

An eager task runs up to its first suspension within the call that creates it, so a job that never suspends
ends without an iteration of the event loop. If the application has set a task factory, the factory
creates the task.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def start_task(coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
    """Create a task that runs the coroutine, and return it."""
    loop = asyncio.get_running_loop()
    if sys.version_info >= (3, 12) and loop.get_task_factory() is None:
        return asyncio.Task(coroutine, loop=loop, name=name, eager_start=True)
    return loop.create_task(coroutine, name=name)
