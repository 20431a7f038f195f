"""Find the sessions that a transaction waits for, for messages that name them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Final, NamedTuple, TypeAlias

import asyncpg

from pg_scheduler.database.faults import REFUSALS
from pg_scheduler.database.session import Connection
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.events.background import start_in_background

LOOK_INTERVAL_S: Final = 0.02
"""Seconds before each look at a transaction, within which it may begin to wait for a lock."""

TURN_SHARE: Final = 0.5
"""The part of a wait that decides whether transactions hold a lock in turns.

If the transaction that holds the lock now is younger than this part of the wait, others have held the lock
before it.
"""

Fetch: TypeAlias = Callable[..., Awaitable[list[asyncpg.Record]]]
"""Runs a statement by its name, as ``Statements.fetch()`` does."""


class Blocker(NamedTuple):
    """A session whose transaction another one waits for.

    Attributes:
        pid: Its process id; 0 for a prepared transaction.
        application_name: Its name, None if this role may not read it.
        began_at: When its transaction began, None if this role may not read it.
        age_s: The age of its transaction in seconds at ``seen_at``, None if this role may not read it.
        seen_at: An instant of the monotonic clock of this process.
    """

    pid: int
    application_name: str | None
    began_at: datetime | None
    age_s: float | None = None
    seen_at: float = 0.0

    def __str__(self) -> str:
        if not self.pid:
            return "a prepared transaction, see pg_prepared_xacts"
        text = f"pid {self.pid}"
        if self.application_name:
            text += f", application {self.application_name!r}"
        if self.began_at:
            text += f", in transaction since {self.began_at}"
        return text


def take_turns(blockers: Sequence[Blocker], seconds: float) -> bool:
    """Return whether transactions hold a lock in turns, so that the end of one of them would not help.

    This is so if each of the transactions that hold it now is younger than half of the wait, ``seconds``. It
    is False if there are none, or if the age of one is unknown.
    """
    now = time.monotonic()
    # The age of a transaction is what it was when it was seen, and the time since then.
    return bool(blockers) and all(
        blocker.age_s is not None and blocker.age_s + now - blocker.seen_at < seconds * TURN_SHARE
        for blocker in blockers
    )


@asynccontextmanager
async def watching(fetch: Fetch, connection: Connection, blockers: list[Blocker]) -> AsyncIterator[None]:
    """Find the sessions for which a transaction waits within the block, and put them into the list.

    A task searches for them on another connection, because this one waits in a statement.
    """
    ((pid,),) = await fetch("session_pid", on=connection)
    search = start_in_background(_find_blockers(fetch, pid, blockers), "pg_scheduler blockers")
    try:
        yield
    finally:
        search.cancel()


async def _find_blockers(fetch: Fetch, pid: int, blockers: list[Blocker]) -> None:
    """Search until a session waits for others; then these others replace the contents of the list."""
    sessions: list[Blocker] = []
    # The sessions are for a message only, so an error leaves them unknown.
    with suppress(DatabaseUnavailableError, *REFUSALS):
        while not sessions:
            # After this time, the statement of the transaction may have begun to wait.
            await asyncio.sleep(LOOK_INTERVAL_S)
            rows = await fetch("find_blockers", pid)
            sessions = [Blocker(*row)._replace(seen_at=time.monotonic()) for row in rows]
        blockers[:] = sessions
