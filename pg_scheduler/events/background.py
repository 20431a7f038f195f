"""Tasks that no code awaits. Their errors are logged at once, and not when Python deletes the task."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any

from pg_scheduler.events.log import logger, record_fields


def start_in_background(
    work: Coroutine[Any, Any, None], name: str, context: Context | None = None
) -> asyncio.Task[None]:
    """Run a coroutine in a task of the running event loop, and log the error that ends it."""
    task = asyncio.get_running_loop().create_task(work, name=name, context=context)
    task.add_done_callback(log_failure)
    return task


def log_failure(task: asyncio.Task[None]) -> None:
    """Log the error of a task that is not awaited. It is called when the task is done."""
    if not task.cancelled() and (error := task.exception()):
        logger.error("%s failed", task.get_name(), exc_info=error, extra=record_fields())
