"""The package uses no threads that jobs of the application can use up."""

from __future__ import annotations

import ast
import asyncio
import contextvars
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

import pg_scheduler
from pg_scheduler.base.threads import resolve_in_threads, run_in_thread
from tests.support.source import parsed

PACKAGE: Final = Path(pg_scheduler.__file__).parent

SHARED: Final = frozenset(
    {
        "ThreadPoolExecutor",
        "getaddrinfo",
        "getnameinfo",
        "gethostbyname",
        "open_connection",
        "create_connection",
        "run_in_executor",
        "run_in_threadpool",
        "run_sync",
        "set_default_executor",
        "start_server",
        "to_thread",
    }
)
"""Calls that use threads of the event loop, or that resolve names there."""

PERMITTED: Final = {
    ("integrations/django/connections.py", "run_in_executor"): "in the thread of one job, which has ended",
    ("importing/procrastinate.py", "open_connection"): "that of inspect, whose loop resolves in threads",
    ("cli/connections.py", "open_connection"): "the same",
    ("telemetry/server.py", "open_connection"): "for a socket that is connected",
    ("testing/databases.py", "ThreadPoolExecutor"): "an executor of one call",
    ("base/threads.py", "getaddrinfo"): "in a thread of the library",
    ("worker/attempt_runner.py", "run_in_executor"): "that of the middleware, for executors of jobs",
    ("worker/runners/process.py", "open_connection"): "for a socket that is connected",
}

value: contextvars.ContextVar[int] = contextvars.ContextVar("value")


def shared_calls() -> set[tuple[str, str]]:
    """Return the uses of such names in the package, by file; not those in its texts."""
    uses = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(parsed(path)):
            name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)
            if name in SHARED:
                uses.add((path.relative_to(PACKAGE).as_posix(), name))
    return uses


def test_package_uses_no_thread_of_the_event_loop() -> None:
    assert shared_calls() == set(PERMITTED), "call run_in_thread(), or state why no job can use it up"


async def test_call_runs_in_a_daemon_with_the_context_of_the_caller() -> None:
    value.set(7)

    def look() -> tuple[int, bool, bool]:
        thread = threading.current_thread()
        return value.get(), thread.daemon, thread is threading.main_thread()

    assert await run_in_thread(look) == (7, True, False)


async def test_call_raises_what_the_function_raises() -> None:
    with pytest.raises(ZeroDivisionError):
        await run_in_thread(lambda: 1 // 0)


async def test_event_loop_resolves_names_while_its_default_executor_is_full() -> None:
    loop, release = asyncio.get_running_loop(), threading.Event()
    with ThreadPoolExecutor(1) as executor:
        loop.set_default_executor(executor)
        waiting = asyncio.ensure_future(asyncio.to_thread(release.wait, 60))
        resolve_in_threads(loop)
        try:
            addresses = await asyncio.wait_for(loop.getaddrinfo("localhost", 80, type=socket.SOCK_STREAM), 60)
        finally:
            release.set()
        assert addresses == socket.getaddrinfo("localhost", 80, type=socket.SOCK_STREAM)
        assert await waiting


def test_event_loop_with_a_resolver_of_its_own_keeps_it() -> None:
    class Loop(asyncio.SelectorEventLoop):
        async def getaddrinfo(self, *_: object, **__: object) -> list[object]:  # type: ignore[override]
            return []

    loop = Loop()
    resolve_in_threads(loop)
    assert loop.run_until_complete(loop.getaddrinfo("db", 5432)) == []
    loop.close()
