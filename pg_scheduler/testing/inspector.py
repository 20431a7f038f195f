"""Reads jobs from a thread of its own, so that assertions need no ``await``.

The event loop of the test stands still meanwhile, so the thread has its own loop and its own connection.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import asyncpg

from pg_scheduler.clock import Clock
from pg_scheduler.jobs.codec import Codec
from pg_scheduler.jobs.model import Job
from pg_scheduler.scheduler import Scheduler
from pg_scheduler.store.connections.asyncpg_private import copy_of

PAGE_LENGTH = 1000


class Inspector:
    """Read jobs, and block until they are there.

    Args:
        pool: The pool whose connections are copied.
        schema: The schema of the tables.
        clock: The clock of the test.
        codec: Decodes what jobs have encoded; None for none.
    """

    def __init__(
        self, pool: asyncpg.Pool, schema: str | None, clock: Clock, codec: Codec | None = None
    ) -> None:
        self._like = pool
        self._schema = schema
        self._clock = clock
        self._codec = codec
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pg_scheduler inspector")
        self._runner: asyncio.Runner | None = None
        self._pool: asyncpg.Pool | None = None
        self._scheduler: Scheduler | None = None

    def jobs(self, **filters: Any) -> list[Job]:
        """Return all jobs that pass the filters of ``list_jobs()``, in the order of their ids."""
        return self._thread.submit(self._run, filters).result()

    def close(self) -> None:
        """Close the connection and end the thread."""
        self._thread.submit(self._close).result()
        self._thread.shutdown()

    def _run(self, filters: dict[str, Any]) -> list[Job]:
        if self._runner is None:
            self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        return self._runner.run(self._list(filters))

    async def _list(self, filters: dict[str, Any]) -> list[Job]:
        if self._scheduler is None:
            self._pool = await copy_of(self._like)
            self._scheduler = Scheduler(self._pool, schema=self._schema, clock=self._clock, codec=self._codec)
        page = await self._scheduler.list_jobs(limit=PAGE_LENGTH, **filters)
        jobs = list(page)
        while page.next is not None:
            page = await self._scheduler.list_jobs(limit=PAGE_LENGTH, after=page.next, **filters)
            jobs += page
        return jobs

    def _close(self) -> None:
        if self._runner is not None:
            if self._pool is not None:
                self._runner.run(self._pool.close())
            self._runner.close()
