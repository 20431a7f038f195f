"""Record the statements that connections send to the server, by name."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable
from contextvars import ContextVar
from typing import Any

from pg_scheduler.database.queries import names_by_text

NAMES = names_by_text("public")
RESET = "SELECT pg_advisory_unlock_all()"
CALL: ContextVar[object] = ContextVar("CALL", default=None)
"""A mark of the call of ``Statements.of`` that runs. Tasks that the call creates have it, too."""


class Sent:
    """Statements of a period."""

    def __init__(self, log: list[tuple[int, str]]) -> None:
        sent = [(session, NAMES.get(text) or _kind(text)) for session, text in log]
        self.counts = Counter(name for _, name in sent)
        """How often each was sent. Others than the store's are counted by their first word, in capitals."""
        self.named = Counter(NAMES[text] for _, text in log if text in NAMES)
        """How often each of the store's own was sent."""
        self.transactions = 0
        """How many transactions they were; a statement outside of a block is one."""
        inside: set[int] = set()
        for session, name in sent:
            if name in {"COMMIT", "ROLLBACK"}:
                inside.discard(session)
            elif session not in inside:
                self.transactions += 1
                if name == "BEGIN":
                    inside.add(session)


class Statements:
    """A log of the connections that were passed to ``listen``, which can be the ``init`` of a pool.

    The services of a running node send statements of their own at any time. So a test of such a node compares
    counts of single names, or all statements of one call.
    """

    def __init__(self) -> None:
        self._log: list[tuple[int, str, object]] = []

    async def listen(self, connection: Any) -> None:
        """Log the statements of this connection."""
        session = connection.get_server_pid()
        connection.add_query_logger(lambda record: self._log.append((session, record.query, CALL.get())))

    async def take(self) -> Sent:
        """Return the statements since the last call."""
        await asyncio.sleep(0)  # asyncpg calls its loggers in the next iteration of the loop
        sent = Sent([(session, query) for session, query, _ in self._log])
        self._log.clear()
        return sent

    async def of(self, call: Awaitable[object]) -> Sent:
        """Return the statements of a call. All others up to its end are forgotten."""
        await self.take()
        mark = object()
        token = CALL.set(mark)
        try:
            await call
        finally:
            CALL.reset(token)
        await asyncio.sleep(0)  # as in take()
        sent = Sent([(session, query) for session, query, sender in self._log if sender is mark])
        self._log.clear()
        return sent


def _kind(text: str) -> str:
    return "RESET" if text.startswith(RESET) else text.split(maxsplit=1)[0].strip(";").upper()
