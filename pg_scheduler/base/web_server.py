"""Learn that the web server of this process is about to stop.

A web server waits for open responses before it ends the lifespan of the application, in which the Scheduler
shuts down. A response that stays open for as long as a browser shows a page would hold this back, and the
worker would claim jobs until the platform kills the process. ASGI does not announce the stop before that. But
uvicorn handles signals by a method of its server, whose attribute ``should_exit`` is public. So the streams
of this library look there. With other web servers, they learn nothing.
"""

from __future__ import annotations

import asyncio
import signal
from time import monotonic
from typing import Final

LOOK_INTERVAL_S: Final = 0.5
"""Seconds between two looks of an open response."""


def is_stopping() -> bool:
    """Return whether the web server of this process has received a signal to stop; False if it is unknown."""
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return getattr(server, "should_exit", None) is True


async def sleep_until_stop(seconds: float) -> None:
    """Sleep for so long, or until the web server of this process is about to stop."""
    ends_at = monotonic() + seconds
    while (left_s := ends_at - monotonic()) > 0 and not is_stopping():  # noqa: ASYNC110 - no event announces it
        await asyncio.sleep(min(left_s, LOOK_INTERVAL_S))
