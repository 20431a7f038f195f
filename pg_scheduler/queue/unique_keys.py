"""Find the jobs that hold unique keys, and report conflicts about them.

A partial unique index enforces that at most one unfinished job has a key. A statement that inserts jobs
leaves out those that the index refuses. A statement that makes a job unfinished again fails instead. In both
cases the job that holds the key is read. If it has ended in between, the caller repeats the statement.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, TypeVar

from pg_scheduler.database.faults import constraint_of
from pg_scheduler.database.session import Connection
from pg_scheduler.database.statements import Repository
from pg_scheduler.errors import JobConflictError

KEY_INDEX: Final = "scheduled_jobs_unique"

MAX_ROUNDS: Final = 10
"""Repetitions of a statement while the job with the unique key ends in between, and another takes the key."""

ENDED: Final = "ended"
"""Stands for the status of a job that held a key and has ended since."""

T = TypeVar("T")


class UniqueKeyTakenError(Exception):
    """The unique index refused a row. Another unfinished job has the key, or had it a moment ago."""


class Holder(NamedTuple):
    """A job that conflicts with another one.

    Attributes:
        unique_key: Its unique key; None if it has none.
        is_unfinished: Whether it holds that key.
    """

    job_id: str
    status: str
    unique_key: str | None
    is_unfinished: bool = True


@contextmanager
def detecting_taken_keys() -> Iterator[None]:
    """Raise UniqueKeyTakenError instead of the violation of the unique index."""
    try:
        yield
    except Exception as error:
        if constraint_of(error) != KEY_INDEX:
            raise
        raise UniqueKeyTakenError from error


class UniqueKeyRepository(Repository):
    """The statements about unique keys."""

    async def find_conflicts(
        self, job_ids: Collection[str], keys: Collection[str], *, connection: Connection | None = None
    ) -> list[Holder]:
        """Return the jobs with these ids, and the unfinished ones with these keys."""
        return await self._rows(Holder, "find_conflicts", list(job_ids), list(keys), on=connection)

    async def lock_holders(self, keys: Collection[str], connection: Connection) -> dict[str, Holder]:
        """Lock the unfinished jobs with these keys, and return them by key."""
        rows = await self._statements.fetch("lock_key_holders", list(keys), on=connection)
        # The columns are the first fields of a Holder. All of these jobs are unfinished, as is its default.
        return {row["unique_key"]: Holder(*row) for row in rows}

    async def restart(
        self, job_id: str, change: Callable[[], Awaitable[T]], *, within: Connection | None = None
    ) -> T:
        """Run a statement that may make a finished job unfinished again, so that it needs its unique key.

        Args:
            job_id: The job.
            change: Runs the statement.
            within: The connection that the statement uses, in the transaction of a caller. A savepoint keeps
                that transaction usable. None for the connection of the statement's route.

        Raises:
            JobConflictError: Another unfinished job has the unique key of the job.
        """
        for _ in range(MAX_ROUNDS):
            try:
                with detecting_taken_keys():
                    if within is None:
                        return await change()
                    async with self._statements.transaction(within=within):
                        return await change()
            except UniqueKeyTakenError:
                holder_rows = await self._statements.fetch("find_key_holder", job_id, on=within)
                if holder_rows:
                    holder = holder_rows[0]
                    raise JobConflictError(holder["job_id"], holder["status"], holder["unique_key"]) from None
                # The job that held the key has ended since, so the statement runs again.
        raise JobConflictError(job_id, ENDED)
