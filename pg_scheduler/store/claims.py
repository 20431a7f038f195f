"""Claim jobs, and release claims that were lost."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Final

from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.jobs.outcome import describe, release_change
from pg_scheduler.jobs.rows import Claim
from pg_scheduler.store.connections.session import Connection, transact
from pg_scheduler.store.faults import ROW_ERRORS, is_lock_timeout
from pg_scheduler.store.results import ResultRepository
from pg_scheduler.store.statements import Statements
from pg_scheduler.store.types import FROM_THE_START, NO_IDS, ClaimPosition, ExchangeResult, UnreadableJob

__all__ = ["ClaimRepository"]

CLAIM_COLUMNS: Final = len(Claim._fields)
UNREADABLE: Final = "the row of this job cannot be read ({}); cancel or delete it, and schedule the job again"
START_ORDER: Final = attrgetter("priority", "execution_time", "job_id")
"""The order in which jobs start. The rows of a claim have none. Ids compare byte by byte, as in the index."""


class ClaimRepository:
    """The statements by which workers claim and release jobs.

    Args:
        statements: Runs the statements.
        results: Releases jobs.
    """

    def __init__(self, statements: Statements, results: ResultRepository) -> None:
        self._statements = statements
        self._results = results

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
    ) -> ExchangeResult:
        """Write completions and claim due jobs, in one round trip.

        No part of it waits long for a locked row.

        Args:
            worker_id: The worker.
            names: The names of jobs that it can run.
            limit: The maximum number of jobs to claim.
            completed: Claims of one attempt number that completed, each job once.
            keep: Whether to keep the rows of completed jobs; otherwise they are deleted.
            since: Where the search for due jobs begins.
            after: The ids to begin at, of those instants.
        """
        now = self._statements.now
        ids = [claim.job_id for claim in completed]
        attempt = completed[0].attempt if completed else 0
        locked: set[str] = set()
        try:
            rows = await self._statements.fetch(
                "exchange_jobs", worker_id, names, limit, now, ids, attempt, *since, keep, after
            )
        except DatabaseUnavailableError as fault:
            if not (ids and is_lock_timeout(fault)):
                raise
            done = await self._statements.fetch("complete_unlocked", worker_id, now, ids, attempt, keep)
            locked = {*ids} - {row[0] for row in done}
            rows = await self._statements.fetch(
                "exchange_jobs", worker_id, names, limit, now, [], 0, *since, keep, after
            )
        last = rows.pop()
        jobs: list[Claim] = []
        expired: list[Claim] = []
        for row in rows:
            claim = Claim._make(row[:CLAIM_COLUMNS])
            (expired if row[CLAIM_COLUMNS] else jobs).append(claim)
        jobs.sort(key=START_ORDER)
        refused = locked.union(last["refused"] or ())
        return ExchangeResult(jobs, expired, last["due"], refused, last["silence"])

    async def quarantine_unreadable(self, names: Sequence[str], limit: int) -> list[UnreadableJob]:
        """Fail the due jobs whose rows cannot be read, such as arguments of more than 1 GB as text.

        Args:
            names: The names of jobs that the worker can run.
            limit: The limit of the claim that failed.
        """
        found: list[UnreadableJob] = []
        async with self._statements.transaction() as connection:
            for due in await self._statements.fetch(
                "lock_due", names, limit, self._statements.now, on=connection
            ):
                if error := await self._reading_error(due["job_id"], connection):
                    reason = UNREADABLE.format(describe(error))
                    args = due["job_id"], reason, self._statements.now
                    rows = await self._statements.fetch("quarantine_job", *args, on=connection)
                    found += [
                        UnreadableJob(row["job_id"], row["job_name"], row["attempt"], reason, error)
                        for row in rows
                    ]
        return found

    async def _reading_error(self, job_id: str, connection: Connection) -> Exception | None:
        try:
            async with transact(connection, self._statements.call_timeout_s):
                await self._statements.fetch("pending_claim", job_id, on=connection)
        except ROW_ERRORS as error:
            return error
        return None

    async def held_claim(self, job_id: str, worker_id: str) -> Claim | None:
        """Return the claim that a worker holds on a job, or None."""
        rows = await self._statements.fetch("held_claim", job_id, worker_id)
        return Claim._make(rows[0]) if rows else None

    async def release_unacknowledged(
        self, worker_id: str, known: Mapping[str, int], limit: int = 1000
    ) -> list[str]:
        """Release jobs whose claim the worker never received, and return their ids.

        Args:
            worker_id: The worker.
            known: The attempts of the jobs that it knows, by id.
            limit: The maximum number of jobs.
        """
        async with self._statements.transaction() as connection:
            rows = await self._statements.fetch(
                "lock_unacknowledged",
                worker_id,
                json.dumps(known),
                self._statements.now,
                limit,
                on=connection,
            )
            changes = {row["job_id"]: release_change(row["attempt"]) for row in rows}
            return sorted(await self._results.write(changes, worker_id, connection))
