"""Insert the jobs for which a step waits, and read their results.

One transaction locks the job of the attempt, inserts its children, stores the step, and writes the edges. So
a child exists if and only if its step does, and its end finds the job that waits for it.

The row of a child names its parent: the id of the job, its definition, the step, and the number in
``gather()``. Any job may have the id of a child, so a row counts by that mark only. A job of the
application that has the id is a conflict; of two children with one id, the second one gets a hash as well.
The children of a replaced job have another definition in their mark, so the new children replace them
whatever the clock shows.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from hashlib import sha256
from typing import Any, Final, NamedTuple

from pg_scheduler.database.faults import is_lock_timeout
from pg_scheduler.database.lock_retries import LockRetries
from pg_scheduler.database.session import Connection
from pg_scheduler.database.statements import Transaction
from pg_scheduler.errors import DatabaseUnavailableError, JobConflictError, JobNotFoundError, JobResult
from pg_scheduler.jobs.deadlines import deadline_of
from pg_scheduler.jobs.model import Call, ConflictResolution
from pg_scheduler.jobs.payload import value_from
from pg_scheduler.jobs.rows import AnyJob, Claim
from pg_scheduler.jobs.sequences import sequence_key_of
from pg_scheduler.jobs.step_values import CHILD, DETACHED, NO_TIMEOUT, StoredStep
from pg_scheduler.jobs.task import JobSpec
from pg_scheduler.jobs.validation import MAX_ID_BYTES, check_job_id, check_kind
from pg_scheduler.queue.bulk import PREPARE_BATCH
from pg_scheduler.queue.clean_ups import SUFFIX as CLEAN_UP_SUFFIX
from pg_scheduler.queue.failure_alerts import SUFFIX as ALERT_SUFFIX
from pg_scheduler.steps.child_jobs import CHILD_KEEPS, ChildEnqueuer, ChildSpec
from pg_scheduler.steps.statements import (
    COMPLETED,
    FORMER,
    OWN,
    ROUNDS,
    TAKEN,
    ChildRow,
    Family,
    StepRepository,
)
from pg_scheduler.worker.node import Node

HASH_CHARACTERS: Final = 16

RESERVED: Final = frozenset({"args", "kwargs", "job_id", "conflict_resolution", "connection", "notify"})
"""The arguments of ``enqueue()`` that follow from the step."""

OPTIONS: Final = tuple(
    name
    for name in ("delay", *(option.name for option in fields(JobSpec)))
    if name not in RESERVED | {"func", "execution_time"}
)
"""The arguments of ``enqueue()`` that a child takes. It also takes ``detached``."""


class ChildJob(NamedTuple):
    """A job for which a step waits.

    Attributes:
        job_id: Its id.
        other_id: The id of the child if a child of another step has ``job_id``: ``job_id`` with a hash. If
            that would be too long, it is ``job_id``.
        number: Its number in the step; None for a single child.
        call: Its function and arguments.
        options: Arguments of ``enqueue()``.
        is_detached: Whether it continues if its job is cancelled with its children.
    """

    job_id: str
    other_id: str
    number: int | None
    call: Call[Any]
    options: Mapping[str, Any]
    is_detached: bool = False

    @classmethod
    def of(
        cls,
        job_id: str,
        step: str,
        number: int | None,
        call: Call[Any],
        options: Mapping[str, Any] | None = None,
    ) -> ChildJob:
        """Return the child for which a job waits, with its id, after a check of the arguments.

        Args:
            job_id: The id of the job that waits.
            step: The name of the step.
            number: The number of the child in the step; None for a single one.
            call: The function and arguments of the child.
            options: Arguments of ``enqueue()``, and ``detached``.

        Raises:
            TypeError: The function is no ``call()``, an option is not for children, or ``detached`` is no
                bool.
            ValueError: The id is too long.
        """
        if not isinstance(call, Call):
            raise TypeError(f"a child needs a call(), not {call!r}; pass call(function, argument)")
        child_options = dict(options or {})
        is_detached: bool = check_kind(DETACHED, child_options.pop(DETACHED, False), bool)
        if refused := sorted(child_options.keys() & RESERVED):
            raise TypeError(
                f"a child takes no {refused[0]}=: its id follows from the step, its arguments from call(); "
                "omit it, or enqueue the job in a step of its own"
            )
        if unknown := [option for option in child_options if option not in OPTIONS]:
            options_text = ", ".join((*OPTIONS, DETACHED))
            raise TypeError(f"a child has no option {unknown[0]}=; its options are {options_text}")
        own_part = step if number is None else f"{step}:{number}"
        child_id = check_job_id(f"{job_id}:{own_part}")
        # A job "a" with a step "b:c" and a job "a:b" with a step "c" have children of the same id. The hash
        # is that of the parts, and distinguishes them.
        parts = json.dumps([job_id, step, number])
        parts_hash = sha256(parts.encode()).hexdigest()[:HASH_CHARACTERS]
        other_id = f"{child_id}:{parts_hash}"
        if len(other_id.encode()) > MAX_ID_BYTES:
            other_id = child_id
        return cls(child_id, other_id, number, call, child_options, is_detached)


class Children:
    """The children of the jobs that a worker runs."""

    def __init__(self, node: Node, steps: StepRepository, enqueuer: ChildEnqueuer) -> None:
        self._node = node
        self._steps = steps
        self._enqueuer = enqueuer

    async def insert(self, claim: Claim, name: str, jobs: Sequence[ChildJob], version: int) -> StoredStep:
        """Insert the children of a step, and store the step. A repetition has no further effect.

        A child that exists, as after a retry from this step, is not inserted again: its result counts. The
        row of a child that has completed may be deleted; then the result that was passed to the job counts. A
        child of an earlier definition of the job is replaced.

        Args:
            claim: The attempt.
            name: The name of the step.
            jobs: The children.
            version: The version of the task, as for other steps.

        Returns:
            The step, which is over if all children have ended.

        Raises:
            JobConflictError: Another job has the id of a child, or another job that keeps no result has the
                unique key of a child.
            JobLostError: The attempt does not hold its job any more.
            ValueError: The job would wait for itself; or as in ``enqueue()``.
        """
        retries = self._node.store.statements.lock_retries("children of a step")
        while True:
            try:
                return await self._insert(claim, name, jobs, version, retries)
            except DatabaseUnavailableError as fault:
                if not is_lock_timeout(fault):
                    raise
                # Another transaction has locked a row for long. This one was rolled back, so that it does not
                # hold its own locks meanwhile, and is repeated after a pause.
                await retries.pause(fault)

    async def _insert(
        self, claim: Claim, name: str, jobs: Sequence[ChildJob], version: int, retries: LockRetries
    ) -> StoredStep:
        """Insert the children and store their step in one transaction; see ``insert()``."""
        async with (
            self._node.store.connections.transaction_of_job(
                lock_timeout_ms=retries.lock_timeout_ms
            ) as connection,
            retries.watching(connection),
        ):
            family = await self._find(claim, name, jobs, connection)
            child_jobs: dict[str, AnyJob] = {}
            for number, job in enumerate(jobs, 1):
                job_id, row = _row_of(job, family)
                if row.state not in {OWN, COMPLETED, TAKEN}:
                    child_jobs[job.job_id] = self._prepare(claim, name, job, job_id, family)
                if number % PREPARE_BATCH == 0:
                    await asyncio.sleep(0)  # many children must not block the event loop
            # Children with unique keys are inserted in another order than that of the step. The step has the
            # ids by which they were stored in its own order.
            inserted: dict[str, str] = {}
            for job in sorted(jobs, key=lambda job: _key_of(child_jobs.get(job.job_id))):
                child_job = child_jobs.get(job.job_id)
                inserted[job.job_id] = await self._insert_one(
                    claim, name, job, family, connection, child_job=child_job
                )
            ids = [inserted[job.job_id] for job in jobs]
            # Either id of a child is its own. Any other id is that of a job which holds the unique key of a
            # child, and stands for that child.
            own_ids = {job.job_id for job in jobs} | {job.other_id for job in jobs}
            if holders := set(ids) - own_ids:
                await self._keep_results(claim, name, holders, connection)
            stored = await self._steps.store(
                self._node.worker_id,
                claim,
                name,
                CHILD,
                json.dumps(ids),
                version=version,
                until=NO_TIMEOUT,
                connection=connection,
            )
            # One job may hold the unique keys of several children.
            distinct_ids = list(dict.fromkeys(ids))
            # The list is for the events of the transaction, to which await_jobs() adds none.
            has_ended = await self._node.store.dependencies.await_jobs(
                claim.job_id, family.definition, distinct_ids, Transaction(connection, [])
            )
        return stored._replace(has_ended=has_ended, is_awaited=not has_ended)

    async def _find(
        self, claim: Claim, name: str, jobs: Sequence[ChildJob], connection: Connection
    ) -> Family:
        """Lock the job of an attempt, and return which rows have the ids of its children now."""
        # Each child may be stored under either of its two ids.
        numbers: dict[str, int | None] = {}
        for job in jobs:
            numbers[job.job_id] = job.number
        for job in jobs:
            numbers[job.other_id] = job.number
        return await self._steps.find_children(self._node.worker_id, claim, name, numbers, connection)

    def _prepare(self, claim: Claim, name: str, job: ChildJob, job_id: str, family: Family) -> AnyJob:
        """Return the row of a child that gets this id."""
        mark: dict[str, Any] = {"job": claim.job_id, "definition": family.definition, "step": name}
        if job.number is not None:
            mark["number"] = job.number
        spec = ChildSpec(
            job.call,
            job_id,
            mark,
            job.options,
            # A child must have ended when its job must, unless the step gives it another deadline. The
            # deadline of its task does not count then.
            deadline_of(claim.options),
            job.is_detached,
            sequence_key_of(claim.options),
        )
        return self._enqueuer.prepare(spec)

    async def _insert_one(
        self,
        claim: Claim,
        name: str,
        job: ChildJob,
        family: Family,
        connection: Connection,
        *,
        child_job: AnyJob | None,
    ) -> str:
        """Insert a child unless it exists; return its id, or the id of the job that holds its unique key.

        ``child_job`` is its row; None if a child or another job had its id.
        """
        # In a second round, the child that another session has inserted meanwhile is found.
        for _ in range(ROUNDS):
            job_id, row = _row_of(job, family)
            if row.state in {OWN, COMPLETED}:
                return job_id
            if row.state == TAKEN:
                break
            if child_job is None or child_job.job_id != job_id:
                child_job = self._prepare(claim, name, job, job_id, family)
            # A child of an earlier definition of the parent is replaced. Any other job is a conflict.
            resolution = ConflictResolution.REPLACE if row.state == FORMER else ConflictResolution.RAISE
            try:
                return await self._enqueuer.insert(child_job, resolution, connection)
            except JobConflictError as conflict:
                # Another job has the unique key of the child, and stands for the child.
                if conflict.job_id != job_id:
                    return conflict.job_id
            # Another session has committed a job with this id meanwhile.
            family = await self._find(claim, name, [job], connection)
        job_id, row = _row_of(job, family)
        raise JobConflictError(
            job_id, row.status, child_of=f"step {name!r} of job {claim.job_id!r}", owner=row.owner
        )

    async def _keep_results(
        self, claim: Claim, name: str, holders: Collection[str], connection: Connection
    ) -> None:
        """Let the jobs that have the unique keys of children keep their results, which the step returns.

        Raises:
            JobConflictError: One has begun, and keeps none.
        """
        refusing_holders = await self._steps.keep_holders_results(
            holders, CHILD_KEEPS.total_seconds(), connection
        )
        for holder in refusing_holders:
            raise JobConflictError(
                holder.job_id,
                holder.status,
                holder.unique_key,
                child_of=f"step {name!r} of job {claim.job_id!r}",
            )

    async def results(self, claim: Claim, step: StoredStep, jobs: Sequence[ChildJob]) -> list[JobResult]:
        """Return the results of the children of a step that is over.

        Args:
            claim: The attempt.
            step: The step, as it is stored.
            jobs: The children, as the code has them now.

        Raises:
            JobConflictError: Another job has replaced a child.
            JobNotFoundError: A child was deleted by hand before it ended.
        """
        # The value of the step is the ids of its children.
        ids: list[str] = value_from(step.value)
        child_results = await self._node.store.passed_results.of_children(claim.job_id, step.name, ids)
        children_ids = {job.job_id for job in jobs} | {job.other_id for job in jobs}
        for job_id in ids:
            if job_id not in child_results:
                raise JobNotFoundError(job_id)
            child_result = child_results[job_id]
            # A job with the id of a child has to be this child. A job that stands for a child, because it has
            # the unique key of the child, has another id and need not be one.
            if job_id in children_ids and not child_result.is_child:
                status = child_result.result.status.value
                raise JobConflictError(
                    job_id,
                    status,
                    child_of=f"step {step.name!r} of job {claim.job_id!r}",
                    owner=f"another job, which has replaced the child and ended as {status!r}",
                )
        return [child_results[job_id].result for job_id in ids]


def _row_of(job: ChildJob, family: Family) -> tuple[str, ChildRow]:
    """Return the id that a child has or gets, and the row that has this id now.

    The id is ``other_id`` if the child is stored under it, or if another child, an alert or a clean-up has
    ``job_id``.
    """
    row, other_row = family.rows[job.job_id], family.rows[job.other_id]
    # The child is stored under its other id.
    if row.state not in {OWN, COMPLETED} and other_row.state in {OWN, COMPLETED}:
        return job.other_id, other_row
    # The child is stored under this id, or is going to replace a child of an earlier definition.
    if row.state in {OWN, COMPLETED, FORMER}:
        return job.job_id, row
    # Another child has this id. Or the id ends with the suffix of the alert of a failed job, or with that of
    # the clean-up of a cancelled one, so such a job may get the id while the child exists.
    is_of_other_child = row.state == TAKEN and row.is_child
    if is_of_other_child or job.job_id.endswith((ALERT_SUFFIX, CLEAN_UP_SUFFIX)):
        return job.other_id, other_row
    # The id is free, or a job of the application has it, which is a conflict.
    return job.job_id, row


def _key_of(child_job: AnyJob | None) -> str:
    """Return the text by which the children of a step are sorted before they are inserted.

    It is the unique key: if two jobs inserted children with the same unique keys in different orders, they
    could deadlock. All other children are inserted in the order of the step, by which they become due. So are
    those of a sequence, which must run in that order. If they deadlock two transactions, one is repeated.
    """
    if child_job is None or child_job.unique_key is None or sequence_key_of(child_job.extras.options):
        return ""
    return child_job.unique_key
