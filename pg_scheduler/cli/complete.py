"""The words with which a shell completes ids and names, read from the database within 300 ms, else none."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Awaitable, Callable, Iterable
from typing import Annotated, Any, Final

import typer

from pg_scheduler import Scheduler
from pg_scheduler.inspect import Inspector

from .commands import Command
from .output import Output
from .settings import NAMES, find_project, resolve

LIMIT_VARIABLE: Final = "PG_SCHEDULER_COMPLETION_SECONDS"
LIMIT_S: Final = 0.3
MAX_WORDS: Final = 200

_SAFE: Final = re.compile(r"[\w.:@/+-]+", re.ASCII)
"""Other words, which may have been written by hand, would have to be quoted for the shell."""


def complete_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of tasks that workers claim, or of which jobs are due."""

    async def read(scheduler: Scheduler) -> Iterable[str]:
        return [task.name for task in (await Inspector(scheduler).tasks()).items]

    return _complete(ctx, incomplete, read)


TaskName = Annotated[
    str, typer.Argument(metavar="NAME", help="The name of a task.", autocompletion=complete_names)
]


def complete_schedules(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the ids of schedules."""

    async def read(scheduler: Scheduler) -> Iterable[str]:
        found = await scheduler.schedules.list(after=incomplete or None, limit=MAX_WORDS)
        return [schedule.schedule_id for schedule in found]

    return _complete(ctx, incomplete, read)


def complete_workers(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the ids of workers."""

    async def read(scheduler: Scheduler) -> Iterable[str]:
        return [worker.worker_id for worker in await scheduler.workers()]

    return _complete(ctx, incomplete, read)


def _complete(
    ctx: typer.Context, incomplete: str, read: Callable[[Scheduler], Awaitable[Iterable[str]]]
) -> list[str]:
    """Return the words that begin with what was typed.

    The process ends without any if the database is too slow, even while a name is looked up in a thread.
    """

    async def run() -> Iterable[str]:
        command = Command(resolve(_options(ctx), os.environ, find_project()), Output())
        async with command.scheduler(verified=False) as scheduler:
            return await read(scheduler)

    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    try:
        signal.setitimer(signal.ITIMER_REAL, float(os.environ.get(LIMIT_VARIABLE, LIMIT_S)))
        words = asyncio.run(run())
    except Exception:  # noqa: BLE001 - a person who types sees no errors: there is nothing to complete
        return []
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return [word for word in words if word.startswith(incomplete) and _SAFE.fullmatch(word)][:MAX_WORDS]


def _options(ctx: typer.Context) -> dict[str, Any]:
    """Return the settings that were typed, before and after the command."""
    options: dict[str, Any] = {}
    context: Any = ctx
    while context is not None:
        typed = {name: context.params.get(name.replace("-", "_")) for name in NAMES}
        options = {name: value for name, value in typed.items() if value is not None} | options
        context = context.parent
    return options
