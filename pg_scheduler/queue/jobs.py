"""Read and change jobs."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from pg_scheduler.base.lazy_imports import LazyModule
from pg_scheduler.base.status import JobStatus
from pg_scheduler.database.author import with_record
from pg_scheduler.database.faults import REFUSALS, SuppressedChangeError, is_refusal
from pg_scheduler.database.records import job_from
from pg_scheduler.database.refused_rows import RefusedRows
from pg_scheduler.database.session import Connection, Record
from pg_scheduler.database.statements import CallersTransaction, Repository, Statements, Transaction
from pg_scheduler.errors import JobConflictError
from pg_scheduler.events.types import BY_CALLER, EXPIRED
from pg_scheduler.jobs.deadlines import error_at, instant_of
from pg_scheduler.jobs.error_text import normalized
from pg_scheduler.jobs.model import Job, JobCounts, Page
from pg_scheduler.jobs.rows import EPOCH
from pg_scheduler.queue.consequences import Consequences
from pg_scheduler.queue.dependencies import DependencyRepository
from pg_scheduler.queue.families import BusyFamilyError, FamilyRepository, descendants
from pg_scheduler.queue.uncounted import UncountedJobs
from pg_scheduler.queue.unique_keys import (
    ENDED,
    MAX_ROUNDS,
    UniqueKeyRepository,
    UniqueKeyTakenError,
    detecting_taken_keys,
)

if TYPE_CHECKING:
    from pg_scheduler.jobs import outcome as outcomes
else:
    outcomes = LazyModule("pg_scheduler.jobs.outcome")


MAX_EXAMINED_ROWS: Final = 20_000
"""The maximum number of rows that one call with a metadata filter examines."""

MAX_CANCELLED_JOBS: Final = 1000
"""The maximum number of jobs that one statement cancels."""

SET_BY_CALLER: Final = "status set by a caller"

PAST_DEADLINE: Final = normalized(outcomes.describe(error_at(EPOCH)))
"""The text of all jobs that have passed their deadlines, whose errors name the instants."""

COUNT_OF_OVERRUNS: Final = "the count of jobs that have passed their deadlines"
"""What a statement writes in addition, as the log names it."""

COUNT_OF_EXPIRED: Final = "the count of expired jobs"
"""What a statement writes in addition, as the log names it."""


class JobFilters(NamedTuple):
    """The values that selected jobs have; None for any value.

    Attributes:
        statuses: One of these statuses.
        names: One of these names of a task. A caller gave the first one, which may also be the name that
            pg-scheduler 0.2 gave the job.
        worker_id: The worker that runs them, or ran them last.
        due_from: The first due time.
        due_before: The due time before which they are due.
        metadata: JSON text that their metadata contain.
    """

    statuses: Sequence[str] | None = None
    names: Sequence[str] | None = None
    worker_id: str | None = None
    due_from: datetime | None = None
    due_before: datetime | None = None
    metadata: str | None = None


class CancelledJob(NamedTuple):
    """A job that was cancelled with others, and the worker that ran it and must be notified, if any."""

    job_id: str
    job_name: str
    attempt: int
    worker_id: str | None


class TouchedJob(NamedTuple):
    """A job that was to be deleted or moved.

    Attributes:
        job_id: Its id.
        status: Its status before.
        changed: Whether it was deleted or moved.
        execution_time: When it is due, if it was moved.
    """

    job_id: str
    status: str
    changed: bool
    execution_time: datetime | None = None


class OverdueName(NamedTuple):
    """A name of overdue jobs.

    Attributes:
        name: The name.
        jobs: The number of its overdue jobs that were counted.
        due_since: When the first of them was due.
        busy_workers: Other workers without a free slot, which may have registered the name.
    """

    name: str
    jobs: int
    due_since: datetime
    busy_workers: int


class OverrunJob(NamedTuple):
    """A pending job that has passed its deadline, and has failed.

    Attributes:
        error: The error of its row.
        deadline: The deadline; None if its text, which was written by hand, is no instant.
    """

    job_id: str
    job_name: str
    attempt: int
    error: str
    deadline: datetime | None


class ExpiredJob(NamedTuple):
    """A job that expired before a worker could claim it."""

    job_id: str
    job_name: str
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class StatusChange:
    """Whether a job was changed, and the worker to notify: the one that ran it; None if none did.

    Attributes:
        due: When the job is due if its status was set; None if the job is unchanged or was cancelled.
    """

    changed: bool
    worker_id: str | None = None
    job_name: str = field(default="", compare=False)
    attempt: int = field(default=0, compare=False)
    due: datetime | None = field(default=None, compare=False)


class Uncorrected(NamedTuple):
    """What a correction of due times may have left."""

    is_left: bool
    """Whether rows with wrong due times are left, because other transactions have locked them."""
    is_open: bool
    """Whether a transaction is open that began while the server's clock was ahead."""
    oldest: int
    """The id of the oldest transaction that has written and is open."""
    newest: int
    """The id of the newest transaction: the one that read these values."""


class JobRepository(Repository):
    """The statements by which callers read and change jobs."""

    def __init__(
        self,
        statements: Statements,
        consequences: Consequences,
        dependencies: DependencyRepository,
        unique_keys: UniqueKeyRepository,
        uncounted_jobs: UncountedJobs,
        *,
        families: FamilyRepository,
    ) -> None:
        super().__init__(statements)
        self._families = families
        self._consequences = consequences
        self._dependencies = dependencies
        self._unique_keys = unique_keys
        self._uncounted_jobs = uncounted_jobs
        self._refused_corrections = RefusedRows("due time of job {} from a wrong clock not corrected")
        self._refused_overruns = RefusedRows("job {} not failed at its deadline")
        self._refused_entries = RefusedRows(
            "entry {} about the deadline of a job not deleted", are_jobs=False
        )
        self._vacuumed_entries = RefusedRows(
            "entry {} about the deadline of a job not deleted", are_jobs=False, by_pass=True
        )
        self._refused_expiries = RefusedRows("job {} not expired")

    # -- change ----------------------------------------------------------------------------------------

    async def cancel(
        self, job_id: str, reason: str = BY_CALLER, within: Connection | Transaction | None = None
    ) -> StatusChange:
        """Cancel a pending or running job, for a reason that its row states."""
        if within is not None and not isinstance(within, Transaction):
            # The caller's transaction may have added jobs that wait for this one. Without this statement,
            # only its commit would mark this job, and the change below would see no consequences.
            await self._statements.fetch("mark_awaited", [job_id], on=within)
        return await self._change("cancel_job", job_id, self._statements.now, reason, within=within)

    async def cancel_within(self, transaction: Transaction, job_id: str, reason: str) -> StatusChange:
        """Cancel a job as ``cancel()`` does, in a transaction that has locked it and uses no savepoints."""
        # The last parameter, True, is whether this transaction applies the consequences afterwards.
        change = partial(self._statements.fetch, "cancel_job", job_id, self._statements.now, reason, True)
        return _status_change(await self._change_with_others(change, job_id, transaction))

    async def cancel_family(
        self, job_id: str, reason: str, within: Connection | None = None
    ) -> list[CancelledJob]:
        """Cancel a job and all that is unfinished of its family; return those that were cancelled.

        Raises:
            SuppressedChangeError: A trigger, a rule or a policy of the application keeps one as it is.
        """

        async def cancel(transaction: Transaction) -> list[CancelledJob]:
            members = await self._families.lock([job_id], transaction, for_retry=False)
            ids = [member.job_id for member in members if not member.has_ended]
            cancelled = await self._cancel_locked(ids, reason, JobFilters(), transaction)
            if len(cancelled) < len(ids):
                raise SuppressedChangeError
            await self._consequences.follow(ids, transaction)
            return cancelled

        return await self._statements.run_retrying(cancel, within=within)

    async def _cancel_families(
        self, job_ids: Sequence[str], filters: JobFilters, reason: str, transaction: Transaction
    ) -> list[CancelledJob]:
        """Cancel those of the jobs that still match the filters, and what is unfinished of their families.

        The families of the other jobs are locked too, since locks are taken in one order.
        """
        members = await self._families.lock(job_ids, transaction, for_retry=False)
        cancelled = await self._cancel_locked(job_ids, reason, filters, transaction)
        matching_ids = {job.job_id for job in cancelled}
        unfinished_ids = {member.job_id for member in members if not member.has_ended} - matching_ids
        others = [
            member.job_id for member in descendants(matching_ids, members) if member.job_id in unfinished_ids
        ]
        cancelled += await self._cancel_locked(others, reason, JobFilters(), transaction)
        await self._consequences.follow([job.job_id for job in cancelled], transaction)
        return cancelled

    async def _cancel_locked(
        self, job_ids: Sequence[str], reason: str, filters: JobFilters, transaction: Transaction
    ) -> list[CancelledJob]:
        """Cancel those of the locked jobs that match the filters. The caller applies the consequences."""
        if not job_ids:
            return []
        on, now = transaction.connection, self._statements.now
        # As in cancel(): only the commit would mark jobs for which the caller's transaction has added others.
        if isinstance(transaction, CallersTransaction):
            await self._statements.fetch("mark_awaited", job_ids, on=on)
        # The last parameter, True, is whether the consequences are applied afterwards.
        rows = await self._statements.fetch("cancel_jobs", job_ids, now, reason, *filters, True, on=on)
        return [_cancelled_job(row) for row in rows if row["changed"]]

    async def retry_family(self, job_id: str, within: Connection | None = None) -> list[datetime]:
        """Retry a job, and what has failed, expired or been cancelled of its family.

        Return when each of the retried jobs is due. The list is empty, and nothing is changed, if none of
        them can be retried, or if the attempt of a cancelled one may still run.

        Raises:
            JobConflictError: Another unfinished job has the unique key of one of them.
        """

        async def retry(transaction: Transaction) -> list[datetime]:
            members = await self._families.lock([job_id], transaction, for_retry=True)
            rows = await self._families.retry(members, transaction)
            return [row["execution_time"] for row in rows]

        for _ in range(MAX_ROUNDS):
            # A new job may take the unique key of one of them after the statement has looked for it.
            with suppress(UniqueKeyTakenError), detecting_taken_keys():
                try:
                    return await self._statements.run_retrying(retry, within=within)
                except BusyFamilyError:
                    return []
        raise JobConflictError(job_id, ENDED)

    async def retry(self, job_id: str, connection: Connection | None = None) -> datetime | None:
        """Make a finished job due now, as if it had had no retries and crashes; return when it is due.

        The result is None, and nothing is changed, if there is no finished job with this id, or if it was
        cancelled and its attempt may still run.

        Raises:
            JobConflictError: Another unfinished job has its unique key.
        """
        fetch = partial(self._statements.fetch, "retry_job", job_id, self._statements.now)
        # The last parameter is whether the statement may also change the child of a step, and a job that may
        # wait for others again. If not, the statement returns such a job unchanged.
        retry_unlinked, retry_any = partial(fetch, False), partial(fetch, True)
        rows = await self._unique_keys.restart(
            job_id, partial(retry_unlinked, on=connection), within=connection
        )

        async def retry_linked(transaction: Transaction) -> list[Record]:
            """Retry the child of another job's step, or a job that may wait for other jobs again.

            A job of a schedule may have to wait for the last one.
            """
            on = transaction.connection
            last_jobs: Mapping[str, str | None] = {}
            if any(row["has_schedule"] for row in rows):
                last_jobs = await self._dependencies.lock_schedules([job_id], transaction)
            # Otherwise another job, for which this one waits, may end while the statement waits for the row.
            if any(row["may_wait"] for row in rows):
                await self._dependencies.lock_retried(job_id, transaction)
            linked_rows = await self._unique_keys.restart(job_id, partial(retry_any, on=on), within=on)
            await self._dependencies.wait_again([job_id], [row["parent"] for row in linked_rows], on)
            # Another transaction may have retried the job meanwhile, so that it has its place already.
            if linked_rows:
                await self._dependencies.queue_retried([job_id], last_jobs, transaction)
            return linked_rows

        # The statement has left such a job unchanged.
        if any(row["parent"] is not None or row["may_wait"] or row["has_schedule"] for row in rows):
            rows = await self._statements.run_retrying(retry_linked, within=connection)
        return rows[0]["due"] if rows else None

    async def retry_from(
        self, job_id: str, step: str, connection: Connection | None = None
    ) -> datetime | None:
        """Delete one of a job's stored steps and all later ones, and retry the job; see ``retry()``.

        Raises:
            JobConflictError: Another unfinished job has its unique key.
            ValueError: The job has not stored that step. Nothing is changed.
        """

        async def delete_and_retry(transaction: Transaction) -> datetime | None:
            on = transaction.connection
            due = await self.retry(job_id, on)
            if due is None:
                return None
            deleted = await self._statements.fetch("delete_steps_from", [job_id], step, on=on)
            # The error also undoes the retry, which belongs to the same transaction.
            if not deleted:
                raise ValueError(
                    f"job {job_id!r} has not stored a step {step!r}; pass the name of a stored one, which a "
                    "message is not, or no from_step= to continue at the first step that is missing"
                )
            return due

        return await self._statements.run_retrying(delete_and_retry, within=connection)

    async def set_status(
        self, job_id: str, status: JobStatus, lease_s: float, reason: str = SET_BY_CALLER
    ) -> StatusChange:
        """Set a status manually; ``running`` reserves the job for one lease.

        A job that ends without success and has no error gets the reason.

        Raises:
            JobConflictError: Another unfinished job has its unique key.
        """
        args = self._statements.now, lease_s, status.value, reason
        return await self._unique_keys.restart(job_id, lambda: self._change("set_status", job_id, *args))

    async def _change(
        self, name: str, job_id: str, *args: object, within: Connection | Transaction | None = None
    ) -> StatusChange:
        """Change one job by a statement, in a transaction if the change has consequences for other jobs.

        Args:
            name: The name of the statement. Its last parameter is whether the same transaction applies the
                consequences afterwards. If that is False, and the job has consequences, the statement returns
                the job without changing it.
            job_id: The job. Its id is the first parameter of the statement.
            args: The parameters of the statement between the first and the last one.
            within: The transaction of the caller, or one in progress; None for none.

        Raises:
            SuppressedChangeError: A trigger, a rule or a policy of the application keeps the job as it is.
        """
        connection = within.connection if isinstance(within, Transaction) else within
        statement = partial(self._statements.fetch, name, job_id, *args)
        change_alone, change_with_others = partial(statement, False), partial(statement, True)
        rows = await change_alone(on=connection)
        if rows and not rows[0]["changed"]:
            change = partial(self._change_with_others, change_with_others, job_id)
            rows = await self._statements.run_retrying(change, within=within)
        return _status_change(rows)

    async def _change_with_others(
        self, change: Callable[..., Awaitable[list[Record]]], job_id: str, transaction: Transaction
    ) -> list[Record]:
        """Change one job by a statement, and apply the consequences for others; return the changed rows."""
        rows = await change(on=transaction.connection)
        # This statement changes a job with consequences too, so only the application can keep it as it is.
        if rows and not rows[0]["changed"]:
            raise SuppressedChangeError
        await self._consequences.follow([job_id], transaction)
        # A child of a step may run again now, so the step of its parent waits for it again. Only set_status
        # returns the parent: a child that is cancelled had not ended.
        parents = [row.get("parent") for row in rows]
        await self._dependencies.wait_again([job_id], parents, transaction.connection)
        return rows

    async def cancel_next(
        self,
        after: str | None,
        filters: JobFilters,
        reason: str = BY_CALLER,
        within: Connection | None = None,
        *,
        children: bool = False,
    ) -> tuple[list[CancelledJob], str | None]:
        """Cancel the matching pending and running jobs among the next rows.

        Args:
            after: The id after which the rows begin; None for the first ones.
            filters: The jobs to cancel.
            reason: The reason that the rows state.
            within: The connection of a caller in a transaction; None for transactions of its own.
            children: Whether the families of these jobs are cancelled too.

        Returns:
            The cancelled jobs, and the id after which to continue; None at the end.
        """
        candidates = await self._statements.fetch(
            "find_unfinished", after, MAX_CANCELLED_JOBS, MAX_EXAMINED_ROWS, *filters, on=within
        )
        ids = [row["job_id"] for row in candidates if row["matches"]]
        # The statement ends after this number of matches, or after MAX_EXAMINED_ROWS. In the first case, the
        # next call begins after the last match.
        end = ids[-1] if len(ids) == MAX_CANCELLED_JOBS else _end_of(candidates)
        if not ids:
            return [], end
        if children:
            cancel_families = partial(self._cancel_families, ids, filters, reason)
            return await self._statements.run_retrying(cancel_families, within=within), end
        now, run = self._statements.now, self._statements.fetch_retrying
        # As in cancel(): only the commit would mark jobs for which the caller's transaction has added others.
        if within is not None:
            await self._statements.fetch("mark_awaited", ids, on=within)
        # As in _change(), the last parameter is whether the consequences are applied afterwards.
        rows = await run("cancel_jobs", ids, now, reason, *filters, False, on=within)
        # Jobs with consequences for others are unchanged so far.
        if linked_ids := [row["job_id"] for row in rows if not row["changed"]]:

            async def cancel(transaction: Transaction) -> list[Record]:
                """Cancel these jobs, and apply the consequences of their ends in the same transaction."""
                changed = await self._statements.fetch(
                    "cancel_jobs", linked_ids, now, reason, *filters, True, on=transaction.connection
                )
                await self._consequences.follow([row["job_id"] for row in changed], transaction)
                return changed

            rows += await self._statements.run_retrying(cancel, within=within)
        return [_cancelled_job(row) for row in rows if row["changed"]], end

    async def delete(self, job_ids: Collection[str]) -> list[TouchedJob]:
        """Delete jobs that do not run and for which nothing waits; return the jobs that existed."""
        rows = await self._statements.fetch_retrying("delete_jobs", list(job_ids))
        return [TouchedJob(*row) for row in rows]

    async def move(
        self,
        job_ids: Collection[str],
        *,
        to: datetime | None = None,
        by_s: float = 0,
        connection: Connection | None = None,
    ) -> list[TouchedJob]:
        """Change when pending jobs are due; return all of the jobs that exist, whether moved or not.

        The caller notifies the workers if a job is due soon.

        Args:
            job_ids: The jobs.
            to: The new time; None to move each job from its own due time.
            by_s: Seconds by which each job is moved, at most a century.
            connection: The transaction of a caller.
        """
        rows = await self._statements.fetch_retrying(
            "move_jobs", list(job_ids), to, by_s, self._statements.now, on=connection
        )
        return [TouchedJob(*row) for row in rows]

    async def keep(self, job_id: str) -> bool:
        """Let a pending job never expire, by removing its misfire grace time; return whether it had one."""
        return bool(await self._statements.fetch("keep_job", job_id))

    async def version(self, job_id: str) -> str | None:
        """Return a digest of the arguments and the priority of a job, for `change()` to notice other changes.

        It is None if the job does not exist, or cannot be changed.
        """
        version: str | None = await self._statements.value("job_version", job_id)
        return version

    async def change(self, job_id: str, version: str, task_data: str, priority: int) -> datetime | None:
        """Replace the arguments and the priority of a pending job.

        The caller notifies the workers if the job is due soon: it may not wait for a limit any more.

        Args:
            job_id: The job.
            version: What `version()` returned before the caller decided the change.
            task_data: The arguments, as a row stores them. The job keeps its metadata.
            priority: The priority, as a row stores it.

        Returns:
            When it is due; None if the job has another version by now, or cannot be changed.
        """
        args = job_id, version, task_data, priority
        due_at: datetime | None = await self._statements.value("change_job", *args)
        return due_at

    async def expire(
        self, worker_id: str, names: Sequence[str], limit: int, *, unexpiring_names: Collection[str] = ()
    ) -> list[ExpiredJob]:
        """Expire pending jobs past their misfire grace time, with the reason.

        A job that the table refuses to expire is left out for some time.

        Args:
            worker_id: The worker that expires them.
            names: The names of jobs that it can run.
            limit: The maximum number of jobs.
            unexpiring_names: The names whose jobs do not expire, because a pause suspends it.
        """
        args = worker_id, names, limit, self._statements.now
        try:
            # None stands for all jobs past their misfire grace time. The list has the ids of those that the
            # table has refused to expire, which are left out.
            rows = await self._expire(
                *args, None, list(self._refused_expiries.keys()), left_out=unexpiring_names
            )
        except REFUSALS as error:
            if not is_refusal(error):
                raise
            # The table has refused one of the jobs, so the statement has expired none of them.
            rows = await self._expire_accepted(*args, unexpiring_names)
        await self._consequences.apply([row["job_id"] for row in rows if row["has_consequences"]])
        return [
            ExpiredJob(row["job_id"], row["job_name"], row["attempt"], row["error_message"]) for row in rows
        ]

    async def end_past_deadlines(self, limit: int) -> list[OverrunJob]:
        """Fail pending jobs that have passed their deadlines, at most so many, with all consequences.

        A job that the table refuses to change is left out for some time.
        """
        args = self._statements.now, limit, PAST_DEADLINE
        rows = await with_record(
            COUNT_OF_OVERRUNS,
            lambda: self._refused_overruns.fetch("end_past_deadlines", *args, statements=self._statements),
            note_unrecorded=lambda rows: self._uncounted_jobs.note(
                {row["job_id"]: PAST_DEADLINE for row in rows}
            ),
        )
        await self._consequences.apply([row["job_id"] for row in rows if row["has_consequences"]])
        return [
            OverrunJob(
                row["job_id"],
                row["job_name"],
                row["attempt"],
                row["error_message"],
                instant_of(row["deadline"]),
            )
            for row in rows
        ]

    async def forget_deadlines(self, limit: int) -> int:
        """Delete entries about deadlines of jobs that have ended, at most so many; return their number."""
        return await self._refused_entries.number(
            "forget_deadlines", self._statements.now, limit, statements=self._statements
        )

    async def vacuum_deadlines(self, after: UUID | None, limit: int) -> UUID | None:
        """Delete old entries about deadlines that no unfinished job has.

        Args:
            after: The id of an entry; those with higher ids are looked at. None for the first ones.
            limit: The number of entries to look at.

        Returns:
            The id to pass as ``after`` to the next call; None if there is no further entry.
        """
        args = after, limit, self._statements.now
        rows = await self._vacuumed_entries.fetch("vacuum_deadlines", *args, statements=self._statements)
        return rows[-1]["last_id"] if rows else None

    async def _expire(self, *args: Any, left_out: Collection[str] = ()) -> list[Record]:
        """Expire jobs, and count them; count them later if the server refuses or delays that."""
        return await with_record(
            COUNT_OF_EXPIRED,
            lambda: self._statements.fetch("expire_jobs", *args, left_out=left_out),
            note_unrecorded=lambda rows: self._uncounted_jobs.note(
                {row["job_id"]: EXPIRED for row in rows}, JobStatus.EXPIRED
            ),
        )

    async def _expire_accepted(
        self,
        worker_id: str,
        names: Sequence[str],
        limit: int,
        now: datetime | None,
        unexpiring_names: Collection[str],
    ) -> list[Record]:
        """Expire those jobs that the table accepts, and leave the others out for some time."""
        late_rows = await self._statements.fetch(
            "find_late", limit, now, list(self._refused_expiries.keys()), left_out=unexpiring_names
        )

        async def expire(ids: Sequence[str]) -> list[Record]:
            # Only the jobs of the first list expire. The second one is empty: none of them is left out.
            return await self._expire(worker_id, names, limit, now, list(ids), [])

        return await self._refused_expiries.change_parts([row["job_id"] for row in late_rows], expire)

    # -- read ------------------------------------------------------------------------------------------

    async def get_job(self, job_id: str, connection: Connection | None = None) -> Job | None:
        """Return the job, or None if it does not exist."""
        rows = await self._statements.fetch("get_job", job_id, on=connection)
        return job_from(rows[0], self._statements.codec) if rows else None

    async def get_jobs(self, job_ids: Collection[str]) -> list[Job]:
        """Return the jobs of those ids that exist."""
        rows = await self._statements.fetch("get_jobs", list(job_ids))
        return [job_from(row, self._statements.codec) for row in rows]

    async def list_jobs(
        self,
        *,
        after: str | None,
        statuses: Sequence[JobStatus] | None,
        names: Sequence[str] | None,
        worker_id: str | None,
        due_from: datetime | None,
        due_before: datetime | None,
        limit: int,
        metadata: str | None = None,
    ) -> Page[Job]:
        """Return a page of jobs in the order of their ids.

        With ``metadata``, only a bounded number of rows is read, so the page may have fewer jobs than asked
        for, although others follow.
        """
        status_values = None if statuses is None else [status.value for status in statuses]
        filters = JobFilters(status_values, names, worker_id, due_from, due_before, metadata)
        if metadata is not None:
            return await self._find_jobs(after, limit, filters)
        # The metadata is the last filter, and the only one that this statement does not know.
        filters_in_columns = filters[: JobFilters._fields.index("metadata")]
        # One row more than the page shows whether another page follows.
        rows = await self._statements.fetch("list_jobs", after, *filters_in_columns, limit + 1)
        jobs = [job_from(row, self._statements.codec) for row in rows[:limit]]
        has_next_page = len(rows) > limit
        return Page(jobs, next=jobs[-1].job_id if has_next_page else None)

    async def _find_jobs(self, after: str | None, limit: int, filters: JobFilters) -> Page[Job]:
        """Return a page of jobs with some metadata, among a bounded number of rows.

        The statement returns the jobs that match. If it has examined as many rows as it may, it also returns
        the last of these rows, even if that does not match, because the next page begins after it.
        """
        rows = await self._statements.fetch("find_jobs", after, limit + 1, MAX_EXAMINED_ROWS, *filters)
        jobs: list[Job] = []
        for row in rows:
            # The statement adds two columns to those of a job.
            values = dict(row)
            del values["place"]
            if values.pop("matches"):
                jobs.append(job_from(values, self._statements.codec))
        if len(jobs) > limit:
            # The last job only shows that another page follows.
            return Page(jobs[:limit], next=jobs[limit - 1].job_id)
        return Page(jobs, next=_end_of(rows))

    async def count_jobs(self, names: Sequence[str] | None) -> JobCounts:
        """Return the number of jobs in each status: of all jobs, or of those with one of these names."""
        rows = await self._statements.fetch("count_jobs", names)
        return JobCounts(**{row["status"]: row["count"] for row in rows})

    async def statuses_of(
        self, job_ids: Collection[str], *, connection: Connection | None = None
    ) -> dict[str, JobStatus]:
        """Return the statuses of those ids that exist."""
        rows = await self._statements.fetch("statuses_of", list(job_ids), on=connection)
        return {row["job_id"]: JobStatus(row["status"]) for row in rows}

    async def free_fire_times(
        self, job_ids: Collection[str], added_at: Mapping[str, datetime], connection: Connection
    ) -> set[str]:
        """Delete the cancelled jobs that keep schedules from enqueuing jobs with these ids; return their ids.

        A job that this schedule has enqueued stays, so a caller who cancels it gets no second one. So does a
        job of an earlier schedule with the same id, unless it was cancelled before a worker had taken it.

        Args:
            job_ids: The ids of the jobs of fire times.
            added_at: When the schedules were added, by their ids.
            connection: The transaction that inserts the jobs.
        """
        added_at_json = json.dumps({schedule_id: at.isoformat() for schedule_id, at in added_at.items()})
        # The server asks for the privilege to delete before it looks for rows, and most often there are none.
        obsolete = await self._statements.fetch("find_obsolete", list(job_ids), added_at_json, on=connection)
        if not obsolete:
            return set()
        obsolete_ids = [row["job_id"] for row in obsolete]
        # Another transaction may have changed some of them meanwhile. These are not deleted.
        rows = await self._statements.fetch("free_fire_times", obsolete_ids, added_at_json, on=connection)
        return {row["job_id"] for row in rows}

    async def read_revoked(self, job_ids: Collection[str]) -> dict[str, tuple[JobStatus, bool]]:
        """Return the status of each of these jobs that exists, and whether consequences wait for its attempt.

        A worker reads this for attempts that it has to stop. If a job was cancelled while its attempt runs,
        the jobs and schedules that depend on it wait until the attempt has ended.
        """
        rows = await self._statements.fetch("read_revoked", list(job_ids))
        return {row["job_id"]: (JobStatus(row["status"]), row["is_awaited"]) for row in rows}

    async def overdue_names(self, worker_id: str, names: Sequence[str], limit: int) -> list[OverdueName]:
        """Return the names of overdue jobs that a worker cannot run, the longest overdue first.

        Args:
            worker_id: The worker.
            names: The names of jobs that it can run.
            limit: Jobs of each priority that are read, the oldest first.
        """
        return await self._rows(OverdueName, "overdue_names", self._statements.now, names, limit, worker_id)

    async def correct_due_times(self, limit: int) -> int:
        """Correct due times that the server's clock gave before it was set back; return how many.

        Suspended jobs wait until times that their steps store, so these are corrected too.
        """
        now = self._statements.now
        refused, statements = self._refused_corrections, self._statements
        # This corrects the times that the steps store. They are not counted.
        await refused.fetch("correct_waits", now, limit, statements=statements)
        return await refused.number("correct_due_times", now, limit, statements=statements)

    async def find_uncorrected(self) -> Uncorrected:
        """Return what `correct_due_times()` may have left; this takes no lock."""
        (row,) = await self._rows(Uncorrected, "find_uncorrected", self._statements.now)
        return row

    async def waiting_names(self) -> list[str]:
        """Return the names of pending jobs."""
        return [row[0] for row in await self._statements.fetch("waiting_names")]


def _status_change(rows: Sequence[Record]) -> StatusChange:
    """Return what a statement that changes one job has changed, from its only row."""
    # The statement has found no job that it may change.
    if not rows:
        return StatusChange(False)
    (row,) = rows
    return StatusChange(True, row["worker_id"], row["job_name"], row["attempt"], row.get("due"))


def _end_of(rows: Sequence[Record]) -> str | None:
    """Return the id of the last examined row if the statement examined as many as it may; else None.

    ``place`` is the number of a row among those that were examined, counted from 1.
    """
    if rows and rows[-1]["place"] == MAX_EXAMINED_ROWS:
        last_id: str = rows[-1]["job_id"]
        return last_id
    return None


def _cancelled_job(row: Record) -> CancelledJob:
    return CancelledJob(row["job_id"], row["job_name"], row["attempt"], row["worker_id"])
