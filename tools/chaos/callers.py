"""The enqueuers that call without asyncio, or in transactions of other libraries' connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, get_args

import asyncpg
import psycopg
import psycopg2
from sqlalchemy import make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.pool import NullPool

from pg_scheduler import JobSpec, Scheduler
from pg_scheduler.base.settings import Notify
from pg_scheduler.database.callers.adapter import AsyncConnection
from pg_scheduler.sync import SyncScheduler
from tools.chaos import jobs
from tools.chaos.broken import BROKEN_CONNECTION
from tools.chaos.load import BROKEN, KEEP, PLAIN, ROLLED_BACK, Request, Share
from tools.chaos.workflow_load import WorkflowLoad

TRANSACTION_RATE: Final = 3.0
THREAD_RATE: Final = 5.0
TIMEOUT_RATE: Final = 1.0
"""Transactions, calls without asyncio, and jobs that exceed their timeout, per second."""

JOB_TIMEOUT_S: Final = 0.5
CONNECTION_TIMEOUT_S: Final = 20
FAILED: Final = (*BROKEN_CONNECTION, psycopg.Error, psycopg2.Error, SQLAlchemyError)


class FullLoad(WorkflowLoad):
    """Schedules by every way in.

    Args:
        client: As for `Load`.
        rate: As for `Load`.
        seed: As for `Load`.
        pool: The pool of the client, for transactions of the caller.
        dsn: The DSN of the pool.
    """

    def __init__(self, client: Scheduler, rate: int, seed: int, pool: asyncpg.Pool, dsn: str) -> None:
        super().__init__(client, rate, seed, pool)
        self._dsn = dsn
        self._sync = SyncScheduler(dsn, misfire_grace_time=None, codec=jobs.codec(encrypts=True))
        self._engine: AsyncEngine = create_async_engine(
            make_url(dsn).set(drivername="postgresql+asyncpg", query={}),
            poolclass=NullPool,
            connect_args={"timeout": 10, "command_timeout": CONNECTION_TIMEOUT_S},
        )

    def shares(self) -> list[Share]:
        """See `Load`."""
        return [
            *super().shares(),
            (self._transaction, min(0.02, TRANSACTION_RATE / self.rate), 1),
            (self._without_asyncio, min(0.03, THREAD_RATE / self.rate), 1),
            (self._too_long, min(0.01, TIMEOUT_RATE / self.rate), 1),
        ]

    async def stop(self) -> None:
        """See `Load`."""
        await super().stop()
        await asyncio.to_thread(self._sync.close)
        await self._engine.dispose()

    async def _without_asyncio(self) -> None:
        """Schedule a job from a thread, with encrypted arguments."""
        job_id = self._new_id()
        self.requests[job_id] = request = Request(PLAIN, keeps=True)
        await asyncio.to_thread(
            self._sync.schedule,
            jobs.value,
            execution_time=self._soon(1),
            args=("arguments to encrypt",),
            job_id=job_id,
            keep_result=KEEP,
        )
        request.confirmed = True

    async def _too_long(self) -> None:
        """Schedule a job that exceeds its timeout at each attempt."""
        job_id = self._new_id()
        self.requests[job_id] = request = Request(BROKEN)
        await self.client.schedule(
            self.random.choice((jobs.endless, jobs.thread_endless)),
            execution_time=self._soon(1),
            job_id=job_id,
            timeout=JOB_TIMEOUT_S,
            max_retries=1,
        )
        request.confirmed = True

    async def _transaction(self) -> None:
        """Schedule two jobs in a transaction of the caller, which is rolled back at times."""
        rolls_back = self.random.random() < 0.3
        notify = self.random.choice(get_args(Notify))
        specs = [self._now(jobs.quick) for _ in range(2)]
        requests = [Request(ROLLED_BACK if rolls_back else PLAIN, polled=notify != "commit") for _ in specs]
        for spec, request in zip(specs, requests, strict=True):
            assert spec.job_id is not None
            self.requests[spec.job_id] = request
        try:
            if self.random.random() < 0.2:
                await asyncio.to_thread(self._by_psycopg2, specs, notify, rolls_back=rolls_back)
            else:
                connected = self.random.choice((self._asyncpg, self._psycopg, self._session))
                async with asyncio.timeout(CONNECTION_TIMEOUT_S), connected(rolls_back=rolls_back) as theirs:
                    await self.client.schedule_bulk(specs, connection=theirs, notify=notify)
                    await asyncio.sleep(self.random.choice((0, 0.1)))
        except FAILED as fault:
            self.faults[type(fault).__name__] += 1
        else:
            for request in requests:
                request.confirmed = not rolls_back

    @asynccontextmanager
    async def _asyncpg(self, *, rolls_back: bool) -> AsyncIterator[AsyncConnection]:
        async with self._pool.acquire(timeout=10) as connection:
            transaction = connection.transaction()
            await transaction.start()
            yield connection
            await (transaction.rollback() if rolls_back else transaction.commit())

    @asynccontextmanager
    async def _psycopg(self, *, rolls_back: bool) -> AsyncIterator[AsyncConnection]:
        connection = await psycopg.AsyncConnection.connect(self._dsn, connect_timeout=10)
        try:
            yield connection
            await (connection.rollback() if rolls_back else connection.commit())
        finally:
            await connection.close()

    @asynccontextmanager
    async def _session(self, *, rolls_back: bool) -> AsyncIterator[AsyncConnection]:
        async with AsyncSession(self._engine) as session:
            yield session
            await (session.rollback() if rolls_back else session.commit())

    def _by_psycopg2(self, specs: list[JobSpec], notify: Notify, *, rolls_back: bool) -> None:
        """Do the same in a thread; a connection that is lost without a word fails after some seconds."""
        connection = psycopg2.connect(
            self._dsn, connect_timeout=10, tcp_user_timeout=1000 * CONNECTION_TIMEOUT_S
        )
        try:
            self._sync.schedule_bulk(specs, connection=connection, notify=notify)
            if rolls_back:
                connection.rollback()
            else:
                connection.commit()
        finally:
            connection.close()
