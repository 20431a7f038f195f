"""Jobs of the nodes of ``test_missed_pauses.py``, whose `PauseWatcher` reads the pauses last.

After an outage all services wake at once, in any order. This is the order in which a pause is missed.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from pg_scheduler import job
from pg_scheduler.admission.pause_watcher import PauseWatcher

may_read = asyncio.Event()
run_once = PauseWatcher.run_once
readers: set[PauseWatcher] = set()


async def run_last(self: PauseWatcher) -> float:
    """Make the first pass at once, and the others when a job allows it."""
    if self in readers:
        await may_read.wait()
    readers.add(self)
    return await run_once(self)


PauseWatcher.run_once = run_last  # type: ignore[method-assign]  # this process has no other use


@job(name="mail.send")
async def send() -> None: ...


@job(name="mail.other")
async def other() -> None: ...


@job(name="mail.read_pauses")
async def read_pauses() -> None:
    """Let the `PauseWatcher` read the pauses."""
    may_read.set()


@job(name="mail.block")
async def block(path: str) -> None:
    """Block the event loop until a file exists."""
    while not Path(path).exists():  # noqa: ASYNC240 - blocking is its purpose
        time.sleep(0.01)  # noqa: ASYNC251 - the same
