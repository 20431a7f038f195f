"""Insert the jobs of concurrent calls with one statement.

A single call is inserted at once. Calls that arrive during a statement wait for it and share the next one:
they wait for one statement at most, and thirty callers cost hardly more than one. Callers that shared a
statement usually call again together, so all of them run before the next statement starts. Each caller gets
its own result and its own error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from pg_scheduler.enqueue.answers import fail, start_answering
from pg_scheduler.errors import PayloadError
from pg_scheduler.jobs.rows import DelayedJob, NewJob
from pg_scheduler.store.faults import ROW_ERRORS

__all__ = ["InsertBatcher"]

MAX_JOBS: Final = 1000
"""Jobs per statement."""

ERRORS_OF_ONE_JOB: Final = (*ROW_ERRORS, PayloadError)
"""Errors that one of several jobs may have caused. Any other one concerns all jobs of a statement."""

J = TypeVar("J", bound=NewJob | DelayedJob)


class InsertBatcher(Generic[J]):
    """Inserts one job per call.

    Args:
        insert: Inserts jobs with different ids and returns the ids that did not exist.
    """

    def __init__(self, insert: Callable[[Sequence[J]], Awaitable[set[str]]]) -> None:
        self._insert = insert
        self._waiting: list[tuple[J, asyncio.Future[bool]]] = []
        self._batch: dict[str, tuple[J, asyncio.Future[bool]]] = {}
        self._busy = False

    async def insert(self, job: J) -> bool:
        """Insert a job; return False if its id exists."""
        if self._busy:
            answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            self._waiting.append((job, answer))
            return await answer
        self._busy = True
        try:
            return bool(await self._insert([job]))
        finally:
            self._start_next()

    def _start_next(self) -> None:
        self._busy = bool(self._waiting)
        if self._busy:
            start_answering(self._insert_waiting(), "pg_scheduler insert", self._failed)

    async def _insert_waiting(self) -> None:
        is_shared = False
        while self._waiting or is_shared:
            await asyncio.sleep(0)
            self._batch = self._take()
            is_shared = len(self._batch) > 1
            if self._batch:
                await self._answer(self._batch)
        self._busy = False

    def _failed(self, task: asyncio.Task[None]) -> list[asyncio.Future[bool]]:
        left, self._batch = list(self._batch.values()), {}
        if task.cancelled():  # the event loop may be ending
            left += self._waiting
            self._waiting = []
        self._start_next()
        return [answer for _, answer in left]

    def _take(self) -> dict[str, tuple[J, asyncio.Future[bool]]]:
        batch: dict[str, tuple[J, asyncio.Future[bool]]] = {}
        rest: list[tuple[J, asyncio.Future[bool]]] = []
        for job, answer in self._waiting:
            if job.job_id in batch or len(batch) == MAX_JOBS:  # of two jobs with one id, the second one waits
                rest.append((job, answer))
            else:
                batch[job.job_id] = (job, answer)
        self._waiting = rest
        return batch

    async def _answer(self, batch: dict[str, tuple[J, asyncio.Future[bool]]]) -> None:
        try:
            inserted = await self._insert([job for job, _ in batch.values()])
        except ERRORS_OF_ONE_JOB as error:
            if len(batch) == 1:
                for _, answer in batch.values():
                    fail(answer, error)
                return
            for job_id, each in batch.items():  # one of them was rejected: each gets its own result
                await self._answer({job_id: each})
        else:
            for job_id, (_, answer) in batch.items():
                if not answer.done():
                    answer.set_result(job_id in inserted)
