"""Call the event loop, and write to the log, from the lease keeper's thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial

from pg_scheduler.events.log import logger


def call_in_loop(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *args: object) -> bool:
    """Schedule a call in another thread's event loop; return False if that loop is closed."""
    try:
        loop.call_soon_threadsafe(call, *args)
    except RuntimeError:  # it is closed
        return False
    return True


def log_in_thread(
    level: int,
    message: str,
    *args: object,
    extra: dict[str, object],
    error: BaseException | None = None,
) -> None:
    """Log a message without waiting for the handlers.

    A handler may be what blocks the event loop, and then it holds the lock that every log call needs.
    """
    write = partial(logger.log, level, message, *args, extra=extra, exc_info=error)
    threading.Thread(target=write, daemon=True).start()
