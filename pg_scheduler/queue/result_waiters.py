"""Wait for the results of jobs, with one query for all waiters of a process.

A commit that stores a kept result announces the job's id. The announcement only wakes the query, which also
runs after 50 ms and then at growing intervals. So an announcement that is lost only delays a waiter.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from pg_scheduler.errors import DatabaseUnavailableError, JobNotFoundError, JobResult, PoolClosedError
from pg_scheduler.events import EventBus
from pg_scheduler.queue.answers import start_answering
from pg_scheduler.queue.store import QueueStore

FIRST_INTERVAL_S: Final = 0.05
"""Seconds between the first queries for a new waiter."""

GROWTH: Final = 1.5
"""Factor by which the interval grows with each query that found nothing."""

MAX_BATCH: Final = 1000
"""Ids of one query."""

NOT_ENDED: Final = "job {!r} has not ended within {} s; see pg-scheduler jobs explain"
"""The message of a wait that timed out."""


class ResultWaiters:
    """The waiters of one process."""

    def __init__(self, store: QueueStore, max_interval_s: float) -> None:
        self._store = store
        self._max_interval_s = max_interval_s
        self.failures = EventBus()
        """Receives the final failures of this process before they are written."""
        self._waiting: dict[str, asyncio.Future[JobResult]] = {}
        # How many callers wait for the result of each job.
        self._caller_counts: dict[str, int] = {}
        self._interval_s = FIRST_INTERVAL_S
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def wait(self, job_id: str, timeout_s: float | None) -> JobResult:
        """Return the result of a job as soon as it has ended.

        Raises:
            TimeoutError: It did not end in time.
            JobNotFoundError: There is no such job.
            PoolClosedError: The pool was closed meanwhile.
            SchemaError: A table is missing, or the role may not read it.
        """
        future = self._waiting.get(job_id)
        if future is None:
            self._waiting[job_id] = future = asyncio.get_running_loop().create_future()
        self._caller_counts[job_id] = self._caller_counts.get(job_id, 0) + 1
        # A new caller is answered soon if the job has ended already.
        self._interval_s = FIRST_INTERVAL_S
        self._wake.set()
        if self._task is None or self._task.done():
            self._task = start_answering(self._run(), "pg_scheduler result waiters", self._failed)
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                # Other callers may wait for the same future, so the end of this wait must not cancel it.
                return await asyncio.shield(future)
        except TimeoutError as error:
            # The query may have failed with a TimeoutError, too, which is raised unchanged.
            if limit.expired():
                raise TimeoutError(NOT_ENDED.format(job_id, timeout_s)) from error
            raise
        finally:
            self._caller_counts[job_id] -= 1
            if not self._caller_counts[job_id]:
                del self._caller_counts[job_id]
                # No caller waits for the job any more. An answer has removed the future already.
                self._waiting.pop(job_id, None)

    def announce(self, job_id: str) -> None:
        """Query now if a caller waits for this job, because it has ended."""
        if job_id in self._waiting:
            self._wake.set()

    async def _run(self) -> None:
        """Query until no caller waits: after each announcement, and at growing intervals without one."""
        while self._waiting:
            self._wake.clear()
            try:
                await self._query()
            # A closed pool is a DatabaseUnavailableError too, but it never opens again. After any other error
            # of this class, the next query may succeed.
            except PoolClosedError:
                raise
            except DatabaseUnavailableError:
                pass
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._wake.wait()
            self._interval_s = min(self._interval_s * GROWTH, self._max_interval_s)

    async def _query(self) -> None:
        """Answer the callers whose jobs have ended or do not exist. The others continue to wait."""
        ids = list(self._waiting)
        for start in range(0, len(ids), MAX_BATCH):
            batch = ids[start : start + MAX_BATCH]
            results = await self._store.kept_results.get(batch)
            for job_id in batch:
                future = self._waiting.get(job_id)
                # All callers for this job have stopped waiting during the query.
                if future is None:
                    continue
                if job_id not in results:
                    del self._waiting[job_id]
                    future.set_exception(JobNotFoundError(job_id))
                elif (result := results[job_id]) is not None:
                    del self._waiting[job_id]
                    future.set_result(result)

    def _failed(self, _: asyncio.Task[None]) -> list[asyncio.Future[JobResult]]:
        """Forget all callers that wait; return their futures, which get the error of the failed task."""
        waiting, self._waiting = self._waiting, {}
        return list(waiting.values())
