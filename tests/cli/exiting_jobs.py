"""Jobs whose tasks and callbacks raise what ends a program, and a program that runs such a job."""

from __future__ import annotations

import asyncio
import builtins
import sys
from collections.abc import Awaitable, Callable

from pg_scheduler import Scheduler, job


async def _raise(name: str) -> None:
    await asyncio.sleep(0)
    raise getattr(builtins, name)


async def _gather(name: str) -> None:
    await asyncio.gather(_raise(name))


async def _group(name: str) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_raise(name))


async def _wait_for_task(name: str) -> None:
    await asyncio.create_task(_raise(name))


async def _time_out(name: str) -> None:
    await asyncio.wait_for(_raise(name), 60)


async def _leave_task(name: str) -> None:
    task = asyncio.create_task(_raise(name))
    while not task.done():  # noqa: ASYNC110 - the job does not look at the error
        await asyncio.sleep(0)


async def _leave_callback(name: str) -> None:
    def call() -> None:
        called.set()
        raise getattr(builtins, name)

    called = asyncio.Event()
    asyncio.get_running_loop().call_soon(call)
    await called.wait()


async def _stop_loop(_name: str) -> None:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0)


FAILING: dict[str, Callable[[str], Awaitable[None]]] = {
    "gather": _gather,
    "group": _group,
    "task": _wait_for_task,
    "timeout": _time_out,
}
"""The ways in which the exception reaches the function of the job."""

HARMLESS: dict[str, Callable[[str], Awaitable[None]]] = {
    "left task": _leave_task,
    "callback": _leave_callback,
}
"""The ways in which it does not."""

STOPPING: dict[str, Callable[[str], Awaitable[None]]] = {"stop": _stop_loop}
"""The way that raises nothing, and stops the event loop."""


@job(name="exits.run", max_retries=0)
async def run(way: str, name: str) -> None:
    await {**FAILING, **HARMLESS, **STOPPING}[way](name)


async def main(dsn: str) -> None:
    """Run jobs until one ends the program, with the Scheduler in a task of its own, as in a web server."""
    serving = asyncio.create_task(serve(dsn))
    await asyncio.wait([serving])


async def serve(dsn: str) -> None:
    async with Scheduler.connect(dsn):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
