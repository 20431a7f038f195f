"""Insert the jobs for which a step waits, and read their results.

One transaction locks the job of the attempt, inserts its children, stores the step, and writes the edges. So
a child exists if and only if its step does, and its end finds the job that waits for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

from pg_scheduler.errors import JobConflictError, JobNotFoundError, JobResult
from pg_scheduler.jobs.model import Call, ConflictResolution
from pg_scheduler.jobs.payload import value_from
from pg_scheduler.jobs.rows import Claim
from pg_scheduler.jobs.step_values import CHILD, NO_TIMEOUT, StoredStep
from pg_scheduler.jobs.validation import check_job_id
from pg_scheduler.store.connections.session import Connection
from pg_scheduler.store.statements import Transaction
from pg_scheduler.store.steps import FormerJobs
from pg_scheduler.worker.node import Node

CHILD_KEEPS: Final = timedelta(hours=1)
"""How long a child keeps its result, of which its step gets a copy."""

RESERVED: Final = frozenset({"args", "kwargs", "job_id", "conflict_resolution", "connection", "notify"})
"""The arguments of ``enqueue()`` that follow from the step."""


class ChildJob(NamedTuple):
    """A job for which a step waits.

    Attributes:
        job_id: Its id.
        call: Its function and arguments.
        options: Arguments of ``enqueue()``.
    """

    job_id: str
    call: Call[Any]
    options: Mapping[str, Any]

    @classmethod
    def of(cls, job_id: str, call: Call[Any], options: Mapping[str, Any] | None = None) -> ChildJob:
        """Return a job that was checked.

        Raises:
            TypeError: The function is no ``call()``, or an option is not for children.
            ValueError: The id is too long.
        """
        if not isinstance(call, Call):
            raise TypeError(f"a child needs a call(), not {call!r}; pass call(function, argument)")
        given = {"keep_result": CHILD_KEEPS, **(options or {})}
        if refused := sorted(given.keys() & RESERVED):
            raise TypeError(
                f"a child takes no {refused[0]}=: its id follows from the step, its arguments from call(); "
                "omit it, or enqueue the job in a step of its own"
            )
        return cls(check_job_id(job_id), call, given)


class Children:
    """The children of the jobs that a worker runs."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def insert(self, claim: Claim, name: str, jobs: Sequence[ChildJob], version: int) -> StoredStep:
        """Insert the children of a step and store it. To do it again has no further effect.

        A job that exists, as after a retry from this step, is not inserted: its result counts. So
        does that of a child that has completed, which the job has kept.

        Args:
            claim: The attempt.
            name: The name of the step.
            jobs: The children.
            version: That of the task, as for other steps.

        Returns:
            The step, which is over if all children have ended.

        Raises:
            JobLostError: The attempt does not hold its job any more.
            ValueError: The job would wait for itself; or as in ``enqueue()``.
        """
        async with self._node.store.connections.transaction_of_job() as connection:
            own = [job.job_id for job in jobs]
            former = await self._node.store.steps.adopt_children(self._node.worker_id, claim, own, connection)
            inserted = {job.job_id: await self._insert_one(job, former, connection) for job in _ordered(jobs)}
            ids = [inserted[each] for each in own]
            stored = await self._node.store.steps.store(
                self._node.worker_id,
                claim,
                name,
                CHILD,
                json.dumps(ids),
                version=version,
                until=NO_TIMEOUT,
                connection=connection,
            )
            has_ended = await self._node.store.dependencies.await_jobs(
                claim.job_id, list(dict.fromkeys(ids)), Transaction(connection, [])
            )
        return stored._replace(has_ended=has_ended, is_awaited=not has_ended)

    async def _insert_one(self, job: ChildJob, former: FormerJobs, connection: Connection) -> str:
        """Return the id of a child, or of the unfinished job that has its unique key."""
        if job.job_id in former.completed:
            return job.job_id
        is_adopted = job.job_id in former.adopted
        try:
            return await self._node.get_scheduler().enqueue(
                job.call,
                job_id=job.job_id,
                conflict_resolution=ConflictResolution.REPLACE if is_adopted else ConflictResolution.IGNORE,
                connection=connection,
                **job.options,
            )
        except JobConflictError as conflict:
            if conflict.job_id == job.job_id:
                raise
            return conflict.job_id

    async def results(self, claim: Claim, step: StoredStep) -> list[JobResult]:
        """Return the results of the children of a step that is over.

        Raises:
            JobNotFoundError: A child was deleted by hand before it ended.
        """
        ids: list[str] = value_from(step.value)
        found = await self._node.store.passed_results.of_children(claim.job_id, ids)
        for job_id in ids:
            if job_id not in found:
                raise JobNotFoundError(job_id)
        return [found[job_id] for job_id in ids]


def _ordered(jobs: Sequence[ChildJob]) -> list[ChildJob]:
    """Return children in an order that does not depend on their job.

    Two jobs whose children have the same unique keys would deadlock if they inserted them in other orders.
    """
    return sorted(jobs, key=_order)


def _order(job: ChildJob) -> tuple[str, str]:
    func, args, kwargs = job.call.func, job.call.args, job.call.kwargs
    return getattr(func, "__qualname__", ""), repr((args, sorted(kwargs.items())))
