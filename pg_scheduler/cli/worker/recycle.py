"""End a worker after some work, so that its supervisor starts a new one, and when no job is due."""

from __future__ import annotations

import asyncio
import random
import resource
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from pg_scheduler import Scheduler
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.events import JobStarted
from pg_scheduler.inspect import Inspector

from .inside import claimed_names
from .options import WorkerOptions

INTERVAL_S: Final = 1.0
"""Seconds between two checks."""

JITTER: Final = 0.1
"""Part of ``--max-age`` by which it varies, so that workers that began together do not end together."""

_STATM: Final = Path("/proc/self/statm")


async def wait_for_recycling(scheduler: Scheduler, options: WorkerOptions) -> str:
    """Wait until a limit of the process is reached, and return which one. Never returns without limits."""
    begun = 0
    spread = 1 + random.uniform(-JITTER, JITTER)  # noqa: S311 - jitter, no secret
    max_age_s = options.max_age_s
    ends_at = time.monotonic() + (max_age_s or 0) * spread
    reached = asyncio.Event()

    def count(_event: object) -> None:
        nonlocal begun
        begun += 1
        if options.max_jobs is not None and begun >= options.max_jobs:
            reached.set()

    unsubscribe = scheduler.subscribe(count, JobStarted) if options.max_jobs is not None else None
    try:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(INTERVAL_S if options.recycles else None):
                    await reached.wait()
            if reached.is_set():
                return f"{begun:,} jobs have started"
            if options.max_rss is not None and (used := memory_mb()) >= options.max_rss:
                return f"{used:,.0f} MB of memory are in use"
            if max_age_s is not None and time.monotonic() >= ends_at:
                return f"{max_age_s:g} s have passed"
    finally:
        if unsubscribe is not None:
            unsubscribe()


async def wait_until_drained(scheduler: Scheduler) -> str:
    """Wait until no job is due that the worker claims, and none runs; return that as the reason to end.

    Jobs that a limit or other jobs block, and jobs of paused tasks, do not count.
    """
    inspector = Inspector(scheduler)
    while True:
        if not scheduler.health().slots_busy:
            try:
                backlog = await inspector.backlog()
            except DatabaseUnavailableError:
                backlog = None
            names = claimed_names(scheduler)
            if (
                backlog is not None
                and not any(each.due for each in backlog.names if each.name in names)
                and not scheduler.health().slots_busy
            ):
                return "no job is due"
        await asyncio.sleep(INTERVAL_S)


def memory_mb() -> float:
    """Return the resident memory of this process in megabytes; its maximum where only that is known."""
    try:
        pages = int(_STATM.read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / 1e6 if sys.platform == "darwin" else peak / 1e3
    return pages * resource.getpagesize() / 1e6
