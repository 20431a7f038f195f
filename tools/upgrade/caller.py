"""A process that calls the Scheduler as a web service does: it prepares jobs and lets them continue.

It prints the kinds of its release, and then answers each line of its standard input with a line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from pg_scheduler import Scheduler
from tools.upgrade.jobs import open_scheduler
from tools.upgrade.kinds import DUE_NOW, KINDS

PAUSE_S: Final = 0.05
"""Between two jobs of the load."""


class Caller:
    """Executes the commands."""

    def __init__(self, scheduler: Scheduler, release: str) -> None:
        self._scheduler = scheduler
        self._release = release
        self._load: asyncio.Task[None] | None = None
        self._tags: list[str] = []

    async def prepare(self, phase: str, tags: dict[str, list[str]]) -> None:
        """Prepare the jobs with these tags, by kind."""
        for key, tags_of_kind in tags.items():
            kind = KINDS[key]
            if kind.before:
                await kind.before(self._scheduler, phase)
            for tag in tags_of_kind:
                await kind.prepare(self._scheduler, tag)

    async def proceed(self, phase: str, tags: dict[str, list[str]]) -> None:
        """Let them continue."""
        for key, tags_of_kind in tags.items():
            kind = KINDS[key]
            if kind.after:
                await kind.after(self._scheduler, phase)
            for tag in tags_of_kind if kind.proceed else ():
                assert kind.proceed
                await kind.proceed(self._scheduler, tag)

    async def begin_load(self, phase: str) -> None:
        """Enqueue one due job after the other."""
        self._tags = []
        self._load = asyncio.create_task(self._add_load(phase))

    async def end_load(self) -> list[str]:
        """End the load, if there is one, and return the tags of the jobs that were enqueued."""
        if self._load is None:
            return []
        self._load.cancel()
        with suppress(asyncio.CancelledError):
            await self._load
        self._load = None
        return self._tags

    async def _add_load(self, phase: str) -> None:
        while True:
            tag = f"{phase}:due:{self._release}-{len(self._tags)}"
            # The cancellation must not leave open whether the job was inserted.
            await asyncio.shield(self._add(tag))
            await asyncio.sleep(PAUSE_S)

    async def _add(self, tag: str) -> None:
        self._tags.append(tag)
        await DUE_NOW.prepare(self._scheduler, tag)


def answer(value: Any) -> None:
    """Print a line of JSON."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


async def execute(caller: Caller, name: str, arguments: Sequence[Any]) -> Any:
    """Execute a command; return its value, or the error as a text."""
    try:
        return {"value": await getattr(caller, name)(*arguments)}
    except Exception:  # noqa: BLE001 - it is a finding of the rehearsal
        return {"error": traceback.format_exc()}


async def main(release: str) -> None:
    """Execute the commands until the standard input is closed."""
    async with open_scheduler() as scheduler:
        answer([key for key, kind in KINDS.items() if kind.is_known])
        caller = Caller(scheduler, release)
        while line := await asyncio.to_thread(sys.stdin.readline):
            name, *arguments = json.loads(line)
            answer(await execute(caller, name, arguments))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
