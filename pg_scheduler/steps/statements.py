"""Store and read the durable steps of jobs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from pg_scheduler.database.faults import UnstorableTextError
from pg_scheduler.database.session import Connection
from pg_scheduler.database.statements import Repository
from pg_scheduler.errors import DuplicateStepError, JobLostError, PayloadError
from pg_scheduler.jobs.payload import object_from
from pg_scheduler.jobs.rows import Claim
from pg_scheduler.jobs.step_values import StoredStep

OWN: Final = "own"
"""The state of a row that is a child of the step."""
FORMER: Final = "former"
"""The state of a row that is a child of an earlier definition of the job."""
COMPLETED: Final = "completed"
"""The state of a child that has completed, and whose row was deleted since. Its result was passed."""
TAKEN: Final = "taken"
"""The state of a row that is another job, or another child of the job."""


ROUNDS: Final = 2
"""How often a step is stored or a child is inserted. Another session may commit a signal or a job of its name
during the first statement, which does not see it."""


class ChildRow(NamedTuple):
    """What has the id of a child.

    Attributes:
        state: One of the states above; None if nothing has the id.
        status: The status of the job; None if there is no row.
        owner: What has the id, for people.
        is_child: Whether that is a child of some step.
    """

    state: str | None
    status: str | None
    owner: str
    is_child: bool


class KeyHolder(NamedTuple):
    """A job that has the unique key of a child."""

    job_id: str
    status: str
    unique_key: str | None


class Family(NamedTuple):
    """A job and its children.

    Attributes:
        definition: What distinguishes this definition of the job from others with its id.
        rows: What has the ids of the children.
    """

    definition: str
    rows: Mapping[str, ChildRow]


class StepRepository(Repository):
    """Steps of jobs, each written under the fencing token of an attempt."""

    async def load(self, job_id: str, *, connection: Connection | None = None) -> list[StoredStep]:
        """Return the stored steps of a job; an empty list if its options have no mark."""
        rows = await self._rows(StoredStep, "load_steps", job_id, self._statements.now, on=connection)
        return [row._replace(timeouts=tuple(row.timeouts or ())) for row in rows]

    async def store(
        self,
        worker_id: str,
        claim: Claim,
        name: str,
        kind: str,
        value: str | None,
        *,
        version: int,
        delay_s: float | None = None,
        until: datetime | None = None,
        must_be_new: bool = False,
        connection: Connection | None = None,
    ) -> StoredStep:
        """Store a step. A repetition has no further effect, except that a new value replaces the old one.

        Args:
            worker_id: The worker that runs the attempt.
            claim: The attempt.
            name: The name of the step.
            kind: What it is.
            value: Its value as JSON; None for none.
            version: The version of the task, which the first step of the job stores.
            delay_s: The length of a step that waits in seconds; None for other steps.
            until: The end of a step that waits instead of its length.
            must_be_new: Whether to refuse a step that is stored already.
            connection: The connection of a transaction with which the step commits; None for none.

        Returns:
            The step as it is stored. A sleep or wait that was stored before has kept its end.

        Raises:
            JobLostError: The attempt does not hold its job any more; nothing was stored.
            DuplicateStepError: A step of another kind has this name, or the step must be new and is not.
            PayloadError: The encoding of the database lacks a character of the name or the value.
        """
        args = claim.job_id, worker_id, claim.attempt, name, kind, value, version, delay_s, until
        # If a session commits a signal of this name during the statement, the statement does not see it, and
        # stores nothing. The second one does.
        for _ in range(ROUNDS):
            try:
                rows = await self._statements.fetch(
                    "store_step", *args, self._statements.now, must_be_new, on=connection
                )
            except UnstorableTextError as error:
                raise PayloadError(f"step {name!r}: {error}") from error.__cause__
            if not rows:
                raise JobLostError(claim.job_id)
            (row,) = rows
            # The kind is NULL if nothing was stored because a step has the name.
            if row["kind"] is not None:
                return StoredStep(*row)
        if must_be_new:
            raise DuplicateStepError(
                f"step {name!r} of job {claim.job_id!r} was stored meanwhile, so the transaction is "
                "rolled back; let it end the attempt: the next one continues after the step"
            )
        raise DuplicateStepError(
            f"step {name!r} of job {claim.job_id!r} is stored as another kind of step, not as {kind!r}; "
            "use another name"
        )

    async def find_children(
        self,
        worker_id: str,
        claim: Claim,
        step: str,
        children: Mapping[str, int | None],
        connection: Connection,
    ) -> Family:
        """Lock the job of an attempt; return which jobs have the ids of the children of a step now.

        Args:
            worker_id: The worker that runs the attempt.
            claim: The attempt.
            step: The name of the step.
            children: The numbers of the children in the step by id; None for a single one.
            connection: The connection of the transaction.

        Raises:
            JobLostError: The attempt does not hold its job any more.
        """
        args = claim.job_id, worker_id, claim.attempt, list(children), list(children.values()), step
        rows = await self._statements.fetch("find_children", *args, self._statements.now, on=connection)
        if not rows:
            raise JobLostError(claim.job_id)
        child_rows = {row["id"]: _child_row(claim.job_id, row) for row in rows if row["id"] is not None}
        return Family(rows[0]["definition"], child_rows)

    async def keep_holders_results(
        self, job_ids: Collection[str], seconds: float, connection: Connection
    ) -> Sequence[KeyHolder]:
        """Let jobs keep their results that have the unique keys of children; return the jobs that cannot.

        Such a job stands for the child that has the same key, so the step needs its result.

        Args:
            job_ids: The jobs.
            seconds: For how long a result is kept.
            connection: The connection of the transaction that stores the step.
        """
        rows = await self._statements.fetch("keep_holders_results", sorted(job_ids), seconds, on=connection)
        return [KeyHolder(*row) for row in rows]

    async def repeat_wait(
        self,
        worker_id: str,
        claim: Claim,
        name: str,
        count: int,
        *,
        delay_s: float | None,
        until: datetime | None,
    ) -> None:
        """Let a wait for a signal begin again after ``count`` timeouts, or give one that lasts another end.

        Raises:
            JobLostError: The attempt does not hold its job any more; nothing was changed.
        """
        args = claim.job_id, worker_id, claim.attempt, name, count, delay_s, until
        if not await self._statements.fetch("repeat_wait", *args, self._statements.now):
            raise JobLostError(claim.job_id)

    async def is_locked_by(self, job_id: str, transaction_id: int) -> bool:
        """Return whether a transaction may have locked a job's row: it is open, and the row is locked.

        Which transaction has locked the row is unknown, so it may also be another one.
        """
        return bool(await self._statements.value("is_locked_by", job_id, transaction_id))

    async def has_rolled_back(self, transaction_id: int) -> bool:
        """Return whether a transaction was rolled back; False if the server does not know it."""
        return bool(await self._statements.value("has_rolled_back", transaction_id))

    async def end(self, worker_id: str, claim: Claim, name: str) -> bool:
        """End a sleep, a wait or the failed attempts of a step; return False if that had ended before.

        Raises:
            JobLostError: The attempt does not hold its job any more; nothing was changed.
        """
        rows = await self._statements.fetch(
            "end_step", claim.job_id, worker_id, claim.attempt, name, self._statements.now
        )
        if not rows:
            raise JobLostError(claim.job_id)
        return bool(rows[0]["was_open"])


def _child_row(job_id: str, row: Any) -> ChildRow:
    """Return what has the id that a child of a job would get, from a row of ``find_children``.

    That is a job, the passed result of a child whose row was deleted, or nothing.
    """
    # The mark of a job that is a child names its parent and the step. Other jobs have none.
    child_of = object_from(row["child_of"])
    has_row = row["job_name"] is not None
    if child_of:
        owner = f"the child of step {child_of.get('step')!r} of job {child_of.get('job')!r}"
    elif not has_row:  # a passed result can only be that of a child of this job
        owner = f"the child of step {row['step']!r} of job {job_id!r}"
    else:
        owner = f"the job {row['job_name']!r} with status {row['status']!r}"
    is_child = bool(child_of) or not has_row
    return ChildRow(row["state"], row["status"], owner, is_child)
