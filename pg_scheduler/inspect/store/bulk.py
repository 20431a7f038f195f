"""Change many jobs for people: a batch is a transaction with its record in the audit."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import asyncpg

from pg_scheduler.base.messages import HEARTBEAT_REQUEST, due_message
from pg_scheduler.base.status import JobStatus
from pg_scheduler.database.audit import AuditRepository
from pg_scheduler.database.faults import REFUSALS, constraint_of, is_refused_change
from pg_scheduler.database.session import Connection
from pg_scheduler.database.statements import Statements, Transaction
from pg_scheduler.errors import DatabaseUnavailableError, JobConflictError
from pg_scheduler.events import JobCancelled
from pg_scheduler.events.types import BY_CALLER
from pg_scheduler.inspect.store.searches import Condition, Scan, SearchRepository
from pg_scheduler.jobs.model import Job
from pg_scheduler.queue.consequences import Consequences
from pg_scheduler.queue.dependencies import DependencyRepository
from pg_scheduler.queue.families import BusyFamilyError, FamilyRepository, Member, descendants
from pg_scheduler.queue.jobs import JobFilters
from pg_scheduler.queue.locks import LockRepository
from pg_scheduler.queue.unique_keys import KEY_INDEX, MAX_ROUNDS, UniqueKeyTakenError, detecting_taken_keys

MAX_RECORDED_BYTES: Final = 20_000
"""Bytes of ids in a record of the audit; further ids are counted."""

MAX_WORKER_ID_BYTES: Final = 1000
"""No worker listens for a longer id, which a person wrote by hand."""


BulkAction: TypeAlias = Literal["cancel", "retry", "delete", "move"]
"""An action on jobs. In records of the audit, ``_jobs`` follows its name, as in ``cancel_jobs``."""


class StaleRunError(ValueError):
    """Another call has changed jobs of a bulk run since this call read the cursor of the run."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Jobs to change in one transaction.

    Attributes:
        action: The action.
        job_ids: The jobs, each once.
        conditions: The conditions that the jobs must fulfil when they are locked.
        matches: A further condition that the jobs must fulfil; None for none.
        versions: The versions that the jobs must have when they are locked, by id; None for any.
        to: When moved jobs are due; None to move each job from its own due time.
        by_s: Seconds by which each job is moved if ``to`` is None.
        from_step: The stored step from which jobs are retried; None to keep all steps.
        children: Whether the families of the jobs are changed with them: cancelled, or retried.
        family_conditions: The conditions that the other jobs of the families must fulfil.
        details: Why these jobs were chosen, for the record in the audit.
        subject: The id of the run of the batch, which is the subject of its record. A batch of a run has a
            record even if no job was changed. None without a run: the subject is the job if only one was
            changed.
        after: The cursor at which the batch of the run begins; None for the first batch.
        next: The cursor at which the batch ends; None for the last batch.
        searched: Jobs that the run has examined so far.
        total_estimate: About how many jobs the run examines in all; None if that is unknown.
    """

    action: BulkAction
    job_ids: Sequence[str] = ()
    conditions: Sequence[Condition] = ()
    matches: Callable[[Job], bool] | None = None
    versions: Mapping[str, str] | None = None
    to: datetime | None = None
    by_s: float = 0.0
    from_step: str | None = None
    children: bool = False
    family_conditions: Sequence[Condition] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    subject: str | None = None
    after: str | None = None
    next: str | None = None
    searched: int = 0
    total_estimate: int | None = None


class ChangeOutcome(StrEnum):
    """The outcome of a bulk action for one job."""

    DONE = "done"
    """The job was changed; in a dry run, its status allows the change."""
    REFUSED = "refused"
    """The status of the job does not allow the change, an unfinished job has its unique key, its cancelled
    attempt still runs, it has not stored the step from which it is to be retried, or it is to be deleted and
    other jobs wait for it. Or a trigger or a constraint of yours refused the change.
    """
    SKIPPED = "skipped"
    """The job does not exist, or does not match the search any more."""


@dataclass(frozen=True, slots=True)
class JobChange:
    """A job of a bulk action."""

    job_id: str
    """Its id."""
    job_name: str | None
    """Its name; None if it does not exist."""
    status: JobStatus | None
    """Its status before; None if it does not exist."""
    outcome: ChangeOutcome
    """The outcome of the action for it."""
    refusal: Exception | None = field(default=None, repr=False, compare=False)
    """The error of the trigger or the constraint of yours that refused the change; None otherwise."""


class Changes(NamedTuple):
    """The effects of a batch.

    Attributes:
        jobs: The outcome for each of its jobs.
        children: Jobs of their families that were changed with them.
    """

    jobs: list[JobChange]
    children: int = 0


class _Effects(NamedTuple):
    """The jobs that a transaction changed, and the messages that it sends."""

    job_ids: Collection[str] = ()
    messages: Sequence[str] = ()

    def added(self, effects: _Effects) -> _Effects:
        """Return these effects and those of a further change in the same transaction."""
        return _Effects([*self.job_ids, *effects.job_ids], [*self.messages, *effects.messages])


class BulkRepository:
    """The transactions that change many jobs."""

    def __init__(
        self,
        statements: Statements,
        consequences: Consequences,
        searches: SearchRepository,
        locks: LockRepository,
        audit: AuditRepository,
        *,
        dependencies: DependencyRepository,
        families: FamilyRepository,
    ) -> None:
        self._statements = statements
        self._families = families
        self._consequences = consequences
        self._dependencies = dependencies
        self._searches = searches
        self._locks = locks
        self._audit = audit

    async def versions(self, job_ids: Sequence[str], *, on: Connection | None = None) -> dict[str, str]:
        """Return the versions of those of the jobs that exist, by id."""
        rows = await self._statements.fetch("job_versions", list(job_ids), on=on)
        return {row["job_id"]: row["version"] for row in rows}

    async def change(self, batch: Batch) -> Changes:
        """Change the jobs of a batch whose states allow it, with a record; return the outcome of each.

        With families, a job counts as changed if any job of its family was.

        A job that a trigger or a constraint of the application refuses is left as it is, with its family.
        The other jobs of the batch are changed.

        The record and the rows of cancelled jobs name the author of the caller's context.

        Raises:
            StaleRunError: The last batch of the run did not end where this one begins.
            DatabaseUnavailableError: New jobs took unique keys of the batch in every round.
        """
        for _ in range(MAX_ROUNDS):
            # A retried job needs its unique key again. A new job may take this key after the statement has
            # looked for it, so that the transaction fails. The next round sees that job.
            with suppress(UniqueKeyTakenError), detecting_taken_keys():
                try:
                    return await self._statements.run_retrying(partial(self._change, batch))
                except REFUSALS as error:
                    if constraint_of(error) == KEY_INDEX or not is_refused_change(error):
                        raise
                # A trigger or a constraint of the application refuses at least one of the jobs, or the
                # record. In the latter case, the second execution is refused too, and its error is raised.
                return await self._statements.run_retrying(partial(self._change, batch, is_divided=True))
        raise DatabaseUnavailableError(
            f"jobs with the unique keys of this batch were inserted {MAX_ROUNDS} times while it was retried"
        )

    async def _change(self, batch: Batch, transaction: Transaction, *, is_divided: bool = False) -> Changes:
        """Change the jobs of a batch in a transaction, which also has the record and the messages.

        Return the outcome for each job of the batch, in their order. ``is_divided`` is whether jobs that the
        application refuses are left out; otherwise its error is raised.
        """
        connection = transaction.connection
        # All jobs of the families are locked first, because they are locked in an order of their own.
        members: Sequence[Member] = ()
        if batch.children:
            members = await self._families.lock(batch.job_ids, transaction, for_retry=batch.action == "retry")
        # The jobs were searched before they were locked, and may have changed in between. While they are
        # locked they cannot change, so the conditions are examined once more.
        rows = await self._statements.fetch("lock_batch", list(batch.job_ids), on=connection)
        matching_ids = await self._still_searched(batch, [row["job_id"] for row in rows], connection)
        effects, refusals = _Effects(), dict[str, Exception]()
        if matching_ids and is_divided:
            effects, refusals = await self._act_on_accepted(batch, matching_ids, members, transaction)
        elif matching_ids:
            effects = await self._act(batch, matching_ids, members, transaction)
        if effects.job_ids or batch.subject is not None:
            details = {**_job_details(effects.job_ids), **batch.details}
            subject = batch.subject
            # The subject of the record is the run, or else the only changed job, or that of the only family.
            if subject is not None:
                details |= await self._advance(subject, batch, len(effects.job_ids), connection)
            elif len(effects.job_ids) == 1:
                subject = next(iter(effects.job_ids))
            elif batch.children and len(matching_ids) == 1:
                subject = matching_ids[0]
            await self._audit.record(f"{batch.action}_jobs", subject, on=connection, **details)
        if effects.messages:
            await self._locks.notify(effects.messages, connection=connection)
        rows_by_id = {row["job_id"]: row for row in rows}
        changed_ids, matching_id_set = frozenset(effects.job_ids), frozenset(matching_ids)
        changed_families = _families_with(changed_ids, matching_id_set, members)
        changes = []
        for job_id in batch.job_ids:
            # A job that still matched, and was not changed, has a state that does not allow the change.
            outcome = ChangeOutcome.REFUSED if job_id in matching_id_set else ChangeOutcome.SKIPPED
            if job_id in changed_ids or job_id in changed_families:
                outcome = ChangeOutcome.DONE
            # A job without a row does not exist.
            row = rows_by_id.get(job_id)
            name = None if row is None else row["job_name"]
            status = None if row is None else JobStatus(row["status"])
            refusal = refusals.get(job_id) if outcome is ChangeOutcome.REFUSED else None
            changes.append(JobChange(job_id, name, status, outcome, refusal))
        return Changes(changes, len(changed_ids.difference(batch.job_ids)))

    async def _advance(
        self, run_id: str, batch: Batch, changed: int, connection: Connection
    ) -> Mapping[str, Any]:
        """Write the progress of the run after this batch; return the values for the record of the batch.

        ``changed`` is the number of jobs that this batch changed. ``done`` in the record is the number of
        jobs that earlier batches changed.

        Raises:
            StaleRunError: The cursor of the run is not where this batch begins.
        """
        # The statement returns the number of jobs that the run has changed with this batch. It returns None
        # if the row of the run has another cursor.
        done_jobs = await self._statements.value(
            "advance_run",
            run_id,
            batch.after,
            batch.next,
            changed,
            batch.searched,
            batch.total_estimate,
            self._statements.author.actor,
            self._statements.now,
            on=connection,
        )
        if done_jobs is None:
            raise StaleRunError(
                f"another call has continued the bulk run {run_id!r} since this one read how far it was; "
                "continue at the next of its newest record in the audit"
            )
        return {"done": done_jobs - changed, "searched": batch.searched, "next": batch.next}

    async def _still_searched(
        self, batch: Batch, job_ids: Sequence[str], connection: Connection
    ) -> Sequence[str]:
        """Return the locked jobs that still fulfil the conditions of the batch, and have its versions."""
        if job_ids and batch.versions is not None:
            versions = await self.versions(job_ids, on=connection)
            job_ids = [job_id for job_id in job_ids if versions[job_id] == batch.versions.get(job_id)]
        if not job_ids or (not batch.conditions and batch.matches is None):
            return job_ids
        # All of these ids are examined, and all of them may match.
        scan = Scan(batch.conditions, limit=len(job_ids), rows=len(job_ids))
        examined = await self._searches.ids(job_ids, scan, on=connection)
        return [job.job_id for job, _ in examined.jobs if batch.matches is None or batch.matches(job)]

    async def _fulfilling(
        self, conditions: Sequence[Condition], job_ids: Sequence[str], transaction: Transaction
    ) -> Sequence[str]:
        """Return those of the jobs that fulfil conditions."""
        if not job_ids or not conditions:
            return job_ids
        scan = Scan(conditions, limit=len(job_ids), rows=len(job_ids))
        examined = await self._searches.ids(job_ids, scan, on=transaction.connection)
        return [job.job_id for job, _ in examined.jobs]

    async def _act_on_accepted(
        self, batch: Batch, job_ids: Sequence[str], members: Sequence[Member], transaction: Transaction
    ) -> tuple[_Effects, dict[str, Exception]]:
        """Change these jobs, but none that a trigger or a constraint of the application refuses.

        If the jobs are refused, each half of them is changed in a savepoint of its own, until the refused
        jobs are alone. Return the effects, and the errors of the refused jobs by id.
        """
        effects, refusals = _Effects(), dict[str, Exception]()
        parts = deque([job_ids])
        while parts:
            part = parts.popleft()
            try:
                async with self._statements.transaction(within=transaction) as savepoint:
                    part_effects = await self._act(batch, part, members, savepoint)
                    # Checks that the application has deferred to the commit are made now, so that a refused
                    # job undoes its own savepoint only.
                    await self._statements.execute("apply_deferred", on=savepoint.connection)
            except REFUSALS as error:
                if constraint_of(error) == KEY_INDEX or not is_refused_change(error):
                    raise
                if len(part) == 1:
                    refusals[part[0]] = error
                else:
                    parts += [part[: len(part) // 2], part[len(part) // 2 :]]
            else:
                effects = effects.added(part_effects)
        return effects, refusals

    async def _act(
        self, batch: Batch, job_ids: Sequence[str], members: Sequence[Member], transaction: Transaction
    ) -> _Effects:
        """Cancel, retry, delete or move these jobs, as the batch states, some of them with their families.

        ``members`` are the jobs of the families. Return the jobs that were changed, and the messages to the
        workers that follow.
        """
        if batch.children:
            return await self._act_on_families(batch, job_ids, members, transaction)
        connection, now = transaction.connection, self._statements.now
        match batch.action:
            case "cancel":
                return await self._cancel(job_ids, transaction)
            case "retry":
                return _effects_of_due(await self._retry(job_ids, batch.from_step, transaction))
            case "delete":
                rows = await self._statements.fetch("delete_jobs", job_ids, on=connection)
                return _Effects([row["job_id"] for row in rows if row["changed"]])
            case "move":
                rows = await self._statements.fetch(
                    "move_jobs", job_ids, batch.to, batch.by_s, now, on=connection
                )
                return _effects_of_due([row for row in rows if row["changed"]])

    async def _act_on_families(
        self, batch: Batch, job_ids: Sequence[str], members: Sequence[Member], transaction: Transaction
    ) -> _Effects:
        """Cancel or retry these jobs with what the conditions allow of their families, which are locked."""
        family_ids = {member.job_id for member in descendants(job_ids, members)} - {*job_ids}
        visible_ids = {*await self._fulfilling(batch.family_conditions, sorted(family_ids), transaction)}
        chosen = [member for member in members if member.job_id in visible_ids.union(job_ids)]
        if batch.action == "cancel":
            unfinished_ids = dict.fromkeys(member.job_id for member in chosen if not member.has_ended)
            return await self._cancel(list(unfinished_ids), transaction)
        return _effects_of_due(await self._retry_families(job_ids, chosen, transaction))

    async def _retry_families(
        self, job_ids: Sequence[str], members: Sequence[Member], transaction: Transaction
    ) -> list[asyncpg.Record]:
        """Retry locked families, and return the rows of the retried jobs.

        A family is left as it is if one of its jobs cannot be retried.
        """
        try:
            async with self._statements.transaction(within=transaction) as savepoint:
                return await self._families.retry(members, savepoint)
        except (BusyFamilyError, JobConflictError):
            # One family suffices for that, so each is retried alone.
            if len(job_ids) == 1:
                return []
        rows: list[asyncpg.Record] = []
        for job_id in job_ids:
            ids = {job_id, *(member.job_id for member in descendants([job_id], members))}
            family = [member for member in members if member.job_id in ids]
            rows += await self._retry_families([job_id], family, transaction)
        return rows

    async def _retry(
        self, job_ids: Sequence[str], from_step: str | None, transaction: Transaction
    ) -> list[asyncpg.Record]:
        """Retry jobs, and return the rows of the retried ones.

        If a step is given, only jobs that have stored it are retried, and this step and the later ones are
        deleted.
        """
        connection = transaction.connection
        if from_step is not None:
            steps = await self._statements.fetch("find_steps", job_ids, from_step, on=connection)
            job_ids = [row["job_id"] for row in steps]
        last_jobs = await self._dependencies.lock_schedules(job_ids, transaction)
        rows = await self._statements.fetch("retry_jobs", job_ids, self._statements.now, on=connection)
        retried = [row["job_id"] for row in rows]
        parents = [row["parent"] for row in rows]
        if from_step is not None:
            await self._statements.fetch("delete_steps_from", retried, from_step, on=connection)
        # A job whose step waits for children has to wait again for those that were retried.
        await self._dependencies.wait_again(retried, parents, connection)
        await self._dependencies.queue_retried(retried, last_jobs, transaction)
        return rows

    async def _cancel(self, job_ids: Sequence[str], transaction: Transaction) -> _Effects:
        """Cancel jobs, and apply the consequences of their ends for the jobs that wait for them.

        The jobs that wait are unblocked, for example.
        """
        now, reason = self._statements.now, f"cancelled by {self._statements.author.actor}"
        # The statement also cancels jobs whose end has consequences, because these are applied below.
        with_consequences = True
        rows = await self._statements.fetch(
            "cancel_jobs",
            job_ids,
            now,
            reason,
            *JobFilters(),
            with_consequences,
            on=transaction.connection,
        )
        changed = [row for row in rows if row["changed"]]
        await self._consequences.run([row["job_id"] for row in changed], transaction)
        # A worker that runs a job publishes the event itself.
        transaction.events.extend(
            JobCancelled(row["job_id"], row["job_name"], row["attempt"], reason=BY_CALLER)
            for row in changed
            if row["worker_id"] is None
        )
        messages = _heartbeat_requests(row["worker_id"] for row in changed)
        return _Effects([row["job_id"] for row in changed], messages)


def _families_with(
    changed_ids: Collection[str], job_ids: Collection[str], members: Sequence[Member]
) -> set[str]:
    """Return those of the jobs in whose families jobs were changed."""
    parents = {member.job_id: member.parent_id for member in members if member.parent_id is not None}
    families: set[str] = set()
    for changed_id in changed_ids:
        job_id: str | None = changed_id
        while job_id is not None:
            if job_id in job_ids:
                families.add(job_id)
            job_id = parents.get(job_id)
    return families


def _effects_of_due(rows: Sequence[asyncpg.Record]) -> _Effects:
    """Return the effects of a change that made these jobs due at another time.

    The message lets workers look for due jobs at the earliest of the new due times.
    """
    if not rows:
        return _Effects()
    first_due_at = min(row["execution_time"] for row in rows)
    return _Effects([row["job_id"] for row in rows], [due_message("", first_due_at)])


def _heartbeat_requests(worker_ids: Iterable[str | None]) -> list[str]:
    """Return the messages that request heartbeats, by which workers detect their cancelled jobs.

    A cancelled job without a worker has None as the id of its worker.
    """
    ids = {worker_id for worker_id in worker_ids if worker_id is not None}
    return [
        f"{HEARTBEAT_REQUEST} {worker_id}"
        for worker_id in sorted(ids)
        if len(worker_id.encode()) <= MAX_WORKER_ID_BYTES
    ]


def _job_details(job_ids: Collection[str]) -> dict[str, Any]:
    """Return the number of jobs, and as many of their ids as a record of the audit may have."""
    recorded_ids: list[str] = []
    size_bytes = 0
    for job_id in job_ids:
        size_bytes += len(job_id.encode())
        if size_bytes > MAX_RECORDED_BYTES:
            break
        recorded_ids.append(job_id)
    return {"count": len(job_ids), "jobs": recorded_ids}
