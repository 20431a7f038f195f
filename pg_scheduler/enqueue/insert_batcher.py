"""Lets calls that are in flight at once share a statement.

A call that is alone goes out at once. What comes in while a statement is under way waits for it and goes
out with the next one: at most one statement's time later, and thirty callers cost hardly more than one.
Callers who got their answers together are likely to come back together, so they all have their turn before
the next statement, and nobody's goes out alone.
Each caller gets its own answer and its own error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.jobs.rows import NewJob
from pg_scheduler.store.faults import REFUSALS

__all__ = ["InsertBatcher"]

MOST: Final = 1000
"""Jobs of one statement."""


class InsertBatcher:
    """Inserts jobs, one for each call.

    Args:
        insert: Inserts jobs with different ids; the ids that were free.
    """

    def __init__(self, insert: Callable[[Sequence[NewJob]], Awaitable[set[str]]]) -> None:
        self._insert = insert
        self._waiting: list[tuple[NewJob, asyncio.Future[bool]]] = []
        self._busy = False
        self._flush: asyncio.Task[None] | None = None

    async def insert(self, job: NewJob) -> bool:
        """Insert a job; False if its id is taken."""
        if self._busy:
            answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            self._waiting.append((job, answer))
            return await answer
        self._busy = True
        try:
            return bool(await self._insert([job]))
        finally:
            self._go_on()

    def _go_on(self, *, shared: bool = False) -> None:
        self._busy = shared or bool(self._waiting)
        if self._busy:
            self._flush = asyncio.create_task(self._insert_waiting(), name="pg_scheduler insert")

    async def _insert_waiting(self) -> None:
        batch: dict[str, tuple[NewJob, asyncio.Future[bool]]] = {}
        try:
            await asyncio.sleep(0)
            batch = self._take()
            if batch:
                await self._answer(batch)
        finally:
            self._go_on(shared=len(batch) > 1)

    def _take(self) -> dict[str, tuple[NewJob, asyncio.Future[bool]]]:
        batch: dict[str, tuple[NewJob, asyncio.Future[bool]]] = {}
        rest: list[tuple[NewJob, asyncio.Future[bool]]] = []
        for job, answer in self._waiting:
            if job.job_id in batch or len(batch) == MOST:  # the second of an id learns what the first did
                rest.append((job, answer))
            else:
                batch[job.job_id] = (job, answer)
        self._waiting = rest
        return batch

    async def _answer(self, batch: dict[str, tuple[NewJob, asyncio.Future[bool]]]) -> None:
        try:
            inserted = await self._insert([job for job, _ in batch.values()])
        except DatabaseUnavailableError as fault:
            for _, answer in batch.values():
                _fail(answer, fault)
        except REFUSALS:
            for job, answer in batch.values():  # one of them is refused: each gets what is its own
                await self._answer_one(job, answer)
        else:
            for job_id, (_, answer) in batch.items():
                if not answer.done():
                    answer.set_result(job_id in inserted)

    async def _answer_one(self, job: NewJob, answer: asyncio.Future[bool]) -> None:
        try:
            inserted = bool(await self._insert([job]))
        except (*REFUSALS, DatabaseUnavailableError) as error:
            _fail(answer, error)
        else:
            if not answer.done():
                answer.set_result(inserted)


def _fail(answer: asyncio.Future[bool], error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(error)
