"""Find and lock families: jobs with the children of their steps, the children of these, and so on.

A family is changed as a whole. Suppose a call cancels a job while its attempt inserts children. The attempt
holds the row of the job until its commit, so the call waits there. The children are missing in the snapshot
with which the call began, therefore it looks for the family again once it has the lock. From then on the
attempt inserts no child: it would need the same lock, and then finds that it has lost its job. So when a
search finds no job that is not locked, the family is complete.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from pg_scheduler.database.session import Record
from pg_scheduler.database.statements import Repository, Statements, Transaction
from pg_scheduler.errors import JobConflictError
from pg_scheduler.queue.dependencies import DependencyRepository
from pg_scheduler.queue.unique_keys import ENDED


class BusyFamilyError(Exception):
    """A family cannot be retried yet, because a cancelled attempt of one of its jobs may still run."""


class Member(NamedTuple):
    """A job of a family, whose row is locked.

    Attributes:
        job_id: Its id.
        parent_id: The job whose step has started it; None for the job of which this is the family.
        step: The name of that step; None without a parent.
        stored_at: When the step was stored; None without a parent, and for a step that is to be repeated.
        status: Its status.
        has_ended: Whether it has ended.
        may_run_on: Whether its attempt may still run, although it has ended.
    """

    job_id: str
    parent_id: str | None
    step: str | None
    stored_at: datetime | None
    status: str
    has_ended: bool
    may_run_on: bool


class FamilyRepository(Repository):
    """The statements about families."""

    def __init__(self, statements: Statements, dependencies: DependencyRepository) -> None:
        super().__init__(statements)
        self._dependencies = dependencies

    async def lock(
        self, job_ids: Collection[str], transaction: Transaction, *, for_retry: bool
    ) -> list[Member]:
        """Lock the families of jobs, and return their members, among them those of the jobs that exist.

        ``for_retry`` is whether the families are to be retried; they are cancelled otherwise.
        """
        locked_ids: set[str] = set()
        while True:
            members = await self._rows(
                Member, "lock_families", list(job_ids), for_retry, on=transaction.connection
            )
            found_ids = {member.job_id for member in members}
            # A parent may have inserted children before it was locked, which only a later search finds.
            if found_ids <= locked_ids:
                return members
            locked_ids |= found_ids

    async def retry(self, members: Sequence[Member], transaction: Transaction) -> list[Record]:
        """Retry those jobs of locked families that have ended, and return their rows.

        A parent that is retried repeats its first step with a retried child, and the steps after it. So it
        does with a child that had not completed, and whose row was deleted since, or that was retried alone:
        the step starts it anew, waits for it, or has its new result. An unfinished parent waits again.

        Args:
            members: The members, which ``lock()`` has returned for a retry.
            transaction: The transaction.

        Raises:
            BusyFamilyError: The attempt of a cancelled member may still run. The caller rolls back.
            JobConflictError: Another unfinished job has the unique key of a member. The caller rolls back.
        """
        ended_members = [member for member in members if member.has_ended]
        if any(member.may_run_on for member in ended_members):
            raise BusyFamilyError
        ended_ids = list(dict.fromkeys(member.job_id for member in ended_members))
        on = transaction.connection
        last_jobs = await self._dependencies.lock_schedules(ended_ids, transaction)
        rows = await self._statements.fetch("retry_jobs", ended_ids, self._statements.now, on=on)
        retried_ids = {row["job_id"] for row in rows}
        # The statement leaves out the jobs whose unique keys other jobs have.
        for job_id in ended_ids:
            if job_id not in retried_ids:
                raise await self._conflict(job_id, transaction)
        waiting_parents = [row["parent"] for row in rows if row["parent"] not in retried_ids]
        await self._dependencies.wait_again(ended_ids, waiting_parents, on)
        await self._dependencies.queue_retried(retried_ids, last_jobs, transaction)
        outdated_rows = await self._statements.fetch("find_outdated_steps", sorted(retried_ids), on=on)
        stored_steps = [
            *((member.parent_id, member.step, member.stored_at) for member in ended_members),
            *((row["parent_id"], row["step"], row["stored_at"]) for row in outdated_rows),
        ]
        for step, parent_ids in _first_steps(stored_steps, retried_ids).items():
            await self._statements.fetch("delete_steps_from", parent_ids, step, on=on)
        return rows

    async def _conflict(self, job_id: str, transaction: Transaction) -> JobConflictError:
        """Return the error about an ended job whose unique key another job has."""
        holders = await self._statements.fetch("find_key_holder", job_id, on=transaction.connection)
        for holder in holders:
            return JobConflictError(holder["job_id"], holder["status"], holder["unique_key"])
        return JobConflictError(job_id, ENDED)


def descendants(job_ids: Collection[str], members: Sequence[Member]) -> Iterator[Member]:
    """Yield the members of the families of some of the jobs whose families were locked, each once."""
    children = defaultdict[str | None, list[Member]](list)
    for member in members:
        children[member.parent_id].append(member)
    found_ids: set[str] = set()
    ids = list(job_ids)
    while ids:
        for member in children[ids.pop()]:
            if member.job_id not in found_ids:
                found_ids.add(member.job_id)
                ids.append(member.job_id)
                yield member


def _first_steps(
    stored_steps: Iterable[tuple[str | None, str | None, datetime | None]], retried_ids: Collection[str]
) -> dict[str, list[str]]:
    """Return the steps that retried parents repeat, each with the ids of these parents.

    The later steps of a parent may depend on the result of a child, so the first step with a retried child
    counts. The steps are given by the ids of their jobs, their names, and the times when they were stored.
    """
    first_steps: dict[str, tuple[datetime, str]] = {}
    for parent_id, step, stored_at in stored_steps:
        # A step that is to be repeated already has no time.
        if parent_id in retried_ids and parent_id is not None and step is not None and stored_at is not None:
            first_steps[parent_id] = min((stored_at, step), first_steps.get(parent_id, (stored_at, step)))
    parents_by_step = defaultdict[str, list[str]](list)
    for parent_id, (_, step) in first_steps.items():
        parents_by_step[step].append(parent_id)
    return parents_by_step
