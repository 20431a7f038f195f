"""Insert the jobs of concurrent calls with one statement.

A single call is inserted at once. Calls that arrive during a statement wait for it and share the next one:
they wait for one statement at most, and thirty callers cost hardly more than one. Callers that shared a
statement usually call again together, so all of them run before the next statement starts. Each caller gets
its own result and its own error: a statement that is rejected, or waits for a lock, is divided.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Generic, TypeAlias, TypeVar

from pg_scheduler.enqueue.answers import fail, start_answering
from pg_scheduler.enqueue.locked_inserts import (
    DIVIDED_WAIT,
    SHARED_WAIT,
    UNLIMITED_WAIT,
    Insert,
    LockedInserts,
    LockWait,
)
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.jobs.rows import AnyJob, DelayedJob, GeneratedIdDelayedJob, GeneratedIdJob
from pg_scheduler.store.faults import ROW_ERRORS, is_lock_timeout

MAX_JOBS: Final = 1000
"""Jobs per statement."""

GENERATED: Final = (GeneratedIdJob, GeneratedIdDelayedJob)
"""Jobs without a unique key and with an id that no other transaction can have inserted."""

J = TypeVar("J", bound=AnyJob | DelayedJob)

Batch: TypeAlias = "dict[str, tuple[J, asyncio.Future[bool]]]"


class InsertBatcher(Generic[J]):
    """Inserts one job per call."""

    def __init__(self, insert: Insert[J], locked: LockedInserts) -> None:
        self._insert = insert
        self._locked = locked
        self._waiting: list[tuple[J, asyncio.Future[bool]]] = []
        self._batch: Batch[J] = {}
        self._busy = False

    async def insert(self, job: J) -> bool:
        """Insert a job; return False if its id exists."""
        if not self._locked.has(job):
            try:
                if self._busy:
                    answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
                    self._waiting.append((job, answer))
                    return await answer
                self._busy = True
                try:
                    return bool(await self._insert([job], _wait_of([job], SHARED_WAIT)))
                finally:
                    self._start_next()
            except DatabaseUnavailableError as fault:
                if not _is_locked([job], fault):
                    raise
        return await self._locked.insert(job, self._insert)

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

    def _take(self) -> Batch[J]:
        batch: Batch[J] = {}
        rest: list[tuple[J, asyncio.Future[bool]]] = []
        for job, answer in self._waiting:
            if job.job_id in batch or len(batch) == MAX_JOBS:  # of two jobs with one id, the second one waits
                rest.append((job, answer))
            else:
                batch[job.job_id] = (job, answer)
        self._waiting = rest
        return batch

    async def _answer(self, batch: Batch[J], wait: LockWait = SHARED_WAIT) -> None:
        jobs = [job for job, _ in batch.values()]
        try:
            inserted = await self._insert(jobs, _wait_of(jobs, wait))
        except (*ROW_ERRORS, DatabaseUnavailableError) as error:
            if isinstance(error, DatabaseUnavailableError) and not _is_locked(jobs, error):
                raise
            if len(batch) == 1:
                for _, answer in batch.values():
                    fail(answer, error)
                return
            for part in _divided(batch):
                await self._answer(part, DIVIDED_WAIT)
        else:
            for job_id, (_, answer) in batch.items():
                if not answer.done():
                    answer.set_result(job_id in inserted)


def _wait_of(jobs: Sequence[AnyJob | DelayedJob], wait: LockWait) -> LockWait:
    """Return how long a statement waits for locks. Generated ids are in no other transaction."""
    for job in jobs:
        if not isinstance(job, GENERATED):
            return wait
    return UNLIMITED_WAIT


def _is_locked(jobs: Sequence[AnyJob | DelayedJob], fault: DatabaseUnavailableError) -> bool:
    """Return whether one of the jobs waits for a transaction that has inserted its id or key."""
    return is_lock_timeout(fault) and _wait_of(jobs, SHARED_WAIT) is SHARED_WAIT


def _divided(batch: Batch[J]) -> list[Batch[J]]:
    """Return two parts of a batch: those that cannot wait for a transaction and the others, or halves."""
    generated = {job_id: each for job_id, each in batch.items() if isinstance(each[0], GENERATED)}
    if 0 < len(generated) < len(batch):
        return [generated, {job_id: each for job_id, each in batch.items() if job_id not in generated}]
    items = list(batch.items())
    return [dict(items[: len(items) // 2]), dict(items[len(items) // 2 :])]
