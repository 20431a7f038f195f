"""Insert jobs that wait for an open transaction, without delaying other jobs.

The transaction has inserted their id or unique key, or a trigger of the application waits for it. A
statement that calls share fails if it waits longer than ``SHARED_WAIT`` for such a transaction. Its jobs are
then divided until the ones that wait are alone. Those take turns here, on one connection for all of them.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from pg_scheduler.database.blockers import Blocker
from pg_scheduler.database.faults import is_locked_out
from pg_scheduler.database.lock_retries import describe_holders
from pg_scheduler.database.session import Connection
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.jobs.rows import AnyJob, GeneratedIdJob
from pg_scheduler.queue.store import QueueStore

TURNS_S: Final = 1.0
"""Seconds in which every waiting job has a turn."""

MIN_TURN_S: Final = 0.02

PAUSE_S: Final = 0.2
"""Seconds between two turns if the pool has a single connection, which others need as well."""


@dataclass(frozen=True, slots=True)
class LockWait:
    """How long a statement that inserts jobs waits for locks.

    Attributes:
        timeout: The limit, as PostgreSQL writes it; None for the setting of the session.
        may_carry: Whether the statement may send a notification, whose commit takes a lock too.
        session: Yields the connection to use; None for the default.
    """

    timeout: str | None
    may_carry: bool = True
    session: Callable[[], AbstractAsyncContextManager[Connection]] | None = None


SHARED_WAIT: Final = LockWait("10ms")
GENERATED_WAIT: Final = LockWait("100ms")
DIVIDED_WAIT: Final = LockWait("2ms", may_carry=False)

WriteJobs: TypeAlias = Callable[[Sequence[AnyJob], LockWait], Awaitable[Collection[str]]]


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
        """Insert a job, and wait for the transaction that holds its id or key; return False if it exists.

        Raises:
            DatabaseUnavailableError: The transaction did not end within the time limit of a call.
        """
        timeout_s = self._store.connections.options.call_timeout_s
        deadline = time.monotonic() + timeout_s
        blockers: list[Blocker] = []
        has_one_connection = self._store.connections.pool.get_max_size() == 1
        with self._counted(job):
            while True:
                try:
                    async with self._turn:
                        left_s = deadline - time.monotonic()
                        turn_s = 0 if has_one_connection else min(TURNS_S / self._waiting, left_s)
                        timeout = f"{max(turn_s, MIN_TURN_S) * 1000:.0f}ms"
                        wait = LockWait(timeout, may_carry=False, session=partial(self._session, blockers))
                        return bool(await write([job], wait))
                except DatabaseUnavailableError as fault:
                    if not is_locked_out(fault):
                        raise  # else the next turn may succeed
                    if time.monotonic() >= deadline:
                        raise DatabaseUnavailableError(
                            _describe(job, timeout_s, blockers)
                        ) from fault.__cause__
                    self._report(timeout_s - (deadline - time.monotonic()), blockers)
                if has_one_connection:
                    await asyncio.sleep(PAUSE_S)

    def _report(self, seconds: float, blockers: Sequence[Blocker]) -> None:
        """Log what a call waits for, if it has waited for some seconds."""
        reports = self._store.statements.lock_reports
        if seconds >= reports.report_after_s:
            reports.report("enqueue", seconds, describe_holders(blockers))

    @contextmanager
    def _counted(self, job: AnyJob) -> Iterator[None]:
        names = _names_of(job)
        self._waiting += 1
        self.names.update(names)
        try:
            yield
        finally:
            self._waiting -= 1
            self.names -= Counter(names)

    @asynccontextmanager
    async def _session(self, blockers: list[Blocker]) -> AsyncIterator[Connection]:
        """Yield a transaction, and meanwhile look up which transactions it waits for."""
        async with (
            self._store.connections.transaction() as connection,
            self._store.locks.watching(connection, blockers),
        ):
            yield connection


def _names_of(job: AnyJob) -> list[str]:
    return [job.job_id] if job.unique_key is None else [job.job_id, job.unique_key]


def _describe(job: AnyJob, timeout_s: float, blockers: Sequence[Blocker]) -> str:
    key, holders = job.unique_key, describe_holders(blockers)
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
