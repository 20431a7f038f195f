"""Write the results of attempts, and the progress that running ones report."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from pg_scheduler.base.messages import due_message
from pg_scheduler.base.status import JobStatus
from pg_scheduler.database.author import with_record, without_records
from pg_scheduler.database.blockers import Blocker
from pg_scheduler.database.faults import (
    INVALID_VALUES,
    REFUSALS,
    SuppressedChangeError,
    UnstorableTextError,
    is_locked_out,
    is_refusal,
    may_be_of_one_change,
    may_be_of_record,
    translated,
)
from pg_scheduler.database.options import (
    DIVIDED_LOCK_TIMEOUT_MS,
    LOCK_TIMEOUT_MS,
    TRANSACTION_SETTINGS,
)
from pg_scheduler.database.session import Connection, Record, can_set_savepoints, transact
from pg_scheduler.database.statements import Repository, Statements, Transaction
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.jobs.error_text import normalized
from pg_scheduler.jobs.history import entry_in_ascii, history_entry, to_ascii
from pg_scheduler.jobs.outcome import Outcome, RowChange, describe
from pg_scheduler.jobs.progress import JobProgress, progress_text
from pg_scheduler.jobs.rows import EPOCH, Claim
from pg_scheduler.jobs.step_values import CHILD, RETRY, SIGNAL, SLEEP
from pg_scheduler.jobs.steps import Suspension
from pg_scheduler.queue.consequences import Consequences
from pg_scheduler.queue.dependencies import DependencyRepository
from pg_scheduler.queue.kept_results import KeptResultRepository
from pg_scheduler.queue.locks import LockRepository
from pg_scheduler.queue.passed_results import PassedResultRepository
from pg_scheduler.queue.uncounted import UncountedJobs

Changes: TypeAlias = Mapping[tuple[str, int], RowChange]
"""Row changes by the id of the job and the attempt."""

REPORT_TIMEOUT_MS: Final = 500
"""Longest wait of an outcome for a lock whose holder is looked up meanwhile."""


class Settled(NamedTuple):
    """What became of outcomes.

    Attributes:
        accepted: The ids of the jobs that were still held.
        locked: The ids of the jobs whose outcomes were not written, because a row is locked.
    """

    accepted: set[str]
    locked: set[str]


class _NotLockedError(Exception):
    """Rolls back a transaction that was only to wait for a lock."""


class ResultRepository:
    """Results of attempts, each fenced by its worker and attempt."""

    def __init__(  # noqa: PLR0917 - the repositories whose rows an outcome changes
        self,
        statements: Statements,
        consequences: Consequences,
        dependencies: DependencyRepository,
        kept_results: KeptResultRepository,
        passed_results: PassedResultRepository,
        locks: LockRepository,
        uncounted_jobs: UncountedJobs,
    ) -> None:
        self._statements = statements
        self._locks = locks
        self._dependencies = dependencies
        self._kept_results = kept_results
        self._passed_results = passed_results
        self._uncounted_jobs = uncounted_jobs
        self.consequences: Final = consequences

    async def count_crashes(self, outcomes: Sequence[tuple[Claim, Outcome]]) -> list[tuple[Claim, Outcome]]:
        """Decide the outcomes of crashed attempts, and return all outcomes in the given order.

        A crash makes the job pending again, or fails it if it has crashed too often before.
        """
        crashed = [claim.job_id for claim, outcome in outcomes if outcome.after_crashes]
        rows = await self._statements.fetch("crash_counts", crashed)
        counts = {row["job_id"]: row["crash_count"] for row in rows}
        decided_outcomes: list[tuple[Claim, Outcome]] = []
        for claim, outcome in outcomes:
            outcome_of_crash = outcome.after_crashes
            if outcome_of_crash is None:
                decided_outcomes.append((claim, outcome))
            else:
                # A job that was deleted meanwhile has no count. Its outcome is refused, whatever it is.
                earlier_crashes = counts.get(claim.job_id, 0)
                decided_outcomes.append((claim, outcome_of_crash(earlier_crashes)))
        return decided_outcomes

    async def settle(
        self,
        worker_id: str,
        outcomes: Sequence[tuple[Claim, Outcome]],
        *,
        deleted: Counter[JobStatus] | None = None,
    ) -> set[str]:
        """Write outcomes of different jobs in one transaction, which fails if it has to wait long for a lock.

        If the encoding of the database lacks a character of an error message, the messages and the history
        are written in ASCII, with escapes.

        Args:
            worker_id: The worker whose attempts ended.
            outcomes: The attempts and their outcomes.
            deleted: A counter, which is increased by the completed jobs that this deletes; None to keep the
                rows of completed jobs.

        Returns:
            The ids of the jobs that were still held. If a replacement waited for such a job (a new definition
            that was given while the job ran), the row of the job has the new definition now.
        """
        changes = _changes_of(outcomes)
        write = partial(self._write_all, worker_id=worker_id, deleted=deleted)
        try:
            settled = await self._write_counted(changes, write, despite_locks=False)
        except UnstorableTextError:
            settled = await self._write_counted(_in_ascii(changes), write, despite_locks=False)
        return settled.accepted

    async def settle_unlocked(
        self,
        worker_id: str,
        outcomes: Sequence[tuple[Claim, Outcome]],
        *,
        deleted: Counter[JobStatus] | None = None,
        with_consequences: bool = True,
    ) -> Settled:
        """Write those outcomes of which no other transaction has locked a row.

        The rows that an outcome changes are those of its job, of the jobs that wait for this job, and of its
        schedule. The transaction may still meet other locks, such as that of a unique key, and then it fails
        soon. The arguments are as for ``settle()``. If ``with_consequences`` is False, the consequences of
        jobs that end are left to the deadline scanner.
        """
        changes = _changes_of(outcomes)
        write = partial(
            self._write_unlocked, worker_id=worker_id, deleted=deleted, with_consequences=with_consequences
        )
        try:
            return await self._write_counted(changes, write)
        except UnstorableTextError:
            return await self._write_counted(_in_ascii(changes), write)

    async def find_blockers(self, worker_id: str, claim: Claim, outcome: Outcome) -> list[Blocker]:
        """Return the sessions that hold the locks for which an outcome waits.

        To find them, the outcome is written in a transaction that is rolled back in any case.
        """
        changes = {(claim.job_id, claim.attempt): outcome.change}
        blockers: list[Blocker] = []
        # The sessions are for a message only, so an error of the attempt does not matter.
        with suppress(_NotLockedError, DatabaseUnavailableError, *REFUSALS):
            async with self._statements.transaction(lock_timeout_ms=REPORT_TIMEOUT_MS) as transaction:
                # While the write waits for a lock, another connection adds the holders to the list.
                async with self._locks.watching(transaction.connection, blockers):
                    await self.settle_within(changes, worker_id, transaction)
                # Nothing was locked. The exception rolls back what was written.
                raise _NotLockedError
        return blockers

    async def find_cancelled(self, attempts: Mapping[str, int]) -> set[str]:
        """Return which of these jobs were cancelled while the attempt of that number ran."""
        rows = await self._statements.fetch("find_cancelled", list(attempts), list(attempts.values()))
        return {row["job_id"] for row in rows}

    async def complete_plain(self, claim: Claim, worker_id: str, connection: Connection) -> bool:
        """Complete a job without a value and without consequences in a transaction of its code.

        Returns:
            False if nothing was written: another session has locked the row, the end of the job has
            consequences, or the attempt does not hold the job any more. The caller then calls
            `complete_own()`, which finds out which of these it is.
        """
        args = claim.job_id, worker_id, claim.attempt, self._statements.now
        return bool(await self._statements.fetch("complete_own", *args, on=connection))

    async def complete_own(
        self, claim: Claim, change: RowChange, worker_id: str, transaction: Transaction, *, is_own: bool
    ) -> bool:
        """Complete a job in a transaction of its code; return False if the attempt does not hold it any more.

        An earlier block of the code may have completed the job by a commit that was not answered. Then this
        completion is refused, because otherwise the effects of the block would be repeated.

        Args:
            claim: The attempt.
            change: The completion.
            worker_id: The worker that runs the attempt.
            transaction: The transaction.
            is_own: Whether the library opened the transaction. It ends with this write, so the settings of
                the query planner may be changed in it.

        Raises:
            ValueError: The code has set another isolation level than READ COMMITTED.
        """
        connection, result = transaction.connection, change.kept
        if is_own:
            with translated():
                await connection.execute(TRANSACTION_SETTINGS, timeout=self._statements.call_timeout_s)
            # The code may have begun its block by a command that sets another level.
            await self._statements.connections.check_isolation(connection)
        changes = {(claim.job_id, claim.attempt): change}
        has_only_ascii = result is None or f"{result.value}{result.no_value_reason}".isascii()
        if has_only_ascii:
            return bool(await self._settle_held(changes, worker_id, transaction))
        # The encoding of the database may lack a character of the result. That error would abort the
        # transaction of the code. So a savepoint contains the write, which is repeated in ASCII if it fails.
        try:
            async with self._statements.transaction(within=transaction) as savepoint:
                return bool(await self._settle_held(changes, worker_id, savepoint))
        except UnstorableTextError:
            return bool(await self._settle_held(_in_ascii(changes), worker_id, transaction))

    async def transaction_id(self, connection: Connection) -> int:
        """Return the id of the transaction of a connection, for ``has_committed()``."""
        return await self._statements.number("transaction_id", on=connection)

    async def has_committed(self, claim: Claim, worker_id: str, transaction_id: int) -> bool:
        """Return whether a transaction was committed that has completed a job.

        Args:
            claim: The attempt.
            worker_id: The worker that runs the attempt.
            transaction_id: The transaction, as ``transaction_id()`` returned it after ``complete_own()``.
        """
        args = claim.job_id, worker_id, claim.attempt, transaction_id
        return bool(await self._statements.value("has_committed", *args))

    async def was_rolled_back(
        self, claim: Claim, worker_id: str, transaction_id: int | None, connection: Connection | None = None
    ) -> bool:
        """Return whether the completion of a job was rolled back: its attempt still holds the job.

        The connection of the completion also sees a rollback to a savepoint. Any other connection sees a
        rollback only when the transaction has ended, and before that the answer is False.

        Args:
            claim: The attempt.
            worker_id: The worker that runs the attempt.
            transaction_id: The transaction of the completion; None if ``connection`` is its connection.
            connection: The connection of the transaction; None to ask on any other one.
        """
        args = claim.job_id, worker_id, claim.attempt, transaction_id
        return bool(await self._statements.value("was_rolled_back", *args, on=connection))

    async def _write_all(
        self, changes: Changes, *, worker_id: str, deleted: Counter[JobStatus] | None
    ) -> Settled:
        """Write all changes in one transaction, and count the rows that it deletes in ``deleted``."""
        async with self._statements.transaction(lock_timeout_ms=LOCK_TIMEOUT_MS) as transaction:
            accepted, deleted_count = await self._write(
                changes, worker_id, transaction, deletes=deleted is not None
            )
        # The rows are counted after the commit, because a transaction that fails deletes none.
        if deleted is not None:
            deleted[JobStatus.COMPLETED] += deleted_count
        return Settled(accepted, locked=set())

    async def _write_counted(
        self,
        changes: Changes,
        write: Callable[[Changes], Awaitable[Settled]],
        *,
        despite_locks: bool = True,
    ) -> Settled:
        """Write changes by calling ``write``. If that fails, write them once more without counting failures.

        Jobs that fail are counted in a table of their own, for people. That table may be locked or missing,
        or the server may refuse its row. No outcome waits for that table: what was not counted is kept in
        memory, and counted later.

        If ``despite_locks`` is False, an error because of a lock is raised at once. The caller then writes
        only the outcomes whose rows are free.
        """
        try:
            return await write(changes)
        except UnstorableTextError:
            # settle() and settle_unlocked() write such texts once more, in ASCII.
            raise
        except (DatabaseUnavailableError, *REFUSALS) as error:
            # Without failures, the statement writes no row of the table of failures, so this table cannot be
            # the reason.
            if not _failures(changes) or not may_be_of_record(error):
                raise
            if isinstance(error, DatabaseUnavailableError) and not despite_locks:
                raise
            with without_records():
                settled = await write(changes)
        self._note_uncounted(changes, settled.accepted)
        return settled

    def _note_uncounted(self, changes: Changes, accepted_ids: Collection[str]) -> None:
        """Keep the failures that were written without being counted, so that they are counted later."""
        failures = _failures(changes)
        accepted_failures = {job_id: text for job_id, text in failures.items() if job_id in accepted_ids}
        self._uncounted_jobs.note(accepted_failures)

    async def _write_unlocked(
        self,
        changes: Changes,
        *,
        worker_id: str,
        deleted: Counter[JobStatus] | None,
        with_consequences: bool,
    ) -> Settled:
        """Write the changes of rows that are free, and return which rows are locked.

        If ``deleted`` is not None, the rows of completed jobs are deleted, and counted in it.
        """
        # The consequences of these jobs change rows of other jobs, which have to be free too.
        ending_ids = [
            job_id
            for (job_id, _), change in changes.items()
            if with_consequences and change.status is not JobStatus.PENDING
        ]
        async with self._statements.transaction(lock_timeout_ms=DIVIDED_LOCK_TIMEOUT_MS) as transaction:
            job_ids = [job_id for job_id, _ in changes]
            locked_ids = await self._lock_rows(job_ids, ending_ids, transaction)
            free_changes = {
                (job_id, attempt): change
                for (job_id, attempt), change in changes.items()
                if job_id not in locked_ids
            }
            accepted, deleted_count = set[str](), 0
            if free_changes:
                accepted, deleted_count = await self._write(
                    free_changes,
                    worker_id,
                    transaction,
                    deletes=deleted is not None,
                    with_consequences=with_consequences,
                )
        if deleted is not None:
            deleted[JobStatus.COMPLETED] += deleted_count
        return Settled(accepted, locked_ids)

    async def _lock_rows(
        self, job_ids: Sequence[str], ending_ids: Sequence[str], transaction: Transaction
    ) -> set[str]:
        """Lock the rows that the outcomes of jobs change; return the jobs for which a row is locked already.

        The outcomes of the jobs ``ending_ids`` also change the rows of other jobs, which wait for their end,
        and of schedules.
        """
        try:
            await self._statements.execute("lock_for_claims", on=transaction.connection)
            rows = await self._statements.fetch(
                "lock_settled", job_ids, ending_ids, on=transaction.connection
            )
        except DatabaseUnavailableError as fault:
            if not is_locked_out(fault):
                raise
            # Neither statement waits for a row. So a whole table is locked, and no outcome can be written.
            raise DatabaseUnavailableError(f"a table is locked: {fault}") from fault
        return {row["job_id"] for row in rows}

    async def _write(
        self,
        changes: Changes,
        worker_id: str,
        transaction: Transaction,
        *,
        deletes: bool,
        with_consequences: bool = True,
    ) -> tuple[set[str], int]:
        """Write changes; return the accepted ids, and the number of completed jobs that were deleted."""
        accepted = await self.settle_within(
            changes, worker_id, transaction, with_consequences=with_consequences
        )
        completed = [
            job_id
            for (job_id, _), change in changes.items()
            if job_id in accepted and change.status is JobStatus.COMPLETED
        ]
        if not (deletes and completed):
            return accepted, 0
        # A row that another transaction has locked is not among the deleted ones. The service that deletes
        # old rows, the vacuum, finds it later.
        deleted_rows = await self._statements.fetch("delete_completed", completed, on=transaction.connection)
        return accepted, len(deleted_rows)

    async def settle_within(
        self, changes: Changes, worker_id: str, transaction: Transaction, *, with_consequences: bool = True
    ) -> set[str]:
        """Write changes in the caller's transaction, with the consequences of the jobs that end.

        A change that is refused may have been written before, by a call whose answer was lost. Then it counts
        as accepted.

        Args:
            changes: The changes.
            worker_id: The worker whose attempts ended.
            transaction: The transaction.
            with_consequences: Whether the consequences are applied. If not, a scan applies them later.

        Returns:
            The ids that were accepted.
        """
        accepted = await self._settle_held(
            changes, worker_id, transaction, with_consequences=with_consequences
        )
        revoked = {key: change for key, change in changes.items() if change.is_revoked}
        if revoked:
            await self._end_revoked(revoked, worker_id, transaction)
        refused_attempts = {job_id: attempt for job_id, attempt in changes if job_id not in accepted}
        if refused_attempts:
            # A job may have been cancelled while its attempt ran. What depends on the job then waits for the
            # end of the attempt, which is now.
            await self.consequences.report_ends(
                refused_attempts, worker_id, transaction, with_consequences=with_consequences
            )
        open_changes = _unaccepted(changes, accepted)
        if open_changes:
            accepted |= await self._find_settled(open_changes, worker_id, transaction)
        return accepted

    async def settle_divided(self, changes: Changes, worker_id: str, transaction: Transaction) -> set[str]:
        """Write changes in savepoints of a transaction; leave out those that meet a lock or are refused.

        All changes are tried together first. If that fails, each is tried alone, so that one job does not
        keep the others from being settled. Before a change is left out, it is also tried without its
        consequences, which a scan applies later. A failure that cannot be counted is written without the
        count, which follows later. Return the ids of the jobs whose changes were accepted.
        """

        async def write(part: Changes, *, with_consequences: bool) -> Settled:
            """Write changes in a savepoint, so that an error undoes only these."""
            async with self._statements.transaction(within=transaction) as savepoint:
                accepted = await self.settle_within(
                    part, worker_id, savepoint, with_consequences=with_consequences
                )
            return Settled(accepted, locked=set())

        try:
            settled = await self._write_counted(changes, partial(write, with_consequences=True))
        except (DatabaseUnavailableError, *REFUSALS) as error:
            if not may_be_of_one_change(error):
                raise
        else:
            return settled.accepted
        accepted_ids: set[str] = set()
        for (job_id, attempt), change in changes.items():
            single_change = {(job_id, attempt): change}
            for with_consequences in (True, False):
                try:
                    settled = await self._write_counted(
                        single_change, partial(write, with_consequences=with_consequences)
                    )
                except (DatabaseUnavailableError, *REFUSALS) as error:
                    if not may_be_of_one_change(error):
                        raise
                    if not with_consequences:
                        # Nothing else is left to try. The job stays running in its row until a later pass
                        # of the rescuer reclaims it.
                        logger.warning(
                            "job %s of worker %s not reclaimed yet: %s",
                            job_id,
                            worker_id,
                            describe(error),
                            extra=record_fields(job_id=job_id, attempt=attempt),
                        )
                else:
                    accepted_ids |= settled.accepted
                    break
        return accepted_ids

    async def _settle_held(
        self, changes: Changes, worker_id: str, transaction: Transaction, *, with_consequences: bool = True
    ) -> set[str]:
        """Write changes of jobs that the worker holds, and return the ids of these jobs.

        A job may have a replacement: a new definition, which was given while the attempt ran. Then the
        replacement is written instead of the change.

        One statement writes the rows without a replacement, another one those with a replacement. If a
        replacement is added or dropped between them, neither writes the row. So a row that is still held is
        locked, and both statements run once more: while it is locked, its replacement cannot change. Neither
        writes a row whose attempt was revoked by hand. It is still held too, and a third statement frees it.

        Raises:
            SuppressedChangeError: The worker still holds a job, because a trigger suppresses each change. If
                the job counted as lost, it would be executed again without end.
        """
        accepted: set[str] = set()
        held: list[Record] = []
        for _ in range(2):
            open_changes = _unaccepted(changes, accepted)
            if open_changes:
                accepted |= await self._change_rows(
                    open_changes, worker_id, transaction, with_consequences=with_consequences
                )
                open_changes = _unaccepted(changes, accepted)
            if open_changes:
                accepted |= await self._replace(open_changes, worker_id, transaction)
                open_changes = _unaccepted(changes, accepted)
            if not open_changes:
                return accepted
            args = *_arrays(open_changes), worker_id
            held = await self._statements.fetch("lock_held", *args, on=transaction.connection)
            if not held:
                return accepted
            accepted |= await self._release_revoked(open_changes, worker_id, transaction)
        raise SuppressedChangeError(held[0]["triggers"])

    async def _change_rows(
        self, changes: Changes, worker_id: str, transaction: Transaction, *, with_consequences: bool
    ) -> set[str]:
        """Write the rows of jobs, and all that follows from that; return the ids of the jobs that were held.

        The results are kept before the consequences are applied, because these may pass the results to other
        jobs. Jobs without a held attempt, and jobs whose replacement waits, are not written.
        """
        suspended = {key: change for key, change in changes.items() if change.suspensions}
        other_changes = {key: change for key, change in changes.items() if not change.suspensions}
        rows: list[Record] = []
        if other_changes:
            rows = await self._settle_unsuspended(other_changes, worker_id, transaction.connection)
        settled = {row["job_id"] for row in rows}
        if suspended:
            settled |= await self._suspend(suspended, worker_id, transaction.connection)
        results = {
            job_id: change.kept
            for (job_id, _), change in changes.items()
            if change.kept is not None and job_id in settled
        }
        if results:
            await self._kept_results.keep(results, transaction.connection, are_outcomes=True)
        if with_consequences:
            ended = [row["job_id"] for row in rows if row["has_consequences"]]
            await self.consequences.run(ended, transaction)
        # What a job waits for may have happened just before its row was written as waiting.
        if signal_waits := _signal_waits(changes, settled):
            await self._look_at_waits(signal_waits, transaction.connection)
        if child_waits := _child_waits(changes, settled):
            await self._block_waiting(child_waits, transaction.connection)
        return settled

    async def _settle_unsuspended(
        self, changes: Changes, worker_id: str, connection: Connection
    ) -> list[Record]:
        """Write the rows of jobs that have ended or are pending again; return the rows that were written.

        If one of the jobs has failed, another statement writes them all, which also counts the failures.
        """
        row_changes = changes.values()
        args = (
            *_arrays(changes),
            [change.status for change in row_changes],
            [change.error for change in row_changes],
            [change.delay_s for change in row_changes],
            [change.retries for change in row_changes],
            [change.crashes for change in row_changes],
            worker_id,
            self._statements.now,
            [change.entry for change in row_changes],
        )
        counted_texts = [_counted_text(change) for change in row_changes]
        if any(text is not None for text in counted_texts):
            return await self._statements.fetch("settle_failed", *args, counted_texts, on=connection)
        return await self._statements.fetch("settle_jobs", *args, on=connection)

    async def _suspend(self, changes: Changes, worker_id: str, connection: Connection) -> set[str]:
        """Write the rows of suspended jobs, each with the steps that it waits for; return the jobs' ids.

        A suspended job leaves its worker while it waits for a signal, for a time, or for the end of children.
        """
        rows = await self._statements.fetch(
            "settle_suspended",
            *_arrays(changes),
            [change.retries for change in changes.values()],
            [_end_of_wait(change.suspensions) for change in changes.values()],
            worker_id,
            self._statements.now,
            [_names_of(change.suspensions) for change in changes.values()],
            [_kind_of(change.suspensions) for change in changes.values()],
            on=connection,
        )
        # The server's clock was set back after the last steps of these jobs. So the steps have times of the
        # future, which are corrected.
        if early_ids := [row["job_id"] for row in rows if row["is_early"]]:
            await self._statements.fetch("set_back_suspended", early_ids, self._statements.now, on=connection)
        return {row["job_id"] for row in rows}

    async def _block_waiting(self, waits: Sequence[tuple[str, str, bool]], connection: Connection) -> None:
        """Block jobs that have just been suspended until their children end, unless the children have ended.

        ``waits`` is what ``_child_waits()`` returned.
        """
        ids, step_names, wait_for_more = zip(*waits, strict=True)
        args = ids, step_names, wait_for_more, self._statements.now
        # The statement returns when the first job is due whose children have ended; NULL if there is none.
        due_at = await self._statements.value("block_waiting", *args, on=connection)
        if due_at is not None:
            await self._notify(due_at, connection)

    async def _look_at_waits(self, waits: Sequence[tuple[str, str]], connection: Connection) -> None:
        """Make jobs due that have just been suspended although their signals have come.

        ``waits`` is what ``_signal_waits()`` returned.
        """
        ids, signal_names = zip(*waits, strict=True)
        args = list(ids), list(signal_names), self._statements.now
        # The statement returns when the first of these jobs is due; NULL if none of them is.
        due_at = await self._statements.value("look_at_waits", *args, on=connection)
        if due_at is not None:
            await self._notify(due_at, connection)

    async def _notify(self, due_at: datetime, connection: Connection) -> None:
        """Notify all workers, with the commit of the transaction, of jobs that are due at this time.

        Claims do not always begin at the earliest due time, but where nothing was left to claim. A worker
        whose claims begin after this time would overlook the jobs without the notification.
        """
        await self._statements.fetch("notify", [due_message("", due_at)], on=connection)

    async def _replace(self, changes: Changes, worker_id: str, transaction: Transaction) -> set[str]:
        """Give the rows that have a replacement their new definitions; return the ids of their jobs.

        A replacement is a new definition of a job, which waited in the row for the end of the attempt. The
        jobs without one are not changed. A job fails if the table cannot store its replacement.
        """
        connection, now = transaction.connection, self._statements.now
        try:
            async with transact(connection, self._statements.call_timeout_s):
                rows = await self._statements.fetch(
                    "apply_replacements", *_arrays(changes), worker_id, now, on=connection
                )
        except INVALID_VALUES as error:
            # Each replacement is tried alone, so that only the invalid one fails its job.
            if len(changes) > 1:
                replaced_ids: set[str] = set()
                for key, change in changes.items():
                    replaced_ids |= await self._replace({key: change}, worker_id, transaction)
                return replaced_ids
            (attempt,) = changes
            reason = f"the new definition that waited for this job cannot be used: {error}"
            failed_ids = await self._refuse_replacement(attempt, worker_id, reason, transaction)
            await self.consequences.run(failed_ids, transaction)
            # The job has failed instead, so the outcome of its attempt does not count as accepted.
            return set()
        if rows:
            await self._notify(min(row["due"] for row in rows), connection)
        # A new definition may wait for other jobs. The children of the former definition do not count for it.
        waiting_ids = [row["job_id"] for row in rows if row["waits"]]
        if waiting_ids:
            await self._dependencies.forget_children(waiting_ids, connection)
        # A new definition is marked if results of other jobs or signals were stored for it while it waited.
        marked_ids = [row["job_id"] for row in rows if row["is_marked"]]
        if marked_ids:
            await self._passed_results.take_over(marked_ids, transaction.connection)
        # resolve() passes further results to the jobs. take_over() comes first, since it would delete these.
        if waiting_ids:
            cancel_reasons = {row["job_id"]: row["reason"] for row in rows if row["reason"] is not None}
            await self._dependencies.resolve(waiting_ids, transaction, cancel_reasons)
        return {row["job_id"] for row in rows}

    async def _end_revoked(self, changes: Changes, worker_id: str, transaction: Transaction) -> None:
        """Give jobs of sequences that are still running what waited for the end of their revoked attempts.

        They have a new definition, or are pending now. Other jobs are not changed.
        """
        replaced_ids = await self._replace(changes, worker_id, transaction)
        remaining = {key: change for key, change in changes.items() if key[0] not in replaced_ids}
        if remaining:
            await self._release_revoked(remaining, worker_id, transaction)

    async def _release_revoked(self, changes: Changes, worker_id: str, transaction: Transaction) -> set[str]:
        """Make the jobs pending whose attempts were revoked by hand; return their ids.

        A job of a sequence was set to another status while its attempt ran. Whatever the outcome of that is,
        the job is pending now: no other job of its sequence could start before.
        """
        connection, now = transaction.connection, self._statements.now
        rows = await self._statements.fetch(
            "release_revoked", *_arrays(changes), worker_id, now, on=connection
        )
        if rows:
            await self._notify(min(row["due"] for row in rows), connection)
        return {row["job_id"] for row in rows}

    async def _refuse_replacement(
        self, attempt: tuple[str, int], worker_id: str, reason: str, transaction: Transaction
    ) -> list[str]:
        """Fail a job whose new definition the table cannot store; return its id, or nothing if it is lost.

        The attempt is given by the id of its job and its number.
        """
        job_id, attempt_number = attempt
        # Failures are counted, for people, by texts without what differs from job to job.
        counted_text = normalized(reason)
        entry = history_entry("error", message=reason)
        args = job_id, worker_id, attempt_number, reason, self._statements.now, entry, counted_text

        async def fail() -> list[Record]:
            """Fail the job in a savepoint, because this may be repeated without the count."""
            async with self._statements.transaction(within=transaction) as savepoint:
                return await self._statements.fetch("refuse_replacement", *args, on=savepoint.connection)

        # An earlier transaction may have noted the job, and was then rolled back.
        self._uncounted_jobs.forget(job_id)
        rows = await with_record(
            f"the count of the failed job {job_id}",
            fail,
            note_unrecorded=lambda rows: self._uncounted_jobs.note(
                {row["job_id"]: counted_text for row in rows}
            ),
        )
        return [row["job_id"] for row in rows]

    async def _find_settled(self, changes: Changes, worker_id: str, transaction: Transaction) -> set[str]:
        """Return the ids of the jobs whose rows have the changes already.

        An earlier call has written these changes and was committed, but its answer was lost.
        """
        rows = await self._statements.fetch(
            "already_settled",
            *_arrays(changes),
            [change.status for change in changes.values()],
            worker_id,
            on=transaction.connection,
        )
        return {row["job_id"] for row in rows}


def _arrays(changes: Changes) -> tuple[list[str], list[int]]:
    """Return the ids of the jobs and the numbers of their attempts, as statements take them."""
    return [job_id for job_id, _ in changes], [attempt for _, attempt in changes]


def _changes_of(outcomes: Sequence[tuple[Claim, Outcome]]) -> Changes:
    """Return the row changes of outcomes, by the ids of the jobs and the numbers of the attempts."""
    return {(claim.job_id, claim.attempt): outcome.change for claim, outcome in outcomes}


def _in_ascii(changes: Changes) -> Changes:
    """Return the changes with all texts in ASCII, for a database whose encoding lacks a character."""
    ascii_changes: dict[tuple[str, int], RowChange] = {}
    for key, change in changes.items():
        error = None if change.error is None else to_ascii(change.error)
        entry = None if change.entry is None else entry_in_ascii(change.entry)
        kept = None if change.kept is None else change.kept.in_ascii()
        ascii_changes[key] = replace(change, error=error, entry=entry, kept=kept)
    return ascii_changes


def _failures(changes: Changes) -> dict[str, str]:
    """Return the texts by which the failures among the changes are counted, by the ids of the jobs."""
    failures: dict[str, str] = {}
    for (job_id, _), change in changes.items():
        counted_text = _counted_text(change)
        if counted_text is not None:
            failures[job_id] = counted_text
    return failures


def _counted_text(change: RowChange) -> str | None:
    """Return the text under which the failure of a job is counted; None if the change is no failure.

    It is the error without what differs from job to job, such as numbers and ids.
    """
    if change.status is not JobStatus.FAILED:
        return None
    return normalized(change.error or "")


def _signal_waits(changes: Changes, settled: Collection[str]) -> list[tuple[str, str]]:
    """Return the signals that suspended jobs wait for: pairs of the id of a job and the name of a signal.

    Jobs whose change was not written, since their ids are not in ``settled``, are left out.
    """
    return [
        (job_id, suspension.name)
        for (job_id, _), change in changes.items()
        if job_id in settled
        for suspension in change.suspensions
        if suspension.kind == SIGNAL
    ]


def _child_waits(changes: Changes, settled: Collection[str]) -> list[tuple[str, str, bool]]:
    """Return the waits of suspended jobs for the end of their children, which are jobs that a step started.

    Each tuple has the id of the job, the name of the step with the children, and whether the job waits for
    something other than children too. Jobs whose ids are not in ``settled`` are left out.
    """
    return [
        (job_id, suspension.name, not _awaits_children_only(change.suspensions))
        for (job_id, _), change in changes.items()
        if job_id in settled
        for suspension in change.suspensions
        if suspension.kind == CHILD
    ]


def _names_of(suspensions: Sequence[Suspension]) -> str:
    """Return the names of the steps that a job waits for, as a JSON array."""
    return json.dumps([suspension.name for suspension in suspensions], ensure_ascii=False)


def _kind_of(suspensions: Sequence[Suspension]) -> str:
    """Return the kind of what a suspended job waits for.

    A job may wait for several things at once. Then a signal precedes a sleep, a sleep precedes the next
    attempt of a step, and that precedes children.
    """
    kinds = {suspension.kind for suspension in suspensions}
    return next(kind for kind in (SIGNAL, SLEEP, RETRY, CHILD) if kind in kinds)


def _end_of_wait(suspensions: Sequence[Suspension]) -> datetime:
    """Return when a suspended job is due: at the end of its first suspension, which ends first of all.

    A job that waits for children only is blocked. It is due at ``EPOCH``, and so as soon as it is unblocked.
    """
    return EPOCH if _awaits_children_only(suspensions) else suspensions[0].until


def _awaits_children_only(suspensions: Sequence[Suspension]) -> bool:
    """Return whether a suspended job waits for the end of children, and for no signal and no time."""
    return all(suspension.kind == CHILD for suspension in suspensions)


def _unaccepted(changes: Changes, accepted: Collection[str]) -> Changes:
    """Return the changes that are not yet accepted, and that change a row.

    The change of a revoked attempt does not: its job ended before, and only its end is reported.
    """
    return {
        (job_id, attempt): change
        for (job_id, attempt), change in changes.items()
        if job_id not in accepted and not change.is_revoked
    }


class ProgressRepository(Repository):
    """The progress of running attempts."""

    async def write_progress(
        self, worker_id: str, reports: Mapping[str, tuple[Claim, JobProgress]]
    ) -> set[str]:
        """Write the progress of attempts, with one statement.

        If the encoding of the database lacks a character of a note, all notes are written in ASCII, with
        escapes.

        Args:
            worker_id: The worker that runs the attempts.
            reports: Attempts and progress by job id.

        Returns:
            The ids of the jobs whose progress was written, or dropped because the table refuses it. Jobs that
            this worker does not hold in that attempt, and jobs whose rows are locked, are not among them.
        """
        try:
            return await self._write(worker_id, reports, in_ascii=False)
        except UnstorableTextError:
            return await self._write(worker_id, reports, in_ascii=True)
        except REFUSALS as error:
            if not is_refusal(error):
                raise
            return await self._write_accepted(worker_id, reports, error)

    async def write_own_progress(
        self, worker_id: str, claim: Claim, progress: JobProgress, transaction: Transaction
    ) -> None:
        """Write the progress of an attempt in the transaction that completes its job.

        What the table refuses is dropped, with a log record.
        """
        try:
            if not can_set_savepoints(transaction.connection):
                # The caller began the transaction by a statement, so it can have no savepoint, and an error
                # would abort it. Each encoding has the characters of ASCII.
                await self._write_own(worker_id, claim, progress, transaction, in_ascii=True)
                return
            try:
                async with self._statements.transaction(within=transaction) as savepoint:
                    await self._write_own(worker_id, claim, progress, savepoint, in_ascii=False)
            except UnstorableTextError:
                async with self._statements.transaction(within=transaction) as savepoint:
                    await self._write_own(worker_id, claim, progress, savepoint, in_ascii=True)
        except REFUSALS as error:
            if not is_refusal(error):
                raise
            _log_refusal(claim, error)

    async def write_look(self, worker_id: str, claim: Claim, text: str) -> bool:
        """Write into the row of a job what people who look at it see of an attempt: JSON with log and stack.

        Return whether it was written. A locked row and the row of another attempt stay as they are.
        """
        return bool(await self._statements.fetch("write_look", claim.job_id, worker_id, claim.attempt, text))

    async def remove_look(self, claim: Claim) -> bool:
        """Remove what ``write_look()`` has written; return False if another session has locked the row."""
        is_left = await self._statements.value("remove_look", claim.job_id, claim.attempt)
        return not is_left

    async def _write_own(
        self, worker_id: str, claim: Claim, progress: JobProgress, transaction: Transaction, *, in_ascii: bool
    ) -> None:
        """Write the progress of an attempt by a statement of the transaction."""
        text = progress_text(
            progress, in_ascii=in_ascii, codec=self._statements.codec, job_name=claim.job_name
        )
        args = claim.job_id, worker_id, claim.attempt, text
        await self._statements.fetch("write_own_progress", *args, on=transaction.connection)

    async def _write_accepted(
        self, worker_id: str, reports: Mapping[str, tuple[Claim, JobProgress]], error: Exception
    ) -> set[str]:
        """Write the reports that the table accepts, after it has refused all of them together with ``error``.

        A report that the table refuses alone is dropped, with a log record. It counts as written.
        """
        job_ids = list(reports)
        if len(job_ids) == 1:
            (job_id,) = job_ids
            claim, _ = reports[job_id]
            _log_refusal(claim, error)
            return {job_id}
        # The reports are halved until the one that the table refuses is alone.
        middle = len(job_ids) // 2
        written_ids: set[str] = set()
        for half in (job_ids[:middle], job_ids[middle:]):
            written_ids |= await self.write_progress(worker_id, {job_id: reports[job_id] for job_id in half})
        return written_ids

    async def _write(
        self, worker_id: str, reports: Mapping[str, tuple[Claim, JobProgress]], *, in_ascii: bool
    ) -> set[str]:
        """Write the reports by one statement; return the ids of the jobs whose rows it has changed."""
        codec = self._statements.codec
        attempt_numbers = [claim.attempt for claim, _ in reports.values()]
        texts = [
            progress_text(progress, in_ascii=in_ascii, codec=codec, job_name=claim.job_name)
            for claim, progress in reports.values()
        ]
        args = list(reports), attempt_numbers, texts, worker_id
        rows = await self._statements.fetch("write_progress", *args)
        return {row["job_id"] for row in rows}


def _log_refusal(claim: Claim, error: Exception) -> None:
    """Log that the table has refused the progress of an attempt, so that it is dropped."""
    logger.error(
        "progress of job %s (id %s, attempt %s) refused by the table: %s",
        claim.job_name,
        claim.job_id,
        claim.attempt,
        describe(error),
        extra=record_fields(job_id=claim.job_id, job_name=claim.job_name, attempt=claim.attempt),
    )
