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

from pg_scheduler.errors import DatabaseUnavailableError, ServiceCancelledError
from pg_scheduler.jobs.rows import DelayedJob, NewJob
from pg_scheduler.store.faults import REFUSALS

__all__ = ["InsertBatcher"]

MAX_JOBS: Final = 1000
"""Jobs per statement."""


J = TypeVar("J", bound=NewJob | DelayedJob)


class InsertBatcher(Generic[J]):
    """Inserts one job per call.

    Args:
        insert: Inserts jobs with different ids and returns the ids that did not exist.
    """

    def __init__(self, insert: Callable[[Sequence[J]], Awaitable[set[str]]]) -> None:
        self._insert = insert
        self._waiting: list[tuple[J, asyncio.Future[bool]]] = []
        self._busy = False
        self._flush: asyncio.Task[None] | None = None

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

    def _start_next(self, *, shared: bool = False) -> None:
        self._busy = shared or bool(self._waiting)
        if self._busy:
            self._flush = asyncio.create_task(self._insert_waiting(), name="pg_scheduler insert")
            self._flush.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() or task is not self._flush:
            return
        waiting, self._waiting, self._busy = self._waiting, [], False  # cancelled before its first step
        for _, answer in waiting:
            _fail(answer, _cancelled())

    async def _insert_waiting(self) -> None:
        batch: dict[str, tuple[J, asyncio.Future[bool]]] = {}
        try:
            await asyncio.sleep(0)
            batch = self._take()
            if batch:
                await self._answer(batch)
        except asyncio.CancelledError:
            for _, answer in batch.values():
                _fail(answer, _cancelled())
            raise
        finally:
            self._start_next(shared=len(batch) > 1)

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
        except DatabaseUnavailableError as fault:
            for _, answer in batch.values():
                _fail(answer, fault)
        except REFUSALS:
            for job, answer in batch.values():  # one of them was rejected: each gets its own result
                await self._answer_one(job, answer)
        else:
            for job_id, (_, answer) in batch.items():
                if not answer.done():
                    answer.set_result(job_id in inserted)

    async def _answer_one(self, job: J, answer: asyncio.Future[bool]) -> None:
        try:
            inserted = bool(await self._insert([job]))
        except (*REFUSALS, DatabaseUnavailableError) as error:
            _fail(answer, error)
        else:
            if not answer.done():
                answer.set_result(inserted)


def _cancelled() -> ServiceCancelledError:
    return ServiceCancelledError(
        "the task that inserts jobs was cancelled, but not by the Scheduler; call schedule() again with the "
        "same job_id, and cancel only tasks of your own"
    )


def _fail(answer: asyncio.Future[bool], error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(error)
