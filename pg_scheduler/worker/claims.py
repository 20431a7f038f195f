"""Claim jobs, and release claims that were lost."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias

from pg_scheduler.base.sqltext import qualify
from pg_scheduler.base.status import JobStatus
from pg_scheduler.database.author import with_record
from pg_scheduler.database.faults import REFUSALS, ROW_ERRORS, is_lock_timeout, is_locked_out, is_refusal
from pg_scheduler.database.options import DIVIDED_LOCK_TIMEOUT_MS, LOCK_TIMEOUT_MS
from pg_scheduler.database.refused_rows import RefusedRows
from pg_scheduler.database.session import Connection, Record, transact
from pg_scheduler.database.statements import Statements, Transaction
from pg_scheduler.errors import DatabaseUnavailableError, PayloadError
from pg_scheduler.events.types import EXPIRED
from pg_scheduler.jobs.error_text import normalized
from pg_scheduler.jobs.model import JobPriority
from pg_scheduler.jobs.outcome import RELEASE, describe
from pg_scheduler.jobs.rows import Claim
from pg_scheduler.queue.jobs import COUNT_OF_EXPIRED
from pg_scheduler.queue.uncounted import UncountedJobs
from pg_scheduler.worker.outcome_statements import ResultRepository
from pg_scheduler.worker.refused_claims import UnclaimableJob

PRIORITY_LEVELS: Final = {priority.db_value: level for level, priority in enumerate(JobPriority)}
"""The position of each priority in a claim position, by its number in the database; the most urgent first."""

ClaimPosition: TypeAlias = Sequence[datetime | None]
"""For each priority, the instant before which no job is left to claim; None if that is unknown."""

FROM_THE_START: Final[ClaimPosition] = (None,) * len(PRIORITY_LEVELS)

NO_IDS: Final = ("",) * len(PRIORITY_LEVELS)
"""For each priority, the job id before which no job is left to claim at that instant."""

CLAIM_COLUMNS: Final = len(Claim._fields)
UNREADABLE: Final = "the row of this job cannot be read ({}); cancel or delete it, and schedule the job again"
MAX_ROW_BYTES: Final = 2**24 + 2**17
"""The sum of the limits of the table for arguments and names. Rows of earlier releases may exceed it."""
MAX_LONG_WAITS: Final = 3
"""How many trial claims of jobs of one name may wait for a lock of a trigger, until the usual lock timeout.
The other jobs of that name probably wait for the same transaction."""

SHORT_LOCK_TIMEOUT_MS: Final = 2
"""The lock timeout of the trial claims of the other jobs."""

MAX_WAITS: Final = 50
"""How many waiting jobs a search finds at most. Then it ends, because it locks the rows of due jobs."""

MAX_SEARCHED: Final = 50
"""How many jobs of each priority a search examines at most, once many are left out. It examines as many as
are left out already, and at least as many as the claim that failed may have read."""

START_ORDER: Final = attrgetter("priority", "execution_time", "job_id")
"""The order in which jobs start. The statement of a claim returns its rows in no order. Ids compare byte by
byte, as in the index."""


@dataclass(frozen=True, slots=True)
class ExchangeResult:
    """The result of ``exchange()``, which writes completions and claims jobs.

    Attributes:
        jobs: Claimed jobs, in the order in which they start.
        expired: Jobs that were found past their misfire grace time.
        due_in: Seconds until the next job of a known name is due; negative if it is due and could not be
            claimed, None if there is none, or if as many jobs were claimed as asked for.
        refused: Ids of completions that ``settle()`` has to decide: the job is lost, its end has
            consequences, or its row is locked.
        silence: Whether the liveness lock of another worker is free.
        crashed: The id of the claimed or expired crashed job; None if there is none.
        read: The number of entries of the claim index that were read, with the entries of dead rows; 0 if
            they were not counted.
        at: The server's time; None after a cheaper claim.
    """

    jobs: list[Claim]
    expired: list[Claim]
    due_in: float | None
    refused: set[str] = field(default_factory=set)
    silence: bool = False
    crashed: str | None = None
    read: int = field(default=0, compare=False)
    at: datetime | None = field(default=None, compare=False)


class Overlooked(NamedTuple):
    """The result of a search in front of the position from which jobs are claimed.

    Attributes:
        due: When the first claimable job there is due; None if there is none.
        read: The number of index entries that the search read.
    """

    due: datetime | None
    read: int


class UnreadableJob(NamedTuple):
    """A job that failed because its row cannot be read."""

    job_id: str
    job_name: str
    attempt: int
    error: str
    exception: Exception


class Quarantine(NamedTuple):
    """The due jobs that no claim can contain.

    Attributes:
        unreadable: The jobs whose rows cannot be read. They have failed.
        refused: The jobs whose claim the table refuses, by id.
        waiting: The jobs whose claim waits, because a trigger needs a lock that another transaction holds, by
            id.
    """

    unreadable: list[UnreadableJob]
    refused: dict[str, UnclaimableJob]
    waiting: dict[str, UnclaimableJob]


class _TrialClaimError(Exception):
    """Rolls back a claim that was only an attempt."""


class ClaimRepository:
    """The statements by which workers claim and release jobs."""

    def __init__(
        self, statements: Statements, results: ResultRepository, uncounted_jobs: UncountedJobs
    ) -> None:
        self._statements = statements
        self._results = results
        self._uncounted_jobs = uncounted_jobs
        self._index: str | None = None
        self._unexplained = RefusedRows("reason of the expiry of job {} not written", is_retried=False)

    async def exchange(
        self,
        worker_id: str,
        names: Sequence[str],
        limit: int,
        *,
        completed: Sequence[Claim] = (),
        keep: bool = True,
        since: ClaimPosition = FROM_THE_START,
        after: Sequence[str] = NO_IDS,
        crashed: bool = True,
        isolated_from: int = 1,
        counts: bool = False,
        left_out: Collection[str] = (),
    ) -> ExchangeResult:
        """Write completions and claim due jobs, in one round trip.

        No part of it waits long for a locked row.

        Args:
            worker_id: The worker.
            names: The names of jobs that it can run.
            limit: The maximum number of jobs to claim.
            completed: The attempts that completed, each job once. All have the same attempt number.
            keep: Whether to keep the rows of completed jobs; otherwise they are deleted.
            since: For each priority, the due time at which the search for due jobs begins.
            after: For each priority, the id at which it begins, among the jobs due at that instant.
            crashed: Whether to claim a crashed job. One statement claims at most one such job.
            isolated_from: A job counts as crashed if at least so many workers died while they ran it.
            counts: Whether to count the index entries that the claim reads.
            left_out: The ids of jobs that are not claimed, because the table refuses that.
        """
        now = self._statements.now
        ids = [claim.job_id for claim in completed]
        attempt = completed[0].attempt if completed else 0
        # The statement counts the entries of the index that it is given, and counts nothing without one.
        index = (self._index or await self._claim_index()) if counts else None

        async def send(completed_ids: Sequence[str], attempt: int) -> list[Record]:
            """Send the statement, with these completions; the last row is about the whole exchange."""
            return await self._statements.fetch(
                "exchange_jobs",
                worker_id,
                names,
                limit,
                now,
                completed_ids,
                attempt,
                *since,
                keep,
                after,
                crashed,
                index,
                isolated_from,
                left_out=left_out,
                deletes=not keep,
            )

        unwritten: set[str] = set()
        try:
            rows = await send(ids, attempt)
        except DatabaseUnavailableError as fault:
            if not (ids and is_lock_timeout(fault)):
                raise
            # A trigger made a completion or a claim wait for a lock. The completions are written first, and
            # then the claim is sent without them.
            unwritten = await self.complete(worker_id, completed, keep=keep)
            rows = await send([], 0)
        except REFUSALS as error:
            if not (ids and is_refusal(error)):
                raise
            # The table refuses a completion or a claim. The claim is sent without the completions, which the
            # caller then writes by settle(). If the claim is what the table refuses, it fails again.
            unwritten = {*ids}
            rows = await send([], 0)
        # The last row has no job. It has what concerns the whole exchange.
        totals = rows.pop()
        jobs: list[Claim] = []
        expired: list[Claim] = []
        for row in rows:
            # The columns of a row begin with those of a claim.
            claim = Claim._make(row[:CLAIM_COLUMNS])
            if row["expired"]:
                expired.append(claim)
            else:
                jobs.append(claim)
        jobs.sort(key=START_ORDER)
        refused = unwritten.union(totals["refused"] or ())
        # The last row belongs to no job, and its column of the due time has the server's time instead.
        return ExchangeResult(
            jobs,
            expired,
            due_in=totals["due"],
            refused=refused,
            silence=totals["silence"],
            crashed=totals["crashed"],
            read=totals["read"] or 0,
            at=totals["execution_time"],
        )

    async def find_claimable(
        self,
        names: Sequence[str],
        since: ClaimPosition,
        after: Sequence[str],
        *,
        crashed: bool = True,
        isolated_from: int = 1,
    ) -> Overlooked:
        """Return when the first job is due that claims overlook, because it lies before their position.

        Args:
            names: The names of jobs that the worker can run.
            since: For each priority, the due time at which claims begin.
            after: For each priority, the id at which claims begin, among the jobs due at that instant.
            crashed: Whether to find crashed jobs too.
            isolated_from: A job counts as crashed if at least so many workers died while they ran it.
        """
        rows = await self._statements.fetch(
            "find_claimable",
            names,
            crashed,
            isolated_from,
            *since,
            after,
            self._index or await self._claim_index(),
        )
        (row,) = rows
        return Overlooked(row["due"], row["read"] or 0)

    async def _claim_index(self) -> str:
        """Return the name of the index that claims read, with its schema, and keep it for later calls."""
        self._index = qualify("{schema}scheduled_jobs_claim", await self._statements.schema())
        return self._index

    async def claim(
        self,
        worker_id: str,
        names: Sequence[str],
        limit: int,
        *,
        crashed: bool = True,
        isolated_from: int = 1,
    ) -> ExchangeResult:
        """Claim due jobs from the earliest due time on, at half the cost of ``exchange()``.

        Expired and crashed jobs are left to ``exchange()``, which also looks for dead workers by their
        liveness locks.

        Args:
            worker_id: The worker.
            names: The names of jobs that it can run.
            limit: The maximum number of jobs to claim.
            crashed: Whether a crashed job counts as the next one that is due.
            isolated_from: A job counts as crashed if at least so many workers died while they ran it.
        """
        now = self._statements.now
        rows = await self._statements.fetch(
            "claim_jobs", worker_id, names, limit, now, crashed, isolated_from
        )
        # If nothing is claimed, there is one row without a job.
        jobs = [Claim._make(row[:CLAIM_COLUMNS]) for row in rows if row["job_id"] is not None]
        jobs.sort(key=START_ORDER)
        # There is always a row, and each row has the seconds until the next job is due.
        return ExchangeResult(jobs, [], rows[0]["due"])

    async def claim_one(self, worker_id: str, job_id: str) -> Claim | None:
        """Claim a pending job by hand, even before it is due.

        Return None if the job cannot be claimed now, or if the lease of the worker has expired.
        """
        now = self._statements.now
        rows = await self._statements.fetch("claim_one", worker_id, job_id, now)
        return Claim._make(rows[0]) if rows else None

    async def explain_expiry(
        self, worker_id: str, names: Sequence[str], expired: Iterable[Claim]
    ) -> Mapping[str, str]:
        """Write into the rows of expired jobs why they expired, and apply the consequences of their end.

        A row that the table refuses to change, or that another session has locked, keeps the general text
        that the exchange has written.

        Return the reasons that were written, by the ids of the jobs.

        Args:
            worker_id: The worker whose exchange has just found the jobs.
            names: The names of jobs that the exchange could claim.
            expired: The jobs.
        """

        async def explain(ids: Sequence[str]) -> list[Record]:
            """Write the reasons for some of the jobs, and count these jobs for people."""
            args = worker_id, names, list(ids), self._statements.now
            return await with_record(
                COUNT_OF_EXPIRED,
                lambda: self._statements.fetch("explain_expiry", *args),
                note_unrecorded=lambda rows: self._uncounted_jobs.note(
                    {row["job_id"]: EXPIRED for row in rows}, JobStatus.EXPIRED
                ),
            )

        rows = await self._unexplained.change_parts([claim.job_id for claim in expired], explain)
        await self._results.consequences.apply([row["job_id"] for row in rows if row["has_consequences"]])
        return {row["job_id"]: row["error_message"] for row in rows}

    async def complete(self, worker_id: str, completed: Sequence[Claim], *, keep: bool) -> set[str]:
        """Write completions of different jobs that have the same attempt number; return the rejected ids.

        The statement does not wait for locked rows, and rejects their completions. If the table refuses one
        completion, or if a trigger waits for a lock while one is written, all are rejected. The caller writes
        rejected completions by ``settle()``, which decides about each of them.
        """
        ids, attempt = [claim.job_id for claim in completed], completed[0].attempt
        now = self._statements.now
        try:
            rows = await self._statements.fetch(
                "complete_unlocked", worker_id, now, ids, attempt, keep, deletes=not keep
            )
        except REFUSALS as error:
            if not is_refusal(error):
                raise
            return {*ids}
        except DatabaseUnavailableError as fault:
            if not is_lock_timeout(fault):
                raise
            # The lock is one of a trigger or of the whole table, because the statement skips locked rows. If
            # the whole table is locked, the statement below raises the error: no completion can be written.
            async with self._statements.transaction(lock_timeout_ms=DIVIDED_LOCK_TIMEOUT_MS) as transaction:
                await self._statements.execute("lock_for_claims", on=transaction.connection)
            return {*ids}
        return {*ids} - {row["job_id"] for row in rows}

    async def quarantine(
        self,
        worker_id: str,
        names: Sequence[str],
        limit: int,
        *,
        isolated_from: int | None = None,
        left_out: Collection[str] = (),
    ) -> Quarantine:
        """Find the due jobs that make each claim fail, after a claim has failed; see `Quarantine`.

        A job whose row cannot be read fails, as one with arguments of more than 1 GB as text. A trigger or a
        constraint of the application may refuse the claim of a job, or a trigger may wait for a lock of
        another transaction. Such a job stays as it is, because the reason may pass. It is returned, so that
        the worker leaves it out of its next claims.

        Args:
            worker_id: The worker.
            names: The names of jobs that the worker can run.
            limit: The limit of the claim that failed.
            isolated_from: The number of crashes from which jobs were left out of that claim; None if it left
                out none.
            left_out: The jobs that were left out of it, because they were refused before.
        """
        quarantine = Quarantine([], {}, {})
        waits: Counter[str] = Counter()
        lock_timeout_ms = DIVIDED_LOCK_TIMEOUT_MS
        # The search examines at least as many jobs as the claim that failed, and more if many are left out.
        limit = max(limit, min(len(left_out), MAX_SEARCHED))
        args = names, limit, self._statements.now, isolated_from, list(left_out)
        async with self._statements.transaction(lock_timeout_ms=lock_timeout_ms) as transaction:
            await self._statements.execute("lock_for_claims", on=transaction.connection)
            for job_id, name in await self._statements.fetch("lock_due", *args, on=transaction.connection):
                # Once some jobs of a name have waited for a lock, the others of that name probably wait for
                # the same lock, so they get a shorter timeout. It is set again only when it changes.
                is_short = waits[name] >= MAX_LONG_WAITS
                wanted_ms = SHORT_LOCK_TIMEOUT_MS if is_short else DIVIDED_LOCK_TIMEOUT_MS
                if wanted_ms != lock_timeout_ms:
                    lock_timeout_ms = wanted_ms
                    await self._statements.fetch(
                        "limit_waits", f"{lock_timeout_ms}ms", on=transaction.connection
                    )
                try:
                    quarantine.unreadable.extend(
                        await self._fail_if_unreadable(worker_id, job_id, transaction)
                    )
                except DatabaseUnavailableError as fault:
                    if not is_lock_timeout(fault):
                        raise
                    waits[name] += 1
                    quarantine.waiting[job_id] = UnclaimableJob(name, fault)
                    if waits.total() >= MAX_WAITS:
                        break
                except REFUSALS as error:
                    if not is_refusal(error):
                        raise
                    quarantine.refused[job_id] = UnclaimableJob(name, error)
        await self._results.consequences.apply([job.job_id for job in quarantine.unreadable])
        return quarantine

    async def _fail_if_unreadable(
        self, worker_id: str, job_id: str, transaction: Transaction
    ) -> list[UnreadableJob]:
        """Fail a due job if its row cannot be read, and return it; an empty list if its row can be read.

        If its row can be read, try to claim it, and raise the error if the table refuses that.
        """
        error = await self._reading_error(job_id, transaction.connection)
        if error is None:
            await self._rehearse_claim(worker_id, job_id, transaction)
            return []
        async with self._statements.transaction(within=transaction) as savepoint:
            failed = await self._quarantine(job_id, error, savepoint)
            # A check that the application has deferred to the commit is made now. If it refuses this job, it
            # undoes only this savepoint, and not the work on the other jobs.
            await self._statements.execute("apply_deferred", on=savepoint.connection)
        return failed

    async def _rehearse_claim(self, worker_id: str, job_id: str, transaction: Transaction) -> None:
        """Claim a job and roll that back; raise the error if the table refuses it."""
        with suppress(_TrialClaimError):
            async with self._statements.transaction(within=transaction) as savepoint:
                now = self._statements.now
                await self._statements.fetch("try_claim", worker_id, job_id, now, on=savepoint.connection)
                # Checks that the application has deferred to the commit are made now, because the savepoint
                # is rolled back.
                await self._statements.execute("apply_deferred", on=savepoint.connection)
                raise _TrialClaimError

    async def quarantine_oversized(
        self, names: Sequence[str], limit: int, *, isolated_from: int | None = None
    ) -> tuple[list[UnreadableJob], bool]:
        """Fail the due jobs that have more text than the table accepts, which earlier releases accepted.

        Return these jobs, and whether other such jobs were left as they are: the claim that timed out may
        still hold them, or may have been committed meanwhile.

        Args:
            names: The names of jobs that the worker can run.
            limit: The limit of the claim that timed out.
            isolated_from: The number of crashes from which jobs were left out of that claim; None if it left
                out none.
        """
        args = names, limit, self._statements.now, MAX_ROW_BYTES, isolated_from
        failed_jobs: list[UnreadableJob] = []
        oversized = await self._statements.fetch("oversized_due", *args)
        for row in oversized:
            error = PayloadError(f"{row['size']} bytes of text, more than {MAX_ROW_BYTES}")
            try:
                async with self._statements.transaction(lock_timeout_ms=LOCK_TIMEOUT_MS) as transaction:
                    failed_jobs += await self._quarantine(row["job_id"], error, transaction)
            except (DatabaseUnavailableError, *REFUSALS) as fault:
                # The claim that follows skips a row that is locked, and finds one that is refused.
                if not (is_locked_out(fault) or is_refusal(fault)):
                    raise
        await self._results.consequences.apply([job.job_id for job in failed_jobs])
        return failed_jobs, len(failed_jobs) < len(oversized)

    async def _quarantine(
        self, job_id: str, error: Exception, transaction: Transaction
    ) -> list[UnreadableJob]:
        """Fail a job whose row cannot be read, and return it; an empty list if it is not pending any more."""
        reason = UNREADABLE.format(describe(error))
        # Failures are counted, for people, by texts without what differs from job to job.
        counted_text = normalized(reason)
        args = job_id, reason, self._statements.now, counted_text

        async def fail() -> list[Record]:
            """Fail the job in a savepoint, because this may be repeated without the count."""
            async with self._statements.transaction(within=transaction) as savepoint:
                return await self._statements.fetch("quarantine_job", *args, on=savepoint.connection)

        rows = await with_record(
            f"the count of the failed job {job_id}",
            fail,
            note_unrecorded=lambda rows: self._uncounted_jobs.note(
                {row["job_id"]: counted_text for row in rows}
            ),
        )
        return [UnreadableJob(row["job_id"], row["job_name"], row["attempt"], reason, error) for row in rows]

    async def _reading_error(self, job_id: str, connection: Connection) -> Exception | None:
        """Return the error with which the row of a job cannot be read; None if it can be read."""
        # The block is a savepoint. So an error does not abort the transaction, which examines further jobs.
        try:
            async with transact(connection, self._statements.call_timeout_s):
                await self._statements.fetch("pending_claim", job_id, on=connection)
        except ROW_ERRORS as error:
            return error
        return None

    async def held_claim(self, job_id: str, worker_id: str) -> Claim | None:
        """Return the claim by which a worker runs a job; None if the worker does not hold the job."""
        rows = await self._statements.fetch("held_claim", job_id, worker_id)
        return Claim._make(rows[0]) if rows else None

    async def release_unacknowledged(
        self, worker_id: str, attempts: Mapping[str, int], limit: int = 1000
    ) -> list[str]:
        """Make jobs pending again whose claim the worker never received, and return their ids.

        A claim may be committed although its answer is lost. Its jobs are those that are claimed for the
        worker in their rows, while the worker has not received their attempts.

        Args:
            worker_id: The worker.
            attempts: The numbers of the attempts that it has received, by the ids of their jobs.
            limit: The maximum number of jobs.
        """
        args = worker_id, json.dumps(attempts), self._statements.now, limit

        async def release(*, checks_at_once: bool) -> list[str]:
            """Release the jobs in one transaction; make deferred checks at each statement, or at the end."""
            async with self._statements.transaction(lock_timeout_ms=LOCK_TIMEOUT_MS) as transaction:
                if checks_at_once:
                    await self._statements.execute("apply_deferred", on=transaction.connection)
                rows = await self._statements.fetch("lock_unacknowledged", *args, on=transaction.connection)
                changes = {(row["job_id"], row["attempt"]): RELEASE.change for row in rows}
                return sorted(await self._results.settle_divided(changes, worker_id, transaction))

        try:
            return await release(checks_at_once=False)
        except REFUSALS as error:
            if not is_refusal(error):
                raise
            # A check that the application has deferred to the commit refused one of the jobs. If each
            # statement makes its checks at once, settle_divided() leaves out that job alone.
            return await release(checks_at_once=True)
