"""Insert the jobs of concurrent calls with one statement.

A single call is inserted at once. Calls that arrive during a statement wait for it and share the next one:
they wait for one statement at most, and thirty callers cost hardly more than one. Callers that shared a
statement usually call again together, so all of them run before the next statement starts. Each caller gets
its own result and its own error: a statement that is rejected, or waits for a lock, is divided.

A job has to wait if an open transaction has inserted its id or unique key, or if a trigger of the application
needs a lock of that transaction. Such a job must not delay the jobs of other calls. So a shared statement
fails if it waits for longer than ``SHARED_WAIT``, and its jobs are divided until the ones that wait are
alone. ``LockedInserts`` gives those jobs turns, on one connection for all of them.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final, TypeAlias

from pg_scheduler.base.batches import BatchRoom
from pg_scheduler.base.messages import due_message
from pg_scheduler.base.settings import Notify
from pg_scheduler.database.blockers import Blocker
from pg_scheduler.database.faults import REFUSALS, ROW_ERRORS, is_lock_timeout, is_locked_out, is_refusal
from pg_scheduler.database.lock_retries import describe_holders
from pg_scheduler.database.session import Connection
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.jobs.rows import EPOCH, AnyJob, GeneratedIdJob
from pg_scheduler.queue.answers import fail, start_answering
from pg_scheduler.queue.outbox import Outbox
from pg_scheduler.queue.store import QueueStore

MAX_JOBS: Final = 1000
"""Jobs per statement."""

TURNS_S: Final = 1.0
"""Seconds in which every waiting job has a turn, so that a turn is shorter if more jobs wait."""

MIN_TURN_S: Final = 0.02

PAUSE_S: Final = 0.2
"""Seconds between two turns if the pool has a single connection, which other statements need as well."""

Insert: TypeAlias = Callable[..., Awaitable[set[str] | dict[str, datetime]]]
"""Inserts jobs; returns the ids that were new. For delayed jobs it mostly returns a dict with the time of the
call by id; see ``InsertRepository.enqueue()``."""

Batch: TypeAlias = "dict[str, tuple[AnyJob, asyncio.Future[bool]]]"


@dataclass(frozen=True, slots=True)
class LockWait:
    """How long a statement that inserts jobs waits for locks.

    Attributes:
        timeout: The time limit, as PostgreSQL writes it; None for the setting of the session.
        may_carry: Whether the statement may send a notification, whose commit takes a lock too.
        session: Yields the connection to use; None for the default.
    """

    timeout: str | None
    may_carry: bool = True
    session: Callable[[], AbstractAsyncContextManager[Connection]] | None = None


SHARED_WAIT: Final = LockWait("10ms")
"""The wait of the first statement for some jobs."""
GENERATED_WAIT: Final = LockWait("100ms")
"""The wait of such a statement if all of its jobs have generated ids; see ``InsertBatcher._wait_of()``."""
DIVIDED_WAIT: Final = LockWait("2ms", may_carry=False)
"""The wait of a statement for a part of the jobs, after the statement for all of them has failed."""

WriteJobs: TypeAlias = Callable[[Sequence[AnyJob], LockWait], Awaitable[Collection[str]]]


class InsertBatcher:
    """Inserts one job per call by one kind of statement, and notifies workers of those that are due soon.

    Args:
        insert: The statement.
        locked: The calls that wait for other transactions.
        outbox: Sends the notifications that the statements do not send.
        is_delayed: Whether the jobs have delays, to which the statement adds the time of the call.
    """

    def __init__(
        self, insert: Insert, locked: LockedInserts, outbox: Outbox, *, is_delayed: bool = False
    ) -> None:
        self._insert = insert
        self._locked = locked
        self._outbox = outbox
        self._is_delayed = is_delayed
        # The time from which jobs are due soon: delays count from EPOCH, due times from now (None).
        self._origin = EPOCH if is_delayed else None
        # The jobs of the calls that wait for the next statement, each with the future that its call awaits.
        self._waiting: list[tuple[AnyJob, asyncio.Future[bool]]] = []
        # The jobs of the statement in progress, with the same futures.
        self._batch: Batch = {}
        # Whether a statement is in progress.
        self._busy = False

    async def insert(self, job: AnyJob, connection: Connection | None, notify: Notify | None = None) -> bool:
        """Insert a job; return False if its id exists or its unique key is taken.

        ``notify`` is how workers are notified of a job in the transaction of the caller.
        """
        if connection is not None:
            return await self._insert_within(job, connection, notify)
        # If another call already waits for the same id or unique key, this call waits behind that one.
        # The call of has() is avoided as long as no call waits.
        another_call_waits = bool(self._locked.names) and self._locked.has(job)
        if not another_call_waits:
            try:
                # A statement is in progress, so this job is inserted by the next one.
                if self._busy:
                    answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
                    self._waiting.append((job, answer))
                    return await answer
                self._busy = True
                try:
                    return bool(await self._write([job], self._wait_of([job], SHARED_WAIT)))
                finally:
                    # The calls that came during this statement share the next one.
                    self._busy = bool(self._waiting)
                    if self._busy:
                        self._insert_next()
            # The job met the lock of an open transaction, so it waits for that transaction apart from others.
            except DatabaseUnavailableError as fault:
                if not is_lock_timeout(fault):
                    raise
        return await self._locked.insert(job, self._write)

    async def _insert_within(self, job: AnyJob, connection: Connection, notify: Notify | None) -> bool:
        """Insert a job in the transaction of the caller, and notify workers by its commit or afterwards.

        A message that the statement sends reaches the workers at the commit. Without a message, the outbox
        notifies them after the transaction. A job that is due later needs neither.
        """
        due, message = job.execution_time, None
        is_near = self._outbox.is_near(due, self._origin)
        if is_near and self._outbox.is_sent_by_commit(connection, notify):
            # A statement for delayed jobs appends the time of its call, which only the server knows.
            message = due_message("") if self._is_delayed else due_message("", due)
        inserted = await self._insert([job], message=message, connection=connection)
        if inserted and is_near and message is None:
            # For a delayed job, the dict has the time of its call. The job is due then or later.
            if isinstance(inserted, dict):
                due = min(inserted.values())
            self._outbox.notify_due_after(connection, due, notify)
        return bool(inserted)

    async def _write(self, jobs: Sequence[AnyJob], wait: LockWait) -> Collection[str]:
        """Insert jobs, and notify workers of jobs that are due soon.

        The statement itself sends the notification, unless ``wait`` forbids that, or the last notification
        was just sent. Then the outbox sends it later.
        """
        due = min([job.execution_time for job in jobs])
        is_near = self._outbox.is_near(due, self._origin)
        message = None
        if is_near and wait.may_carry and self._outbox.may_carry():
            # A statement for delayed jobs appends the time of its call, which only the server knows.
            due_times = () if self._is_delayed else (due,)
            message = self._outbox.message_to_carry(*due_times)
        # The message covers the jobs that were committed before this time.
        began = time.monotonic()
        if wait.session is None:
            inserted = await self._insert(jobs, message=message, lock_timeout=wait.timeout)
        else:
            # A wait with a session never carries a message.
            async with wait.session() as connection:
                inserted = await self._insert(jobs, lock_timeout=wait.timeout, connection=connection)
        if inserted and is_near:
            # For delayed jobs, the dict has the times of their calls. The jobs are due then or later.
            if isinstance(inserted, dict):
                due = min(inserted.values())
            if message:
                self._outbox.carried(began, due)
            else:
                self._outbox.notify_due_later(due)
        return inserted

    def _wait_of(self, jobs: Sequence[AnyJob], wait: LockWait) -> LockWait:
        """Return how long a statement waits for locks: longer if all of its jobs have generated ids.

        No other transaction can have inserted those ids, so the statement waits only for a trigger of the
        application. While other calls wait for a lock, the short limit stays, because this one may wait too.
        It also stays for a part of a batch that has failed.
        """
        may_wait_longer = wait is SHARED_WAIT and not self._locked.names
        if may_wait_longer and all(isinstance(job, GeneratedIdJob) for job in jobs):
            return GENERATED_WAIT
        return wait

    def _insert_next(self) -> None:
        """Start the task that inserts the jobs of the calls that wait."""
        start_answering(self._insert_waiting(), "pg_scheduler insert", self._failed)

    async def _insert_waiting(self) -> None:
        """Insert the jobs of the calls that wait, statement by statement, until no call waits."""
        is_shared = False
        # After a statement that several calls shared, one more round follows even if no call waits: within
        # the sleep, these callers get their answers and may call again.
        while self._waiting or is_shared:
            await asyncio.sleep(0)
            self._batch = self._take()
            is_shared = len(self._batch) > 1
            if self._batch:
                await self._answer(self._batch)
        self._busy = False

    def _failed(self, task: asyncio.Task[None]) -> list[asyncio.Future[bool]]:
        """Return the futures that a failed task has not answered; start another task for calls that wait."""
        # The calls of the statement in progress. Each entry is a job and the future of its call.
        entries, self._batch = list(self._batch.values()), {}
        if task.cancelled():  # the event loop may be ending
            entries += self._waiting
            self._waiting = []
        self._busy = bool(self._waiting)
        if self._busy:
            self._insert_next()
        return [answer for _, answer in entries]

    def _take(self) -> Batch:
        """Remove the jobs of the next statement from those that wait, and return them."""
        batch: Batch = {}
        room = BatchRoom(MAX_JOBS)
        later_entries: list[tuple[AnyJob, asyncio.Future[bool]]] = []
        for job, answer in self._waiting:
            # Of two jobs with one id, the second one waits for the next statement, because a statement
            # inserts an id only once.
            if job.job_id in batch or not room.take(job.characters):
                later_entries.append((job, answer))
            else:
                batch[job.job_id] = (job, answer)
        self._waiting = later_entries
        return batch

    async def _answer(self, batch: Batch, wait: LockWait = SHARED_WAIT) -> None:
        """Insert a batch and answer its callers. A batch that fails is divided, down to single jobs."""
        jobs = [job for job, _ in batch.values()]
        try:
            inserted = await self._write(jobs, self._wait_of(jobs, wait))
        except (*ROW_ERRORS, *REFUSALS, DatabaseUnavailableError) as error:
            # Any other error concerns all jobs of the batch, not a single one.
            may_be_of_one_job = isinstance(error, ROW_ERRORS) or is_refusal(error) or is_lock_timeout(error)
            if not may_be_of_one_job:
                raise
            if len(batch) == 1:
                # The job that caused the error is alone now.
                for _, answer in batch.values():
                    fail(answer, error)
                return
            for part in _divided(batch):
                await self._answer(part, DIVIDED_WAIT)
        else:
            for job_id, (_, answer) in batch.items():
                # The future is done if its caller was cancelled meanwhile.
                if not answer.done():
                    answer.set_result(job_id in inserted)


def _divided(batch: Batch) -> list[Batch]:
    """Divide a batch into two: jobs with generated ids, which hardly ever wait for locks, and the others.

    If all jobs are of one of these kinds, return two halves.
    """
    # An entry is a job and the future of its call.
    generated = {job_id: entry for job_id, entry in batch.items() if isinstance(entry[0], GeneratedIdJob)}
    if 0 < len(generated) < len(batch):
        return [generated, {job_id: entry for job_id, entry in batch.items() if job_id not in generated}]
    items = list(batch.items())
    middle = len(items) // 2
    return [dict(items[:middle]), dict(items[middle:])]


class LockedInserts:
    """The calls of one process that wait for an open transaction."""

    def __init__(self, store: QueueStore) -> None:
        self._store = store
        self._turn = asyncio.Lock()
        self._waiting = 0
        self.names: Counter[str] = Counter()
        """The ids and unique keys for which calls wait."""

    def has(self, job: AnyJob) -> bool:
        """Return whether a call waits to insert a job with the same id or unique key."""
        return any(name in self.names for name in _names_of(job))

    async def insert(self, job: AnyJob, write: WriteJobs) -> bool:
        """Insert a job, and wait for the transaction that holds its id or key.

        Return False if the id exists or the unique key is taken when that transaction has ended.

        Raises:
            DatabaseUnavailableError: The transaction did not end within the time limit of a call.
        """
        timeout_s = self._store.connections.options.call_timeout_s
        # These are times of the monotonic clock.
        began = time.monotonic()
        deadline = began + timeout_s
        blockers: list[Blocker] = []
        # A job that waits has turns, in each of which a statement waits for the lock on a connection. A pool
        # with one connection needs it for other statements too. So a turn is as short as possible there, and
        # a pause follows.
        has_one_connection = self._store.connections.pool.get_max_size() == 1
        with self._counted(job):
            while True:
                try:
                    async with self._turn:
                        left_s = deadline - time.monotonic()
                        turn_s = 0.0
                        if not has_one_connection:
                            turn_s = min(TURNS_S / self._waiting, left_s)
                        timeout = f"{max(turn_s, MIN_TURN_S) * 1000:.0f}ms"
                        wait = LockWait(timeout, may_carry=False, session=partial(self._session, blockers))
                        return bool(await write([job], wait))
                except DatabaseUnavailableError as fault:
                    # The next turn can succeed only if this one waited for a lock.
                    if not is_locked_out(fault):
                        raise
                    if time.monotonic() >= deadline:
                        raise DatabaseUnavailableError(
                            _describe(job, timeout_s, blockers)
                        ) from fault.__cause__
                    self._report(time.monotonic() - began, blockers)
                if has_one_connection:
                    # Other statements use the connection meanwhile.
                    await asyncio.sleep(PAUSE_S)

    def _report(self, seconds: float, blockers: Sequence[Blocker]) -> None:
        """Log what a call waits for, if it has waited for some seconds."""
        reports = self._store.statements.lock_reports
        if seconds >= reports.report_after_s:
            reports.report("enqueue", seconds, blockers)

    @contextmanager
    def _counted(self, job: AnyJob) -> Iterator[None]:
        """Count a job among those that wait, and its id and unique key, until the block ends."""
        names = _names_of(job)
        self._waiting += 1
        self.names.update(names)
        try:
            yield
        finally:
            self._waiting -= 1
            # This subtraction also removes the names whose count is 0 then.
            self.names -= Counter(names)

    @asynccontextmanager
    async def _session(self, blockers: list[Blocker]) -> AsyncIterator[Connection]:
        """Yield the connection of a transaction, and look up meanwhile which sessions it waits for."""
        async with (
            self._store.connections.transaction() as connection,
            self._store.locks.watching(connection, blockers),
        ):
            yield connection


def _names_of(job: AnyJob) -> list[str]:
    """Return the id of a job, and its unique key if it has one: another transaction may hold either."""
    return [job.job_id] if job.unique_key is None else [job.job_id, job.unique_key]


def _describe(job: AnyJob, timeout_s: float, blockers: Sequence[Blocker]) -> str:
    """Return the message about a job that was not inserted in time, with the sessions that it waits for."""
    key, holders = job.unique_key, describe_holders(blockers)
    # No other transaction can have inserted a generated id, so only a trigger can have met a lock.
    if isinstance(job, GeneratedIdJob) and key is None:
        return (
            f"job not inserted within {timeout_s:g} s, because a trigger of the application needs a lock of "
            f"an open transaction: {holders}; end that transaction, or repeat the call"
        )
    subject = f"job id {job.job_id!r}" if key is None else f"unique key {key!r}"
    return (
        f"job not inserted within {timeout_s:g} s, because an open transaction has inserted or changed a job "
        f"with the {subject}, or a trigger of the application needs its lock: {holders}; end that "
        "transaction, or repeat the call"
    )
