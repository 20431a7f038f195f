"""Unhandled errors: asyncio reports them only when the task or future is garbage-collected."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

IGNORED: Final = "Future exception was never retrieved"
"""asyncpg leaves such a future when a connection ends during a COPY; the call itself raises as it should."""

SHIELDED: Final = "PoolConnectionHolder.release"
"""asyncpg shields the reset of a connection. If its caller is cancelled, its error is not read."""


def report_unhandled_errors(log: Callable[[str], object]) -> None:
    """Report every unhandled error of this event loop: failed tasks and callbacks that raised."""

    def handle(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        coroutine = getattr(context.get("future"), "get_coro", lambda: None)()
        name = getattr(coroutine, "__qualname__", "")
        if context["message"] != IGNORED and name != SHIELDED:
            log(f"{context['message']}: {context.get('exception')!r} {name}".rstrip())

    asyncio.get_running_loop().set_exception_handler(handle)
