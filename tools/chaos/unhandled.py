"""Errors that nobody handled: asyncio only tells of them when what held them is thrown away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

__all__ = ["listen"]

NOT_OURS: Final = "Future exception was never retrieved"
"""asyncpg leaves such a future behind when a connection ends in the middle of a COPY, whose call raised as it
should."""


def listen(tell: Callable[[str], object]) -> None:
    """Hear of all in this event loop: tasks that failed unseen, callbacks that raised."""

    def hear(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if context["message"] != NOT_OURS:
            tell(f"{context['message']}: {context.get('exception')!r}")

    asyncio.get_running_loop().set_exception_handler(hear)
