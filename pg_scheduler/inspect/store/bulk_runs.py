"""Write and read the progress of bulk runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

from pg_scheduler.database.audit import AuditRepository
from pg_scheduler.database.statements import Statements, Transaction
from pg_scheduler.jobs.payload import object_from

START: Final = "start_bulk"
RESUME: Final = "resume_bulk"
STOP: Final = "stop_bulk"
END: Final = "end_bulk"
"""The actions of records in the audit about a run."""

Phase: TypeAlias = Literal["running", "stopping", "stopped", "complete"]
"""Whether a run is in progress. A CHECK constraint of the table admits no other values."""

MAX_EXAMINED_RUNS: Final = 10_000
"""The maximum number of runs that a list examines. Some of them may be runs of callers, which it leaves
out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkRunRow:
    """The progress of a bulk run that people started.

    Attributes:
        run_id: Its id.
        details: The action and its jobs.
        begun: How often it was started and resumed.
        created_by: The actor who started it.
        created_at: When it was started.
        actor: The actor who started or resumed it last.
        started_at: When it was started or resumed last.
        last_at: When its row was last changed.
        answered_at: When the process of the run last changed the row.
        phase: Whether it runs. A run whose process was killed stays ``running``.
        cursor: Where it continues; None before the first batch, and after the last one.
        done: Jobs that were changed, including those before it was resumed.
        searched: Jobs that were examined.
        total_estimate: About how many jobs it examines; None if unknown.
        error: Why it has stopped; None if nothing went wrong.
    """

    run_id: str
    details: Mapping[str, Any]
    begun: int
    created_by: str
    created_at: datetime
    actor: str
    started_at: datetime
    last_at: datetime
    answered_at: datetime
    phase: Phase
    cursor: str | None
    done: int
    searched: int
    total_estimate: int | None
    error: str | None


class BulkRunRepository:
    """The statements about bulk runs, except that of a batch. A change has a record of the current author."""

    def __init__(self, statements: Statements, audit: AuditRepository) -> None:
        self._statements = statements
        self._audit = audit

    async def begin(self, run_id: str, jobs: Mapping[str, Any], action: str) -> int:
        """Write that a run starts or resumes, and return how often it has begun.

        ``action`` is ``START`` or ``RESUME``.
        """
        args = run_id, self._statements.author.actor, json.dumps(jobs), self._statements.now

        async def write_begin(transaction: Transaction) -> int:
            """Write the row of the run and the record in the audit, in one transaction."""
            begun = await self._statements.number("begin_run", *args, on=transaction.connection)
            await self._audit.record(action, run_id, on=transaction.connection, **jobs)
            return begun

        return await self._statements.run_retrying(write_begin)

    async def stop(self, run_id: str) -> None:
        """Ask a run to stop after the batch in progress."""

        async def write_request(transaction: Transaction) -> None:
            """Write the request and the record in the audit, in one transaction."""
            connection = transaction.connection
            await self._statements.fetch("stop_run", run_id, self._statements.now, on=connection)
            await self._audit.record(STOP, run_id, on=connection)

        await self._statements.run_retrying(write_request)

    async def end(self, run_id: str, begun: int, error: str | None, **details: Any) -> None:
        """Write that a run has ended, unless it has begun again meanwhile.

        ``begun`` is how often the run had begun when the caller started or resumed it. If the row has another
        number, another process has resumed the run. ``error`` is None if nothing went wrong. ``details`` are
        further values for the record in the audit.
        """
        args = run_id, begun, error, self._statements.now

        async def write_end(transaction: Transaction) -> None:
            """Write the end and the record in the audit, in one transaction."""
            connection = transaction.connection
            # The statement returns one row, or none if the run has begun again.
            for row in await self._statements.fetch("end_run", *args, on=connection):
                counts = {
                    "done": row["done"],
                    "searched": row["searched"],
                    "total": row["total_estimate"],
                    "error": error,
                }
                is_complete = row["phase"] == "complete" and error is None
                record = {**details, **counts, "is_complete": is_complete}
                await self._audit.record(END, run_id, on=connection, **record)

        await self._statements.run_retrying(write_end)

    async def read(self, run_id: str) -> BulkRunRow | None:
        """Return a run; None if it does not exist."""
        rows = await self._statements.fetch("read_run", run_id)
        return _run_from(rows[0]) if rows else None

    async def recent(self, limit: int) -> list[BulkRunRow]:
        """Return the runs that were started last, the newest first."""
        return [
            _run_from(row) for row in await self._statements.fetch("recent_runs", limit, MAX_EXAMINED_RUNS)
        ]


def _run_from(row: Any) -> BulkRunRow:
    """Return the run of a row, with its JSON details as a mapping."""
    return BulkRunRow(**{**row, "details": object_from(row["details"])})
