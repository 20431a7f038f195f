"""Threads for the library itself: no job can use them up.

``asyncio.to_thread()`` shares the default executor of the event loop, which has some six to 32 threads. Jobs
may fill it with calls that take minutes, and whatever else needs a thread then waits for them. That includes
the event loop itself, which resolves host names there: without a name no connection can be opened, so after
an outage the worker could neither renew its lease nor write an outcome until the calls of its jobs return.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar, cast

from pg_scheduler.base.foreign import call_in_daemon

P = ParamSpec("P")
R = TypeVar("R")

NO_THREAD: Final = "no thread can be started to resolve the host name: the process has used up its threads"


async def run_in_thread(call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Return what a call returns in a thread of its own, with the context variables of the caller.

    Raises:
        RuntimeError: The process can start no thread.
    """
    in_context: Callable[[], R] = partial(copy_context().run, call, *args, **kwargs)
    value, error = await asyncio.wrap_future(call_in_daemon(in_context, "pg_scheduler call"))
    if error is not None:
        raise error
    return cast("R", value)


def resolve_in_threads(loop: asyncio.AbstractEventLoop) -> None:
    """Let an event loop resolve host names in threads of the library instead of its default executor.

    A loop with its own resolver keeps it, as that of uvloop does: the threads of uvloop run nothing else. The
    change lasts as long as the loop, because asyncpg resolves names whenever a pool opens a connection or
    cancels a statement, and does not let its caller choose the resolver.
    """
    if getattr(type(loop), "getaddrinfo", None) is asyncio.BaseEventLoop.getaddrinfo:
        vars(loop)["getaddrinfo"] = _resolve


def resolve_at_once(loop: asyncio.AbstractEventLoop) -> None:
    """Let an event loop resolve host names in its own thread: a process that ends starts no other threads."""

    async def resolve(host: Any, port: Any, **options: int) -> Any:
        return socket.getaddrinfo(host, port, **options)

    vars(loop)["getaddrinfo"] = resolve


async def _resolve(host: Any, port: Any, **options: int) -> Any:
    try:
        return await run_in_thread(socket.getaddrinfo, host, port, **options)
    except RuntimeError as error:
        # A thread may be free soon. A gaierror is an OSError, which counts as an outage, so services retry.
        raise socket.gaierror(socket.EAI_AGAIN, NO_THREAD) from error
