"""Pause and resume tasks."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from pg_scheduler.database.statements import Repository
from pg_scheduler.jobs.pause import Pause


class PauseRepository(Repository):
    """The statements that read and write the pauses of tasks."""

    async def pause(self, name: str, until: datetime | None, note: str | None, actor: str) -> bool:
        """Pause a task; return False if it is paused until the same time with the same note."""
        until_text = None if until is None else until.isoformat()
        _, *author_values = self._statements.author.values(until=until_text, note=note)
        now = self._statements.now
        return bool(await self._statements.fetch("pause_task", name, until, note, actor, now, *author_values))

    async def resume(self, names: Collection[str]) -> bool:
        """End the pauses of these names; return whether one was in effect."""
        author = self._statements.author.values()
        rows = await self._statements.fetch("resume_tasks", list(names), self._statements.now, *author)
        return any(row[0] for row in rows)

    async def end_pauses(self) -> list[str]:
        """Delete the pauses whose time has ended; return the names of the tasks that this call resumed."""
        return [row[0] for row in await self._statements.fetch("end_pauses", self._statements.now)]

    async def paused(self) -> list[Pause]:
        """Return every pause in the order of the names, including pauses that have just ended."""
        return await self._rows(Pause, "paused_tasks", self._statements.now)
