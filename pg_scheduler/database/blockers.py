"""Find the sessions that a transaction waits for, for messages that name them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Final, NamedTuple, TypeAlias

import asyncpg

from pg_scheduler.database.faults import REFUSALS
from pg_scheduler.database.session import Connection
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.events.background import start_in_background

LOOK_INTERVAL_S: Final = 0.02
"""Seconds until a transaction is looked at that may wait for a lock by then."""

Fetch: TypeAlias = Callable[..., Awaitable[list[asyncpg.Record]]]
"""Runs a statement by its name, as ``Statements.fetch()`` does."""


class Blocker(NamedTuple):
    """A session whose transaction another one waits for.

    Attributes:
        pid: Its process id; 0 for a prepared transaction.
        application_name: Its name, None if this role may not read it.
        began_at: When its transaction began, None if this role may not read it.
    """

    pid: int
    application_name: str | None
    began_at: datetime | None

    def __str__(self) -> str:
        if not self.pid:
            return "a prepared transaction, see pg_prepared_xacts"
        name = f", application {self.application_name!r}" if self.application_name else ""
        return f"pid {self.pid}{name}" + (f", in transaction since {self.began_at}" if self.began_at else "")


@asynccontextmanager
async def watching(fetch: Fetch, connection: Connection, blockers: list[Blocker]) -> AsyncIterator[None]:
    """Look up the sessions for which a transaction waits within the block, and add them to the list."""
    ((pid,),) = await fetch("session_pid", on=connection)
    looking = start_in_background(_find_blockers(fetch, pid, blockers), "pg_scheduler blockers")
    try:
        yield
    finally:
        looking.cancel()


async def _find_blockers(fetch: Fetch, pid: int, blockers: list[Blocker]) -> None:
    sessions: list[Blocker] = []
    # They are for a message only.
    with suppress(DatabaseUnavailableError, *REFUSALS):
        while not sessions:
            # The statement waits by then.
            await asyncio.sleep(LOOK_INTERVAL_S)
            sessions = [Blocker(*row) for row in await fetch("find_blockers", pid)]
        blockers[:] = sessions
