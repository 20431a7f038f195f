"""What a test's connections send to the server, by the names of the store's statements."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from pg_scheduler.store.queries import load_queries

NAMES = {query.text: name for name, query in load_queries("public").items()}
RESET = "SELECT pg_advisory_unlock_all()"


class Sent:
    """What was sent in a while."""

    def __init__(self, log: list[tuple[int, str]]) -> None:
        sent = [(session, NAMES.get(text) or _kind(text)) for session, text in log]
        self.counts = Counter(name for _, name in sent)
        """How often each statement; what is not the store's goes by its first word, in capitals."""
        self.named = Counter(NAMES[text] for _, text in log if text in NAMES)
        """The same for the store's own."""
        self.transactions = 0
        """A statement outside of a block is one."""
        inside: set[int] = set()
        for session, name in sent:
            if name in {"COMMIT", "ROLLBACK"}:
                inside.discard(session)
            elif session not in inside:
                self.transactions += 1
                if name == "BEGIN":
                    inside.add(session)


class Statements:
    """A log that connections write, once each has been given to ``listen``, as by a pool's ``init``."""

    def __init__(self) -> None:
        self._log: list[tuple[int, str]] = []

    async def listen(self, connection: Any) -> None:
        """Log what this connection sends from now on."""
        session = connection.get_server_pid()
        connection.add_query_logger(lambda record: self._log.append((session, record.query)))

    async def take(self) -> Sent:
        """What was sent since the last time."""
        await asyncio.sleep(0)  # a connection tells it when the loop comes round
        sent = Sent(self._log)
        self._log.clear()
        return sent


def _kind(text: str) -> str:
    return "RESET" if text.startswith(RESET) else text.split(maxsplit=1)[0].strip(";").upper()
