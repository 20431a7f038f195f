"""Store and read the results that jobs keep."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pg_scheduler.base.status import JobStatus
from pg_scheduler.database.refused_rows import RefusedRows
from pg_scheduler.database.session import Connection
from pg_scheduler.database.statements import Statements, Transaction
from pg_scheduler.errors import JobError, JobResult
from pg_scheduler.jobs.codec import PayloadCodec
from pg_scheduler.jobs.payload import value_from
from pg_scheduler.jobs.result import KeptResult, keep_seconds_of, kept_error, read_value
from pg_scheduler.queue.consequences import EndedJob

NOT_KEPT = "the result was not kept, or its lifetime has ended; pass keep_result="

SET_BY_HAND: Final = "the status was set by hand"


class KeptResultRepository:
    """The statements that store and read kept results."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        self._refused_deletions = RefusedRows("old result of job {} not deleted", by_pass=True)

    async def keep(
        self, results: Mapping[str, KeptResult], connection: Connection, *, are_outcomes: bool
    ) -> None:
        """Store the results of jobs that ended in the caller's transaction, and announce their ids.

        The results of attempts, which are their outcomes, replace all others. If the results follow from the
        rows, and an end has a result already, that one is kept.
        """
        # The statement takes an array for each field, in the order of the ids.
        values = results.values()
        await self._statements.fetch(
            "keep_results",
            list(results),
            [result.seconds for result in values],
            [result.value for result in values],
            [result.no_value_reason for result in values],
            [result.error for result in values],
            are_outcomes,
            on=connection,
        )

    async def keep_ended(self, ended: Sequence[EndedJob], transaction: Transaction) -> Sequence[str]:
        """Store the results of jobs that ended without a value: failed, cancelled or expired.

        If an attempt ended the job, the result of the attempt was stored before, with more details, and
        stays. This is a handler of consequences, which has to return the ids of the jobs that it ends. It
        ends none, so it returns an empty sequence.
        """
        results = {
            job.job_id: _kept_end(job, seconds)
            for job in ended
            if (seconds := keep_seconds_of(job.options)) is not None
        }
        if results:
            await self.keep(results, transaction.connection, are_outcomes=False)
        return ()

    async def get(
        self, job_ids: Sequence[str], connection: Connection | None = None
    ) -> dict[str, JobResult | None]:
        """Return the results of those jobs that exist, by id; None for a job that has not ended."""
        rows = await self._statements.fetch("get_results", job_ids, self._statements.now, on=connection)
        # ``status`` is that of the kept result. A job that has neither a row nor a result does not exist.
        return {
            row["job_id"]: _result_from(row, self._statements.codec)
            for row in rows
            if row["has_row"] or row["status"] is not None
        }

    async def vacuum(self, limit: int) -> int:
        """Delete results past their lifetime, ``limit`` in a statement; return how many were deleted."""
        args = limit, self._statements.now
        return await self._refused_deletions.number("vacuum_results", *args, statements=self._statements)


def _kept_end(job: EndedJob, seconds: float) -> KeptResult:
    """Return what a job keeps as its result if its attempt has stored none, from its row.

    It is kept for so many seconds.
    """
    # An attempt that completes stores its result, so a person has set this status.
    if job.status is JobStatus.COMPLETED:
        return KeptResult(seconds, no_value_reason=SET_BY_HAND)
    if job.error is None:
        return KeptResult(seconds)
    return kept_error(seconds, job.error, None)


def _result_from(row: Any, codec: PayloadCodec | None) -> JobResult | None:
    """Return the kept result of a job, else what the row of the job has of it; None if it has not ended.

    The columns of the job's row begin with ``row_``. The others are those of the kept result.
    """
    job_id = row["job_id"]
    status = terminal(row["row_status"])
    # The job has not ended. If a result is kept, it is that of an earlier job with this id.
    if row["has_row"] and status is None:
        return None
    if (kept_status := terminal(row["status"])) is not None:
        value, reason = read_value(row["value"], row["no_value_reason"], codec)
        return JobResult(
            job_id,
            kept_status,
            value=value,
            no_value_reason=reason,
            error=_error_of(row["error"]),
            attempts=row["attempts"],
            started_at=row["started_at"],
            finished_at=row["finished_at"],
            expires_at=row["expires_at"],
        )
    # There is no row of the job, and the status of its result was written by hand.
    if status is None:
        return None
    message = row["row_error"]
    return JobResult(
        job_id,
        status,
        no_value_reason=NOT_KEPT if status is JobStatus.COMPLETED else None,
        error=None if message is None else _row_error(message, row["row_error_type"]),
        attempts=row["row_attempts"],
        started_at=row["row_started_at"],
        finished_at=row["row_finished_at"],
    )


def _row_error(message: str, kind: str | None) -> JobError:
    """Return the error of a row, divided into its class and its text.

    The message of an attempt that failed starts with the class of its exception, whose name is ``kind``. Any
    other message has no class.
    """
    name, _, text = message.partition(": ")
    # The message has the name of the class only. ``kind`` has the name of its module and a dot before that,
    # unless the class is a built-in one.
    if kind is None or not f".{kind}".endswith(f".{name}"):
        return JobError("", message)
    return JobError(name, text)


def terminal(status: str | None) -> JobStatus | None:
    """Return the status of a job that has ended; None for any other text, perhaps written by hand."""
    member = next((member for member in JobStatus if member.value == status), None)
    return member if member is not None and member.is_finished else None


def _error_of(document: str | None) -> JobError | None:
    """Return a kept error from its JSON; its text as the message if it is not JSON."""
    if document is None:
        return None
    try:
        return error_from(value_from(document))
    except ValueError:
        return JobError("", document)


def error_from(value: object) -> JobError:
    """Return an error from its JSON, which may be written by hand."""
    if not isinstance(value, dict):
        return JobError("", json.dumps(value))
    values = [value.get(key) for key in ("type", "message", "traceback")]
    # What is no text was written by hand, and counts as missing.
    kind, message, trace = (text if isinstance(text, str) else None for text in values)
    return JobError(kind or "", message or "", trace)
