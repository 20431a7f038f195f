"""Reads jobs in another thread, so that assertions need no ``await``.

The event loop of the test stands still meanwhile, so the thread has its own loop and its own connection.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncpg

from pg_scheduler.database.asyncpg_private import copy_of
from pg_scheduler.jobs.model import Job
from pg_scheduler.sync.portal import Portal
from pg_scheduler.testing.expected import NamingScheduler

CLOSE_TIMEOUT_S: Final = 60.0


class Inspector:
    """Read jobs, and block until they are there.

    Args:
        pool: The pool whose connections are copied.
        settings: Settings of the Scheduler that reads them.
    """

    def __init__(self, pool: asyncpg.Pool, **settings: Any) -> None:
        self._pool = pool
        self._settings = settings
        self._portal: Portal[NamingScheduler] | None = None

    def jobs(self, **filters: Any) -> list[Job]:
        """Return all jobs that pass the filters of ``list_jobs()``, in the order of their due time."""
        # The thread begins with the first call.
        if self._portal is None:
            self._portal = Portal(self._open)
        portal = self._portal
        return portal.call(lambda: portal.resource.every_job(**filters))

    def close(self) -> None:
        """Close the connection and end the thread."""
        if self._portal is not None:
            self._portal.close(CLOSE_TIMEOUT_S)

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[NamingScheduler]:
        """Yield a Scheduler on a copy of the pool, in the event loop of the thread."""
        async with copy_of(self._pool) as pool:
            yield NamingScheduler(pool, **self._settings)
